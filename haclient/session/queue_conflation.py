"""Conflation in the client: only the newest queued message of each key is kept. Pure.

A message replaces the queued message of the same key, which is discarded. So a slow consumer gets
each key in turn, with its newest message, and the resume position advances. The new message stays
undiscarded until the application discards it: if it is not processed, it is redelivered.

No message moves across a marker in the queue, such as the end of a replay, or across a message of
another kind, such as the end of a query: later messages are queued behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

from haclient.errors import UsageError
from haclient.protocol.messages import Message

MESSAGE_OVERHEAD_BYTES: Final = 200
"""The weight of a queued message in addition to its body: about the length of a header."""

_CONFLATED: Final = frozenset({"p", "publish", "sow", "oof"})

ConflationKey = Callable[[Message], Hashable]
"""Returns the key of a message; `None` for a message that replaces none."""


class KeySlot(list[Message]):
    """The slot of one key in a queue: a list with its newest message.

    Attributes:
        key: The key; `None` for a message that is never replaced.
    """

    __slots__ = ("key",)

    def __init__(self, message: Message, key: Hashable) -> None:
        super().__init__((message,))
        self.key = key


class QueueConflation:
    """The slots of one queue whose messages may be replaced.

    Args:
        key: Returns the key of a message.
    """

    __slots__ = ("_key", "_slots")

    def __init__(self, key: ConflationKey) -> None:
        self._key = key
        self._slots: dict[Hashable, KeySlot] = {}

    def replace(self, message: Message) -> Message | KeySlot:
        """Put a message into the slot of its key.

        Returns:
            The message that it has replaced, or a new slot, which has to be put into the queue.

        Raises:
            UsageError: The key function has failed, or its result is not hashable.
        """
        if message.kind not in _CONFLATED:
            self.clear()
            return KeySlot(message, None)
        try:
            key = self._key(message)
            slot = None if key is None else self._slots.get(key)
        except Exception as error:  # the application's function
            raise UsageError(
                f"the key function of conflate raised {type(error).__name__}: it has to return "
                "a hashable key, or None"
            ) from error
        if slot is None:
            slot = KeySlot(message, key)
            if key is not None:
                self._slots[key] = slot
            return slot
        replaced, slot[0] = slot[0], message
        return replaced

    def remove(self, slot: list[Message]) -> None:
        """Forget a slot that has left the queue."""
        if isinstance(slot, KeySlot) and self._slots.get(slot.key) is slot:
            del self._slots[slot.key]

    def clear(self) -> None:
        """Forget all slots: the messages queued so far are not replaced any more."""
        self._slots.clear()


def sow_key(message: Message) -> Hashable:
    """The topic and the SOW key of a message; `None` without a key."""
    return (message.topic, message.sow_key) if message.sow_key else None


def weight_of(batch: list[Message]) -> int:
    """The weight of messages in a queue, in bytes, where nobody knows what their frames had."""
    bodies = [len(message.data) for message in batch]  # faster than a generator
    return sum(bodies) + MESSAGE_OVERHEAD_BYTES * len(bodies)

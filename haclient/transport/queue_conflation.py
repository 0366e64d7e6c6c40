"""Conflation in the client: of the messages that wait in a queue, the newest of each key.

A message takes the place of the one of its key that still waits, which is discarded. So a slow
consumer gets each key in turn, with its newest message, and the resume position moves on. The
message that has taken the place is undiscarded until the application discards it: where it is not
processed, it is redelivered.

A marker in the queue, such as the end of a replay, is not crossed, and neither is a message of
another kind, such as the end of a query: what follows it waits behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

from haclient.errors import UsageError
from haclient.protocol.messages import Message

MESSAGE_OVERHEAD_BYTES: Final = 200
"""What a waiting message counts for beside its body: about the length of a header."""

_CONFLATED: Final = frozenset({"p", "publish", "sow", "oof"})

ConflationKey = Callable[[Message], Hashable]
"""The key of a message; `None` for one that replaces none."""


class Waiting(list[Message]):
    """The place of one key in a queue: a list with its newest message.

    Attributes:
        key: The key; `None` for a message that none replaces.
    """

    __slots__ = ("key",)

    def __init__(self, message: Message, key: Hashable) -> None:
        super().__init__((message,))
        self.key = key


class QueueConflation:
    """Which messages of one queue may be replaced.

    Args:
        key: The key of a message.
    """

    __slots__ = ("_key", "_waiting")

    def __init__(self, key: ConflationKey) -> None:
        self._key = key
        self._waiting: dict[Hashable, Waiting] = {}

    def replace(self, message: Message) -> Message | Waiting:
        """Put a message in its place.

        Returns:
            The message that it has replaced, or a new place, which has to be put into the queue.

        Raises:
            UsageError: The key function has failed, or its result is no key.
        """
        if message.kind not in _CONFLATED:
            self.clear()
            return Waiting(message, None)
        try:
            key = self._key(message)
            waiting = None if key is None else self._waiting.get(key)
        except Exception as error:  # the application's function
            raise UsageError(
                f"the key function of conflate raised {type(error).__name__}: it has to return "
                "something that a dict takes as a key, or None"
            ) from error
        if waiting is None:
            waiting = Waiting(message, key)
            if key is not None:
                self._waiting[key] = waiting
            return waiting
        replaced, waiting[0] = waiting[0], message
        return replaced

    def left(self, place: list[Message]) -> None:
        """A place is in the queue no more."""
        if isinstance(place, Waiting) and self._waiting.get(place.key) is place:
            del self._waiting[place.key]

    def clear(self) -> None:
        """Nothing that waits now may be replaced."""
        self._waiting.clear()


def sow_key(message: Message) -> Hashable:
    """The topic and the SOW key of a message; `None` without a key."""
    return (message.topic, message.sow_key) if message.sow_key else None


def weight_of(batch: list[Message]) -> int:
    """What messages count for in a queue with conflation, in bytes."""
    return sum(len(message.data) + MESSAGE_OVERHEAD_BYTES for message in batch)

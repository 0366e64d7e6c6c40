"""What happens while consumers are slow. Pure.

**Back-pressure**: when a connection stops reading for full queues, and when waits for acks fail.
Acks and messages share one socket. A connection that stops reading for a full queue also receives
no ack, so reading goes on while somebody waits for one, and while the server holds back every full
queue. Both have a limit: the messages that are queued above the caps, `IN_FLIGHT_BYTES` for all
queues of a connection together. At the limit reading stops. If nothing is taken from the queues for
a while then, the waits for acks fail: their consumers may be the ones that wait.

**Conflation in the client**: only the newest queued message of each key is kept. A message replaces
the queued message of the same key, which is discarded. So a slow consumer gets each key in turn,
with its newest message, and the resume position advances. The new message stays undiscarded until
the application discards it: if it is not processed, it is redelivered.

No message moves across a marker in the queue, such as the end of a replay, or across a message of
another kind, such as the end of a query: later messages are queued behind it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from haclient.errors import SubscriptionFull, UsageError
from haclient.protocol.messages import Message

IN_FLIGHT_BYTES: Final = 16 * 1024 * 1024
"""How much the full queues of a connection may hold above their caps, all together.

So much may be in the buffers of both machines and of the server when a subscription is paused, and
so far a connection reads ahead for an ack. The buffers belong to the connection, so all queues
share the limit.
"""

STUCK_AFTER_S: Final = 1.0
"""After how many seconds in which nothing is taken from queues at the limit waits for acks fail."""

_Queue = TypeVar("_Queue", bound=Hashable)


class Reading(enum.Enum):
    """What a connection with full queues does."""

    ON = enum.auto()  # it reads
    OFF = enum.auto()  # it waits until a queue has drained, or somebody waits for an ack
    AT_LIMIT = enum.auto()  # it waits until messages are taken
    STUCK = enum.auto()  # the same, and no wait for an ack may go on


@dataclass(slots=True)
class _FullQueue:
    """One full queue.

    Attributes:
        excess_bytes: What it holds above its cap.
        progress: A value that changes with each message that its consumer has processed.
    """

    excess_bytes: int
    progress: object


class FullQueues(Generic[_Queue]):
    """The full queues of one connection: each from its cap on, until it is half empty.

    Attributes:
        excess_bytes: What they hold above their caps, all together.
    """

    def __init__(self) -> None:
        self._levels: dict[_Queue, _FullQueue] = {}
        self._unpaused: set[_Queue] = set()
        self._moved_at = 0.0
        self.excess_bytes = 0

    def __len__(self) -> int:
        return len(self._levels)

    def __contains__(self, queue: _Queue) -> bool:
        return queue in self._levels

    def queues(self) -> list[_Queue]:
        """The full queues."""
        return list(self._levels)

    def update(
        self, queue: _Queue, queued_bytes: int, cap_bytes: int, *, progress: object, now: float
    ) -> None:
        """Note what a queue holds; one that is half empty is full no more.

        Args:
            queue: The queue.
            queued_bytes: What it holds.
            cap_bytes: Its cap.
            progress: A value that changes with each message that its consumer has processed.
            now: The time, in seconds.
        """
        level = self._levels.get(queue)
        is_full = queued_bytes > (cap_bytes if level is None else cap_bytes // 2)
        if level is None:
            if not is_full:
                return
            level = self._levels[queue] = _FullQueue(0, None)
            self._unpaused.add(queue)
        if level.progress != progress:
            level.progress = progress
            self._moved_at = now
        excess_bytes = max(0, queued_bytes - cap_bytes)
        self.excess_bytes += excess_bytes - level.excess_bytes
        level.excess_bytes = excess_bytes
        if not is_full:
            del self._levels[queue]
            self._unpaused.discard(queue)

    def set_paused(self, queue: _Queue, *, is_paused: bool) -> None:
        """Note whether the server holds back what it has for a full queue, or soon will."""
        if is_paused:
            self._unpaused.discard(queue)
        elif queue in self._levels:
            self._unpaused.add(queue)

    def decide(self, *, is_ack_awaited: bool, now: float) -> Reading:
        """What the connection does now."""
        if self.excess_bytes > IN_FLIGHT_BYTES:
            return Reading.STUCK if now >= self.stuck_at else Reading.AT_LIMIT
        return Reading.ON if is_ack_awaited or not self._unpaused else Reading.OFF

    @property
    def stuck_at(self) -> float:
        """When waits for acks fail if nothing is taken until then and the limit is exceeded."""
        return self._moved_at + STUCK_AFTER_S

    @property
    def fullest(self) -> _Queue:
        """The queue that holds the most above its cap."""
        return max(self._levels, key=lambda queue: self._levels[queue].excess_bytes)


def too_full(
    what: str, held_bytes: int, *, of_listeners: bool = False, sub_id: str = "", topic: str = ""
) -> SubscriptionFull:
    """The error of a wait for an ack that comes after what a full queue holds.

    Args:
        what: What waits.
        held_bytes: What the queue holds.
        of_listeners: Whether it is the queue of the listeners; else it has the other arguments.
        sub_id: The subscription.
        topic: Its topic.
    """
    held = f"holds {held_bytes} bytes that nobody takes"
    before = f"{what}: the ack comes after what the client reads ahead: the queue of"
    if of_listeners:
        return SubscriptionFull(
            f"{before} the listeners {held}: wait for acks in another task than a listener"
        )
    return SubscriptionFull(
        f"{before} subscription {sub_id!r} on topic {topic!r} {held}: take its messages in a task "
        "that does not wait for acks, or raise max_queued_bytes",
        sub_id=sub_id,
        topic=topic,
    )


# -- conflation in the client ----------------------------------------------------------------------


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
    if len(batch) == 1:
        return len(batch[0].data) + MESSAGE_OVERHEAD_BYTES
    bodies = [len(message.data) for message in batch]  # faster than a generator
    return sum(bodies) + MESSAGE_OVERHEAD_BYTES * len(bodies)

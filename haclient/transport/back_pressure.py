"""When a connection with full queues reads on: always while somebody waits for an ack.

Acks and messages share one socket. `AckWaits` has the calls of a client that wait for acks,
`BackPressure` the full queues of one connection. What follows from both is decided by
`haclient.session.back_pressure`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import trio

from haclient.errors import SubscriptionFull
from haclient.session.back_pressure import FullQueues, Reading, too_full
from haclient.session.subscriptions import Subscription
from haclient.transport.message_queue import MessageQueue
from haclient.transport.reporter import CallQueue


@dataclass(slots=True, eq=False)
class _Wait:
    what: str
    may_fail: bool
    error: SubscriptionFull | None = None
    scope: trio.CancelScope | None = None


class AckWaits:
    """The calls of one client that wait for an ack.

    Attributes:
        reader: Where the reading task waits while it does not read; woken when a wait begins.
    """

    __slots__ = ("_waits", "reader")

    def __init__(self) -> None:
        self._waits: dict[trio.Event, _Wait] = {}
        self.reader = trio.lowlevel.ParkingLot()

    def __bool__(self) -> bool:
        # One whose ack has come goes on in a moment.
        return any(not event.is_set() for event in self._waits)

    async def until(self, event: trio.Event, what: str, *, may_fail: bool = True) -> None:
        """Wait for an event that an ack sets.

        Args:
            event: The event, for which nobody else waits: it is also set when the wait fails.
            what: What the caller does, for the error.
            may_fail: Whether it fails if full queues keep the client from reading the ack.

        Raises:
            SubscriptionFull: The ack comes after more messages than the client reads ahead.
        """
        wait = self._waits[event] = _Wait(what, may_fail)
        self.reader.unpark_all()
        try:
            await event.wait()
        finally:
            del self._waits[event]
        if wait.error is not None:
            raise wait.error

    @contextmanager
    def reading(
        self, what: str, scope: trio.CancelScope, *, may_fail: bool = True
    ) -> Generator[None]:
        """Have the connection read on in a block that waits for messages, as for an ack.

        Args:
            what: What waits, for the error.
            scope: Around the block; cancelled if full queues keep the client from reading on.
            may_fail: Whether it is then, or waits until their messages are taken.

        Raises:
            SubscriptionFull: They do.
        """
        event = trio.Event()
        wait = self._waits[event] = _Wait(what, may_fail, scope=scope)
        self.reader.unpark_all()
        try:
            yield
        finally:
            del self._waits[event]
            if wait.error is not None:
                raise wait.error

    def fail(self, error_of: Callable[[str], SubscriptionFull]) -> None:
        """End the waits that may fail.

        Args:
            error_of: Makes the error of one wait, of what its caller does.
        """
        for event, wait in self._waits.items():
            if wait.may_fail and not event.is_set():  # an ack that has come counts
                wait.error = error_of(wait.what)
                event.set()
                if wait.scope is not None:
                    wait.scope.cancel()


class AckLot:
    """A `trio.lowlevel.ParkingLot` for waits for acks.

    Args:
        waits: The waits of the client.
    """

    __slots__ = ("_events", "_waits")

    def __init__(self, waits: AckWaits) -> None:
        self._waits = waits
        self._events: set[trio.Event] = set()

    async def park(self, what: str) -> None:
        """Wait for `unpark_all`; see `AckWaits.until`."""
        event = trio.Event()
        self._events.add(event)
        try:
            await self._waits.until(event, what)
        finally:
            self._events.discard(event)

    def unpark_all(self) -> None:
        """Wake all callers that wait."""
        for event in self._events:
            event.set()


class Watermark:
    """Tasks that wait until the mark reaches their sequence.

    Args:
        waits: The waits for acks of the client.
    """

    __slots__ = ("_heap", "_order", "_waiting", "_waits")

    def __init__(self, waits: AckWaits) -> None:
        self._waits = waits
        self._heap: list[tuple[int, int, trio.Event]] = []
        self._waiting: set[int] = set()  # of the numbers that follow the sequences in the heap
        self._order = count()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def advance(self, sequence: int) -> None:
        """Raise the mark to `sequence` and wake the tasks that wait for it."""
        heap = self._heap
        while heap and heap[0][0] <= sequence:
            _, number, event = heapq.heappop(heap)
            if number in self._waiting:
                self._waiting.remove(number)
                event.set()

    def release(self) -> None:
        """Wake every waiter, although the mark has not risen: each checks again."""
        for _, number, event in self._heap:
            if number in self._waiting:
                event.set()
        self._heap.clear()
        self._waiting.clear()

    async def wait_for(self, sequence: int, what: str, event: trio.Event | None = None) -> None:
        """Wait for `advance` to at least `sequence`, or for `release`.

        Args:
            sequence: What to wait for.
            what: What the caller does, for the error.
            event: Another event that also ends the wait if it happens first.

        Raises:
            SubscriptionFull: The ack comes after more messages than the client reads ahead.
        """
        event, number = trio.Event() if event is None else event, next(self._order)
        heapq.heappush(self._heap, (sequence, number, event))
        self._waiting.add(number)
        try:
            await self._waits.until(event, what)
        finally:
            if number in self._waiting:  # cancelled, refused, or another wait ended first
                self._waiting.remove(number)
                self._drop_left_entries()

    def _drop_left_entries(self) -> None:
        """Drop entries that nobody waits for once they are half of all: many may end at once."""
        heap, waiting = self._heap, self._waiting
        if len(heap) >= 2 * len(waiting):
            heap[:] = [each for each in heap if each[1] in waiting]
            heapq.heapify(heap)


class BackPressure:
    """The full queues of one connection.

    Args:
        waits: The waits for acks of the client.
        calls: The queue of its listeners.
    """

    def __init__(self, waits: AckWaits, calls: CallQueue) -> None:
        self._waits = waits
        self._calls = calls
        self._full = FullQueues[Subscription | None]()  # None: the queue of the listeners
        self._refresh_at = 1  # how many there are when all are looked at: else each costs all

    @property
    def is_ack_awaited(self) -> bool:
        """Whether a caller waits for an ack right now."""
        return bool(self._waits)

    def note(self, subscription: Subscription) -> None:
        """Note that the queue of a subscription is over its cap."""
        if subscription not in self._full and len(self._full) >= self._refresh_at:
            self._refresh()  # the others may have been emptied, and their subscriptions ended
        self._update(subscription)
        self._full.set_paused(subscription, is_paused=self.pause_for_back_pressure(subscription))

    def pause_for_back_pressure(self, _: Subscription, /) -> bool:
        """Have the server send nothing for a full subscription until half of its queue is free.

        Returns:
            Whether it stops sending soon. Here it never does: each full queue stops the reading.
        """
        return False

    def allows_reading(self) -> bool:
        """Whether the connection may read on; to be asked after each chunk."""
        return not (self._full or self._calls.full) or self._decide() is Reading.ON

    async def run(self) -> None:
        """Run for as long as the connection lasts.

        Raises:
            DisconnectedError: The connection has to end.
        """
        await trio.sleep_forever()

    async def wait(self) -> None:
        """Wait until the connection may read on; fail the waits for acks that cannot end."""
        while (reading := self._decide()) is not Reading.ON:
            if reading is Reading.STUCK:
                self._waits.fail(self._error)
            wake_at = self._full.stuck_at if reading is Reading.AT_LIMIT else math.inf
            with trio.move_on_at(wake_at):
                await self._waits.reader.park()

    def _update(self, subscription: Subscription | None) -> None:
        queue = self._queue_of(subscription)
        queue.reader = self._waits.reader
        self._full.update(
            subscription,
            queue.queued_bytes,
            queue.cap_bytes,
            progress=queue.progress,
            now=trio.current_time(),
        )

    def _queue_of(self, subscription: Subscription | None) -> MessageQueue | CallQueue:
        return self._calls if subscription is None else queue_of(subscription)

    def _refresh(self) -> None:
        for each in self._full.queues():
            self._update(each)
        self._refresh_at = max(1, 2 * len(self._full))

    def _decide(self) -> Reading:
        if self._calls.full:
            self._update(None)
        reading = self._full.decide(is_ack_awaited=bool(self._waits), now=trio.current_time())
        if reading is Reading.ON:
            return reading
        self._refresh()  # most of them may have been taken from meanwhile
        return self._full.decide(is_ack_awaited=bool(self._waits), now=trio.current_time())

    def _error(self, what: str) -> SubscriptionFull:
        subscription = self._full.fullest
        held_bytes = self._queue_of(subscription).queued_bytes
        if subscription is None:
            return too_full(what, held_bytes, of_listeners=True)
        topic = str(subscription.request.fields.get("t", ""))
        return too_full(what, held_bytes, sub_id=subscription.sub_id, topic=topic)


def queue_of(subscription: Subscription) -> MessageQueue:
    """The queue of a subscription that has one."""
    assert isinstance(subscription.queue, MessageQueue)  # noqa: S101  # no other one is full
    return subscription.queue

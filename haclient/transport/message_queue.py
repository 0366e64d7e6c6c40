"""A subscription's queue: the reader puts batches, one consumer takes messages.

One deque of batches and one parked consumer serve handlers, `async for` and `batches()` alike: a
trio memory channel per message would cost 8 microseconds, this costs a fraction of one. Markers
stand between batches, so that "caught up" and "ended" keep their place in the order.

A queue is bounded in bytes. It never refuses a batch, since the bytes were already read; over the
cap it reports `full`. Then the subscription is paused at the server (see `subscription_control`),
or the connection stops reading (see `back_pressure`) until the queue is half empty.

A handler is called by a task of its own (`haclient.workers`), so a slow handler delays only its
subscription.

The `processed` ack accepts a query. Its records and their end come later, or fail to come, so the
timeout of the query also limits each silence: the time in which nothing arrives. It runs only while
the consumer waits with an empty queue, since the delay of a slow consumer is not the server's. The
client reads on meanwhile as for an ack: the consumer may be a handler whose own queue is full.
"""

from __future__ import annotations

import inspect
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Literal, TypeAlias

import trio
from typing_extensions import override

from haclient.errors import DisconnectedError, HAClientError, SubscriptionFull, UsageError
from haclient.protocol.messages import Message
from haclient.session.back_pressure import KeySlot, QueueConflation, weight_of
from haclient.session.connection_state import ConnectionStatus
from haclient.session.subscriptions import Marker, Subscription, SubscriptionQueue
from haclient.transport.tasks import Turn, is_of_handler
from haclient_stores.checks import check_word

IDLE_CHECK_S: Final = 0.1
"""How often an orderly end looks whether those that are at work are still there."""

DEFAULT_CAP_BYTES: Final = 4 * 1024 * 1024
"""How much one subscription may hold before reading stops; several reads of the socket."""


class ShuttingDown(DisconnectedError):
    """A stream or handler has ended early, since its program ends in order."""


class ClientLeft(DisconnectedError):
    """A stream has ended early, since its client was left: others may go on, and read it."""


class MessageQueue(SubscriptionQueue):
    """The queued messages of one subscription.

    Args:
        cap_bytes: How much it may hold before reading stops.
        raises: Whether the consumer gets the reason of an early end as an error; a handler's task
            does not, since no code could catch it.
    """

    __slots__ = (
        "_batches",
        "_consumer_left",
        "_counts_in_hand",
        "_drained",
        "_idle",
        "_may_raise",
        "_processing",
        "_raises",
        "_stops",
        "_waiting",
        "cap_bytes",
        "carries_deltas",
        "caught_up",
        "conflation",
        "consumer",
        "end_reason",
        "ended",
        "error_policy",
        "failed",
        "gaps",
        "handler",
        "is_caught_up",
        "is_historical",
        "is_served",
        "is_shared_at_work",
        "on_stop",
        "processed",
        "queued_bytes",
        "reader",
        "skips_rest",
        "status",
        "turn",
    )

    def __init__(self, cap_bytes: int = DEFAULT_CAP_BYTES, *, raises: bool = True) -> None:
        self._batches: deque[tuple[list[Message] | Marker, int]] = deque()
        self._waiting: trio.lowlevel.Task | None = None
        self.consumer: trio.lowlevel.Task | None = None  # the task that has asked last
        self.reader: trio.lowlevel.ParkingLot | None = None  # woken when messages are taken
        self._collects = False  # the consumer waits for more than it has taken
        self._drained = trio.lowlevel.ParkingLot()
        self.turn: Turn | None = None  # of the consumer; none outside of a trio run
        self.cap_bytes = cap_bytes
        self.queued_bytes = 0
        self.caught_up = trio.Event()  # set at the end, too, so that nobody waits for ever
        self.is_caught_up = False
        self.ended = False
        self.end_reason: HAClientError | None = None
        self.failed: HAClientError | None = None
        self.gaps = 0
        self.handler: Handler | None = None
        self._may_raise = raises
        self._raises = False
        self._stops = False
        self._consumer_left = False
        self._processing: list[Message] = []  # the batch that `each` gives away
        self.processed = 0  # how many of them, as far as another task can see
        self._idle = trio.lowlevel.ParkingLot()
        self.is_served = False  # a handler's task, which has ended when all its work has
        self.skips_rest = False
        self.carries_deltas = False
        self.is_historical = False
        self.conflation: QueueConflation | None = None
        self.on_stop: Callable[[], object] | None = None
        self._counts_in_hand: list[Callable[[], int]] = []  # of messages that wait in front of it
        self.is_shared_at_work: Callable[[], bool] = bool  # any of several callers of the stream
        self.error_policy: HandlerErrorPolicy = "raise"  # for workers that take a stream's messages
        self.status: ConnectionStatus | None = None  # of the client, for whoever runs handlers

    @property
    @override
    def is_stream(self) -> bool:
        return self._may_raise

    # -- the reader's side ------------------------------------------------

    @override
    def put(self, batch: list[Message], size: int) -> None:
        if self.ended or self._stops:
            return
        if self.conflation is None:
            self._batches.append((batch, size))
            self.queued_bytes += size
        else:
            self._conflate(batch, self.conflation)
        self._wake()

    def _conflate(self, batch: list[Message], conflation: QueueConflation) -> None:
        for message in batch:
            try:
                replaced = conflation.replace(message)
            except UsageError as error:
                self.fail(error)  # for the consumer: the connection is not at fault
                return
            self.queued_bytes += weight_of([message])
            if isinstance(replaced, KeySlot):
                self._batches.append((replaced, 0))  # its weight changes with each replacement
            else:
                self._took(weight_of([replaced]))
                replaced.discard()

    @override
    def mark(self, marker: Marker) -> None:
        if self.conflation is not None:
            self.conflation.clear()  # no later message moves before the marker
        if marker is Marker.ENDED and not self._batches:
            self._end()  # a closed stream has ended even if it is never read again
        else:
            self._batches.append((marker, 0))
        self._wake()

    @override
    def end(self, reason: HAClientError | None = None, *, raises: bool = False) -> None:
        if self.end_reason is None:
            self.end_reason = reason
            self._raises = raises and self._may_raise
        self.mark(Marker.ENDED)

    def stop(self, *, keeps: bool) -> None:
        """Take no further message and end, before the client itself does.

        Args:
            keeps: Whether what is held is still delivered; else it has to be dropped already, and
                the consumer skips the rest of the batch that it has.
        """
        self._stops = True
        if not keeps:
            self.skip_rest()
        self.end(ShuttingDown("the stream has ended early, since its client shuts down"))

    @override
    def skip_rest(self) -> None:
        self.skips_rest = True
        if self.on_stop is not None:
            self.on_stop()

    def take_no_more(self) -> None:
        """Hold nothing from now on: whoever asks for a message waits for the end."""
        self._stops = True

    def each(self, batch: list[Message]) -> Iterator[Message]:
        """The messages of a batch, for as long as none is to be skipped."""
        self._processing = batch
        for index, message in enumerate(batch):
            if self.skips_rest:
                break
            self.processed = index
            yield message
        self._processing = []

    @override
    def unprocessed(self) -> list[Message]:
        # The queue is not empty after an end by the server, which leaves it to the handler.
        return self._processing[self.processed :] + self.undelivered()

    @property
    def is_idle(self) -> bool:
        """Whether the consumer has finished every message that it was given."""
        if self.is_shared_at_work():  # though another one waits, or has seen the end
            return False
        if self._consumer_left:
            return True
        waits = self._waiting is not None and not self._collects
        return not self.is_served and (self.consumer is None or waits)

    async def wait_idle(self) -> None:
        """Wait until `is_idle`, after `stop`."""
        while not self.is_idle:
            with trio.move_on_after(IDLE_CHECK_S):  # a caller that ends says nothing
                await self._idle.park()

    def consumer_left(self) -> None:
        """The consumer asks for nothing more."""
        self._consumer_left = True
        self._idle.unpark_all()

    @override
    def fail(self, error: HAClientError) -> None:
        self.failed = error
        self.end(error, raises=True)

    @override
    def drop(self, *, keep_replaced: bool = False) -> list[Message]:
        if keep_replaced and self._stops:  # it takes no message again, so what it holds stays
            return []
        queue, kept = self._batches, 0
        dropped = self.undelivered(keep_replaced=keep_replaced)
        if keep_replaced:
            replaced = (at for at, (item, _) in enumerate(queue, 1) if item is Marker.REPLACED)
            kept = max(replaced, default=0)
        while len(queue) > kept:
            self._took(self._remove(*queue.pop()))
        return dropped

    def undelivered(self, *, keep_replaced: bool = False) -> list[Message]:
        """The messages that `drop` would drop, in order; the same argument."""
        found: list[Message] = []
        for item, _ in self._batches:
            if isinstance(item, list):
                found += item
            elif keep_replaced and item is Marker.REPLACED:
                found.clear()
        return found

    def _remove(self, batch: list[Message] | Marker, size: int) -> int:
        """Note that a batch has left the queue; return its weight in bytes."""
        if self.conflation is None or isinstance(batch, Marker):
            return size
        self.conflation.remove(batch)
        return weight_of(batch)

    @property
    def queued_count(self) -> int:
        """How many messages are held; it takes time for each run of them, not for each message."""
        return sum(len(item) for item, _ in self._batches if isinstance(item, list))

    @property
    def has_queued(self) -> bool:
        """Whether the queue holds anything, messages or markers."""
        return bool(self._batches)

    @property
    def full(self) -> bool:
        """Whether more is held than the cap allows."""
        return self.queued_bytes > self.cap_bytes and not self.ended

    @property
    def progress(self) -> tuple[int, int, int]:
        """A value that changes with each message that the consumer has taken."""
        in_hand = sum(count() for count in self._counts_in_hand)
        return self.queued_bytes, self.processed, in_hand

    def count_in_hand_by(self, count: Callable[[], int]) -> None:
        """Note a function that counts messages which have left the queue and wait for a caller."""
        self._counts_in_hand.append(count)

    async def drained(self) -> None:
        """Wait until half of the cap is free."""
        while self.queued_bytes > self.cap_bytes // 2 and not self.ended:
            await self._drained.park()

    def _wake(self) -> None:
        if self._waiting is not None:
            trio.lowlevel.reschedule(self._waiting)
            self._waiting = None

    # -- the consumer's side ----------------------------------------------

    async def next_batch(self) -> list[Message] | None:
        """The next messages in order, `None` at the end; suspends when there are none yet.

        Raises:
            HAClientError: The subscription ended by an error; everything before it was delivered.
            UsageError: Another task is waiting for the next messages.
        """
        self.consumer = trio.lowlevel.current_task()  # known even if it never has to wait
        turn = self.turn
        if turn is None or turn.now() >= turn.ends_at:  # a call less for each batch
            await self.end_turn()
        while True:
            batch = self._take()
            if batch is not None:
                return batch
            if self.ended:
                if not self.is_served:
                    self.consumer_left()
                if self._raises and self.end_reason is not None:
                    raise self.end_reason
                return None
            await self._arrival()
            if self.turn is not None:  # others have run
                self.turn.begin()

    def check_cut(self) -> None:
        """Check that no handler takes an early end of this queue for the ordinary one.

        The handler would return as if it had seen all, and its message would count as processed.

        Raises:
            HAClientError: The reason of an early end; the current task belongs to a handler.
        """
        if self.end_reason is not None and is_of_handler():
            raise self.end_reason

    async def end_turn(self) -> bool:
        """Let others run if the consumer's turn is over, so that a cancellation is seen, too.

        Returns:
            Whether they have run.
        """
        turn = self.turn
        if turn is None:
            self.turn = Turn()
        elif turn.now() >= turn.ends_at:
            await turn.end()
            return True
        return False

    async def next_more(self) -> list[Message] | None:
        """As `next_batch`, for a consumer that still has messages: `None` at any end.

        The next call of `next_batch` says that the consumer has finished with them, and raises.
        """
        self._collects = True
        try:
            while (batch := self._take()) is None and not self.ended:
                await self._arrival()
        finally:
            self._collects = False
        return batch

    def _take(self) -> list[Message] | None:
        batches = self._batches
        while batches:
            batch, size = batches.popleft()
            if isinstance(batch, list):  # before the markers, of which there are few
                self._took(size if self.conflation is None else self._remove(batch, size))
                return batch
            match batch:
                case Marker.CAUGHT_UP:
                    self.is_caught_up = True
                    self.caught_up.set()
                case Marker.GAP:
                    self.gaps += 1
                    self._lag()
                case Marker.REPLAY:
                    self._lag()
                case Marker.ENDED:
                    self._end()
                    return None
                case Marker.REPLACED:
                    pass
        return None

    def take_waiting(self, most: int | None) -> list[Message]:
        """With conflation, take the messages before the next marker; `next_batch` takes only one.

        Args:
            most: The maximum number of messages; `None` for all.
        """
        taken: list[Message] = []
        while self._batches and (most is None or len(taken) < most):
            if self.conflation is None or not isinstance(self._batches[0][0], list):
                break
            taken += self._take() or ()
        return taken

    def _lag(self) -> None:
        """A query or replay begins again; a task waiting for the end of the first still waits."""
        self.is_caught_up = False
        if self.caught_up.is_set():
            self.caught_up = trio.Event()

    def _end(self) -> None:
        self.ended = True
        if self.end_reason is not None:  # what follows at the server does not come any more
            self.is_caught_up = False
        self.caught_up.set()
        self._batches.clear()
        if self.conflation is not None:
            self.conflation.clear()
        self._took(self.queued_bytes)

    def _took(self, size: int) -> None:
        self.queued_bytes -= size
        if self._drained and self.queued_bytes <= self.cap_bytes // 2:
            self._drained.unpark_all()
        if self.reader:
            self.reader.unpark_all()

    async def _arrival(self) -> None:
        if self._waiting is not None:
            raise UsageError("another task is waiting for the messages of this subscription")
        self._waiting = trio.lowlevel.current_task()

        def abort(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            self._waiting = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)


Handler: TypeAlias = Callable[[Message], Awaitable[None] | None]
"""Called with each message, one at a time."""

HandlerErrorPolicy: TypeAlias = (
    Literal["raise", "continue", "discard"] | Callable[[Message, Exception], Awaitable[None] | None]
)
"""What to do when a handler raises; a callable is a dead letter box and may discard."""


def check_policy(policy: HandlerErrorPolicy) -> None:
    """Refuse a policy that does not exist.

    Raises:
        UsageError: It is neither one of the three words nor callable.
    """
    words = "raise", "continue", "discard"
    check_word("on_handler_error", policy, words, function=True)


def release_queues(subscriptions: Iterable[Subscription]) -> None:
    """Drop the queues of the exiting task, and those that nobody has read.

    So the final acks can still be read.

    A full queue whose last consumer has ended is dropped as well, since it stops the reading.
    """
    for subscription in subscriptions:
        queue = subscription.queue
        if not isinstance(queue, MessageQueue):
            continue
        if queue.consumer is None:  # a handler may have opened it, and has yet to read it
            subscription.drop_queued()
            queue.take_no_more()
            if subscription.query_id and queue.is_stream:  # else it would end as if it were empty
                queue.end(ShuttingDown("the client was left"), raises=True)
        elif queue.consumer is trio.lowlevel.current_task():
            subscription.drop_queued()
            queue.end()
        elif queue.full and inspect.getcoroutinestate(queue.consumer.coro) == inspect.CORO_CLOSED:
            subscription.drop_queued()
            queue.end(DisconnectedError("the client was left"), raises=True)


Overdue: TypeAlias = Callable[[SubscriptionFull | None], HAClientError | None]
ReadsOn: TypeAlias = Callable[[trio.CancelScope], AbstractContextManager[None]]
"""Has the connection read on in a block; the scope around it is cancelled if it cannot."""


class QueryQueue(MessageQueue):
    """A queue that ends by an error when nothing has arrived for too long."""

    __slots__ = ("_is_lasting", "_limit_s", "_overdue", "_quiet_since", "_reading")

    def __init__(self, cap_bytes: int = DEFAULT_CAP_BYTES, *, raises: bool = True) -> None:
        super().__init__(cap_bytes, raises=raises)
        self._limit_s = math.inf
        self._is_lasting = False
        self._overdue: Overdue = lambda full: full
        self._quiet_since: float | None = None
        self._reading: ReadsOn | None = None

    def limit(
        self,
        limit_s: float,
        overdue: Overdue,
        *,
        is_lasting: bool,
        reading: ReadsOn | None = None,
    ) -> None:
        """Limit each silence from now on.

        Args:
            limit_s: Seconds.
            overdue: Called when the limit is over, or with the error of full queues behind which
                the records are; returns the error with which the query ends, or `None` if it goes
                on.
            is_lasting: Whether live messages follow the records: for these there is no limit.
            reading: Has the connection read on while the consumer waits for records.
        """
        self._limit_s, self._overdue, self._is_lasting = limit_s, overdue, is_lasting
        self._reading = reading

    def lift_limit(self) -> None:
        """Limit no silence any more: what follows is not awaited as an answer is."""
        self._limit_s, self._reading = math.inf, None

    @override
    def mark(self, marker: Marker) -> None:
        if self._is_lasting:
            if marker is Marker.CAUGHT_UP:  # the records are complete
                self.lift_limit()
            self._limit_s = math.inf  # they may be sent again, on another connection
        super().mark(marker)

    @override
    async def next_batch(self) -> list[Message] | None:
        batch = await super().next_batch()
        self._quiet_since = None
        return batch

    @override
    async def _arrival(self) -> None:
        if self._quiet_since is None:  # else an earlier wait was cancelled, in the same silence
            self._quiet_since = trio.current_time()
        deadline = self._quiet_since + self._limit_s
        scope, full = trio.CancelScope(deadline=deadline), None
        try:
            with scope, self._reading(scope) if self._reading else nullcontext():
                await super()._arrival()
        except SubscriptionFull as behind:
            full = behind
        self._quiet_since = None
        if full is not None or (scope.cancelled_caught and self._limit_s < math.inf):
            error = self._overdue(full)
            if error is not None:
                self.end(error, raises=True)


class ActiveConsumers:
    """The queues of one client that have a consumer.

    Attributes:
        is_stopped: Whether no consumer gets a further message.
    """

    __slots__ = ("_consumers", "is_stopped")

    def __init__(self) -> None:
        self._consumers: dict[MessageQueue, Subscription] = {}
        self.is_stopped = False

    def add(self, subscription: Subscription, queue: MessageQueue) -> None:
        """Note a new consumer."""
        if subscription.is_query:
            return
        self._consumers[queue] = subscription
        if self.is_stopped:
            _stop(subscription, queue)

    def remove(self, queue: MessageQueue) -> None:
        """A consumer has ended: its handler has returned, or its stream was closed."""
        queue.is_shared_at_work = bool  # its messages are redelivered, whoever works on them
        queue.consumer_left()
        self._consumers.pop(queue, None)

    def stop(self) -> None:
        """Give the consumers no further message that the server will redeliver."""
        self.is_stopped = True
        for queue, subscription in self._consumers.items():
            _stop(subscription, queue)

    async def wait_idle(self) -> None:
        """Wait until every consumer has finished what it was given."""
        while (busy := next((d for d in self._consumers if not d.is_idle), None)) is not None:
            await busy.wait_idle()

    @property
    def busy_ids(self) -> list[str]:
        """The ids of the subscriptions whose consumers have yet to finish."""
        consumers = list(self._consumers.items())
        return [subscription.sub_id for each, subscription in consumers if not each.is_idle]


def _stop(subscription: Subscription, queue: MessageQueue) -> None:
    if subscription.is_redelivered:
        subscription.drop_queued()
    queue.stop(keeps=not subscription.is_redelivered)

"""Acknowledges the messages of queues.

A client has one `QueueAcks`, each subscription one `QueueConsumer`; `haclient.session.queue_acks`
decides what is sent together. Each message refers to the `Lease` of the chunk in which it was
received, so no object is created per message. An acknowledgement removes that reference, so a
second one does nothing.

**A lost link ends every lease.** The server redelivers the messages to any consumer. Messages that
are queued in the client are dropped, and arrive as new messages with new leases.

* *Plain* acknowledgements say that work is done, which stays true. Those that the server has not
  confirmed are kept in memory (`retained`), and sent again once the subscriptions are back, unless
  `on_lost_lease` is `drop`. So is the acknowledgement of a message whose handler was still at work.
  If such a message is nevertheless redelivered on the next link (`processed`), it is acknowledged
  again and not passed to the application.
* *Cancel, expire and lease extensions* refer to a lease that has ended, so they are dropped.

Each command requests a `processed` ack; a command that was confirmed is not sent again. `retained`
never holds more than the server had granted to the subscriptions together and `MAX_CARRIED`.

Acknowledgements are never in the publish store and have no sequence: a later process must not
repeat an acknowledgement whose lease has ended.

One task sends the batches that are due and the delayed cancels; it sleeps while there are none.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from threading import get_ident
from typing import Final, Literal, NamedTuple, TypeAlias

import trio
from typing_extensions import override

from haclient.errors import DisconnectedError
from haclient.protocol.codec import encode_frame
from haclient.protocol.messages import Message
from haclient.session.acks import PendingCommand
from haclient.session.cancel_delay import CancelDelay
from haclient.session.connection_state import ConnectionStatus
from haclient.session.queue_acks import (
    AckBatch,
    AckCommand,
    AckOption,
    ack_commands,
    batch_limit,
    lease_extension,
)
from haclient.session.queue_leases import lease_left_s, parse_grant
from haclient.session.session import Session
from haclient.session.subscriptions import QueueSide, Subscription
from haclient.transport.client_thread import ClientThread
from haclient.transport.writer import Writer
from haclient_stores.logs import SafeLogger, logger_of

OnLostLease: TypeAlias = Literal["send", "drop"]
"""What happens to acknowledgements whose lease a lost link has ended."""

DEFAULT_TIMEOUT_S: Final = 0.1
"""How long an acknowledgement waits for others."""

MAX_UNCONFIRMED: Final = 10_000
"""Commands that may wait for the server's answer; beyond it the oldest is dropped."""

MAX_CARRIED: Final = 10_000
"""The limit of acknowledgements that are kept for the next link beyond those of the active
subscriptions: of ended subscriptions and of earlier links. A peer may never confirm any."""

MAX_EXTENDED: Final = 10_000
"""Extended leases that are recorded before the ended ones are removed."""

_CANCEL: Final = AckOption.CANCEL.value
_USED_OF_LEASE: Final = 0.9  # a cancel after the end of its lease might meet the next one
_logger = logger_of(__name__)


class AckPolicy(NamedTuple):
    """How the acknowledgements of a client are sent.

    Attributes:
        batch_size: How many are sent together; `None` for a third of the backlog.
        timeout_s: How many seconds one waits for others.
        on_lost_lease: What happens to those whose lease a lost link has ended.
    """

    batch_size: int | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S
    on_lost_lease: OnLostLease = "send"


DEFAULT_POLICY: Final = AckPolicy()


class QueueAcks:
    """The acknowledgements of one client.

    Args:
        session: Where waiting commands are registered.
        status: The state of the connection.
        thread: The client's thread, on which messages are acknowledged.
        clock_us: Tells microseconds since 1970, by a clock that may step.
        policy: How they are sent.
        log: Logs the warnings, with the fields of the client; by default the logger of this module.

    Attributes:
        log: The same.
        writer: Sends on the connection in use; `None` while there is none.
        link: Counts the connections: a lease of an earlier one has ended.
        retained: Queue and bookmark of each acknowledgement to send again, until it is confirmed.
        processed: Queue and bookmark of each message whose acknowledgement the previous link has
            not confirmed, or that was acknowledged after that link was lost; until this link ends.
        dropped: How many acknowledgements were dropped because their lease had ended.
    """

    def __init__(
        self,
        session: Session,
        status: ConnectionStatus,
        thread: ClientThread,
        *,
        clock_us: Callable[[], int],
        policy: AckPolicy = DEFAULT_POLICY,
        log: SafeLogger | None = None,
    ) -> None:
        self.log = _logger if log is None else log
        self._session = session
        self._status = status
        self.thread = thread
        self.clock_us = clock_us
        self.policy = policy
        self.writer: Writer | None = None
        self.link = 0
        self.retained: dict[tuple[str, str], None] = {}
        self.processed: dict[tuple[str, str], None] = {}
        self.dropped = 0
        self._most_retained = 0
        self._resumed = False  # whether the subscriptions of this link are back
        self._collecting: dict[QueueConsumer, None] = {}
        self._unconfirmed: dict[str, tuple[PendingCommand, AckCommand]] = {}
        self._delayed: list[tuple[float, int, Lease, Message, str]] = []
        self._order = count()
        self._parked = trio.lowlevel.ParkingLot()
        self._sleep: trio.CancelScope | None = None

    # -- sending --------------------------------------------------------------

    def send(self, commands: Sequence[AckCommand]) -> None:
        """Send commands now; plain ones are kept if there is no connection."""
        for command in commands:
            if self.writer is None or not self._status.is_logged_on:
                if command.is_plain:
                    self._retain(command)
                continue
            command_id = self._session.next_command_id()
            wake = partial(self._answered, command_id)
            what = f"the acknowledgement on {command.topic!r}"
            pending = PendingCommand(command_id, what, awaited="processed", wake=wake)
            self._session.pending.add(pending)
            if len(self._unconfirmed) >= MAX_UNCONFIRMED:  # the peer does not answer
                oldest = next(iter(self._unconfirmed))
                self._session.pending.forget(oldest)
                del self._unconfirmed[oldest]
            self._unconfirmed[command_id] = (pending, command)
            self.writer.send(encode_frame(command.fields(command_id, "processed")))

    def _answered(self, command_id: str) -> None:
        pending, command = self._unconfirmed.pop(command_id, (None, None))
        if pending is None or command is None:  # of an earlier link: it was kept, or dropped
            return
        if pending.error is not None and not isinstance(pending.error, DisconnectedError):
            self.log.error("%s: the messages may be redelivered", pending.error)
        if self.retained and command.is_plain:
            for name in command.names():
                self.retained.pop(name, None)

    def send_pending(self) -> None:
        """Send everything that was collected."""
        for consumer in list(self._collecting):
            consumer.send_pending()

    @property
    def outstanding(self) -> int:
        """How many acknowledgements are collected, unconfirmed or kept for the next link."""
        collected = sum(consumer.batch.count for consumer in self._collecting)
        unconfirmed = sum(len(command.bookmarks) for _, command in self._unconfirmed.values())
        return collected + unconfirmed + (0 if self._resumed else len(self.retained))

    @property
    def is_idle(self) -> bool:
        """Whether nothing is collected, unconfirmed or to be sent again."""
        return not (self._collecting or self._unconfirmed or self.retained)

    # -- the connection's life --------------------------------------------------

    def connected(self, writer: Writer) -> None:
        """Use a new link."""
        self.writer = writer
        self.link += 1

    def lost(self, subscriptions: Iterable[Subscription]) -> None:
        """The link has ended, and each lease with it.

        Args:
            subscriptions: The subscriptions that were active on it.
        """
        queues = [one.queue for one in subscriptions if isinstance(one.queue, QueueConsumer)]
        granted = sum(queue.most_unacknowledged for queue in queues if queue.is_queue)
        self.writer = None
        self.link += 1
        self._resumed = False
        self._delayed.clear()
        self._most_retained = max(granted + MAX_CARRIED, len(self.retained))
        unconfirmed, self._unconfirmed = self._unconfirmed, {}
        for _, command in unconfirmed.values():
            if command.is_plain:
                self._retain(command)
        self.send_pending()  # kept, since there is no connection
        self.processed = dict(self.retained)

    def resume(self) -> None:
        """Subscriptions are back: send again what the lost link had not confirmed."""
        self._resumed = True
        by_topic: dict[str, list[str]] = {}
        for topic, bookmark in self.retained:
            by_topic.setdefault(topic, []).append(bookmark)
        for topic, bookmarks in by_topic.items():
            self.send(ack_commands(topic, bookmarks))

    def _retain(self, command: AckCommand) -> None:
        """Keep a plain acknowledgement for the next link, or drop it."""
        if self.policy.on_lost_lease == "drop":
            self.dropped += len(command.bookmarks)
            return
        self.retained.update(dict.fromkeys(command.names()))
        while len(self.retained) > self._most_retained:
            del self.retained[next(iter(self.retained))]
            self.dropped += 1

    def acknowledge_late(self, topic: str, bookmark: str) -> None:
        """A message was processed after its link was lost."""
        command = AckCommand(topic, (bookmark,))
        if self.policy.on_lost_lease == "drop":
            self.dropped += 1
            return
        self.processed[topic, bookmark] = None
        if self._resumed:
            self.send([command])
        else:
            self._retain(command)

    # -- timers -------------------------------------------------------------------

    def collecting(self, consumer: QueueConsumer, due_at: float) -> None:
        """A batch was begun, which is due at that time."""
        self._collecting[consumer] = None
        self._wake(due_at)

    def collected(self, consumer: QueueConsumer) -> None:
        """A batch was sent."""
        self._collecting.pop(consumer, None)

    def schedule_ack(self, lease: Lease, message: Message, option: str, delay_s: float) -> None:
        """Acknowledge a message after a delay, within its lease."""
        if not lease.is_held:  # returned already; `lost` has cleared the delayed cancels
            message.lease = None
            return
        now = trio.current_time()
        ends_at = lease.deadline(message)
        if ends_at is not None:
            delay_s = min(delay_s, max(0.0, ends_at - now) * _USED_OF_LEASE)
        heapq.heappush(self._delayed, (now + delay_s, next(self._order), lease, message, option))
        self._wake(now + delay_s)

    def _next_due(self) -> float:
        due = self._delayed[0][0] if self._delayed else math.inf
        for consumer in self._collecting:
            due_at = consumer.batch.due_at
            if due_at is not None and due_at < due:
                due = due_at
        return due

    def _wake(self, due_at: float) -> None:
        """Wake the task if it would sleep beyond this time."""
        if self._parked:
            self._parked.unpark()
        elif self._sleep is not None and due_at < self._sleep.deadline:
            self._sleep.deadline = due_at

    async def run(self) -> None:
        """Send what is due, while the client is open."""
        while True:
            due = self._next_due()
            if due == math.inf:
                await self._parked.park()
                continue
            with trio.CancelScope(deadline=due) as self._sleep:
                await trio.sleep_forever()
            self._sleep = None
            self._send_due(trio.current_time())

    def _send_due(self, now: float) -> None:
        for consumer in list(self._collecting):
            due_at = consumer.batch.due_at
            if due_at is None or due_at <= now:
                consumer.send_pending()
        while self._delayed and self._delayed[0][0] <= now:
            _, _, lease, message, option = heapq.heappop(self._delayed)
            lease.acknowledge(message, option)


class QueueConsumer(QueueSide):
    """What one subscription does for the messages of its queues.

    Args:
        acks: The acknowledgements of the client.
        what: The topic, for the log.
        is_queue: Whether the topic is known to be a queue; else the server's answer shows it.
        asked: The backlog that is asked for.

    Attributes:
        backlog: What the server has granted; `None` if it does not say.
        lease_s: The length of leases, if the server says it.
        batch: Acknowledgements that are not sent yet.
        failures: How often its messages have failed in this subscription.
        extended: The later end of each lease that was extended, by queue and bookmark.
        scopes: The cancel scope to end with each lease, by queue and bookmark.
        is_closed: Whether the subscription has ended, and each lease with it.
    """

    __slots__ = (
        "_asked",
        "_is_queue",
        "_warned",
        "_what",
        "acks",
        "backlog",
        "batch",
        "extended",
        "failures",
        "is_closed",
        "lease_s",
        "scopes",
    )

    def __init__(self, acks: QueueAcks, what: str, *, is_queue: bool, asked: int = 1) -> None:
        self.acks = acks
        self.backlog: int | None = None
        self.lease_s: float | None = None
        self.batch = AckBatch(timeout_s=acks.policy.timeout_s)
        self.failures = CancelDelay()
        self.extended: dict[tuple[str, str], float] = {}
        self.scopes: dict[tuple[str, str], trio.CancelScope] = {}
        self.is_closed = False
        self._what = what
        self._is_queue = is_queue
        self._asked = asked
        self._warned: set[str] = set()

    @property
    @override
    def is_queue(self) -> bool:
        """Whether its messages come from a queue."""
        return self._is_queue

    @property
    def most_unacknowledged(self) -> int:
        """How many messages the server sends before it waits for an acknowledgement."""
        return self._asked if self.backlog is None else self.backlog

    @override
    def granted(self, options: str) -> None:
        """The server has accepted the command, with these options."""
        grant = parse_grant(options)
        if grant.backlog is None and not self._is_queue:
            return
        self._is_queue = True
        self.backlog, self.lease_s = grant.backlog or None, grant.lease_s
        if grant.backlog == 0:
            self.warn_once(
                "nothing",
                "the server grants the queue %s a backlog of 0, so it may send no message: allow a "
                "backlog at the server",
            )
        policy = self.acks.policy
        self.batch.limit = batch_limit(policy.batch_size, grant.backlog, policy.timeout_s)
        if self.batch.count >= self.batch.limit:  # the server may send nothing before it has these
            self.send_pending()
        if grant.backlog == 1:
            self.warn_once(
                "backlog",
                "the queue %s sends one message at a time (backlog 1): its consumer waits for the "
                "server after each one; ask for max_backlog=2 or more, and allow it at the server",
            )

    def warn_once(self, about: str, text: str) -> None:
        """Log a warning about this subscription, unless the same was logged before."""
        if about not in self._warned:
            self._warned.add(about)
            self.acks.log.warning(text, self._what)

    @override
    def received(self, messages: list[Message], now: float) -> None:
        if self.extended:  # a redelivered message has a new lease
            for message in messages:
                self.extended.pop((message.topic, message.bookmark), None)
        lease = Lease(self, now, self.acks.clock_us())
        for message in messages:
            if message.bookmark:  # else nothing names it in an acknowledgement
                message.lease = lease
            elif self._is_queue:
                self.warn_once(
                    "bookmark",
                    "messages of the queue %s have no bookmark, so they cannot be acknowledged: "
                    "the server will stop sending when the backlog is full",
                )

    def acknowledge(self, lease: Lease, message: Message, option: str) -> None:
        """Acknowledge a message, on the client's thread."""
        if message.lease is None:  # acknowledged before
            return
        is_over = option == _CANCEL and lease.has_ended(message)
        message.lease = None
        acks, topic, bookmark = self.acks, message.topic, message.bookmark
        if self.extended:
            self.extended.pop((topic, bookmark), None)
        if self.failures.counts and option != _CANCEL:
            self.failures.forget(topic, bookmark)
        if not option:
            if lease.link == acks.link:
                self._collect(topic, bookmark)
            else:
                acks.acknowledge_late(topic, bookmark)
        elif lease.is_held and not is_over:  # else a cancel would end the lease that followed
            acks.send([*self.batch.take_topic(topic), AckCommand(topic, (bookmark,), option)])
            if not self.batch.count:
                acks.collected(self)

    def _collect(self, topic: str, bookmark: str) -> None:
        batch = self.batch
        due_at = None if batch.count else batch.begin(trio.current_time())
        if batch.add(topic, bookmark):
            self.send_pending()
        elif due_at is not None:  # the first one
            self.acks.collecting(self, due_at)

    def extend(self, lease: Lease, messages: Sequence[Message], seconds: float) -> None:
        """Extend the leases of messages of one queue, on the client's thread."""
        option = lease_extension(seconds)
        held = [each for each in messages if each.lease is not None]
        if not (lease.is_held and held):
            return
        now = trio.current_time()
        ends_at = now + seconds
        if len(self.extended) >= MAX_EXTENDED:  # of messages that nobody acknowledges
            self.extended = {name: end for name, end in self.extended.items() if end > now}
        for message in held:
            if message.lease_period:  # else it has no end that could move
                name = (message.topic, message.bookmark)
                later = self.extended[name] = max(lease.deadline(message) or 0.0, ends_at)
                if (scope := self.scopes.get(name)) is not None:
                    scope.deadline = later
        topic = held[0].topic
        bookmarks = [message.bookmark for message in held]
        self.acks.send([*self.batch.take_topic(topic), *ack_commands(topic, bookmarks, option)])
        if not self.batch.count:
            self.acks.collected(self)

    @override
    def close(self) -> None:
        """Send what was collected; no message of this subscription is held any more."""
        self.send_pending()
        self.is_closed = True

    def send_pending(self) -> None:
        """Send what was collected."""
        self.acks.collected(self)
        if self.batch.count:
            self.acks.send(self.batch.take())


class Lease:
    """The lease of the messages that one subscription received together.

    Args:
        consumer: The subscription's part.
        received_at: When they were received, on trio's clock.
        wall_us: The same by this machine's time of day, in microseconds since 1970.

    Attributes:
        link: The link on which they were received.
    """

    __slots__ = ("_received_at", "_wall_us", "consumer", "link")

    def __init__(self, consumer: QueueConsumer, received_at: float, wall_us: int) -> None:
        self.consumer = consumer
        self.link = consumer.acks.link
        self._received_at = received_at
        self._wall_us = wall_us

    @property
    def is_held(self) -> bool:
        """Whether the connection on which they were received and the subscription still exist."""
        return self.link == self.consumer.acks.link and not self.consumer.is_closed

    def is_deliverable(self, message: Message, /) -> bool:
        """Whether a message has yet to be processed; see `MessageLease.is_deliverable`."""
        consumer = self.consumer
        processed = consumer.acks.processed
        if not self.is_held:
            return False
        if processed and (message.topic, message.bookmark) in processed:
            self.acknowledge(message, "")  # its work was done on an earlier link
            return False
        lease_s = consumer.lease_s
        if lease_s is None or trio.current_time() < self._received_at + lease_s:
            return True
        return not self._has_lapsed(message)

    def _has_lapsed(self, message: Message) -> bool:
        """Whether the lease of a message has ended while it waited in this client."""
        consumer = self.consumer
        name, now = (message.topic, message.bookmark), trio.current_time()
        if not message.lease_period or consumer.extended.get(name, 0.0) > now:
            return False
        consumer.warn_once(
            "lapsed",
            "messages of the queue %s wait in this client until their leases end, and are skipped: "
            "ask for a smaller max_backlog, or use more workers",
        )
        return True

    def has_ended(self, message: Message) -> bool:
        """Whether the lease of a message has ended, as far as known."""
        ends_at = self.deadline(message)
        return ends_at is not None and ends_at <= trio.current_time()

    def acknowledge(self, message: Message, option: str, /) -> None:
        """Acknowledge a message; see `MessageLease.acknowledge`."""
        consumer = self.consumer
        thread = consumer.acks.thread
        if get_ident() != thread.ident:
            thread.call("message.ack()", consumer.acknowledge, self, message, option)
        else:
            consumer.acknowledge(self, message, option)

    def extend(self, message: Message, seconds: float, /) -> None:
        """Extend the lease of a message; see `MessageLease.extend`."""
        self.consumer.acks.thread.call(
            "message.extend_lease()", self.consumer.extend, self, (message,), seconds
        )

    def deadline(self, message: Message, /) -> float | None:
        """When the lease of a message ends; see `MessageLease.deadline`."""
        consumer = self.consumer
        if consumer.extended:
            extended = consumer.extended.get((message.topic, message.bookmark))
            if extended is not None:
                return extended
        left_s = lease_left_s(message.lease_period, self._wall_us, consumer.lease_s)
        if left_s is None:
            consumer.warn_once(
                "clock",
                "the leases of the queue %s end at times that cannot be right: compare the clocks "
                "of this machine and of the server; lease deadlines are not enforced",
            )
        return None if left_s is None or left_s == math.inf else self._received_at + left_s

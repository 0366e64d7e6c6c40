"""The state that the parts of the engine share, and the effects of the current batch.

`begin` opens a batch, `finish` closes it and returns its `Effects`. In between, parts call `send`,
`close` and `report`, and add records to `batch`. Nothing here waits, reads a clock or does I/O.
"""

from __future__ import annotations

import enum
import math
import traceback
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, cast

from haclient.errors import printable
from haclient.protocol.messages import Message
from haclient_fake_server.engine.acks import (
    MAX_DETAIL_CHARACTERS,
    Refused,
    ack,
    end_ack,
    failure_ack,
    quoted,
    requested,
)
from haclient_fake_server.engine.batch import BatchBuilder
from haclient_fake_server.engine.connections import Connection
from haclient_fake_server.engine.filters import Filter, compile_filter
from haclient_fake_server.engine.guards import Guard, Guards
from haclient_fake_server.engine.journal import Block, JournalReader
from haclient_fake_server.engine.patterns import TopicMatcher, to_bytes
from haclient_fake_server.engine.publishers import Publisher, Publishers
from haclient_fake_server.engine.queues.points import QueuePoint, oldest_needed
from haclient_fake_server.engine.queues.registry import QueueRegistry
from haclient_fake_server.engine.replication.destination import Destination
from haclient_fake_server.engine.replication.durability import Durability, ReplicationProgress
from haclient_fake_server.engine.routes import Route, RouteTables
from haclient_fake_server.engine.settings import TOPIC_BYTES, EngineSettings
from haclient_fake_server.engine.sow.table import SowTopic
from haclient_fake_server.engine.sow.topics import SowTopics
from haclient_fake_server.engine.timers import Action, Timers
from haclient_fake_server.journal.format import RecordFlag

MAX_REFUSALS_REPORTED: Final = 20
"""Refusals of one batch that the log describes: a client in a loop must not fill the disk."""

MAX_ENDS_REPORTED: Final = 10
"""Ends of connections in one second that the log describes; the statistics count all."""

MAX_END_CHARACTERS: Final = 400
"""How much of the reason for an end the log has: it may quote what the client has sent."""

ENDED_BY_PEER: Final = "connection closed"
"""The reason for the end of a connection that the other end has closed."""

INTERNAL_ERROR: Final = "internal error"
"""The reason for the end of a connection whose command the broker could not carry out."""

MAX_ATTEMPTS: Final = 10
"""How often in a row work of the broker may fail: then it waits for the next start."""

MAX_RETRY_S: Final = 60.0
"""The longest wait before it is tried again; the first is a second, and each doubles it."""

_NOT_REMARKABLE: Final = frozenset({ENDED_BY_PEER, "connection lost", "broker stopped"})
"""Reasons for which this broker has not closed the connection, or has closed all."""


class Severity(enum.IntEnum):
    """How much an event matters; the numbers are those of `logging`."""

    INFO = 20
    WARNING = 30
    ERROR = 40


class Event(NamedTuple):
    """Something for the broker's log."""

    severity: Severity
    text: str


@dataclass(frozen=True, slots=True)
class Effects:
    """The effects of one batch, to be applied in this order.

    Attributes:
        block: Written to the journal before anything else is done; if that fails, none of the rest
            may be done.
        sends: By connection number, bytes to be sent.
        closes: Connections to close once their queued bytes are sent, and why.
        with_backlog: Connections for which `Engine.pump` has records to send when they have room.
        early: Bytes for `live` subscriptions, which may be sent before the block is written.
        progress: The progress of replication, if it has changed. It is written to a file before
            anything is sent, and passed to the next engine on the same journal.
        events: Lines for the broker's log.
        guards: All guards against removal, if any has changed. They are written to a file before
            anything is sent, and passed to the next engine on the same journal.
        guarding: The connections that have changed them: without the file they must get no answer.
        queue_points: The recovery points of all queues, if they have changed and are to be written:
            soon after the block. They are passed to the next engine on the same journal.
    """

    block: Block | None
    sends: list[tuple[int, bytes]]
    closes: list[tuple[int, str]]
    with_backlog: list[int]
    early: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    progress: ReplicationProgress | None = None
    events: list[Event] = field(default_factory=list[Event])
    guards: tuple[Guard, ...] | None = None
    guarding: tuple[int, ...] = ()
    queue_points: tuple[QueuePoint, ...] | None = None


class State:
    """The complete state of the engine.

    Attributes:
        settings: The configuration.
        journal: Where replay reads.
        publishers: All publishers and their highest sequences.
        batch: The block being built.
        connections: By number.
        names: Logged-on connections by client name.
        topics: Routes by their number in the journal.
        unnoted: Publishers whose highest sequence may have no record yet.
        timers: The deadlines of the engine.
        now: Seconds on the shell's clock.
        last: Publisher and sequence of the last data record.
        destinations: The instances that this one replicates to.
        durability: How far the log is safe on all synchronous destinations.
        progress: The progress of replication, for the next engine on this journal.
        guards: What consumers still need of the log.
        source: The instance that this batch came from; empty for clients.
        events: The events of this batch for the broker's log.
        with_backlog: Numbers of connections that this batch may have given a backlog.
        queue_points: The recovery points of the queues, as they were written last.
        new_queue_points: The same, if this batch writes them.
        sow: The topics with a state of the world.
        tables: The topics and live subscriptions of each message type.
        queues: The message queues.
        ends: How many connections have ended, by reason.
        faults: How many exceptions were met that the broker should never meet.
    """

    def __init__(
        self,
        settings: EngineSettings,
        journal: JournalReader,
        *,
        now: float,
        now_us: int,
        guards: Iterable[Guard] = (),
    ) -> None:
        self.guards = Guards(guards)
        self.guards_changed: dict[int, None] = {}  # by the connections of these numbers
        self.settings = settings
        self.journal = journal
        self.publishers = Publishers(settings.name, started_s=now_us // 1_000_000)
        self.batch = BatchBuilder(
            next_position=journal.next_position, next_topic_id=1, now_us=now_us
        )
        self.connections: dict[int, Connection] = {}
        self.names: dict[str, Connection] = {}
        self.topics: dict[int, Route] = {}
        self.unnoted: dict[int, Publisher] = {}
        self.timers = Timers()
        self.now = now
        self.last: tuple[int, int] | None = None
        self.destinations = [Destination(each) for each in settings.replicate_to]
        self.durability = Durability()
        self.durability.waits = any(each.is_sync for each in self.destinations)
        self.source = ""
        self.events: list[Event] = []
        self._refusals = self._subscriptions = 0
        self._keeps_confirmed = self.durability.waits
        self.progress = ReplicationProgress(None)
        self._epoch_us = now_us - int(now * 1e6)
        self.topic_bytes = 0  # of all topics
        self.queues = QueueRegistry(settings.queues, journal)
        self.tables = RouteTables(self._make_route)
        self._log = [
            (
                TopicMatcher(topic.pattern),
                topic.message_type,
                compile_filter(topic.filter) if topic.filter else None,
            )
            for topic in settings.log_topics
        ]
        self.sow = SowTopics(settings.sow_topics, self.is_logged)
        for queue in settings.queues:
            if queue.publish_target != queue.name and queue.publish_target:
                self.tables[queue.message_type].redirect(queue.name, queue.publish_target)
        self._dirty: list[Connection] = []
        self._early: list[Connection] = []
        self._closes: list[tuple[int, str]] = []
        self.with_backlog: dict[int, None] = {}
        self.queue_points: tuple[QueuePoint, ...] = ()
        self.new_queue_points: tuple[QueuePoint, ...] | None = None
        self._block: Block | None = None
        self._new_progress: ReplicationProgress | None = None
        self.ends: dict[str, int] = {}
        # By key, how often something has failed since it was done last.
        self.faults, self._attempts = 0, Counter[Hashable]()
        self._ends_since, self._ends_in_second = now, 0

    def begin(self, now: float) -> None:
        """Open a batch at this time; the journal's time never falls."""
        self.now = now
        self.source = ""
        self.queues.begin_batch()
        self.queues.clock_us = self.clock_us
        self.batch.now_us = max(self.batch.now_us, self.clock_us)

    def close_batch(self) -> list[Connection]:
        """Build the block and advance the confirmed position; `take_effects` has to follow.

        Returns:
            The connections whose held acks have become true and are sent, once for each ack.
        """
        if self.unnoted:
            self._add_marks()
        block = self._block = self.batch.build()
        self.queues.close_batch(block)
        for topic_id, message_type, topic in block.definitions if block else ():
            self.topics[topic_id] = self.tables[message_type].route(topic)
        if not self.destinations:
            return []
        self._advance_confirmed(block)
        before = self.progress
        self.update_progress()
        self._new_progress = self.progress if self.progress != before else None
        return self._release_acks()

    def take_effects(self) -> Effects:
        """Return the effects of the closed batch; the next batch begins empty."""
        early = [(connection.id, b"".join(connection.early)) for connection in self._early]
        for connection in self._early:
            connection.early = []
        self._early.clear()
        sends = [(connection.id, b"".join(connection.out)) for connection in self._dirty]
        for connection in self._dirty:
            connection.out = []
        closes, self._dirty, self._closes = self._closes, [], []
        with_backlog = {number: None for number in self.with_backlog if self._has_backlog(number)}
        self.with_backlog.clear()
        for each in self.destinations:
            if each.connection is None or each.connection.closing or not each.is_ready:
                continue
            if self.has_more(each):
                with_backlog[each.connection.id] = None
        if self._refusals > MAX_REFUSALS_REPORTED:
            more = self._refusals - MAX_REFUSALS_REPORTED
            self.report(Severity.WARNING, f"{more} further refusals in this batch")
        self._refusals = 0
        events, self.events = self.events, []
        block, progress = self._block, self._new_progress
        self._block = self._new_progress = None
        queue_points, self.new_queue_points = self.new_queue_points, None
        guards = self.guards.current(self.clock_us) if self.guards_changed else None
        guarding, self.guards_changed = tuple(self.guards_changed), {}
        return Effects(
            block,
            sends,
            closes,
            list(with_backlog),
            early,
            progress,
            events,
            guards,
            guarding,
            queue_points,
        )

    def _add_marks(self) -> None:
        """Record what was seen and is in no record, for the next start and for the destinations."""
        for publisher in self.unnoted.values():
            if publisher.noted < publisher.seen and self.logging:
                self.batch.mark(publisher, self.source_flags)
        self.unnoted.clear()

    def _advance_confirmed(self, block: Block | None) -> None:
        """Note the batch where destinations have to confirm it, and how much is confirmed now."""
        durability, end = self.durability, self.batch.position
        if block is not None:
            for each in self.destinations:
                each.written(
                    block.first_position,
                    block.next_position,
                    block.publishers,
                    source=self.source,
                )
        durability.written(
            block.first_position if block is not None else end,
            end,
            ()
            if block is None or self.source_is_confirmed
            else map(self.publishers.of_id, block.publishers),
            last=self.last,
            now=self.now,
        )
        for each in self.destinations:
            if each.consider_upgrade(end=end, now=self.now):
                self.report(Severity.WARNING, f"replication to {each.address}: synchronous again")
        synchronous = [each.acked for each in self.destinations if each.is_sync]
        durability.waits = bool(synchronous)
        durability.advance_confirmed(min(synchronous, default=0), end=end, last=self.last)

    def _release_acks(self) -> list[Connection]:
        released: list[Connection] = []
        for connection, frame in self.durability.released():
            self.send(connection, frame)
            released.append(connection)
        self._watch_age()
        return released

    def update_progress(self) -> None:
        """Compute the progress of replication, after a batch or when the engine starts."""
        known = [each.progress for each in self.destinations]
        self.progress = ReplicationProgress(
            self.durable_limit - 1 if self._keeps_confirmed else None,
            tuple(each for each in known if each is not None),
        )

    @property
    def source_is_confirmed(self) -> bool:
        """Whether every synchronous destination had the records of this batch before this log."""
        waited_for = {each.instance for each in self.destinations if each.is_sync}
        return bool(self.source) and waited_for == {self.source}

    @property
    def source_flags(self) -> int:
        """The flags that say where the records of this batch came from."""
        if not self.source:
            return 0
        confirmed = RecordFlag.CONFIRMED if self.source_is_confirmed else 0
        return RecordFlag.REPLICATED | confirmed

    def _watch_age(self) -> None:
        """The oldest record that is not confirmed may become too old for a destination."""
        oldest = self.durability.oldest
        for each in self.destinations:
            limit_s = each.settings.downgrade_after_s
            if oldest is None or limit_s is None or not each.is_sync:
                continue
            # Else it waits for another: no tick would change that.
            if each.acked < oldest.after - 1:
                # The replication looks at ages in each tick; this only makes sure of one.
                self.timers.set(each, oldest.since + limit_s, _nothing)

    @property
    def logging(self) -> bool:
        """Whether there is a transaction log."""
        return bool(self._log)

    @property
    def now_us(self) -> int:
        """The wall clock of this batch in microseconds."""
        return self.batch.now_us

    @property
    def clock_us(self) -> int:
        """The running wall clock in microseconds, for deadlines.

        The time of records stands still while this clock is behind the log, as after a restart with
        a clock that was set back.
        """
        return self._epoch_us + int(self.now * 1e6)

    @property
    def durable_limit(self) -> int:
        """The first position that is not safe on every synchronous destination."""
        return self.durability.limit if self.durability.waits else self.batch.position

    def log_reached(self) -> dict[str, str | int]:
        """The header of persisted acks that has the position and the identity of the log.

        The position is one that was written before this batch, under the log's youngest start.
        """
        starts = self.journal.log_starts
        if not starts:
            return {}
        return {"log_starts": f"{starts[-1].id:016x}@{self.batch.first_position - 1}"}

    def confirmed_of(self, publisher: Publisher) -> int:
        """The sequence up to which a publisher's messages are safe everywhere.

        Always that of a record, or 0. Sequences have gaps: a publisher that got a number that no
        message or mark has would find it missing on another server.
        """
        confirmed = self.durability.confirmed_of(publisher.id)
        return publisher.seen if confirmed is None else confirmed

    @property
    def last_bookmark(self) -> str:
        """The bookmark of the last data record, `0` when there is none."""
        return f"{self.last[0]}|{self.last[1]}|" if self.last else "0"

    @property
    def oldest_needed(self) -> int | None:
        """The lowest position that a guard or a queue needs; `None` without any."""
        found = (self.guards.oldest_needed(self.clock_us), oldest_needed(self.queue_points))
        return min((position for position in found if position is not None), default=None)

    def send(self, connection: Connection, frame: bytes | None) -> None:
        """Queue a frame for a connection, after all that was queued before."""
        if frame is None or connection.closing:
            return
        if not connection.out:
            self._dirty.append(connection)
        connection.out.append(frame)

    def acknowledge(
        self,
        connection: Connection,
        message: Message,
        *kinds: str,
        more: Mapping[str, str | int] | None = None,
    ) -> None:
        """Send a success ack of each of these kinds that a command has requested."""
        wanted = requested(message.ack_type)
        for kind in kinds:
            if kind in wanted:
                self.send(connection, ack(kind, message.command_id, more=more))

    def confirm(self, connection: Connection, frame: bytes) -> None:
        """Send a persisted ack when all that was recorded so far is safe everywhere."""
        if self.durability.waits:
            self.durability.hold(connection, frame)
        else:
            self.send(connection, frame)

    def touch_early(self, connection: Connection) -> list[bytes]:
        """The queue for what may go out before the journal is written, after what is queued."""
        if connection.out:
            return connection.out
        if not connection.early:
            self._early.append(connection)
        return connection.early

    def touch(self, connection: Connection) -> list[bytes]:
        """The queue of a connection, to append several frames to."""
        if not connection.out:
            self._dirty.append(connection)
        return connection.out

    def close(self, connection: Connection, reason: str, detail: str = "") -> None:
        """End a connection after what it was sent; `reason` and `detail` are for the log."""
        if not connection.closing:
            connection.closing = True
            connection.end_reason = f"{reason}: {detail}" if detail else reason
            self._closes.append((connection.id, reason))
            for consumer in connection.consumers.values():
                consumer.room_changed()  # it has none any more

    def fail(self, connection: Connection, error: Exception) -> None:
        """End a connection whose work has met a fault of the broker, or of its disk."""
        if connection.closing:
            return
        self.report_fault(self.describe(connection), error)
        if connection.commands is None:
            self.send(connection, end_ack(INTERNAL_ERROR))
        self.close(connection, INTERNAL_ERROR, f"{type(error).__name__}: {error}")

    def report_fault(self, what: str, error: Exception) -> None:
        """Count a fault, and log it with its traceback."""
        self.faults += 1
        told = "".join(traceback.format_exception(error)).rstrip()
        self.report(Severity.ERROR, f"{what}: internal error\n{told}")

    def run_due(self) -> None:
        """Do what is due. A fault ends the connection that it serves, or it is tried again."""
        for key, action, client in self.timers.take_due(self.now):
            try:
                action()
            except Exception as error:  # a fault of one deadline must not end the broker
                connection = self.connections.get(client)
                if connection is not None:
                    self.fail(connection, error)
                elif not client:
                    self.try_again(key, action, error)
            else:
                if self._attempts.pop(key, 0):
                    self.timers.release(key)

    def try_again(self, key: Hashable, action: Action, error: Exception) -> None:
        """Report a fault in the broker's own work, and try it again after a while.

        Args:
            key: That of its deadline.
            action: What to do.
            error: The fault.
        """
        what = _text_of(key)
        attempts = self._attempts[key] = self._attempts[key] + 1
        wait_s = min(2.0 ** (attempts - 1), MAX_RETRY_S)
        if attempts >= MAX_ATTEMPTS:
            what += f": given up until the next start, after {attempts} attempts"
            wait_s = math.inf
        self.timers.hold(key, self.now + wait_s)  # something else may set it meanwhile
        self.timers.set(key, self.now, action)
        self.report_fault(what, error)

    def ended(self, connection: Connection, reason: str) -> None:
        """Count and log the end of a connection.

        Args:
            connection: It has ended.
            reason: Why, unless the engine has closed it; what follows a colon is not counted apart.
        """
        text = connection.end_reason or reason
        kind = text.partition(":")[0]
        self.ends[kind] = self.ends.get(kind, 0) + 1
        told = f"{self.describe(connection)} ended: {printable(text)[:MAX_END_CHARACTERS]}"
        if kind in _NOT_REMARKABLE:
            self.report(Severity.INFO, told)
            return
        if self.now - self._ends_since >= 1:
            if (more := self._ends_in_second - MAX_ENDS_REPORTED) > 0:
                self.report(Severity.WARNING, f"{more} further connections ended in one second")
            self._ends_since, self._ends_in_second = self.now, 0
        self._ends_in_second += 1
        if self._ends_in_second <= MAX_ENDS_REPORTED:
            self.report(Severity.WARNING, told)

    def describe(self, connection: Connection) -> str:
        """A connection for the log: its number, its client and the other end's address."""
        name = f" of client {quoted(connection.name)}" if connection.name else ""
        return f"connection {connection.id}{name} at {connection.peer or 'no address'}"

    def report(self, severity: Severity, text: str) -> None:
        """Add a line to the broker's log."""
        self.events.append(Event(severity, text))

    def report_refusal(
        self, connection: Connection, message: Message, reason: str, detail: str
    ) -> None:
        """Log why a command was refused."""
        self._refusals += 1
        if self._refusals > MAX_REFUSALS_REPORTED:
            return
        what = f"{message.kind} on {quoted(message.topic)}" if message.topic else message.kind
        name = connection.name or message.client_name  # a refused logon has set none
        text = f"{what} of connection {connection.id} {quoted(name)} refused: {reason}"
        shown = detail[:MAX_DETAIL_CHARACTERS]
        self.report(Severity.WARNING, f"{text}: {shown}" if detail else text)

    def refuse(self, connection: Connection, message: Message, error: Refused) -> None:
        """Answer and log a command that is refused."""
        self.report_refusal(connection, message, error.reason, error.detail)
        self.send(connection, failure_ack(message, error.reason, detail=error.detail))

    def due_at_us(self, timestamp_us: int) -> float:
        """The moment on the shell's clock that is this wall-clock time."""
        wanted = timestamp_us - self._epoch_us
        due = wanted / 1e6
        # A tick a rounding error too early would be asked for again at the same moment, for ever
        # where the clock stands still meanwhile, as in simulations.
        return due if int(due * 1e6) >= wanted else math.nextafter(due, math.inf)

    def next_number(self) -> int:
        """The number of the next subscription."""
        self._subscriptions += 1
        return self._subscriptions

    def _has_backlog(self, number: int) -> bool:
        """Whether a connection that got a backlog in this batch still exists and has one."""
        connection = self.connections.get(number)
        return connection is not None and not connection.closing and connection.has_backlog

    def has_more(self, destination: Destination) -> bool:
        """Whether the log has something that a destination was not given."""
        return destination.has_removals or destination.position < self.batch.position

    def sow_topics(self, message_type: str, matcher: TopicMatcher) -> list[SowTopic]:
        """The topics with a state of the world that match; those of a pattern once they are known.

        A single topic becomes known by this, unless all topics together take too much memory.
        """
        if matcher.is_regex:
            return self.sow.matching(matcher, message_type)
        name = matcher.text
        topic = self.sow.get(name, message_type)
        if topic is None and self.sow.may_have(name, message_type):
            room = self.settings.max_topic_bytes - self.topic_bytes
            if bytes_of_topic(name) <= room:
                topic = self.tables[message_type].route(name).sow
        return [] if topic is None else [topic]

    def is_logged(self, topic: str, message_type: str) -> bool:
        """Whether the journal records a topic."""
        return bool(self._log_filters(topic, message_type))

    def _log_filters(self, topic: str, message_type: str) -> list[Filter | None]:
        """Of what records a topic, the filters; `None` for what records all messages."""
        return [
            filter_
            for matcher, kind, filter_ in self._log
            if (not kind or kind == message_type) and matcher.matches(topic)
        ]

    def _make_route(self, topic: str, message_type: str) -> Route:
        self.topic_bytes += bytes_of_topic(topic)
        filters = self._log_filters(topic, message_type)
        is_queue = self.queues.get(topic, message_type) is not None
        return Route(
            topic,
            message_type,
            logged=bool(filters),
            sow=None if is_queue else self.sow.get_or_make(topic, message_type),
            queues=self.queues.fed_by(topic, message_type) if filters else (),
            log_filters=[] if None in filters else [each for each in filters if each is not None],
        )


def bytes_of_topic(topic: str) -> int:
    """What a topic counts towards `EngineSettings.max_topic_bytes`."""
    return TOPIC_BYTES + len(to_bytes(topic))


def _text_of(key: object) -> str:
    """What a deadline is for."""
    parts = cast("tuple[object, ...]", key) if isinstance(key, tuple) else (key,)
    return " ".join(map(str, parts))


def _nothing() -> None:
    """A moment at which the engine is to be called."""

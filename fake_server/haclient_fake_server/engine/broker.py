"""The engine: a broker without sockets, files or clocks.

The shell reports what happened and when (`connected`, `received`, `disconnected`, `tick`), and gets
back `Effects`: a block for the journal, bytes for connections, connections to close. It must write
the block before it applies the other effects. Between such calls it may request replay::

    effects = engine.received(connection, messages, now)
    if effects.block: journal.append(effects.block)
    ... send, close ...
    while engine.has_backlog(connection) and its outgoing buffer has room:
        ... carry out engine.pump(connection, now) ...

A connection with too many unsent bytes is reported with `over_high_water`: its bookmark
subscriptions then read the log again instead of queueing messages. `next_due` says when `tick` must
be called next.

The engine is deterministic: the same calls always return the same effects. Every subscriber sees
the messages of the log in the order of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from haclient.errors import UsageError
from haclient.protocol.messages import Message
from haclient_fake_server.engine.acks import (
    Reason,
    Refused,
    ack,
    end_ack,
    failure_ack,
    quoted,
    requested,
)
from haclient_fake_server.engine.apply import Applier
from haclient_fake_server.engine.conflation import Conflation
from haclient_fake_server.engine.connections import Connection
from haclient_fake_server.engine.entitlements import Access
from haclient_fake_server.engine.filters import Document
from haclient_fake_server.engine.guards import Guard, Guards
from haclient_fake_server.engine.holders import log_holder
from haclient_fake_server.engine.journal import Cursor, JournalReader
from haclient_fake_server.engine.log_writer import LogWriter
from haclient_fake_server.engine.logon import Logons, heartbeat
from haclient_fake_server.engine.outbox import ENDED_BY_PEER, Effects, Outbox, Severity, describe
from haclient_fake_server.engine.persisted_acks import PersistedAcks
from haclient_fake_server.engine.publishers import KnownPublishers
from haclient_fake_server.engine.publishing import PUBLISHES, Publishing
from haclient_fake_server.engine.queues.commands import QueueCommands
from haclient_fake_server.engine.queues.dispatcher import QueueDispatcher
from haclient_fake_server.engine.queues.points import QueuePoint
from haclient_fake_server.engine.queues.snapshot import QueueSnapshot
from haclient_fake_server.engine.recovery import NOTHING_SAVED, SavedState, recover
from haclient_fake_server.engine.replay import Replay
from haclient_fake_server.engine.replication.destination import Destination, DestinationStatus
from haclient_fake_server.engine.replication.durability import Durability, ReplicationProgress
from haclient_fake_server.engine.replication.receiver import Replicas
from haclient_fake_server.engine.replication.sender import Replication
from haclient_fake_server.engine.replication.wire import LOGON
from haclient_fake_server.engine.requests import is_system_topic, read_options
from haclient_fake_server.engine.retries import Retries
from haclient_fake_server.engine.routes import Routes
from haclient_fake_server.engine.settings import EngineSettings
from haclient_fake_server.engine.sow.queries import Queries
from haclient_fake_server.engine.sow.saved import SowChanges
from haclient_fake_server.engine.sow.table import SowRecord, SowTable
from haclient_fake_server.engine.statistics import Row, Statistics
from haclient_fake_server.engine.subscribing import ENDS_PER_STEP, Subscribing
from haclient_fake_server.engine.system_topics import POSITION, SystemTopics
from haclient_fake_server.engine.timers import Clock

Command = Callable[[Connection, Message], None]

BY_OPERATOR: Final = "disconnected by an operator"
"""The reason for the end of a connection that was asked for by `Engine.disconnect`."""

CHANGES_OF_A_PART: Final = 1000
"""Records of a file-backed topic that are taken in one step: a millisecond."""

MAX_AHEAD_S: Final = 60.0
"""A log that ends further ahead of the clock is reported."""

MAX_PATTERN_CHECKS: Final = 10_000
"""Comparisons of new topics with patterns after which a client's other commands wait for their
turn: about 15 ms."""

_MAX_DIGITS: Final = 18
"""No number of a connection is longer, and Python refuses to convert very long texts."""


class Engine:
    """One broker instance.

    Args:
        settings: The configuration of the instance.
        journal: Its log, already recovered; the engine only reads it.
        now: Seconds on a clock that never goes back; all later calls use the same clock.
        now_us: The wall clock at that moment, in microseconds since 1970.
        saved: What the previous engine has left.
    """

    def __init__(
        self,
        settings: EngineSettings,
        journal: JournalReader,
        *,
        now: float,
        now_us: int,
        saved: SavedState = NOTHING_SAVED,
    ) -> None:
        self._connections: dict[int, Connection] = {}
        self._names: dict[str, Connection] = {}  # those that have logged on, by client name
        self._guards = Guards(saved.guards)
        clock = self._clock = Clock(now, now_us)
        routes = self._routes = Routes(settings, journal)
        publishers = KnownPublishers(settings.name, started_s=now_us // 1_000_000)
        is_logging = bool(settings.log_topics)
        log = self._log = LogWriter(journal, publishers, now_us=now_us, is_logging=is_logging)
        self._destinations = destinations = [Destination(each) for each in settings.replicate_to]
        durability = self._durability = Durability()
        durability.waits = any(each.is_sync for each in destinations)
        outbox = self._outbox = Outbox(durability)
        recover(log, routes, clock, durability, destinations, saved)
        self._report_ahead()
        self._report_lost(saved.queue_points)
        self._taken: list[tuple[SowTable, list[str]]] = []  # file-backed topics, what has changed
        retries = self._retries = Retries(clock, outbox, self._connections)
        conflation = Conflation(settings, routes, clock, outbox)
        acks = self._acks = PersistedAcks(log, durability, clock, outbox)
        replay = self._replay = Replay(log, routes, durability, clock, outbox, conflation, acks)
        applier = Applier(log, routes, clock, outbox, conflation)
        queues = self._queues = QueueDispatcher(log, routes, clock, outbox, retries, applier)
        self._publishing = Publishing(settings, log, routes, outbox, applier, acks)
        self._replicas = Replicas(settings, log, routes, clock, outbox, applier, destinations)
        self._replication = Replication(
            settings, log, routes, durability, clock, outbox, destinations
        )
        self._subscribing = Subscribing(
            settings, log, routes, outbox, conflation, replay, acks, queues
        )
        self._queries = Queries(
            settings=settings,
            log=log,
            routes=routes,
            clock=clock,
            outbox=outbox,
            conflation=conflation,
            applier=applier,
            subscribing=self._subscribing,
            replay=replay,
            acks=acks,
        )
        self._queue_commands = QueueCommands(log, routes, clock, outbox, acks)
        self._logons = Logons(settings, self._names, log, durability, outbox)
        self._statistics = Statistics(
            settings, self._connections, log, routes, clock, outbox, durability, destinations
        )
        self._system_topics = SystemTopics(
            log, routes, durability, clock, outbox, self._guards, queues, self._statistics
        )
        self._commands = self._all_commands()

    def _all_commands(self) -> dict[str, Command]:
        return {
            "subscribe": self._subscribing.subscribe,
            "delta_subscribe": self._subscribing.subscribe,
            "unsubscribe": self._subscribing.unsubscribe,
            "sow": self._sow,
            "sow_and_subscribe": self._queries.sow_and_subscribe,
            "sow_and_delta_subscribe": self._queries.sow_and_subscribe,
            "sow_delete": self._sow_delete,
            "p": self._publish,
            "publish": self._publish,
            "delta_publish": self._publish,
            "flush": self._flush,
            "heartbeat": self._heartbeat,
            "logon": self._logons.log_on,
            LOGON: self._replicas.log_on,
        }

    @property
    def next_due(self) -> float:
        """When `tick` has to be called next, in seconds; infinity for never."""
        return self._clock.timers.next_due

    @property
    def next_position(self) -> int:
        """The position that the next data record will get."""
        return self._log.position

    @property
    def progress(self) -> ReplicationProgress:
        """The progress of replication, for the next engine on this journal."""
        return self._replication.progress

    @property
    def destinations(self) -> tuple[DestinationStatus, ...]:
        """Where the log is replicated to, and how far that is."""
        return self._replication.statuses

    @property
    def missing(self) -> int:
        """The number of replicated records dropped because this log has later ones."""
        return self._replicas.missing

    @property
    def ended_connections(self) -> dict[str, int]:
        """How many connections have ended, by reason."""
        return dict(self._outbox.ends)

    @property
    def guards(self) -> tuple[Guard, ...]:
        """The guards that have not ended, for the next engine on this journal."""
        return self._guards.current(self._clock.wall_us)

    @property
    def queue_points(self) -> tuple[QueuePoint, ...]:
        """Where recovery of the queues may begin, for the next engine on this journal."""
        return self._queues.points

    def queue_snapshots(self) -> list[QueueSnapshot]:
        """What the file-backed queues hold now that the last block was written."""
        live = self._log.journal.live
        end = Cursor(live.number, live.end)
        return self._routes.queues.snapshots(end, self._log.position)

    def dialled(self, connection_id: int, address: str, now: float) -> Effects:
        """A connection to a destination was established; its number must be new."""
        self._begin(now)
        connection = self._connections[connection_id] = Connection(
            connection_id, peer=address, now=now, failed=self._outbox.fail
        )
        self._replication.begin(connection, address)
        return self._finish()

    def rows(self, table: str, now: float, *, after: int = 0) -> list[Row]:
        """A table of the statistics: `instance`, `queues`, or one of `Statistics.tables`.

        Args:
            table: Its name.
            now: The present moment.
            after: Only what follows this number.
        """
        self._clock.now = now
        if table == "instance":
            return [self._statistics.instance()]
        if table == "queues":
            return self._queues.rows(after)
        return self._statistics.tables[table](after)

    def log_holder(self, position: int, points: Iterable[QueuePoint], now: float) -> str:
        """Who needs what comes before a position of the log: see `holders.log_holder`."""
        self._clock.now = now
        return log_holder(
            position,
            guards=self.guards,
            points=points,
            destinations=self._destinations,
            connections=self._connections.values(),
        )

    def clock_us(self, now: float) -> int:
        """The wall clock at a moment, in microseconds since 1970."""
        self._clock.now = now
        return self._clock.wall_us

    def sow_snapshot(self) -> list[tuple[str, list[SowRecord]]]:
        """The records of each state of the world that only the log has, for `sow_holder`."""
        return [(each.name, list(each)) for each in self._routes.sow if not each.file_backed]

    def sow_changes(self) -> Iterator[SowChanges]:
        """What has changed in the file-backed topics, now that the last block was written.

        It comes in parts, each with its records as they are when it is asked for.
        """
        self._taken = [(each, each.take_changed()) for each in self._routes.sow if each.changed]
        return self._parts_of_changes()

    def _parts_of_changes(self) -> Iterator[SowChanges]:
        for topic, keys in self._taken:
            for at in range(0, len(keys), CHANGES_OF_A_PART):
                some = [(key, topic.get(key)) for key in keys[at : at + CHANGES_OF_A_PART]]
                yield SowChanges(topic.message_type, topic.name, some)

    def restore_sow_changes(self) -> None:
        """The last changes could not be written: they are among the next ones."""
        for topic, keys in self._taken:
            topic.restore_changed(keys)
        self._taken.clear()

    def describe(self, connection_id: int) -> str:
        """A connection for the log: its number, its client and the other end's address."""
        connection = self._connections.get(connection_id)
        return "" if connection is None else describe(connection)

    def disconnect(self, client: str, now: float) -> Effects:
        """End the connection of a client.

        Args:
            client: Its name, or the number of the connection.
            now: The present moment.

        Raises:
            UsageError: There is no such connection.
        """
        found = self._names.get(client)
        if found is None and client.isdecimal() and len(client) <= _MAX_DIGITS:
            found = self._connections.get(int(client))
        if found is None or found.closing:
            raise UsageError(f"{quoted(client)}: no connection has this name or this number")
        self._begin(now)
        if found.commands is None:
            self._outbox.send(found, end_ack(BY_OPERATOR))
        self._outbox.close(found, BY_OPERATOR)
        return self._finish()

    def downgrade(self, address: str, now: float) -> Effects:
        """Persisted acks no longer wait for a destination.

        Raises:
            UsageError: There is no such synchronous destination.
        """
        self._begin(now)
        self._replication.downgrade(address)
        return self._finish()

    def upgrade(self, address: str, now: float) -> Effects:
        """Persisted acks wait for a destination again, as soon as it has caught up.

        Raises:
            UsageError: There is no such synchronous destination.
        """
        self._begin(now)
        self._replication.upgrade(address)
        return self._finish()

    def connected(self, connection_id: int, now: float, *, peer: str = "") -> None:
        """A connection was accepted; its number must be new."""
        self._connections[connection_id] = Connection(
            connection_id, peer=peer, now=now, failed=self._outbox.fail
        )

    def received(self, connection_id: int, messages: Sequence[Message], now: float) -> Effects:
        """Commands arrived on a connection, in this order; an empty list if only bytes arrived."""
        connection = self._connections.get(connection_id)
        if connection is None:
            return Effects(None, [], [], [])
        self._begin(now)
        connection.last_received = now
        try:
            self._carry_out(connection, messages)
        except Exception as error:  # a fault of one command must not end the broker
            self._outbox.fail(connection, error)
        return self._finish()

    def _carry_out(self, connection: Connection, messages: Sequence[Message]) -> None:
        """Carry out commands in order, until the others have to wait.

        That is for the end of a command that blocks them, or for their turn: to publish to a new
        topic is to compare it with all patterns of subscriptions.
        """
        if connection.is_busy:
            connection.deferred += messages
            return
        tables, publish = self._routes, self._publishing.publish
        table = tables[connection.message_type]
        table.pattern_checks = 0
        many_patterns = table.pattern_count > MAX_PATTERN_CHECKS
        for number, message in enumerate(messages, 1):
            if connection.closing:
                break
            if many_patterns and not self._is_prepared(connection, message):
                connection.deferred += messages[number - 1 :]
                self._outbox.wake(connection)
                break
            if (
                connection.logged_on
                and message.kind in {"p", "publish"}
                and connection.publishing is None
            ):
                publish(connection, message, table.targets)
                if table.pattern_checks <= MAX_PATTERN_CHECKS:
                    continue
            else:
                self._command(connection, message)
                # It may have been the logon, which names the message type.
                table = tables[connection.message_type]
                many_patterns = table.pattern_count > MAX_PATTERN_CHECKS
            if connection.blocking is not None or table.pattern_checks > MAX_PATTERN_CHECKS:
                connection.deferred += messages[number:]
                self._outbox.wake(connection)
                break

    def _is_prepared(self, connection: Connection, message: Message) -> bool:
        """Whether a publish takes one step alone; if not, a part of its comparisons is done."""
        if not connection.logged_on or message.kind not in PUBLISHES:
            return True
        access = connection.publishing
        if access is not None and not access.is_granted(message.topic):
            return True
        return self._publishing.prepare(connection, message, MAX_PATTERN_CHECKS)

    def ending(self, connection_id: int) -> None:
        """A connection has ended, and waits for its turn: a queue must give it nothing more."""
        connection = self._connections.get(connection_id)
        if connection is not None and not connection.closing:
            connection.stop()

    def end_subscriptions(self, connection_id: int, now: float) -> Effects | None:
        """End some subscriptions of a connection that has ended with many.

        Returns:
            `None` if they are so few that `disconnected` can end them all in its step.
        """
        connection = self._connections.get(connection_id)
        if connection is None or len(connection.subscriptions) <= ENDS_PER_STEP:
            return None
        self._begin(now)
        try:
            if not connection.has_ended:
                connection.has_ended = True
                connection.stop()
                self._subscribing.leave_topics(connection)
            else:
                self._subscribing.leave(connection, limit=ENDS_PER_STEP)
        except Exception as error:  # as in `disconnected`
            self._outbox.report_fault(describe(connection), error)
        return self._finish()

    def disconnected(self, connection_id: int, now: float, reason: str = ENDED_BY_PEER) -> Effects:
        """A connection has ended, on either side; `reason` says why, unless the engine has."""
        connection = self._connections.pop(connection_id, None)
        self._begin(now)
        if connection is not None:
            self._outbox.report_end(connection, reason, now)
            connection.closing = True
            connection.out = []
            try:
                self._forget(connection)
            except Exception as error:  # it has ended: nobody else must
                self._outbox.report_fault(describe(connection), error)
        return self._finish()

    def _forget(self, connection: Connection) -> None:
        """Release what a connection has held."""
        if self._names.get(connection.name) is connection:
            del self._names[connection.name]
        self._durability.forget(connection)
        self._clock.timers.cancel(("heartbeat", connection.id))
        self._acks.forget(connection)
        if connection.logged_on:
            self._log.publishers.release(connection.publisher)
            self._log.publishers.release(connection.origin)
            self._subscribing.leave(connection)
        else:
            self._replicas.leave(connection)
            self._replication.leave(connection)

    def tick(self, now: float) -> Effects:
        """Time has passed."""
        self._begin(now)
        self._retries.run_due()
        self._replication.expire()
        return self._end_batch()

    def is_known(self, connection_id: int) -> bool:
        """Whether the other end of a connection has logged on, or is another instance."""
        connection = self._connections.get(connection_id)
        return connection is not None and (connection.logged_on or connection.commands is not None)

    def is_busy(self, connection_id: int) -> bool:
        """Whether the commands of a connection wait for one that takes long, so it is not read."""
        connection = self._connections.get(connection_id)
        return connection is not None and connection.is_busy and not connection.closing

    def has_long_commands(self, connection_id: int) -> bool:
        """Whether `pump` has a query to answer or commands to carry out for a connection."""
        connection = self._connections.get(connection_id)
        return connection is not None and (connection.is_busy or bool(connection.queries))

    def has_backlog(self, connection_id: int) -> bool:
        """Whether `pump` has something for a connection."""
        connection = self._connections.get(connection_id)
        if connection is None or connection.closing:
            return False
        if connection.commands is not None:
            return self._replication.has_backlog(connection)
        return connection.has_backlog

    def pump(self, connection_id: int, now: float) -> Effects:
        """Continue replay: send a chunk each to some subscriptions, and read on for a query."""
        self._begin(now)
        connection = self._connections.get(connection_id)
        if connection is not None and not connection.closing:
            try:
                self._pump(connection)
            except Exception as error:  # as in `received`
                self._outbox.fail(connection, error)
        return self._finish()

    def _pump(self, connection: Connection) -> None:
        if connection.commands is not None:
            self._replication.pump(connection)
            return
        if connection.blocking is None:
            connection.take_step()  # of a query
        self._go_on(connection)
        self._queues.pump(connection)
        self._replay.pump(connection)

    def go_on(self, connection_id: int, now: float) -> Effects:
        """Take a step of the commands that wait, however much the connection has to send."""
        self._begin(now)
        connection = self._connections.get(connection_id)
        if connection is not None and not connection.closing:
            try:
                self._go_on(connection)
            except Exception as error:  # as in `received`
                self._outbox.fail(connection, error)
        return self._finish()

    def _go_on(self, connection: Connection) -> None:
        if connection.is_busy:
            connection.last_received = self._clock.now  # until now it was not read
        if connection.blocking is not None:
            connection.take_step()
        if connection.deferred and connection.blocking is None:
            deferred, connection.deferred = connection.deferred, []
            self._carry_out(connection, deferred)

    def over_high_water(self, connection_id: int) -> None:
        """A connection is over its high-water mark: its subscriptions read the log again."""
        connection = self._connections.get(connection_id)
        if connection is not None:
            connection.high_waters += 1
            self._replay.fall_back(connection)
            self._queues.choke(connection)

    def _begin(self, now: float) -> None:
        """Begin a batch at this time."""
        self._clock.now = now
        wall_us = self._clock.wall_us
        self._routes.queues.begin_batch()
        self._routes.queues.clock_us = wall_us
        self._log.begin(wall_us)

    def _finish(self) -> Effects:
        self._queues.end_batch()
        if self._log.has_data:
            self._acks.log_moved()
        if self._clock.timers.next_due <= self._clock.now:
            self._retries.run_due()  # acks that are not collected for any time belong to this batch
        return self._end_batch()

    def _end_batch(self) -> Effects:
        log, durability, before = self._log, self._durability, self._log.position
        self._queues.end_batch()  # what a deadline has changed
        if log.position != before:
            self._acks.log_moved()
        queue_points = self._queues.take_points() if log.is_logging else None
        confirmed, progress = durability.limit, self._replication.progress
        block = log.build()
        self._routes.close_batch(block)
        for connection in self._replication.end_batch(block):
            self._acks.resume(connection)
        if durability.limit > confirmed:
            self._acks.log_moved()
        self._replay.end_batch()
        self._subscribing.cut_slow()
        guards, guarding = self._guards.take_changes(self._clock.wall_us)
        now_is = self._replication.progress
        return self._outbox.take_effects(
            block,
            progress=now_is if now_is != progress else None,
            queue_points=queue_points,
            guards=guards,
            guarding=guarding,
        )

    def _command(self, connection: Connection, message: Message) -> None:
        """Execute a command that is not a publish, or a publish that must be refused."""
        theirs = connection.commands
        command = (self._commands if theirs is None else theirs).get(message.kind)
        if command is None:
            self._unknown(connection, message)
            return
        if not connection.logged_on and theirs is None and message.kind not in {"logon", LOGON}:
            reason = Reason.LOGON_REQUIRED
            self._outbox.send(connection, failure_ack(message, reason) or end_ack(reason))
            self._outbox.close(connection, "auth", f"{quoted(message.kind)} before the logon")
            return
        try:
            command(connection, message)
        except Refused as error:
            self._outbox.refuse(connection, message, error)

    def _unknown(self, connection: Connection, message: Message) -> None:
        """Refuse an unknown command, and end the connection, as AMPS does.

        Not for the acknowledgement of a queue's message by an old client, which would only connect
        again to be sent the same messages.
        """
        reason = Reason.UNKNOWN_COMMAND
        is_ack = message.kind == "ack" and connection.logged_on
        detail = (
            f"{quoted(message.kind)}: messages are acknowledged by sow_delete"
            if is_ack
            else quoted(message.kind)
        )
        if connection.commands is None:
            answer = failure_ack(message, reason, detail=detail) or end_ack(reason, detail=detail)
            self._outbox.send(connection, answer)
        if is_ack:
            self._outbox.report_refusal(connection, message, reason, detail)
        else:
            self._outbox.close(connection, reason, detail)

    def _report_ahead(self) -> None:
        ahead_s = (self._log.now_us - self._clock.wall_us) / 1e6
        if ahead_s > MAX_AHEAD_S:
            self._outbox.report(
                Severity.WARNING,
                f"the log ends {ahead_s:.0f} s ahead of this machine's clock: what is published has"
                " the time of its end until the clock has reached it",
            )

    def _report_lost(self, points: Iterable[QueuePoint]) -> None:
        """Report what the log has lost: what is still needed of its beginning, and its end."""
        last = self._log.position - 1
        for guard in self._guards.move_back(last):
            self._outbox.report(
                Severity.WARNING,
                f"positions {last + 1} to {guard.after}: lost, and given again to what is published"
                f" next: guard {guard.name!r} knows them, but no segment has them",
            )
        first = self._log.journal.first_position
        needed = [(each.after + 1, f"guard {each.name!r}") for each in self.guards]
        needed += [
            (each.position, f"queue {each.name!r}")
            for each in points
            if self._routes.queues.get(each.name, each.message_type) is not None
        ]
        for position, who in needed:
            if position < first:
                text = f"positions {position} to {first - 1}: removed although {who} needs it"
                self._outbox.report(Severity.ERROR, text)

    def _heartbeat(self, connection: Connection, message: Message) -> None:
        heartbeat(self._clock, self._outbox, connection, message)

    def _publish(self, connection: Connection, message: Message) -> None:
        routes = self._routes[connection.message_type].targets
        if connection.publishing is not None:
            try:
                self._check_publish(connection.publishing, connection.message_type, message)
            except Refused as error:
                self._publishing.refuse(connection, message, error.reason, error.detail)
                return
        self._publishing.publish(connection, message, routes)

    @staticmethod
    def _check_publish(access: Access, message_type: str, message: Message) -> None:
        if message.kind == "delta_publish":
            access.check_free(message.topic, "delta")
        access.check_body(message.topic, lambda: Document(message.data, message_type))

    def _sow(self, connection: Connection, message: Message) -> None:
        queue = self._queue_commands.queue_of(connection, message.topic)
        if queue is not None:
            self._queue_commands.browse(connection, message, queue)
            return
        if is_system_topic(message.topic) and connection.reading is not None:
            if message.topic == POSITION:  # it has the user's filter for the messages it counts
                connection.reading.check(message.topic)
            else:
                connection.reading.check_free(message.topic, "facts of the broker")
        queries = self._system_topics if is_system_topic(message.topic) else self._queries
        queries.sow(connection, message)

    def _sow_delete(self, connection: Connection, message: Message) -> None:
        queue = self._queue_commands.queue_of(connection, message.topic)
        try:
            if queue is None:
                self._queries.sow_delete(connection, message)
            else:
                self._queue_commands.acknowledge(connection, message, queue)
        except Refused as error:
            self._publishing.refuse(connection, message, error.reason, error.detail)

    def _flush(self, connection: Connection, message: Message) -> None:
        """Acknowledge a flush: all earlier commands were executed.

        The persisted ack waits for the synchronous destinations as those of publishes do.
        """
        read_options(message)
        wanted = requested(message.ack_type)
        if "persisted" in wanted:
            self._acks.flush(connection, always=True)
        self._outbox.acknowledge(connection, message, "received", "processed", "completed")
        if "persisted" in wanted:
            self._outbox.confirm(connection, ack("persisted", message.command_id))

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
from haclient_fake_server.engine.connections import Connection
from haclient_fake_server.engine.entitlements import Access
from haclient_fake_server.engine.filters import Document
from haclient_fake_server.engine.holders import log_holder
from haclient_fake_server.engine.journal import Cursor, JournalReader
from haclient_fake_server.engine.logon import heartbeat, log_on
from haclient_fake_server.engine.persisted_acks import PersistedAcks
from haclient_fake_server.engine.publishing import Publishing
from haclient_fake_server.engine.queues.commands import QueueCommands
from haclient_fake_server.engine.queues.points import QueuePoint
from haclient_fake_server.engine.queues.queues import Queues
from haclient_fake_server.engine.queues.snapshot import QueueSnapshot
from haclient_fake_server.engine.recovery import NOTHING_SAVED, SavedState, recover
from haclient_fake_server.engine.replay import Replay
from haclient_fake_server.engine.replication.destination import DestinationStatus
from haclient_fake_server.engine.replication.durability import ReplicationProgress
from haclient_fake_server.engine.replication.receiver import Replicas
from haclient_fake_server.engine.replication.sender import Replication
from haclient_fake_server.engine.replication.wire import LOGON
from haclient_fake_server.engine.requests import is_system_topic, read_options
from haclient_fake_server.engine.settings import EngineSettings
from haclient_fake_server.engine.sow.queries import Queries
from haclient_fake_server.engine.sow.saved import SowChanges
from haclient_fake_server.engine.sow.table import SowRecord, SowTopic
from haclient_fake_server.engine.state import ENDED_BY_PEER, Effects, Severity, State
from haclient_fake_server.engine.statistics import TABLES, Row, instance
from haclient_fake_server.engine.subscribing import Subscribing
from haclient_fake_server.engine.system_topics import SystemTopics

Command = Callable[[Connection, Message], None]

BY_OPERATOR: Final = "disconnected by an operator"
"""The reason for the end of a connection that was asked for by `Engine.disconnect`."""

CHANGES_OF_A_PART: Final = 1000
"""Records of a file-backed topic that are taken in one step: a millisecond."""

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
        self._state = State(settings, journal, now=now, now_us=now_us, guards=saved.guards)
        recover(self._state, saved)
        self._report_lost(saved.queue_points)
        acks = self._acks = PersistedAcks(self._state)
        self._replay = Replay(self._state, acks)
        applier = Applier(self._state)
        self._taken: list[tuple[SowTopic, list[str]]] = []  # file-backed topics, what has changed
        self._queues = Queues(self._state, applier)
        self._publishing = Publishing(self._state, applier, acks)
        self._replicas = Replicas(self._state, applier)
        self._replication = Replication(self._state)
        self._subscribing = Subscribing(self._state, self._replay, acks, self._queues)
        queries = Queries(self._state, applier, self._publishing, self._subscribing, acks)
        self._commands: dict[str, Command] = {
            "subscribe": self._subscribing.subscribe,
            "delta_subscribe": self._subscribing.subscribe,
            "unsubscribe": self._subscribing.unsubscribe,
            "sow": self._sow,
            "sow_and_subscribe": queries.sow_and_subscribe,
            "sow_and_delta_subscribe": queries.sow_and_subscribe,
            "sow_delete": self._sow_delete,
            "p": self._publish,
            "publish": self._publish,
            "delta_publish": self._publish,
            "flush": self._flush,
            "heartbeat": self._heartbeat,
            "logon": self._logon,
            LOGON: self._replicas.log_on,
        }
        self._queries = queries
        self._queue_commands = QueueCommands(self._state, self._publishing)
        self._system_topics = SystemTopics(self._state, self._queues.statistics)

    @property
    def next_due(self) -> float:
        """When `tick` has to be called next, in seconds; infinity for never."""
        return self._state.timers.next_due

    @property
    def next_position(self) -> int:
        """The position that the next data record will get."""
        return self._state.batch.position

    @property
    def progress(self) -> ReplicationProgress:
        """The progress of replication, for the next engine on this journal."""
        return self._state.progress

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
        return dict(self._state.ends)

    @property
    def queue_points(self) -> tuple[QueuePoint, ...]:
        """Where recovery of the queues may begin, for the next engine on this journal."""
        return self._queues.points

    def queue_snapshots(self) -> list[QueueSnapshot]:
        """What the file-backed queues hold now that the last block was written."""
        live = self._state.journal.live
        end = Cursor(live.number, live.end)
        return self._state.queues.snapshots(end, self._state.batch.position)

    def dialled(self, connection_id: int, address: str, now: float) -> Effects:
        """A connection to a destination was established; its number must be new."""
        state = self._state
        state.begin(now)
        connection = state.connections[connection_id] = Connection(
            connection_id, peer=address, now=now, failed=state.fail
        )
        self._replication.begin(connection, address)
        return self._finish()

    def rows(self, table: str, now: float, *, after: int = 0) -> list[Row]:
        """A table of the statistics: `instance`, `queues`, or one of `TABLES`.

        Args:
            table: Its name.
            now: The present moment.
            after: Only what follows this number.
        """
        state = self._state
        state.now = now
        if table == "instance":
            return [instance(state)]
        return self._queues.rows(after) if table == "queues" else TABLES[table](state, after)

    def log_holder(self, position: int, points: Iterable[QueuePoint], now: float) -> str:
        """Who needs what comes before a position of the log: see `holders.log_holder`."""
        self._state.now = now
        return log_holder(self._state, position, points)

    def clock_us(self, now: float) -> int:
        """The wall clock at a moment, in microseconds since 1970."""
        self._state.now = now
        return self._state.clock_us

    def sow_snapshot(self) -> list[tuple[str, list[SowRecord]]]:
        """The records of each state of the world that only the log has, for `sow_holder`."""
        return [(each.name, list(each)) for each in self._state.sow if not each.definition]

    def sow_changes(self) -> Iterator[SowChanges]:
        """What has changed in the file-backed topics, now that the last block was written.

        It comes in parts, each with its records as they are when it is asked for.
        """
        self._taken = [(each, each.take_changed()) for each in self._state.sow if each.changed]
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
        connection = self._state.connections.get(connection_id)
        return "" if connection is None else self._state.describe(connection)

    def disconnect(self, client: str, now: float) -> Effects:
        """End the connection of a client.

        Args:
            client: Its name, or the number of the connection.
            now: The present moment.

        Raises:
            UsageError: There is no such connection.
        """
        state = self._state
        found = state.names.get(client)
        if found is None and client.isdecimal() and len(client) <= _MAX_DIGITS:
            found = state.connections.get(int(client))
        if found is None or found.closing:
            raise UsageError(f"{quoted(client)}: no connection has this name or this number")
        state.begin(now)
        if found.commands is None:
            state.send(found, end_ack(BY_OPERATOR))
        state.close(found, BY_OPERATOR)
        return self._finish()

    def downgrade(self, address: str, now: float) -> Effects:
        """Persisted acks no longer wait for a destination.

        Raises:
            UsageError: There is no such synchronous destination.
        """
        self._state.begin(now)
        self._replication.downgrade(address)
        return self._finish()

    def upgrade(self, address: str, now: float) -> Effects:
        """Persisted acks wait for a destination again, as soon as it has caught up.

        Raises:
            UsageError: There is no such synchronous destination.
        """
        self._state.begin(now)
        self._replication.upgrade(address)
        return self._finish()

    def connected(self, connection_id: int, now: float, *, peer: str = "") -> None:
        """A connection was accepted; its number must be new."""
        state = self._state
        state.connections[connection_id] = Connection(
            connection_id, peer=peer, now=now, failed=state.fail
        )

    def received(self, connection_id: int, messages: Sequence[Message], now: float) -> Effects:
        """Commands arrived on a connection, in this order; an empty list if only bytes arrived."""
        state = self._state
        connection = state.connections.get(connection_id)
        if connection is None:
            return Effects(None, [], [], [])
        state.begin(now)
        connection.last_received = now
        try:
            self._carry_out(connection, messages)
        except Exception as error:  # a fault of one command must not end the broker
            state.fail(connection, error)
        return self._finish()

    def _carry_out(self, connection: Connection, messages: Sequence[Message]) -> None:
        """Carry out commands in order, until the others have to wait.

        That is for the end of a delete, or for their turn: to publish to a new topic is to compare
        it with all patterns of subscriptions.
        """
        if connection.is_busy:
            connection.deferred += messages
            return
        tables, publish = self._state.tables, self._publishing.publish
        table = tables[connection.message_type]
        table.pattern_checks = 0
        for number, message in enumerate(messages, 1):
            if connection.closing:
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
            if connection.delete is not None or table.pattern_checks > MAX_PATTERN_CHECKS:
                connection.deferred += messages[number:]
                self._state.with_backlog[connection.id] = None
                break

    def disconnected(self, connection_id: int, now: float, reason: str = ENDED_BY_PEER) -> Effects:
        """A connection has ended, on either side; `reason` says why, unless the engine has."""
        state = self._state
        connection = state.connections.pop(connection_id, None)
        state.begin(now)
        if connection is not None:
            state.ended(connection, reason)
            connection.closing = True
            connection.out = []
            try:
                self._forget(connection)
            except Exception as error:  # it has ended: nobody else must
                state.report_fault(state.describe(connection), error)
        return self._finish()

    def _forget(self, connection: Connection) -> None:
        """Release what a connection has held."""
        state = self._state
        if state.names.get(connection.name) is connection:
            del state.names[connection.name]
        state.durability.forget(connection)
        state.timers.cancel(("heartbeat", connection.id))
        self._acks.forget(connection)
        if connection.logged_on:
            state.publishers.release(connection.publisher)
            state.publishers.release(connection.origin)
            self._subscribing.leave(connection)
        else:
            self._replicas.leave(connection)
            self._replication.leave(connection)

    def tick(self, now: float) -> Effects:
        """Time has passed."""
        state = self._state
        state.begin(now)
        state.run_due()
        self._replication.expire()
        return self._end_batch()

    def is_known(self, connection_id: int) -> bool:
        """Whether the other end of a connection has logged on, or is another instance."""
        connection = self._state.connections.get(connection_id)
        return connection is not None and (connection.logged_on or connection.commands is not None)

    def is_busy(self, connection_id: int) -> bool:
        """Whether the commands of a connection wait for one that takes long, so it is not read."""
        connection = self._state.connections.get(connection_id)
        return connection is not None and connection.is_busy and not connection.closing

    def has_long_commands(self, connection_id: int) -> bool:
        """Whether `pump` has a query to answer or commands to carry out for a connection."""
        connection = self._state.connections.get(connection_id)
        return connection is not None and (connection.is_busy or bool(connection.queries))

    def has_backlog(self, connection_id: int) -> bool:
        """Whether `pump` has something for a connection."""
        connection = self._state.connections.get(connection_id)
        if connection is None or connection.closing:
            return False
        if connection.commands is not None:
            return self._replication.has_backlog(connection)
        return connection.has_backlog

    def pump(self, connection_id: int, now: float) -> Effects:
        """Continue replay: send a chunk each to some subscriptions, and read on for a query."""
        state = self._state
        state.begin(now)
        connection = state.connections.get(connection_id)
        if connection is not None and not connection.closing:
            try:
                self._pump(connection)
            except Exception as error:  # as in `received`
                state.fail(connection, error)
        return self._finish()

    def _pump(self, connection: Connection) -> None:
        if connection.commands is not None:
            self._replication.pump(connection)
            return
        if connection.is_busy:
            connection.last_received = self._state.now  # until now it was not read
        connection.take_step()
        if connection.deferred and connection.delete is None:
            deferred, connection.deferred = connection.deferred, []
            self._carry_out(connection, deferred)
        self._queues.pump(connection)
        self._replay.pump(connection)

    def over_high_water(self, connection_id: int) -> None:
        """A connection is over its high-water mark: its subscriptions read the log again."""
        connection = self._state.connections.get(connection_id)
        if connection is not None:
            connection.high_waters += 1
            self._replay.fall_back(connection)
            self._queues.choke(connection)

    def _finish(self) -> Effects:
        state = self._state
        self._queues.end_batch()
        if state.batch.has_data:
            self._acks.log_moved()
        if state.timers.next_due <= state.now:
            state.run_due()  # acks that are not collected for any time belong to this batch
        return self._end_batch()

    def _end_batch(self) -> Effects:
        state = self._state
        before = state.batch.position
        self._queues.end_batch()  # what a deadline has changed
        if state.batch.position != before:
            self._acks.log_moved()
        if state.logging:
            state.new_queue_points = self._queues.take_points()
        confirmed = state.durability.limit
        for connection in state.close_batch():
            self._acks.resume(connection)
        if state.durability.limit > confirmed:
            self._acks.log_moved()
        self._replay.end_batch()
        self._subscribing.cut_slow()
        return state.take_effects()

    def _command(self, connection: Connection, message: Message) -> None:
        """Execute a command that is not a publish, or a publish that must be refused."""
        state = self._state
        theirs = connection.commands
        command = (self._commands if theirs is None else theirs).get(message.kind)
        if command is None:
            self._unknown(connection, message)
            return
        if not connection.logged_on and theirs is None and message.kind not in {"logon", LOGON}:
            reason = Reason.LOGON_REQUIRED
            state.send(connection, failure_ack(message, reason) or end_ack(reason))
            state.close(connection, "auth", f"{quoted(message.kind)} before the logon")
            return
        try:
            command(connection, message)
        except Refused as error:
            state.refuse(connection, message, error)

    def _unknown(self, connection: Connection, message: Message) -> None:
        """Refuse an unknown command, and end the connection, as AMPS does.

        Not for the acknowledgement of a queue's message by an old client, which would only connect
        again to be sent the same messages.
        """
        state, reason = self._state, Reason.UNKNOWN_COMMAND
        is_ack = message.kind == "ack" and connection.logged_on
        detail = (
            f"{quoted(message.kind)}: messages are acknowledged by sow_delete"
            if is_ack
            else quoted(message.kind)
        )
        if connection.commands is None:
            answer = failure_ack(message, reason, detail=detail) or end_ack(reason, detail=detail)
            state.send(connection, answer)
        if is_ack:
            state.report_refusal(connection, message, reason, detail)
        else:
            state.close(connection, reason, detail)

    def _report_lost(self, points: Iterable[QueuePoint]) -> None:
        """Report what was removed from the log although a consumer or a queue still needs it."""
        state, first = self._state, self._state.journal.first_position
        for guard in state.guards.current(state.clock_us):
            if guard.after + 1 < first:
                text = f"removed although guard {guard.name!r} needs it"
                state.report(Severity.ERROR, f"positions {guard.after + 1} to {first - 1}: {text}")
        for point in points:
            is_known = state.queues.get(point.name, point.message_type) is not None
            if is_known and point.position < first:
                text = f"removed although queue {point.name!r} needs it"
                state.report(Severity.ERROR, f"positions {point.position} to {first - 1}: {text}")

    def _logon(self, connection: Connection, message: Message) -> None:
        log_on(self._state, connection, message)

    def _heartbeat(self, connection: Connection, message: Message) -> None:
        heartbeat(self._state, connection, message)

    def _publish(self, connection: Connection, message: Message) -> None:
        routes = self._state.tables[connection.message_type].targets
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
            connection.reading.check(message.topic)
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
        state = self._state
        wanted = requested(message.ack_type)
        if "persisted" in wanted:
            self._acks.flush(connection, always=True)
        state.acknowledge(connection, message, "received", "processed", "completed")
        if "persisted" in wanted:
            state.confirm(connection, ack("persisted", message.command_id))

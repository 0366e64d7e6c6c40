"""The receiving side of replication: applies the records of other instances like publishes.

A record keeps its publisher and sequence, so its bookmark is the same on every instance, and the
rule for duplicates is the same as for clients. It gets a position, a topic number and a time of
this instance, since each has its own order and clock. Then it is logged, changes the state of the
world, is delivered, and is sent to this instance's own destinations.

One ack covers everything that arrived together, or within `replication_ack_interval_s`, after the
block is written here. It never waits for this instance's own destinations: two instances that are
synchronous to each other would deadlock.

A record below the highest sequence of its publisher is usually in the log already. When it is not,
its publisher has lost it and continued here: appending it would reverse the publisher's order, and
subscribers would get an old message as a new one. It is dropped, and both sides report that their
logs differ permanently.

Records of one sequence, which a delete over several topics makes, come in one body and are appended
or dropped together. A body that is longer than a frame may be comes in several.

A mark says that its publisher has been told that a message is refused, or was published to a topic
that is not logged. The mark is noted like such a message here: otherwise the publisher, when it
fails over, would find that this instance lacks what was acknowledged. A mark that is not above the
highest sequence says nothing new, and no log lacks it.

A removal from a queue removes the message from the queue of the same name here. If there is no such
queue, or the message has left it, nothing happens. A waiting message expires on one instance: the
one that has received it from its publisher, but not in the first `HEAR_FIRST_S` after its start.
The others do it when no instance has been connected here for `TAKE_OVER_S`.

A topic that is not logged here or not entitled to be sent, or an instance of this one's name, ends
the connection with a reason: to acknowledge such records would be wrong.
"""

from __future__ import annotations

import bisect
import math
from array import array
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final

from haclient.protocol.framing import MAX_FRAME_BYTES
from haclient.protocol.messages import Message
from haclient_fake_server.engine.acks import Reason, Refused
from haclient_fake_server.engine.apply import Applier
from haclient_fake_server.engine.connections import Connection
from haclient_fake_server.engine.entitlements import Access, Rights
from haclient_fake_server.engine.log_writer import LogWriter
from haclient_fake_server.engine.logon import heartbeat
from haclient_fake_server.engine.outbox import Outbox, Severity
from haclient_fake_server.engine.patterns import to_text
from haclient_fake_server.engine.publishers import KnownPublisher
from haclient_fake_server.engine.replication import wire
from haclient_fake_server.engine.replication.destination import Destination
from haclient_fake_server.engine.routes import Route, Routes
from haclient_fake_server.engine.settings import EngineSettings
from haclient_fake_server.engine.timers import Clock
from haclient_fake_server.journal.format import (
    JournalFormatError,
    Record,
    RecordCommand,
    RecordFlag,
    headers,
    read_records,
    read_removals,
)

CHUNK_BYTES: Final = 256 * 1024
MAX_PARTS: Final = 4
"""Parts of the log of which the sequences of one publisher are cached."""
MAX_BODY_BYTES: Final = 2 * MAX_FRAME_BYTES
"""What a sender may spread over frames: it holds more than the longest record."""
MAX_CACHED: Final = 2**20
"""Sequences that are cached, at eight bytes each; with one more part all are forgotten."""

TAKE_OVER_S: Final = 30.0
"""After so long without a connected instance, replicated messages expire here. Longer than the
waits between two attempts to connect."""

HEAR_FIRST_S: Final = 10.0
"""So long after the start of an instance that is replicated nothing expires: what others have
removed from its queues meanwhile has to arrive. They connect within two seconds."""

REPLACED: Final = "replaced by a newer replication connection"


class Holdings:
    """Tells whether the log already holds a message that a replica sends.

    Recent messages are looked up in the runs of consecutive sequences that each publisher has in
    memory, older ones in the journal. The sequences in the part of it that a look-up has read are
    cached: the duplicates of each publisher arrive in the order of the log, but those of several
    publishers may be far apart there.

    Args:
        log: The log and what is being added to it.
    """

    def __init__(self, log: LogWriter) -> None:
        self._log = log
        self._held: dict[int, deque[array[int]]] = {}
        self._cached = 0
        self._removed: dict[int, int] = {}  # by publisher, the highest before `_removed_before`
        self._removed_before = 1

    def lacks(self, publisher: KnownPublisher, sequence: int) -> bool:
        """Whether the log surely lacks a message, though it has a later one of its publisher.

        False for a message that may have been removed with the oldest segments: these had a later
        one of its publisher.
        """
        held = publisher.holds(sequence)
        if held is None:
            held = self._holds(publisher.id, sequence)
        return not held

    def _holds(self, publisher_id: int, sequence: int) -> bool:
        for held in self._held.get(publisher_id, ()):
            if held[0] <= sequence <= held[-1]:  # in a log a publisher's sequences only rise
                return held[bisect.bisect_left(held, sequence)] == sequence
        position = self._log.journal.find(publisher_id, sequence)
        if position is None:
            return self._may_be_removed(publisher_id, sequence) or (
                self._log.find(publisher_id, sequence) is not None
            )
        self._cache(position)
        return True

    def _may_be_removed(self, publisher_id: int, sequence: int) -> bool:
        journal = self._log.journal
        if journal.first_position != self._removed_before:
            self._removed_before = journal.first_position
            self._removed = journal.highest_before(journal.first_position)
        return sequence <= self._removed.get(publisher_id, 0)

    def _cache(self, position: int) -> None:
        """Read the part of the log around a position."""
        journal, mark = self._log.journal, int(RecordCommand.MARK)
        if self._cached > MAX_CACHED:
            self._held.clear()
            self._cached = 0
        data, _ = journal.read(journal.seek(position), 2 * CHUNK_BYTES)
        found: dict[int, array[int]] = {}
        for _, fields in headers(data):
            if fields[4] and fields[2] != mark:  # a message or a delete
                held = found.get(fields[5])
                if held is None:
                    held = found[fields[5]] = array("Q")
                held.append(fields[6])
        for number, held in found.items():
            self._held.setdefault(number, deque(maxlen=MAX_PARTS)).appendleft(held)
            self._cached += len(held)


class _Source:
    """One instance that sends its log here.

    Attributes:
        connection: The connection from it.
        access: The topics that its user may replicate; `None` for all.
        topics: Topics that it has defined on the connection, by its numbers.
        position: The position in its log of the last record received.
        begun: The beginning of a body that the next frame continues.
        missing: By publisher id, the records that were dropped since the last ack.
        is_ack_due: Whether records were received since the last ack.
    """

    def __init__(self, connection: Connection, access: Access | None) -> None:
        self.connection = connection
        self.access = access
        self.topics: dict[int, Route] = {}
        self.position = 0
        self.begun = bytearray()
        self.missing: dict[int, wire.Missing] = {}
        self.is_ack_due = False

    def drop(self, record: Record) -> None:
        """Count a record that is dropped, since the log has later ones of its publisher."""
        number, sequence = record.publisher_id, record.sequence
        _, first, last, records = self.missing.get(number, (number, sequence, sequence, 0))
        self.missing[number] = wire.Missing(
            number, min(first, sequence), max(last, sequence), records + 1
        )


class Replicas:
    """Applies the records of other instances.

    Args:
        settings: Who this instance is, and its limits.
        log: The log, and what is added to it.
        routes: The topics.
        clock: The time.
        outbox: Where answers and reports go.
        applier: Applies each record.
        destinations: Those that it is replicated to.

    Attributes:
        missing: How many records were dropped, since the log has later ones of their publishers.
    """

    def __init__(  # noqa: PLR0913, PLR0917  # its collaborators
        self,
        settings: EngineSettings,
        log: LogWriter,
        routes: Routes,
        clock: Clock,
        outbox: Outbox,
        applier: Applier,
        destinations: Sequence[Destination],
    ) -> None:
        self._settings = settings
        self._log = log
        self._routes = routes
        self._clock = clock
        self._outbox = outbox
        self._applier = applier
        self._destinations = destinations
        self._sources: dict[str, _Source] = {}
        self._unit = (0, 0)
        self._dropped = (0, 0)
        self._holdings = Holdings(log)
        self.missing = 0
        self._watch_sources()
        queues = routes.queues
        if destinations and len(queues):
            queues.expire_own(here=False)
            due = clock.now + HEAR_FIRST_S
            clock.timers.set("expire own", due, lambda: queues.expire_own(here=True))

    def _watch_sources(self) -> None:
        """Leave it to other instances to expire their messages, or take it over after a while."""
        if self._sources:
            self._clock.timers.cancel("take-over")
            self._routes.queues.expire_replicated(here=False)
        elif len(self._routes.queues):
            due = self._clock.now + TAKE_OVER_S
            self._clock.timers.set(
                "take-over", due, lambda: self._routes.queues.expire_replicated(here=True)
            )

    def log_on(self, connection: Connection, message: Message) -> None:
        """Carry out the logon of another instance."""
        entitlements = self._settings.entitlements
        access = Rights(message.user_id, entitlements).replicating if entitlements else None
        problem = self._problem(connection, message, access)
        if problem:
            self._refuse(connection, problem)
            return
        name = message.client_name
        older = self._sources.get(name)
        if older is not None:
            self._outbox.close(older.connection, REPLACED)
        connection.name = name
        connection.commands = {wire.REPLICATE: self._on_records, "heartbeat": self._heartbeat}
        self._sources[name] = _Source(connection, access)
        self._watch_sources()
        settings = self._settings
        answer = wire.welcome(
            settings.name, self._vector(), max_frame_bytes=settings.max_message_bytes
        )
        self._outbox.send(connection, answer)
        self._heartbeat(connection, message)

    def leave(self, connection: Connection) -> None:
        """A connection has ended."""
        source = self._sources.get(connection.name)
        self._clock.timers.cancel(("replication-ack", connection.id))
        if source is not None and source.connection is connection:
            del self._sources[connection.name]
            self._watch_sources()

    def _schedule_ack(self, source: _Source) -> None:
        """Send one ack for everything that comes from a source in the interval."""
        if source.is_ack_due:
            return
        source.is_ack_due = True
        connection = source.connection
        due = self._clock.now + self._settings.replication_ack_interval_s
        key = ("replication-ack", connection.id)
        self._clock.timers.set(key, due, partial(self._acknowledge, source), client=connection.id)

    def _acknowledge(self, source: _Source) -> None:
        source.is_ack_due = False
        missing = source.missing.values()
        self._outbox.send(source.connection, wire.written(source.position, missing))
        for each in missing:
            self._report(source, each)
        source.missing.clear()

    def _report(self, source: _Source, missing: wire.Missing) -> None:
        self.missing += missing.records
        seen = self._log.publishers.of_id(missing.publisher_id).seen
        self._outbox.report(
            Severity.ERROR,
            f"replication from {source.connection.name}: this log lacks {missing}"
            f" and has gone on to {seen}: the two logs differ for good",
        )

    def _problem(self, connection: Connection, message: Message, access: Access | None) -> str:
        settings = self._settings
        if connection.logged_on or connection.commands is not None:
            return "duplicate logon attempt"
        if settings.users is not None and settings.users.get(message.user_id) != message.password:
            return "auth failure"
        if access is not None and access.is_empty:
            return f"{Reason.NOT_ENTITLED}: the user may not replicate"
        if message.version != wire.VERSION:
            return f"replication version {message.version!r}, this is {wire.VERSION}"
        if not message.client_name or message.client_name == settings.name:
            return f"two instances of one name, {settings.name!r}: each needs its own"
        return "" if self._log.is_logging else "invalid topic: no topic is logged here"

    def _refuse(self, connection: Connection, problem: str) -> None:
        self._outbox.send(connection, wire.refusal(problem))
        self._outbox.close(connection, f"replication refused: {problem}")

    def _vector(self) -> dict[int, int]:
        """By publisher id, the highest sequence written here: this batch has no records."""
        return {each.id: each.seen for each in self._log.publishers if each.seen}

    def _heartbeat(self, connection: Connection, message: Message) -> None:
        try:
            heartbeat(self._clock, self._outbox, connection, message)
        except Refused as error:  # malformed heartbeat options in the logon
            self._refuse(connection, str(error))

    def _on_records(self, connection: Connection, message: Message) -> None:
        """Take a frame, and apply the records of its body when that is whole."""
        source = self._sources[connection.name]
        source.begun += message.data
        if len(source.begun) > MAX_BODY_BYTES:
            self._refuse(connection, f"records of more than {MAX_BODY_BYTES} bytes in a piece")
        elif message.options != wire.MORE:
            data = bytes(source.begun)
            source.begun.clear()
            self._apply(connection, source, data, position=message.sequence or 0)

    def _apply(
        self, connection: Connection, source: _Source, data: bytes, *, position: int
    ) -> None:
        """Apply the records of a body."""
        waited_for = {each.instance for each in self._destinations if each.is_sync}
        is_confirmed = waited_for == {connection.name}
        self._log.set_source(connection.name, is_confirmed=is_confirmed)
        self._unit = (0, 0)
        try:
            found = list(read_records(data, 0, len(data)))
            # All topics first: one that is refused after a part of a delete over several topics
            # was taken would have the rest of the delete dropped as a duplicate later.
            for record in found:
                if record.command == RecordCommand.TOPIC:
                    self._define(source, record)
            for record in found:
                if record.command == RecordCommand.MARK:
                    self._mark(record)
                elif record.command == RecordCommand.QUEUE_REMOVE:
                    self._routes.queues.remove_elsewhere(read_removals(record))
                elif record.command != RecordCommand.TOPIC:
                    self._record(source, source.topics[record.topic_id], record)
        except (JournalFormatError, KeyError) as error:  # KeyError: a topic that was never defined
            self._refuse(connection, f"malformed records: {error}")
            return
        except Refused as error:  # a topic is not logged here, or not entitled to be sent
            self._refuse(connection, str(error))
            return
        source.position = position
        self._schedule_ack(source)

    def _define(self, source: _Source, record: Record) -> None:
        """Define a topic of the sender.

        Raises:
            Refused: It is not logged here, or the user may not replicate it.
        """
        route = self._routes[to_text(record.key)].route(to_text(record.payload))
        if not route.logged:
            raise Refused(
                Reason.INVALID_TOPIC, f"{route.topic!r} is not in the log of this instance"
            )
        if source.access is not None:
            source.access.check(route.topic)
        source.topics[record.topic_id] = route

    def _mark(self, record: Record) -> None:
        """A publisher was seen with a sequence of which there is no message."""
        publisher = self._log.publishers.of_id(record.publisher_id)
        self._log.note_seen(publisher, record.sequence)

    def _record(self, source: _Source, route: Route, record: Record) -> None:
        """Apply one record, unless it is a duplicate or has to be dropped."""
        publisher = self._log.publishers.of_id(record.publisher_id)
        unit = (record.publisher_id, record.sequence)
        if record.sequence <= publisher.seen and unit != self._unit:
            if unit != self._dropped and self._holdings.lacks(publisher, record.sequence):
                self._dropped = unit
                source.drop(record)
            return
        self._unit = unit
        flags = (record.flags & RecordFlag.USER_KEY) | self._log.source_flags
        own = record._replace(
            flags=flags,
            timestamp_us=self._log.now_us,
            expiration_s=_expiration_here(route, record, clock_us=self._clock.wall_us),
        )
        self._applier.apply(route, publisher, own)


def _expiration_here(route: Route, record: Record, *, clock_us: int) -> int | None:
    """The expiration of a record from its arrival here on, so that it ends as it does there.

    That of a message of a queue stays: its origin expires it.
    """
    lifetime_s = route.sow.lifetime_s(record.expiration_s) if route.sow is not None else 0
    passed_s = (clock_us - record.timestamp_us) / 1e6
    if not lifetime_s or route.queues or passed_s < 1:
        return record.expiration_s
    return max(1, math.ceil(lifetime_s - passed_s))

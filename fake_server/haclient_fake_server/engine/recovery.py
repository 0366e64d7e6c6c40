"""Recovery of the engine's state from the journal.

The journal's summary has the highest sequence of each publisher, and the topics. The rest is
rebuilt by *consumers* of the log: the SOW tables, the queues, and what destinations have not
confirmed. Each says from which place on it needs the log, which is read once for all of them, from
the first of these places on. A snapshot moves the place of its consumer towards the end.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Protocol, TypeAlias

from haclient_fake_server.engine.apply import apply, has_to_compute_key
from haclient_fake_server.engine.filters import Document
from haclient_fake_server.engine.guards import Guard
from haclient_fake_server.engine.journal import Cursor, JournalReader, Scan, scan
from haclient_fake_server.engine.log_writer import LogWriter
from haclient_fake_server.engine.patterns import to_bytes, to_text
from haclient_fake_server.engine.queues.message_reader import Content, content_of
from haclient_fake_server.engine.queues.message_table import MessageRow, Place, to_place
from haclient_fake_server.engine.queues.points import QueuePoint
from haclient_fake_server.engine.queues.queue import Queue
from haclient_fake_server.engine.queues.registry import QueueRegistry
from haclient_fake_server.engine.queues.snapshot import QueueSnapshot, definition_of
from haclient_fake_server.engine.replication.destination import Destination
from haclient_fake_server.engine.replication.durability import (
    Durability,
    ReplicationProgress,
    UnconfirmedRange,
)
from haclient_fake_server.engine.routes import Routes
from haclient_fake_server.engine.sow.saved import SavedRecords
from haclient_fake_server.engine.sow.table import SowError, SowTable, recorded_keys
from haclient_fake_server.engine.span import span_of
from haclient_fake_server.engine.timers import Clock, timestamp_us
from haclient_fake_server.journal.format import (
    RECORD_HEADER_BYTES,
    JournalFormatError,
    Record,
    RecordCommand,
    RecordFlag,
    Removals,
    blocks_of,
    headers,
    read_record,
    read_removals,
)

_CHUNK_BYTES: Final = 2**20

_PUBLISH: Final = int(RecordCommand.PUBLISH)
_DELETE: Final = int(RecordCommand.SOW_DELETE)
_REPLICATED: Final = int(RecordFlag.REPLICATED)
_QUEUE_REMOVE: Final = int(RecordCommand.QUEUE_REMOVE)

_Header: TypeAlias = tuple[int, tuple[int, ...]]
"""The offset of a record in its chunk, and the fields of its header."""


class SavedState(NamedTuple):
    """What an earlier engine on the same journal has left beside it.

    Attributes:
        progress: The last progress in its `Effects`, `None` if there was none, because nothing was
            replicated.
        guards: The last guards in its `Effects`.
        queue_points: The last ones in its `Effects`, or its `queue_points` when it had no more to
            do.
        queue_snapshots: Snapshots of its queues, at places that the journal has.
        records: The records of its file-backed topics, at a place that the journal has.
    """

    progress: ReplicationProgress | None = None
    guards: Iterable[Guard] = ()
    queue_points: Iterable[QueuePoint] = ()
    queue_snapshots: Iterable[QueueSnapshot] = ()
    records: SavedRecords | None = None


NOTHING_SAVED: Final = SavedState()


def recover(
    log: LogWriter,
    routes: Routes,
    clock: Clock,
    durability: Durability,
    destinations: Sequence[Destination],
    saved: SavedState,
) -> None:
    """Restore the engine's state at the end of the journal.

    Args:
        log: A new log writer; as the others, it becomes what it was.
        routes: The topics.
        clock: The time.
        durability: What is confirmed.
        destinations: Where the log is replicated to.
        saved: What an earlier engine has left.
    """
    progress = saved.progress
    confirmed = progress.confirmed if progress is not None else None
    summary = log.journal.summary()
    for start, end in blocks_of(summary):
        _take(log, routes, scan(summary, start, end))
    consumers: list[_Consumer] = []
    if routes.sow.is_configured:
        consumers.append(_SowTables(log, routes, clock, saved.records))
    if len(routes.queues):
        consumers.append(_Queues(log, routes, clock, saved))
    end = log.journal.next_position
    last = log.journal.last_before(end)
    log.last = _message(last)
    log.restore_messages_end(log.journal.first_position if last is None else last.position + 1)
    if destinations:
        limit = end - 1 if confirmed is None else min(confirmed, end - 1)
        consumers.append(_Unconfirmed(log.journal, clock, durability, limit))
    _read_log(log.journal, consumers)
    for each in destinations:
        each.restore(progress, end=end)


def _take(log: LogWriter, routes: Routes, found: Scan) -> None:
    """Restore identities, topics and the time."""
    log.now_us = max(log.now_us, found.last_us)
    publishers = log.publishers
    for number, (_, high) in found.publishers.items():
        publishers.restore(number, high, assigned=number in found.assigned)
    for record in found.special:
        if record.command == RecordCommand.TOPIC:
            _define(log, routes, record)
        elif record.command == RecordCommand.MARK:
            assigned = bool(record.flags & RecordFlag.ASSIGNED)
            publishers.restore(record.publisher_id, record.sequence, assigned=assigned)


class _Consumer(Protocol):
    """Rebuilds a part of the state.

    Attributes:
        start: The place from which on it needs the log; it is given a few earlier records, too.
    """

    start: Cursor

    def take(self, chunk: bytes, place: Cursor, records: Sequence[_Header]) -> None:
        """Take in a chunk of whole blocks at a place: offsets and headers of its records."""

    def finish(self) -> None:
        """The whole log was read."""


def _read_log(journal: JournalReader, consumers: Sequence[_Consumer]) -> None:
    """Read the log once for all consumers."""
    cursor = min((each.start for each in consumers), default=None)
    while cursor is not None:
        chunk, after = journal.read(cursor, _CHUNK_BYTES)
        if not chunk:
            break
        place = Cursor(after.segment, after.offset - len(chunk))
        try:
            records = list(headers(chunk))
            for each in consumers:
                if each.start < after:
                    each.take(chunk, place, records)
        except JournalFormatError as error:  # checksums are right: something else has written it
            what = f"a record in the blocks from here on is malformed: {error.what}"
            raise journal.damage(*place, what) from error
        cursor = after
    for each in consumers:
        each.finish()


class _SowTables:
    """Rebuilds the SOW tables: of each key, the last record is applied, and no other."""

    def __init__(
        self, log: LogWriter, routes: Routes, clock: Clock, saved: SavedRecords | None
    ) -> None:
        self._clock_us = clock.wall_us
        if saved is not None:
            _restore_records(routes, saved, self._clock_us)
        self._routes = {n: each for n, each in routes.by_id.items() if each.sow is not None}
        # Of topics whose records were saved, what comes before this position is in them.
        self._saved = {
            number
            for number, each in self._routes.items()
            if each.sow is not None
            and each.sow.file_backed
            and saved is not None
            and saved.has(each.message_type, each.topic)
        }
        self._saved_before = 0 if saved is None else saved.next_position
        is_all = saved is not None and len(self._saved) == len(self._routes)
        self.start = (
            saved.end
            if saved is not None and is_all
            else log.journal.seek(log.journal.first_position)
        )
        # By topic and key the record as it is in the log; in the order of the first insertion.
        self._latest: dict[int, dict[bytes, bytes]] = {number: {} for number in self._routes}

    def take(self, chunk: bytes, place: Cursor, records: Sequence[_Header]) -> None:
        del place
        latest = self._latest
        for at, (size, flags, command, _, position, _, _, _, topic, key_bytes, _) in records:
            table = latest.get(topic)
            if table is None or not position:
                continue
            if position < self._saved_before and topic in self._saved:
                continue
            record = chunk[at : at + size]
            key = record[RECORD_HEADER_BYTES : RECORD_HEADER_BYTES + key_bytes]
            if command == _DELETE:
                self._delete(table, self._routes[topic].sow, record)
                continue
            sow = self._routes[topic].sow
            if sow is not None and has_to_compute_key(sow, key, flags):
                found = _computed_key(sow, record)
                if found is None:
                    continue
                key = found
            table[key] = record

    def finish(self) -> None:
        for number, table in self._latest.items():
            for record in table.values():
                apply(self._routes[number], _decode(record), clock_us=self._clock_us)
            table.clear()
        for route in self._routes.values():
            if route.sow is not None:
                route.sow.take_expired(self._clock_us, sys.maxsize)

    def _delete(self, table: dict[bytes, bytes], sow: SowTable | None, record: bytes) -> None:
        keys = recorded_keys(to_text(_decode(record).payload))
        for key in keys:
            table.pop(to_bytes(key), None)
        if sow is not None:
            sow.delete_keys(keys)  # what was saved


def _restore_records(routes: Routes, saved: SavedRecords, clock_us: int) -> None:
    for message_type, topic, record in saved.records:
        sow = routes[message_type].route(topic).sow
        if sow is None:
            continue
        restored = record
        if sow.expiration_s is not None:  # by the lifetime that the topic has now
            begin_us = min(timestamp_us(record.timestamp), clock_us)
            restored = replace(record, expires_us=sow.expires_us(begin_us, record.lifetime_s))
        sow.restore(restored)
    for sow in routes.sow:
        sow.changed.clear()  # it is written already


def _decode(record: bytes) -> Record:
    return read_record(record, 0, len(record))[0]


def _computed_key(sow: SowTable, record: bytes) -> bytes | None:
    """The key that a message has here; `None` for one that fits no key."""
    found = _decode(record)
    try:
        document = Document(found.payload, sow.message_type)
        return to_bytes(sow.key_of(document, to_text(found.key)))
    except SowError:
        return None


class _Queues:
    """Rebuilds the queues, each from its recovery point or from the end of its snapshot on."""

    def __init__(self, log: LogWriter, routes: Routes, clock: Clock, saved: SavedState) -> None:
        self._routes = routes
        self._clock_us = clock.wall_us
        self._starts = starts = _queue_starts(log, routes.queues, saved.queue_points)
        ends = _fill_queues(routes.queues, starts, saved.queue_snapshots)
        journal = log.journal
        self._first = max(min(starts.values()), journal.first_position)
        # Removals may follow the end of a snapshot, even where no message does.
        others = [start for queue, start in starts.items() if queue not in ends]
        self.start = min([*ends.values(), *(journal.seek(start) for start in others)])

    def take(self, chunk: bytes, place: Cursor, records: Sequence[_Header]) -> None:
        begin, topics, first = to_place(place), self._routes.by_id, self._first
        for at, fields in records:
            if fields[2] == _PUBLISH:
                if fields[4] >= first and topics[fields[8]].queues:
                    self._enter(chunk, at, fields, begin + at)
            elif fields[2] == _QUEUE_REMOVE:
                self._remove(read_removals(read_record(chunk, at, at + fields[0])[0]))
        self._routes.queues.page_out()

    def finish(self) -> None:
        """Nothing is left to be done."""

    def _enter(self, chunk: bytes, at: int, fields: tuple[int, ...], place: Place) -> None:
        """Put a message into its queues."""
        position, clock_us = fields[4], self._clock_us
        row = MessageRow(position, fields[5], fields[6], place)
        lifetime_s = read_record(chunk, at, len(chunk))[0].expiration_s if fields[3] else None
        for queue in self._routes.by_id[fields[8]].queues:
            if position >= self._starts[queue]:
                has_body = queue.examines_bodies
                content = content_of(chunk, at) if has_body else Content(b"", b"", fields[7])
                queue.enter(
                    row,
                    content,
                    expiration_s=lifetime_s,
                    clock_us=clock_us,
                    is_replicated=bool(fields[1] & _REPLICATED),
                )

    def _remove(self, removals: Removals) -> None:
        queue = self._routes.queues.get(to_text(removals.queue), to_text(removals.message_type))
        if queue is not None:
            for publisher_id, sequence, _ in removals.entries:
                queue.restore_removal(publisher_id, sequence)


def _queue_starts(
    log: LogWriter, queues: QueueRegistry, points: Iterable[QueuePoint]
) -> dict[Queue, int]:
    """For each queue the position from which on it is rebuilt."""
    known = {(point.message_type, point.name): point for point in points}
    starts: dict[Queue, int] = {}
    for queue in queues:
        settings = queue.settings
        point = known.get((settings.message_type, settings.name))
        if point is not None and (point.recovery_point, point.topics) == (
            settings.recovery_point,
            settings.underlying,
        ):
            starts[queue] = point.position
        else:
            starts[queue] = _configured_start(log, settings.recovery_point)
    return starts


def _configured_start(log: LogWriter, recovery_point: str) -> int:
    """Where a new queue begins."""
    match recovery_point:
        case "epoch":
            return log.journal.first_position
        case "now":
            return log.journal.next_position
        case bookmark:
            return span_of(log, bookmark, not_found="epoch").start


def _fill_queues(
    queues: QueueRegistry, starts: dict[Queue, int], snapshots: Iterable[QueueSnapshot]
) -> dict[Queue, Cursor]:
    """Fill queues from their snapshots where that leaves less of the log to read.

    Args:
        queues: The queues.
        starts: For each queue the position from which on it is rebuilt, which changes with it.
        snapshots: Snapshots of queues.

    Returns:
        For each of these queues the place from which on the log has to be read.
    """
    ends: dict[Queue, Cursor] = {}
    for snapshot in snapshots:
        queue = queues.get(snapshot.name, snapshot.message_type)
        if (
            queue is not None
            and definition_of(queue.settings) == snapshot.definition
            and starts[queue] < snapshot.next_position
        ):
            queue.fill(snapshot.columns)
            starts[queue] = snapshot.next_position
            ends[queue] = snapshot.end
    return ends


def _define(log: LogWriter, routes: Routes, record: Record) -> None:
    if record.topic_id not in routes.by_id:
        route = routes[to_text(record.key)].route(to_text(record.payload))
        route.topic_id = record.topic_id
        routes.by_id[record.topic_id] = route
        log.topic_known(record.topic_id)


def _message(record: Record | None) -> tuple[int, int] | None:
    """Publisher and sequence of a record."""
    return (record.publisher_id, record.sequence) if record is not None else None


class _Unconfirmed:
    """Puts the records after the confirmed position back into the unconfirmed ranges."""

    def __init__(
        self, journal: JournalReader, clock: Clock, durability: Durability, confirmed: int
    ) -> None:
        self._now = clock.now
        self._durability = durability
        self._confirmed = confirmed = max(confirmed, journal.first_position - 1)
        self._passed = self._last = _message(journal.last_before(confirmed + 1))
        self._highest = journal.highest_before(confirmed + 1)
        self._ranges: list[UnconfirmedRange] = []
        self.start = journal.seek(confirmed + 1)

    def take(self, chunk: bytes, place: Cursor, records: Sequence[_Header]) -> None:
        del place, records  # a range is of one block
        confirmed, ranges, highest = self._confirmed, self._ranges, self._highest
        for start, end in blocks_of(chunk):
            found = scan(chunk, start, end)
            if found.last_position <= confirmed:
                continue
            first = ranges[-1].after if ranges else confirmed + 1
            waiting = () if found.confirmed else found.publishers
            before = {number: highest.get(number, 0) for number in waiting}
            highest.update({number: high for number, (_, high) in found.publishers.items()})
            self._last = found.last or self._last
            after = found.last_position + 1
            ranges.append(UnconfirmedRange(first, after, before, self._last, self._now))

    def finish(self) -> None:
        limit = self._confirmed + 1
        self._durability.restore(self._ranges, limit=limit, passed=self._passed)

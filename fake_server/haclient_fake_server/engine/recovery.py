"""Recovery of the engine's state from the journal: identities, topics, positions, SOW tables.

The journal's summary has the highest sequence of each publisher, and the topics. The whole journal
is read only if there are SOW topics.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from haclient_fake_server.engine.apply import apply
from haclient_fake_server.engine.guards import Guard
from haclient_fake_server.engine.journal import Cursor, Scan, records_of, scan
from haclient_fake_server.engine.patterns import to_text
from haclient_fake_server.engine.queues.message_reader import content_of
from haclient_fake_server.engine.queues.message_table import Place, Row, to_place
from haclient_fake_server.engine.queues.points import QueuePoint
from haclient_fake_server.engine.queues.queue import Queue
from haclient_fake_server.engine.queues.snapshot import QueueSnapshot, definition_of
from haclient_fake_server.engine.replication.durability import (
    ReplicationProgress,
    UnconfirmedRange,
)
from haclient_fake_server.engine.span import span_of
from haclient_fake_server.engine.state import Severity, State
from haclient_fake_server.journal.format import (
    RECORD_HEADER,
    Record,
    RecordCommand,
    RecordFlag,
    Removals,
    blocks_of,
    headers,
    read_record,
    read_removals,
)

_CHUNK_BYTES: Final = 4 * 2**20

MAX_AHEAD_S: Final = 60.0
"""A log that ends further ahead of the clock is reported."""


class SavedState(NamedTuple):
    """What an earlier engine on the same journal has left beside it.

    Attributes:
        progress: The last progress in its `Effects`, `None` if there was none, because nothing was
            replicated.
        guards: The last guards in its `Effects`.
        queue_points: The last ones in its `Effects`, or its `queue_points` when it had no more to
            do.
        queue_snapshots: Snapshots of its queues, at places that the journal has.
    """

    progress: ReplicationProgress | None = None
    guards: Iterable[Guard] = ()
    queue_points: Iterable[QueuePoint] = ()
    queue_snapshots: Iterable[QueueSnapshot] = ()


NOTHING_SAVED: Final = SavedState()


def recover(state: State, saved: SavedState) -> None:
    """Restore the engine's state at the end of the journal.

    Args:
        state: The state of a newly created engine, with the saved guards.
        saved: What an earlier engine has left.
    """
    progress = saved.progress
    confirmed = progress.confirmed if progress is not None else None
    summary = state.journal.summary()
    for start, end in blocks_of(summary):
        _take(state, scan(summary, start, end))
    ahead_s = (state.batch.now_us - state.clock_us) / 1e6
    if ahead_s > MAX_AHEAD_S:
        state.report(
            Severity.WARNING,
            f"the log ends {ahead_s:.0f} s ahead of this machine's clock: what is published has the"
            " time of its end until the clock has reached it",
        )
    if state.settings.sow_topics:
        _rebuild(state)
    if len(state.queues):
        starts = _queue_starts(state, saved.queue_points)
        _rebuild_queues(state, starts, _fill_queues(state, starts, saved.queue_snapshots))
    end = state.journal.next_position
    last = state.journal.last_before(end)
    state.last = _message(last)
    state.batch.restore_messages_end(
        state.journal.first_position if last is None else last.position + 1
    )
    if state.destinations:
        _restore_durability(state, end - 1 if confirmed is None else min(confirmed, end - 1))
    if progress is not None:
        for each in state.destinations:
            each.restore(progress, end=end)
    state.update_progress()


def _take(state: State, found: Scan) -> None:
    """Restore identities, topics and the time."""
    state.batch.now_us = max(state.batch.now_us, found.last_us)
    publishers = state.publishers
    for number, (_, high) in found.publishers.items():
        publishers.restore(number, high, assigned=number in found.assigned)
    for record in found.special:
        if record.command == RecordCommand.TOPIC:
            _define(state, record)
        elif record.command == RecordCommand.MARK:
            assigned = bool(record.flags & RecordFlag.ASSIGNED)
            publishers.restore(record.publisher_id, record.sequence, assigned=assigned)


def _rebuild(state: State) -> None:
    """Rebuild the SOW tables by applying every record of the journal."""
    cursor = state.journal.seek(state.journal.first_position)
    chunk = b"at least once"
    while chunk:
        chunk, cursor = state.journal.read(cursor, _CHUNK_BYTES)
        for record in records_of(chunk):
            route = state.topics.get(record.topic_id) if record.position else None
            if route is not None and route.sow is not None:
                apply(route, record)


def _queue_starts(state: State, points: Iterable[QueuePoint]) -> dict[Queue, int]:
    """For each queue the position from which on it is rebuilt."""
    known = {(point.message_type, point.name): point for point in points}
    starts: dict[Queue, int] = {}
    for queue in state.queues:
        settings = queue.settings
        point = known.get((settings.message_type, settings.name))
        if point is not None and (point.recovery_point, point.topics) == (
            settings.recovery_point,
            settings.underlying,
        ):
            starts[queue] = point.position
        else:
            starts[queue] = _configured_start(state, settings.recovery_point)
    return starts


def _configured_start(state: State, recovery_point: str) -> int:
    """Where a new queue begins."""
    match recovery_point:
        case "epoch":
            return state.journal.first_position
        case "now":
            return state.journal.next_position
        case bookmark:
            return span_of(state, bookmark, not_found="epoch").start


def _fill_queues(
    state: State, starts: dict[Queue, int], snapshots: Iterable[QueueSnapshot]
) -> dict[Queue, Cursor]:
    """Fill queues from their snapshots where that leaves less of the log to read.

    Args:
        state: The state of the engine.
        starts: For each queue the position from which on it is rebuilt, which changes with it.
        snapshots: Snapshots of queues.

    Returns:
        For each of these queues the place from which on the log has to be read.
    """
    ends: dict[Queue, Cursor] = {}
    for snapshot in snapshots:
        queue = state.queues.get(snapshot.name, snapshot.message_type)
        if (
            queue is not None
            and definition_of(queue.settings) == snapshot.definition
            and starts[queue] < snapshot.next_position
        ):
            queue.fill(snapshot.columns)
            starts[queue] = snapshot.next_position
            ends[queue] = snapshot.end
    return ends


def _rebuild_queues(state: State, starts: dict[Queue, int], ends: dict[Queue, Cursor]) -> None:
    """Rebuild the queues in one pass over the log.

    Args:
        state: The state of the engine.
        starts: For each queue the position of the first message that it may lack.
        ends: For those that were filled from snapshots, the places where these end: removals may
            follow there, even where no message does.
    """
    journal = state.journal
    first = max(min(starts.values()), journal.first_position)
    others = [start for queue, start in starts.items() if queue not in ends]
    begins = [*ends.values()]
    begins += [journal.seek(start) for start in others if start < journal.next_position]
    if not begins:
        return
    cursor = min(begins)
    publish = int(RecordCommand.PUBLISH)
    while True:
        chunk, after = journal.read(cursor, _CHUNK_BYTES)
        if not chunk:
            return
        place = to_place(Cursor(after.segment, after.offset - len(chunk)))
        for offset, (size, _, command, _, position, *_, topic_id, _, _) in headers(chunk):
            if command == publish and position >= first and state.topics[topic_id].queues:
                _restore_message(state, chunk, offset, place, starts)
            elif command == RecordCommand.QUEUE_REMOVE:
                record, _ = read_record(chunk, offset, offset + size)
                _restore_removals(state, read_removals(record))
        cursor = after


def _restore_message(
    state: State, chunk: bytes, offset: int, start: Place, starts: dict[Queue, int]
) -> None:
    """Put the message at an offset of a chunk, which begins at a place, into its queues."""
    _, _, _, expiration, position, publisher_id, sequence, _, topic_id, _, _ = (
        RECORD_HEADER.unpack_from(chunk, offset)
    )
    row, content = Row(position, publisher_id, sequence, start + offset), content_of(chunk, offset)
    lifetime_s = None
    if expiration:
        lifetime_s = read_record(chunk, offset, len(chunk))[0].expiration_s
    for queue in state.topics[topic_id].queues:
        if position >= starts[queue]:
            queue.enter(row, content, expiration_s=lifetime_s, clock_us=state.clock_us)


def _restore_removals(state: State, removals: Removals) -> None:
    queue = state.queues.get(to_text(removals.queue), to_text(removals.message_type))
    if queue is not None:
        for publisher_id, sequence, _ in removals.entries:
            queue.restore_removal(publisher_id, sequence)


def _define(state: State, record: Record) -> None:
    if record.topic_id not in state.topics:
        route = state.tables[to_text(record.key)].route(to_text(record.payload))
        route.topic_id = record.topic_id
        state.topics[record.topic_id] = route
        state.batch.topic_known(record.topic_id)


def _message(record: Record | None) -> tuple[int, int] | None:
    """Publisher and sequence of a record."""
    return (record.publisher_id, record.sequence) if record is not None else None


def _restore_durability(state: State, confirmed: int) -> None:
    """Put the records after the confirmed position back into the unconfirmed ranges."""
    journal = state.journal
    confirmed = max(confirmed, journal.first_position - 1)
    passed = last = _message(journal.last_before(confirmed + 1))
    highest = journal.highest_before(confirmed + 1)
    ranges: list[UnconfirmedRange] = []
    cursor = journal.seek(confirmed + 1)
    chunk = b"at least once"
    while chunk:
        chunk, cursor = journal.read(cursor, _CHUNK_BYTES)
        for start, end in blocks_of(chunk):
            found = scan(chunk, start, end)
            if found.last_position > confirmed:
                first = ranges[-1].after if ranges else confirmed + 1
                waiting = () if found.confirmed else found.publishers
                before = {number: highest.get(number, 0) for number in waiting}
                highest.update({number: high for number, (_, high) in found.publishers.items()})
                last = found.last or last
                ranges.append(
                    UnconfirmedRange(first, found.last_position + 1, before, last, state.now)
                )
    state.durability.restore(ranges, limit=confirmed + 1, passed=passed)

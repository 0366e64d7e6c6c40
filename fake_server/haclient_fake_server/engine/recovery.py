"""Starting again from the journal: identities, topics, positions, states of the world (TL15).

The last segment repeats all definitions and marks, so it alone tells who has published how far.
Only where topics have a state of the world is the whole journal read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from haclient_fake_server.engine.filters import Document
from haclient_fake_server.engine.journal import Cursor, records_of
from haclient_fake_server.engine.sow import SowError, SowRecord, SowTopic, parse_sow_keys
from haclient_fake_server.engine.times import timestamp_text
from haclient_fake_server.journal_format import Record, RecordCommand, RecordFlag

if TYPE_CHECKING:
    from haclient_fake_server.engine.state import State

__all__ = ["recover"]

_CHUNK_BYTES: Final = 4 * 2**20


def recover(state: State) -> None:
    """Bring the engine to where the journal ends."""
    journal = state.journal
    whole = bool(state.settings.sow_topics)
    cursor: Cursor | None = journal.seek(journal.first_position) if whole else journal.summary()
    while cursor is not None:
        chunk, after = journal.read(cursor, _CHUNK_BYTES)
        for record in records_of(chunk):
            _take(state, record)
        cursor = after if chunk else None
    _restore_last(state)


def _take(state: State, record: Record) -> None:
    if record.command == RecordCommand.TOPIC:
        _define(state, record)
        return
    state.batch.now_us = max(state.batch.now_us, record.timestamp_us)
    state.publishers.restore(
        record.publisher_id,
        record.sequence,
        assigned=bool(record.flags & RecordFlag.ASSIGNED),
    )
    route = state.topics.get(record.topic_id)
    if record.position and route is not None and route.sow is not None:
        _apply(route.sow, record)


def _apply(sow: SowTopic, record: Record) -> None:
    """Bring a state of the world one record further."""
    if record.command == RecordCommand.SOW_DELETE:
        sow.delete_keys(parse_sow_keys(_text(record.payload)))
        return
    try:
        key = _text(record.key) or sow.key_of(Document(record.payload))
    except SowError:  # published before the topic had a state, and not fit for one
        return
    taken = timestamp_text(record.timestamp_us).decode("ascii")
    sow.restore(
        SowRecord(key, record.payload, taken, _text(record.correlation_id), record.bookmark)
    )


def _define(state: State, record: Record) -> None:
    if record.topic_id not in state.topics:
        route = state.table(_text(record.key)).route(_text(record.payload))
        route.topic_id = record.topic_id
        state.topics[record.topic_id] = route
        state.batch.topic_known(record.topic_id)


def _restore_last(state: State) -> None:
    journal = state.journal
    position = journal.next_position - 1
    if position < journal.first_position:
        return
    cursor = journal.seek(position)
    while state.last is None:
        chunk, cursor = journal.read(cursor, _CHUNK_BYTES)
        for record in records_of(chunk):
            if record.position == position:
                state.last = (record.publisher_id, record.sequence)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")

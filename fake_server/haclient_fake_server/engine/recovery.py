"""Starting again from the journal: identities, topics, positions, states of the world (TL15).

The journal's summary tells who has published how far, and which topics there are. Only where topics
have a state of the world is the whole journal read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from haclient_fake_server.engine.filters import Document
from haclient_fake_server.engine.journal import blocks_of, records_of
from haclient_fake_server.engine.scanning import Scan, scan
from haclient_fake_server.engine.sow import SowError, SowRecord, SowTopic, parse_sow_keys
from haclient_fake_server.engine.times import timestamp_text
from haclient_fake_server.journal_format import (
    Record,
    RecordCommand,
    RecordFlag,
)

if TYPE_CHECKING:
    from haclient_fake_server.engine.state import State

__all__ = ["recover"]

_CHUNK_BYTES: Final = 4 * 2**20


def recover(state: State) -> None:
    """Bring the engine to where the journal ends."""
    summary = state.journal.summary()
    for start, end in blocks_of(summary):
        _take(state, scan(summary, start, end))
    if state.settings.sow_topics:
        _rebuild(state)
    _restore_last(state)


def _take(state: State, found: Scan) -> None:
    """Identities, topics and time."""
    state.batch.now_us = max(state.batch.now_us, found.last_us)
    publishers = state.publishers
    for number, (_, high) in found.publishers.items():
        publishers.restore(number, high, assigned=number in found.assigned)
    for record in found.special:
        if record.command == RecordCommand.TOPIC:
            _define(state, record)
        else:
            assigned = bool(record.flags & RecordFlag.ASSIGNED)
            publishers.restore(record.publisher_id, record.sequence, assigned=assigned)


def _rebuild(state: State) -> None:
    """States of the world."""
    cursor = state.journal.seek(state.journal.first_position)
    chunk = b"at least once"
    while chunk:
        chunk, cursor = state.journal.read(cursor, _CHUNK_BYTES)
        for record in records_of(chunk):
            route = state.topics.get(record.topic_id) if record.position else None
            if route is not None and route.sow is not None:
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

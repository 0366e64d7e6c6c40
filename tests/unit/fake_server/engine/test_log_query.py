"""Counting messages and finding a publisher's last one, against a plain list of the records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient_fake_server.engine import journal as journal_module
from haclient_fake_server.engine import log_query
from haclient_fake_server.engine.journal import Block, MemoryJournal
from haclient_fake_server.engine.log_query import (
    Limits,
    Selected,
    Steps,
    Tally,
    count_messages,
    count_of_publisher,
    find_last_message,
)
from haclient_fake_server.engine.patterns import TopicMatcher
from haclient_fake_server.engine.routes import Route
from haclient_fake_server.journal.format import (
    Record,
    RecordCommand,
    encode_record,
    encode_removals,
)

T = TypeVar("T")
TOPICS = {
    1: Route("orders", "json", logged=True, sow=None),
    2: Route("trades", "json", logged=True, sow=None),
    3: Route("orders", "binary", logged=True, sow=None),
}
PUBLISHERS = (7, 8, 9)
REMOVAL = encode_removals(b"work", b"json", [(1, 1, 1), (2, 1, 1)], now_us=0)
DEFINITION = Record(0, 0, 0, 0, 9, RecordCommand.TOPIC, key=b"json", payload=b"later")


def result_of(steps: Steps[T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            value: T = finished.value
            return value


@st.composite
def logs(draw: st.DrawFn) -> list[list[Record]]:
    """Blocks of records: positions rise by one, sequences per publisher rise with gaps."""
    sequences = dict.fromkeys(PUBLISHERS, 0)
    blocks: list[list[Record]] = []
    position = draw(st.integers(1, 5))
    for count in draw(st.lists(st.integers(1, 4), max_size=12)):
        records: list[Record] = []
        for _ in range(count):
            publisher = draw(st.sampled_from(PUBLISHERS))
            sequences[publisher] += draw(st.integers(1, 3))
            command = draw(
                st.sampled_from([RecordCommand.PUBLISH] * 4 + [RecordCommand.SOW_DELETE, 3])
            )
            topic = draw(st.sampled_from(list(TOPICS))) if command != RecordCommand.MARK else 0
            payload = b"x" * draw(st.integers(0, 20))
            records.append(
                Record(
                    position,
                    publisher,
                    sequences[publisher],
                    1000 * position,
                    topic,
                    command,
                    key=b"k" * draw(st.integers(0, 3)),
                    correlation_id=b"c" * draw(st.integers(0, 3)),
                    payload=payload,
                )
            )
            position += 1
        blocks.append(records)
    return blocks


def journal_of(blocks: list[list[Record]]) -> MemoryJournal:
    """A journal whose sparse index has an entry for every second block or so."""
    journal = MemoryJournal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal_module, "INDEX_STRIDE_BYTES", 400)
        if blocks:
            manifest = journal.live.manifest
            manifest.first_position = manifest.next_position = blocks[0][0].position
        for records in blocks:
            sequences: dict[int, tuple[int, int]] = {}
            for record in records:
                low, _ = sequences.get(record.publisher_id, (record.sequence, 0))
                sequences[record.publisher_id] = (low, record.sequence)
            journal.append(
                Block(
                    # Two without a position, as the record of a start has none.
                    b"".join(map(encode_record, [*records, DEFINITION])) + REMOVAL,
                    len(records) + 2,
                    records[0].position,
                    records[-1].position + 1,
                    records[0].timestamp_us,
                    records[-1].timestamp_us,
                    sequences,
                )
            )
    return journal


def expected(
    records: list[Record], vector: Mapping[int, int] | None, *, start: int, limits: Limits
) -> Tally:
    """The same, record by record, from the definition."""
    tally = Tally(start - 1)
    for record in records:
        if record.position < start:
            continue
        if record.position >= limits.end:
            break
        counts = (
            record.command == RecordCommand.PUBLISH
            and record.topic_id == 1
            and record.sequence > (vector or {}).get(record.publisher_id, 0)
        )
        size = tally.payload_bytes + len(record.payload)
        most_bytes = limits.payload_bytes
        if counts and tally.messages and most_bytes is not None and size > most_bytes:
            tally.position, tally.ended_by = record.position - 1, "bytes"
            break
        if counts:
            tally.messages, tally.payload_bytes = tally.messages + 1, size
            tally.publishers[record.publisher_id] = record.sequence
            tally.timestamp_us = record.timestamp_us
            tally.begins = tally.begins or record.position
            tally.last = (record.publisher_id, record.sequence)
            tally.first = tally.first or tally.last
            if tally.messages == limits.messages:
                tally.position, tally.ended_by = record.position, "messages"
                break
    if not tally.ended_by:
        tally.position, tally.ended_by = max(start, limits.end) - 1, "end"
    tally.begins = tally.begins or tally.position + 1
    return tally


@given(logs())
def test_a_log_that_is_counted_in_parts_is_counted_once(blocks: list[list[Record]]) -> None:
    journal = journal_of(blocks)
    selected = Selected(TopicMatcher("orders"), "json")
    limits = Limits(journal.next_position)
    whole = result_of(
        count_messages(journal, TOPICS, selected, start=journal.first_position, limits=limits)
    )
    counted, start, ended_by = 0, journal.first_position, ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_query, "MAX_SCANNED_BYTES", 1)
        for _ in range(len(blocks) + 1):
            part = result_of(count_messages(journal, TOPICS, selected, start=start, limits=limits))
            counted, start, ended_by = counted + part.messages, part.position + 1, part.ended_by
            if ended_by == "end":
                break
    assert (ended_by, counted) == ("end", whole.messages)


VECTORS = st.none() | st.dictionaries(st.sampled_from(PUBLISHERS), st.integers(0, 40))
MOST = st.none() | st.integers(1, 60)


@given(logs(), VECTORS, MOST, MOST, st.data())
def test_counting_agrees_with_the_definition(
    blocks: list[list[Record]],
    vector: dict[int, int] | None,
    messages: int | None,
    payload_bytes: int | None,
    data: st.DataObject,
) -> None:
    journal = journal_of(blocks)
    start = data.draw(st.integers(journal.first_position, journal.next_position + 2))
    end = data.draw(st.integers(journal.first_position, journal.next_position))
    limits = Limits(end, messages, payload_bytes)
    selected = Selected(TopicMatcher("orders"), "json", None, vector)
    found = result_of(count_messages(journal, TOPICS, selected, start=start, limits=limits))
    records = [record for block in blocks for record in block]
    assert found == expected(records, vector, start=start, limits=limits)


@given(logs(), st.data())
def test_a_vector_selects_the_same_messages_in_a_log_of_another_order(
    blocks: list[list[Record]], data: st.DataObject
) -> None:
    """The union of what two vectors bound is what a replica has, whatever it interleaves."""
    records = [record for block in blocks for record in block]
    queues = {each: [r for r in records if r.publisher_id == each] for each in PUBLISHERS}
    replica: list[Record] = []
    while any(queues.values()):
        publisher = data.draw(st.sampled_from([each for each, queue in queues.items() if queue]))
        record = queues[publisher].pop(0)
        replica.append(record._replace(position=len(replica) + 1))
    journal = journal_of(blocks)
    cut = data.draw(st.integers(journal.first_position, journal.next_position))
    selected = Selected(TopicMatcher("orders"), "json")
    start = journal.first_position
    read = result_of(count_messages(journal, TOPICS, selected, start=start, limits=Limits(cut)))
    rest = Selected(TopicMatcher("orders"), "json", None, read.publishers)
    there = journal_of([replica[at : at + 3] for at in range(0, len(replica), 3)])
    limits = Limits(there.next_position)
    found = result_of(count_messages(there, TOPICS, rest, start=1, limits=limits))
    all_here = Limits(journal.next_position)
    total = result_of(count_messages(journal, TOPICS, selected, start=start, limits=all_here))
    assert read.messages + found.messages == total.messages
    assert {**read.publishers, **found.publishers} == total.publishers


@given(logs(), st.sampled_from(PUBLISHERS), st.data())
def test_the_last_message_of_a_publisher_is_found(
    blocks: list[list[Record]], publisher: int, data: st.DataObject
) -> None:
    journal = journal_of(blocks)
    end = data.draw(st.integers(journal.first_position, journal.next_position))
    found = result_of(find_last_message(journal, publisher, end=end))
    all_of_it = [
        record
        for block in blocks
        for record in block
        if record.publisher_id == publisher and record.is_data and record.position < end
    ]
    assert found == (all_of_it[-1] if all_of_it else None)
    first = data.draw(st.integers(1, 40))
    identified = result_of(find_last_message(journal, publisher, end=end, identified_from=first))
    some = [each for each in all_of_it if each.correlation_id and each.sequence >= first]
    assert identified == (some[-1] if some else None)


@given(logs(), st.sampled_from(PUBLISHERS), st.data(), st.sampled_from([1, 500, 2**20]))
def test_a_range_of_a_publisher_is_counted_in_as_many_queries_as_it_takes(
    blocks: list[list[Record]], publisher: int, data: st.DataObject, scanned_bytes: int
) -> None:
    journal = journal_of(blocks)
    first = data.draw(st.integers(1, 40))
    last = data.draw(st.integers(first, 60))
    end = data.draw(st.integers(journal.first_position, journal.next_position))
    count, at = 0, first
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_query, "MAX_SCANNED_BYTES", scanned_bytes)
        patch.setattr(log_query, "STEP_ENTRIES", 1)
        while at <= last:
            tally = result_of(count_of_publisher(journal, publisher, first=at, last=last, end=end))
            assert at <= tally.counted_to <= last
            count, at = count + tally.messages, tally.counted_to + 1
    assert count == sum(
        record.publisher_id == publisher
        and record.is_data
        and record.position < end
        and first <= record.sequence <= last
        for block in blocks
        for record in block
    )

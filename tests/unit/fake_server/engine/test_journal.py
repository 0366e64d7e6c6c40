"""The journal in memory, and the sparse index of all journals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from haclient_fake_server.engine import journal as journal_module
from haclient_fake_server.engine.journal import (
    Block,
    BlockIndex,
    Cursor,
    MemoryJournal,
    SearchTooLong,
    records_of,
    scan,
)
from haclient_fake_server.journal.format import (
    INDEX_STRIDE_BYTES,
    SEGMENT_HEADER_BYTES,
    Record,
    RecordCommand,
    RecordFlag,
    encode_block,
    encode_record,
    whole_blocks,
)


def block(position: int, count: int = 1, size: int = 10) -> Block:
    records = [
        Record(number, 7, 10 * number, 1000 * number, 1, payload=b"x" * size)
        for number in range(position, position + count)
    ]
    data = b"".join(map(encode_record, records))
    first, last = records[0], records[-1]
    return Block(
        data,
        count,
        position,
        position + count,
        first.timestamp_us,
        last.timestamp_us,
        {7: (first.sequence, last.sequence)},
    )


@pytest.fixture
def journal() -> MemoryJournal:
    """A thousand records in several strides."""
    journal = MemoryJournal()
    for position in range(1, 1001, 10):
        journal.append(block(position, 10, 1000))
    return journal


@pytest.mark.parametrize("position", [1, 2, 260, 261, 270, 999, 1000])
def test_any_position_message_or_time_is_found(journal: MemoryJournal, position: int) -> None:
    assert journal.find(7, 10 * position) == position
    assert journal.find(7, 10 * position - 1) is None
    assert journal.find(8, 10 * position) is None
    assert journal.at_time(1000 * position) == position
    assert journal.at_time(1000 * position - 999) == position
    chunk, _ = journal.read(journal.seek(position), 2 * INDEX_STRIDE_BYTES)
    assert position in {record.position for record in records_of(chunk)}


class CountingJournal(MemoryJournal):
    """A journal that counts how often it is read."""

    reads = 0

    @override
    def read_bytes(self, number: int, count: int, offset: int) -> bytes:
        self.reads += 1
        return super().read_bytes(number, count, offset)


def test_the_outermost_of_many_messages_is_found_by_reading_each_part_once() -> None:
    journal = CountingJournal()
    for position in range(1, 1001, 10):
        journal.append(block(position, 10, 1000))
    there = [10 * position for position in range(200, 900)]
    absent = [10 * position + 1 for position in range(1, 1000)]
    wanted = {7: sorted([*there, *absent]), 8: [1]}
    journal.reads = 0
    assert journal.find_outermost(wanted) == 200
    assert journal.find_outermost(wanted, last=True) == 899
    assert journal.reads <= 2 * len(journal.live.index.strides)
    assert journal.find_outermost({7: absent, 8: [1]}) is None
    assert journal.find_outermost({7: [3000]}) == 300
    assert journal.find_outermost({}) is None


def test_a_search_that_would_read_too_much_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "MAX_SEARCHED_STRIDES", 2)
    journal = MemoryJournal()
    for position in range(1, 1001, 10):
        journal.append(block(position, 10, 1000))
    absent = [10 * position + 1 for position in range(1, 1000)]
    with pytest.raises(SearchTooLong):
        journal.find_outermost({7: absent})
    assert journal.find_outermost({7: sorted([*absent, 30])}) == 3


def test_a_payload_that_looks_like_a_message_is_not_taken_for_it() -> None:
    sought = (7).to_bytes(8, "little") + (30).to_bytes(8, "little")
    journal, payloads = MemoryJournal(), (sought, b"", b"", sought)
    for position, payload in enumerate(payloads, start=1):
        data = encode_record(Record(position, 7, 10 * position, 1000, 1, payload=payload))
        ends = {7: (0, 40)}
        journal.append(Block(data, 1, *(position, position + 1, 1000, 1000), ends))
    assert journal.find(7, 30) == 3
    assert journal.find(7, 40) == 4
    assert journal.find(7, 31) is None


def test_beyond_the_end_there_is_nothing(journal: MemoryJournal) -> None:
    assert journal.at_time(10**9) == journal.next_position == 1001
    end = journal.seek(1001)
    assert journal.read(end, 1000) == (b"", end)
    assert journal.first_position == 1


def test_an_empty_journal_has_nothing_to_find() -> None:
    journal = MemoryJournal()
    assert journal.find(7, 1) is None
    assert journal.at_time(5) == 1
    assert journal.seek(1) == Cursor(1, SEGMENT_HEADER_BYTES)
    assert journal.summary() == b""


def test_reading_goes_on_where_it_stopped(journal: MemoryJournal) -> None:
    cursor, positions = journal.seek(1), list[int]()
    while True:
        chunk, cursor = journal.read(cursor, 5000)
        if not chunk:
            break
        positions += [record.position for record in records_of(chunk)]
    assert positions == list(range(1, 1001))


@pytest.mark.parametrize("max_bytes", [1, 31, 40, 100, 10_000])
def test_a_read_gives_at_least_one_block(journal: MemoryJournal, max_bytes: int) -> None:
    chunk, _ = journal.read(journal.seek(1), max_bytes)
    assert [record.position for record in records_of(chunk)] == list(range(1, 11))


def test_what_is_whole_of_a_chunk() -> None:
    records = block(1).records
    one = encode_block(records, count=1, first_position=1, segment=1, offset=0)
    assert whole_blocks(b"") == 0
    assert whole_blocks(one) == len(one)
    assert whole_blocks(one + one[:-1]) == len(one)
    assert whole_blocks(one[:-1]) == -len(one)
    assert whole_blocks(one[:10]) == 0


def test_an_index_grows_by_strides_not_by_blocks() -> None:
    index = BlockIndex()
    for number in range(100):
        index.add(block(number + 1), number * INDEX_STRIDE_BYTES // 10)
    assert len(index.strides) == 10
    assert index.stride_of_position(0) is None
    assert index.stride_of_time(1000) is None
    assert index.span(9, 12345) == (9 * INDEX_STRIDE_BYTES, 12345)


@pytest.mark.row("RE3")
@pytest.mark.parametrize("sequence", [0, 10, 2600, 2610, 5000, 9990])
def test_nothing_before_the_first_that_a_vector_lacks_is_lacking(
    journal: MemoryJournal, sequence: int
) -> None:
    position = journal.first_beyond({7: sequence, 8: 1})
    assert position <= sequence // 10 + 1
    assert position > sequence // 10 - 2 * INDEX_STRIDE_BYTES // 1000
    assert journal.first_beyond({7: 10_000}) == journal.next_position


@pytest.mark.row("TL1", "ID2")
@given(
    st.lists(
        st.tuples(
            st.integers(1, 3),
            st.sampled_from(list(RecordCommand)),
            st.sampled_from([0, RecordFlag.ASSIGNED]),
            st.binary(max_size=9),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_a_scan_knows_what_reading_each_record_would_tell(
    items: list[tuple[int, RecordCommand, int, bytes]],
) -> None:
    positioned = {RecordCommand.PUBLISH, RecordCommand.SOW_DELETE, RecordCommand.MARK}
    records = [
        Record(
            number if command in positioned else 0,
            publisher,
            10 * number,
            1000 * number,
            1,
            command,
            flags,
            payload=payload,
        )
        for number, (publisher, command, flags, payload) in enumerate(items, 1)
    ]
    data = b"junk" + b"".join(map(encode_record, records))
    found = scan(data, 4, len(data))
    messages = [record for record in records if record.position]
    assert found.special == [
        record
        for record in records
        if not record.position and record.command != RecordCommand.QUEUE_REMOVE
    ]
    assert set(found.publishers) == {record.publisher_id for record in messages}
    for publisher, (low, high) in found.publishers.items():
        sequences = [r.sequence for r in messages if r.publisher_id == publisher]
        assert (low, high) == (sequences[0], sequences[-1])
    assert found.assigned == {r.publisher_id for r in messages if r.flags}
    assert found.last_position == (messages[-1].position if messages else 0)
    messages = [record for record in messages if record.is_data]
    last = (messages[-1].publisher_id, messages[-1].sequence) if messages else None
    assert found.last == last
    assert (found.first_us, found.last_us) == (1000, 1000 * len(records))


def marked(journal: MemoryJournal, publisher: int, sequence: int) -> None:
    """Append a mark."""
    position = journal.next_position
    record = Record(position, publisher, sequence, 10**7, 0, RecordCommand.MARK)
    ends = {publisher: (sequence, sequence)}
    journal.append(Block(encode_record(record), 1, position, position + 1, 10**7, 10**7, ends))


@pytest.mark.parametrize("position", [1, 2, 250, 261, 262, 1000, 1001])
def test_the_highest_sequences_before_a_position_are_known(
    journal: MemoryJournal, position: int
) -> None:
    marked(journal, 9, 4)
    assert journal.highest_before(position) == ({7: 10 * (position - 1)} if position > 1 else {})
    assert journal.highest_before(1002) == {7: 10_000, 9: 4}
    assert MemoryJournal().highest_before(1) == {}


def test_the_last_message_before_a_position_may_be_far_before_it(journal: MemoryJournal) -> None:
    while journal.next_position < 6000:
        marked(journal, 7, 10 * journal.next_position)
    assert journal.find(7, 50_000) is None, "a mark is no message"
    for position, wanted in ((6000, 1000), (1001, 1000), (501, 500), (2, 1)):
        record = journal.last_before(position)
        assert record is not None
        assert record.position == wanted
    assert journal.last_before(1) is MemoryJournal().last_before(1) is None

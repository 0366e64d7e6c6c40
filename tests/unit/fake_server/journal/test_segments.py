"""What every segment repeats."""

from __future__ import annotations

import pytest

from haclient_fake_server.engine.journal import Block, records_of, scan
from haclient_fake_server.journal.format import (
    NOT_DURABLE,
    DurablePlace,
    LogStart,
    Record,
    RecordCommand,
    RecordFlag,
    encode_record,
    read_start,
)
from haclient_fake_server.journal.segments import (
    MAX_LOG_STARTS,
    SegmentPrologue,
    block_from_scan,
)


def encoded(prologue: SegmentPrologue, *, position: int, now_us: int) -> bytes:
    return prologue.encode(
        DurablePlace(1, 64), position=position, now_us=now_us, durable=NOT_DURABLE
    )


TOPIC = Record(0, 0, 0, 5, 3, RecordCommand.TOPIC, key=b"json", payload=b"caf\xe9")


def test_nothing_known_is_nothing_to_repeat() -> None:
    assert encoded(SegmentPrologue(), position=1, now_us=5) == b""


@pytest.mark.row("TL1", "ID2")
def test_definitions_and_highest_sequences_are_repeated() -> None:
    known = SegmentPrologue()
    known.take(
        Block(
            b"",
            0,
            1,
            3,
            5,
            5,
            {7: (10, 20)},
            ((3, "json", "caf\udce9"),),
            assigned=frozenset({7}),
            marks=((7, 15, 0),),
        )
    )
    known.take(
        Block(b"", 0, 3, 4, 5, 5, {8: (1, 4)}, ((4, "fix", "x"),), frozenset({8}), ((9, 2, 0),))
    )
    records = list(records_of(encoded(known, position=4, now_us=6)))
    assert [(r.topic_id, r.key, r.payload) for r in records[:2]] == [
        (3, b"json", b"caf\xe9"),
        (4, b"fix", b"x"),
    ]
    assert [(r.publisher_id, r.sequence, r.flags) for r in records[2:]] == [
        (7, 20, RecordFlag.ASSIGNED),
        (8, 4, RecordFlag.ASSIGNED),
        (9, 2, 0),
    ]
    assert {record.position for record in records} == {0}
    assert {record.timestamp_us for record in records} == {6}


def test_a_definition_that_comes_again_is_repeated_once() -> None:
    known = SegmentPrologue()
    for _ in range(2):
        known.take(Block(b"", 0, 1, 1, 5, 5, definitions=((3, "json", "orders"),)))
    assert len(list(records_of(encoded(known, position=1, now_us=6)))) == 1


def test_the_most_recent_starts_are_repeated() -> None:
    known = SegmentPrologue()
    starts = [LogStart(number, 10 * number, b"a boot") for number in range(MAX_LOG_STARTS + 3)]
    for start in (*starts, starts[-1]):
        known.take_start(start)
    records = records_of(encoded(known, position=1, now_us=6))
    assert [read_start(record) for record in records] == starts[3:]


def test_a_block_that_was_read_back_is_summarised_for_the_index() -> None:
    mark = Record(0, 4, 99, 9, 0, RecordCommand.MARK, RecordFlag.ASSIGNED)
    records = [
        TOPIC,
        Record(6, 7, 10, 5, 3),
        Record(7, 8, 1, 6, 3, flags=RecordFlag.ASSIGNED),
        Record(8, 7, 12, 9, 3),
        mark,
    ]
    data = b"".join(map(encode_record, records))
    block = block_from_scan(6, scan(data, 0, len(data)))
    assert (block.first_position, block.next_position) == (6, 9)
    assert (block.first_us, block.last_us) == (5, 9)
    assert block.publishers == {7: (10, 12), 8: (1, 1)}
    assert block.assigned == {8}
    assert block.definitions == ((3, "json", "caf\udce9"),)
    assert block.marks == ((4, 99, RecordFlag.ASSIGNED),)


def test_a_block_without_data_does_not_move_the_position() -> None:
    data = encode_record(TOPIC)
    block = block_from_scan(6, scan(data, 0, len(data)))
    assert (block.first_position, block.next_position) == (6, 6)

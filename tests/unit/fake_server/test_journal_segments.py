"""What every segment repeats."""

from __future__ import annotations

import pytest

from haclient_fake_server.engine.journal import Block, records_of
from haclient_fake_server.journal_format import Manifest, Record, RecordCommand, RecordFlag
from haclient_fake_server.journal_segments import Knowledge, summarise

TOPIC = Record(0, 0, 0, 5, 3, RecordCommand.TOPIC, key=b"json", payload=b"caf\xe9")


def test_nothing_known_is_nothing_to_repeat() -> None:
    assert Knowledge().encode(position=1, now_us=5) == b""


@pytest.mark.row("TL1", "ID2")
def test_definitions_and_highest_sequences_are_repeated() -> None:
    known = Knowledge()
    known.take(TOPIC)
    known.take(Record(1, 7, 10, 5, 3))
    known.take(Record(2, 7, 20, 5, 3, flags=RecordFlag.ASSIGNED | RecordFlag.USER_KEY))
    known.take(Record(0, 7, 15, 5, 0, RecordCommand.MARK))
    known.take_block(
        Block(b"", 3, 4, 5, 5, {8: (1, 4)}, ((4, "fix", "x"),), frozenset({8}), ((9, 2),))
    )
    records = list(records_of(known.encode(position=4, now_us=6)))
    assert [(r.topic_id, r.key, r.payload) for r in records[:2]] == [
        (3, b"json", b"caf\xe9"),
        (4, b"fix", b"x"),
    ]
    assert [(r.publisher_id, r.sequence, r.flags) for r in records[2:]] == [
        (7, 20, 0),
        (8, 4, RecordFlag.ASSIGNED),
        (9, 2, 0),
    ]
    assert {record.position for record in records} == {0}


def test_a_block_that_was_read_back_is_summarised_for_the_index() -> None:
    records = [TOPIC, Record(6, 7, 10, 5, 3), Record(7, 8, 1, 6, 3), Record(8, 7, 12, 9, 3)]
    block = summarise(Manifest(1, 1, 6), records)
    assert (block.first_position, block.next_position) == (6, 9)
    assert (block.first_us, block.last_us) == (5, 9)
    assert block.publishers == {7: (10, 12), 8: (1, 1)}
    assert block.definitions == ((3, "json", "caf\udce9"),)

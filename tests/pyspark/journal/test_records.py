"""Records are found and decoded in columns exactly as a reader finds them one by one."""

from __future__ import annotations

import random
import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.pyspark.journal.records import (
    HEADER,
    LANE_RECORDS,
    MAX_TOPIC_TABLE,
    RowRange,
    Topics,
    headers_at,
    record_offsets,
    rows_of,
)
from haclient.pyspark.rows import COLUMNS, arrow_schema, signed
from haclient_fake_server.journal.format import (
    BLOCK_HEADER_BYTES,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    BlockHeader,
    JournalFormatError,
    Record,
    RecordCommand,
    encode_block,
    encode_record,
    read_blocks,
    read_records,
)

TOPICS = {1: "orders", 2: "prices", 7: "größe"}
ALL = tuple(COLUMNS)


def encode(blocks: list[list[Record]], base: int = 64) -> bytes:
    """Blocks of records, the first of them at a place of segment 1."""
    data = b""
    for records in blocks:
        data += encode_block(
            b"".join(map(encode_record, records)),
            count=len(records),
            first_position=next((r.position for r in records if r.position), 1),
            segment=1,
            offset=base + len(data),
        )
    return data


def read(data: bytes, base: int = 64) -> list[BlockHeader]:
    return list(read_blocks(data, base, segment=1, base=base))


def places(data: bytes, base: int = 64) -> list[int]:
    """Where the records are, walked one by one."""
    found: list[int] = []
    for block in read(data, base):
        at = block.start - base
        for record in read_records(data, at, block.end - base):
            found.append(at)
            at += len(encode_record(record))
    return found


def row(record: Record) -> dict[str, object]:
    """A record as a row, without numpy and pyarrow."""
    return {
        "topic": TOPICS[record.topic_id],
        "bookmark": record.bookmark,
        "publisher_id": signed(record.publisher_id),
        "sequence": signed(record.sequence),
        "position": record.position,
        "timestamp": record.timestamp_us,
        "command": RecordCommand(record.command).name.lower(),
        "sow_key": record.key.decode("utf-8", "replace") or None,
        "correlation_id": record.correlation_id.decode("utf-8", "replace") or None,
        "data": record.payload,
    }


def rows(batch: pa.RecordBatch) -> list[dict[str, object]]:
    place = batch.schema.get_field_index("timestamp")
    if place >= 0:
        batch = batch.set_column(place, "timestamp", batch.column(place).cast(pa.int64()))
    found: list[dict[str, object]] = batch.to_pylist()
    return found


WITHOUT_POSITION = {RecordCommand.TOPIC, RecordCommand.START, RecordCommand.QUEUE_REMOVE}
numbers = st.integers(0, 2**64 - 1)
times = st.integers(-(2**62), 2**62)
body = st.builds(
    Record,
    position=st.just(0),
    publisher_id=st.sampled_from([1, 2**63, 2**64 - 1]) | numbers,
    sequence=numbers,
    timestamp_us=times,
    topic_id=st.sampled_from([*TOPICS]),
    command=st.sampled_from([*RecordCommand]),
    flags=st.integers(0, 2**16 - 1),
    key=st.sampled_from([b"", b"k", b"\xff\xfe", "größe".encode()]) | st.binary(max_size=20),
    correlation_id=st.sampled_from([b"", b"\xc3"]) | st.binary(max_size=20),
    expiration_s=st.none() | st.integers(0, 2**32 - 1),
    payload=st.sampled_from([b"", b"{}"]) | st.binary(max_size=100),
)


@st.composite
def journals(draw: st.DrawFn) -> list[list[Record]]:
    """Blocks of records; some have no position, as definitions have none."""
    position = draw(st.integers(1, 2**40))
    blocks: list[list[Record]] = []
    for drawn in draw(st.lists(st.lists(body, min_size=1, max_size=6), max_size=5)):
        block: list[Record] = []
        for record in drawn:
            if record.command in WITHOUT_POSITION:
                block.append(record)
            else:
                block.append(record._replace(position=position))
                position += 1
        blocks.append(block)
    return blocks


def test_the_header_is_that_of_the_format() -> None:
    assert HEADER.itemsize == RECORD_HEADER_BYTES
    packed = RECORD_HEADER.pack(*range(1, 12))
    header = headers_at(packed, np.array([0]))[0]
    assert header.tolist() == RECORD_HEADER.unpack(packed)


@given(journals())
def test_all_rows_are_those_of_a_reader_that_goes_record_by_record(
    blocks: list[list[Record]],
) -> None:
    data = encode(blocks)
    offsets = record_offsets(data, read(data), base=64)
    assert offsets.tolist() == places(data)
    batch = rows_of(data, offsets, ALL, wanted=RowRange(), topics=Topics(TOPICS))
    assert batch.schema.equals(arrow_schema(ALL))
    batch.validate(full=True)
    wanted = [
        row(record)
        for block in blocks
        for record in block
        if record.position and record.command in {RecordCommand.PUBLISH, RecordCommand.SOW_DELETE}
    ]
    assert rows(batch) == wanted


@given(journals(), st.data())
def test_a_range_of_positions_times_and_topics_is_exact(
    blocks: list[list[Record]], data: st.DataObject
) -> None:
    records = [record for block in blocks for record in block]
    positions = st.sampled_from([1, 2, *(r.position for r in records)])
    moments = st.sampled_from([0, *(r.timestamp_us for r in records)])
    wanted = RowRange(
        *(data.draw(positions), data.draw(positions), data.draw(moments), data.draw(moments))
    )
    names = {id_: TOPICS[id_] for id_ in data.draw(st.sets(st.sampled_from([*TOPICS])))}
    columns = data.draw(st.lists(st.sampled_from(ALL), unique=True, min_size=1))
    encoded = encode(blocks)
    offsets = record_offsets(encoded, read(encoded), base=64)
    batch = rows_of(encoded, offsets, columns, wanted=wanted, topics=Topics(names))
    assert rows(batch) == [
        {name: row(record)[name] for name in columns}
        for record in records
        if record.topic_id in names
        and record.command in {RecordCommand.PUBLISH, RecordCommand.SOW_DELETE}
        and max(1, wanted.first_position) <= record.position < wanted.end_position
        and wanted.from_us <= record.timestamp_us < wanted.until_us
    ]


def long_block(random_: random.Random, count: int, first: int = 1) -> list[Record]:
    """A block of several lanes, with records of many lengths."""
    return [
        Record(
            *(first + i, 9, first + i, 1_000 + i, 1),
            key=random_.randbytes(random_.choice([0, 5])).hex().encode(),
            payload=random_.randbytes(random_.choice([0, 10, 57, 300])),
        )
        for i in range(count)
    ]


@given(st.randoms(use_true_random=True), st.integers(1, 4 * LANE_RECORDS + 70))
def test_long_blocks_are_walked_in_lanes(random_: random.Random, count: int) -> None:
    blocks = [long_block(random_, count), long_block(random_, 3, 1 + count)]
    data = encode(blocks)
    assert record_offsets(data, read(data), base=64).tolist() == places(data)


@pytest.mark.parametrize("ahead", [-1, 0, 1, 5])
def test_sequences_that_look_like_positions_mislead_nobody(ahead: int) -> None:
    block = [
        record._replace(sequence=max(0, record.position + ahead), publisher_id=record.position + 1)
        for record in long_block(random.Random(7), 3 * LANE_RECORDS)
    ]
    data = encode([block])
    assert record_offsets(data, read(data), base=64).tolist() == places(data)


def test_payloads_full_of_records_mislead_nobody() -> None:
    """Each payload holds copies of the very records that are searched for, and they are linked."""
    plain = long_block(random.Random(7), 4 * LANE_RECORDS)
    bait = b"".join(
        encode_record(plain[at]) + encode_record(plain[at + 1])
        for at in range(LANE_RECORDS, 4 * LANE_RECORDS - 1, LANE_RECORDS)
    )
    block = [record._replace(payload=bait + bytes(i % 7)) for i, record in enumerate(plain)]
    data = encode([block])
    assert record_offsets(data, read(data), base=64).tolist() == places(data)


def test_a_block_that_begins_with_definitions_is_walked_in_lanes_too() -> None:
    definitions = [
        Record(0, 0, 0, 0, i, RecordCommand.TOPIC, key=b"json", payload=b"t" * i)
        for i in range(1, 50)
    ]
    data = encode([[*definitions, *long_block(random.Random(3), 3 * LANE_RECORDS)]])
    assert record_offsets(data, read(data), base=64).tolist() == places(data)


def test_no_blocks_have_no_records() -> None:
    assert record_offsets(b"", []).tolist() == []
    offsets = np.empty(0, np.int64)
    batch = rows_of(b"", offsets, ALL, wanted=RowRange(), topics=Topics({}))
    assert batch.num_rows == 0
    assert batch.schema.equals(arrow_schema(ALL))


@pytest.mark.parametrize("length", [0, 20, 47, 49, 5000])
def test_lengths_that_do_not_add_up_are_an_error(length: int) -> None:
    records = bytearray(b"".join(map(encode_record, long_block(random.Random(1), 5))))
    records[:4] = length.to_bytes(4, "little")
    block = BlockHeader(64, 5, len(records), zlib.crc32(records), 1)
    data = bytes(BLOCK_HEADER_BYTES) + bytes(records)
    with pytest.raises(JournalFormatError, match="at byte 64: the lengths of a block's records"):
        record_offsets(data, [block], base=64)


def test_a_number_of_records_that_is_too_small_is_an_error() -> None:
    records = b"".join(map(encode_record, long_block(random.Random(1), 5)))
    data = bytes(BLOCK_HEADER_BYTES) + records
    for count in (1, 4, 6):
        block = BlockHeader(64, count, len(records), 0, 1)
        with pytest.raises(JournalFormatError, match="lengths of a block's records do not add up"):
            record_offsets(data, [block], base=64)


def test_parts_of_a_record_that_are_longer_than_it_are_an_error() -> None:
    header = RECORD_HEADER.pack(RECORD_HEADER_BYTES, 0, 1, 0, 1, 9, 1, 1, 1, 30, 0)
    with pytest.raises(JournalFormatError, match="the lengths in a record header do not add up"):
        rows_of(header, np.array([0]), ALL, wanted=RowRange(), topics=Topics(TOPICS))


@given(st.dictionaries(st.integers(0, 2**32 - 1), st.text(max_size=5), max_size=20), st.data())
def test_topics_are_found_by_ids_of_any_size(names: dict[int, str], data: st.DataObject) -> None:
    topics = Topics(names)
    ids = data.draw(st.lists(st.sampled_from([0, 1, 2**32 - 1, *names])))
    indexes = topics.indexes(np.array(ids, np.uint32))
    known = [id_ in names for id_ in ids]
    assert (indexes >= 0).tolist() == known
    found = topics.texts(indexes[np.array(known, np.bool_)])
    assert found.to_pylist() == [names[id_] for id_ in ids if id_ in names]


def test_a_table_is_not_made_for_ids_that_are_too_large() -> None:
    small, large = Topics({5: "a"}), Topics({5: "a", MAX_TOPIC_TABLE + 1: "b"})
    ids = np.array([5, 6, MAX_TOPIC_TABLE + 1], np.uint32)
    assert small.indexes(ids).tolist() == [0, -1, -1]
    assert large.indexes(ids).tolist() == [0, -1, 1]

"""The journal's record format is frozen: these tests hold the bytes themselves."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient_fake_server.engine.journal import scan
from haclient_fake_server.journal.format import (
    BLOCK_HEADER,
    BLOCK_HEADER_BYTES,
    NOT_DURABLE,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    BlockHeader,
    DurablePlace,
    JournalFormatError,
    LogStart,
    Manifest,
    NewerVersionError,
    Record,
    RecordCommand,
    RecordFlag,
    RemovalReason,
    SegmentHeader,
    Stride,
    encode_block,
    encode_record,
    encode_removals,
    encode_start,
    headers,
    manifest_name,
    read_block_header,
    read_blocks,
    read_records,
    read_removals,
    read_start,
    segment_name,
    segment_number,
    whole_blocks_after,
)

RECORD = Record(
    position=7,
    publisher_id=7094790850998930143,
    sequence=3,
    timestamp_us=1_700_000_000_000_001,
    topic_id=2,
    flags=RecordFlag.USER_KEY,
    key=b"k1",
    correlation_id=b"xyz",
    expiration_s=60,
    payload=b'{"id":1}',
)

records = st.builds(
    Record,
    position=st.integers(0, 2**64 - 1),
    publisher_id=st.integers(0, 2**64 - 1),
    sequence=st.integers(0, 2**64 - 1),
    timestamp_us=st.integers(-(2**63), 2**63 - 1),
    topic_id=st.integers(0, 2**32 - 1),
    command=st.sampled_from([int(command) for command in RecordCommand]),
    flags=st.integers(0, 2**16 - 1),
    key=st.binary(max_size=20),
    correlation_id=st.binary(max_size=20),
    expiration_s=st.none() | st.integers(0, 2**32 - 1),
    payload=st.binary(max_size=200),
)


def block_of(*items: Record, first_position: int = 1, offset: int = 0) -> bytes:
    return encode_block(
        b"".join(map(encode_record, items)),
        count=len(items),
        first_position=first_position,
        segment=2,
        offset=offset,
    )


def decode_block(data: bytes, offset: int = 0) -> list[Record]:
    (block,) = list(read_blocks(data, offset, segment=2))
    return list(read_records(data, block.start, block.end))


@pytest.mark.row("TL1")
def test_the_sizes_of_the_headers_are_frozen() -> None:
    assert RECORD_HEADER.size == RECORD_HEADER_BYTES == 48
    assert BLOCK_HEADER.size == BLOCK_HEADER_BYTES == 56
    assert len(SegmentHeader(1, 1, 0, 0).encode()) == SEGMENT_HEADER_BYTES == 64


@pytest.mark.row("TL1", "TL17")
def test_every_byte_of_a_record_is_where_the_readme_says() -> None:
    assert encode_record(RECORD) == (
        struct.pack("<I", 65)  # length of the whole record
        + struct.pack("<H", 4)  # flags
        + bytes([1, 4])  # command, length of the expiration
        + struct.pack("<QQQq", 7, 7094790850998930143, 3, 1_700_000_000_000_001)
        + struct.pack("<IHH", 2, 2, 3)  # topic id, length of key and of correlation id
        + b"k1"
        + b"xyz"
        + struct.pack("<I", 60)
        + b'{"id":1}'
    )


@pytest.mark.row("TL16")
def test_every_byte_of_a_block_header_is_where_the_readme_says() -> None:
    body = encode_record(RECORD)
    head = struct.pack("<4sHHIIIQ", b"HAJB", 2, 0, 1, len(body), zlib.crc32(body), 7)
    head += struct.pack("<QIIQ", 640, 3, 2, 4096)  # offset and segment; segment and offset synced
    expected = head + struct.pack("<I", zlib.crc32(head)) + body
    place = DurablePlace(2, 4096)
    found = encode_block(body, count=1, first_position=7, segment=3, offset=640, durable=place)
    assert found == expected
    block = read_block_header(bytes(640) + expected, 640, segment=3)
    assert block is not None
    assert (block.first_position, block.durable) == (7, place)
    assert block_of(RECORD)[40:52] == struct.pack("<IQ", *NOT_DURABLE)


def test_a_start_is_a_record_without_a_position() -> None:
    start = LogStart(2**64 - 1, 17, b"the boot id ....")
    data = encode_start(start, now_us=5)
    (record,) = read_records(data, 0, len(data))
    assert (record.position, record.command, record.timestamp_us) == (0, RecordCommand.START, 5)
    assert read_start(record) == start


@given(st.lists(records, min_size=1, max_size=5))
def test_what_is_written_is_read_back(items: list[Record]) -> None:
    assert decode_block(block_of(*items)) == items


def test_a_record_knows_its_bookmark() -> None:
    assert RECORD.bookmark == "7094790850998930143|3|"


def test_zeros_end_the_written_part() -> None:
    data = block_of(RECORD) + bytes(100)
    assert len(list(read_blocks(data, segment=2))) == 1
    assert read_block_header(data, len(data), segment=2) is None


@pytest.mark.row("TL16")
@pytest.mark.parametrize(("segment", "offset"), [(1, 0), (3, 0), (2, 8)])
def test_a_block_that_is_not_in_its_place_is_no_block(segment: int, offset: int) -> None:
    data = bytes(offset) + block_of(RECORD)
    with pytest.raises(JournalFormatError, match="belongs to byte 0 of segment 2"):
        read_block_header(data, offset, segment=segment)
    assert not list(whole_blocks_after(data, 0, segment=segment))


@pytest.mark.row("TL16")
@given(st.data())
def test_a_block_cut_at_any_byte_is_never_read_as_whole(data: st.DataObject) -> None:
    whole = block_of(RECORD)
    cut = whole[: data.draw(st.integers(1, len(whole) - 1))]
    with pytest.raises(JournalFormatError):
        list(read_blocks(cut, segment=2))
    padded = cut + bytes(len(whole) - len(cut))
    if padded != whole:
        with pytest.raises(JournalFormatError):
            list(read_blocks(padded, segment=2))


@pytest.mark.row("TL16")
@given(st.data())
def test_a_changed_byte_never_goes_unnoticed(data: st.DataObject) -> None:
    damaged = bytearray(block_of(RECORD))
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(JournalFormatError):
        list(read_blocks(bytes(damaged), segment=2))


def empty_block(version: int) -> bytes:
    head = struct.pack("<4sHHIIIQQIIQ", b"HAJB", version, 0, 0, 0, 0, 1, 0, 2, 0, 0)
    return head + struct.pack("<I", zlib.crc32(head))


@pytest.mark.parametrize("version", [0, 3])
def test_a_block_of_a_version_that_nobody_has_written_is_no_block(version: int) -> None:
    with pytest.raises(JournalFormatError, match="no block starts here"):
        read_block_header(empty_block(version), 0, segment=2)


@pytest.mark.parametrize("version", [1, 2])
def test_blocks_of_both_versions_are_read(version: int) -> None:
    assert read_block_header(empty_block(version), 0, segment=2) == BlockHeader(0, 0, 0, 0, 1)


@pytest.mark.row("QB31")
def test_every_byte_of_a_removal_from_a_queue_is_where_the_readme_says() -> None:
    entries = [(2**64 - 1, 3, RemovalReason.ACKNOWLEDGED), (7, 2**64 - 1, 6)]
    data = encode_removals(b"WorkToDo", b"json", entries, now_us=5)
    assert data == (
        struct.pack("<IHBB", 48 + 8 + 4 + 34, 0, 5, 0)  # length, flags, command, expiration
        + struct.pack("<QQQqIHH", 0, 0, 0, 5, 0, 8, 4)  # no position, publisher, sequence, topic
        + b"WorkToDojson"
        + struct.pack("<QQB", 2**64 - 1, 3, 1)
        + struct.pack("<QQB", 7, 2**64 - 1, 6)
    )
    (record,) = read_records(data, 0, len(data))
    assert not record.is_data
    assert read_removals(record) == (b"WorkToDo", b"json", entries)


def test_reasons_of_removals_have_the_numbers_of_the_readme() -> None:
    assert {each.name.lower(): each.value for each in RemovalReason} == {
        "acknowledged": 1,
        "delivered": 2,
        "time_limit": 3,
        "forced_expire": 4,
        "max_cancels": 5,
        "max_deliveries": 6,
        "lost": 7,
    }


def test_a_reason_that_a_later_version_has_added_is_kept() -> None:
    data = encode_removals(b"q", b"json", [(1, 2, 200)], now_us=0)
    (record,) = read_records(data, 0, len(data))
    assert read_removals(record).entries == [(1, 2, 200)]


def test_removals_that_are_cut_short_are_refused() -> None:
    record = Record(0, 0, 0, 0, 0, RecordCommand.QUEUE_REMOVE, payload=bytes(18))
    with pytest.raises(JournalFormatError, match="entries of 17 bytes, found 18 bytes"):
        read_removals(record)


def test_a_newer_version_is_told_from_damage() -> None:
    header = SegmentHeader(1, 1, 0, 0).encode()
    with pytest.raises(NewerVersionError, match=r"journal version 3, but .* reads up to 2"):
        SegmentHeader.decode(header[:8] + b"\x03\x00" + header[10:])
    with pytest.raises(NewerVersionError, match=r"manifest version 3, but .* reads up to 2"):
        Manifest.from_json('{"format": 3, "something": "else"}')


def test_a_whole_block_after_a_damaged_one_is_found() -> None:
    first = bytearray(block_of(RECORD))
    first[60] ^= 1
    decoy = Record(1, 1, 1, 1, 1, payload=b"HAJB and no block")
    between = b"HAJB" + bytes(40)
    offset = len(first) + len(between)
    second = block_of(decoy, offset=offset)
    third = block_of(RECORD, offset=offset + len(second) + 7)
    data = bytes(first) + between + second + bytes(7) + third
    found = [block.offset for block in whole_blocks_after(data, 0, segment=2)]
    assert found == [offset, offset + len(second) + 7]
    assert not list(whole_blocks_after(bytes(first) + bytes(100), 0, segment=2))


def test_lengths_that_do_not_add_up_are_refused() -> None:
    whole = encode_record(RECORD)
    with pytest.raises(JournalFormatError, match="cut short"):
        list(read_records(whole, 0, 20))
    with pytest.raises(JournalFormatError, match="do not add up"):
        list(read_records(whole, 0, len(whole) - 1))


def test_a_segment_header_is_read_back() -> None:
    header = SegmentHeader(number=3, first_position=1000, created_us=5, instance_id=2**63)
    assert SegmentHeader.decode(header.encode() + b"more") == header
    assert header.encode()[8:10] == b"\x02\x00"
    earlier = SegmentHeader(3, 1000, 5, 2**63, version=1)
    assert SegmentHeader.decode(earlier.encode()) == earlier


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:63], "64 bytes"),
        (lambda data: b"X" + data[1:], "magic"),
        (lambda data: data[:8] + b"\x07\x00" + data[10:], "journal version 7, but .* up to 2"),
        (lambda data: data[:30] + b"\xff" + data[31:], "checksum"),
    ],
)
def test_a_foreign_segment_header_is_refused(
    damage: Callable[[bytes], bytes], message: str
) -> None:
    with pytest.raises(JournalFormatError, match=message):
        SegmentHeader.decode(damage(SegmentHeader(1, 1, 0, 0).encode()))


def test_file_names_have_eight_digits_or_more() -> None:
    assert segment_name(1) == "journal.00000001"
    assert manifest_name(12) == "journal.00000012.manifest.json"
    assert segment_number("journal.00000012") == 12
    assert segment_number("journal.123456789") == 123456789
    assert segment_number("journal.00000012.manifest.json") is None
    assert segment_number("other") is None


def test_a_manifest_survives_json() -> None:
    stride = Stride(position=1, offset=64, timestamp_us=99)
    stride.add({5: (1, 2)})
    stride.add({5: (3, 9), 6: (4, 4)})
    assert stride.publishers == {5: (1, 9), 6: (4, 4)}
    manifest = Manifest(
        number=2,
        first_position=10,
        next_position=20,
        data_bytes=4096,
        first_us=99,
        last_us=120,
        sealed=True,
        topics={1: ("json", "orders"), 2: ("json", "caf\udce9")},
        index=[stride],
    )
    assert Manifest.from_json(manifest.to_json()) == manifest


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 3}', '{"format": 2}', '{"format": 1}']
)
def test_a_foreign_manifest_is_refused(text: str) -> None:
    with pytest.raises(JournalFormatError):
        Manifest.from_json(text)


@pytest.mark.parametrize("length", [0, 1, RECORD_HEADER_BYTES - 1, RECORD_HEADER_BYTES, 2**32 - 1])
def test_a_record_of_an_impossible_length_is_refused(length: int) -> None:
    record = encode_record(Record(1, 7, 1, 1000, 1, key=b"k", payload=b"body"))
    records = length.to_bytes(4, "little") + record[4:]
    chunk = encode_block(records, count=1, first_position=1, segment=1, offset=64)
    with pytest.raises(JournalFormatError, match="do not add up"):
        list(headers(chunk))
    with pytest.raises(JournalFormatError, match="do not add up"):
        scan(chunk, BLOCK_HEADER_BYTES, len(chunk))


def test_a_record_header_that_is_cut_short_is_refused() -> None:
    chunk = encode_block(bytes(9), count=1, first_position=1, segment=1, offset=64)
    with pytest.raises(JournalFormatError, match="cut short"):
        list(headers(chunk))

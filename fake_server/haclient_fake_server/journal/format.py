"""The journal's record format: frozen, and readable without a broker (design 8, TL1, TL16, TL17).

A journal is a run of segment files `journal.00000001`, `journal.00000002` ... Each is::

    segment header (64 bytes) | block | block | ... | zeros up to the preallocated size

A block is what one batch of the broker wrote with one system call: a header of 32 bytes with two
checksums, then whole records. A record is a header of 48 bytes, then key, correlation id,
expiration and payload, in this order, each as long as the header says. All integers are
little-endian; all times are microseconds since 1970, UTC.

The rules that a reader may rely on:

* Positions of data records rise by one, from 1, through all segments; a record without a position
  of its own (a topic's definition, a publisher's mark) carries 0.
* The first block of a segment repeats all topic definitions and publisher marks known so far, so
  that each segment reads alone and the oldest ones can be removed.
* Times never fall from one record to the next; sequences of one publisher never fall.
* A block that starts with zeros is the end of what was written. A block whose checksum is wrong is
  a torn tail when no later block is whole, and corruption otherwise.

This module holds pure functions over bytes and imports nothing of the project. Its numbers never
change: a new layout gets a new `FORMAT_VERSION` and a new magic.
"""

from __future__ import annotations

import enum
import json
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple, cast

__all__ = [
    "BLOCK_HEADER",
    "BLOCK_HEADER_BYTES",
    "BLOCK_LENGTH",
    "BLOCK_LENGTH_AT",
    "BLOCK_MAGIC",
    "FORMAT_VERSION",
    "INDEX_STRIDE_BYTES",
    "RECORD_HEADER",
    "RECORD_HEADER_BYTES",
    "SEGMENT_HEADER_BYTES",
    "BlockHeader",
    "JournalFormatError",
    "Manifest",
    "Record",
    "RecordCommand",
    "RecordFlag",
    "SegmentHeader",
    "Stride",
    "encode_block",
    "encode_record",
    "find_whole_block",
    "manifest_name",
    "read_block_header",
    "read_blocks",
    "read_records",
    "segment_name",
    "segment_number",
]

FORMAT_VERSION: Final = 1

RECORD_HEADER: Final = struct.Struct("<IHBBQQQqIHH")
"""length, flags, command, expiration length, position, publisher id, sequence, time in
microseconds, topic id, key length, correlation id length."""
RECORD_HEADER_BYTES: Final = 48

BLOCK_MAGIC: Final = b"HAJB"
BLOCK_HEADER: Final = struct.Struct("<4sHHIIIQI")
"""magic, version, flags, record count, bytes after this header, their crc32, first position,
crc32 of the 28 bytes before it."""
BLOCK_HEADER_BYTES: Final = 32
BLOCK_LENGTH: Final = struct.Struct("<I")
BLOCK_LENGTH_AT: Final = 12
"""The bytes after this header alone: a log of small blocks is walked along them."""

SEGMENT_MAGIC: Final = b"HAJOURNL"
_SEGMENT_HEADER: Final = struct.Struct("<8sHHIQQqQ12sI")
SEGMENT_HEADER_BYTES: Final = 64

INDEX_STRIDE_BYTES: Final = 256 * 1024
"""One entry of the sparse index covers at least this much of a segment: a look-up then scans
little more than 1 ms worth of records."""

EXPIRATION: Final = struct.Struct("<I")
_CRC_AT: Final = BLOCK_HEADER_BYTES - 4
_NAME: Final = re.compile(r"journal\.(\d{8,})")


class RecordCommand(enum.IntEnum):
    """What a record says."""

    TOPIC = 0
    """Defines `topic_id`: the key is the message type, the payload the topic. No position."""
    PUBLISH = 1
    """A message as it was delivered: a merged delta, too, is stored as the whole message."""
    SOW_DELETE = 2
    """Records were deleted: the payload is the comma-separated list of their keys."""
    MARK = 3
    """The highest sequence seen of a publisher, where no message carries it. No position."""


class RecordFlag(enum.IntFlag):
    """Bits of the flags field; unknown ones are to be ignored by readers."""

    ASSIGNED = 1
    """The sequence was assigned by this instance (ID3), not by the publisher."""
    REPLICATED = 2
    """The message came from another instance."""
    USER_KEY = 4
    """The key was given by the publisher; otherwise it was computed from the message."""


class JournalFormatError(ValueError):
    """Bytes that are not a journal of this version.

    Attributes:
        offset: Where in the given bytes, from their start.
        what: What is wrong with them.
    """

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(f"at byte {offset}: {what}")
        self.offset = offset
        self.what = what


class Record(NamedTuple):
    """One record, taken apart. `position` is 0 for definitions and marks."""

    position: int
    publisher_id: int
    sequence: int
    timestamp_us: int
    topic_id: int
    command: int = RecordCommand.PUBLISH
    flags: int = 0
    key: bytes = b""
    correlation_id: bytes = b""
    expiration_s: int | None = None
    payload: bytes = b""

    @property
    def bookmark(self) -> str:
        """The bookmark of this record on the wire (protocol 7.1)."""
        return f"{self.publisher_id}|{self.sequence}|"


class BlockHeader(NamedTuple):
    """Where a block is and what it holds; `offset` is that of its header."""

    offset: int
    records: int
    length: int
    checksum: int
    first_position: int

    @property
    def start(self) -> int:
        """Offset of the first record."""
        return self.offset + BLOCK_HEADER_BYTES

    @property
    def end(self) -> int:
        """Offset of the first byte after the block."""
        return self.offset + BLOCK_HEADER_BYTES + self.length


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The first 64 bytes of a segment file.

    Attributes:
        number: The number in the file's name.
        first_position: Position of the first data record, whether or not one was written yet.
        created_us: When the segment was begun.
        instance_id: The broker instance: the CRC-64 of its name.
    """

    number: int
    first_position: int
    created_us: int
    instance_id: int

    def encode(self) -> bytes:
        """The 64 bytes."""
        start = (SEGMENT_MAGIC, FORMAT_VERSION, SEGMENT_HEADER_BYTES, 0)
        fields = (self.number, self.first_position, self.created_us, self.instance_id)
        packed = _SEGMENT_HEADER.pack(*start, *fields, bytes(12), 0)
        return packed[:-4] + struct.pack("<I", zlib.crc32(packed[:-4]))

    @classmethod
    def decode(cls, data: bytes) -> SegmentHeader:
        """Read a header back.

        Raises:
            JournalFormatError: The bytes are too few, of another format, or damaged.
        """
        if len(data) < SEGMENT_HEADER_BYTES:
            raise JournalFormatError(0, f"a segment header has 64 bytes, found {len(data)}")
        head = data[:SEGMENT_HEADER_BYTES]
        fields = _SEGMENT_HEADER.unpack(head)
        if fields[0] != SEGMENT_MAGIC:
            raise JournalFormatError(0, "not a journal segment: the magic is missing")
        if fields[1] != FORMAT_VERSION:
            raise JournalFormatError(8, f"journal version {fields[1]}, this reads {FORMAT_VERSION}")
        if zlib.crc32(head[:-4]) != fields[9]:
            raise JournalFormatError(0, "the checksum of the segment header is wrong")
        return cls(fields[4], fields[5], fields[6], fields[7])


def segment_name(number: int) -> str:
    """The file name of a segment: `journal.00000001`."""
    return f"journal.{number:08d}"


def manifest_name(number: int) -> str:
    """The file name of a segment's manifest: `journal.00000001.manifest.json`."""
    return f"{segment_name(number)}.manifest.json"


def segment_number(name: str) -> int | None:
    """The number in a segment's file name, `None` for any other file."""
    match = _NAME.fullmatch(name)
    return int(match.group(1)) if match else None


def encode_record(record: Record) -> bytes:
    """A record as bytes: for definitions, tools and tests; the broker's hot loop packs itself."""
    expiration = b"" if record.expiration_s is None else EXPIRATION.pack(record.expiration_s)
    length = (
        RECORD_HEADER_BYTES
        + len(record.key)
        + len(record.correlation_id)
        + len(expiration)
        + len(record.payload)
    )
    header = RECORD_HEADER.pack(
        length,
        record.flags,
        record.command,
        len(expiration),
        record.position,
        record.publisher_id,
        record.sequence,
        record.timestamp_us,
        record.topic_id,
        len(record.key),
        len(record.correlation_id),
    )
    return b"".join((header, record.key, record.correlation_id, expiration, record.payload))


def encode_block(records: bytes, *, count: int, first_position: int) -> bytes:
    """A block: its header and `records`, which are `count` whole records."""
    header = BLOCK_HEADER.pack(
        BLOCK_MAGIC,
        FORMAT_VERSION,
        0,
        count,
        len(records),
        zlib.crc32(records),
        first_position,
        0,
    )[:_CRC_AT]
    return header + struct.pack("<I", zlib.crc32(header)) + records


def read_block_header(data: bytes | memoryview, offset: int) -> BlockHeader | None:
    """The block header at `offset`; `None` where the written part of a segment ends.

    Raises:
        JournalFormatError: The bytes are neither zeros nor a whole block header.
    """
    head = bytes(data[offset : offset + BLOCK_HEADER_BYTES])
    if not head.strip(b"\0"):
        return None
    if len(head) < BLOCK_HEADER_BYTES:
        raise JournalFormatError(offset, "a block header is cut short")
    magic, version, _, count, length, checksum, position, header_checksum = BLOCK_HEADER.unpack(
        head
    )
    if magic != BLOCK_MAGIC:
        raise JournalFormatError(offset, "no block starts here")
    if zlib.crc32(head[:_CRC_AT]) != header_checksum:
        raise JournalFormatError(offset, "the checksum of a block header is wrong")
    if version != FORMAT_VERSION:
        raise JournalFormatError(offset, f"block version {version}, this reads {FORMAT_VERSION}")
    return BlockHeader(offset, count, length, checksum, position)


def read_blocks(data: bytes | memoryview, offset: int = 0) -> Iterator[BlockHeader]:
    """All blocks from `offset` on, each verified by both checksums, until the written part ends.

    Raises:
        JournalFormatError: A block is torn or damaged; `find_whole_block` tells which.
    """
    while (block := read_block_header(data, offset)) is not None:
        body = data[block.start : block.end]
        if len(body) < block.length:
            raise JournalFormatError(offset, "a block is cut short")
        if zlib.crc32(body) != block.checksum:
            raise JournalFormatError(offset, "the checksum of a block is wrong")
        yield block
        offset = block.end


def find_whole_block(data: bytes, after: int) -> int | None:
    """Offset of the first whole block that starts after `after`: proof of damage in the middle."""
    at = data.find(BLOCK_MAGIC, after + 1)
    while at >= 0:
        try:
            if next(read_blocks(data, at), None) is not None:
                return at
        except JournalFormatError:
            pass  # the four letters of the magic inside a payload, or another damaged block
        at = data.find(BLOCK_MAGIC, at + 1)
    return None


def read_records(data: bytes, start: int, end: int) -> Iterator[Record]:
    """The records between two offsets, usually those of one block.

    Raises:
        JournalFormatError: A length does not fit, which checksummed blocks never show.
    """
    offset = start
    while offset < end:
        if end - offset < RECORD_HEADER_BYTES:
            raise JournalFormatError(offset, "a record header is cut short")
        record, offset = _read_record(data, offset, end)
        yield record


def _read_record(data: bytes, offset: int, end: int) -> tuple[Record, int]:
    fields = RECORD_HEADER.unpack_from(data, offset)
    length, flags, command, expiration_bytes, position, publisher_id, sequence = fields[:7]
    timestamp_us, topic_id, key_bytes, correlation_bytes = fields[7:]
    key_at = offset + RECORD_HEADER_BYTES
    correlation_at = key_at + key_bytes
    expiration_at = correlation_at + correlation_bytes
    payload_at = expiration_at + expiration_bytes
    after = offset + length
    if after > end or payload_at > after or expiration_bytes not in {0, EXPIRATION.size}:
        raise JournalFormatError(offset, "the lengths in a record header do not add up")
    expiration = EXPIRATION.unpack_from(data, expiration_at)[0] if expiration_bytes else None
    record = Record(
        position,
        publisher_id,
        sequence,
        timestamp_us,
        topic_id,
        command,
        flags,
        data[key_at:correlation_at],
        data[correlation_at:expiration_at],
        expiration,
        data[payload_at:after],
    )
    return record, after


@dataclass(slots=True)
class Stride:
    """One entry of the sparse index: a run of blocks of at least `INDEX_STRIDE_BYTES`.

    Attributes:
        position: First position in it.
        offset: Offset of its first block in the segment.
        timestamp_us: Time of its first record.
        publishers: By publisher id, the lowest and highest sequence in it.
    """

    position: int
    offset: int
    timestamp_us: int
    publishers: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])

    def add(self, publishers: Mapping[int, tuple[int, int]]) -> None:
        """Widen the entry by the sequences of one more block."""
        mine = self.publishers
        for publisher_id, (low, high) in publishers.items():
            known = mine.get(publisher_id)
            mine[publisher_id] = (known[0], high) if known else (low, high)


@dataclass(slots=True)
class Manifest:
    """What a segment holds, kept beside it as JSON.

    A manifest can always be rebuilt from its segment. That of a sealed segment never changes;
    that of the live one is a snapshot, so read the blocks after `data_bytes` as well.

    Attributes:
        number: The segment's number.
        first_position: Of its first data record.
        next_position: The position that follows its last data record.
        data_bytes: Offset of the first byte that was not written.
        first_us: Time of its first record, 0 when it has none.
        last_us: Time of its last record.
        sealed: No further block will be written to it.
        topics: By topic id: message type and topic.
        index: The sparse index.
    """

    number: int
    first_position: int
    next_position: int
    data_bytes: int = SEGMENT_HEADER_BYTES
    first_us: int = 0
    last_us: int = 0
    sealed: bool = False
    topics: dict[int, tuple[str, str]] = field(default_factory=dict[int, tuple[str, str]])
    index: list[Stride] = field(default_factory=list[Stride])

    def to_json(self) -> str:
        """One JSON object; topics that are not UTF-8 keep their bytes as surrogate escapes."""
        return json.dumps({"format": FORMAT_VERSION, **asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Read a manifest back.

        Raises:
            JournalFormatError: The text is not a manifest of this version.
        """
        try:
            fields = cast("dict[str, Any]", json.loads(text))
            version = fields.pop("format")
            topics = {int(number): tuple(names) for number, names in fields.pop("topics").items()}
            index = [_stride(**entry) for entry in fields.pop("index")]
            manifest = cls(topics=topics, index=index, **fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise JournalFormatError(0, f"not a journal manifest: {error}") from error
        if version != FORMAT_VERSION:
            raise JournalFormatError(0, f"manifest version {version}, this reads {FORMAT_VERSION}")
        return manifest


def _stride(
    *, position: int, offset: int, timestamp_us: int, publishers: dict[str, list[int]]
) -> Stride:
    ranges = {int(number): (low, high) for number, (low, high) in publishers.items()}
    return Stride(position, offset, timestamp_us, ranges)

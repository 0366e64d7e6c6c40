"""The journal's record format, readable without a broker.

A journal is a run of segment files `journal.00000001`, `journal.00000002` ... Each is::

    segment header (64 bytes) | block | block | ... | zeros up to the preallocated size

A block is what one batch of the broker wrote with one system call: a header of 56 bytes with two
checksums, then whole records. A record is a header of 48 bytes, then key, correlation id,
expiration and payload, in this order, each as long as the header says. All integers are
little-endian; all times are microseconds since 1970, UTC.

The rules that a reader may rely on:

* Positions of messages, deletes and marks rise by one, from 1, through all segments; a record
  without a position of its own (a topic's definition, the start of a broker, a mark that a prologue
  repeats, a removal from a queue) carries 0.
* The first block of a segment, its prologue, repeats all topic definitions and publisher marks
  known so far and the most recent starts, so that each segment reads alone and the oldest ones can
  be removed.
* Times never fall from one record to the next; sequences of one publisher never fall.
* A removal from a queue comes after the message that it names, maybe in the same block.
* A block carries its place, segment number and offset, and follows the block before it in the file
  and in positions. What is not whole, or not in its place, is not part of the log. Where the
  log goes on behind it, that is damage, which readers check for and refuse.
* A block also says how far the log was known to be on the disk when the block was written. That
  tells damage from what a loss of power may take: see `DurablePlace`.

This module holds pure functions over bytes and imports nothing of the project. A new layout gets a
new `FORMAT_VERSION`, and a segment is of one version from its first byte to its last: a broker that
finds a live segment of an older version seals it and begins another one. Version 2 added
`RecordCommand.QUEUE_REMOVE`; all else is as in version 1. Readers read both. Where the header of a
segment, or a manifest, has a newer version, `NewerVersionError` is raised.
"""

from __future__ import annotations

import enum
import json
import re
import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple, cast

FORMAT_VERSION: Final = 2
"""The version that is written; those from 1 on are read."""

RECORD_HEADER: Final = struct.Struct("<IHBBQQQqIHH")
"""length, flags, command, expiration length, position, publisher id, sequence, time in
microseconds, topic id, key length, correlation id length."""
RECORD_HEADER_BYTES: Final = 48

BLOCK_MAGIC: Final = b"HAJB"
BLOCK_HEADER: Final = struct.Struct("<4sHHIIIQQIIQI")
"""magic, version, flags, record count, bytes after this header, their crc32, first position,
offset of this block, number of its segment, number and offset of `DurablePlace`, crc32 of the 52
bytes before it."""
BLOCK_HEADER_BYTES: Final = 56
_BLOCK_CHECKS: Final = struct.Struct("<12xII8xQI12xI")
"""Of these, what is compared with the bytes: length, checksum, offset, segment, own checksum."""
BLOCK_LENGTH: Final = struct.Struct("<I")
BLOCK_LENGTH_AT: Final = 12
"""The bytes after this header alone: a log of small blocks is walked along them."""

SEGMENT_MAGIC: Final = b"HAJOURNL"
_SEGMENT_HEADER: Final = struct.Struct("<8sHHIQQqQ12sI")
SEGMENT_HEADER_BYTES: Final = 64

INDEX_STRIDE_BYTES: Final = 256 * 1024
"""One entry of the sparse index covers at least this much of a segment: a look-up then scans
little more than 1 ms worth of records."""

TIMESTAMP: Final = struct.Struct("<q")
TIMESTAMP_AT: Final = 32
"""Where the time is in a record header."""

EXPIRATION: Final = struct.Struct("<I")

QUEUE_ENTRY: Final = struct.Struct("<QQB")
"""One removal in the payload of a `QUEUE_REMOVE`: publisher id, sequence, reason."""

MAX_QUEUE_ENTRIES: Final = 10_000
"""Removals of one record: a reader handles some 170 kB at a time at most."""

_CRC: Final = struct.Struct("<I")
_CRC_AT: Final = BLOCK_HEADER_BYTES - _CRC.size
_WRONG_LENGTHS: Final = "the lengths in a record header do not add up"
_NAME: Final = re.compile(r"journal\.(\d{8,})(\.gz)?")

COMPRESSED_SUFFIX: Final = ".gz"
PARQUET_FOLDER: Final = "parquet"
PARQUET_SUFFIX: Final = ".parquet"


class RecordCommand(enum.IntEnum):
    """What a record says."""

    TOPIC = 0
    """Defines `topic_id`: the key is the message type, the payload the topic. No position."""
    PUBLISH = 1
    """A message as it was delivered: a merged delta, too, is stored as the whole message."""
    SOW_DELETE = 2
    """Records were deleted: the payload is the comma-separated list of their keys."""
    MARK = 3
    """The highest sequence seen of a publisher, where no message carries it."""
    START = 4
    """A broker has opened the log: see `LogStart`. No position."""
    QUEUE_REMOVE = 5
    """Messages have left a queue: see `Removals`. No position."""


class RemovalReason(enum.IntEnum):
    """Why a message has left a queue; a reader keeps numbers that it does not know."""

    ACKNOWLEDGED = 1
    """A consumer has acknowledged it."""
    DELIVERED = 2
    """It was sent, which is enough for at-most-once delivery and for barrier messages."""
    TIME_LIMIT = 3
    """Its expiration has passed."""
    FORCED_EXPIRE = 4
    """A consumer has expired it."""
    MAX_CANCELS = 5
    """It was cancelled too often."""
    MAX_DELIVERIES = 6
    """It was delivered too often."""
    LOST = 7
    """Its record was no longer in the journal when it was to be delivered."""


class RecordFlag(enum.IntFlag):
    """Bits of the flags field; readers must ignore unknown bits."""

    ASSIGNED = 1
    """The sequence was assigned by this instance, not by the publisher."""
    REPLICATED = 2
    """The message came from another instance."""
    USER_KEY = 4
    """The key was given by the publisher; otherwise it was computed from the message."""
    CONFIRMED = 8
    """Every synchronous destination of this instance had the message before this instance."""


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


class NewerVersionError(JournalFormatError):
    """The bytes say that a newer version of this software has written them."""


class DurablePlace(NamedTuple):
    """A place in the log; every block that ends at or before it was synced.

    A loss of power takes nothing before the place that any later block names, so a block that is
    missing there is damage. A block that is missing after the last such place may never have left
    the operating system's cache.
    """

    segment: int
    offset: int


NOT_DURABLE: Final = DurablePlace(0, 0)
"""Nothing was synced yet."""


class LogStart(NamedTuple):
    """A broker has opened the log for appending.

    Two logs that began as copies of each other differ in the starts that follow, so the starts show
    whether a log is the one that a client or broker knew before.

    Attributes:
        id: A random number of 64 bits.
        first_position: The position of the first record that this broker has written or will write.
        boot_id: The machine's boot, as `Disk.boot_id` says it.
    """

    id: int
    first_position: int
    boot_id: bytes = bytes(16)


class Removal(NamedTuple):
    """A message that has left a queue.

    Attributes:
        publisher_id: The first half of its bookmark.
        sequence: The second half.
        reason: A `RemovalReason`, or the number of one that a later version has added.
    """

    publisher_id: int
    sequence: int
    reason: int


class Removals(NamedTuple):
    """The content of a record of command `QUEUE_REMOVE`.

    Attributes:
        queue: The name of the queue, as bytes of the log.
        message_type: Its message type, as bytes of the log.
        entries: What has left it.
    """

    queue: bytes
    message_type: bytes
    entries: list[Removal]


class Record(NamedTuple):
    """One record, taken apart.

    `position` is 0 for definitions, starts, repeated marks and removals from queues.
    """

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
    def is_data(self) -> bool:
        """Whether it is a message or a delete."""
        return self.position > 0 and self.command != RecordCommand.MARK

    @property
    def bookmark(self) -> str:
        """The bookmark of this record on the wire."""
        return f"{self.publisher_id}|{self.sequence}|"


class BlockHeader(NamedTuple):
    """Where a block is and what it holds; `offset` is that of its header."""

    offset: int
    records: int
    length: int
    checksum: int
    first_position: int
    durable: DurablePlace = NOT_DURABLE

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
        version: The format version of the whole segment.
    """

    number: int
    first_position: int
    created_us: int
    instance_id: int
    version: int = FORMAT_VERSION

    def encode(self) -> bytes:
        """The 64 bytes."""
        start = (SEGMENT_MAGIC, self.version, SEGMENT_HEADER_BYTES, 0)
        fields = (self.number, self.first_position, self.created_us, self.instance_id)
        packed = _SEGMENT_HEADER.pack(*start, *fields, bytes(12), 0)
        return packed[: -_CRC.size] + _CRC.pack(zlib.crc32(packed[: -_CRC.size]))

    @classmethod
    def decode(cls, data: bytes) -> SegmentHeader:
        """Read a header back.

        Raises:
            NewerVersionError: A newer version has written it.
            JournalFormatError: The bytes are too few, of another format, or damaged.
        """
        if len(data) < SEGMENT_HEADER_BYTES:
            raise JournalFormatError(0, f"a segment header has 64 bytes, found {len(data)}")
        head = data[:SEGMENT_HEADER_BYTES]
        fields = _SEGMENT_HEADER.unpack(head)
        if fields[0] != SEGMENT_MAGIC:
            raise JournalFormatError(0, "not a journal segment: the magic is missing")
        if fields[1] > FORMAT_VERSION:
            raise NewerVersionError(8, _newer("journal", fields[1]))
        if zlib.crc32(head[: -_CRC.size]) != fields[9]:
            raise JournalFormatError(0, "the checksum of the segment header is wrong")
        return cls(fields[4], fields[5], fields[6], fields[7], fields[1])


def segment_name(number: int) -> str:
    """The file name of a segment: `journal.00000001`."""
    return f"journal.{number:08d}"


def manifest_name(number: int) -> str:
    """The file name of a segment's manifest: `journal.00000001.manifest.json`."""
    return f"{segment_name(number)}.manifest.json"


def segment_number(name: str) -> int | None:
    """The number in the name of a segment's file, compressed or not; `None` for any other file."""
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


def encode_block(
    records: bytes,
    *,
    count: int,
    first_position: int,
    segment: int,
    offset: int,
    durable: DurablePlace = NOT_DURABLE,
) -> bytes:
    """A block: its header and `records`, which are `count` whole records.

    Args:
        records: What it holds.
        count: How many they are.
        first_position: Position of the first data record, or of the next one.
        segment: Number of the segment that it is written to.
        offset: Where in the segment.
        durable: How far the log is known to be on the disk.
    """
    header = BLOCK_HEADER.pack(
        BLOCK_MAGIC,
        FORMAT_VERSION,
        0,
        count,
        len(records),
        zlib.crc32(records),
        first_position,
        offset,
        segment,
        *durable,
        0,
    )[:_CRC_AT]
    return b"".join((header, _CRC.pack(zlib.crc32(header)), records))


def encode_start(start: LogStart, *, now_us: int) -> bytes:
    """The record of a start."""
    return encode_record(
        Record(
            0, start.id, start.first_position, now_us, 0, RecordCommand.START, payload=start.boot_id
        )
    )


def read_start(record: Record) -> LogStart:
    """Decode a record of command `START`."""
    return LogStart(record.publisher_id, record.sequence, record.payload)


def encode_removals(
    queue: bytes, message_type: bytes, entries: Sequence[tuple[int, int, int]], *, now_us: int
) -> bytes:
    """The record of some removals from a queue.

    Args:
        queue: The name of the queue.
        message_type: Its message type.
        entries: Publisher id, sequence and reason of each message, at most `MAX_QUEUE_ENTRIES`.
        now_us: Time of the record, in microseconds since 1970.
    """
    pack = QUEUE_ENTRY.pack
    return encode_record(
        Record(
            0,
            0,
            0,
            now_us,
            0,
            RecordCommand.QUEUE_REMOVE,
            key=queue,
            correlation_id=message_type,
            payload=b"".join([pack(*entry) for entry in entries]),
        )
    )


def read_removals(record: Record) -> Removals:
    """Decode a record of command `QUEUE_REMOVE`.

    Raises:
        JournalFormatError: The payload is not a list of entries.
    """
    size, length = QUEUE_ENTRY.size, len(record.payload)
    if length % size:
        what = f"removals from a queue are entries of {size} bytes, found {length} bytes"
        raise JournalFormatError(0, what)
    entries = [Removal(*fields) for fields in QUEUE_ENTRY.iter_unpack(record.payload)]
    return Removals(record.key, record.correlation_id, entries)


def read_block_header(
    data: bytes | memoryview, offset: int, *, segment: int, base: int = 0
) -> BlockHeader | None:
    """The block header at `offset` of a segment; `None` when there are only zeros.

    Args:
        data: Bytes of the segment.
        offset: Where the header is in the segment.
        segment: Number of the segment.
        base: Where `data` begins in the segment.

    Raises:
        JournalFormatError: The bytes are neither zeros nor a whole block header of this place.
    """
    head = bytes(data[offset - base : offset - base + BLOCK_HEADER_BYTES])
    if not head.strip(b"\0"):
        return None
    if len(head) < BLOCK_HEADER_BYTES:
        raise JournalFormatError(offset, "a block header is cut short")
    magic, version, _, *fields, own = BLOCK_HEADER.unpack(head)
    count, length, checksum, position, at, number, *durable = fields
    if magic != BLOCK_MAGIC or not 1 <= version <= FORMAT_VERSION:
        raise JournalFormatError(offset, "no block starts here")
    if zlib.crc32(head[:_CRC_AT]) != own:
        raise JournalFormatError(offset, "the checksum of a block header is wrong")
    if (number, at) != (segment, offset):
        what = f"this block belongs to byte {at} of segment {number}"
        raise JournalFormatError(offset, what)
    return BlockHeader(offset, count, length, checksum, position, DurablePlace(*durable))


def read_blocks(
    data: bytes | memoryview, offset: int = 0, *, segment: int, base: int = 0
) -> Iterator[BlockHeader]:
    """All blocks of a segment from `offset` on, each verified by both checksums.

    Ends where zeros begin, or at the end of `data`. It shares the rules of
    `haclient_stores.disk.checksummed_log`, not its code: a reader of a journal needs no stores.

    Args:
        data: Bytes of the segment; of a `memoryview` nothing is copied.
        offset: Where the first of them is in the segment.
        segment: Number of the segment.
        base: Where `data` begins in the segment.

    Raises:
        JournalFormatError: A block is not whole, or not in its place.
    """
    while (block := read_block_header(data, offset, segment=segment, base=base)) is not None:
        body = data[block.start - base : block.end - base]
        if len(body) < block.length:
            raise JournalFormatError(offset, "a block is cut short")
        if zlib.crc32(body) != block.checksum:
            raise JournalFormatError(offset, "the checksum of a block is wrong")
        yield block
        offset = block.end


def whole_blocks(data: bytes) -> int:
    """The number of bytes of `data` in whole blocks; without one, minus the size of the first."""
    offset, size, length_at = 0, len(data), BLOCK_LENGTH.unpack_from
    while size - offset >= BLOCK_HEADER_BYTES:
        after = offset + BLOCK_HEADER_BYTES + length_at(data, offset + BLOCK_LENGTH_AT)[0]
        if after > size:
            return offset or -after
        offset = after
    return offset


def checked_blocks(data: bytes, *, segment: int, base: int) -> int:
    """As `whole_blocks`, of blocks whose places and checksums are right.

    It walks over the blocks once and unpacks only what it needs: much faster than `read_blocks`.

    Args:
        data: Blocks, of which the last one may be cut short.
        segment: Number of the segment.
        base: Where `data` begins in the segment.

    Raises:
        JournalFormatError: A block is damaged.
    """
    at, size, unpack, crc32 = 0, len(data), _BLOCK_CHECKS.unpack_from, zlib.crc32
    view = memoryview(data)
    while size - at >= BLOCK_HEADER_BYTES:
        length, checksum, place, number, own = unpack(data, at)
        if crc32(data[at : at + _CRC_AT]) != own or place != base + at or number != segment:
            break
        start = at + BLOCK_HEADER_BYTES
        end = start + length
        if end > size:
            return at or -end
        if crc32(view[start:end]) != checksum:
            break
        at = end
    else:
        return at
    for _ in read_blocks(view, base + at, segment=segment, base=base):  # say what is wrong
        pass
    raise JournalFormatError(base + at, "zeros where a block should be")


def whole_blocks_after(data: bytes, offset: int, *, segment: int) -> Iterator[BlockHeader]:
    """The whole blocks of a segment at or after `offset` that are where they belong.

    This is for searching beyond the end of a log, where there may be anything between blocks.
    """
    at = data.find(BLOCK_MAGIC, offset)
    while at >= 0:
        try:
            block = next(read_blocks(data, at, segment=segment), None)
        except JournalFormatError:
            block = None  # the letters of the magic in a payload, or another damaged block
        if block is not None:
            yield block
        at = data.find(BLOCK_MAGIC, at + 1 if block is None else block.end)


def _newer(what: str, version: int) -> str:
    return (
        f"{what} version {version}, but this version of haclient reads up to {FORMAT_VERSION}: "
        "use the newer one"
    )


def blocks_of(chunk: bytes) -> Iterator[tuple[int, int]]:
    """First and last byte of the records of each block in a chunk of whole blocks."""
    offset, size, length_at = 0, len(chunk), BLOCK_LENGTH.unpack_from
    while size - offset >= BLOCK_HEADER_BYTES:
        start = offset + BLOCK_HEADER_BYTES
        offset = start + length_at(chunk, offset + BLOCK_LENGTH_AT)[0]
        yield start, offset


def headers(chunk: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Offset and fields of the header of each record in a chunk of whole blocks.

    Raises:
        JournalFormatError: A length does not fit, which no broker writes.
    """
    # Not by way of `headers_between`: with one record a block that takes twice the time.
    at, size, unpack, length_at = 0, len(chunk), RECORD_HEADER.unpack_from, BLOCK_LENGTH.unpack_from
    try:
        while at < size:
            end = at + BLOCK_HEADER_BYTES + length_at(chunk, at + BLOCK_LENGTH_AT)[0]
            at += BLOCK_HEADER_BYTES
            while at < end:
                fields: tuple[int, ...] = unpack(chunk, at)
                after = at + fields[0]
                body = at + RECORD_HEADER_BYTES + fields[3] + fields[9] + fields[10]
                if body > after or after > end:
                    raise JournalFormatError(at, _WRONG_LENGTHS)
                yield at, fields
                at = after
    except struct.error as error:
        raise JournalFormatError(at, "a record header is cut short") from error


def headers_between(data: bytes, start: int, end: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """As `headers`, for the records between two offsets, usually those of one block."""
    at, unpack = start, RECORD_HEADER.unpack_from
    try:
        while at < end:
            fields: tuple[int, ...] = unpack(data, at)
            after = at + fields[0]
            if at + RECORD_HEADER_BYTES + fields[3] + fields[9] + fields[10] > after or after > end:
                raise JournalFormatError(at, _WRONG_LENGTHS)
            yield at, fields
            at = after
    except struct.error as error:
        raise JournalFormatError(at, "a record header is cut short") from error


def read_records(data: bytes, start: int, end: int) -> Iterator[Record]:
    """The records between two offsets, usually those of one block.

    Raises:
        JournalFormatError: A length does not fit, which checksummed blocks never show.
    """
    offset = start
    while offset < end:
        if end - offset < RECORD_HEADER_BYTES:
            raise JournalFormatError(offset, "a record header is cut short")
        record, offset = read_record(data, offset, end)
        yield record


def read_record(data: bytes, offset: int, end: int) -> tuple[Record, int]:
    """The record at an offset, and the offset after it.

    Raises:
        JournalFormatError: A length does not fit, which checksummed blocks never show.
    """
    fields = RECORD_HEADER.unpack_from(data, offset)
    length, flags, command, expiration_bytes, position, publisher_id, sequence = fields[:7]
    timestamp_us, topic_id, key_bytes, correlation_bytes = fields[7:]
    key_at = offset + RECORD_HEADER_BYTES
    correlation_at = key_at + key_bytes
    expiration_at = correlation_at + correlation_bytes
    payload_at = expiration_at + expiration_bytes
    after = offset + length
    if after > end or payload_at > after or expiration_bytes not in {0, EXPIRATION.size}:
        raise JournalFormatError(offset, _WRONG_LENGTHS)
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

    def likely(self, wanted: Mapping[int, Sequence[int]]) -> frozenset[tuple[int, int]]:
        """Those messages that it may hold, as pairs.

        Args:
            wanted: The sequences of the messages by publisher id, rising.
        """
        found: list[tuple[int, int]] = []
        for publisher_id in wanted.keys() & self.publishers.keys():
            low, high = self.publishers[publisher_id]
            sequences = wanted[publisher_id]
            begin, end = bisect_left(sequences, low), bisect_right(sequences, high)
            found += [(publisher_id, sequence) for sequence in sequences[begin:end]]
        return frozenset(found)


def with_crc32(content: Mapping[str, object]) -> dict[str, object]:
    """A JSON object with `crc32`, the checksum of its text without that field."""
    return {**content, "crc32": _crc32_of(content)}


def check_crc32(content: Mapping[str, object]) -> None:
    """Compare `crc32` with the other fields of a JSON object; one that lacks it is accepted.

    Raises:
        ValueError: The content has changed.
    """
    rest = dict(content)
    checksum = rest.pop("crc32", None)
    if checksum is not None and checksum != _crc32_of(rest):
        raise ValueError("its checksum does not match")


def _crc32_of(content: Mapping[str, object]) -> int:
    return zlib.crc32(json.dumps(content).encode("ascii"))


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
        archived: The segment is in the archive of the journal.
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
    archived: bool = False
    topics: dict[int, tuple[str, str]] = field(default_factory=dict[int, tuple[str, str]])
    index: list[Stride] = field(default_factory=list[Stride])

    def to_json(self) -> str:
        """One JSON object; topics that are not UTF-8 keep their bytes as surrogate escapes."""
        fields = asdict(self)
        if not self.archived:  # earlier versions refuse a field that they do not know
            del fields["archived"]
        return json.dumps(with_crc32({"format": FORMAT_VERSION, **fields}))

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Read a manifest back.

        Raises:
            NewerVersionError: A newer version has written it.
            JournalFormatError: The text is not a manifest.
        """
        try:
            fields = cast("dict[str, Any]", json.loads(text))
            version: int = fields.pop("format")
            if version > FORMAT_VERSION:  # its fields may be others
                raise NewerVersionError(0, _newer("manifest", version))
            check_crc32({"format": version, **fields})
            fields.pop("crc32", None)
            topics = {int(number): tuple(names) for number, names in fields.pop("topics").items()}
            index = [_stride(**entry) for entry in fields.pop("index")]
            manifest = cls(topics=topics, index=index, **fields)
        except JournalFormatError:  # a newer version, which is reported as that
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            # JSON that is malformed, or of another shape
            raise JournalFormatError(0, f"not a journal manifest: {error}") from error
        return manifest


def _stride(
    *, position: int, offset: int, timestamp_us: int, publishers: dict[str, list[int]]
) -> Stride:
    ranges = {int(number): (low, high) for number, (low, high) in publishers.items()}
    return Stride(position, offset, timestamp_us, ranges)

"""The engine's side of the journal: the blocks to write, and how they are read back.

The engine never writes. It builds one `Block` per batch; the shell writes it and only then sends
what the same batch sends to clients. For replay it reads through a `JournalReader`,
which may be in memory or in files: cursors mark places between blocks, and every chunk that is read
consists of whole blocks.

`BlockIndex` is the sparse index that every journal keeps per segment: to find a position, a time or
a bookmark it names a stride of at least 256 KiB, and the records of that stride are scanned.
"""

from __future__ import annotations

import bisect
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from typing_extensions import override

from haclient_fake_server.journal.format import (
    BLOCK_HEADER_BYTES,
    INDEX_STRIDE_BYTES,
    SEGMENT_HEADER_BYTES,
    JournalFormatError,
    LogStart,
    Manifest,
    Record,
    RecordCommand,
    RecordFlag,
    Stride,
    blocks_of,
    encode_block,
    headers,
    headers_between,
    read_records,
    whole_blocks,
)


@dataclass(frozen=True, slots=True)
class Block:
    """The records that one batch writes to the journal.

    Attributes:
        records: Its records, encoded one after the other.
        count: The number of records.
        first_position: Position of its first record with one, or of the next when it has none.
        next_position: The position that follows it.
        first_us: Time of its first record.
        last_us: Time of its last record.
        publishers: By publisher id, the lowest and highest sequence of its records with a position.
        definitions: Its topic definitions, `(topic id, message type, topic)`.
        assigned: Those of its publishers whose sequences this instance assigns.
        marks: If it begins a segment, the marks that it repeats: `(publisher id, sequence, flags)`.
    """

    records: bytes
    count: int
    first_position: int
    next_position: int
    first_us: int
    last_us: int
    publishers: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    definitions: tuple[tuple[int, str, str], ...] = ()
    assigned: frozenset[int] = frozenset()
    marks: tuple[tuple[int, int, int], ...] = ()


MAX_SEARCHED_STRIDES: Final = 200
"""What a search for a list of messages reads at most, in parts of 256 KiB: less than a second.
Where the messages are in the journal, one or two parts are enough."""


class SearchTooLong(Exception):
    """A search would have to read more than `MAX_SEARCHED_STRIDES`."""


class Cursor(NamedTuple):
    """A place in the log: between two blocks, or where a record begins."""

    segment: int
    offset: int


def records_of(data: bytes) -> Iterator[Record]:
    """All records of a chunk of whole blocks; marks and definitions included."""
    for start, end in blocks_of(data):
        yield from read_records(data, start, end)


class BlockIndex:
    """The sparse index of one segment."""

    def __init__(self, strides: list[Stride] | None = None) -> None:
        self.strides: list[Stride] = [] if strides is None else strides

    def add(self, block: Block, offset: int) -> None:
        """Add a block that was written at `offset`."""
        strides = self.strides
        if not strides or offset - strides[-1].offset >= INDEX_STRIDE_BYTES:
            strides.append(Stride(block.first_position, offset, block.first_us))
        strides[-1].add(block.publishers)

    def stride_of_position(self, position: int) -> int | None:
        """Number of the last stride that starts at or before a position."""
        at = bisect.bisect_right(self.strides, position, key=lambda stride: stride.position)
        return at - 1 if at else None

    def stride_of_offset(self, offset: int) -> int | None:
        """Number of the last stride that starts at or before an offset."""
        at = bisect.bisect_right(self.strides, offset, key=lambda stride: stride.offset)
        return at - 1 if at else None

    def stride_of_time(self, timestamp_us: int) -> int | None:
        """Number of the last stride that starts before a time."""
        at = bisect.bisect_left(self.strides, timestamp_us, key=lambda stride: stride.timestamp_us)
        return at - 1 if at else None

    def strides_of_bookmark(self, publisher_id: int, sequence: int) -> Iterator[int]:
        """Numbers of the strides that may hold a message; usually none or one."""
        for number, stride in enumerate(self.strides):
            low, high = stride.publishers.get(publisher_id, (1, 0))
            if low <= sequence <= high:
                yield number

    def stride_beyond(self, vector: Mapping[int, int]) -> int | None:
        """Number of the first stride with a sequence beyond its publisher's in the vector."""
        for number, stride in enumerate(self.strides):
            for publisher_id, (_, high) in stride.publishers.items():
                if high > vector.get(publisher_id, 0):
                    return number
        return None

    def stride_after(self, vector: Mapping[int, int]) -> int | None:
        """As `stride_beyond`, of the publishers in the vector alone."""
        for number, stride in enumerate(self.strides):
            for publisher_id in vector.keys() & stride.publishers.keys():
                if stride.publishers[publisher_id][1] > vector[publisher_id]:
                    return number
        return None

    def span(self, number: int, end: int) -> tuple[int, int]:
        """First byte of a stride and the first after it; `end` is that of the segment's data."""
        after = self.strides[number + 1].offset if number + 1 < len(self.strides) else end
        return self.strides[number].offset, after


def find_in_chunk(data: bytes, publisher_id: int, sequence: int) -> int | None:
    """The position of a message in a chunk of whole blocks.

    It searches for the sixteen bytes of publisher and sequence first, and decodes only the blocks
    that contain them, since a returning client waits for the result.
    """
    needle = publisher_id.to_bytes(8, "little") + sequence.to_bytes(8, "little")
    at = data.find(needle)
    if at < 0:
        return None
    for start, end in blocks_of(data):
        if at >= end:
            continue
        for record in read_records(data, start, end):
            if record.is_data and (record.publisher_id, record.sequence) == (
                publisher_id,
                sequence,
            ):
                return record.position
        at = data.find(needle, end)  # those were the bytes of some payload
        if at < 0:
            return None
    return None


def positions_in(data: bytes, wanted: Collection[tuple[int, int]]) -> list[int]:
    """The positions of some messages in a chunk of whole blocks, rising.

    Args:
        data: The chunk.
        wanted: Publisher id and sequence of each.
    """
    if len(wanted) == 1:
        ((publisher_id, sequence),) = wanted
        found = find_in_chunk(data, publisher_id, sequence)
        return [] if found is None else [found]
    mark = int(RecordCommand.MARK)
    return [
        fields[4]
        for _, fields in headers(data)
        if (fields[5], fields[6]) in wanted and fields[4] and fields[2] != mark
    ]


def first_at_or_after(data: bytes, timestamp_us: int) -> int | None:
    """The position of the first data record at or after a time in a chunk of whole blocks."""
    for _, fields in headers(data):
        if fields[4] and fields[7] >= timestamp_us:
            return fields[4]
    return None


@dataclass(slots=True)
class Segment:
    """One part of a journal: a header and blocks, with their manifest.

    Attributes:
        manifest: The summary of its contents.
        index: The sparse index, the same object as the manifest's.
    """

    manifest: Manifest
    index: BlockIndex

    @property
    def end(self) -> int:
        """Offset of the first byte that was not written."""
        return self.manifest.data_bytes

    @property
    def number(self) -> int:
        """The number in its name."""
        return self.manifest.number

    def add(self, block: Block, offset: int, end: int) -> None:
        """Add a block that lies between two offsets."""
        manifest = self.manifest
        self.index.add(block, offset)
        manifest.data_bytes = end
        manifest.next_position = block.next_position
        manifest.first_us = manifest.first_us or block.first_us
        manifest.last_us = block.last_us


class JournalReader(ABC):
    """The engine's read access to a journal, whether its segments are in memory or in files.

    A subclass keeps the segments, reads and checks their bytes; this class searches them. No call
    takes longer than reading cached pages.
    """

    @property
    @abstractmethod
    def segments(self) -> Mapping[int, Segment]:
        """The segments by number, the oldest first; there is at least one."""

    @property
    @abstractmethod
    def live(self) -> Segment:
        """The last segment, to which blocks are appended."""

    @property
    @abstractmethod
    def log_starts(self) -> tuple[LogStart, ...]:
        """The most recent starts of this log, the youngest last, which is that of this broker."""

    @property
    @abstractmethod
    def durable_position(self) -> int:
        """The last position that is known to be synced to a disk; 0 for none."""

    @abstractmethod
    def summary(self) -> bytes:
        """Blocks with every topic, every publisher's highest sequence and the last time."""

    @abstractmethod
    def read_bytes(self, number: int, count: int, offset: int) -> bytes:
        """Bytes of a segment.

        Args:
            number: The segment's.
            count: How many bytes, all of which were written.
            offset: Of the first one.
        """

    def whole_blocks(self, data: bytes, number: int, offset: int) -> int:
        """How many of some bytes that were read are whole blocks, whose checksums are right.

        Without a whole block it is minus the size of the first one. In memory no checksum can be
        wrong, so there is nothing to check.

        Args:
            data: The bytes, which begin with a block.
            number: Number of their segment.
            offset: Where they begin in it.

        Raises:
            StoreError: A block is damaged; the error names the file and the place.
        """
        del number, offset
        return whole_blocks(data)

    def damage(self, number: int, offset: int, what: str) -> Exception:
        """The error that names damage in a segment and its place."""
        return JournalFormatError(offset, f"segment {number}: {what}")

    def has_segment(self, number: int) -> bool:
        """Whether the bytes of a segment can still be read: its file may have been removed.

        Raises:
            StoreError: Its directory is not there now, as of a file system that is not mounted.
        """
        return number in self.segments

    @property
    def first_position(self) -> int:
        """The oldest position in the journal; `next_position` if it is empty."""
        return next(iter(self.segments.values())).manifest.first_position

    @property
    def next_position(self) -> int:
        """The position that the next data record will get."""
        return self.live.manifest.next_position

    def strides_from(self, position: int) -> Iterator[tuple[Segment, int]]:
        """Segment and number of each stride from the one that has a position on.

        Blocks may be appended meanwhile. Strides of segments that are begun later are left out.
        """
        for number in sorted(self.segments):
            segment = self.segments[number]
            if segment.manifest.next_position > position:
                at = segment.index.stride_of_position(position) or 0
                while at < len(segment.index.strides):
                    yield segment, at
                    at += 1

    def read_stride(self, segment: Segment, number: int, max_bytes: int) -> Iterator[bytes]:
        """The blocks of a stride in chunks of about `max_bytes`; a longer block comes alone."""
        offset, end = segment.index.span(number, segment.end)
        while offset < end:
            chunk, after = self.read(Cursor(segment.number, offset), min(max_bytes, end - offset))
            offset = after.offset
            yield chunk

    def seek(self, position: int) -> Cursor:
        """The cursor nearest before `position`; a few earlier records come first."""
        live = self.live
        if position >= live.manifest.next_position:
            return Cursor(live.number, live.end)
        for number in sorted(self.segments, reverse=True):
            segment = self.segments[number]
            if segment.manifest.first_position <= position:
                stride = segment.index.stride_of_position(position)
                if stride is None:
                    return Cursor(number, SEGMENT_HEADER_BYTES)
                return Cursor(number, segment.index.strides[stride].offset)
        return Cursor(min(self.segments), SEGMENT_HEADER_BYTES)

    def read(self, cursor: Cursor, max_bytes: int) -> tuple[bytes, Cursor]:
        """Whole blocks from `cursor` on and the cursor after them; empty at the end.

        It returns at least one block if there is one, even if that is longer than `max_bytes`.
        """
        number, offset = cursor
        if number not in self.segments:  # it was removed once its last reader had passed its end
            number, offset = next(iter(self.segments)), SEGMENT_HEADER_BYTES
        segment = self.segments[number]
        while offset >= segment.end:
            if segment is self.live:
                return b"", Cursor(number, offset)
            number += 1
            segment, offset = self.segments[number], SEGMENT_HEADER_BYTES
        count = max(max_bytes, BLOCK_HEADER_BYTES)
        data = self.read_bytes(number, min(count, segment.end - offset), offset)
        usable = self.whole_blocks(data, number, offset)
        if usable < 0:
            data = self.read_bytes(number, min(-usable, segment.end - offset), offset)
            usable = max(self.whole_blocks(data, number, offset), 0)
        return data[:usable], Cursor(number, offset + usable)

    def block_at(self, number: int, offset: int) -> Cursor:
        """The place of the block that has a record at an offset of a segment."""
        index = self.segments[number].index
        stride = index.stride_of_offset(offset)
        start = SEGMENT_HEADER_BYTES if stride is None else index.strides[stride].offset
        at, before = 0, self.read_bytes(number, offset - start, start)
        # Nobody has checked these lengths. A wrong one leads to a place where no block begins,
        # which the next read refuses.
        for _, end in blocks_of(before):
            if end > len(before):
                break
            at = end
        return Cursor(number, start + at)

    def find(self, publisher_id: int, sequence: int) -> int | None:
        """The position of a message, `None` when it is not in this journal."""
        for segment in self.segments.values():
            for stride in segment.index.strides_of_bookmark(publisher_id, sequence):
                found = find_in_chunk(self._read_stride(segment, stride), publisher_id, sequence)
                if found is not None:
                    return found
        return None

    def find_outermost(
        self, wanted: Mapping[int, Sequence[int]], *, last: bool = False
    ) -> int | None:
        """The lowest position of some messages, `None` when none of them is in this journal.

        The part of the journal that may hold it is read once, however many messages there are.

        Args:
            wanted: The sequences of the messages by publisher id, rising.
            last: Find the highest position instead.

        Raises:
            SearchTooLong: More of the journal would have to be read than `MAX_SEARCHED_STRIDES`.
        """
        read = 0
        for number in sorted(self.segments, reverse=last):
            segment = self.segments[number]
            strides = range(len(segment.index.strides))
            for at in reversed(strides) if last else strides:
                likely = segment.index.strides[at].likely(wanted)
                if not likely:
                    continue
                if read == MAX_SEARCHED_STRIDES:
                    raise SearchTooLong
                read += 1
                found = positions_in(self._read_stride(segment, at), likely)
                if found:
                    return found[-1 if last else 0]
        return None

    def last_before(self, position: int) -> Record | None:
        """The last message or delete before a position, `None` when there is none."""
        for number in sorted(self.segments, reverse=True):
            segment = self.segments[number]
            for at in reversed(range(len(segment.index.strides))):
                if segment.index.strides[at].position >= position:
                    continue
                records = records_of(self._read_stride(segment, at))
                found = [each for each in records if each.is_data and each.position < position]
                if found:
                    return found[-1]
        return None

    def highest_before(self, position: int) -> dict[int, int]:
        """By publisher id, the highest sequence of its messages and marks before a position."""
        number = max(
            n for n, each in self.segments.items() if each.manifest.first_position <= position
        )
        segment = self.segments[number]
        first_block, _ = self.read(Cursor(number, SEGMENT_HEADER_BYTES), 0)
        highest = {
            each.publisher_id: each.sequence
            for each in records_of(first_block)
            if each.command == RecordCommand.MARK and not each.position
        }
        at = segment.index.stride_of_position(position - 1)
        for stride in segment.index.strides[:at] if at is not None else ():
            highest.update({number: high for number, (_, high) in stride.publishers.items()})
        for record in records_of(self._read_stride(segment, at)) if at is not None else ():
            if 0 < record.position < position:
                highest[record.publisher_id] = record.sequence
        return highest

    def at_time(self, timestamp_us: int) -> int:
        """The position of the first record at or after a time in microseconds since 1970."""
        for segment in self.segments.values():
            if segment.manifest.last_us < timestamp_us:
                continue
            stride = segment.index.stride_of_time(timestamp_us)
            if stride is None:
                return segment.manifest.first_position
            found = first_at_or_after(self._read_stride(segment, stride), timestamp_us)
            if found is not None:
                return found
            following = segment.index.strides[stride + 1 : stride + 2]
            return following[0].position if following else segment.manifest.next_position
        return self.next_position

    def first_beyond(self, vector: Mapping[int, int]) -> int:
        """No record before this position is beyond a vector, by publisher id the highest sequence.

        Some that follow may be within it, too. `next_position` when nothing is beyond it.
        """
        for segment in self.segments.values():
            stride = segment.index.stride_beyond(vector)
            if stride is not None:
                return segment.index.strides[stride].position
        return self.next_position

    def first_after(self, vector: Mapping[int, int]) -> int | None:
        """As `first_beyond`, of the publishers in the vector alone; `None` for nothing."""
        for segment in self.segments.values():
            stride = segment.index.stride_after(vector)
            if stride is not None:
                return segment.index.strides[stride].position
        return None

    def _read_stride(self, segment: Segment, number: int) -> bytes:
        start, end = segment.index.span(number, segment.end)
        data = self.read_bytes(segment.number, end - start, start)
        return data[: max(self.whole_blocks(data, segment.number, start), 0)]


class MemoryJournal(JournalReader):
    """A journal that ends with the process: for tests, and for brokers without a directory.

    Args:
        start_id: A random number of 64 bits; each start of such a broker begins a new log.
    """

    def __init__(self, start_id: int = 0) -> None:
        self._start = LogStart(start_id, 1)
        manifest = Manifest(number=1, first_position=1, next_position=1)
        self._segment = Segment(manifest, BlockIndex(manifest.index))
        self._segments = {1: self._segment}
        self._data = bytearray(SEGMENT_HEADER_BYTES)

    def append(self, block: Block) -> None:
        """Keep a block."""
        offset = len(self._data)
        self._data += encode_block(
            block.records,
            count=block.count,
            first_position=block.first_position,
            segment=1,
            offset=offset,
        )
        self._segment.add(block, offset, len(self._data))

    @property
    @override
    def segments(self) -> Mapping[int, Segment]:
        return self._segments

    @property
    @override
    def live(self) -> Segment:
        return self._segment

    @property
    @override
    def log_starts(self) -> tuple[LogStart, ...]:
        return (self._start,)

    @property
    @override
    def durable_position(self) -> int:
        return 0

    @override
    def summary(self) -> bytes:
        return bytes(self._data[SEGMENT_HEADER_BYTES:])

    @override
    def read_bytes(self, number: int, count: int, offset: int) -> bytes:
        return bytes(self._data[offset : offset + count])


@dataclass(slots=True)
class Scan:
    """The summary of some records.

    Attributes:
        publishers: By publisher id, the lowest and highest sequence of its records with a position.
        assigned: Those of them whose sequences an instance assigned.
        confirmed: Whether every synchronous destination had these records before this instance.
        special: The records without a position (definitions, starts, repeated marks), whole; not
            the removals from queues, of which there may be many.
        last_position: The highest position, 0 when there is none.
        last: Publisher and sequence of the last message or delete.
        first_us: Time of the first record.
        last_us: Time of the last record.
    """

    publishers: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    assigned: set[int] = field(default_factory=set[int])
    confirmed: bool = False
    special: list[Record] = field(default_factory=list[Record])
    last_position: int = 0
    last: tuple[int, int] | None = None
    first_us: int = 0
    last_us: int = 0


def scan(data: bytes, start: int, end: int) -> Scan:
    """Summarize the whole records between two offsets, usually those of one block.

    A broker that starts reads whole segments. This unpacks headers only, several times faster than
    reading records.

    Raises:
        JournalFormatError: A definition or mark is malformed.
    """
    result = Scan()
    publishers, mark = result.publishers, int(RecordCommand.MARK)
    removal = int(RecordCommand.QUEUE_REMOVE)
    assigned, confirmed = int(RecordFlag.ASSIGNED), int(RecordFlag.CONFIRMED)
    for offset, fields in headers_between(data, start, end):
        if offset == start:
            result.first_us = fields[7]
        result.last_us = fields[7]
        if fields[2] == removal:
            pass
        elif not fields[4]:
            result.special += read_records(data, offset, offset + fields[0])
        else:
            publisher, sequence = fields[5], fields[6]
            known = publishers.get(publisher)
            publishers[publisher] = (known[0] if known else sequence, sequence)
            if fields[1] & assigned:
                result.assigned.add(publisher)
            result.confirmed = bool(fields[1] & confirmed)  # one source for each block
            result.last_position = fields[4]
            if fields[2] != mark:
                result.last = (publisher, sequence)
    return result

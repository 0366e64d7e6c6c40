"""The engine's side of the journal: blocks that it wants written, and how it reads them back.

The engine never writes. It builds one `Block` per batch; the shell writes it and only then sends
what the same batch has to say to clients. For replay it reads through a `JournalReader`,
which may be in memory or in files: cursors mark places between blocks, and every chunk that is read
consists of whole blocks.

`BlockIndex` is the sparse index that every journal keeps per segment: to find a position, a time or
a bookmark it names a stride of at least 256 KiB, and the records of that stride are scanned.
"""

from __future__ import annotations

import bisect
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from typing_extensions import override

from haclient_fake_server.journal.format import (
    BLOCK_HEADER_BYTES,
    BLOCK_LENGTH,
    BLOCK_LENGTH_AT,
    INDEX_STRIDE_BYTES,
    RECORD_HEADER,
    LogStart,
    Record,
    Stride,
    encode_block,
    read_records,
)

__all__ = [
    "Block",
    "BlockIndex",
    "Cursor",
    "JournalReader",
    "MemoryJournal",
    "blocks_of",
    "records_of",
    "whole_blocks",
]


@dataclass(frozen=True, slots=True)
class Block:
    """What one batch wants written.

    Attributes:
        records: Its records, encoded one behind the other.
        count: How many they are.
        first_position: Position of its first data record, or of the next one when it has none.
        next_position: The position that follows it.
        first_us: Time of its first record.
        last_us: Time of its last record.
        publishers: By publisher id, the lowest and highest sequence of its data records.
        definitions: Its topic definitions, `(topic id, message type, topic)`.
        assigned: Those of its publishers whose sequences this instance assigns.
        marks: Its marks, `(publisher id, sequence, flags)`.
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


class Cursor(NamedTuple):
    """A place between two blocks."""

    segment: int
    offset: int


class JournalReader(Protocol):
    """What replay needs of a journal. Nothing here waits longer than a read of cached pages."""

    @property
    @abstractmethod
    def first_position(self) -> int:
        """The oldest position that is still there; `next_position` when there is none."""

    @property
    @abstractmethod
    def next_position(self) -> int:
        """The position that the next data record will get."""

    @property
    @abstractmethod
    def log_starts(self) -> tuple[LogStart, ...]:
        """The most recent starts of this log, the youngest last, which is that of this broker."""

    @abstractmethod
    def summary(self) -> bytes:
        """Blocks that tell every topic, every publisher's highest sequence and the last time."""

    @abstractmethod
    def seek(self, position: int) -> Cursor:
        """The cursor from which reading meets `position` soonest; some records before it, too."""

    @abstractmethod
    def read(self, cursor: Cursor, max_bytes: int) -> tuple[bytes, Cursor]:
        """Whole blocks from `cursor` on and the cursor after them; empty at the end.

        At least one block where there is one, even when it is longer than `max_bytes`.
        """

    @abstractmethod
    def find(self, publisher_id: int, sequence: int) -> int | None:
        """The position of a message, `None` when it is not in this journal."""

    @abstractmethod
    def at_time(self, timestamp_us: int) -> int:
        """The position of the first record at or after a time."""

    @abstractmethod
    def first_beyond(self, vector: Mapping[int, int]) -> int:
        """No record before this position is beyond a vector, by publisher id the highest sequence.

        Some that follow may be within it, too. `next_position` when nothing is beyond it.
        """


def records_of(data: bytes) -> Iterator[Record]:
    """All records of a chunk of whole blocks; marks and definitions included."""
    for start, end in blocks_of(data):
        yield from read_records(data, start, end)


def blocks_of(chunk: bytes) -> Iterator[tuple[int, int]]:
    """First and last byte of the records of each block in a chunk of whole blocks."""
    offset, size, length_at = 0, len(chunk), BLOCK_LENGTH.unpack_from
    while offset < size:
        start = offset + BLOCK_HEADER_BYTES
        offset = start + length_at(chunk, offset + BLOCK_LENGTH_AT)[0]
        yield start, offset


def whole_blocks(data: bytes) -> int:
    """How many bytes of `data` are whole blocks; if not even one is: minus what it needs."""
    offset, size, length_at = 0, len(data), BLOCK_LENGTH.unpack_from
    while size - offset >= BLOCK_HEADER_BYTES:
        after = offset + BLOCK_HEADER_BYTES + length_at(data, offset + BLOCK_LENGTH_AT)[0]
        if after > size:
            return offset or -after
        offset = after
    return offset


class BlockIndex:
    """The sparse index of one segment."""

    def __init__(self, strides: list[Stride] | None = None) -> None:
        self.strides: list[Stride] = [] if strides is None else strides

    def add(self, block: Block, offset: int) -> None:
        """Take in a block that was written at `offset`."""
        strides = self.strides
        if not strides or offset - strides[-1].offset >= INDEX_STRIDE_BYTES:
            strides.append(Stride(block.first_position, offset, block.first_us))
        strides[-1].add(block.publishers)

    def stride_of_position(self, position: int) -> int | None:
        """Number of the last stride that starts at or before a position."""
        at = bisect.bisect_right(self.strides, position, key=lambda stride: stride.position)
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

    def span(self, number: int, end: int) -> tuple[int, int]:
        """First byte of a stride and the first after it; `end` is that of the segment's data."""
        after = self.strides[number + 1].offset if number + 1 < len(self.strides) else end
        return self.strides[number].offset, after


def find_in_chunk(data: bytes, publisher_id: int, sequence: int) -> int | None:
    """The position of a message in a chunk of whole blocks.

    Looks for the sixteen bytes of publisher and sequence first, and takes apart only the blocks
    that have them: a client that comes back waits for this.
    """
    needle = publisher_id.to_bytes(8, "little") + sequence.to_bytes(8, "little")
    at = data.find(needle)
    if at < 0:
        return None
    for start, end in blocks_of(data):
        if at >= end:
            continue
        for record in read_records(data, start, end):
            if record.position and (record.publisher_id, record.sequence) == (
                publisher_id,
                sequence,
            ):
                return record.position
        at = data.find(needle, end)  # those were the bytes of some payload
        if at < 0:
            return None
    return None


def first_at_or_after(data: bytes, timestamp_us: int) -> int | None:
    """The position of the first data record at or after a time in a chunk of whole blocks."""
    unpack = RECORD_HEADER.unpack_from
    for start, end in blocks_of(data):
        offset = start
        while offset < end:
            fields: tuple[int, ...] = unpack(data, offset)
            if fields[4] and fields[7] >= timestamp_us:
                return fields[4]
            offset += fields[0]
    return None


class MemoryJournal(JournalReader):
    """A journal that dies with the process: for tests, and for brokers without a directory.

    Args:
        start_id: A random number of 64 bits: each start of such a broker begins another log.
    """

    def __init__(self, start_id: int = 0) -> None:
        self._start = LogStart(start_id, 1)
        self._data = bytearray()
        self._index = BlockIndex()
        self._next_position = 1

    def append(self, block: Block) -> None:
        """Keep a block."""
        offset = len(self._data)
        self._index.add(block, offset)
        self._data += encode_block(
            block.records,
            count=block.count,
            first_position=block.first_position,
            segment=1,
            offset=offset,
        )
        self._next_position = block.next_position

    @property
    @override
    def first_position(self) -> int:
        return 1

    @property
    @override
    def next_position(self) -> int:
        return self._next_position

    @property
    @override
    def log_starts(self) -> tuple[LogStart, ...]:
        return (self._start,)

    @override
    def summary(self) -> bytes:
        return bytes(self._data)

    @override
    def seek(self, position: int) -> Cursor:
        if position >= self._next_position:
            return Cursor(1, len(self._data))
        number = self._index.stride_of_position(position)
        return Cursor(1, 0 if number is None else self._index.strides[number].offset)

    @override
    def read(self, cursor: Cursor, max_bytes: int) -> tuple[bytes, Cursor]:
        data = bytes(self._data[cursor.offset : cursor.offset + max_bytes])
        usable = whole_blocks(data)
        if usable < 0 or (not usable and data):
            need = max(-usable, RECORD_HEADER.size)
            return self.read(cursor, max(need, 2 * max_bytes))
        return data[:usable], Cursor(1, cursor.offset + usable)

    @override
    def find(self, publisher_id: int, sequence: int) -> int | None:
        for number in self._index.strides_of_bookmark(publisher_id, sequence):
            found = find_in_chunk(self._stride(number), publisher_id, sequence)
            if found is not None:
                return found
        return None

    @override
    def at_time(self, timestamp_us: int) -> int:
        number = self._index.stride_of_time(timestamp_us)
        if number is None:
            return 1
        found = first_at_or_after(self._stride(number), timestamp_us)
        if found is not None:
            return found
        following = self._index.strides[number + 1 : number + 2]
        return following[0].position if following else self._next_position

    @override
    def first_beyond(self, vector: Mapping[int, int]) -> int:
        number = self._index.stride_beyond(vector)
        return self._next_position if number is None else self._index.strides[number].position

    def _stride(self, number: int) -> bytes:
        start, end = self._index.span(number, len(self._data))
        return bytes(self._data[start:end])

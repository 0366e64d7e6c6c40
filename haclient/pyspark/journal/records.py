"""Journal records as columns: whole blocks of bytes in, Arrow arrays out, no loop over records.

**Where the records are.** A record begins where the one before ends, so a plain reader walks from
length to length. Three ways are faster, tried in this order on all blocks of a chunk at once:

1. *Equal lengths.* The length of a block divided by its number of records is the length of each of
   them if the header at each such place says so.
2. *Lanes.* Every block is a lane, and all lanes are walked in step, by one look-up for all of them.
   Long blocks are split into several lanes: positions rise by one from record to record, so the
   eight bytes of a position are searched for, 128 records ahead. What is found counts if the next
   record has the next position, and if the lane before ends exactly there.
3. *The plain walk*, for a block in which a lane did not end where it should.

**What is in them.** All headers have 48 bytes, so one look-up gathers those of a chunk into one
array of structures, whose fields are columns. Texts and payloads are slices of the chunk: they
become an Arrow array whose elements are, in turn, what lies before a slice and the slice, and every
second element of it is taken. So the bytes are copied once, and only those that are wanted.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from haclient.pyspark.rows import arrow_schema
from haclient_fake_server.journal.format import (
    RECORD_HEADER_BYTES,
    BlockHeader,
    JournalFormatError,
    RecordCommand,
)

Integers: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

HEADER: Final = np.dtype(
    [
        ("length", "<u4"),
        ("flags", "<u2"),
        ("command", "u1"),
        ("expiration_bytes", "u1"),
        ("position", "<u8"),
        ("publisher_id", "<u8"),
        ("sequence", "<u8"),
        ("timestamp_us", "<i8"),
        ("topic_id", "<u4"),
        ("key_bytes", "<u2"),
        ("correlation_bytes", "<u2"),
    ]
)
"""`haclient_fake_server.journal.format.RECORD_HEADER` as a structure of numpy."""

LANE_RECORDS: Final = 128
"""Records of a lane: fewer cost more searches, more cost more steps."""

MAX_TOPIC_TABLE: Final = 1 << 20
"""Topic ids below this are looked up in a table; ids are given out from 1 on."""

_LENGTH: Final = struct.Struct("<I")
_POSITION: Final = struct.Struct("<Q")
_POSITION_AT: Final = 8
_MAX_FALSE_MATCHES: Final = 8
"""So often a payload may contain the bytes of a position before the search is given up."""

_COMMANDS: Final = {
    RecordCommand.PUBLISH: "publish",
    RecordCommand.SOW_DELETE: "sow_delete",
}
"""The records that are rows, and their value in the column `command`."""

MAX_POSITION: Final = 2**63 - 1
MAX_TIME_US: Final = 2**63 - 1


class RowRange(NamedTuple):
    """Which records are wanted: positions and times from the first on and before the end.

    Attributes:
        first_position: The first position.
        end_position: The first position that is not wanted any more.
        from_us: The earliest time, in microseconds since 1970, UTC.
        until_us: The first time that is not wanted any more.
    """

    first_position: int = 1
    end_position: int = MAX_POSITION
    from_us: int = -MAX_TIME_US
    until_us: int = MAX_TIME_US

    @property
    def has_times(self) -> bool:
        """Whether not all times are wanted."""
        return self.from_us > -MAX_TIME_US or self.until_us < MAX_TIME_US

    def intersection(self, other: RowRange) -> RowRange:
        """What both ranges have."""
        return RowRange(
            max(self.first_position, other.first_position),
            min(self.end_position, other.end_position),
            max(self.from_us, other.from_us),
            min(self.until_us, other.until_us),
        )


def record_offsets(data: bytes, blocks: Sequence[BlockHeader], *, base: int = 0) -> Integers:
    """Where the records of some blocks begin in `data`, in order.

    Args:
        data: Bytes of a segment.
        blocks: Blocks that are whole in them, with correct checksums.
        base: Where `data` begins in the segment.

    Raises:
        JournalFormatError: The lengths of a block's records do not add up to its length.
    """
    if not blocks:
        return np.empty(0, np.int64)
    starts = np.array([block.start - base for block in blocks], np.int64)
    ends = np.array([block.end - base for block in blocks], np.int64)
    counts = np.array([block.records for block in blocks], np.int64)
    places = np.concatenate(([0], np.cumsum(counts)))
    found = np.zeros(places[-1], np.int64)
    is_left = ~_fill_equal(data, starts, ends, counts, found)
    left = [(blocks[number], int(places[number])) for number in np.flatnonzero(is_left).tolist()]
    if left:
        _fill_by_lanes(data, left, base, found)
    return found


def _lengths_at(data: bytes, places: Integers) -> Integers:
    """The four bytes at some places of `data` as numbers; of a place beyond its end, any number."""
    size = max(1, len(data) - _LENGTH.size + 1)
    # A view of every place. `take` would copy all of it first; an index does not.
    every = np.ndarray((size,), "<u4", data, strides=(1,))
    return every[np.minimum(places, size - 1)].astype(np.int64)


def _fill_equal(
    data: bytes, starts: Integers, ends: Integers, counts: Integers, found: Integers
) -> Flags:
    """Fill in the blocks whose records are of one length; which blocks these are."""
    safe = np.maximum(counts, 1)
    length = (ends - starts) // safe
    fits = (counts > 0) & (length * counts == ends - starts) & (length >= RECORD_HEADER_BYTES)
    steps = np.arange(len(found)) - np.repeat(np.cumsum(counts) - counts, counts)
    places = np.repeat(starts, counts) + steps * np.repeat(length, counts)
    is_right = np.repeat(fits, counts)
    is_right &= _lengths_at(data, places) == np.repeat(length, counts)
    wrong = np.zeros(len(counts), np.bool_)
    wrong[np.repeat(np.arange(len(counts)), counts)[~is_right]] = True
    done: Flags = (fits & ~wrong) | ((counts == 0) & (starts == ends))
    np.copyto(found, places, where=np.repeat(done, counts))
    return done


def _fill_by_lanes(
    data: bytes, left: Sequence[tuple[BlockHeader, int]], base: int, found: Integers
) -> None:
    """Fill in blocks whose records differ in length; each comes with its first place in `found`."""
    begins: list[int] = []
    firsts: list[int] = []  # by block, the number of its first lane
    for block, _ in left:
        firsts.append(len(begins))
        begins += _lanes(data, block, base)
    at = np.array(begins, np.int64)
    limit = np.empty_like(at)
    limit[:-1] = at[1:]
    for (block, _), first in zip(left, [*firsts[1:], len(begins)], strict=True):
        limit[first - 1] = block.end - base
    lanes, places = _walk_lanes(data, at, limit)
    counts = np.bincount(lanes, minlength=len(begins))
    ordered = places[np.argsort(lanes, kind="stable")]
    bounds = np.concatenate(([0], np.cumsum(counts)))
    for (block, place), first, after in zip(left, firsts, [*firsts[1:], len(begins)], strict=True):
        offsets = ordered[bounds[first] : bounds[after]]
        if len(offsets) != block.records or np.any(at[first:after] != limit[first:after]):
            offsets = _walk(data, block, base)
        found[place : place + block.records] = offsets


def _walk_lanes(data: bytes, at: Integers, limit: Integers) -> tuple[Integers, Integers]:
    """Walk all lanes in step; the lane and the place of each record.

    Args:
        data: Bytes of a segment.
        at: Where the lanes begin; afterwards, where they ended.
        limit: Where they have to end.
    """
    active = np.flatnonzero(at < limit)
    lanes: list[Integers] = []
    places: list[Integers] = []
    while len(active):
        now = at[active]
        step = _lengths_at(data, now)
        # A lane that is not on a record any more would never end: it is led beyond its limit.
        step[step < RECORD_HEADER_BYTES] = len(data)
        lanes.append(active)
        places.append(now)
        after = now + step
        at[active] = after
        active = active[after < limit[active]]
    empty = [np.empty(0, np.int64)]
    return np.concatenate(lanes or empty), np.concatenate(places or empty)


def _lanes(data: bytes, block: BlockHeader, base: int) -> list[int]:
    """Where the lanes of a block begin: its first record, and others that are found by position."""
    begins = [block.start - base]
    end = block.end - base
    for ahead in range(LANE_RECORDS, block.records - LANE_RECORDS // 2, LANE_RECORDS):
        position = block.first_position + ahead
        found = _find(data, position, begins[-1] + LANE_RECORDS * RECORD_HEADER_BYTES, end)
        if found is None:
            break
        begins.append(found)
    return begins


def _find(data: bytes, position: int, start: int, end: int) -> int | None:
    """Where the record of a position seems to begin."""
    wanted = _POSITION.pack(position)
    following = _POSITION.pack(position + 1)
    at = data.find(wanted, start, end)
    for _ in range(_MAX_FALSE_MATCHES):
        if at < 0:
            return None
        begin = at - _POSITION_AT
        after = begin + _LENGTH.unpack_from(data, begin)[0] + _POSITION_AT
        if data[after : after + _POSITION.size] == following and after < end:
            return begin
        at = data.find(wanted, at + 1, end)
    return None


def _walk(data: bytes, block: BlockHeader, base: int) -> Integers:
    """The plain walk.

    Raises:
        JournalFormatError: The lengths do not add up.
    """
    offsets: list[int] = []
    at, end = block.start - base, block.end - base
    while at + RECORD_HEADER_BYTES <= end and len(offsets) < block.records:
        offsets.append(at)
        at += max(_LENGTH.unpack_from(data, at)[0], 1)
    if at != end or len(offsets) != block.records:
        raise JournalFormatError(block.offset, "the lengths of a block's records do not add up")
    return np.array(offsets, np.int64)


def headers_at(data: bytes, offsets: Integers) -> npt.NDArray[np.void]:
    """The headers of records, as one array of structures.

    Args:
        data: Bytes of a segment.
        offsets: Where the records begin in them.
    """
    size = max(0, len(data) - RECORD_HEADER_BYTES + 1)
    # The 48 bytes at every place of the data: a view, of which the wanted ones are copied. They
    # become structures afterwards, since numpy copies structures field by field.
    every = np.ndarray((size,), f"V{RECORD_HEADER_BYTES}", data, strides=(1,))
    return every[offsets].view(HEADER)


class Topics:
    """The topics that are wanted, by their ids in the log.

    Args:
        names: By topic id, the name of each topic that is wanted.
        is_all: All topics of the log are wanted, so that no record has another one.
    """

    def __init__(self, names: Mapping[int, str], *, is_all: bool = False) -> None:
        self.is_all = is_all
        self._names = pa.array([*names.values()], pa.string())
        self._ids = np.array([*names], np.int64)
        size = int(self._ids.max(initial=0)) + 1
        self._table: npt.NDArray[np.int32] | None = None
        if size <= MAX_TOPIC_TABLE:
            self._table = np.full(size + 1, -1, np.int32)  # the last place is for unknown ids
            self._table[self._ids] = np.arange(len(self._ids), dtype=np.int32)
        self._order = np.argsort(self._ids)

    def indexes(self, ids: npt.NDArray[np.uint32]) -> npt.NDArray[np.int32]:
        """By record, the number of its topic among the names; -1 where it is not wanted."""
        if self._table is not None:
            return self._table.take(ids, mode="clip")
        places = np.searchsorted(self._ids, ids, sorter=self._order)
        order = self._order.take(places, mode="clip")
        return np.where(self._ids[order] == ids, order, -1).astype(np.int32)

    def texts(self, indexes: npt.NDArray[np.int32]) -> pa.Array:
        """The names of topics by their numbers, as an Arrow array."""
        return _texts_of(self._names, indexes)


def select_rows(headers: npt.NDArray[np.void], wanted: RowRange, topics: Topics) -> Integers | None:
    """Which records are rows that are wanted; `None` for all.

    Args:
        headers: The headers of records.
        wanted: Positions and times.
        topics: The topics that are wanted.
    """
    position, command = headers["position"], headers["command"]
    mask = (position >= max(1, wanted.first_position)) & (position < wanted.end_position)
    mask &= (command == RecordCommand.PUBLISH) | (command == RecordCommand.SOW_DELETE)
    if wanted.has_times:
        mask &= headers["timestamp_us"] >= wanted.from_us
        mask &= headers["timestamp_us"] < wanted.until_us
    if not topics.is_all:
        mask &= topics.indexes(headers["topic_id"]) >= 0
    return None if mask.all() else np.flatnonzero(mask)


def rows_of(
    data: bytes,
    offsets: Integers,
    columns: Sequence[str],
    *,
    wanted: RowRange,
    topics: Topics,
) -> pa.RecordBatch:
    """The rows among some records, as one record batch.

    Args:
        data: Bytes of a segment.
        offsets: Where the records begin in them.
        columns: Names of the columns that the batch shall have, in their order.
        wanted: Positions and times of the rows that are wanted.
        topics: The topics of these rows.
    """
    headers = headers_at(data, offsets)
    chosen = select_rows(headers, wanted, topics)
    if chosen is not None:
        headers, offsets = headers[chosen], offsets[chosen]
    build = _Columns(data, offsets, headers, topics)
    arrays = [build.column(name) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


class _Columns:
    """The columns of some records, each built when it is asked for."""

    def __init__(
        self, data: bytes, offsets: Integers, headers: npt.NDArray[np.void], topics: Topics
    ) -> None:
        self._data = data
        self._offsets = offsets
        self._headers = headers
        self._topics = topics

    @cached_property
    def _bounds(self) -> tuple[Integers, Integers, Integers, Integers, Integers]:
        """Where the key begins, the correlation id, the expiration and the payload, and its end."""
        headers = self._headers
        key_at = self._offsets + RECORD_HEADER_BYTES
        correlation_at = key_at + headers["key_bytes"]
        expiration_at = correlation_at + headers["correlation_bytes"]
        payload_at = expiration_at + headers["expiration_bytes"]
        end = self._offsets + headers["length"]
        if np.any(payload_at > end):
            raise JournalFormatError(0, "the lengths in a record header do not add up")
        return key_at, correlation_at, expiration_at, payload_at, end

    def column(self, name: str) -> pa.Array:
        """One column, by its name in the schema."""
        match name:
            case "topic":
                array = self._topics.texts(self._topics.indexes(self._headers["topic_id"]))
            case "bookmark":
                array = self._bookmarks()
            case "publisher_id" | "sequence" | "position":
                array = pa.array(np.ascontiguousarray(self._headers[name]).view(np.int64))
            case "topic_id":
                array = pa.array(np.ascontiguousarray(self._headers[name]).view(np.int32))
            case "timestamp":
                times = pa.array(np.ascontiguousarray(self._headers["timestamp_us"]))
                array = times.view(pa.timestamp("us", tz="UTC"))
            case "command":
                names = pa.array(_COMMANDS.values(), pa.string())
                is_delete = self._headers["command"] == RecordCommand.SOW_DELETE
                array = _texts_of(names, is_delete.astype(np.int32))
            case "sow_key":
                array = self._texts(*self._bounds[0:2])
            case "correlation_id":
                array = self._texts(*self._bounds[1:3])
            case _:
                array = self._slices(*self._bounds[3:5])
        return array

    def _bookmarks(self) -> pa.Array:
        # There are few publishers: each id becomes text once.
        ids = pa.array(np.ascontiguousarray(self._headers["publisher_id"])).dictionary_encode()
        publishers = ids.dictionary.cast(pa.string()).take(ids.indices)
        sequences = pa.array(np.ascontiguousarray(self._headers["sequence"])).cast(pa.string())
        bookmarks: pa.Array = pc.binary_join_element_wise(publishers, sequences, "", "|")
        return bookmarks

    def _texts(self, starts: Integers, ends: Integers) -> pa.Array:
        """Texts; those that are empty are null."""
        if np.array_equal(starts, ends):
            return pa.nulls(len(starts), pa.string())
        raw = self._slices(starts, ends, is_null=starts == ends)
        try:
            return raw.cast(pa.string())
        except pa.ArrowInvalid:  # bytes that are not UTF-8, which the broker keeps as they came
            values = [None if v is None else v.decode("utf-8", "replace") for v in raw.to_pylist()]
            return pa.array(values, pa.string())

    def _slices(self, starts: Integers, ends: Integers, is_null: Flags | None = None) -> pa.Array:
        count = len(starts)
        if not count:
            return pa.array([], pa.binary())
        bounds = np.empty(2 * count + 1, np.int32)
        bounds[0] = 0
        bounds[1::2] = starts
        bounds[2::2] = ends
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(self._data)]
        pieces = pa.BinaryArray.from_buffers(pa.binary(), 2 * count, buffers)
        return pieces.take(pa.array(np.arange(1, 2 * count, 2), mask=is_null))


def _texts_of(texts: pa.Array, numbers: npt.NDArray[np.int32]) -> pa.Array:
    """Texts by their numbers, which often are all the same."""
    if len(numbers) and (numbers == numbers[0]).all():
        taken: pa.Array = pa.repeat(texts[int(numbers[0])], len(numbers))
    else:
        taken = texts.take(pa.array(numbers))
    return taken

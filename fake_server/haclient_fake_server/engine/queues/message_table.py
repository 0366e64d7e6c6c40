"""The messages of a queue: about 33 bytes for each, whatever its size.

A queue has a row for each message that it holds, in the order of the log: its position, the place
of its record in the journal, publisher and sequence, and a byte for its state. The body stays in
the journal. Rows lie in chunks of at most `CHUNK_ROWS` rows. A chunk of which more than half is
gone is packed, and an empty one is dropped, so that one message that is never acknowledged does
not keep the memory of all that follow it.

A message is known by its position; `find` gives the position of a bookmark.

A table of a file-backed queue is *paged*: of most chunks it keeps states, positions (nothing but
the first and the last where no other topic's messages lie between them) and priorities alone.
Places, publishers and sequences are in the journal, too, and are read again when they are needed.
`page_out` drops them; that is done between batches, when all that was added is in the journal.
"""

from __future__ import annotations

import bisect
import math
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress, starmap
from typing import Final, NamedTuple, TypeAlias, cast

from haclient_fake_server.engine.journal import Cursor

CHUNK_ROWS: Final = 65_536
"""Rows of one chunk: an index of a row within it has 16 bits."""

PAGED_ROWS: Final = 16_384
"""Rows of a chunk of a paged table: it is read again in some 20 ms, in which others wait."""
PAGED_STRETCH: Final = 32 * PAGED_ROWS
"""Positions of the log in which the rows of such a chunk are: the messages of other topics between
them are read, too."""
RESIDENT_CHUNKS: Final = 16
"""Chunks of which a paged table keeps all in memory, 33 bytes for each row."""

Place: TypeAlias = int
"""Where a record is in the journal: 24 bits for the segment's number, 40 for the offset in it. For
a record of the current batch, whose block is not written yet, the offset in that block."""

_OFFSET_BITS: Final = 40
_OFFSET_MASK: Final = (1 << _OFFSET_BITS) - 1

_NO_PRIORITY: Final = float("-inf")


# The states of a row: plain numbers, since a member of an enumeration costs more to make than all
# the rest of a look-up.
AVAILABLE: Final = 0
LEASED: Final = 1
REMOVED: Final = 2
"""Its row is still in a chunk, which will be packed or dropped."""

_AVAILABLE_BYTE: Final = bytes([AVAILABLE])
_LEASED_BYTE: Final = bytes([LEASED])
_REMOVED_BYTE: Final = bytes([REMOVED])
_IS_HELD: Final = bytes(state != REMOVED for state in range(256))


class MessageRow(NamedTuple):
    """One message of the table.

    Attributes:
        position: Its position in the log.
        publisher_id: The id of its publisher.
        sequence: Its sequence.
        place: Where its record is.
    """

    position: int
    publisher_id: int
    sequence: int
    place: Place

    @property
    def bookmark(self) -> str:
        """Its bookmark."""
        return f"{self.publisher_id}|{self.sequence}|"


Ranges: TypeAlias = dict[int, tuple[int, int]]
"""By publisher id, its lowest and its highest sequence."""

RowColumns: TypeAlias = tuple["array[int]", "array[int]", "array[int]"]
"""Places, publishers and sequences of rows."""


class ChunkColumns(NamedTuple):
    """Some messages that follow each other in a table.

    Attributes:
        positions: Their positions: an array, or a range.
        priorities: Their priorities; empty for a table without any.
        ranges: The sequences among which are theirs.
        states: The states of messages of which some were removed, and are here all the same; empty
            for none.
    """

    positions: Sequence[int]
    priorities: array[float]
    ranges: Ranges
    states: bytes = b""

    def packed(self) -> ChunkColumns:
        """Without those that were removed, which takes a millisecond; may run in a thread."""
        positions, priorities, ranges, states = self
        if states:
            kept = states.translate(_IS_HELD)
            positions = array("Q", compress(positions, kept))
            priorities = array("d", compress(priorities, kept))
        return ChunkColumns(_compact(positions), priorities, ranges)


class _Details:
    """What the journal has of the rows of a chunk, too."""

    __slots__ = ("by_publisher", "indexed", "places", "publishers", "sequences")

    def __init__(self, places: array[int], publishers: array[int], sequences: array[int]) -> None:
        self.places = places
        self.publishers = publishers
        self.sequences = sequences
        self.by_publisher: dict[int, array[int]] = {}
        self.indexed = 0  # rows that `by_publisher` knows

    def find(self, publisher_id: int, sequence: int) -> int | None:
        """The row of a bookmark, removed or not."""
        # Most messages are never looked for: leases have their bookmarks.
        for row in range(self.indexed, len(self.sequences)):
            self.by_publisher.setdefault(self.publishers[row], array("H")).append(row)
        self.indexed = len(self.sequences)
        rows = self.by_publisher.get(publisher_id)
        if rows is None:
            return None
        # The sequences of one publisher rise in the log.
        at = bisect.bisect_left(rows, sequence, key=self.sequences.__getitem__)
        return rows[at] if at < len(rows) and self.sequences[rows[at]] == sequence else None

    def ranges(self) -> Ranges:
        """The lowest and the highest sequence of each publisher."""
        publishers, sequences = self.publishers, self.sequences
        highest = dict(zip(publishers, sequences, strict=True))
        lowest = zip(reversed(publishers), reversed(sequences), strict=True)
        return {publisher: (low, highest[publisher]) for publisher, low in dict(lowest).items()}

    def packed(self, kept: list[bool]) -> _Details:
        """Those of some rows."""
        columns = self.places, self.publishers, self.sequences
        return _Details(*(array("Q", compress(each, kept)) for each in columns))


_PAGED_OUT: Final = _Details(array("Q"), array("Q"), array("Q"))
"""Those of a chunk whose details are in the journal only."""


class _Chunk:
    """A run of rows in the order of the log."""

    __slots__ = (
        "available",
        "details",
        "first_available",
        "live",
        "positions",
        "priorities",
        "ranges",
        "states",
    )

    def __init__(self) -> None:
        self.positions = array("Q")
        self.priorities = array("d")
        self.states = bytearray()
        self.details = _Details(array("Q"), array("Q"), array("Q"))
        self.ranges: Ranges = {}  # of a chunk whose details were dropped
        self.live = 0
        self.available = 0
        self.first_available = 0  # no row before this one is available

    def add(self, row: MessageRow) -> None:
        """Add a row behind all others."""
        details = self.details
        position, publisher_id, sequence, place = row
        self.positions.append(position)
        details.places.append(place)
        details.publishers.append(publisher_id)
        details.sequences.append(sequence)
        self.states.append(AVAILABLE)
        self.live += 1
        self.available += 1

    def row(self, position: int) -> int | None:
        """The row of a position, `None` where there is none or it was removed."""
        at = bisect.bisect_left(self.positions, position)
        if at == len(self.states) or self.positions[at] != position:
            return None
        return at if self.states[at] != REMOVED else None

    def pack(self) -> None:
        """Drop the rows that were removed."""
        self.first_available = 0
        kept = [state != REMOVED for state in self.states]
        self.positions = array("Q", compress(self.positions, kept))
        self.priorities = array("d", compress(self.priorities, kept))
        self.states = bytearray(compress(self.states, kept))
        if self.details is not _PAGED_OUT:
            self.details = self.details.packed(kept)

    def page_out(self) -> None:
        """Drop what the journal has, too."""
        if self.details is not _PAGED_OUT:
            self.ranges = self.ranges or self.details.ranges()
            self.details = _PAGED_OUT
            self.positions = _compact(self.positions)

    def columns(self) -> ChunkColumns:
        """Its messages, which nothing changes any more."""
        states = b"" if self.live == len(self.states) else bytes(self.states)
        if self.details is _PAGED_OUT:
            return ChunkColumns(self.positions, self.priorities, self.ranges, states)
        ranges = self.details.ranges()  # messages may still be added to it
        return ChunkColumns(self.positions[:], self.priorities[:], ranges, states)


def _compact(positions: Sequence[int]) -> array[int]:
    """The same positions, as a range if they follow each other."""
    if positions and positions[-1] - positions[0] == len(positions) - 1:
        # It serves as an array of which nothing is changed.
        return cast("array[int]", range(positions[0], positions[-1] + 1))
    return cast("array[int]", positions)


_NO_ROWS: Final = _Chunk()


def _not_paged(positions: Sequence[int]) -> RowColumns:
    raise KeyError(positions)


class MessageTable:
    """The messages that a queue holds, in the order of the log.

    Args:
        has_priorities: Whether each message has a priority.
        chunk_rows: Rows of one chunk, at most `CHUNK_ROWS`; by default `PAGED_ROWS` of a paged
            table, else `CHUNK_ROWS`.
        pack_above: A chunk with at most this many rows is not packed: the gain would be too small.
        reread: Reads the columns of the messages of some positions from the journal; for a paged
            table.
        resident_chunks: Of how many chunks `page_out` leaves all columns, at least 2; by default
            `RESIDENT_CHUNKS` of a paged table.

    Attributes:
        available: How many messages are available.
        leased: How many are leased.
        rereads: How many chunks were read from the journal since the last call of `page_out`.
    """

    def __init__(
        self,
        *,
        has_priorities: bool = False,
        chunk_rows: int | None = None,
        pack_above: int = 1024,
        reread: Callable[[Sequence[int]], RowColumns] | None = None,
        resident_chunks: int | None = None,
    ) -> None:
        self._chunk_rows = chunk_rows or (CHUNK_ROWS if reread is None else PAGED_ROWS)
        self._pack_above = pack_above
        self._chunks: list[_Chunk] = []
        self._firsts: list[int] = []  # of each chunk: the lowest position that it may hold
        self._has_priorities = has_priorities
        self._first_chunk = 0  # no chunk before this one has an available message
        self._found: tuple[int, _Chunk, int] | None = None  # what `first_available` has returned
        self._open: _Chunk | None = None  # the last one, while it is filled
        self._searched = _NO_ROWS  # where `find` has found the last one
        self._reread = reread or _not_paged
        self._stretch = sys.maxsize if reread is None else PAGED_STRETCH
        paged_chunks = resident_chunks or RESIDENT_CHUNKS
        self._resident_chunks = sys.maxsize if reread is None else paged_chunks
        self._resident: dict[_Chunk, None] = {}  # those with all columns, the oldest first
        self.rereads = 0
        self.available = 0
        self.leased = 0

    def __len__(self) -> int:
        """How many messages it holds, available or leased."""
        return self.available + self.leased

    @property
    def first(self) -> int | None:
        """The lowest position that it holds, `None` when it is empty."""
        while self._chunks and not self._chunks[0].live:
            self._drop(0)
        if not self._chunks:
            return None
        chunk = self._chunks[0]
        states = chunk.states
        if states[0] == REMOVED:
            # All rows before the first one that is left are of one state: skip them at once.
            at = len(states) - len(states.lstrip(_REMOVED_BYTE))
            return chunk.positions[at]
        return chunk.positions[0]

    def add(self, row: MessageRow, priority: float = _NO_PRIORITY) -> None:
        """Add a message behind all others, available.

        Args:
            row: The message. Its position is above all that were added before, its sequence above
                those that the publisher's messages have here; its place is one in the journal or,
                until `add_to_places`, in its block.
            priority: The higher, the sooner; only where the table has priorities.
        """
        chunk = self._open
        if (
            chunk is None
            or len(chunk.states) == self._chunk_rows
            or row.position - self._firsts[-1] >= self._stretch
        ):
            if chunk is not None and not chunk.live:
                self._drop(len(self._chunks) - 1)  # it was kept to be filled
            chunk = self._open = _Chunk()
            self._chunks.append(chunk)
            self._firsts.append(row.position)
            self._resident[chunk] = None
        chunk.add(row)
        if self._has_priorities:
            chunk.priorities.append(priority)
        self.available += 1

    def add_to_places(self, position: int, start: Place) -> None:
        """Note where the records of all messages from a position on are in the journal.

        Args:
            position: That of the first one whose place is an offset in its block.
            start: Where the records of that block begin.
        """
        number = max(bisect.bisect_right(self._firsts, position) - 1, 0)
        for chunk in self._chunks[number:]:
            if chunk.details is not _PAGED_OUT:  # as those of the last batch have
                row = bisect.bisect_left(chunk.positions, position)
                places = chunk.details.places
                places[row:] = array("Q", [start + offset for offset in places[row:]])

    def find(self, publisher_id: int, sequence: int) -> int | None:
        """The position of a message by its bookmark, `None` if the queue does not hold it."""
        for chunk in (self._searched, *self._chunks):  # the next one often follows the last one
            if chunk.details is _PAGED_OUT:
                low, high = chunk.ranges.get(publisher_id, (1, 0))
                if not low <= sequence <= high:
                    continue
            row = self._details(chunk).find(publisher_id, sequence)
            if row is not None:
                self._searched = chunk
                return chunk.positions[row] if chunk.states[row] != REMOVED else None
        return None

    def state(self, position: int) -> int:
        """The state of a message, `REMOVED` if the table does not hold it."""
        chunk = self._chunk(position)
        row = None if chunk is None else chunk.row(position)
        return REMOVED if chunk is None or row is None else chunk.states[row]

    def row(self, position: int) -> MessageRow | None:
        """What is known of a message, `None` if the table does not hold it."""
        chunk = self._chunk(position)
        row = None if chunk is None else chunk.row(position)
        return None if chunk is None or row is None else self._row(chunk, row, position)

    def priority(self, position: int) -> float:
        """The priority of a message that the table holds."""
        chunk = self._chunk(position)
        row = None if chunk is None else chunk.row(position)
        return _NO_PRIORITY if chunk is None or row is None else chunk.priorities[row]

    def lease(self, position: int) -> MessageRow:
        """Mark an available message as leased, and return what is known of it."""
        found, self._found = self._found, None
        if found is not None and found[0] == position:
            _, chunk, row = found
        else:
            chunk, row = self._held(position)
        found_row = self._row(chunk, row, position)
        chunk.states[row] = LEASED
        chunk.available -= 1
        self.available -= 1
        self.leased += 1
        return found_row

    def lease_first(self, limit: int) -> list[MessageRow]:
        """Mark the first available message as leased, with the available ones that follow it.

        Args:
            limit: How many they are at most.
        """
        position = self.first_available()
        if position is None or self._found is None:
            return []
        _, chunk, row = self._found
        self._found = None
        details, states = self._details(chunk), chunk.states
        some = states[row : row + limit]
        count = len(some) - len(some.lstrip(_AVAILABLE_BYTE))
        end = row + count
        states[row:end] = _LEASED_BYTE * count
        chunk.available -= count
        chunk.first_available = end
        self.available -= count
        self.leased += count
        columns = chunk.positions, details.publishers, details.sequences, details.places
        return list(starmap(MessageRow, zip(*(column[row:end] for column in columns), strict=True)))

    def release(self, position: int) -> None:
        """Mark a leased message as available."""
        chunk, row = self._held(position)
        chunk.states[row] = AVAILABLE
        chunk.available += 1
        chunk.first_available = min(chunk.first_available, row)
        self._first_chunk = min(self._first_chunk, bisect.bisect_right(self._firsts, position) - 1)
        self._found = None
        self.available += 1
        self.leased -= 1

    def remove(self, positions: Iterable[int]) -> None:
        """Remove messages that the table holds."""
        self._found = None
        chunk, row = _NO_ROWS, 0
        for position in positions:
            # The next one often follows the last one.
            row += 1
            states = chunk.states
            if row >= len(states) or chunk.positions[row] != position or states[row] == REMOVED:
                chunk, row = self._held(position)
                states = chunk.states
            if states[row] == AVAILABLE:
                chunk.available -= 1
                self.available -= 1
            else:
                self.leased -= 1
            states[row] = REMOVED
            chunk.live -= 1
            rows = len(states)
            if chunk.live < rows // 2 or not chunk.live:
                self._shrink(chunk)

    def _shrink(self, chunk: _Chunk) -> None:
        """Give back the memory of removed rows, if they are many."""
        rows = len(chunk.states)
        if not chunk.live:
            # The last chunk is still filled, unless it is full.
            if chunk is not self._open or rows == self._chunk_rows:
                self._drop(self._chunks.index(chunk))
        elif rows > self._pack_above:
            chunk.pack()

    def first_available(self) -> int | None:
        """The first available message, `None` when there is none."""
        if not self.available:
            return None
        chunks, number = self._chunks, self._first_chunk
        while not chunks[number].available:
            number += 1
        self._first_chunk, chunk = number, chunks[number]
        row = chunk.first_available = chunk.states.find(AVAILABLE, chunk.first_available)
        position = chunk.positions[row]
        self._found = (position, chunk, row)
        return position

    def next_available(self, position: int) -> int | None:
        """The first available message at or after a position, `None` when there is none."""
        if not self.available:
            return None
        start = max(bisect.bisect_right(self._firsts, position) - 1, 0)
        for number in range(start, len(self._chunks)):
            chunk = self._chunks[number]
            if not chunk.available:
                continue
            from_row = bisect.bisect_left(chunk.positions, position)
            at = chunk.states.find(AVAILABLE, from_row)
            if at >= 0:
                return chunk.positions[at]
        return None

    def positions(self) -> Iterator[int]:
        """The positions of all messages at the time of the call of each chunk, in order."""
        for chunk in list(self._chunks):
            yield from [
                position
                for position, state in zip(chunk.positions, chunk.states, strict=True)
                if state != REMOVED
            ]

    def columns(self) -> list[ChunkColumns]:
        """All messages, in order, as quickly as they can be noted."""
        return [chunk.columns() for chunk in self._chunks if chunk.live]

    def fill(self, columns: Iterable[ChunkColumns]) -> None:
        """Fill an empty, paged table with messages as `columns` returned them, all available."""
        for each in columns:
            positions, priorities, ranges, _ = each.packed()
            chunk = _Chunk()
            # It serves as an array of which nothing is changed.
            chunk.positions, chunk.priorities = cast("array[int]", positions), priorities
            chunk.details, chunk.ranges = _PAGED_OUT, ranges
            chunk.live = chunk.available = len(positions)
            chunk.states = bytearray([AVAILABLE]) * chunk.live
            self._chunks.append(chunk)
            self._firsts.append(positions[0])
            self.available += chunk.live

    def page_out(self) -> None:
        """Drop what the journal has, too, of all but some chunks. All rows are in the journal."""
        self.rereads = 0
        resident = self._resident
        while len(resident) > self._resident_chunks:
            chunk = next(iter(resident))
            del resident[chunk]
            if chunk is self._open:
                resident[chunk] = None
            else:
                chunk.page_out()

    def _details(self, chunk: _Chunk) -> _Details:
        """All that is known of the rows of a chunk."""
        if chunk.details is _PAGED_OUT:
            chunk.details = _Details(*self._reread(chunk.positions))
            self._resident[chunk] = None
            self.rereads += 1
        return chunk.details

    def _row(self, chunk: _Chunk, row: int, position: int) -> MessageRow:
        details = self._details(chunk)
        return MessageRow(
            position, details.publishers[row], details.sequences[row], details.places[row]
        )

    def _drop(self, number: int) -> None:
        """Drop a chunk whose messages are all gone."""
        chunk = self._chunks[number]
        self._resident.pop(chunk, None)
        if chunk is self._open:
            self._open = None
        del self._chunks[number], self._firsts[number]
        if number < self._first_chunk:
            self._first_chunk -= 1
        self._found, self._searched = None, _NO_ROWS

    def _chunk(self, position: int) -> _Chunk | None:
        at = bisect.bisect_right(self._firsts, position) - 1
        return self._chunks[at] if at >= 0 else None

    def _held(self, position: int) -> tuple[_Chunk, int]:
        chunk = self._chunk(position)
        row = None if chunk is None else chunk.row(position)
        if chunk is None or row is None:
            raise KeyError(position)
        return chunk, row


def to_place(cursor: Cursor) -> Place:
    """The place of a record that begins at a cursor."""
    return cursor.segment << _OFFSET_BITS | cursor.offset


def split_place(place: Place) -> tuple[int, int]:
    """The number of the segment, and the offset in it."""
    return place >> _OFFSET_BITS, place & _OFFSET_MASK


def priority_of(value: object) -> float:
    """A priority as a number."""
    if not isinstance(value, int | float):  # a comparison is true or false, which are 1 and 0
        return _NO_PRIORITY
    try:
        number = float(value)
    except OverflowError:
        return float("inf") if value > 0 else _NO_PRIORITY
    return _NO_PRIORITY if math.isnan(number) else number

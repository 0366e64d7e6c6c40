"""The messages of a queue: about 33 bytes for each, whatever its size.

A queue has a row for each message that it holds, in the order of the log: its position, the place
of its record in the journal, publisher and sequence, and a byte for its state. The body stays in
the journal. Rows lie in arrays of at most `CHUNK_ROWS` rows. A chunk of which more than half is
gone is packed, and an empty one is dropped, so that one message that is never acknowledged does
not keep the memory of all that follow it.

A message is known by its position; `find` gives the position of a bookmark.
"""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Iterable, Iterator
from itertools import compress, starmap
from typing import Final, NamedTuple, TypeAlias

from haclient_fake_server.engine.journal import Cursor

CHUNK_ROWS: Final = 65_536
"""Rows of one chunk: an index of a row within it has 16 bits."""

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


class Row(NamedTuple):
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


class TableColumns(NamedTuple):
    """The messages of a table as columns, in the order of the log.

    Attributes:
        positions: Their positions.
        places: Where their records are in the journal.
        publishers: The ids of their publishers.
        sequences: Their sequences.
        priorities: Their priorities; empty for a table without any.
    """

    positions: array[int]
    places: array[int]
    publishers: array[int]
    sequences: array[int]
    priorities: array[float]


class _Chunk:
    """A run of rows in the order of the log."""

    __slots__ = (
        "available",
        "by_publisher",
        "first_available",
        "indexed",
        "live",
        "places",
        "positions",
        "priorities",
        "publishers",
        "sequences",
        "states",
    )

    def __init__(self) -> None:
        self.positions = array("Q")
        self.places = array("Q")
        self.publishers = array("Q")
        self.sequences = array("Q")
        self.priorities = array("d")
        self.states = bytearray()
        self.by_publisher: dict[int, array[int]] = {}
        self.indexed = 0  # rows that `by_publisher` knows
        self.live = 0
        self.available = 0
        self.first_available = 0  # no row before this one is available

    def add(self, row: Row) -> None:
        position, publisher_id, sequence, place = row
        self.positions.append(position)
        self.places.append(place)
        self.publishers.append(publisher_id)
        self.sequences.append(sequence)
        self.states.append(AVAILABLE)
        self.live += 1
        self.available += 1

    def row(self, position: int) -> int | None:
        """The row of a position, `None` where there is none or it was removed."""
        at = bisect.bisect_left(self.positions, position)
        if at == len(self.states) or self.positions[at] != position:
            return None
        return at if self.states[at] != REMOVED else None

    def find(self, publisher_id: int, sequence: int) -> int | None:
        """The row of a bookmark, `None` where there is none or it was removed."""
        # Most messages are never looked for: leases have their bookmarks.
        for row in range(self.indexed, len(self.states)):
            self.by_publisher.setdefault(self.publishers[row], array("H")).append(row)
        self.indexed = len(self.states)
        rows = self.by_publisher.get(publisher_id)
        if rows is None:
            return None
        # The sequences of one publisher rise in the log.
        at = bisect.bisect_left(rows, sequence, key=self.sequences.__getitem__)
        if at == len(rows) or self.sequences[rows[at]] != sequence:
            return None
        return rows[at] if self.states[rows[at]] != REMOVED else None

    def pack(self) -> None:
        """Drop the rows that were removed."""
        self.first_available = self.indexed = 0
        self.by_publisher = {}
        kept = [state != REMOVED for state in self.states]
        self.positions = array("Q", compress(self.positions, kept))
        self.places = array("Q", compress(self.places, kept))
        self.publishers = array("Q", compress(self.publishers, kept))
        self.sequences = array("Q", compress(self.sequences, kept))
        self.priorities = array("d", compress(self.priorities, kept))
        self.states = bytearray(compress(self.states, kept))


_NO_ROWS: Final = _Chunk()


class MessageTable:
    """The messages that a queue holds, in the order of the log.

    Args:
        has_priorities: Whether each message has a priority.
        chunk_rows: Rows of one chunk, at most `CHUNK_ROWS`.
        pack_above: A chunk with at most this many rows is not packed: the gain would be too small.
    """

    def __init__(
        self,
        *,
        has_priorities: bool = False,
        chunk_rows: int = CHUNK_ROWS,
        pack_above: int = 1024,
    ) -> None:
        self._chunk_rows = chunk_rows
        self._pack_above = pack_above
        self._chunks: list[_Chunk] = []
        self._firsts: list[int] = []  # of each chunk: the lowest position that it may hold
        self._has_priorities = has_priorities
        self._first_chunk = 0  # no chunk before this one has an available message
        self._found: tuple[int, _Chunk, int] | None = None  # what `first_available` has returned
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

    def add(self, row: Row, priority: float = _NO_PRIORITY) -> None:
        """Add a message behind all others, available.

        Args:
            row: The message. Its position is above all that were added before, its sequence above
                those that the publisher's messages have here; its place is one in the journal or,
                until `add_to_places`, in its block.
            priority: The higher, the sooner; only where the table has priorities.
        """
        if not self._chunks or len(self._chunks[-1].states) == self._chunk_rows:
            self._chunks.append(_Chunk())
            self._firsts.append(row.position)
        chunk = self._chunks[-1]
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
            row = bisect.bisect_left(chunk.positions, position)
            chunk.places[row:] = array("Q", [start + offset for offset in chunk.places[row:]])

    def find(self, publisher_id: int, sequence: int) -> int | None:
        """The position of a message by its bookmark, `None` if the queue does not hold it."""
        for chunk in self._chunks:
            row = chunk.find(publisher_id, sequence)
            if row is not None:
                return chunk.positions[row]
        return None

    def state(self, position: int) -> int:
        """The state of a message, `REMOVED` if the table does not hold it."""
        chunk = self._chunk(position)
        row = None if chunk is None else chunk.row(position)
        return REMOVED if chunk is None or row is None else chunk.states[row]

    def row(self, position: int) -> Row | None:
        """What is known of a message, `None` if the table does not hold it."""
        chunk = self._chunk(position)
        row = None if chunk is None else chunk.row(position)
        return None if chunk is None or row is None else _row(chunk, row, position)

    def priority(self, position: int) -> float:
        """The priority of a message that the table holds."""
        chunk = self._chunk(position)
        row = None if chunk is None else chunk.row(position)
        return _NO_PRIORITY if chunk is None or row is None else chunk.priorities[row]

    def lease(self, position: int) -> Row:
        """Mark an available message as leased, and return what is known of it."""
        found, self._found = self._found, None
        if found is not None and found[0] == position:
            _, chunk, row = found
        else:
            chunk, row = self._held(position)
        chunk.states[row] = LEASED
        chunk.available -= 1
        self.available -= 1
        self.leased += 1
        return _row(chunk, row, position)

    def lease_first(self, limit: int) -> list[Row]:
        """Mark the first available message as leased, with the available ones that follow it.

        Args:
            limit: How many they are at most.
        """
        position = self.first_available()
        if position is None or self._found is None:
            return []
        _, chunk, row = self._found
        self._found = None
        states = chunk.states
        some = states[row : row + limit]
        count = len(some) - len(some.lstrip(_AVAILABLE_BYTE))
        end = row + count
        states[row:end] = _LEASED_BYTE * count
        chunk.available -= count
        chunk.first_available = end
        self.available -= count
        self.leased += count
        columns = chunk.positions, chunk.publishers, chunk.sequences, chunk.places
        return list(starmap(Row, zip(*(column[row:end] for column in columns), strict=True)))

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
            if chunk is not self._chunks[-1] or rows == self._chunk_rows:
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

    def columns(self) -> TableColumns:
        """All messages, in order."""
        found = TableColumns(array("Q"), array("Q"), array("Q"), array("Q"), array("d"))
        for chunk in self._chunks:
            if chunk.live == len(chunk.states):
                found.positions.extend(chunk.positions)
                found.places.extend(chunk.places)
                found.publishers.extend(chunk.publishers)
                found.sequences.extend(chunk.sequences)
                found.priorities.extend(chunk.priorities)
                continue
            kept = [state != REMOVED for state in chunk.states]
            found.positions.extend(compress(chunk.positions, kept))
            found.places.extend(compress(chunk.places, kept))
            found.publishers.extend(compress(chunk.publishers, kept))
            found.sequences.extend(compress(chunk.sequences, kept))
            found.priorities.extend(compress(chunk.priorities, kept))
        return found

    def fill(self, columns: TableColumns) -> None:
        """Fill an empty table with messages as `columns` returned them, all available."""
        positions, places, publishers, sequences, priorities = columns
        for start in range(0, len(positions), self._chunk_rows):
            end = start + self._chunk_rows
            chunk = _Chunk()
            chunk.positions, chunk.places = positions[start:end], places[start:end]
            chunk.publishers, chunk.sequences = publishers[start:end], sequences[start:end]
            chunk.priorities = priorities[start:end]
            count = len(chunk.positions)
            chunk.states = bytearray([AVAILABLE]) * count
            chunk.live = chunk.available = count
            self._chunks.append(chunk)
            self._firsts.append(chunk.positions[0])
            self.available += count

    def _drop(self, number: int) -> None:
        """Drop a chunk whose messages are all gone."""
        del self._chunks[number], self._firsts[number]
        if number < self._first_chunk:
            self._first_chunk -= 1
        self._found = None

    def _chunk(self, position: int) -> _Chunk | None:
        at = bisect.bisect_right(self._firsts, position) - 1
        return self._chunks[at] if at >= 0 else None

    def _held(self, position: int) -> tuple[_Chunk, int]:
        chunk = self._chunk(position)
        row = None if chunk is None else chunk.row(position)
        if chunk is None or row is None:
            raise KeyError(position)
        return chunk, row


def _row(chunk: _Chunk, row: int, position: int) -> Row:
    return Row(position, chunk.publishers[row], chunk.sequences[row], chunk.places[row])


def to_place(cursor: Cursor) -> Place:
    """The place of a record that begins at a cursor."""
    return cursor.segment << _OFFSET_BITS | cursor.offset


def split_place(place: Place) -> tuple[int, int]:
    """The number of the segment, and the offset in it."""
    return place >> _OFFSET_BITS, place & _OFFSET_MASK

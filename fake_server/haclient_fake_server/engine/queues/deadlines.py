"""Deadlines of messages, about 16 bytes for each.

The youngest ones are a heap of whole numbers, which join the moment and the position of a message.
A heap of `RUN` entries becomes a sorted *run*, two arrays of numbers, of which the earliest entry
is the last. Entries are never looked for: one that no longer counts is dropped when it comes up, or
when most of them no longer count: then one run after the other is gone through.
"""

from __future__ import annotations

import heapq
import sys
from array import array
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

_POSITION_BITS: Final = 64
_POSITION_MASK: Final = (1 << _POSITION_BITS) - 1

_HIGHEST_BIT: Final = bytes(byte | 0x80 for byte in range(256))

NEVER_US: Final = 1 << 63
"""Later than any deadline."""

_SLACK: Final = 1024
"""Entries that no longer count which are left in the heap in any case."""


RUN: Final = 16_384
"""Entries of a run: sorted, or gone through, in some 10 ms."""

_Run: TypeAlias = tuple[int, int, "array[int]", "array[int]"]
"""The entry that is due first; the call of `keep` that has gone through it; moments and positions
of all entries, that one last."""


class Deadlines:
    """Moments in microseconds since 1970, each of a message that is known by its position."""

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._runs: list[_Run] = []  # a heap, too
        self._count = 0
        self._sweeps = 0  # calls of `keep`

    @property
    def next_us(self) -> int:
        """The earliest moment, `NEVER_US` when there is none."""
        next_us = self._heap[0] >> _POSITION_BITS if self._heap else NEVER_US
        return min(next_us, self._runs[0][0] >> _POSITION_BITS) if self._runs else next_us

    def add(self, due_us: int, position: int) -> None:
        """Add a deadline of a message."""
        heapq.heappush(self._heap, due_us << _POSITION_BITS | position)
        self._count += 1
        if len(self._heap) == RUN:
            heapq.heappush(self._runs, _run(self._heap, self._sweeps))
            self._heap = []

    def take_due(self, now_us: int, limit: int) -> Iterator[tuple[int, int]]:
        """Remove and return at most `limit` entries that are due: moment and position."""
        while limit and self._count and self.next_us <= now_us:
            limit -= 1
            self._count -= 1
            entry = self._take_first()
            yield entry >> _POSITION_BITS, entry & _POSITION_MASK

    def _take_first(self) -> int:
        runs = self._runs
        if not runs or (self._heap and self._heap[0] < runs[0][0]):
            return heapq.heappop(self._heap)
        entry, sweep, moments, positions = runs[0]
        del moments[-1], positions[-1]
        if moments:
            first = _entry(moments[-1], positions[-1])
            heapq.heapreplace(runs, (first, sweep, moments, positions))
        else:
            heapq.heappop(runs)
        return entry

    def columns(self) -> tuple[array[int], array[int]]:
        """Moments and positions of all entries, in no order."""
        moments = array("Q", [entry >> _POSITION_BITS for entry in self._heap])
        positions = array("Q", [entry & _POSITION_MASK for entry in self._heap])
        for *_, more_moments, more_positions in self._runs:
            moments += more_moments
            positions += more_positions
        return moments, positions

    def is_mostly_stale(self, counting: int) -> bool:
        """Whether more than half of the entries no longer count, of which `counting` may count."""
        return self._count > 2 * counting + _SLACK

    def keep(self, counts: Callable[[int, int], bool]) -> None:
        """Drop those of the youngest and of one run that no longer count, of another run each time.

        Args:
            counts: Is told moment and position of each.
        """
        before = len(self._heap)
        self._heap = [
            entry for entry in self._heap if counts(entry >> _POSITION_BITS, entry & _POSITION_MASK)
        ]
        heapq.heapify(self._heap)
        self._count -= before - len(self._heap)
        if not self._runs:
            return
        self._sweeps += 1
        oldest = min(range(len(self._runs)), key=lambda number: self._runs[number][1])
        *_, moments, positions = self._runs.pop(oldest)
        found = zip(moments, positions, strict=True)
        kept = [_entry(*each) for each in found if counts(*each)]
        self._count -= len(moments) - len(kept)
        if kept:
            self._runs.append(_run(kept, self._sweeps))
        heapq.heapify(self._runs)


def with_highest_bit(numbers: array[int]) -> array[int]:
    """The same numbers of 64 bits, each with the highest one: in no step for each of millions."""
    data = bytearray(numbers)
    highest = slice(7 if sys.byteorder == "little" else 0, None, 8)
    data[highest] = data[highest].translate(_HIGHEST_BIT)
    return array("Q", bytes(data))


def _entry(due_us: int, position: int) -> int:
    return due_us << _POSITION_BITS | position


def _run(entries: list[int], sweep: int) -> _Run:
    entries.sort(reverse=True)
    moments = array("Q", [entry >> _POSITION_BITS for entry in entries])
    return entries[-1], sweep, moments, array("Q", [entry & _POSITION_MASK for entry in entries])

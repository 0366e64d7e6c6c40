"""Deadlines of messages: a heap of whole numbers, about 48 bytes for each.

An entry joins the moment and the position of a message in one integer. Entries are never looked
for: one that no longer counts is dropped when it comes up, or when the heap is rebuilt because
most of it no longer counts.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Final

_POSITION_BITS: Final = 64
_POSITION_MASK: Final = (1 << _POSITION_BITS) - 1

NEVER_US: Final = 1 << 63
"""Later than any deadline."""

_SLACK: Final = 1024
"""Entries that no longer count which are left in the heap in any case."""


class Deadlines:
    """Moments in microseconds since 1970, each of a message that is known by its position."""

    def __init__(self) -> None:
        self._heap: list[int] = []

    @property
    def next_us(self) -> int:
        """The earliest moment, `NEVER_US` when there is none."""
        return self._heap[0] >> _POSITION_BITS if self._heap else NEVER_US

    def add(self, due_us: int, position: int) -> None:
        """Add a deadline of a message."""
        heapq.heappush(self._heap, due_us << _POSITION_BITS | position)

    def take_due(self, now_us: int, limit: int) -> Iterator[tuple[int, int]]:
        """Remove and return at most `limit` entries that are due: moment and position."""
        heap = self._heap
        while limit and heap and heap[0] >> _POSITION_BITS <= now_us:
            entry = heapq.heappop(heap)
            limit -= 1
            yield entry >> _POSITION_BITS, entry & _POSITION_MASK

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Moment and position of all entries, in no order."""
        return ((entry >> _POSITION_BITS, entry & _POSITION_MASK) for entry in self._heap)

    def is_mostly_stale(self, counting: int) -> bool:
        """Whether more than half of the entries no longer count, of which `counting` may count."""
        return len(self._heap) > 2 * counting + _SLACK

    def keep(self, counts: Callable[[int, int], bool]) -> None:
        """Drop the entries that no longer count; `counts` is told moment and position of each."""
        self._heap = [
            entry for entry in self._heap if counts(entry >> _POSITION_BITS, entry & _POSITION_MASK)
        ]
        heapq.heapify(self._heap)

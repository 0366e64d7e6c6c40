"""Waiting for a number that only rises.

Acks are cumulative, so a waiter is a number, not a message: one sorted heap, touched only by those
who wait. A publish that nobody waits for costs nothing here.
"""

from __future__ import annotations

import heapq
from itertools import count

import trio

__all__ = ["Watermark"]


class Watermark:
    """Tasks that wait until the mark reaches their level."""

    __slots__ = ("_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, trio.Event]] = []
        self._order = count()

    def __bool__(self) -> bool:
        return bool(self._heap)

    def rise(self, level: int) -> None:
        """The mark is at `level` now."""
        heap = self._heap
        while heap and heap[0][0] <= level:
            heapq.heappop(heap)[2].set()

    def release(self) -> None:
        """Wake everyone: the mark may never rise again, and each looks for itself."""
        for _, _, event in self._heap:
            event.set()
        self._heap.clear()

    async def reached(self, level: int) -> None:
        """Wait for `rise` to at least `level`, or for `release`."""
        event = trio.Event()
        entry = (level, next(self._order), event)
        heapq.heappush(self._heap, entry)
        try:
            await event.wait()
        finally:
            if not event.is_set():  # cancelled: leave no entry behind
                self._heap.remove(entry)
                heapq.heapify(self._heap)

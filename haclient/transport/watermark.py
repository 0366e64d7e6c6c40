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

    async def reached(self, level: int, event: trio.Event | None = None) -> None:
        """Wait for `rise` to at least `level`, or for `release`.

        Args:
            level: What to wait for.
            event: Something else that may happen first and ends the wait as well.
        """
        shared = event is not None
        if event is None:
            event = trio.Event()
        entry = (level, next(self._order), event)
        heapq.heappush(self._heap, entry)
        try:
            await event.wait()
        finally:
            # Cancelled, or the other thing happened: leave no entry behind.
            if (shared or not event.is_set()) and entry in self._heap:
                self._heap.remove(entry)
                heapq.heapify(self._heap)

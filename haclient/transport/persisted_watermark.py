"""The persisted watermark: tasks that wait until everything up to a sequence is persisted."""

from __future__ import annotations

import heapq
from itertools import count

import trio


class Watermark:
    """Tasks that wait until the mark reaches their level."""

    __slots__ = ("_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, trio.Event]] = []
        self._order = count()

    def __bool__(self) -> bool:
        return bool(self._heap)

    def rise(self, level: int) -> None:
        """Raise the mark to `level` and wake the tasks that wait for it."""
        heap = self._heap
        while heap and heap[0][0] <= level:
            heapq.heappop(heap)[2].set()

    def release(self) -> None:
        """Wake every waiter, although the mark has not risen: each checks again."""
        for _, _, event in self._heap:
            event.set()
        self._heap.clear()

    async def reached(self, level: int, event: trio.Event | None = None) -> None:
        """Wait for `rise` to at least `level`, or for `release`.

        Args:
            level: What to wait for.
            event: Another event that also ends the wait if it happens first.
        """
        shared = event is not None
        if event is None:
            event = trio.Event()
        entry = (level, next(self._order), event)
        heapq.heappush(self._heap, entry)
        try:
            await event.wait()
        finally:
            # Cancelled, or another wait ended first: leave no entry behind.
            if (shared or not event.is_set()) and entry in self._heap:
                self._heap.remove(entry)
                heapq.heapify(self._heap)

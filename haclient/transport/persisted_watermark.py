"""The persisted watermark: tasks that wait until everything up to a sequence is persisted."""

from __future__ import annotations

import heapq
from itertools import count

import trio

from haclient.transport.ack_waits import AckWaits


class Watermark:
    """Tasks that wait until the mark reaches their sequence.

    Args:
        waits: The waits for acks of the client.
    """

    __slots__ = ("_heap", "_order", "_waits")

    def __init__(self, waits: AckWaits) -> None:
        self._waits = waits
        self._heap: list[tuple[int, int, trio.Event]] = []
        self._order = count()

    def __bool__(self) -> bool:
        return bool(self._heap)

    def advance(self, sequence: int) -> None:
        """Raise the mark to `sequence` and wake the tasks that wait for it."""
        heap = self._heap
        while heap and heap[0][0] <= sequence:
            heapq.heappop(heap)[2].set()

    def release(self) -> None:
        """Wake every waiter, although the mark has not risen: each checks again."""
        for _, _, event in self._heap:
            event.set()
        self._heap.clear()

    async def wait_for(self, sequence: int, what: str, event: trio.Event | None = None) -> None:
        """Wait for `advance` to at least `sequence`, or for `release`.

        Args:
            sequence: What to wait for.
            what: What the caller does, for the error.
            event: Another event that also ends the wait if it happens first.

        Raises:
            SubscriptionFull: The ack comes after more messages than the client reads ahead.
        """
        is_popped = event is None
        if event is None:
            event = trio.Event()
        entry = (sequence, next(self._order), event)
        heapq.heappush(self._heap, entry)
        try:
            await self._waits.until(event, what)
        except BaseException:
            is_popped = False
            raise
        finally:
            # Cancelled, refused, or another wait ended first: leave no entry behind.
            if not is_popped and entry in self._heap:
                self._heap.remove(entry)
                heapq.heapify(self._heap)

"""What the application is told of besides its messages, off the reading task.

Callbacks may be plain or async; one task calls them in order. The queue is bounded like a
subscription's: when the callbacks cannot keep up, the reader stops reading until they have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from inspect import isawaitable
from typing import Final

import trio

__all__ = ["Events"]

_CAP: Final = 65_536  # events; each may hold one message


class Events:
    """Named callbacks and the queue in front of them."""

    def __init__(self, **callbacks: Callable[..., object] | None) -> None:
        self._callbacks = {name: each for name, each in callbacks.items() if each is not None}
        self._queue: deque[tuple[str, tuple[object, ...]]] = deque()
        self._arrived = trio.lowlevel.ParkingLot()
        self._drained = trio.lowlevel.ParkingLot()
        self.consumer: trio.lowlevel.Task | None = None

    def __contains__(self, name: str) -> bool:
        return name in self._callbacks

    def tell(self, name: str, *values: object) -> None:
        """Queue one event, if anyone listens."""
        if name in self._callbacks:
            self._queue.append((name, values))
            self._arrived.unpark_all()

    @property
    def full(self) -> bool:
        """Whether the callbacks are too far behind."""
        return len(self._queue) > _CAP

    @property
    def draining(self) -> bool:
        """Whether the callbacks have yet to catch up to half of the cap."""
        return len(self._queue) > _CAP // 2

    async def drained(self) -> None:
        """Wait until the callbacks have caught up to half of the cap."""
        while self.draining:
            await self._drained.park()

    async def run(self) -> None:
        """Call back for as long as the client lives; an error of a callback is the client's."""
        self.consumer = trio.lowlevel.current_task()
        while True:
            while self._queue:
                name, values = self._queue.popleft()
                result = self._callbacks[name](*values)
                if isawaitable(result):
                    await result
                if self._drained and len(self._queue) <= _CAP // 2:
                    self._drained.unpark_all()
            await self._arrived.park()

"""Holds publishes that no store keeps while the client is about to move to another server.

A message that is published after the old server was asked for its confirmation would be lost with
the connection. Several moves may be prepared at a time, so holds are counted: a move that does not
happen releases its own hold, and all holds end when the client is live again or has failed.

A handler whose full queue has stopped the reading must not wait: the confirmation would arrive
behind the messages that it has not taken yet. Its publishes pass, and the old server is asked once
more. Such a handler may also wait for another task that publishes. Who waits for whom cannot be
known; but a handler that has taken nothing for a while, although its queue is full, may be waiting
for a publish that is held. From then on every publish passes while reading has stopped.

Once the old server has confirmed everything, nothing passes: the connection is being closed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

STALL_SHARE: Final = 0.1
"""The part of the limit of a planned move in which a handler with a full queue takes nothing, when
publishes begin to pass."""


class PublishHold:
    """What publishes without a store wait for during a planned move.

    Attributes:
        is_exempt: Whether the calling task may publish in spite of a hold.
        backlog: What the one for whom reading has stopped has yet to take, as a value that changes
            with each message; `None` while the client reads.
        passed: How many publishes have passed in spite of one.
    """

    __slots__ = (
        "_changed",
        "_count",
        "_has_stalled",
        "_is_confirmed",
        "backlog",
        "is_exempt",
        "passed",
    )

    def __init__(self) -> None:
        self.is_exempt: Callable[[], bool] = lambda: False
        self.backlog: Callable[[], object | None] = lambda: None
        self.passed = 0
        self._count = 0
        self._is_confirmed = False
        self._has_stalled = False
        self._changed = trio.Event()

    @property
    def is_active(self) -> bool:
        """Whether publishes have to wait."""
        return self._count > 0

    def add(self) -> None:
        """Hold publishes from now on."""
        self._count += 1
        self.recheck()  # `watch` waits for it

    def release(self) -> None:
        """Remove one hold; does nothing after `end`."""
        if self._count == 1:
            self.end()
        elif self._count:
            self._count -= 1

    def confirmed(self) -> None:
        """The server has confirmed everything: let none pass until `end`."""
        self._is_confirmed = True

    def end(self) -> None:
        """Remove every hold: publishes are sent, or fail, as without a move."""
        self._count = 0
        self._is_confirmed = self._has_stalled = False
        self.recheck()

    def recheck(self) -> None:
        """Have each waiting publish check again whether it has to wait."""
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def ended(self) -> None:
        """Wait until there is no hold for the calling task; does not suspend if there is none."""
        while self._count:
            if not self._is_confirmed and (self.is_exempt() or self._is_stalled):
                self.passed += 1
                return
            await self._changed.wait()

    @property
    def _is_stalled(self) -> bool:
        """Whether reading may not go on until a publish of any task has passed."""
        return self._has_stalled and self.backlog() is not None

    async def watch(self, limit_s: float) -> None:
        """Let publishes pass once a full queue does not become shorter; never returns.

        Args:
            limit_s: How long a planned move may wait for its server, in seconds.
        """
        while True:
            while not self._count or self._has_stalled:
                await self._changed.wait()
            before = self.backlog()
            await trio.sleep(limit_s * STALL_SHARE)
            if self._count and before is not None and before == self.backlog():
                self._has_stalled = True
                self.recheck()

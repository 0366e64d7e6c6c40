"""Holds publishes that no store keeps while the client is about to move to another server.

A message that is published after the old server was asked for its confirmation would be lost with
the connection. Several moves may be prepared at a time, so holds are counted: a move that does not
happen releases its own hold, and all holds end when the client is live again or has failed.

A handler whose full queue has stopped the reading must not wait: the confirmation would arrive
behind the messages that it has not taken yet. Its publishes pass, and the old server is asked once
more. Once that has confirmed everything, nothing passes: the connection is being closed.
"""

from __future__ import annotations

from collections.abc import Callable

import trio


class PublishHold:
    """What publishes without a store wait for during a planned move.

    Attributes:
        is_exempt: Whether the calling task may publish in spite of a hold.
        passed: How many publishes have passed in spite of one.
    """

    __slots__ = ("_changed", "_count", "_is_confirmed", "is_exempt", "passed")

    def __init__(self) -> None:
        self.is_exempt: Callable[[], bool] = lambda: False
        self.passed = 0
        self._count = 0
        self._is_confirmed = False
        self._changed = trio.Event()

    @property
    def is_active(self) -> bool:
        """Whether publishes have to wait."""
        return self._count > 0

    def add(self) -> None:
        """Hold publishes from now on."""
        self._count += 1

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
        self._is_confirmed = False
        self.recheck()

    def recheck(self) -> None:
        """Have each waiting publish check again whether it has to wait."""
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def ended(self) -> None:
        """Wait until there is no hold for the calling task; does not suspend if there is none."""
        while self._count:
            if not self._is_confirmed and self.is_exempt():
                self.passed += 1
                return
            await self._changed.wait()

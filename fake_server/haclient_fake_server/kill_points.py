"""Named points at which a broker can be killed, for tests of the state after a kill.

A process in which a point is armed sends itself SIGKILL there: nothing is flushed, no `finally`
runs. `haclient_fake_server.testing` arms a point by writing a line to the process's standard input.
"""

from __future__ import annotations

import enum
import os
import signal
from collections.abc import Callable


class KillPoint(enum.StrEnum):
    """Where a broker can be killed, in the order in which a batch reaches the points."""

    BEFORE_WRITE = "before_write"
    """The engine has processed a batch; nothing of it is in the journal or was sent."""
    IN_WRITE = "in_write"
    """Half of the block is in the journal."""
    AFTER_WRITE = "after_write"
    """The block is in the journal; nothing of it was sent."""
    AFTER_CONFIRMED = "after_confirmed"
    """The progress of replication is in its file; no ack that it releases was sent."""
    AFTER_SEND = "after_send"
    """Acks or messages were handed to the kernel."""
    BEFORE_ROLL = "before_roll"
    """The next block needs a new segment, which does not exist yet."""
    AFTER_ROLL = "after_roll"
    """The new segment has its name and its prologue; the block is not written."""
    BEFORE_SEAL = "before_seal"
    """A full segment is about to be synced, in a thread."""
    BEFORE_MANIFEST = "before_manifest"
    """A full segment was synced; its manifest is not written."""
    AFTER_MANIFEST = "after_manifest"
    """The manifest of a full segment is written."""


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class KillPoints:
    """The points of one broker; none is armed unless a test says so.

    Args:
        kill: Ends the process at once.
    """

    def __init__(self, kill: Callable[[], None] = _kill) -> None:
        self._kill = kill
        self._passes: dict[KillPoint, int] = {}

    def arm(self, point: KillPoint, *, passes: int = 0) -> None:
        """Kill the process at a point.

        Args:
            point: Where.
            passes: How often the process passes the point before that.
        """
        self._passes[point] = passes

    def is_due(self, point: KillPoint) -> bool:
        """Whether `reach` would kill now."""
        return self._passes.get(point) == 0

    def reach(self, point: KillPoint) -> None:
        """Note that a point is reached; kills the process if it is armed and due."""
        passes = self._passes.get(point)
        if passes == 0:
            self._kill()
        elif passes:
            self._passes[point] = passes - 1

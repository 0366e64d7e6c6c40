"""A wall clock of which steps do no harm: where a replay on another server begins (BS9). Pure.

A subscription takes a time to another server, and the replay begins there. Too early a time costs
repetitions, which are filtered; too late a one is a silent gap. So of the times that it might be
the earliest is taken: what the wall clock says, and what it said when the client started plus the
seconds that have passed since. A clock that is set forward, back, or forward and back again while
the client runs thus leads to an earlier time or to the right one, and never to a later one.

What is left is a clock that was ahead when the client started and has not been set right since.
"""

from __future__ import annotations

__all__ = ["Unstepped"]


class Unstepped:
    """Tells the earliest time that it might be, in microseconds since 1970.

    Args:
        wall_us: What the wall clock says at the start.
        now: The start, in seconds on a clock that never steps.
    """

    __slots__ = ("_started_at", "_started_us")

    def __init__(self, wall_us: int, now: float) -> None:
        self._started_us = wall_us
        self._started_at = now

    def earliest_us(self, wall_us: int, now: float) -> int:
        """The time, when the two clocks say so much."""
        passed_us = int((now - self._started_at) * 1_000_000)
        return min(wall_us, self._started_us + passed_us)

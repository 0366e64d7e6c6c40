"""When to send a heartbeat, and when to consider the peer dead.

Both ends promise to send *something* at least once per interval, and any traffic counts. We send a
heartbeat every interval, even if other data was sent: it is only 35 bytes, and needs no bookkeeping
on the hot path. The peer's heartbeats are not answered, because two ends that did would answer each
other forever. The peer is considered dead when it was silent for the idle limit, two intervals by
default.

While we do not read the socket ourselves (a subscription is full), silence proves nothing: the idle
timer is paused, while our own heartbeats continue.
"""

from __future__ import annotations

import enum

from haclient.errors import UsageError


class Due(enum.Enum):
    """Which heartbeat action is due."""

    NOTHING = enum.auto()
    BEAT = enum.auto()
    LOST = enum.auto()


class Heartbeat:
    """The two timers of one connection; times are seconds on the caller's clock.

    Args:
        interval_s: How often each end sends something, at least, in seconds.
        idle_limit_s: Seconds of silence after which the peer is considered dead; two intervals by
            default.

    Raises:
        UsageError: The interval is not positive, or the limit is shorter than one interval.
    """

    __slots__ = ("_beat_at", "_reading", "_received_at", "idle_limit_s", "interval_s")

    def __init__(self, interval_s: float, idle_limit_s: float | None = None) -> None:
        if not interval_s > 0:
            raise UsageError(f"the heartbeat interval must be positive, not {interval_s}")
        limit = 2 * interval_s if idle_limit_s is None else idle_limit_s
        if not limit >= interval_s:
            raise UsageError(
                f"the idle limit of {limit} s is shorter than the interval of {interval_s} s: "
                "every connection would be given up"
            )
        self.interval_s = interval_s
        self.idle_limit_s = limit
        self._received_at = 0.0
        self._beat_at = 0.0
        self._reading = True

    @property
    def options(self) -> str:
        """The `opts` of the command that starts the server's heartbeat."""
        return f"start,{f'{self.interval_s:.6f}'.rstrip('0').rstrip('.')}"

    def start(self, now: float) -> None:
        """Start the timers of a new connection.

        Args:
            now: The current time, in seconds on the caller's clock.
        """
        self._received_at = self._beat_at = now
        self._reading = True

    def received(self, now: float) -> None:
        """Note that bytes have arrived from the peer."""
        self._received_at = now

    def beat(self, now: float) -> None:
        """Note that a heartbeat was sent."""
        self._beat_at = now

    def reading(self, now: float, *, active: bool) -> None:
        """Note that reading stops or resumes; on resuming the idle limit starts over."""
        self._reading = active
        self._received_at = now

    def next_at(self) -> float:
        """The next time at which `due` may return something other than `NOTHING`."""
        beat_at = self._beat_at + self.interval_s
        return min(beat_at, self._received_at + self.idle_limit_s) if self._reading else beat_at

    def due(self, now: float) -> Due:
        """What to do at `now`; after `BEAT` the caller sends a heartbeat and calls `beat`."""
        if self._reading and now >= self._received_at + self.idle_limit_s:
            return Due.LOST
        return Due.BEAT if now >= self._beat_at + self.interval_s else Due.NOTHING

"""The pace of a replay: the option `rate`.

A message is due some time after the one before it: a second divided by the rate, or the length of
the message before divided by the bytes per second, or the time between the two when they were
published, divided by the speed. `rate_max_gap` limits that time.

Who is late may catch up by `CREDIT_S` and not more: then a timer that fires late does not lower the
rate, and a subscriber that did not read for an hour does not get an hour's messages at once.
"""

from __future__ import annotations

from typing import Final

from haclient.protocol.options import Rate, RateUnit

CREDIT_S: Final = 0.1
"""How many seconds of delay are made up for."""


class ReplayPace:
    """When each message of one replay may be sent.

    Args:
        rate: The option `rate`.
        max_gap_s: The longest time between two messages; `None` for no limit.
    """

    __slots__ = ("_bytes", "_due", "_max_gap_s", "_rate", "_time_us")

    def __init__(self, rate: Rate, max_gap_s: float | None = None) -> None:
        self._rate = rate
        self._max_gap_s = max_gap_s
        self._due: float | None = None  # of the message before; None before the first
        self._bytes = 0  # of that message
        self._time_us = 0  # when that message was published

    @property
    def terms(self) -> tuple[Rate, float | None]:
        """The rate and the longest gap."""
        return self._rate, self._max_gap_s

    def anew(self) -> ReplayPace:
        """A new pace with the same terms, for a replay that begins."""
        return ReplayPace(*self.terms)

    def due(self, now: float, time_us: int) -> float:
        """When the next message may be sent, on the clock of `now`.

        Args:
            now: The present moment in seconds, when the first message is due.
            time_us: When the message was published.
        """
        if self._due is None:
            return now
        if self._rate.unit is RateUnit.MESSAGES:
            gap = 1 / self._rate.amount
        elif self._rate.unit is RateUnit.BYTES:
            gap = self._bytes / self._rate.amount
        else:  # the log's clock may have been set back
            gap = max(time_us - self._time_us, 0) / 1e6 / self._rate.amount
        return self._due + (gap if self._max_gap_s is None else min(gap, self._max_gap_s))

    def sent(self, now: float, size: int, time_us: int) -> None:
        """Take note that the next message is sent.

        Args:
            now: The present moment in seconds, not before the message is due.
            size: The length of its body in bytes.
            time_us: When it was published.
        """
        self._due = max(self.due(now, time_us), now - CREDIT_S)
        self._bytes = size
        self._time_us = time_us

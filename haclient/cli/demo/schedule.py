"""When `haclient demo` kills whom, and how fast it publishes meanwhile: pure, with `now` passed in.

The stream is cut into equal parts, two more than there are kills; the k-th kill is due when k parts
have arrived. It may have to wait, for a broker that has yet to catch up, say. So that it strikes in
mid-stream all the same, publishing slows down by then: what may be published before a kill ends one
part after it was due, and that end is only ever approached. From the kill on the pace is the full
one again. Behind the last kill there is always a part left.
"""

from __future__ import annotations

import enum
from typing import Final

__all__ = ["KILLS", "MIN_MESSAGES", "Kill", "Pace", "due_at"]


class Kill(enum.Enum):
    """Whom to kill."""

    PRIMARY = "primary"
    """The broker that the clients are connected to."""
    SUBSCRIBER = "subscriber"


KILLS: Final = (Kill.PRIMARY, Kill.SUBSCRIBER, Kill.PRIMARY, Kill.PRIMARY)
"""What happens, in this order: three fail-overs and one restart of the subscriber."""

MIN_MESSAGES: Final = 1000
"""With fewer there is no stream to kill anybody in the middle of."""

_STREAM_S: Final = 10.0  # how long publishing takes at full pace
_MAX_PER_SECOND: Final = 12_500.0  # what two cores carry through five processes with ease
_SLOWDOWN_S: Final = 1.0  # time constant of the approach to the end of a part


def due_at(kill: int, messages: int) -> int:
    """How many messages have arrived when the kill of this index is due."""
    return messages * (kill + 1) // (len(KILLS) + 2)


class Pace:
    """How many messages may have been published by now.

    Args:
        messages: How many there are.
        now: When publishing begins, in seconds.
    """

    def __init__(self, messages: int, now: float) -> None:
        self._messages = messages
        self._per_second = min(messages / _STREAM_S, _MAX_PER_SECOND)
        self._kills = 0
        self._now = now
        self._reached = 0.0

    def killed(self) -> None:
        """The next kill has happened: the way is free up to the one after it."""
        self._kills += 1

    def allowed(self, now: float) -> int:
        """How many messages may have been published; it only rises."""
        elapsed_s, self._now = now - self._now, now
        if self._kills == len(KILLS):
            self._reached = min(self._reached + self._per_second * elapsed_s, self._messages)
            return int(self._reached)
        end = due_at(self._kills + 1, self._messages)
        share = min(elapsed_s / _SLOWDOWN_S, 1.0)
        step = min(self._per_second * elapsed_s, (end - self._reached) * share)
        self._reached += step
        return min(int(self._reached), end - 1)

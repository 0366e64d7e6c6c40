"""How fast a demo publishes, so that each kill strikes in mid-stream."""

from __future__ import annotations

from typing import Final

MIN_MESSAGES: Final = 1000
"""With fewer there is no stream to kill anybody in the middle of."""

_STREAM_S: Final = 10.0  # how long publishing takes at full pace
_MAX_PER_SECOND: Final = 12_500.0  # what two cores easily handle with five processes
_SLOWDOWN_S: Final = 1.0  # time constant of the approach to the end of a part


def due_at(kill: int, messages: int, *, kills: int) -> int:
    """How many messages have arrived when the kill of this index, of so many, is due."""
    return messages * (kill + 1) // (kills + 2)


class DemoPace:
    """How many messages may have been published by now; pure, with `now` passed in.

    The stream is cut into equal parts, two more than there are kills; the k-th kill is due when k
    parts have arrived. It may have to wait, for example for a broker that has yet to catch up. So
    that it still happens in mid-stream, publishing slows down when a kill is overdue: the number of
    messages published before the kill approaches a limit one part later and never reaches it. After
    the kill, publishing returns to full speed. One part always remains after the last kill.

    Args:
        messages: The number of messages.
        now: When publishing begins, in seconds.
        kills: The number of kills.
    """

    def __init__(self, messages: int, now: float, *, kills: int) -> None:
        self._messages = messages
        self._due_kills = kills
        self._per_second = min(messages / _STREAM_S, _MAX_PER_SECOND)
        self._kills = 0
        self._now = now
        self._reached = 0.0

    def killed(self) -> None:
        """Record that a kill has happened: publishing may go on up to the next one."""
        self._kills += 1

    def allowed(self, now: float) -> int:
        """The number of messages that may have been published; it never falls."""
        elapsed_s, self._now = now - self._now, now
        if self._kills == self._due_kills:
            self._reached = min(self._reached + self._per_second * elapsed_s, self._messages)
            return int(self._reached)
        end = due_at(self._kills + 1, self._messages, kills=self._due_kills)
        share = min(elapsed_s / _SLOWDOWN_S, 1.0)
        step = min(self._per_second * elapsed_s, (end - self._reached) * share)
        self._reached += step
        return min(int(self._reached), end - 1)

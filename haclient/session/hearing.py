"""Up to when a server was heard: what was written later may be missing (design 5). Pure.

On another server a subscription begins a little before that time, so it must never be too late. All
that a server has written is here when nothing is left to read. While a client is too slow to empty
the link, though, the server may be held up, and then what it writes is as old as the hold-up is
long. It catches up once the client reads again; how soon is not told, so it is taken to be slow.
"""

from __future__ import annotations

from typing import Final

__all__ = ["Hearing", "catching_up"]

_BUSY_S: Final = 1.0  # reading for so long does not hold a server up; the overlap is far longer
_CATCHES_UP: Final = 0.1  # a server that is not held up makes up for so much of a second in each


def catching_up(behind_s: float, for_s: float) -> float:
    """How far a server is still behind after it was not held up for so long."""
    return max(0.0, behind_s - _CATCHES_UP * for_s)


class Hearing:
    """What one link says about it; times are seconds on the caller's clock.

    Args:
        now: When the link was opened.
    """

    __slots__ = ("_behind_s", "_empty_at")

    def __init__(self, now: float) -> None:
        self._empty_at = now
        self._behind_s = 0.0

    @property
    def heard_at(self) -> float:
        """What the server had to say before this time has arrived."""
        return self._empty_at - self._behind_s

    def empty(self, now: float) -> None:
        """Everything that has arrived was read and taken in."""
        busy_s = now - self._empty_at
        if busy_s > _BUSY_S:
            self._behind_s += busy_s
        self._empty_at = now

    def arrived(self, now: float) -> None:
        """There is something to read again, after the link was empty."""
        self._behind_s = catching_up(self._behind_s, now - self._empty_at)
        self._empty_at = now

"""How far a long run has got, one line at a time: on stderr, so that stdout stays the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["Progress", "is_wanted"]

_EVERY_S: Final = 10.0
_MANY: Final = 100


def is_wanted(*, seeds: int, terminal: bool) -> bool:
    """Whether to tell: somebody looks, or it takes so long that somebody will."""
    return terminal or seeds > _MANY


class Progress:
    """Counts seeds and tells about every ten seconds.

    Args:
        seeds: How many there are.
        say: Takes a line.
        clock: Seconds, on a clock that never steps.
    """

    def __init__(
        self, seeds: int, say: Callable[[str], object], clock: Callable[[], float]
    ) -> None:
        self._seeds = seeds
        self._say = say
        self._clock = clock
        self._began_at = self._reported_at = clock()
        self._done = self._failed = 0

    def done(self, *, failed: bool) -> None:
        """One more is over."""
        self._done += 1
        self._failed += failed
        now = self._clock()
        if now - self._reported_at >= _EVERY_S:
            self._reported_at = now
            passed_s = now - self._began_at
            left_s = passed_s / self._done * (self._seeds - self._done)
            self._say(
                f"{self._done} of {self._seeds} seeds in {passed_s:.0f} s, {self._failed} failed; "
                f"about {left_s:.0f} s to go"
            )

"""How long the oldest unpersisted message has waited, without noting anything for each message.

From time to time somebody says how far the numbers have got. A message was stored before the first
such sample that covers it, and after the one before; its age is counted from the former, so it is
too low by no more than the time between two samples. Pure.
"""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["Ages"]

_MOST_SAMPLES: Final = 1024  # then every second one is forgotten: the old ones get coarser


class Ages:
    """When which number was the last."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[int, float]] = deque()

    def note(self, last_sequence: int, now: float) -> None:
        """Numbers have got so far."""
        samples = self._samples
        if samples and samples[-1][0] >= last_sequence:
            return
        samples.append((last_sequence, now))
        if len(samples) > _MOST_SAMPLES:
            kept = list(samples)[::2]
            self._samples = deque(kept if kept[-1] == samples[-1] else [*kept, samples[-1]])

    def forget(self, lowest_unpersisted: int) -> None:
        """Nothing below this number waits; 0 when nothing waits at all."""
        samples = self._samples
        while samples and (not lowest_unpersisted or samples[0][0] < lowest_unpersisted):
            samples.popleft()

    def age(self, lowest_unpersisted: int, now: float) -> float:
        """Seconds that the message with this number has waited; 0 for the number 0."""
        self.forget(lowest_unpersisted)
        return now - self._samples[0][1] if self._samples else 0.0

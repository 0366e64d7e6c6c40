"""Delivery fairness: which of the consumers that have room gets the next message.

=================  ==========================================================================
`fast`             the first one found with room: the one that subscribed first
`round-robin`      the next one with room after the one that was served last
`proportional`     the one that has used the smallest part of its backlog; of several, the first
=================  ==========================================================================

A roster holds the consumers of one filter that have room. `best` returns its candidate with a rank,
so that a queue whose consumers have several filters takes the lowest rank of all its rosters.
"""

from __future__ import annotations

import bisect
import heapq
from abc import ABC, abstractmethod
from typing import Final, NamedTuple

from typing_extensions import override

_SLACK: Final = 64
"""Entries of the heap that no longer count which are left in any case."""


class Best(NamedTuple):
    """A candidate of a roster; the lowest rank of several rosters is served."""

    rank: tuple[float, int]
    number: int


class Roster(ABC):
    """The consumers of one filter that have room, by their numbers."""

    @abstractmethod
    def __len__(self) -> int:
        """How many they are."""

    @abstractmethod
    def put(self, number: int, used: float) -> None:
        """A consumer has room; `used` is the part of its backlog that is taken."""

    @abstractmethod
    def discard(self, number: int) -> None:
        """A consumer has no room; it need not have had any."""

    @abstractmethod
    def best(self, served: int) -> Best | None:
        """The candidate for the next message; `served` is the one that got the last."""


class _Ordered(Roster):
    """Consumers with room in the order of their numbers."""

    def __init__(self) -> None:
        self._numbers: list[int] = []

    @override
    def __len__(self) -> int:
        return len(self._numbers)

    @override
    def put(self, number: int, used: float) -> None:
        at = bisect.bisect_left(self._numbers, number)
        if at == len(self._numbers) or self._numbers[at] != number:
            self._numbers.insert(at, number)

    @override
    def discard(self, number: int) -> None:
        at = bisect.bisect_left(self._numbers, number)
        if at < len(self._numbers) and self._numbers[at] == number:
            del self._numbers[at]


class FastRoster(_Ordered):
    """The first consumer with room."""

    @override
    def best(self, served: int) -> Best | None:
        return Best((0, self._numbers[0]), self._numbers[0]) if self._numbers else None


class RoundRobinRoster(_Ordered):
    """The next consumer with room, in turn."""

    @override
    def best(self, served: int) -> Best | None:
        if not self._numbers:
            return None
        at = bisect.bisect_right(self._numbers, served)
        if at < len(self._numbers):
            return Best((0, self._numbers[at]), self._numbers[at])
        return Best((1, self._numbers[0]), self._numbers[0])  # the turn begins again


class ProportionalRoster(Roster):
    """The consumer that has used the smallest part of its backlog."""

    def __init__(self) -> None:
        self._used: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    @override
    def __len__(self) -> int:
        return len(self._used)

    @override
    def put(self, number: int, used: float) -> None:
        if self._used.get(number) == used:
            return
        self._used[number] = used
        heapq.heappush(self._heap, (used, number))
        if len(self._heap) > 2 * len(self._used) + _SLACK:
            self._heap = [(used, number) for number, used in self._used.items()]
            heapq.heapify(self._heap)

    @override
    def discard(self, number: int) -> None:
        self._used.pop(number, None)

    @override
    def best(self, served: int) -> Best | None:
        heap = self._heap
        while heap and self._used.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)  # the consumer has another ratio now, or no room
        return Best(heap[0], heap[0][1]) if heap else None


ROSTERS: Final[dict[str, type[Roster]]] = {
    "fast": FastRoster,
    "round-robin": RoundRobinRoster,
    "proportional": ProportionalRoster,
}

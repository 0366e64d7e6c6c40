"""A set of mostly consecutive numbers, kept as runs: memory is bounded by the number of runs.

Numbers are added one by one, in any order, or as a run above all others; the lowest run is removed
first. Almost always a number continues the *growing* run, which is two integers. A number that does
not is *scattered*. When there are as many scattered numbers as runs, and at least a thousand, all
of them are sorted and joined, and the highest run becomes the growing one. The amortized cost per
number is constant, and adjacent numbers are joined before they use much memory. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

_FEW: Final = 1024  # this many numbers may be scattered before they are joined
_NONE: Final = 1 << 64  # above every number: there is no growing run


class Runs:
    """A set of numbers, as described in the module.

    Attributes:
        count: How many numbers there are.
        end: The number that continues the growing run, if there is one.
        scattered: Numbers that are in no run so far.
    """

    __slots__ = ("_begin", "_begins", "_ends", "_gone", "count", "end", "scattered")

    def __init__(self) -> None:
        self.count: int = 0
        self.end: int = _NONE
        self.scattered: set[int] = set()
        self._begin: int = _NONE  # of the growing run
        self._ends: dict[int, int] = {}  # of the runs below it, by where they begin; rising
        self._begins: list[int] = []  # the same begins, and some of runs that have left
        self._gone: int = 0  # this many at the front of those surely have left

    def __contains__(self, number: int) -> bool:
        return self.end_of(number) != number

    def end_of(self, number: int) -> int:
        """The end of the run that has a number.

        Args:
            number: Any number.

        Returns:
            The first number after the run; the number itself when no run has it.
        """
        if self._begin <= number < self.end:
            return self.end
        if number in self.scattered:
            return number + 1
        if not self._ends:
            return number
        index = bisect_right(self._begins, number)
        return max(number, self._ends.get(self._begins[index - 1], 0)) if index else number

    @property
    def first(self) -> int:
        """The lowest number, or a number above all numbers when there is none."""
        if self.scattered:
            self._join()
        if not self._ends:
            return self._begin
        while self._begins[self._gone] not in self._ends:
            self._gone += 1
        return self._begins[self._gone]

    def add(self, number: int) -> None:
        """Add one number.

        Args:
            number: A number that is not in it yet.
        """
        self.count += 1
        if number == self.end:
            number += 1
            while number in self.scattered:
                self.scattered.remove(number)
                number += 1
            self.end = number
        elif self.end == _NONE:
            self._begin, self.end = number, number + 1
        else:
            self.scattered.add(number)
            if len(self.scattered) > max(_FEW, len(self._ends)):
                self._join()

    def grow(self) -> None:
        """Add `end`; it is not in it, and nothing is scattered."""
        self.count += 1
        self.end += 1

    def append(self, begin: int, end: int) -> None:
        """Add a run above all others.

        Args:
            begin: Its first number.
            end: The first number after it.
        """
        if self.scattered:
            self._join()
        self.count += end - begin
        if begin != self.end:
            if self.end != _NONE:
                self._ends[self._begin] = self.end
                self._begins.append(self._begin)
            self._begin = begin
        self.end = end

    def skip(self, number: int) -> int:
        """Drop the run that begins at a number, if there is one.

        Args:
            number: A number that no run lies below.

        Returns:
            The first number after the run; the number itself when no run begins there.
        """
        if number == self._begin:
            end, self._begin, self.end = self.end, _NONE, _NONE
        elif number in self.scattered:
            self.scattered.remove(number)
            end = number + 1
        else:
            end = self._ends.pop(number, number)
            if len(self._begins) > _FEW + 2 * len(self._ends):
                self._begins = list(self._ends)
                self._gone = 0
        self.count -= end - number
        return end

    def ranges(self) -> list[tuple[int, int]]:
        """Begin and end of each run, rising."""
        if self.scattered:
            self._join()
        growing = [(self._begin, self.end)] if self.end != _NONE else []
        return [*self._ends.items(), *growing]

    def _join(self) -> None:
        growing = [(self._begin, self.end)] if self.end != _NONE else []
        points = ((number, number + 1) for number in self.scattered)
        runs = sorted([*self._ends.items(), *growing, *points])
        self.scattered.clear()
        ends = self._ends = dict[int, int]()
        first, last = runs[0]
        for begin, end in runs:
            if begin > last:
                ends[first] = last
                first = begin
            last = end
        self._begins, self._gone = list(ends), 0
        self._begin, self.end = first, last

    def copy(self) -> Runs:
        """One that stays as it is."""
        twin = Runs()
        twin.count, twin.end, twin._begin = self.count, self.end, self._begin
        twin.scattered, twin._ends = self.scattered.copy(), self._ends.copy()
        twin._begins, twin._gone = self._begins.copy(), self._gone
        return twin

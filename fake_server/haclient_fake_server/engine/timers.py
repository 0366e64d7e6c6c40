"""The clock of the engine, one heap for all its deadlines, and timestamps as they are written.

Each deadline belongs to a key, such as a connection. Setting an earlier time adds an entry to the
heap. Setting a later one does not: when the old entry reaches the top, it is found to be too early
and is put back. So a connection that receives constantly never touches the heap, and finding due
deadlines never looks at the others.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

NEVER = math.inf

FEW: Final = 64
"""Entries of cancelled keys that are left in the heap in any case."""

Action: TypeAlias = Callable[[], None]


class Due(NamedTuple):
    """Something that is due.

    Attributes:
        key: Its key.
        action: What to do.
        client: Number of the connection that it serves alone; 0 if it is the work of the broker.
    """

    key: Hashable
    action: Action
    client: int


class Timers:
    """Deadlines by key, at most one for each."""

    def __init__(self) -> None:
        self._wanted: dict[Hashable, tuple[float, Action, int]] = {}
        self._queued: dict[Hashable, float] = {}
        self._held: dict[Hashable, float] = {}
        self._heap: list[tuple[float, int, Hashable]] = []
        self._entries = 0

    @property
    def next_due(self) -> float:
        """The earliest moment at which something may be due; infinity for never."""
        return self._heap[0][0] if self._heap else NEVER

    def set(self, key: Hashable, due: float, action: Action, *, client: int = 0) -> None:
        """Call `action` at `due`, replacing any earlier deadline of the key.

        Args:
            key: The key.
            due: When.
            action: What to do then.
            client: Number of the connection that it serves alone, which ends if it fails.
        """
        if self._held:
            due = max(due, self._held.get(key, due))
        if due == NEVER:
            self.cancel(key)
            return
        self._wanted[key] = (due, action, client)
        if due < self._queued.get(key, NEVER):
            self._push(key, due)

    def hold(self, key: Hashable, until: float) -> None:
        """Set no earlier deadline of a key than this one, until `release`."""
        self._held[key] = until

    def release(self, key: Hashable) -> None:
        """Any deadline of a key may be set again."""
        self._held.pop(key, None)

    def cancel(self, key: Hashable) -> None:
        """Nothing is to happen for a key; its entry in the heap is dropped when it comes up.

        Or earlier, when more than half of the entries are of that kind: they may be due in years.
        """
        self._wanted.pop(key, None)
        if len(self._heap) > 2 * len(self._wanted) + FEW:
            self._queued = {each: self._queued[each] for each in self._wanted}
            self._heap = [entry for entry in self._heap if self._queued.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)

    def take_due(self, now: float) -> list[Due]:
        """What is due, the earliest first, without anything that these actions set."""
        found: list[Due] = []
        heap = self._heap
        postponed: list[tuple[Hashable, float]] = []
        while heap and heap[0][0] <= now:
            at, _, key = heapq.heappop(heap)
            if self._queued.get(key) != at:
                continue  # an earlier entry for the same key has taken its place
            del self._queued[key]
            wanted = self._wanted.get(key)
            if wanted is None:
                continue
            due, action, client = wanted
            if due > now:
                postponed.append((key, due))
            else:
                del self._wanted[key]
                found.append(Due(key, action, client))
        for key, due in postponed:
            self._push(key, due)
        return found

    def _push(self, key: Hashable, due: float) -> None:
        self._queued[key] = due
        self._entries += 1  # two entries of one time are never compared by their keys
        heapq.heappush(self._heap, (due, self._entries, key))


class Clock:
    """The time of the current batch: `now` is set when it begins, and nothing else reads a clock.

    Args:
        now: Seconds on the clock of the shell, which never goes back.
        now_us: The wall clock at that moment, in microseconds since 1970.

    Attributes:
        now: Seconds on the clock of the shell.
        timers: The deadlines.
    """

    def __init__(self, now: float, now_us: int) -> None:
        self.now = now
        self.timers = Timers()
        self._epoch_us = now_us - int(now * 1e6)

    @property
    def wall_us(self) -> int:
        """The running wall clock in microseconds, for deadlines.

        The time of records stands still while this clock is behind the log, as after a restart with
        a clock that was set back.
        """
        return self._epoch_us + int(self.now * 1e6)

    def due_at_us(self, timestamp_us: int) -> float:
        """The moment on the clock of the shell that is this wall-clock time."""
        wanted = timestamp_us - self._epoch_us
        due = wanted / 1e6
        # A tick a rounding error too early would be asked for again at the same moment, for ever
        # where the clock stands still meanwhile, as in simulations.
        return due if int(due * 1e6) >= wanted else math.nextafter(due, math.inf)


_START: Final = datetime(1970, 1, 1, tzinfo=UTC)


def timestamp_text(timestamp_us: int) -> bytes:
    """The `ts` header: ISO 8601 basic, microseconds, UTC."""
    second, microseconds = divmod(timestamp_us, 1_000_000)
    return b"%b.%06dZ" % (_second_text(second), microseconds)


def timestamp_us(text: str) -> int:
    """The inverse of `timestamp_text`."""
    return (datetime.fromisoformat(text) - _START) // timedelta(microseconds=1)


@lru_cache(maxsize=16)  # many messages share a second
def _second_text(second: int) -> bytes:
    return (_START + timedelta(seconds=second)).strftime("%Y%m%dT%H%M%S").encode("ascii")

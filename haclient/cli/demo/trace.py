"""The delivery trace of the `haclient demo` subscriber, and the verdict on it.

No delivery is lost from a trace by a SIGKILL (`haclient.cli.demo.trace_file`). A mark is one word.
Each message gets three marks, in this order, with nothing else between a mark and its event::

    DELIVERED n       the message is in the application's hands; its discard() was not called yet
    DISCARDING n      the next thing that happens is its discard()
    DISCARDED n       discard() has returned: the first thing that its caller did afterwards

So whenever the process is killed, each message is in one of four states. No mark: it was never
delivered to the application. DELIVERED only: it was certainly not discarded, and must be
redelivered. DISCARDED: it must never be redelivered. DISCARDING without DISCARDED (at most one
message for each kill): the call had not returned, so both outcomes are correct.

`judge` gives the verdict: a pure function of what was published and of the traces. A subscriber
runs several times: it is killed and started again with the same store. The traces of its runs, in
order, record when each message was delivered and whether its `discard()` had returned. Messages
are numbered from 0 in the order of their publishing.

* *lost*: never delivered; or delivered to a run that ended without calling its `discard()`, and
  never redelivered to a later one.
* *duplicated*: delivered again after its `discard()` had returned, or to the same run that still
  held it.
* *redelivered_undiscarded*: delivered again to a later run, because an earlier one was killed
  before it discarded the message. That is guaranteed behaviour, so it is counted separately.
* *out_of_order*: delivered after a later message in the same run, or for the first time after a
  later message of any run. A number that was never published counts here as well.
"""

from __future__ import annotations

import enum
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final, Self, TypeAlias

import msgspec

from haclient.cli.demo.trace_file import WORD_BYTES, mapped_words, read_words

_NUMBER_BITS: Final = 30
MAX_NUMBER: Final = (1 << _NUMBER_BITS) - 1
"""The largest number of a message; the two bits above it say which mark it is."""


class Mark(enum.IntEnum):
    """What happened to a message; 0 is not used, since an unwritten word is 0."""

    DELIVERED = 1
    DISCARDING = 2
    DISCARDED = 3


Step: TypeAlias = tuple[Mark, int]
"""One mark and the number of its message."""

_MARKS: Final = (None, Mark.DELIVERED, Mark.DISCARDING, Mark.DISCARDED)
_DISCARDING: Final = Mark.DISCARDING << _NUMBER_BITS
_DISCARDED: Final = Mark.DISCARDED << _NUMBER_BITS
_DELIVERED: Final = Mark.DELIVERED << _NUMBER_BITS


class TraceWriter:
    """Writes the trace of one process.

    Args:
        words: The words of its file; see `create`.
    """

    def __init__(self, words: memoryview[int]) -> None:
        self._words = words
        self._next = 0

    @classmethod
    @contextmanager
    def create(cls, path: Path, capacity: int) -> Generator[Self]:
        """Write to a file that does not exist yet.

        Args:
            path: The file.
            capacity: The maximum number of marks.
        """
        with mapped_words(path, capacity, "I") as words:
            yield cls(words)

    def delivered(self, number: int) -> None:
        """The message was handed to the application."""
        self._words[self._next] = _DELIVERED | number
        self._next += 1

    def discarding(self, number: int) -> None:
        """Its `discard()` is called next."""
        self._words[self._next] = _DISCARDING | number
        self._next += 1

    def discarded(self, number: int) -> None:
        """Its `discard()` has returned."""
        self._words[self._next] = _DISCARDED | number
        self._next += 1


class TraceReader:
    """Reads a trace while it is being written, or after its writer was killed.

    Args:
        path: The trace; a missing file counts as empty.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read_new(self) -> list[Step]:
        """The marks that were written since the last call."""
        return list(self._steps())

    def _steps(self) -> Iterator[Step]:
        for words in read_words(self._path, self._offset, "I"):
            for word in words:
                mark = _MARKS[word >> _NUMBER_BITS]
                if mark is None:
                    return
                self._offset += WORD_BYTES["I"]
                yield mark, word & MAX_NUMBER


# -- the verdict ---------------------------------------------------------------------------------


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """What a run measured about itself.

    Attributes:
        failover_ms: For each fail-over, from the kill to the first message from the other server.
        restarts: How often the killed subscriber was started again.
        seconds: How long the whole run took.
    """

    failover_ms: Sequence[float]
    restarts: int
    seconds: float


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run: the object of `--json`, with its keys in this order."""

    published: int
    delivered: int
    lost: int
    duplicated: int
    redelivered_undiscarded: int
    out_of_order: int
    failovers: int
    restarts: int
    failover_ms_p50: float
    seconds: float

    @property
    def is_good(self) -> bool:
        """Whether nothing was lost, duplicated or out of order."""
        return not (self.lost or self.duplicated or self.out_of_order)

    def as_text(self) -> str:
        """The verdict in words."""
        restarts = "restart" if self.restarts == 1 else "restarts"
        went_through = (
            f"{self.published} messages, {self.failovers} fail-overs, "
            f"{self.restarts} {restarts} of the subscriber, {self.seconds:.1f} s"
        )
        again = (
            f"{self.redelivered_undiscarded} were delivered again, since the killed subscriber had "
            "not discarded them"
        )
        first = (
            f"the other server delivered after {self.failover_ms_p50:.0f} ms (median over the "
            "fail-overs)"
        )
        faults = (
            (self.lost, "lost"),
            (self.duplicated, "duplicated"),
            (self.out_of_order, "out of order"),
        )
        found = ", ".join(f"{count} {what}" for count, what in faults if count)
        conclusion = f"NOT GOOD: {found}" if found else "nothing lost, duplicated or out of order"
        return f"{went_through}\n{again}\n{first}\n{conclusion}"


class _Tally:
    """Counts and state after each step of the traces."""

    def __init__(self, published: int) -> None:
        self._published = published
        self._highest = -1  # of all runs
        self._finished: set[int] = set()  # their discard() has returned
        self._to_redeliver: set[int] = set()  # undiscarded when an earlier run ended
        self._undiscarded: set[int] = set()  # of the latest run, which no other has followed yet
        self.seen: set[int] = set()
        self.duplicated = self.redelivered = self.out_of_order = 0

    def live(self, life: Iterable[Step]) -> None:
        """Evaluate the trace of one life; it must receive what the one before did not discard."""
        self._to_redeliver |= self._undiscarded
        undiscarded = self._undiscarded = set[int]()
        highest = -1  # of this run
        for mark, number in life:
            match mark:
                case Mark.DELIVERED:
                    self._delivered(number, undiscarded, highest)
                    highest = max(highest, number)
                    undiscarded.add(number)
                case Mark.DISCARDING:
                    undiscarded.discard(number)
                case Mark.DISCARDED:
                    self._finished.add(number)

    def _delivered(self, number: int, undiscarded: set[int], highest: int) -> None:
        is_first = number not in self.seen
        if number in self._finished or number in undiscarded:
            self.duplicated += 1
        elif not is_first:
            self.redelivered += 1
        if number < highest or (is_first and number < self._highest):
            self.out_of_order += 1
        if number >= self._published:
            self.out_of_order += 1
            return
        self.seen.add(number)
        self._to_redeliver.discard(number)
        self._highest = max(self._highest, number)

    def lost(self) -> int:
        """Messages never delivered, or left undiscarded by a life and not redelivered later."""
        return self._published - len(self.seen) + len(self._to_redeliver)


def judge(published: int, lives: Sequence[Iterable[Step]], measures: Measures) -> Verdict:
    """Compare what was published with what the runs of one subscriber received.

    Messages that the last run left undiscarded are not lost: no later run could receive them.
    """
    tally = _Tally(published)
    for life in lives:
        tally.live(life)
    return Verdict(
        published=published,
        delivered=len(tally.seen),
        lost=tally.lost(),
        duplicated=tally.duplicated,
        redelivered_undiscarded=tally.redelivered,
        out_of_order=tally.out_of_order,
        failovers=len(measures.failover_ms),
        restarts=measures.restarts,
        failover_ms_p50=round(median(measures.failover_ms or [0.0]), 3),
        seconds=round(measures.seconds, 3),
    )

"""The job trace of the workers of `haclient demo --queue`, and the verdict on it.

No step is lost from a trace by a SIGKILL (`haclient.cli.demo.trace_file`). A step is two words, the
time first and then the mark, which shows that the step is whole. Each job gets three marks::

    TAKEN n       the worker has the job; the next thing is its work
    DONE n        the work was done; the next thing is the acknowledgement
    CONFIRMED n   the server has processed the acknowledgement

`judge_jobs` gives the verdict: a pure function of what was published, of the traces of all
processes and of the outages of the broker. Times are those of the machine's monotonic clock.

* *lost*: published, and no worker has done it.
* *left*: still in the queue at the end, although there is nothing more to do.
* *duplicated*: taken again without a reason. A reason is the death of the worker that had it before
  the acknowledgement was confirmed, or an outage of the broker between the taking and the
  confirmation, since that ends every lease. Once the acknowledgement was confirmed, nothing is a
  reason.
* *redelivered*: taken again for such a reason. That is what at-least-once means, so it is counted
  separately.
* *repeated*: done again, since the reason came between the work and the confirmation.
"""

from __future__ import annotations

import enum
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple, Self

import msgspec

from haclient.cli.demo.trace_file import WORD_BYTES, mapped_words, read_words

_STEP_WORDS: Final = 2
_NUMBER_BITS: Final = 32


class JobMark(enum.IntEnum):
    """What happened to a job; 0 is not used, since an unwritten word is 0."""

    TAKEN = 1
    DONE = 2
    CONFIRMED = 3


class JobStep(NamedTuple):
    """One mark.

    Attributes:
        mark: What happened.
        number: The job.
        at_ns: When.
    """

    mark: JobMark
    number: int
    at_ns: int


class JobTraceWriter:
    """Writes the trace of one worker.

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
            capacity: The maximum number of steps.
        """
        with mapped_words(path, capacity * _STEP_WORDS, "Q") as words:
            yield cls(words)

    def add(self, mark: JobMark, number: int, at_ns: int) -> None:
        """Write one step."""
        self._words[self._next + 1] = at_ns
        self._words[self._next] = mark << _NUMBER_BITS | number
        self._next += _STEP_WORDS


class JobTraceReader:
    """Reads a trace while it is being written, or after its writer was killed.

    Args:
        path: The trace; a missing file counts as empty.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read_new(self) -> list[JobStep]:
        """The steps that were written since the last call."""
        return list(self._steps())

    def _steps(self) -> Iterator[JobStep]:
        for words in read_words(self._path, self._offset, "Q"):
            for index in range(0, len(words), _STEP_WORDS):
                mark, number = divmod(words[index], 1 << _NUMBER_BITS)
                if not mark:
                    return
                self._offset += _STEP_WORDS * WORD_BYTES["Q"]
                yield JobStep(JobMark(mark), number, words[index + 1])


# -- the verdict ---------------------------------------------------------------------------------


class Outage(NamedTuple):
    """A kill of the broker: from before it until the next one listens, in nanoseconds."""

    began_ns: int
    ended_ns: int


@dataclass(slots=True)
class WorkerLife:
    """One process of a worker.

    Attributes:
        steps: Its trace.
        was_killed: Whether it was ended by SIGKILL.
    """

    steps: list[JobStep]
    was_killed: bool = False


class JobMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """What a run measured about itself.

    Attributes:
        outage_ms: For each kill of the broker, the time until a worker had the next job.
        worker_kills: How often a worker was killed.
        seconds: How long the whole run took.
    """

    outage_ms: Sequence[float]
    worker_kills: int
    seconds: float


class JobVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run: the object of `--json`, with its keys in this order."""

    published: int
    done: int
    lost: int
    left: int
    duplicated: int
    redelivered: int
    repeated: int
    worker_kills: int
    broker_kills: int
    outage_ms_p50: float
    seconds: float

    @property
    def is_good(self) -> bool:
        """Whether every job was done, and none was redelivered without a reason."""
        return not (self.lost or self.left or self.duplicated)

    def as_text(self) -> str:
        """The verdict in words."""
        went_through = (
            f"{self.published} jobs, {self.worker_kills} kills of workers, {self.broker_kills} of "
            f"the broker, {self.seconds:.1f} s"
        )
        again = (
            f"{self.redelivered} were delivered again because of kills; {self.repeated} of them "
            "were done again, since their work was not confirmed"
        )
        first = (
            f"after a kill of the broker a worker had the next job in {self.outage_ms_p50:.0f} ms "
            "(median)"
        )
        faults = (
            (self.lost, "lost"),
            (self.left, "left in the queue"),
            (self.duplicated, "given to a second worker without a reason"),
        )
        found = ", ".join(f"{count} {what}" for count, what in faults if count)
        conclusion = f"NOT GOOD: {found}" if found else "every job done, none lost"
        return f"{went_through}\n{again}\n{first}\n{conclusion}"


@dataclass(slots=True)
class _Holding:
    """One taking of a job by one process."""

    life: WorkerLife
    taken_ns: int
    times_done: int = 0
    confirmed_ns: int | None = None

    def explains(self, later: _Holding, outages: Iterable[Outage]) -> bool:
        """Whether there is a reason for which the job was taken again later."""
        if self.life.was_killed and self.confirmed_ns is None:
            return True
        end_ns = later.taken_ns
        if self.confirmed_ns is not None:
            end_ns = min(end_ns, self.confirmed_ns)
        return any(
            outage.began_ns <= end_ns and outage.ended_ns >= self.taken_ns for outage in outages
        )


def _holdings(lives: Iterable[WorkerLife]) -> dict[int, list[_Holding]]:
    """All takings of each job, in the order of their times."""
    found: dict[int, list[_Holding]] = {}
    for life in lives:
        own: dict[int, _Holding] = {}
        for mark, number, at_ns in life.steps:
            match mark:
                case JobMark.TAKEN:
                    own[number] = _Holding(life, at_ns)
                    found.setdefault(number, []).append(own[number])
                case JobMark.DONE:
                    own[number].times_done += 1
                case JobMark.CONFIRMED:
                    own[number].confirmed_ns = at_ns
    for each in found.values():
        each.sort(key=lambda holding: holding.taken_ns)
    return found


def judge_jobs(
    published: int,
    lives: Iterable[WorkerLife],
    outages: Sequence[Outage],
    measures: JobMeasures,
    *,
    left: int,
) -> JobVerdict:
    """Compare what was published with what the workers did.

    Args:
        published: The number of jobs, which are numbered from 0.
        lives: The processes of all workers.
        outages: The kills of the broker.
        measures: What the run measured.
        left: How many messages the queue has at the end.
    """
    done = duplicated = redelivered = repeated = 0
    for number, holdings in _holdings(lives).items():
        times = sum(holding.times_done for holding in holdings)
        done += times > 0 and number < published
        repeated += max(0, times - 1)
        duplicated += number >= published  # nobody has published it
        for index, later in enumerate(holdings[1:], 1):
            if all(each.explains(later, outages) for each in holdings[:index]):
                redelivered += 1
            else:
                duplicated += 1
    return JobVerdict(
        published=published,
        done=done,
        lost=published - done,
        left=left,
        duplicated=duplicated,
        redelivered=redelivered,
        repeated=repeated,
        worker_kills=measures.worker_kills,
        broker_kills=len(outages),
        outage_ms_p50=round(median(measures.outage_ms or [0.0]), 3),
        seconds=round(measures.seconds, 3),
    )

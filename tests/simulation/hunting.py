"""Planting one bug after the other, and looking for each: a check of the simulator itself.

A bug is looked for in one seed after the other, until enough of them have found it. A seed has
found it when it fails with the bug and passes without it. A run that is in a loop because of its
bug would never end, so each has a limit: the processor's time and not the clock's, which says
nothing on a busy machine.
"""

from __future__ import annotations

import functools
import gc
import multiprocessing
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Final, Self

from typing_extensions import override

__all__ = ["LIMIT", "Hunt", "hunt", "hunt_all"]

Failures = Callable[[int, str, str], tuple[str, ...]]
"""Runs the plan of a seed that is to find a bug, with a planted bug or with none if that name is
empty: its complaints."""

LIMIT: Final = "limit"
"""What stands in place of a checker's name where a run took too long."""

RUN_CPU_S: Final = 40.0
"""A run takes about half a second."""


@dataclass(slots=True)
class Hunt:
    """What became of the hunt for one bug.

    Attributes:
        name: The bug's.
        seeds: How many were run.
        found: Those that found it, in order.
        by: The checkers that did, and in how many of these seeds.
        broken: Seeds that fail without the bug, too: they show nothing.
    """

    name: str
    seeds: int = 0
    found: list[int] = field(default_factory=list[int])
    by: Counter[str] = field(default_factory=Counter[str])
    broken: list[int] = field(default_factory=list[int])

    @override
    def __str__(self) -> str:
        """One line of a report."""
        if not self.found:
            return f"{self.name:36} NOT FOUND in {self.seeds} seeds"
        by = ", ".join(f"{checker} {count}" for checker, count in self.by.most_common())
        share = f"{len(self.found)} of {self.seeds} seeds"
        return f"{self.name:36} in {share:16} first by {self.found[0]:<4} {by}"


class _TooLong(BaseException):
    """Nothing but the hunt catches it, wherever in a run it strikes."""


class _Limit:
    """The most of the processor's time that a run may take; `with` it.

    Attributes:
        struck: Whether the run took more.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.struck = False

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGVTALRM, self._strike)
        signal.setitimer(signal.ITIMER_VIRTUAL, self._seconds, 1.0)  # again, if one is swallowed
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, self._before)

    def _strike(self, *_: object) -> None:
        self.struck = True
        raise _TooLong


def hunt(
    run: Failures, name: str, seeds: Iterable[int], *, enough: int, cpu_s: float = RUN_CPU_S
) -> Hunt:
    """Look for one bug.

    Args:
        run: Runs a seed.
        name: The bug's.
        seeds: Tried in this order.
        enough: So many seeds that find it are enough.
        cpu_s: The most of the processor's time for one run.
    """
    found = Hunt(name)
    for seed in seeds:
        found.seeds += 1
        checkers = _checkers(run, seed, name, name, cpu_s)
        if checkers and _checkers(run, seed, name, "", cpu_s):
            found.broken.append(seed)
        elif checkers:
            found.found.append(seed)
            found.by.update(sorted(checkers))
        if len(found.found) >= enough:
            break
    return found


def _checkers(run: Failures, seed: int, name: str, planted: str, cpu_s: float) -> set[str]:
    """Who complains of a run."""
    limit = _Limit(cpu_s)
    try:
        with limit:
            failures = run(seed, name, planted)
    except (Exception, _TooLong) as error:
        if not limit.struck and not planted:
            raise
        failures = (type(error).__name__,)
    if limit.struck:
        _sweep()
        return {LIMIT}
    return {text.partition(":")[0] for text in failures}


def _sweep() -> None:
    """Let go of a run that was ended in mid-air, whose tasks have much to say about that."""
    before, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        gc.collect()
    finally:
        sys.unraisablehook = before


def hunt_all(
    run: Failures, names: Iterable[str], seeds: range, *, enough: int, jobs: int
) -> Iterator[Hunt]:
    """Look for each bug, several at a time; what became of each, as soon as it is known.

    Args:
        run: Runs a seed; a function of a module if there are several jobs.
        names: The bugs'.
        seeds: Tried in this order.
        enough: So many seeds that find a bug are enough.
        jobs: Processes.
    """
    one = functools.partial(hunt, run, seeds=seeds, enough=enough)
    if jobs < 2:
        yield from map(one, names)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn) as pool:
        hunts = [pool.submit(one, name) for name in names]
        yield from (each.result() for each in as_completed(hunts))

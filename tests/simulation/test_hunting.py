"""The hunt for planted bugs: what counts as found, and that nothing goes on for ever."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from simulation.hunting import LIMIT, hunt, hunt_all


def failing(
    *seeds: int, always: tuple[int, ...] = ()
) -> Callable[[int, str, str], tuple[str, ...]]:
    def run(seed: int, _name: str, planted: str) -> tuple[str, ...]:
        found = seed in seeds if planted else seed in always
        return ("lost: one", "lost: two", "order: of them") if found else ()

    return run


def test_a_hunt_ends_when_enough_seeds_have_found_the_bug() -> None:
    found = hunt(failing(2, 5, 6, 9), "bug", range(1, 100), enough=3)
    assert (found.found, found.seeds) == ([2, 5, 6], 6)
    assert found.by == {"lost": 3, "order": 3}
    assert " ".join(str(found).split()) == "bug in 3 of 6 seeds first by 2 lost 3, order 3"


def test_a_bug_that_no_seed_finds_is_missed() -> None:
    found = hunt(failing(), "bug", range(1, 10), enough=3)
    assert (found.found, found.seeds) == ([], 9)
    assert "NOT FOUND in 9 seeds" in str(found)


def test_a_seed_that_fails_without_the_bug_has_not_found_it() -> None:
    found = hunt(failing(1, 2, always=(1,)), "bug", range(1, 10), enough=1)
    assert (found.found, found.broken) == ([2], [1])


def test_an_error_of_the_run_is_a_find() -> None:
    def run(_seed: int, _name: str, planted: str) -> tuple[str, ...]:
        if planted:
            raise ZeroDivisionError
        return ()

    assert hunt(run, "bug", [1], enough=1).by == {"ZeroDivisionError": 1}


def test_a_run_that_does_not_end_is_ended_and_reported_as_such() -> None:
    def run(_seed: int, _name: str, planted: str) -> tuple[str, ...]:
        while planted:
            with contextlib.suppress(Exception):  # as loops do that go on whatever happens
                sum(range(1000))
        return ()

    assert hunt(run, "bug", [1], enough=1, cpu_s=0.05).by == {LIMIT: 1}


def test_each_bug_has_a_hunt() -> None:
    hunts = hunt_all(failing(1), ["a", "b"], range(1, 3), enough=1, jobs=1)
    assert [(each.name, each.found) for each in hunts] == [("a", [1]), ("b", [1])]

"""Kinds of subscriptions, options and changes, in combination: defects sit where two features meet.

What has to hold for each is in `support.feature_world`: the client lives, each call ends, a witness
gets every message, nothing is delivered that was discarded or not asked for, nothing is missing, a
replay is reported as complete, and the event loop comes to rest.
"""

from __future__ import annotations

import itertools
import random
from typing import Final

import pytest

from support.feature_world import (
    ALL_OPTIONS,
    BOOKMARKS,
    CHANGES,
    FORMS,
    KINDS,
    Case,
    problems_of,
)

QUICK: Final = 80  # cases of a sample


def is_possible(case: Case) -> bool:
    """Whether its parts go together at all; what is refused does."""
    starts, changes = {*BOOKMARKS} & {*case.options}, {*case.changes}
    return (
        len(starts) <= (case.kind in {"bookmark", "sow_and_subscribe"})
        and not {"disconnect", "move"} <= changes
        and not (case.overlaps and {"disconnect", "lost"} <= changes)
    )


def matrix(kind: str, form: str) -> list[Case]:
    """Each option with each change."""
    cases = (Case(kind, form, (o,), (c,)) for o in ALL_OPTIONS for c in CHANGES)
    return [*filter(is_possible, cases)]


def sample(seed: int, count: int) -> list[Case]:
    """Cases of two options and two changes that cover the pairs of features soon."""
    source, covered, chosen = random.Random(seed), set[frozenset[str]](), list[Case]()
    kinds = (*KINDS, "bookmark", "bookmark", "sow_and_subscribe")  # those with more to combine

    def draw() -> Case:
        kind, form = source.choice(kinds), source.choice(FORMS)
        options, changes = source.sample(ALL_OPTIONS, 2), source.sample(CHANGES, 2)
        return Case(kind, form, (*options,), (*changes,), source.random() < 0.3)

    def met(case: Case) -> set[frozenset[str]]:
        triples = itertools.product([case.kind], case.options, case.changes)
        pairs = itertools.product([case.form], case.options + case.changes)
        return {frozenset(each) for each in (*triples, *pairs, case.options, case.changes)}

    while len(chosen) < count:
        drawn = [*filter(is_possible, (draw() for _ in range(40)))]
        chosen.append(max(drawn, key=lambda case: len(met(case) - covered)))
        covered |= met(chosen[-1])
    return chosen


def check(cases: list[Case]) -> None:
    found = {case: problems for case in cases if (problems := problems_of(case))}
    assert not found, "\n".join(f"{case}: {problems}" for case, problems in found.items())


def test_pairs_of_features_go_together() -> None:
    check(sample(1, QUICK))


@pytest.mark.full
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_option_goes_together_with_each_change(kind: str, form: str) -> None:
    check(matrix(kind, form))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2, 8))
def test_more_pairs_of_features_go_together(seed: int) -> None:
    check(sample(seed, QUICK))

"""Planted bugs are found; what plants them takes them out again."""

from __future__ import annotations

import pytest

from haclient.session import logon
from haclient_stores.tracking import SubscriptionTracker
from simulation.command import run_seed
from simulation.mutations import MUTATIONS, planted

pytestmark = pytest.mark.simulation

FEW_SEEDS = range(1, 9)


@pytest.mark.parametrize(
    "name",
    [
        "recovery_point_as_highest_seen",
        "discard_before_handler",
        "new_publish_before_replay",
        "duplicates_forgotten_at_restart",
        "discard_not_written",
    ],
)
def test_a_planted_bug_is_found(name: str) -> None:
    assert any(run_seed(seed, name).failures for seed in FEW_SEEDS)


def test_a_planted_bug_is_taken_out_again() -> None:
    point, trim = SubscriptionTracker.recovery_point, logon._persisted
    for name in MUTATIONS:
        with planted(name):
            pass
    assert SubscriptionTracker.recovery_point is point
    assert logon._persisted is trim


def test_there_are_enough_of_them_and_each_says_what_is_wrong() -> None:
    assert len(MUTATIONS) >= 12
    assert all(mutation.what for mutation in MUTATIONS.values())

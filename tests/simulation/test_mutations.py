"""Planted bugs are found; what plants them takes them out again."""

from __future__ import annotations

import pytest

from haclient.session import connection_state
from haclient_stores.tracker.tracker import SubscriptionTracker
from simulation.command import failures_of, hunting_plan_of, run_seed
from simulation.hunting import hunt
from simulation.mutations import MUTATIONS, planted
from simulation.queue_mutations import QUEUE_MUTATIONS

pytestmark = pytest.mark.simulation

SEEDS = range(1, 31)
STORIES = range(2, 42, 2)


@pytest.mark.in_parts
@pytest.mark.parametrize(
    ("name", "found_by"),
    [
        ("recovery_point_as_highest_seen", 1),
        ("discard_before_handler", 1),
        ("new_publish_before_replay", 1),
        ("removals_are_not_recorded", 7),
        ("backlog_is_not_freed", 4),
        ("ack_before_the_handler", 4),
        ("ack_of_a_failure", 4),
    ],
)
def test_a_planted_bug_is_found(name: str, found_by: int) -> None:
    """By the seed that has found it before, or else by another one."""

    def run(seed: int, _name: str, planted: str) -> tuple[str, ...]:
        return run_seed(seed, planted).failures

    assert hunt(run, name, (found_by, *SEEDS), enough=1).found


@pytest.mark.in_parts
@pytest.mark.parametrize("name", [name for name, each in MUTATIONS.items() if each.story])
def test_a_story_finds_the_bug_that_it_is_for(name: str) -> None:
    def run(seed: int, name: str, planted: str) -> tuple[str, ...]:
        return failures_of(hunting_plan_of(seed, name), planted)

    assert hunt(run, name, STORIES, enough=1).found


def test_a_planted_bug_is_taken_out_again() -> None:
    point, trim = SubscriptionTracker.recovery_point, connection_state._persisted
    for name in MUTATIONS:
        with planted(name):
            pass
    assert SubscriptionTracker.recovery_point is point
    assert connection_state._persisted is trim


def test_there_are_enough_of_them_and_each_says_what_is_wrong() -> None:
    assert len(MUTATIONS) >= 12
    assert len(QUEUE_MUTATIONS) >= 8
    assert all(mutation.what for mutation in MUTATIONS.values())

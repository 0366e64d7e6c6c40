"""Planted bugs are found; what plants them takes them out again."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from haclient.session import connection_state
from haclient_stores.tracker.tracker import SubscriptionTracker
from simulation import queue_planning, stories
from simulation.command import failures_of, run_seed
from simulation.hunting import hunt
from simulation.mutations import MUTATIONS, planted
from simulation.plans import Plan
from simulation.queue_mutations import QUEUE_MUTATIONS

pytestmark = pytest.mark.simulation

SEEDS = range(1, 31)


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

    def run(seed: int, name: str) -> tuple[str, ...]:
        return run_seed(seed, name).failures

    assert hunt(run, name, (found_by, *SEEDS), enough=1).found


@pytest.mark.parametrize(
    ("name", "story"),
    [
        ("trim_by_s", stories.replaced),
        ("stale_frames_of_a_recycled_segment", stories.recycled),
        ("persisted_ack_for_what_was_not_sent", stories.slow_reader),
        ("missing_time_anchor", stories.late_publisher),
        ("young_connections_are_stable", stories.flapping),
        ("restored_log_is_the_same", stories.restored),
        ("marks_are_not_replicated", stories.no_message_last),
        ("leases_outlive_their_link", queue_planning.returned_in_order),
        ("priority_is_inverted_on_return", queue_planning.returned_in_order),
        ("barriers_pass_what_was_returned", queue_planning.barrier_and_return),
        ("extended_leases_never_end", queue_planning.extended),
        ("former_leases_end_later_ones", queue_planning.extended),
        ("strict_queues_are_sublet", queue_planning.overdue),
        ("unsent_acks_are_lost", queue_planning.lost_links),
        ("cancels_are_not_counted", queue_planning.poisoned),
        ("expired_without_a_copy", queue_planning.poisoned),
        ("deliveries_are_recorded_later", queue_planning.interrupted),
    ],
)
def test_a_story_finds_the_bug_that_it_is_for(
    name: str, story: Callable[[int, Random], Plan]
) -> None:
    def run(seed: int, name: str) -> tuple[str, ...]:
        return failures_of(story(seed, Random(f"story {seed}")), name)

    assert hunt(run, name, SEEDS, enough=1).found


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

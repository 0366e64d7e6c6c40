"""The recovery plan, state by state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.session.recovery import NEXT, Recovery, RecoveryPlan

ORDER = [str(state) for state in Recovery if state is not Recovery.STOPPED]


def plan_in(state: Recovery) -> RecoveryPlan:
    plan = RecoveryPlan()
    plan.state = state
    return plan


@pytest.mark.row("HA3")
def test_the_steps_follow_each_other_in_the_order_of_the_guide() -> None:
    plan, seen = RecoveryPlan(), list[str]()
    while plan.state in NEXT:
        seen.append(plan.state)
        plan.done()
    assert [*seen, plan.state] == ORDER


@pytest.mark.row("HA4", "HA5", "HA23")
@pytest.mark.parametrize("state", [each for each in Recovery if each is not Recovery.STOPPED])
def test_a_loss_anywhere_begins_anew(state: Recovery) -> None:
    plan = plan_in(state)
    plan.lost()
    assert plan.state is Recovery.CHOOSING


@pytest.mark.row("HA4", "HA5", "HA7")
@pytest.mark.parametrize("state", list(Recovery))
def test_the_server_is_blamed_for_a_failed_attempt_but_not_for_a_live_link_that_broke(
    state: Recovery,
) -> None:
    tried = ORDER.index(state) if state in ORDER else -1
    assert plan_in(state).lost() == (ORDER.index("dialling") <= tried < ORDER.index("live"))


def test_attempts_are_counted_since_it_was_live() -> None:
    plan = RecoveryPlan()
    for _ in range(3):
        plan.done()
        plan.done()  # waited: now it is tried
        plan.lost()
    assert plan.attempts == 3
    for _ in range(len(ORDER) - 1):
        plan.done()
    assert (plan.state, plan.attempts) == (Recovery.LIVE, 0)


@pytest.mark.row("HA8")
def test_a_stopped_plan_stays_stopped() -> None:
    plan = RecoveryPlan()
    plan.stop()
    plan.lost()
    assert plan.state is Recovery.STOPPED


@given(st.lists(st.booleans(), max_size=60))
def test_whatever_happens_live_is_reached_only_through_every_step(results: list[bool]) -> None:
    plan, run = RecoveryPlan(), 0
    for success in results:
        if success and plan.state in NEXT:
            plan.done()
            run += 1
        else:
            plan.lost()
            run = 0
        assert (plan.state is Recovery.LIVE) == (run == len(ORDER) - 1)


@pytest.mark.row("HA8")
@pytest.mark.parametrize("state", list(NEXT))
def test_a_step_that_ends_after_the_stop_changes_nothing(state: Recovery) -> None:
    """Its task was running already when somebody else disconnected."""
    plan = RecoveryPlan()
    plan.state = state
    plan.stop()
    plan.done()
    assert plan.state is Recovery.STOPPED

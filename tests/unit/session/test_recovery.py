"""The recovery plan, state by state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.session.recovery import NEXT, FailureLog, Recovery, RecoveryPlan

ORDER = [str(state) for state in Recovery]


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
@pytest.mark.parametrize("state", list(Recovery))
def test_a_loss_anywhere_begins_anew(state: Recovery) -> None:
    plan = plan_in(state)
    plan.lost()
    assert plan.state is Recovery.CHOOSING


@pytest.mark.row("DS8", "HA4", "HA5", "HA7")
@pytest.mark.parametrize("state", list(Recovery))
def test_a_server_that_was_tried_has_failed_unless_its_connection_was_stable(
    state: Recovery,
) -> None:
    assert plan_in(state).lost() == (state not in {Recovery.CHOOSING, Recovery.WAITING})
    plan = plan_in(Recovery.LIVE)
    plan.stable()
    assert not plan.lost()


@pytest.mark.row("DS8")
def test_attempts_are_counted_since_the_last_stable_connection() -> None:
    plan = RecoveryPlan()
    for _ in range(3):
        plan.done()
        plan.done()  # waited: now it is tried
        plan.lost()
    assert plan.attempts == 3
    for _ in range(len(ORDER) - 1):
        plan.done()
    assert (plan.state, plan.attempts) == (Recovery.LIVE, 4)
    plan.stable()
    assert plan.attempts == 0


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


def test_failures_are_warned_of_at_once_and_then_at_growing_intervals() -> None:
    failures = FailureLog()
    warned = [now for now in range(2000) if failures.is_due(now, "refused")]
    assert warned == [0, 10, 30, 70, 150, 310, 630, 1230, 1830]
    failures.reset()
    assert failures.is_due(2000, "refused")


def test_a_new_cause_is_warned_of_at_once_and_an_old_one_is_not() -> None:
    failures = FailureLog()
    assert [failures.is_due(0, server) for server in ("east refused", "west refused")] == [True] * 2
    assert not failures.is_due(1, "east refused")
    assert [now for now in range(10, 1000) if failures.is_due(now, "east refused")] == [
        10,
        30,
        70,
        150,
        310,
        630,
    ]
    assert failures.is_due(1001, "east: auth failure")
    assert not failures.is_due(1002, "east refused")
    assert failures.is_due(1012, "east refused"), "the intervals begin anew"


def test_numbers_and_endless_causes_do_not_fill_the_log() -> None:
    failures = FailureLog()
    assert failures.is_due(0, "no answer within 3 s")
    assert not failures.is_due(1, "no answer within 4 s")
    words = (f"error {chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(500))
    assert sum(failures.is_due(2, cause) for cause in words) < 100

from __future__ import annotations

import pytest

from simulation.planning import plan_of
from simulation.plans import Plan
from simulation.shrinking import shrink


def numbers(plan: Plan) -> set[int]:
    return {step.number for step in plan.script}


@pytest.mark.row("FI6")
def test_what_is_left_is_what_it_takes() -> None:
    short = shrink(plan_of(1), lambda plan: {3, 17, 40} <= numbers(plan))
    assert numbers(short) == {3, 17, 40}


def test_a_failure_without_any_step_needs_none() -> None:
    assert shrink(plan_of(1), lambda _: True).script == ()


def test_it_gives_up_in_time() -> None:
    tried: list[Plan] = []

    def fails(plan: Plan) -> bool:
        tried.append(plan)
        return False

    short = shrink(plan_of(1), fails, runs=7)
    assert len(tried) == 7
    assert short == plan_of(1)


def test_the_steps_that_are_kept_happen_when_they_did() -> None:
    plan = plan_of(2)
    kept = plan.keeping({10, 20})
    assert sum(step.after for step in kept.script) == pytest.approx(
        sum(step.after for step in plan.script[:21])
    )

"""Seeds with queues: a share of all, in which everything that queues can be set to is drawn."""

from __future__ import annotations

import pytest

from simulation.history import JOBS_TOPIC, MessageId
from simulation.jobs import fields_of, is_barrier, is_poison, priority_of
from simulation.planning import plan_of
from simulation.plans import Plan
from simulation.simulator import simulate
from support.lengths import length

pytestmark = pytest.mark.simulation

PLANS = [plan for plan in map(plan_of, range(1, 401)) if plan.queues]
A_STORY = 12  # steps
SOME_SEEDS = [plan.seed for plan in PLANS if len(plan.script) > A_STORY][: length(6)]


@pytest.mark.parametrize("seed", SOME_SEEDS)
def test_a_seed_with_queues(seed: int) -> None:
    outcome = simulate(plan_of(seed))
    assert not outcome.failures, f"repeat: nox -s simulate -- --seed {seed}"
    assert outcome.counts.messages


def test_a_share_of_the_seeds_has_queues() -> None:
    assert 60 < len(PLANS) < 140


def test_each_queue_has_a_consumer_and_each_step_a_node() -> None:
    for plan in PLANS:
        assert {each.name for each in plan.queues} == {
            name for each in plan.consumers for name in each.queues
        }
        nodes = {*plan.brokers, ""} | {each.name for each in plan.publishers}
        nodes |= {each.name for each in plan.subscribers}
        nodes |= {each.name for each in plan.consumers}
        assert {step.node for step in plan.script} <= nodes


def drawn(name: str, plans: list[Plan]) -> set[object]:
    return {getattr(queue, name) for plan in plans for queue in plan.queues}


def test_every_setting_of_a_queue_is_drawn() -> None:
    assert drawn("semantics", PLANS) == {"at-least-once", "at-most-once"}
    assert drawn("delivery", PLANS) == {"", "fast", "round-robin", "proportional"}
    assert drawn("leasing", PLANS) == {"sublet", "strict"}
    assert drawn("name", PLANS) == {"work", "copies", JOBS_TOPIC}
    assert drawn("expiration_model", PLANS) == {"default", "queue", "latest", "earliest"}
    assert {len(plan.brokers) for plan in PLANS} == {1, 2, 3}
    for flag in ("priority", "barrier", "max_cancels", "max_deliveries", "expiration_s", "lease_s"):
        assert len(drawn(flag, PLANS)) > 1, flag


def test_every_way_to_consume_is_drawn() -> None:
    consumers = [each for plan in PLANS for each in plan.consumers]
    for name in ("by_hand", "dies", "extends", "fails", "gives_up", "hangs", "workers"):
        assert len({getattr(each, name) for each in consumers}) > 1, name
    assert {each.at_lease_end for each in consumers} == {"", "cut", "extend"}


def test_what_a_job_says_of_itself_follows_from_its_number() -> None:
    jobs = [MessageId("j1", number) for number in range(60)]
    assert {priority_of(each) for each in jobs} == {0, 1, 2}
    assert any(map(is_barrier, jobs))
    assert any(map(is_poison, jobs))
    assert {len(fields_of(each)) for each in jobs} == {len(b'"priority":0,"barrier":0,')}
    assert {each.topic for each in jobs} == {JOBS_TOPIC}

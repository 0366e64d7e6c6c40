"""Any interleaving of work, losses and restarts: all arrives, and nothing after its discard."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.command import failures_of
from simulation.history import MessageId
from simulation.plans import Links, Plan, PublisherPlan, Replication, Step, SubscriberPlan
from simulation.simulator import simulate

PAIR = (
    Replication(source="b1", target="b2", mode="sync"),
    Replication(source="b2", target="b1", mode="sync"),
)
CLUSTER = Plan(
    seed=1,
    brokers=("b1", "b2"),
    replications=PAIR,
    publishers=(
        PublisherPlan(name="p1", store="file", servers=("b1", "b2")),
        PublisherPlan(name="p2", store="memory", servers=("b2", "b1")),
    ),
    subscribers=(
        SubscriberPlan(name="s1", servers=("b1", "b2"), topics=("^(orders|state)$",), eager=0.0),
        SubscriberPlan(name="s2", servers=("b2", "b1"), topics=("orders", "state"), eager=0.5),
    ),
    links=Links(latency_s=0.002),
)
CLIENTS = ("p1", "p2", "s1", "s2")
PAUSES = st.sampled_from((0.0, 0.001, 0.02, 0.3))
# A process that starts in less than the latency may log on before the logon that its predecessor
# sent last arrives, and is then displaced by that, as by another program of its name.
START_S = 0.05


def scripted(plan: Plan, *steps: Step) -> Plan:
    numbered = tuple(replace(step, number=number) for number, step in enumerate(steps))
    return replace(plan, script=numbered)


def step(kind: str, node: str, *, after: float = 0.0, **more: object) -> Step:
    return Step(number=0, kind=kind, node=node, after=after, **more)  # type: ignore[arg-type]  # the fields of a step


def check(plan: Plan) -> None:
    outcome = simulate(plan)
    assert not outcome.failures, "\n".join([*outcome.failures, *map(str, plan.script)])


steps = st.one_of(
    st.builds(
        step,
        st.just("publish"),
        st.sampled_from(("p1", "p2")),
        after=PAUSES,
        count=st.integers(1, 6),
    ),
    st.builds(
        step,
        st.just("discard"),
        st.sampled_from(("s1", "s2")),
        after=PAUSES,
        count=st.integers(1, 2**16),
    ),
    st.builds(
        step, st.sampled_from(("reset", "end", "silence")), st.sampled_from(CLIENTS), after=PAUSES
    ),
    st.builds(
        step,
        st.just("cut"),
        st.sampled_from(CLIENTS),
        after=PAUSES,
        count=st.integers(1, 2000),
    ),
    st.builds(
        step,
        st.just("kill"),
        st.sampled_from(("b1", "b2")),
        after=PAUSES,
        seconds=st.sampled_from((0.0, 0.2, 2.0)),
    ),
    st.builds(
        step,
        st.just("kill"),
        st.sampled_from(CLIENTS),
        after=PAUSES,
        seconds=st.sampled_from((START_S, 0.2, 2.0)),
    ),
)


@settings(max_examples=20)
@given(script=st.lists(steps, min_size=5, max_size=40), seed=st.integers(1, 2**32))
def test_every_message_arrives_and_none_after_its_discard(script: list[Step], seed: int) -> None:
    check(scripted(replace(CLUSTER, seed=seed), *script))


LATE_RESTART = scripted(
    replace(CLUSTER, subscribers=(replace(CLUSTER.subscribers[0], slow_s=0.05),)),
    step("publish", "p1", after=0.5, count=200),
    step("kill", "s1", after=10.0),
)
"""A slow subscriber starts again when the faults stop, and takes 5 s for what comes again."""


def test_all_that_a_late_restart_brings_again_is_discarded_before_the_system_is_at_rest() -> None:
    check(LATE_RESTART)


def test_what_does_not_come_again_after_a_late_restart_is_a_failure() -> None:
    failures = failures_of(LATE_RESTART, "recovery_point_as_highest_seen")
    assert any("not all that is undiscarded comes again" in text for text in failures)


# -- replicas that put the publishers in another order ---------------------------------------------

OTHER_ORDER = replace(
    CLUSTER,
    publishers=(
        PublisherPlan(name="A", store="file", servers=("b1",)),
        PublisherPlan(name="B", store="file", servers=("b2",)),
    ),
    subscribers=(
        SubscriberPlan(name="s", servers=("b1", "b2"), topics=("orders",), eager=0.0, rotates=True),
    ),
    links=Links(latency_s=0.01),
    finishes=False,
)
FOUR = ("A:0", "A:1", "B:0", "B:1")
SUBSETS = list(chain.from_iterable(combinations(FOUR, size) for size in range(5)))


@pytest.mark.row("RE8")
@pytest.mark.parametrize("how", ["fail over", "restart there"])
@pytest.mark.parametrize("discarded", SUBSETS, ids=lambda each: "+".join(each) or "none")
def test_a_subscriber_moves_to_a_replica_with_another_order(
    how: str, discarded: tuple[str, ...]
) -> None:
    """A1 B1 A2 B2 on the one, B1 A1 A2 B2 on the other; its last process begins there anyway."""
    script = [
        step("publish", "A", after=1.0, count=1),
        step("publish", "B", count=1),
        step("publish", "A", after=1.0, count=1),
        step("publish", "B", after=1.0, count=1),
        step("discard", "s", after=1.0, other=" ".join(discarded) or "none"),
    ]
    if how == "fail over":
        script.append(step("kill", "b1", after=1.0, seconds=3.0))
    script.append(step("wait", "", after=2.0))
    plan = scripted(OTHER_ORDER, *script)
    outcome = simulate(plan)
    assert not outcome.failures
    order = {
        name: [str(m.publisher) + str(m.number) for _, m in log]
        for name, log in outcome.logs.items()
    }
    assert order == {"b1": ["A0", "B0", "A1", "B1"], "b2": ["B0", "A0", "A1", "B1"]}


@pytest.mark.row("RE8")
def test_a_publisher_that_was_first_seen_on_the_other_replica() -> None:
    plan = scripted(
        OTHER_ORDER,
        step("partition", "b1", after=1.0, other="b2", seconds=1.0),
        step("publish", "B", count=5),
        step("publish", "A", count=5),
        step("discard", "s", after=0.5, other="A:0 A:1"),
        step("kill", "b1", seconds=2.0),
    )
    outcome = simulate(plan)
    assert not outcome.failures
    assert outcome.logs["b2"][0][1] == MessageId("B", 0)
    assert outcome.logs["b1"][0][1] == MessageId("A", 0)


@pytest.mark.row("RE8")
@pytest.mark.parametrize("killed", ["b1", "s"])
def test_a_publisher_that_this_replica_has_not_heard_of(killed: str) -> None:
    """The other one has its messages before what is finished here: only a time leads to them."""
    outcome = simulate(
        scripted(
            OTHER_ORDER,
            step("publish", "A", after=1.0, count=2),
            step("lag", "b2", after=0.5, other="b1", seconds=1.0),
            step("publish", "B", count=3),
            step("publish", "A", after=0.1, count=2),
            step("discard", "s", after=0.2),
            step("kill", killed, after=0.3, seconds=2.0 if killed == "b1" else 0.0),
            step("discard", "s", after=3.0),
        )
    )
    assert not outcome.failures
    assert [str(found.publisher) for _, found in outcome.logs["b2"]] == [*"AABBBAA"]


def test_discards_that_survive_a_prune_and_a_kill() -> None:
    check(
        scripted(
            CLUSTER,
            step("publish", "p1", after=0.5, count=30),
            step("discard", "s1", after=0.5, count=77),
            step("prune", "s1"),
            step("discard", "s1", count=78),
            step("kill", "s1"),
            step("kill", "b1", after=0.5, seconds=1.0),
            step("publish", "p2", count=5),
        )
    )


# -- publishers that appear late, in logs that put them in another place ---------------------------

LATE = replace(
    CLUSTER,
    replications=tuple(replace(each, mode="async") for each in PAIR),  # so b1 acknowledges alone
    publishers=(
        PublisherPlan(name="p", store="file", servers=("b1",), pad=400),
        PublisherPlan(name="q", store="file", servers=("b2",)),
    ),
    subscribers=(
        SubscriberPlan(name="s", servers=("b1", "b2"), topics=("^(orders|state)$",), eager=1.0),
    ),
    links=Links(latency_s=0.02, receive_bytes=700, capacity_bytes=2048),
)
ROTATING = replace(LATE, subscribers=(replace(LATE.subscribers[0], rotates=True),))
THIRD = replace(ROTATING.subscribers[0], servers=("b2", "b1"))  # its second process is on b1
AWAY = step("kill", "s", after=0.5, seconds=30.0)
CUT_OFF = step("partition", "s", after=2.0, other="b1", seconds=12.0)
REST = step("wait", "", after=20.0)


def late(count: int, *, before: int = 0) -> tuple[Step, ...]:
    """`q` is in front of some messages of `p` on b2, and behind all of them on b1."""
    return (
        step("publish", "p", after=0.5, count=before),
        step("partition", "b1", after=1.0, other="b2", seconds=4.0),
        step("publish", "q", count=1),
        step("publish", "p", after=0.3, count=count),
    )


@pytest.mark.row("RE8", "BS9", "HA17")
@pytest.mark.parametrize("how", ["fail over", "restart there"])
def test_a_publisher_whose_first_message_is_on_the_other_replica_only(how: str) -> None:
    if how == "fail over":
        plan, lost = LATE, CUT_OFF
    else:
        plan, lost = ROTATING, step("kill", "s", after=2.0, seconds=3.0)
    check(scripted(plan, *late(30), lost, REST))


@pytest.mark.row("RE8", "BS9", "HA17")
@pytest.mark.parametrize("cut", [0.4, 0.5])
@pytest.mark.parametrize("how", ["fail over", "restart there"])
def test_a_replay_of_old_messages_is_cut_off_and_goes_on_elsewhere(how: str, cut: float) -> None:
    """It is long ago that `q` was recorded, and not at the same place."""
    plan = LATE if how == "fail over" else replace(ROTATING, subscribers=(THIRD,))
    more = step("publish", "p", after=28.25, count=5)  # which has b1 acknowledge what was sent
    lost = step("kill", "b1" if how == "fail over" else "s", after=cut, seconds=2.0)
    check(scripted(plan, AWAY, *late(300), more, lost, REST))


@pytest.mark.row("RE8", "BS9", "HA17")
@pytest.mark.parametrize("cut", [1, 3])
def test_an_overlap_is_cut_off_and_goes_on_on_the_same_server(cut: int) -> None:
    """`q` stands between what is known: before the recovery point, and not received yet."""
    reset = step("reset", "s", after=5.25 + cut / 20)
    check(scripted(LATE, *late(30, before=90), CUT_OFF, reset, REST))

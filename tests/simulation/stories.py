"""Stories: steps that bring about what chance alone would rarely do."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from simulation.plans import (
    Links,
    Plan,
    PublisherPlan,
    Replication,
    Step,
    SubscriberPlan,
)

__all__ = ["late_publisher", "with_stories"]

_WORK: Final = frozenset({"publish", "discard", "prune", "intrude", "query"})


def with_stories(plan: Plan, steps: list[Step], chance: Random) -> list[Step]:
    """What chance alone would rarely bring about, each now and then."""
    for story in (_newcomer, _split):
        if len(plan.brokers) > 1 and chance.random() < 0.3:
            at = chance.randrange(len(steps))
            if (
                chance.random() < 0.6
            ):  # nothing else goes wrong, which might heal what the story did
                at, steps = 0, [step for step in steps if step.kind in _WORK]
            steps[at:at] = story(plan, chance)
    return steps


def _newcomer(plan: Plan, chance: Random) -> list[Step]:
    """A publisher appears on one replica, which lags, shortly before another one dies."""
    there, here = plan.publishers[-1].servers[:2]
    near = [each.name for each in plan.publishers[:-1] if each.servers[0] == here]
    readers = [each.name for each in plan.subscribers if each.servers[0] == here]
    old = chance.choice(near or [plan.publishers[0].name])
    victim = chance.choice([here, here, *readers])
    return [
        _step("publish", old, count=3, after=0.3),
        _step("lag", there, other=here, seconds=1.0, after=0.3),
        _step("publish", plan.publishers[-1].name, count=3),
        _step("publish", old, count=5, after=0.05),
        *(_step("discard", reader, after=0.15) for reader in readers),
        _step("kill", victim, seconds=1.5 if victim == here else 0.0, after=0.2),
        _step("lag", there, other=here, after=0.5),
    ]


def _split(plan: Plan, chance: Random) -> list[Step]:
    """Replicas are parted; a publisher dies, and so does the only one that has its messages."""
    here, there = chance.sample(plan.brokers[:2], 2)
    publisher = chance.choice(plan.publishers).name
    return [
        _step("partition", here, other=there, seconds=4.0),
        _step("publish", publisher, count=5, after=0.1),
        _step("kill", publisher, seconds=0.1, after=0.2),
        _step("kill", "", seconds=2.0),
        _step("publish", publisher, count=5, after=0.1),
    ]


def late_publisher(seed: int, chance: Random) -> Plan:
    """A publisher that appears late, on two replicas that put it in different places.

    Its first message is recorded by b2 while the two are apart, in front of some that b1 has by
    then acknowledged alone. All that is left to chance is when the subscriber, who knows those and
    not the first one, loses its server, its link or its life; and that it is soon enough for the
    overlap, except where it replays what is old.
    """
    plan = Plan(
        seed=seed,
        brokers=("b1", "b2"),
        replications=(
            Replication(source="b1", target="b2", mode="async"),
            Replication(source="b2", target="b1", mode="async"),
        ),
        publishers=(
            PublisherPlan(name="p1", store="file", servers=("b1",), pad=chance.choice((0, 400))),
            PublisherPlan(name="p2", store="file", servers=("b2",)),
        ),
        subscribers=(
            SubscriberPlan(
                name="s1",
                servers=("b1", "b2"),
                topics=("^(orders|state)$",),
                eager=1.0,
                rotates=chance.random() < 0.5,
            ),
        ),
        links=Links(latency_s=0.02, receive_bytes=700, capacity_bytes=2048),
    )
    old = chance.random() < 0.3
    script: list[tuple[str, str, float, dict[str, object]]] = []
    if old:
        script.append(("kill", "s1", 0.5, {"seconds": 30.0}))
    script += [
        ("publish", "p1", 0.5, {"count": chance.choice((0, 60, 90))}),
        ("partition", "b1", 1.0, {"other": "b2", "seconds": 4.0}),
        ("publish", "p2", 0.0, {"count": 1}),
        ("publish", "p1", 0.3, {"count": 300 if old else 30}),
    ]
    if old:
        script += [
            ("publish", "p1", 28.25, {"count": 5}),
            ("kill", "b1", chance.uniform(0.4, 0.6), {"seconds": 2.0}),
        ]
    elif plan.subscribers[0].rotates:
        script.append(("kill", "s1", 2.0, {"seconds": chance.uniform(3.0, 6.0)}))
    else:
        script.append(("partition", "s1", 2.0, {"other": "b1", "seconds": 12.0}))
        script.append(("reset", "s1", chance.uniform(5.3, 5.5), {}))
    script.append(("wait", "", 20.0, {}))
    steps = (
        Step(number=number, kind=kind, node=node, after=after, **more)  # type: ignore[arg-type]  # the fields of a step
        for number, (kind, node, after, more) in enumerate(script)
    )
    return replace(plan, script=tuple(steps))


def _step(  # the fields of a step that stories need
    kind: str,
    node: str,
    *,
    other: str = "",
    count: int = 0,
    seconds: float = 0.0,
    after: float = 0.0,
) -> Step:
    return Step(
        number=0, kind=kind, node=node, other=other, count=count, seconds=seconds, after=after
    )

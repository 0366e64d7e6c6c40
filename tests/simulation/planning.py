"""From a seed to a plan: swarm testing.

Each run draws which kinds of faults it has at all, and how often each of them: a run with every
fault at once would hide what only few of them, many times over, can do.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from random import Random
from typing import Final, Literal

from simulation.plans import (
    Links,
    Plan,
    PublisherPlan,
    Replication,
    Step,
    StoreKind,
    SubscriberPlan,
)

__all__ = ["FAULTS", "plan_of"]

FAULTS: Final = (
    "kill",
    "kill_broker",
    "power",
    "power_broker",
    "reset",
    "end",
    "cut",
    "silence",
    "partition",
    "partition_one_way",
    "slow",
    "lag",
    "disk",
    "disk_broker",
    "clock",
)
"""Kinds of faults, as steps; `simulator` says what they mean."""

_WORK: Final = frozenset({"publish", "discard", "prune", "intrude", "query"})
_WEIGHTS: Final = {"kill_broker": 5.0, "reset": 2.0, "cut": 2.0, "end": 2.0}
_LATE_SHARE: Final = 0.15
_TOPICS: Final = ("orders", "orders", "state", "^(orders|state)$")
_STORES: Final[tuple[StoreKind, ...]] = ("file", "file", "fsync", "memory")
_DISK: Final = (
    ("allocate", errno.ENOSPC),
    ("pwrite", errno.ENOSPC),
    ("pwrite", errno.EIO),
    ("fsync", errno.EIO),
    ("rename", errno.EIO),
    ("map", errno.EIO),
    ("open", errno.EIO),
)


def plan_of(seed: int) -> Plan:
    """The plan that belongs to a seed."""
    late = Random(f"late {seed}")
    if late.random() < _LATE_SHARE:
        return _late_publisher(seed, late)
    chance = Random(f"plan {seed}")
    brokers = ("b1", "b2", "b3")[: chance.choice((1, 2, 2, 2, 3))]
    replications, reachable = _replications(brokers, chance)
    fsync = chance.random() < 0.3
    publishers = tuple(
        PublisherPlan(
            name=f"p{number}",
            store=chance.choice(_STORES),
            servers=_shuffled(reachable, chance),
            pad=chance.choice((0, 0, 400)),
        )
        for number in range(1, chance.randint(2, 3) + 1)
    )
    publishers += (PublisherPlan(name="late", store="file", servers=_shuffled(reachable, chance)),)
    subscribers = tuple(
        SubscriberPlan(
            name=f"s{number}",
            servers=_shuffled(reachable, chance),
            topics=tuple(chance.choice(_TOPICS) for _ in range(chance.choice((1, 1, 2)))),
            eager=chance.choice((0.0, 0.5, 0.9, 1.0)),
            keeps=chance.choice((0, 0, 17)),
            slow_s=chance.choice((0.0, 0.0, 0.05)),
            rotates=chance.random() < 0.5,
        )
        for number in range(1, chance.randint(2, 3) + 1)
    )
    if len(reachable) < len(brokers):  # the asynchronous copy has a reader of its own
        far = SubscriberPlan(name="far", servers=(brokers[-1],), topics=("orders",))
        subscribers += (far,)
    links = Links(
        latency_s=chance.choice((0.0, 0.001, 0.03)),
        receive_bytes=chance.choice((2**30, 2**30, 700)),
        send_bytes=chance.choice((2**30, 2**30, 900)),
        capacity_bytes=chance.choice((256 * 1024, 256 * 1024, 4096)),
    )
    plan = Plan(
        seed=seed,
        brokers=brokers,
        replications=replications,
        publishers=publishers,
        subscribers=subscribers,
        readers=("r1",) if chance.random() < 0.5 else (),
        fsync=fsync,
        finishes=chance.random() < 0.6,
        heartbeat_s=chance.choice((1.0, 2.0)),
        links=links,
    )
    return _with_script(plan, chance)


def _late_publisher(seed: int, chance: Random) -> Plan:
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


def _replications(
    brokers: tuple[str, ...], chance: Random
) -> tuple[tuple[Replication, ...], tuple[str, ...]]:
    """Who replicates to whom, and which brokers clients may move between.

    The promise holds among synchronous replicas: clients move between those only.
    """
    asynchronous = brokers[-1] if len(brokers) > 2 and chance.random() < 0.5 else ""
    found: list[Replication] = []
    for source in brokers:
        for target in brokers:
            if source in {target, asynchronous}:
                continue
            mode: Literal["sync", "async"] = "async" if target == asynchronous else "sync"
            found.append(Replication(source=source, target=target, mode=mode))
    return tuple(found), tuple(each for each in brokers if each != asynchronous)


def _shuffled(names: tuple[str, ...], chance: Random) -> tuple[str, ...]:
    return tuple(chance.sample(names, len(names)))


def _with_script(plan: Plan, chance: Random) -> Plan:
    kinds = [kind for kind in FAULTS if chance.random() < 0.6]
    kinds = [kind for kind in kinds if plan.fsync or kind != "power_broker"] or ["kill_broker"]
    if "kill_broker" not in kinds and chance.random() < 0.7:
        kinds.append("kill_broker")
    weights = [_WEIGHTS.get(kind, 1.0) * chance.choice((0.5, 1.0, 3.0)) for kind in kinds]
    steps: list[Step] = []
    for number in range(chance.randint(50, 80)):
        draw = chance.random()
        if draw < 0.42:
            step = _publish(plan, chance, number)
        elif draw < 0.60:
            step = _discard(plan, chance, number)
        elif draw < 0.64:
            step = Step(number=number, kind="prune", node=chance.choice(plan.subscribers).name)
        elif draw < 0.66:
            node = chance.choice(_clients(plan))
            step = Step(number=number, kind="intrude", node=node)
        elif draw < 0.69 and plan.readers:
            step = Step(number=number, kind="query", node=chance.choice(plan.readers))
        else:
            kind = chance.choices(kinds, weights)[0]
            step = _fault(plan, chance, number, kind)
        steps.append(step)
    steps = _with_stories(plan, steps, chance)
    script = tuple(replace(step, number=number) for number, step in enumerate(steps))
    return replace(plan, script=script)


def _with_stories(plan: Plan, steps: list[Step], chance: Random) -> list[Step]:
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


def _clients(plan: Plan) -> list[str]:
    publishers = [each.name for each in plan.publishers]
    return publishers + [each.name for each in plan.subscribers]


def _pause(chance: Random) -> float:
    return chance.choice((0.0, 0.0, 0.01, 0.1, 0.3, 1.0))


def _publish(plan: Plan, chance: Random, number: int) -> Step:
    return Step(
        number=number,
        kind="publish",
        node=chance.choice(plan.publishers[:-1]).name,
        count=chance.choice((1, 3, 8, 15, 30)),
        after=_pause(chance),
    )


def _discard(plan: Plan, chance: Random, number: int) -> Step:
    return Step(
        number=number,
        kind="discard",
        node=chance.choice(plan.subscribers).name,
        count=chance.randrange(1, 2**16),
        after=_pause(chance),
    )


def _fault(plan: Plan, chance: Random, number: int, kind: str) -> Step:
    clients = _clients(plan)
    node, other, count, seconds = "", "", 0, chance.choice((0.1, 0.5, 1.5, 4.0))
    match kind:
        case "kill" | "power" | "reset" | "end" | "silence":
            node = chance.choice(clients)
        case "kill_broker" | "power_broker":
            kind = kind.removesuffix("_broker")
            node = chance.choice(("", "", *plan.brokers))
        case "cut":
            node, count = chance.choice(clients), chance.randrange(1, 3000)
        case "slow":
            node, seconds = chance.choice(clients), chance.choice((0.0, 0.02, 0.3))
        case "lag" if len(plan.brokers) > 1:
            node, other = chance.sample(plan.brokers, 2)
            seconds = chance.choice((0.0, 0.3, 1.0))
        case "lag":
            kind, node = "reset", chance.choice(clients)
        case "partition" | "partition_one_way":
            node, other = chance.sample((*plan.brokers, chance.choice(clients)), 2)
        case "disk" | "disk_broker":
            node = chance.choice(clients if kind == "disk" else plan.brokers)
            kind = "disk"
            other, count = chance.choice(_DISK)
        case "clock":
            node = chance.choice((*clients, *plan.brokers))
            seconds = chance.choice((-1.0, -0.3, 0.4, 1.5))
        case _:
            raise AssertionError(kind)
    return Step(
        number=number,
        kind=kind,
        node=node,
        other=other,
        count=count,
        seconds=seconds,
        after=_pause(chance),
    )

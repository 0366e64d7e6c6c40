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
    BookmarkStoreKind,
    DurabilityKind,
    Links,
    Plan,
    Prunes,
    PublisherPlan,
    PublishStoreKind,
    Replication,
    Step,
    SubscriberPlan,
    WhenFull,
)
from simulation.queue_planning import queue_plan
from simulation.stories import story_plan_of, with_stories

__all__ = ["FAULTS", "plan_of"]

FAULTS: Final = (
    "kill",
    "kill_broker",
    "power",
    "power_broker",
    "reset",
    "end",
    "cut",
    "flap",
    "silence",
    "partition",
    "partition_one_way",
    "slow",
    "lag",
    "disk",
    "disk_broker",
    "clock",
    "step_clock",
    "archive",
    "compress",
    "remove",
    "transport",
)
"""Kinds of faults, as steps; `simulator` says what they mean."""

_WEIGHTS: Final = {
    "kill_broker": 5.0,
    "reset": 2.0,
    "cut": 2.0,
    "end": 2.0,
    "archive": 2.0,
    "remove": 4.0,
}
_TOPICS: Final = ("orders", "orders", "state", "^(orders|state)$")
_PUBLISH_STORES: Final[tuple[PublishStoreKind, ...]] = (
    *("file", "file", "file", "ring", "hybrid", "memory", "ring_memory"),
)
_BOOKMARK_STORES: Final[tuple[BookmarkStoreKind, ...]] = (
    *("logged", "logged", "logged", "logged", "ring", "memory", "adapter"),
)
_DURABILITIES: Final[tuple[DurabilityKind, ...]] = ("process", "process", "group", "fsync")
_WHEN_FULL: Final[tuple[WhenFull, ...]] = ("", "", "wait", "raise")
_PRUNES: Final[tuple[Prunes, ...]] = ("", "", "messages", "size", "idle")
_BURSTS: Final = (1, 4, 9, 16, 36)
_UNSTORED_SHARE: Final = 0.15
_JUMPS_S: Final = (-1.0, -0.3, 0.4, 1.5)
_STEPS_S: Final = (-7200.0, -30.0, -8.0, 8.0, 30.0, 7200.0)
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
    if (queued := queue_plan(seed, _fault)) is not None:
        return queued
    if (story := story_plan_of(seed)) is not None:
        return story
    chance = Random(f"plan {seed}")
    brokers = ("b1", "b2", "b3")[: chance.choice((1, 2, 2, 2, 3))]
    replications, reachable = _replications(brokers, chance)
    fsync = chance.random() < 0.3
    publishers = tuple(
        _publisher(f"p{number}", reachable, chance) for number in range(1, chance.randint(2, 3) + 1)
    )
    publishers += (PublisherPlan(name="late", store="file", servers=_shuffled(reachable, chance)),)
    subscribers = tuple(
        _subscriber(f"s{number}", reachable, chance)
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
    return _unstored(_with_no_messages(_with_script(plan, chance)))


def _with_no_messages(plan: Plan) -> Plan:
    """Some publishers also publish what is refused or not logged."""
    chance = Random(f"no messages {plan.seed}")
    publishers = (
        replace(each, no_messages=chance.choice((0, 0, 2, 7))) for each in plan.publishers
    )
    return replace(plan, publishers=tuple(publishers))


def _unstored(plan: Plan) -> Plan:
    """Now and then a publisher has no store."""
    chance = Random(f"unstored {plan.seed}")
    if chance.random() >= _UNSTORED_SHARE:
        return plan
    first, *others = plan.publishers
    publishers = (replace(first, store="none", when_full=""), *others)
    return replace(plan, publishers=publishers)


def _publisher(name: str, servers: tuple[str, ...], chance: Random) -> PublisherPlan:
    store = chance.choice(_PUBLISH_STORES)
    in_files = store in {"file", "ring", "hybrid"}
    return PublisherPlan(
        name=name,
        store=store,
        servers=_shuffled(servers, chance),
        pad=chance.choice((0, 0, 400)),
        durability=chance.choice(_DURABILITIES) if in_files else "process",
        when_full=chance.choice(_WHEN_FULL),
    )


def _subscriber(name: str, servers: tuple[str, ...], chance: Random) -> SubscriberPlan:
    store = chance.choice(_BOOKMARK_STORES)
    logged = store == "logged"
    return SubscriberPlan(
        name=name,
        servers=_shuffled(servers, chance),
        topics=tuple(chance.choice(_TOPICS) for _ in range(chance.choice((1, 1, 2)))),
        eager=chance.choice((0.0, 0.5, 0.9, 1.0)),
        keeps=0 if store == "ring" else chance.choice((0, 0, 17)),
        slow_s=chance.choice((0.0, 0.0, 0.05)),
        rotates=chance.random() < 0.5,
        store=store,
        durability=chance.choice(_DURABILITIES) if logged or store == "ring" else "process",
        prunes=chance.choice(_PRUNES) if logged else "",
    )


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
            step = _intrude(plan, chance, number)
        elif draw < 0.69 and plan.readers:
            step = Step(number=number, kind="query", node=chance.choice(plan.readers))
        else:
            kind = chance.choices(kinds, weights)[0]
            step = _fault(plan, chance, number, kind)
        steps.append(step)
    steps = with_stories(plan, steps, chance)
    script = tuple(replace(step, number=number) for number, step in enumerate(steps))
    return replace(plan, script=script)


def _clients(plan: Plan) -> list[str]:
    publishers = [each.name for each in plan.publishers]
    subscribers = [each.name for each in plan.subscribers]
    return [*publishers, *subscribers, *(each.name for each in plan.consumers)]


def _pause(chance: Random) -> float:
    return chance.choice((0.0, 0.0, 0.01, 0.1, 0.3, 1.0))


def _publish(plan: Plan, chance: Random, number: int) -> Step:
    return Step(
        number=number,
        kind="publish",
        node=chance.choice(plan.publishers[:-1]).name,
        count=chance.choice(_BURSTS),
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


def _intrude(plan: Plan, chance: Random, number: int) -> Step:
    node = chance.choice(_clients(plan))
    prunes = node in {each.name for each in plan.subscribers if each.store == "logged"}
    moment = chance.choice(("", "rename", "lock")) if prunes else ""
    return Step(number=number, kind="intrude", node=node, other=moment)


def _fault(  # noqa: C901  one case for each kind
    plan: Plan, chance: Random, number: int, kind: str
) -> Step:
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
        case "flap" | "archive" | "compress" | "remove" | "transport":
            node, count = chance.choice(plan.brokers), chance.randrange(3)
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
            node, seconds = chance.choice((*clients, *plan.brokers)), chance.choice(_JUMPS_S)
        case "step_clock":
            alone = plan.brokers if len(plan.brokers) == 1 else ()
            node, seconds = chance.choice((*clients, *alone)), chance.choice(_STEPS_S)
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

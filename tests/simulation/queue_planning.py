"""Plans with queues: publishers of jobs, and consumers that process them, fail, hang and die.

Queues belong to one broker, the first one. One or two others may replicate to it, so that jobs
arrive from there, too. What is drawn here comes from a stream of its own: a seed without queues has
the plan that it would have if there were none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from random import Random
from typing import Final

from simulation.history import JOBS_TOPIC
from simulation.jobs import DEAD_TOPIC
from simulation.plans import (
    ConsumerPlan,
    ExpirationModel,
    Links,
    Plan,
    PublisherPlan,
    PublishStoreKind,
    QueuePlan,
    Replication,
    Step,
    SubscriberPlan,
    step_of,
)

__all__ = ["queue_plan", "queue_story"]

_SHARE: Final = 0.25
_STORY_SHARE: Final = 0.4  # of those with queues
_STORES: Final[tuple[PublishStoreKind, ...]] = ("file", "file", "hybrid", "memory")
_BURSTS: Final = (1, 4, 9, 20)
_LEASES_S: Final = (None, 2.0, 5.0, 30.0)
_THIRD_SHARE: Final = 0.4  # of those with replication

_EXPIRING_SHARE: Final = 0.25
_EXPIRATION_S: Final = 3
_EXPIRATION_MODELS: Final[tuple[ExpirationModel, ...]] = ("default", "queue", "latest", "earliest")

DrawFault = Callable[[Plan, Random, int], Step]
"""Draws a step that is a fault."""


def queue_plan(seed: int, fault: Callable[[Plan, Random, int, str], Step]) -> Plan | None:
    """The plan of a seed that is about queues; None if the seed has none.

    Args:
        seed: The seed.
        fault: Draws a fault of a kind: plan, chance, number and kind.
    """
    chance = Random(f"queues {seed}")
    if chance.random() >= _SHARE:
        return None
    if chance.random() < _STORY_SHARE:
        return queue_story(seed, chance)
    brokers = _brokers(seed, chance)
    queues = _queues(chance)
    plan = Plan(
        seed=seed,
        brokers=brokers,
        replications=tuple(
            Replication(source=source, target=target, mode="sync")
            for source, target in permutations(brokers, 2)
        ),
        publishers=tuple(_publisher(f"j{n}", brokers, chance) for n in range(1, 3)),
        subscribers=_subscribers(queues, brokers, chance),
        fsync=chance.random() < 0.3,
        heartbeat_s=chance.choice((1.0, 2.0)),
        links=Links(
            latency_s=chance.choice((0.0, 0.001, 0.03)),
            receive_bytes=chance.choice((2**30, 2**30, 700)),
            send_bytes=chance.choice((2**30, 2**30, 900)),
            capacity_bytes=chance.choice((256 * 1024, 256 * 1024, 4096)),
        ),
        queues=queues,
        consumers=tuple(
            _consumer(f"c{n}", queues, chance) for n in range(1, chance.randint(2, 4) + 1)
        ),
    )
    plan = _with_expirations(plan, Random(f"expirations {seed}"))
    return _with_script(_served(plan), chance, fault)


def _with_expirations(plan: Plan, chance: Random) -> Plan:
    """Some publishers give their messages an expiration, and queues differ in what counts."""
    if chance.random() >= _EXPIRING_SHARE:
        return plan
    queues = tuple(
        replace(
            each,
            message_expiration_s=_EXPIRATION_S,
            # What leaves a queue without dead letters is in no record.
            expiration_model=chance.choice(_EXPIRATION_MODELS) if each.dead_letters else "queue",
        )
        for each in plan.queues
    )
    publishers = tuple(replace(each, expiration_s=_EXPIRATION_S) for each in plan.publishers)
    return replace(plan, queues=queues, publishers=publishers)


def _brokers(seed: int, chance: Random) -> tuple[str, ...]:
    """One broker, or several of which each replicates to all others."""
    brokers = ("b1", "b2")[: chance.choice((1, 1, 2))]
    has_third = Random(f"third broker {seed}").random() < _THIRD_SHARE
    return (*brokers, "b3") if len(brokers) > 1 and has_third else brokers


def _queues(chance: Random) -> tuple[QueuePlan, ...]:
    names: list[str] = chance.sample(["work", "copies"], chance.choice((1, 1, 2)))
    if chance.random() < 0.15:
        names[0] = JOBS_TOPIC  # which it takes over
    return tuple(_queue(name, chance) for name in names)


def _queue(name: str, chance: Random) -> QueuePlan:
    backlog = chance.choice((1, 5, 20))
    ordered = chance.choice(("", "", "priority", "barrier"))
    if chance.random() < 0.2:
        return QueuePlan(
            name=name, semantics="at-most-once", backlog=backlog, priority=ordered == "priority"
        )
    return QueuePlan(
        name=name,
        lease_s=chance.choice(_LEASES_S),
        backlog=backlog,
        delivery=chance.choice(("", "fast", "round-robin", "proportional")),
        leasing=chance.choice(("sublet", "sublet", "strict")),
        max_deliveries=chance.choice((0, 0, 0, 6)),
        max_cancels=chance.choice((0, 1, 3)),
        expiration_s=chance.choice((None, None, None, 4.0)),
        priority=ordered == "priority",
        barrier=ordered == "barrier",
        dead_letters=DEAD_TOPIC,
    )


def _publisher(name: str, brokers: tuple[str, ...], chance: Random) -> PublisherPlan:
    return PublisherPlan(
        name=name,
        store=chance.choice(_STORES),
        servers=tuple(chance.sample(brokers, len(brokers))),
        pad=chance.choice((0, 0, 400)),
        no_messages=chance.choice((0, 0, 7)),
    )


def _subscribers(
    queues: tuple[QueuePlan, ...], brokers: tuple[str, ...], chance: Random
) -> tuple[SubscriberPlan, ...]:
    """Somebody reads the same messages from the log, where no queue has taken the topic over."""
    if chance.random() < 0.5 or JOBS_TOPIC in {each.name for each in queues}:
        return ()
    return (SubscriberPlan(name="s1", servers=brokers, topics=(JOBS_TOPIC,), eager=0.9),)


def _consumer(name: str, queues: tuple[QueuePlan, ...], chance: Random) -> ConsumerPlan:
    names = [each.name for each in queues]
    return ConsumerPlan(
        name=name,
        queues=tuple(chance.sample(names, chance.randint(1, len(names)))),
        backlog=chance.choice((1, 3, 10)),
        workers=chance.choice((1, 1, 1, 3)),
        by_hand=chance.random() < 0.3,
        fails=chance.choice((0.0, 0.05, 0.2)),
        dies=chance.choice((0.0, 0.0, 0.03)),
        hangs=chance.choice((0.0, 0.0, 0.05)),
        extends=chance.choice((0.0, 0.0, 0.05)),
        slow_s=chance.choice((0.0, 0.05, 0.3)),
        gives_up=chance.random() < 0.15,
        at_lease_end=chance.choice(("", "", "cut", "extend")),
    )


def _served(plan: Plan) -> Plan:
    """Each queue has a consumer."""
    wanted = {name for each in plan.consumers for name in each.queues}
    rest = tuple(each.name for each in plan.queues if each.name not in wanted)
    if not rest:
        return plan
    first, *others = plan.consumers
    first = replace(first, queues=first.queues + rest)
    return replace(plan, consumers=(first, *others))


_KINDS: Final = (
    *("kill", "kill_broker", "power", "power_broker", "reset", "end", "cut", "flap", "silence"),
    *("partition", "partition_one_way", "slow", "lag", "disk_broker", "clock", "step_clock"),
    *("remove", "transport"),
)


def _with_script(
    plan: Plan, chance: Random, fault: Callable[[Plan, Random, int, str], Step]
) -> Plan:
    kinds = [kind for kind in _KINDS if chance.random() < 0.5]
    kinds = [kind for kind in kinds if plan.fsync or kind != "power_broker"] or ["kill_broker"]
    steps: list[Step] = []
    for number in range(chance.randint(25, 45)):
        draw = chance.random()
        if draw < 0.5:
            node = chance.choice(plan.publishers).name
            step = step_of("publish", node, count=chance.choice(_BURSTS), after=_pause(chance))
        elif draw < 0.65:
            node = chance.choice(plan.consumers).name
            other = chance.choice(("confirm", "confirm", "leave"))
            step = step_of("order", node, other=other, after=_pause(chance))
        else:
            step = fault(plan, chance, number, chance.choice(kinds))
        steps.append(replace(step, number=number))
    return replace(plan, script=tuple(steps))


def _pause(chance: Random) -> float:
    return chance.choice((0.0, 0.01, 0.1, 0.3, 1.0))


def queue_story(seed: int, chance: Random) -> Plan:
    """What chance alone would rarely bring about with queues; nothing else goes wrong there."""
    story = chance.choice(
        (
            returned_in_order,
            barrier_and_return,
            extended,
            overdue,
            lost_links,
            poisoned,
            interrupted,
            overlong,
            answering,
        )
    )
    return story(seed, chance)


def _story(
    seed: int,
    queue: QueuePlan,
    consumers: tuple[ConsumerPlan, ...],
    script: list[Step],
    latency_s: float = 0.0,
) -> Plan:
    return Plan(
        seed=seed,
        brokers=("b1",),
        replications=(),
        publishers=(PublisherPlan(name="j1", store="file", servers=("b1",)),),
        subscribers=(),
        links=Links(latency_s=latency_s),
        queues=(queue,),
        consumers=consumers,
        script=tuple(replace(step, number=number) for number, step in enumerate(script)),
    )


def _consumers(count: int, **more: object) -> tuple[ConsumerPlan, ...]:
    plans = (ConsumerPlan(name=f"c{n}", queues=("work",)) for n in range(1, count + 1))
    return tuple(replace(each, **more) for each in plans)  # type: ignore[arg-type]  # its own fields


def returned_in_order(seed: int, chance: Random) -> Plan:
    """A consumer dies with messages of all priorities in hand, and others wait for them."""
    lease_s = chance.choice((None, 30.0, 30.0))
    queue = QueuePlan(name="work", lease_s=lease_s, backlog=5, priority=chance.random() < 0.8)
    script = [step_of("publish", "j1", count=chance.choice((12, 30)), after=0.5)]
    for _ in range(chance.randint(1, 3)):
        script += [
            step_of("kill", "c1", seconds=1.0, after=chance.uniform(0.1, 1.5)),
            step_of("publish", "j1", count=chance.choice((0, 5)), after=2.0),
        ]
    consumers = _consumers(1 if lease_s is None else 2, slow_s=0.3)
    return _story(seed, queue, consumers, [*script, step_of("wait", "", after=3.0)])


def barrier_and_return(seed: int, chance: Random) -> Plan:
    """Messages before a barrier are returned while it waits for them."""
    queue = QueuePlan(name="work", lease_s=5.0, backlog=5, barrier=True, dead_letters=DEAD_TOPIC)
    script = [step_of("publish", "j1", count=30, after=0.5)]
    for _ in range(chance.randint(2, 4)):
        kind = chance.choice(("kill", "reset", "order"))
        node = chance.choice(("c1", "c2"))
        other = "leave" if kind == "order" else ""
        script.append(step_of(kind, node, other=other, seconds=0.5, after=chance.uniform(0.1, 1.0)))
    consumers = _consumers(2, slow_s=0.3, hangs=0.1, fails=chance.choice((0.0, 0.2)))
    return _story(seed, queue, consumers, [*script, step_of("wait", "", after=8.0)])


def extended(seed: int, chance: Random) -> Plan:
    """Leases are extended, and end nevertheless: the application forgets some of its messages."""
    queue = QueuePlan(name="work", lease_s=chance.choice((1.0, 2.0)), backlog=5)
    consumers = _consumers(2, slow_s=0.1, extends=0.3, hangs=0.1, by_hand=chance.random() < 0.7)
    script = [
        step_of("publish", "j1", count=20, after=0.5),
        step_of("wait", "", after=8.0),
        step_of("publish", "j1", count=20),
        step_of("wait", "", after=12.0),
    ]
    return _story(seed, queue, consumers, script)


def overdue(seed: int, chance: Random) -> Plan:
    """Applications acknowledge when their lease has gone to another consumer, which then fails."""
    queue = QueuePlan(
        name="work", lease_s=4.0, backlog=8, leasing="strict", dead_letters=DEAD_TOPIC
    )
    late = ConsumerPlan(name="c1", queues=("work",), backlog=6, by_hand=True, hangs=0.7)
    failing = ConsumerPlan(name="c2", queues=("work",), backlog=8, by_hand=True)
    failing = replace(failing, fails=0.9, slow_s=3.9)
    script: list[Step] = []
    for _ in range(3):
        script.append(step_of("publish", "j1", count=12, after=0.5))
        script.append(step_of("wait", "", after=chance.uniform(6.0, 9.0)))
    return _story(seed, queue, (late, failing), script)


def lost_links(seed: int, chance: Random) -> Plan:
    """Consumers lose their links with acknowledgements in hand, and come back soon."""
    queue = QueuePlan(name="work", backlog=20, lease_s=chance.choice((None, 30.0)))
    consumers = _consumers(chance.choice((1, 1, 2)), backlog=20, workers=3, slow_s=0.2)
    script: list[Step] = []
    for _ in range(4):
        node = chance.choice(consumers).name
        script += [
            step_of("publish", "j1", count=20, after=0.5),
            step_of(chance.choice(("reset", "end")), node, after=chance.uniform(0.05, 0.6)),
            step_of("order", node, other="confirm", after=1.0),
        ]
    return _story(seed, queue, consumers, [*script, step_of("wait", "", after=3.0)], latency_s=0.01)


def poisoned(seed: int, chance: Random) -> Plan:
    """Some messages cannot be processed by anybody."""
    queue = QueuePlan(
        name="work",
        lease_s=chance.choice((None, 30.0)),
        backlog=5,
        max_cancels=chance.choice((1, 2)),
        dead_letters=DEAD_TOPIC,
    )
    consumers = _consumers(2, slow_s=0.05, by_hand=chance.random() < 0.5)
    script = [step_of("publish", "j1", count=30, after=0.5), step_of("wait", "", after=5.0)]
    return _story(seed, queue, consumers, script)


def overlong(seed: int, chance: Random) -> Plan:
    """Handlers that take longer than their lease are cut off, and their messages come again."""
    queue = QueuePlan(name="work", lease_s=1.0, backlog=5)
    consumers = _consumers(2, slow_s=0.2, hangs=0.3, at_lease_end="cut")
    script = [
        step_of("publish", "j1", count=chance.choice((10, 20)), after=0.5),
        step_of("wait", "", after=8.0),
    ]
    return _story(seed, queue, consumers, script)


def answering(seed: int, chance: Random) -> Plan:
    """Handlers wait for the acks of what they publish, behind messages that nobody takes."""
    queue = QueuePlan(name="work", lease_s=30.0, backlog=40)
    consumers = _consumers(2, backlog=40, slow_s=0.05, answers=True)
    script: list[Step] = []
    for _ in range(3):
        script += [
            step_of("publish", "j1", count=40, after=0.5),
            step_of("reset", chance.choice(("c1", "c2")), after=chance.uniform(0.2, 3.0)),
        ]
    plan = _story(seed, queue, consumers, [*script, step_of("wait", "", after=3.0)])
    return replace(plan, queued_bytes=chance.choice((300, 3000)))


def interrupted(seed: int, chance: Random) -> Plan:
    """The broker is killed while a queue that delivers at most once does so."""
    queue = QueuePlan(name="work", backlog=20)
    if chance.random() < 0.7:
        queue = replace(queue, semantics="at-most-once")
    script: list[Step] = []
    for _ in range(5):
        script += [
            step_of("publish", "j1", count=chance.choice((3, 12)), after=1.0),
            step_of("order", "c1", other="confirm", after=chance.uniform(0.0, 0.1)),
            step_of("kill", "b1", seconds=0.3, after=chance.uniform(0.0, 0.1)),
        ]
    consumers = _consumers(2, backlog=20, slow_s=chance.choice((0.02, 0.5)))
    latency_s = chance.choice((0.0, 0.01))
    return _story(seed, queue, consumers, [*script, step_of("wait", "", after=3.0)], latency_s)

"""Stories: what chance alone would rarely bring about.

Some are steps among the others of a script. Others are whole plans, because what they are about
needs few nodes, of a certain kind, and that nothing else heals what they did. Each is needed to
find one of the bugs that `mutations` plants.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from random import Random
from typing import Final

from simulation.plans import (
    Links,
    Plan,
    PublisherPlan,
    PublishStoreKind,
    Replication,
    Step,
    SubscriberPlan,
    step_of,
)

__all__ = [
    "cut_off_replay",
    "failing_disk",
    "flapping",
    "forked",
    "half_received",
    "late_logon",
    "late_publisher",
    "lost_after_a_removal",
    "no_message_last",
    "powerless",
    "recycled",
    "removed_before_replication",
    "removed_beside_readers",
    "replaced",
    "restored",
    "slow_reader",
    "story_plan_of",
    "unacknowledged",
    "unstored",
    "with_stories",
]

_STORY_SHARE: Final = 0.25
_EVERYTHING: Final = "^(orders|state)$"
_BOTH_WAYS: Final = (
    Replication(source="b1", target="b2", mode="sync"),
    Replication(source="b2", target="b1", mode="sync"),
)
_ASYNC_BOTH_WAYS: Final = tuple(replace(each, mode="async") for each in _BOTH_WAYS)
_TWO_PUBLISHERS: Final = (
    PublisherPlan(name="p1", store="file", servers=("b1", "b2")),
    PublisherPlan(name="p2", store="file", servers=("b2", "b1")),
)
_NARROW: Final = Links(latency_s=0.02, receive_bytes=700, capacity_bytes=2048)
_WORK: Final = frozenset({"publish", "discard", "prune", "intrude", "query"})


def story_plan_of(seed: int) -> Plan | None:
    """The plan of a seed that is one story; None if the seed belongs to no such."""
    chance = Random(f"told {seed}")
    if chance.random() >= _STORY_SHARE:
        return None
    stories = (
        *(late_publisher, late_publisher, cut_off_replay, slow_reader, recycled, replaced),
        *(flapping, restored, no_message_last, half_received, unstored, late_logon),
        *(unacknowledged, powerless, failing_disk, forked),
        *(removed_beside_readers, removed_before_replication, lost_after_a_removal),
    )
    return chance.choice(stories)(seed, chance)


def with_stories(plan: Plan, steps: list[Step], chance: Random) -> list[Step]:
    """What chance alone would rarely bring about, each now and then."""
    for story in (_newcomer, _split):
        if len(plan.brokers) > 1 and chance.random() < 0.3:
            at = chance.randrange(len(steps))
            if chance.random() < 0.6:  # nothing else goes wrong, which might heal it
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
        step_of("publish", old, count=3, after=0.3),
        step_of("lag", there, other=here, seconds=1.0, after=0.3),
        step_of("publish", plan.publishers[-1].name, count=3),
        step_of("publish", old, count=5, after=0.05),
        *(step_of("discard", reader, after=0.15) for reader in readers),
        step_of("kill", victim, seconds=1.5 if victim == here else 0.0, after=0.2),
        step_of("lag", there, other=here, after=0.5),
    ]


def _split(plan: Plan, chance: Random) -> list[Step]:
    """Replicas are parted; a publisher dies, and so does the only one that has its messages."""
    forgetful = [each for each in plan.publishers[:-1] if each.forgets]
    publisher = chance.choice(forgetful or plan.publishers)
    here, there = publisher.servers[:2]
    return [
        step_of("partition", here, other=there, seconds=4.0),
        step_of("publish", publisher.name, count=5, after=0.1),
        step_of("kill", publisher.name, seconds=0.1, after=0.2),
        step_of("kill", here, seconds=2.0),
        step_of("publish", publisher.name, count=5, after=0.1),
    ]


def flapping(seed: int, chance: Random) -> Plan:
    """The best broker loses each connection soon after it was opened; the other one is healthy."""
    plan = Plan(
        seed=seed,
        brokers=("b1", "b2"),
        replications=_BOTH_WAYS,
        publishers=(PublisherPlan(name="p1", store="file", servers=("b1", "b2")),),
        subscribers=(SubscriberPlan(name="s1", servers=("b1", "b2"), topics=(_EVERYTHING,)),),
        links=Links(latency_s=chance.choice((0.0, 0.005))),
    )
    script = [
        step_of("publish", "p1", count=10, after=chance.choice((0.5, 6.0))),
        step_of("flap", "b1", seconds=chance.choice((4.0, 10.0)), after=0.5),
        step_of("publish", "p1", count=10, after=1.0),
        step_of("publish", "p1", count=10, after=2.0),
        step_of("wait", "", after=12.0),
    ]
    return _scripted(plan, script)


def no_message_last(seed: int, chance: Random) -> Plan:
    """A broker dies when the last publish was refused, or went to a topic that is not logged."""
    plan = Plan(
        seed=seed,
        brokers=("b1", "b2"),
        replications=_BOTH_WAYS,
        publishers=(PublisherPlan(name="p1", store="file", servers=("b1", "b2"), no_messages=1),),
        subscribers=(SubscriberPlan(name="s1", servers=("b2", "b1"), topics=(_EVERYTHING,)),),
        links=Links(latency_s=chance.choice((0.0, 0.005))),
    )
    script = [
        step_of("publish", "p1", count=chance.choice((1, 2, 9)), after=0.5),
        step_of("kill", chance.choice(("b1", "b2")), seconds=8.0, after=2.0),
        step_of("publish", "p1", count=chance.choice((1, 4)), after=0.5),
        step_of("reset", "p1", after=1.0),
        step_of("wait", "", after=4.0),
    ]
    return _scripted(plan, script)


def half_received(seed: int, chance: Random) -> Plan:
    """A server is lost while a large message of a new publisher is on its way for a long time.

    The other server has had it for longer than the overlap when the subscriber asks there, and in
    front of what the subscriber has got.
    """
    plan = Plan(
        seed=seed,
        brokers=("b1", "b2"),
        replications=_ASYNC_BOTH_WAYS,
        publishers=(
            PublisherPlan(name="p1", store="file", servers=("b1",)),
            PublisherPlan(name="p2", store="file", servers=("b2",), pad=40_000),
        ),
        subscribers=(
            SubscriberPlan(name="s1", servers=("b1", "b2"), topics=(_EVERYTHING,), eager=1.0),
        ),
        links=_NARROW,
    )
    script = [
        step_of("publish", "p1", count=chance.choice((3, 20)), after=0.5),
        step_of("lag", "b1", other="b2", seconds=1.0, after=3.0),
        step_of("publish", "p1", count=3),
        step_of("publish", "p2", count=1),
        step_of("slow", "s1", seconds=chance.choice((0.8, 1.2)), after=0.15),
        step_of("lag", "b1", other="b2", after=3.0),
        step_of("partition", "s1", other="b1", seconds=12.0, after=chance.uniform(3.0, 8.0)),
        step_of("reset", "s1", after=0.1),
        step_of("slow", "s1", after=1.0),
        step_of("wait", "", after=20.0),
    ]
    return _scripted(plan, script)


def unstored(seed: int, chance: Random) -> Plan:
    """A publisher without a store loses its links with publishes in flight."""
    plan = Plan(
        seed=seed,
        brokers=("b1", "b2"),
        replications=_BOTH_WAYS,
        publishers=(PublisherPlan(name="p1", store="none", servers=("b1", "b2")),),
        subscribers=(SubscriberPlan(name="s1", servers=("b2", "b1"), topics=(_EVERYTHING,)),),
        links=Links(latency_s=chance.choice((0.005, 0.03))),
    )
    script: list[Step] = []
    for _ in range(chance.randint(4, 8)):
        kind = chance.choice(("reset", "cut", "cut", "end"))
        script += [
            step_of("publish", "p1", count=chance.choice((5, 20)), after=1.0),
            step_of(kind, "p1", count=chance.randrange(1, 1500), after=chance.uniform(0.0, 0.04)),
        ]
    return _scripted(plan, [*script, step_of("wait", "", after=3.0)])


def unacknowledged(seed: int, chance: Random) -> Plan:
    """A subscriber with a ring dies when it has discarded what is not acknowledged yet."""
    plan = Plan(
        seed=seed,
        brokers=("b1", "b2"),
        replications=_BOTH_WAYS,
        publishers=(PublisherPlan(name="p1", store="file", servers=("b1",)),),
        subscribers=(
            SubscriberPlan(
                name="s1",
                servers=("b1",),
                topics=(_EVERYTHING,),
                eager=1.0,
                store="ring",
            ),
        ),
        links=Links(latency_s=chance.choice((0.0, 0.005))),
    )
    script = [step_of("lag", "b1", other="b2", seconds=1.0, after=0.5)]
    for _ in range(3):
        script += [
            step_of("publish", "p1", count=chance.choice((3, 10)), after=3.0),
            step_of("kill", "s1", seconds=0.1, after=chance.uniform(0.1, 0.5)),
        ]
    return _scripted(plan, [*script, step_of("wait", "", after=3.0)])


def powerless(seed: int, chance: Random) -> Plan:
    """Clients whose stores are synced in groups lose their power when all has been synced."""
    plan = Plan(
        seed=seed,
        brokers=("b1",),
        replications=(),
        publishers=(PublisherPlan(name="p1", store="file", servers=("b1",), durability="group"),),
        subscribers=(
            SubscriberPlan(
                name="s1",
                servers=("b1",),
                topics=(_EVERYTHING,),
                eager=1.0,
                store=chance.choice(("logged", "ring")),
                durability="group",
            ),
        ),
        links=Links(latency_s=chance.choice((0.0, 0.005))),
    )
    script = [step_of("publish", "p1", count=10, after=0.5)]
    for _ in range(3):
        script += [
            step_of("publish", "p1", count=chance.choice((3, 20)), after=1.0),
            step_of("power", chance.choice(("s1", "s1", "p1")), seconds=0.5, after=1.0),
        ]
    return _scripted(plan, [*script, step_of("wait", "", after=3.0)])


def failing_disk(seed: int, chance: Random) -> Plan:
    """The disk of a broker refuses a write while several publishers have more to write."""
    names = ("p1", "p2", "p3")
    plan = Plan(
        seed=seed,
        brokers=("b1",),
        replications=(),
        publishers=tuple(
            PublisherPlan(name=name, store="file", servers=("b1",), pad=chance.choice((0, 400)))
            for name in names
        ),
        subscribers=(SubscriberPlan(name="s1", servers=("b1",), topics=(_EVERYTHING,)),),
        links=Links(send_bytes=900, capacity_bytes=4096),
    )
    script: list[Step] = []
    for _ in range(5):
        script += [
            step_of("disk", "b1", other="pwrite", count=errno.EIO, after=2.0),
            *(step_of("publish", name, count=chance.choice((4, 16))) for name in names),
        ]
    return _scripted(plan, [*script, step_of("wait", "", after=3.0)])


def late_logon(seed: int, chance: Random) -> Plan:
    """A logon is on its way for so long that its client has given up and connected again."""
    plan = Plan(
        seed=seed,
        brokers=("b1",),
        replications=(),
        publishers=(PublisherPlan(name="p1", store="file", servers=("b1",)),),
        subscribers=(SubscriberPlan(name="s1", servers=("b1",), topics=(_EVERYTHING,)),),
        links=Links(latency_s=0.001),
    )
    script: list[Step] = []
    for _ in range(4):
        flapping_s = chance.uniform(0.5, 1.5)
        script += [
            step_of("publish", "p1", count=5, after=6.0),
            step_of("slow", "s1", seconds=chance.choice((0.025, 0.03, 0.3, 0.3))),
            step_of("flap", "b1", seconds=flapping_s, after=0.5),
            step_of("slow", "s1", after=flapping_s + chance.uniform(-0.1, 0.1)),
        ]
    return _scripted(plan, [*script, step_of("wait", "", after=8.0)])


def slow_reader(seed: int, chance: Random) -> Plan:
    """A subscriber that is always behind loses its link: it needs all that was not sent to it."""
    plan = Plan(
        seed=seed,
        brokers=("b1",),
        replications=(),
        publishers=(PublisherPlan(name="p1", store="file", servers=("b1",), pad=400),),
        subscribers=(
            SubscriberPlan(
                name="s1",
                servers=("b1",),
                topics=(_EVERYTHING,),
                eager=chance.choice((0.9, 1.0)),
                slow_s=chance.choice((0.0, 0.0, 0.01)),
            ),
        ),
        links=Links(latency_s=0.01, receive_bytes=700, capacity_bytes=4096),
    )
    script = [step_of("slow", "s1", seconds=0.1), step_of("publish", "p1", count=5, after=0.5)]
    for _ in range(chance.randint(2, 4)):
        kind = chance.choice(("reset", "end", "kill"))
        script += [
            step_of("publish", "p1", count=300, after=1.0),
            step_of(kind, "s1", after=chance.uniform(0.5, 3.0)),
        ]
    return _scripted(plan, [*script, step_of("wait", "", after=5.0)])


def removed_beside_readers(seed: int, chance: Random) -> Plan:
    """Old files of the log are removed while a slow subscriber reads it; it stays connected."""
    plan = slow_reader(seed, chance)
    script = [step_of("slow", "s1", seconds=0.1), step_of("publish", "p1", count=5, after=0.5)]
    for _ in range(chance.randint(2, 4)):
        script.append(step_of("publish", "p1", count=300, after=1.0))
        script += [
            step_of(
                "remove", "b1", other="beside readers", count=30, after=chance.uniform(0.0, 1.0)
            )
            for _ in range(3)
        ]
    return _scripted(plan, [*script, step_of("wait", "", after=5.0)])


def removed_before_replication(seed: int, chance: Random) -> Plan:
    """Old files of a log are removed while another broker does not get what is in them."""
    plan = Plan(
        seed=seed,
        brokers=("b1", "b2"),
        replications=chance.choice((_BOTH_WAYS, _ASYNC_BOTH_WAYS)),
        publishers=(PublisherPlan(name="p1", store="file", servers=("b1",), pad=400),),
        subscribers=(SubscriberPlan(name="s1", servers=("b1",), topics=(_EVERYTHING,), eager=1.0),),
        links=Links(latency_s=chance.choice((0.0, 0.005))),
    )
    script: list[Step] = []
    for _ in range(3):
        script += [
            step_of("publish", "p1", count=chance.choice((5, 40)), after=1.0),
            step_of("partition", "b1", other="b2", seconds=4.0, after=chance.uniform(0.0, 0.2)),
            step_of("publish", "p1", count=40, after=0.1),
            step_of("remove", "b1", count=30, after=chance.uniform(0.5, 3.0)),
            step_of("kill", chance.choice(("b1", "b2")), seconds=0.5, after=1.0),
            step_of("remove", "b1", count=30, after=5.0),
        ]
    return _scripted(plan, [*script, step_of("wait", "", after=3.0)])


def lost_after_a_removal(seed: int, chance: Random) -> Plan:
    """A publisher loses its store, and goes on at a broker that has removed files of its log."""
    plan = Plan(
        seed=seed,
        brokers=("b1", "b2"),
        replications=_BOTH_WAYS,
        publishers=(
            PublisherPlan(name="p1", store="memory", servers=("b2", "b1")),
            PublisherPlan(name="p2", store="file", servers=("b1",), pad=400),
        ),
        subscribers=(SubscriberPlan(name="s1", servers=("b1",), topics=(_EVERYTHING,), eager=1.0),),
        links=Links(latency_s=chance.choice((0.0, 0.005))),
    )
    script = [
        step_of("publish", "p2", count=40),
        step_of("remove", "b1", count=30, after=4.0),
        step_of("partition", "b2", other="b1", seconds=4.0, after=1.0),
        step_of("publish", "p1", count=5, after=0.1),
        step_of("kill", "p1", seconds=0.1, after=chance.uniform(0.2, 0.5)),
        step_of("kill", "b2", seconds=2.0),
        step_of("publish", "p1", count=5, after=chance.uniform(0.1, 0.5)),
        step_of("wait", "", after=5.0),
    ]
    return _scripted(plan, script)


def recycled(seed: int, chance: Random) -> Plan:
    """A publisher dies in a segment that it has filled before; or its only broker dies, again."""
    plan = Plan(
        seed=seed,
        brokers=("b1",),
        replications=(),
        publishers=(PublisherPlan(name="p1", store="file", servers=("b1",), pad=400),),
        subscribers=(SubscriberPlan(name="s1", servers=("b1",), topics=(_EVERYTHING,), eager=1.0),),
        links=Links(latency_s=chance.choice((0.0, 0.01))),
    )
    script: list[Step] = []
    for _ in range(chance.randint(3, 6)):
        script += [step_of("publish", "p1", count=chance.randint(10, 40), after=0.3)] * 8
        node = chance.choice(("p1", "p1", "b1"))
        script.append(step_of("kill", node, seconds=0.1, after=chance.uniform(0.0, 0.2)))
    return _scripted(plan, script)


def replaced(seed: int, chance: Random) -> Plan:
    """A publisher hears what a broker has seen; then that one is lost, with all that it alone has.

    The subscriber stays with the other one: the new broker has no order in common with the old.
    """
    plan = Plan(
        seed=seed,
        brokers=("b1", "b2"),
        replications=_BOTH_WAYS,
        publishers=_TWO_PUBLISHERS,
        subscribers=(SubscriberPlan(name="s1", servers=("b2",), topics=(_EVERYTHING,)),),
        links=Links(latency_s=chance.choice((0.0, 0.01))),
    )
    script = [
        step_of("publish", "p1", count=chance.choice((0, 10)), after=0.5),
        step_of("publish", "p2", count=3),
        step_of("partition", "b1", other="b2", seconds=4.0, after=1.0),
        step_of("publish", "p1", count=5, after=0.1),
        step_of("kill", "p1", seconds=0.1, after=0.3),
        step_of("restore", "b1", seconds=chance.choice((0.5, 2.0)), after=chance.uniform(0.4, 0.8)),
        step_of("publish", "p1", count=5, after=0.3),
        step_of("wait", "", after=5.0),
    ]
    return _scripted(plan, script)


def restored(seed: int, chance: Random) -> Plan:
    """A broker loses its disk, or is restored from a backup, while a subscriber knows its log.

    The two brokers lag behind each other while messages are published at both, so each has them in
    an order of its own. The restored broker gets them back in the order of the other one. The
    subscriber has discarded messages of one publisher, which now stand behind those of the other.
    It stays away from the other broker meanwhile: it knows no other, or is down.
    """
    lag_s = chance.choice((0.3, 1.0))
    before, each = chance.choice((0, 3)), chance.choice((5, 20))
    knows_one = chance.random() < 0.5
    plan = Plan(
        seed=seed,
        brokers=("b1", "b2"),
        replications=_BOTH_WAYS,
        publishers=_TWO_PUBLISHERS,
        subscribers=(
            SubscriberPlan(
                name="s1",
                servers=("b1",) if knows_one else ("b1", "b2"),
                topics=(_EVERYTHING,),
                eager=0.0,
                store=chance.choice(("logged", "logged", "ring")),
            ),
            SubscriberPlan(name="s2", servers=("b2", "b1"), topics=(_EVERYTHING,)),
        ),
        links=Links(latency_s=chance.choice((0.0, 0.01))),
        finishes=chance.random() < 0.5,
    )
    known = [f"{publisher}:{number}" for publisher in ("p1", "p2") for number in range(before)]
    known += [f"p1:{before + number}" for number in range(chance.randint(1, each))]
    script = [
        step_of("publish", "p1", count=before, after=0.5),
        step_of("publish", "p2", count=before),
        *([step_of("backup", "b1", after=0.5)] if chance.random() < 0.6 else []),
        step_of("lag", "b1", other="b2", seconds=lag_s, after=0.5),
        step_of("lag", "b2", other="b1", seconds=lag_s),
        step_of("publish", "p1", count=each),
        step_of("publish", "p2", count=each),
        step_of("lag", "b1", other="b2", after=3.0),
        step_of("lag", "b2", other="b1"),
        step_of("wait", "", after=1.0),
        step_of("discard", "s1", count=1, other=" ".join(known)),
    ]
    if not knows_one or chance.random() < 0.3:
        script.append(step_of("kill", "s1", seconds=8.0, after=chance.choice((0.0, 1.0))))
    script += [
        step_of("restore", "b1", seconds=chance.choice((0.5, 2.0)), after=chance.uniform(0.1, 2.0)),
        step_of("publish", "p1", count=chance.choice((0, 5)), after=chance.uniform(0.1, 3.0)),
        step_of("publish", "p2", count=chance.choice((0, 5))),
        step_of("wait", "", after=10.0),
    ]
    return _scripted(plan, script)


def late_publisher(seed: int, chance: Random) -> Plan:
    """A publisher that appears late, on two replicas that put it in different places.

    Its first message is recorded by b2 while the two are apart, in front of some that b1 has by
    then acknowledged alone. All that is left to chance is when the subscriber, who knows those and
    not the first one, loses its server, its link or its life; and that it is soon enough for the
    overlap.
    """
    rotates = chance.random() < 0.5
    plan = _apart(seed, pad=chance.choice((0, 400)), rotates=rotates)
    script = [
        step_of("publish", "p1", count=chance.choice((0, 60, 90)), after=0.5),
        step_of("partition", "b1", other="b2", seconds=4.0, after=1.0),
        step_of("publish", "p2", count=1),
        step_of("publish", "p1", count=30, after=0.3),
    ]
    if rotates:
        script.append(step_of("kill", "s1", seconds=chance.uniform(3.0, 6.0), after=2.0))
    else:
        script.append(step_of("partition", "s1", other="b1", seconds=12.0, after=2.0))
        script.append(step_of("reset", "s1", after=chance.uniform(5.3, 5.5)))
    if chance.random() < 0.4:  # that makes no difference
        step_s = chance.choice((8.0, 30.0, 7200.0, -30.0))
        script.insert(1, step_of("step_clock", "s1", seconds=step_s))
    return _scripted(plan, [*script, step_of("wait", "", after=20.0)])


def forked(seed: int, chance: Random) -> Plan:
    """Two replicas record different messages of a publisher that has forgotten the first ones.

    They are down in turn: b1 alone has its first messages, one of which the subscriber has finished
    and others not, and b2 gets those of its next process first. Only a time tells b2 where the
    subscriber resumes, after a quiet time that is longer than the overlap.
    """
    old, new = chance.randint(3, 12), chance.randint(2, 6)
    store: PublishStoreKind = chance.choice(("memory", "ring_memory"))
    plan = Plan(
        seed=seed,
        brokers=("b1", "b2"),
        replications=_BOTH_WAYS,
        publishers=(replace(_TWO_PUBLISHERS[0], store=store), _TWO_PUBLISHERS[1]),
        subscribers=(
            SubscriberPlan(name="s1", servers=("b2", "b1"), topics=(_EVERYTHING,), eager=0.0),
        ),
    )
    script = [
        step_of("kill", "b2", seconds=4.0, after=0.2),
        step_of("publish", "p1", count=old, after=1.0),
        step_of("discard", "s1", count=1, other="p1:0", after=0.5),
        step_of("kill", "p1", seconds=0.1, after=0.5),
        step_of("kill", "b1", seconds=4.0, after=chance.uniform(0.3, 1.5)),
        step_of("publish", "p1", count=new, after=3.0),
        step_of("discard", "s1", count=1, other=f"p1:{old}", after=4.0),
        step_of("publish", "p2", count=1, after=chance.uniform(7.0, 15.0)),
        step_of("discard", "s1", count=1, other="p2:0", after=1.0),
        step_of("kill", "s1", seconds=0.5, after=3.0),
    ]
    return _scripted(plan, [*script, step_of("wait", "", after=10.0)])


def cut_off_replay(seed: int, chance: Random) -> Plan:
    """A server is lost shortly before the end of a replay of what is old.

    Messages and replicas are those of `late_publisher`. Acks arrive when most is replayed.
    """
    plan = _apart(seed, pad=400, rotates=chance.random() < 0.2)
    plan = replace(plan, links=replace(plan.links, latency_s=0.0))
    script = [
        step_of("slow", "s1", seconds=0.02, after=0.5),
        step_of("kill", "s1", seconds=30.0),
        step_of("partition", "b1", other="b2", seconds=4.0, after=1.5),
        step_of("publish", "p2", count=1),
        step_of("publish", "p1", count=300, after=0.3),
        step_of("publish", "p1", count=5, after=28.25),
        step_of("kill", "b1", seconds=2.0, after=chance.uniform(1.3, 1.65)),
    ]
    return _scripted(plan, [*script, step_of("wait", "", after=20.0)])


def _apart(seed: int, *, pad: int, rotates: bool) -> Plan:
    """Two replicas with a publisher each, and one subscriber, over narrow links."""
    return Plan(
        seed=seed,
        brokers=("b1", "b2"),
        replications=_ASYNC_BOTH_WAYS,
        publishers=(
            PublisherPlan(name="p1", store="file", servers=("b1",), pad=pad),
            PublisherPlan(name="p2", store="file", servers=("b2",)),
        ),
        subscribers=(
            SubscriberPlan(
                name="s1",
                servers=("b1", "b2"),
                topics=(_EVERYTHING,),
                eager=1.0,
                rotates=rotates,
            ),
        ),
        links=_NARROW,
    )


def _scripted(plan: Plan, script: list[Step]) -> Plan:
    steps = (replace(step, number=number) for number, step in enumerate(script))
    return replace(plan, script=tuple(steps))

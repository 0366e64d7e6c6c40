"""All bookmark stores agree with one model of sets, in any order of events, across crashes."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from typing_extensions import override

from haclient_stores.adapters.recovery_point import RecoveryPoint, positions
from haclient_stores.bookmark_stores import record_file
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.bookmark_stores.ring import RingBookmarkStore
from haclient_stores.bookmark_stores.tracked_store import TrackedBookmarkStore
from haclient_stores.disk.files import Disk
from haclient_stores.interfaces import SubscriptionLog
from haclient_stores.tracker import finished, runs
from haclient_stores.tracker import tracker as tracking
from simulation.disk import SimulatedDisk
from support.bookmark_world import Message, World
from support.lengths import length

pytestmark = pytest.mark.row("BS2", "BS3", "BS4", "BS6", "BS9", "BS10", "BS11", "BS15", "BS19")

STEPS = 50
SHORT = length(30)  # examples of so many steps
PATH = Path("/disk/s.bm")

KINDS: dict[str, Callable[[Disk], object]] = {
    "memory": lambda _: MemoryBookmarkStore(),
    "logged": lambda disk: LoggedBookmarkStore(PATH, disk=disk),
    "ring": lambda disk: RingBookmarkStore(PATH, subscriptions=2, disk=disk),
}


class Kept:
    """One store, what a crash leaves of it, and its world."""

    def __init__(self, name: str, *, acked: bool) -> None:
        self.name = name
        self.disk = SimulatedDisk()
        self.store = self.opened()
        self.world = World(self.store.subscription("s"), acked)
        self.world.enter()
        self.synced: frozenset[Message] = frozenset()  # what a loss of power must leave
        self.since: set[Message] = set()  # what it may leave
        self.seeded: set[Message] = set()  # what an adapter has told it
        self.sent: dict[str, RecoveryPoint] = {}  # what an adapter was told

    def opened(self) -> TrackedBookmarkStore:
        return KINDS[self.name](self.disk)  # type: ignore[return-value]  # each is one

    def crash(self) -> None:
        """The process is killed: the file stays as it is, and nothing else."""
        self.disk = self.disk.after_kill()
        self.go_on(self.remembered())

    def reopen(self) -> None:
        """The process ends as it should, and another one goes on."""
        self.sync()
        self.store.close()
        self.go_on(self.remembered())

    def lose_power(self, chance: random.Random) -> None:
        """What was synced is known; of the rest nobody knows."""
        self.disk = self.disk.after_power_loss(chance)
        log = self.opened().subscription("s")
        found = {m for m in self.world.log if log.is_discarded("{}|{}|".format(*m))}
        assert self.synced <= found <= self.since | self.synced
        self.disk = self.disk.after_kill()
        self.go_on(found, forgets=True)

    def lose_the_file(self) -> None:
        """Another host goes on from the recovery point that an adapter has kept."""
        point = self.world.subscription.recovery_point()
        newest = positions(point)
        found = {m for m in self.world.log if m[1] <= newest.get(m[0], 0)}
        assert found <= self.world.discarded
        self.disk = SimulatedDisk()
        self.store = self.opened()
        self.store.seed([RecoveryPoint("s", str(point))])
        self.world.restart(self.store.subscription("s"), found)
        self.since |= found
        self.seeded = set(found)
        self.synced = frozenset()

    def go_on(self, known: set[Message], *, forgets: bool = False) -> None:
        self.store = self.opened()
        forgets = forgets or self.name != "logged"  # a ring's vector may lag behind its tracker
        self.world.restart(self.store.subscription("s"), known, forgets=forgets)

    def sync(self) -> None:
        self.store.sync()
        self.synced = frozenset(self.remembered())
        self.since = set()

    def purge(self) -> None:
        self.seeded = set()
        self.world.forget()
        self.store.purge("s")
        self.world.enter()
        self.synced = frozenset()

    def remembered(self) -> set[Message]:
        """Which of the discarded messages the next process knows of."""
        if self.name == "memory":
            return set()
        if self.name == "ring":
            return self.world.prefix()
        return self.world.discarded


class AllStores(RuleBasedStateMachine):
    """Every rule happens to each of the stores, in its own world."""

    steps: ClassVar[int] = 0

    @initialize(acked=st.booleans())
    def begin(self, *, acked: bool) -> None:
        self.kept = [Kept(name, acked=acked) for name in KINDS]
        self.crashed = False

    @property
    def worlds(self) -> list[World]:
        return [each.world for each in self.kept]

    @rule(publisher=st.integers(1, 3), step=st.integers(1, 3), count=st.integers(1, 6))
    def publish(self, publisher: int, step: int, count: int) -> None:
        for world in self.worlds:
            for _ in range(count):
                world.publish(publisher, step)

    @rule(count=st.integers(1, 12), taken=st.integers(0, 12))
    def deliver(self, count: int, taken: int) -> None:
        for world in self.worlds:
            world.deliver(count)
            world.hand_out(taken)

    @rule(choices=st.lists(st.integers(0, 20), max_size=8))
    def discard(self, choices: list[int]) -> None:
        for world in self.worlds:
            for choose in choices:
                world.discard(choose)

    @rule(choose=st.integers(0, 20))
    def discard_up_to(self, choose: int) -> None:
        for world in self.worlds:
            world.discard_up_to(choose)

    @rule()
    def lose_link(self) -> None:
        for world in self.worlds:
            world.lose_link()

    @rule(choose=st.integers(0, 20))
    def enter_anew(self, choose: int) -> None:
        for world in self.worlds:
            world.enter_anew(choose)

    @rule(choose=st.integers(0, 20))
    def discard_kept(self, choose: int) -> None:
        for world in self.worlds:
            world.discard_kept(choose)

    @rule(count=st.integers(1, 10), at=st.integers(0, 60))
    def ack(self, count: int, at: int) -> None:
        for world in self.worlds:
            world.synced = min(len(world.log), world.synced + count)
            if world.acked:
                world.ack(at)

    @rule()
    def complete(self) -> None:
        for world in self.worlds:
            world.complete()

    @rule()
    def crash(self) -> None:
        self.crashed = True
        for each in self.kept:
            each.crash()

    @rule()
    def reopen(self) -> None:
        self.crashed = True
        for each in self.kept:
            each.reopen()

    @rule(seed=st.integers(0, 10**6))
    def lose_power(self, seed: int) -> None:
        self.crashed = True
        for each in self.kept:
            each.lose_power(random.Random(seed))

    @rule()
    def lose_the_files(self) -> None:
        self.crashed = True
        for each in self.kept:
            each.lose_the_file()

    @rule()
    def sync(self) -> None:
        for each in self.kept:
            each.sync()

    @rule()
    def purge(self) -> None:
        for each in self.kept:
            each.purge()

    @rule()
    def prune(self) -> None:
        for each in self.kept:
            each.store.prune()

    @invariant()
    def nothing_undiscarded_is_skipped_and_the_stores_agree(self) -> None:
        if not hasattr(self, "kept"):
            return
        AllStores.steps += 1
        for each in self.kept:
            each.since |= each.world.discarded
        points = [world.subscription.recovery_point() for world in self.worlds]
        for world, point in zip(self.worlds, points, strict=True):
            world.check(point)
        if not self.crashed:
            assert str(points[0]) == str(points[1]) == str(points[2])

    @invariant()
    def an_adapter_is_told_each_point_that_moves(self) -> None:
        for each in getattr(self, "kept", ()):
            each.sent.update((point.sub_id, point) for point in each.store.moved_points())
            assert each.sent == {point.sub_id: point for point in each.store.recovery_points()}
            assert not list(each.store.moved_points()), "what is idle costs nothing"

    @invariant()
    def the_explanation_counts_what_the_model_counts(self) -> None:
        for each in getattr(self, "kept", ()):
            told, world = each.store.explain("s"), each.world
            known = each.remembered() | each.seeded
            assert told.redelivered == world.subscription.undiscarded_count
            assert told.repeated >= len({m for m in world.discarded - known if m in world.arrived})

    @override
    def teardown(self) -> None:
        for each in getattr(self, "kept", ()):

            def reopen(each: Kept = each) -> SubscriptionLog:
                each.store.close()
                if each.name != "memory":  # which has nothing that could be opened
                    each.store = each.opened()
                return each.store.subscription("s")

            each.world.finish(reopen)
            each.store.close()


@pytest.mark.timeout(36_000)
@pytest.mark.parametrize("few", [1024, 4])
def test_all_bookmark_stores_agree_with_the_model(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    few: int,
) -> None:
    caplog.set_level(logging.ERROR)  # torn tails are usual after a loss of power
    monkeypatch.setattr(tracking, "_CONDENSE_EVERY", few)
    monkeypatch.setattr(runs, "_FEW", few // 2)
    monkeypatch.setattr(finished, "_EXACT", 2 * few)
    monkeypatch.setattr(finished, "_GROUPS", few)
    monkeypatch.setattr(record_file, "GROW_BYTES", record_file.BLOCK_BYTES)
    steps: int = request.config.getoption("--store-steps")
    AllStores.steps = 0
    run_state_machine_as_test(
        AllStores,
        settings=settings(
            max_examples=max(SHORT, steps // (STEPS // 4 * 3)),
            stateful_step_count=STEPS,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert AllStores.steps >= max(steps, SHORT * STEPS // 2)


@pytest.mark.parametrize("seed", range(length(30)))
def test_a_killed_store_goes_on_where_adapters_were_told(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """After each move of several publishers with acks: the bytes on disk give the same point."""
    monkeypatch.setattr(record_file, "GROW_BYTES", record_file.BLOCK_BYTES)
    if seed % 2:
        monkeypatch.setattr(tracking, "_CONDENSE_EVERY", 4)
        monkeypatch.setattr(finished, "_EXACT", 6)
        monkeypatch.setattr(finished, "_GROUPS", 3)
    rng = random.Random(seed)
    kept = Kept("logged", acked=True)
    for _ in range(60):
        mixed_move(rng, kept)
        told = kept.world.subscription.recovery_point()
        kept.world.check(told)
        next_process = LoggedBookmarkStore(PATH, disk=kept.disk.after_kill())
        assert positions(next_process.most_recent("s")) == positions(told)
        if rng.random() < 0.03:
            kept.crash()


def mixed_move(rng: random.Random, kept: Kept) -> None:
    """Batches of several publishers, discards mostly in order, lost links, acks, prunes."""
    world = kept.world
    moves = ["arrive"] * 6 + ["discard"] * 6 + ["lose"] * 2 + ["ack"] * 3 + ["", "prune"]
    match rng.choice([*moves, "anew"]):
        case "arrive":
            for _ in range(rng.randint(1, 4)):
                publisher = rng.randint(1, 3)
                for _ in range(rng.randint(1, 3)):
                    world.publish(publisher, rng.randint(1, 2))
            world.deliver(rng.randint(1, 12))
            world.hand_out(rng.randint(0, 12))
        case "discard":
            for _ in range(rng.randint(1, 8)):
                world.discard(rng.choice([0, 0, 0, rng.randrange(20)]))
        case "lose":
            world.lose_link()
        case "anew":
            world.discard_kept(rng.randrange(20))
            world.enter_anew(rng.randrange(20))
        case "ack":
            world.synced = min(len(world.log), world.synced + rng.randint(1, 6))
            world.ack(rng.randrange(60))
        case "prune":
            kept.store.prune()
        case _:
            world.discard_up_to(rng.randrange(20))
            world.complete()

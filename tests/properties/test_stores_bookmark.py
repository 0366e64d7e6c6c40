"""All bookmark stores agree with one model of sets, in any order of events, across crashes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from typing_extensions import override

from haclient_stores import finished, runs, tracking
from haclient_stores.interfaces import SubscriptionLog
from haclient_stores.logged_bookmark import LoggedBookmarkStore
from haclient_stores.memory_bookmark import MemoryBookmarkStore
from haclient_stores.ring_bookmark import RingBookmarkStore
from haclient_stores.tracked_store import Tracked, TrackedBookmarkStore
from support.bookmark_world import Message, World

pytestmark = pytest.mark.row("BS2", "BS3", "BS4", "BS6", "BS9", "BS10", "BS11", "BS15", "BS19")

STEPS = 50


class Kept:
    """One store, what a crash leaves of it, and its world."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory / name
        self.directory.mkdir()
        self.name = name
        self.generation = 0
        self.store = self.opened()
        self.world: World

    def opened(self) -> TrackedBookmarkStore[Tracked]:
        path = self.directory / str(self.generation)
        kinds: dict[str, Callable[[], object]] = {
            "memory": MemoryBookmarkStore,
            "logged": lambda: LoggedBookmarkStore(path),
            "ring": lambda: RingBookmarkStore(path, subscriptions=2),
        }
        return kinds[self.name]()  # type: ignore[return-value]  # each is one

    def crash(self) -> None:
        """The process is killed: the file stays as it is, and nothing else."""
        self.generation += 1
        old = self.directory / str(self.generation - 1)
        if old.exists():
            shutil.copyfile(old, self.directory / str(self.generation))
        self.store.close()
        self.store = self.opened()
        self.world.restart(self.store.subscription("s"), self.remembered())

    def remembered(self) -> set[Message]:
        """Which of the discarded messages the next process knows of."""
        if self.name == "memory":
            return set()
        if self.name == "ring":
            return self.world.prefix()
        return self.world.discarded


class AllStores(RuleBasedStateMachine):
    """Every rule happens to each of the stores, in its own world."""

    @initialize(acked=st.booleans())
    def begin(self, *, acked: bool) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.kept = [Kept(self.directory, name) for name in ("memory", "logged", "ring")]
        self.crashed = False
        for each in self.kept:
            each.world = World(each.store.subscription("s"), acked)
            each.world.enter()

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
    def prune(self) -> None:
        for each in self.kept:
            each.store.prune()

    @invariant()
    def nothing_undiscarded_is_skipped_and_the_stores_agree(self) -> None:
        if not hasattr(self, "kept"):
            return
        points = [world.subscription.recovery_point() for world in self.worlds]
        for world, point in zip(self.worlds, points, strict=True):
            world.check(point)
        if not self.crashed:
            assert str(points[0]) == str(points[1]) == str(points[2])

    @invariant()
    def the_explanation_counts_what_the_model_counts(self) -> None:
        for each in getattr(self, "kept", ()):
            told, world = each.store.explain("s"), each.world
            known = each.remembered()
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
        if hasattr(self, "directory"):
            shutil.rmtree(self.directory)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("few", [1024, 4])
def test_all_bookmark_stores_agree_with_the_model(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(tracking, "_MANY", few)
    monkeypatch.setattr(runs, "_FEW", few // 2)
    monkeypatch.setattr(finished, "_WAITING_CHUNKS", 2 * few)
    steps: int = request.config.getoption("--store-steps")
    run_state_machine_as_test(
        AllStores,
        settings=settings(
            max_examples=max(40, steps // STEPS), stateful_step_count=STEPS, deadline=None
        ),
    )

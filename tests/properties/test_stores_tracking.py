from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from typing_extensions import override

from haclient_stores.interfaces import SubscriptionLog
from haclient_stores.logged_bookmark import LoggedBookmarkStore
from haclient_stores.tracking import SubscriptionTracker
from support.bookmark_world import World

pytestmark = pytest.mark.row("BS2", "BS3", "BS4", "BS6", "BS9", "BS10", "BS11")


class TrackerMachine(RuleBasedStateMachine):
    """Any order of arrivals, discards, lost links, acks and restarts against the model."""

    def first_subscription(self) -> SubscriptionLog:
        return SubscriptionTracker()

    def after_restart(self) -> SubscriptionLog:
        self.world.subscription.ended()
        return self.world.subscription

    @initialize(acked=st.booleans())
    def begin(self, *, acked: bool) -> None:
        self.world = World(self.first_subscription(), acked)
        self.world.enter()

    @rule(publisher=st.integers(1, 3), step=st.integers(1, 3), count=st.integers(1, 6))
    def publish(self, publisher: int, step: int, count: int) -> None:
        for _ in range(count):
            self.world.publish(publisher, step)

    @rule(count=st.integers(1, 12))
    def deliver(self, count: int) -> None:
        self.world.deliver(count)

    @rule(count=st.integers(1, 12))
    def hand_out(self, count: int) -> None:
        self.world.hand_out(count)

    @rule(choices=st.lists(st.integers(0, 20), max_size=8))
    def discard(self, choices: list[int]) -> None:
        for choose in choices:
            self.world.discard(choose)

    @rule()
    def discard_all(self) -> None:
        while self.world.hands:
            self.world.discard(0)

    @rule()
    def lose_link(self) -> None:
        self.world.lose_link()

    @rule(count=st.integers(1, 10))
    def sync_more(self, count: int) -> None:
        self.world.synced = min(len(self.world.log), self.world.synced + count)

    @rule(at=st.integers(0, 60))
    def ack(self, at: int) -> None:
        if self.world.acked:
            self.world.ack(at)

    @rule()
    def complete(self) -> None:
        self.world.complete()

    @rule()
    def restart(self) -> None:
        self.world.restart(self.after_restart())

    @invariant()
    def the_recovery_point_skips_nothing(self) -> None:
        if hasattr(self, "world"):
            self.world.check(self.world.subscription.recovery_point())

    @override
    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish(self.after_restart)


class LoggedMachine(TrackerMachine):
    """The same with a file; a restart reads what a killed process would have left."""

    @override
    def first_subscription(self) -> SubscriptionLog:
        self.directory = Path(tempfile.mkdtemp())
        self.generation = 0
        self.store = LoggedBookmarkStore(self.directory / "0.bm")
        return self.store.subscription("s")

    @override
    def after_restart(self) -> SubscriptionLog:
        self.generation += 1
        path = self.directory / f"{self.generation}.bm"
        shutil.copyfile(self.store.path, path)
        self.store.close()
        self.store = LoggedBookmarkStore(path)
        return self.store.subscription("s")

    @rule()
    def prune(self) -> None:
        self.store.prune()

    @rule()
    def sync(self) -> None:
        self.store.sync()

    @override
    def teardown(self) -> None:
        if hasattr(self, "world"):
            super().teardown()
            self.store.close()
            shutil.rmtree(self.directory)


TestTracker = TrackerMachine.TestCase
TestTracker.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLogged = LoggedMachine.TestCase
TestLogged.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)

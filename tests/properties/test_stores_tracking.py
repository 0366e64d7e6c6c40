from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from typing_extensions import override

from haclient_stores.interfaces import SubscriptionLog
from support.bookmark_world import World
from support.lengths import length
from support.tracked_log import TrackedLog
from support.tracker_invariants import assert_consistent

pytestmark = pytest.mark.row("BS2", "BS3", "BS4", "BS6", "BS9", "BS10", "BS11")


class TrackerMachine(RuleBasedStateMachine):
    """Any order of arrivals, discards, lost links, acks and restarts against the model."""

    def first_subscription(self) -> SubscriptionLog:
        return TrackedLog()

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

    @rule(choose=st.integers(0, 20), count=st.integers(1, 10))
    def discard_adjacent(self, choose: int, count: int) -> None:
        held = sorted(self.world.hands)
        first = choose % len(held) if held else 0
        for _ in held[first : first + count]:
            self.world.discard(first)

    @rule(choose=st.integers(0, 20))
    def discard_up_to(self, choose: int) -> None:
        self.world.discard_up_to(choose)

    @rule()
    def condense(self) -> None:
        self.tracker.condense()

    @rule()
    def discard_all(self) -> None:
        while self.world.hands:
            self.world.discard(0)

    @rule()
    def lose_link(self) -> None:
        self.world.lose_link()

    @rule(choose=st.integers(0, 20))
    def enter_anew(self, choose: int) -> None:
        self.world.enter_anew(choose)

    @rule(choose=st.integers(0, 20))
    def discard_kept(self, choose: int) -> None:
        self.world.discard_kept(choose)

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

    @property
    def tracker(self) -> TrackedLog:
        assert isinstance(self.world.subscription, TrackedLog)
        return self.world.subscription

    @invariant()
    def the_numbers_are_consistent(self) -> None:
        if hasattr(self, "world"):
            assert_consistent(self.tracker.tracker)

    @invariant()
    def the_recovery_point_skips_nothing(self) -> None:
        if hasattr(self, "world"):
            self.world.check(self.world.subscription.recovery_point())

    @override
    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish(self.after_restart)


TestTracker = TrackerMachine.TestCase
TestTracker.settings = settings(max_examples=length(80), stateful_step_count=40)

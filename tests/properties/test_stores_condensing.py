"""A tracker that forgets whatever it may at each step answers like one that forgets nothing."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from haclient_stores.bookmark import Bookmark, BookmarkList
from haclient_stores.tracker.entries import Publishers
from haclient_stores.tracker.tracker import SubscriptionTracker
from support.lengths import length
from support.tracker_invariants import assert_consistent

pytestmark = pytest.mark.row("BS3", "BS10")


def newest(point: BookmarkList) -> dict[int, int]:
    return {b.publisher_id: b.sequence for b in point if isinstance(b, Bookmark)}


class Twins(RuleBasedStateMachine):
    """The same moves for both."""

    @initialize(acked=st.booleans())
    def begin(self, *, acked: bool) -> None:
        self.acked = acked
        self.whole, self.short = (SubscriptionTracker(Publishers()) for _ in range(2))
        self.sequences = dict.fromkeys((1, 2, 3), 0)
        self.numbers = [0]
        self.arrived: dict[tuple[int, int], int] = {}
        self.covered: set[tuple[int, int]] = set()
        self.link_first = 1
        for each in self.both:
            each.begin(acked=acked, start=None)

    @property
    def both(self) -> tuple[SubscriptionTracker, SubscriptionTracker]:
        return self.whole, self.short

    @rule(publishers=st.lists(st.integers(1, 3), min_size=1, max_size=12))
    def arrive(self, publishers: list[int]) -> None:
        batch: list[str] = []
        for publisher in publishers:
            self.sequences[publisher] += 1
            self.arrived[publisher, self.sequences[publisher]] = self.whole.next_number + len(batch)
            batch.append(f"{publisher}|{self.sequences[publisher]}|")
        numbers = list(self.whole.log_batch(batch))
        assert list(self.short.log_batch(batch)) == numbers
        self.numbers += numbers

    @rule(publisher=st.integers(1, 3), back=st.integers(0, 5), count=st.integers(1, 6))
    def arrive_again(self, publisher: int, back: int, count: int) -> None:
        last = self.sequences[publisher] - back
        batch = [f"{publisher}|{q}|" for q in range(max(1, last - count), last + 1)]
        numbers = list(self.whole.log_batch(batch))
        assert list(self.short.log_batch(batch)) == numbers
        self.numbers += numbers

    @rule(back=st.integers(0, 8), count=st.integers(1, 4), between=st.integers(0, 2))
    def arrive_again_among_others(self, back: int, count: int, between: int) -> None:
        """Aliases, and between them numbers of entries of another publisher."""
        self.arrive_again(1, back, 0)
        for _ in range(count):
            self.arrive([2] * between)
            back = max(0, back - 1)
            self.arrive_again(1, back, 0)

    @rule(choices=st.lists(st.integers(0, 40), max_size=12))
    def discard(self, choices: list[int]) -> None:
        for choose in choices:
            number = self.numbers[-1 - choose % len(self.numbers)]
            assert self.whole.try_discard(number) == self.short.try_discard(number)

    @rule(choose=st.integers(0, 40), count=st.integers(1, 30))
    def discard_in_order(self, choose: int, count: int) -> None:
        number = self.numbers[-1 - choose % len(self.numbers)]
        for each in self.both:
            for following in range(number, number + count):
                each.discard(following)

    @rule(choose=st.integers(0, 40))
    def lose_link(self, choose: int) -> None:
        for each in self.both:
            each.link_lost(self.numbers[-1 - choose % len(self.numbers)])
            each.begin(acked=self.acked, start=None)
        self.link_first = self.whole.next_number

    @rule(publisher=st.integers(1, 3), back=st.integers(0, 9))
    def ack(self, publisher: int, back: int) -> None:
        sequence = max(0, self.sequences[publisher] - back)
        for each in self.both:
            if sequence:
                each.persisted_at(each.publishers.index(publisher), sequence)
        by_sequence = {(p, q) for p, q in self.arrived if p == publisher and q <= sequence}
        to = max((self.arrived[place] for place in by_sequence), default=0)
        this_link = range(self.link_first, to + 1)
        self.covered |= by_sequence
        self.covered |= {place for place, number in self.arrived.items() if number in this_link}

    @invariant()
    def nobody_can_tell(self) -> None:
        if not hasattr(self, "whole"):
            return
        self.short.condense()
        for each in self.both:
            assert_consistent(each)
        for name in ("oldest_undiscarded", "undiscarded_count", "next_number", "low_watermark"):
            assert getattr(self.whole, name) == getattr(self.short, name)
        points = [newest(each.recovery_point()) for each in self.both]
        if self.acked:  # another point, but as safe
            assert points[1].items() <= self.covered
            assert all(
                self.arrived[place] < self.whole.low_watermark for place in points[1].items()
            )
        else:
            assert points[0] == points[1]
            assert self.whole.applied() == self.short.applied()
        undiscarded = [[e for e in each.entries() if not e[3]] for each in self.both]
        assert undiscarded[0] == undiscarded[1]


TestTwins = Twins.TestCase
TestTwins.settings = settings(max_examples=length(60), stateful_step_count=30)

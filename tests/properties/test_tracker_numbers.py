"""The number arithmetic of a tracker holds in any mixture of what makes it hard.

Aliases between numbers of other entries, condensing at any time, lost links, discards of
neighbours, and discards that come late, under a number that is not the entry's newest.
"""

from __future__ import annotations

import random

import pytest

from haclient_stores.tracker.entries import Publishers
from support.lengths import length
from support.tracked_log import TrackedLog
from support.tracker_invariants import assert_consistent

pytestmark = pytest.mark.row("BS3", "BS4", "BS6")

SEEDS = length(150)
STEPS = 60


class Walk:
    """One tracker, and the set of what is not discarded.

    Attributes:
        numbers: The entry of each number that was ever given to somebody.
        order: The entries in the order of their arrival.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        publishers = Publishers()
        for publisher_id in (1, 2, 3):
            publishers.index(publisher_id)
        self.tracker = TrackedLog(publishers)
        self.tracker.begin(acked=False, start=None)
        self.sequences = dict.fromkeys((1, 2, 3), 0)
        self.numbers: dict[int, tuple[int, int]] = {}
        self.newest: dict[tuple[int, int], int] = {}
        self.order: list[tuple[int, int]] = []
        self.discarded: set[tuple[int, int]] = set()
        self.queued_from = 1  # what was lost and has not come again may come

    def arrive(self, publisher: int = 0, count: int = 0) -> None:
        publisher = publisher or self.rng.choice((1, 2, 3))
        last = self.sequences[publisher]
        entries = [(publisher, last + n + 1) for n in range(count or self.rng.randint(1, 6))]
        self.sequences[publisher] += len(entries)
        numbers = self.tracker.log_batch(["{}|{}|".format(*entry) for entry in entries])
        self.order += entries
        self.numbers.update(zip(numbers, entries, strict=True))
        self.newest.update(zip(entries, numbers, strict=True))

    def come_again(self) -> None:
        """Some of what is expected again comes, and others between."""
        for publisher, sequence in [*self.tracker.redelivery.awaiting.values()]:
            if self.rng.random() < 0.7:
                entry = publisher + 1, sequence
                (number,) = self.tracker.log_batch(["{}|{}|".format(*entry)])
                assert number > max(self.numbers), "a new number"
                self.numbers[number] = entry
                self.newest[entry] = number
                if self.rng.random() < 0.4:
                    self.arrive(count=1)

    def lose(self) -> None:
        last = self.tracker.next_number
        self.tracker.link_lost(self.rng.randint(max(1, last - 8), last))
        self.tracker.begin(acked=False, start=None)
        if self.rng.random() < 0.8:
            self.come_again()

    def discard(self) -> None:
        self._discard(self.rng.choice([*self.newest.values()] or [0]))

    def discard_neighbours(self) -> None:
        current = sorted(self.newest.values())
        first = self.rng.randrange(len(current) + 1)
        for number in current[first : first + self.rng.randint(2, 12)]:
            self._discard(number)

    def discard_late(self) -> None:
        """Under the own number of an entry that has an alias meanwhile."""
        own = {entry: number for number, entry in reversed([*self.numbers.items()])}
        late = [own[entry] for entry in self.newest if own[entry] != self.newest[entry]]
        self._discard(self.rng.choice(late or [0]))

    def discard_most(self) -> None:
        for number in sorted(self.newest.values())[: -self.rng.randint(1, 4)]:
            self._discard(number)

    def discard_up_to(self) -> None:
        waiting = {(p + 1, q) for p, q in self.tracker.redelivery.awaiting.values()}
        bound = self.rng.choice([*self.newest.values()] or [0])
        self.tracker.discard_up_to(bound)
        for entry in [e for e, n in self.newest.items() if n <= bound and e not in waiting]:
            self._gone(entry)

    def condense(self) -> None:
        self.tracker.condense()

    def _discard(self, number: int) -> None:
        entry = self.numbers.get(number)
        assert self.tracker.try_discard(number) == (entry in self.newest)
        if entry in self.newest:
            self._gone(entry)

    def _gone(self, entry: tuple[int, int]) -> None:
        del self.newest[entry]
        self.discarded.add(entry)

    def check(self) -> None:
        tracker = self.tracker
        assert_consistent(tracker.tracker)
        assert tracker.undiscarded_count == len(self.newest)
        opened = next((n for n, e in enumerate(self.order) if e in self.newest), len(self.order))
        applied = dict(self.order[:opened])
        assert {p + 1: q for p, q in tracker.applied().items()} == applied
        for entry in self.order:
            known = tracker.is_discarded("{}|{}|".format(*entry))
            assert known or entry in self.newest


MOVES = {
    Walk.arrive: 6,
    Walk.lose: 2,
    Walk.come_again: 1,
    Walk.discard: 5,
    Walk.discard_neighbours: 4,
    Walk.discard_late: 1,
    Walk.discard_most: 1,
    Walk.discard_up_to: 1,
    Walk.condense: 3,
}


@pytest.mark.parametrize("run", range(4))
def test_the_low_watermark_is_an_open_entry_or_the_next_number(run: int) -> None:
    for seed in range(run * SEEDS, (run + 1) * SEEDS):
        walk = Walk(seed)
        for _ in range(STEPS):
            (move,) = walk.rng.choices([*MOVES], [*MOVES.values()])
            move(walk)
            walk.check()

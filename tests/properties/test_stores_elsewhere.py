"""Two servers with logs in different orders, and processes that begin with kept points alone.

Whatever comes between, losses, other servers, processes that end with messages in hand: at the end
everything has been discarded by somebody. Replication takes less time than the overlap.
"""

from __future__ import annotations

import random
import sqlite3
from dataclasses import dataclass, replace

import pytest
from typing_extensions import override

from haclient.session.resume import resume_bookmarks
from haclient_stores.adapters import transactional
from haclient_stores.adapters.recovery_point import PointFeed, RecoveryPoint
from haclient_stores.adapters.transactional import TransactionalRecoveryPoint
from haclient_stores.bookmark import Bookmark, BookmarkList, Timestamp
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from support.lengths import length
from support.points import KeptPoints

pytestmark = pytest.mark.row("RP6", "BS9", "HA17")

OVERLAP_US = 5_000_000
STEPS = 120
SEEDS = length(400)


class World:
    """The servers, and how much a process has of them.

    Args:
        rng: Decides everything.
        adapter: What survives a process.
    """

    def __init__(self, rng: random.Random, adapter: KeptPoints) -> None:
        self.rng = rng
        self.now_us = 1_000_000_000
        self.logs: dict[str, list[tuple[int, str]]] = {"east:1": [], "west:1": []}
        self.flying: list[tuple[int, str, str]] = []  # when it arrives, where, and what
        self.sequences = dict.fromkeys((1, 2, 3), 0)
        self.discarded: set[str] = set()
        self.adapter = adapter
        self.server = "east:1"
        self.begin()

    # -- the servers --------------------------------------------------------------------------

    def publish(self) -> None:
        publisher = self.rng.choice((1, 2, 3))
        self.sequences[publisher] += 1
        mark = f"{publisher}|{self.sequences[publisher]}|"
        home, other = ("east:1", "west:1") if publisher != 3 else ("west:1", "east:1")
        self.logs[home].append((self.now_us, mark))
        behind = [at for at, where, what in self.flying if where == other and what[0] == mark[0]]
        arrives_us = self.now_us + self.rng.randrange(OVERLAP_US)
        self.flying.append((max([arrives_us, *behind]), other, mark))

    def wait(self) -> None:
        self.now_us += self.rng.randrange(3_000_000)
        for each in sorted(self.flying, key=lambda each: each[0]):
            at, where, mark = each
            if at <= self.now_us:
                self.flying.remove(each)
                self.logs[where].append((at, mark))

    def begin_of(self, form: str) -> int:
        """Where a server begins that is asked for this: after the earliest that it has."""
        log = self.logs[self.server]
        if form == "0":
            return 0
        found: list[int] = []
        for item in BookmarkList.parse(form):
            if isinstance(item, Bookmark):
                found += [i + 1 for i, (_, mark) in enumerate(log) if mark == str(item)]
            else:
                assert isinstance(item, Timestamp)
                before = [at for at, _ in log if at < item.microseconds]
                found.append(len(before))
        return min(found, default=0)

    # -- the process --------------------------------------------------------------------------

    def opened(self) -> MemoryBookmarkStore:
        """The store of the next process."""
        store = MemoryBookmarkStore()
        store.seed(self.adapter.points.values())
        return store

    def begin(self) -> None:
        """A process that has nothing but what was kept."""
        self.store = self.opened()
        self.feed = PointFeed(self.adapter)
        self.feed.mark_sent(self.adapter.points.values())
        self.log = self.store.subscription("s")
        self.held: list[tuple[int, str]] = []
        self.last = ""
        self.enter()

    def enter(self) -> None:
        log, last = self.log, self.last if self.log.server_order.server == self.server else ""
        log.link_lost(log.tracker.next_number)
        log.begin(acked=False, start=None)
        self.at = self.begin_of(
            resume_bookmarks(log, self.server, last=last, overlap_us=OVERLAP_US)[0]
        )
        log.entered(self.server)
        self.last, self.complete, self.end = last, False, len(self.logs[self.server])

    def deliver(self, count: int) -> None:
        log = self.logs[self.server]
        for _, mark in log[self.at : self.at + count]:
            self.last = mark
            if number := self.log.log(mark):
                self.held.append((number, mark))
        self.at = min(len(log), self.at + count)
        if self.at >= self.end and not self.complete:
            self.complete = True
            self.log.completed("")
        if self.complete and self.at == len(log):
            self.log.caught_up(self.now_us)

    def discard(self, count: int) -> None:
        self.rng.shuffle(self.held)
        for _ in range(min(count, len(self.held))):
            number, mark = self.held.pop()
            self.discarded.add(mark)
            self.log.discard(number)

    def step(self) -> None:
        rng = self.rng
        action = rng.choices(
            ("publish", "wait", "deliver", "discard", "tell", "move", "lose", "end"),
            (6, 6, 8, 8, 4, 1, 1, 1),
        )[0]
        if action in {"publish", "wait"}:
            getattr(self, action)()
        elif action in {"deliver", "discard"}:
            getattr(self, action)(rng.randint(1, 6))
        elif action == "tell":
            self.feed.send_moved(self.store.moved_points())
        elif action == "end":
            if rng.random() < 0.5:
                self.feed.send_moved(self.store.recovery_points(), last=True)
            self.server = rng.choice(tuple(self.logs))
            self.begin()
        else:
            if action == "move":
                self.server = next(each for each in self.logs if each != self.server)
            self.enter()

    def finish(self) -> None:
        """Everything arrives everywhere, and the last process discards what it gets."""
        while self.flying:
            self.wait()
        self.begin()
        self.deliver(10**6)
        self.discard(10**6)

    @property
    def missed(self) -> set[str]:
        published = {f"{p}|{n}|" for p, last in self.sequences.items() for n in range(1, last + 1)}
        return published - self.discarded


class SavingWorld(World):
    """One whose processes save each message in a database before they discard it."""

    def __init__(self, rng: random.Random) -> None:
        self.database = sqlite3.connect(":memory:")
        super().__init__(rng, KeptPoints())

    @override
    def opened(self) -> MemoryBookmarkStore:
        store = TransactionalRecoveryPoint(self.database)
        store.open_for("me")
        self.save = store.save
        return store

    @override
    def deliver(self, count: int) -> None:
        known = len(self.held)
        super().deliver(count)
        again = [mark for _, mark in self.held[known:] if mark in self.discarded]
        assert again == [], "each message has its effect once"

    @override
    def discard(self, count: int) -> None:
        self.rng.shuffle(self.held)
        for number, mark in self.held[:count]:
            with self.database:
                self.save(Delivered("s", mark))
            self.discarded.add(mark)
            self.log.discard(number)
        del self.held[:count]
        if self.rng.random() < 0.1 and self.held:
            with self.database:
                self.save(Delivered("s", self.held[0][1]))
            self.discarded.add(self.held[0][1])
            self.begin()

    @override
    def finish(self) -> None:
        super().finish()
        super().finish()  # the first may have been killed
        self.database.close()


@dataclass(frozen=True)
class Delivered:
    sub_id: str
    bookmark: str


class Bare(KeptPoints):
    """Takes every list for one in the order of every server, as it was once."""

    @override
    def update(self, point: RecoveryPoint) -> None:
        super().update(replace(point, caught_up_us=2**50))


def missed_by(adapter: KeptPoints, seed: int) -> set[str]:
    world = World(random.Random(seed), adapter)
    for _ in range(STEPS):
        world.step()
    world.finish()
    return world.missed


def test_nobody_misses_anything() -> None:
    for seed in range(SEEDS):
        assert missed_by(KeptPoints(), seed) == set(), f"seed {seed}"


def test_lists_alone_would_not_do() -> None:
    """The world is one in which it matters."""
    assert any(missed_by(Bare(), seed) for seed in range(SEEDS))


@pytest.mark.row("BS23", "BS24")
def test_nobody_misses_or_repeats_anything_with_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactional, "_TRIM_EVERY", 3)
    for seed in range(SEEDS // 4):
        world = SavingWorld(random.Random(seed))
        for _ in range(STEPS):
            world.step()
        world.finish()
        assert world.missed == set(), f"seed {seed}"

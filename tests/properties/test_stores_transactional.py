"""What was committed has had its effect, and nothing else has, whatever an application does.

It saves in any order, rolls back, gives messages up, discards what it never saved, begins anew, and
is killed between a commit and a discard.
"""

from __future__ import annotations

import random
import sqlite3
from contextlib import suppress
from dataclasses import dataclass

import pytest

from haclient_stores.adapters import transactional
from haclient_stores.adapters.transactional import TransactionalRecoveryPoint
from haclient_stores.tracker import tracker as tracking
from support.lengths import length

pytestmark = pytest.mark.row("BS23", "BS24")

STEPS = 120
SEEDS = length(200)
MOVES = {
    "publish": 6.0,
    "deliver": 6.0,
    "save": 8.0,
    "roll_back": 2.0,
    "give_up": 3.0,
    "lose": 1.0,
    "trim": 0.5,
    "restart": 1.0,
    "begin_anew": 0.6,
    "purge": 0.2,
}


@dataclass(frozen=True)
class Delivered:
    sub_id: str
    bookmark: str


class World:
    """A log, a database, and one process after the other.

    Attributes:
        held: Messages in hand, and their numbers.
        saved: What was committed since the start that the process knows of.
        known: The same of the start that the database knows of.
        discarded: Since that start, and before it.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.database = sqlite3.connect(":memory:")
        self.log: list[str] = []
        self.sequences = dict.fromkeys((1, 2, 3), 0)
        self.saved: set[str] = set()
        self.known: set[str] = set()
        self.discarded: set[str] = set()
        self.earlier: set[str] | None = None  # discarded before a start that nobody else knows of
        self.open()

    def open(self) -> None:
        self.store = TransactionalRecoveryPoint(self.database)
        self.store.open_for("me")
        self.handle = self.store.subscription("s")
        self.held: dict[str, int] = {}
        self.lose()

    def enter(self, start: str | None = None) -> None:
        self.handle.begin(acked=False, start=start)
        wanted = str(self.handle.recovery_point()).split(",")
        self.at = min((self.log.index(mark) + 1 for mark in wanted if mark != "0"), default=0)

    # -- moves ------------------------------------------------------------------------------------

    def publish(self) -> None:
        publisher = self.rng.choice((1, 2, 3))
        self.sequences[publisher] += 1
        self.log.append(f"{publisher}|{self.sequences[publisher]}|")

    def deliver(self) -> None:
        marks = self.log[self.at : self.at + self.rng.randint(1, 5)]
        self.at += len(marks)
        arrived = zip(marks, self.handle.log_batch(marks), strict=True)
        new = {mark: number for mark, number in arrived if number}
        assert not new.keys() & self.saved, "it has had its effect"
        assert not new.keys() & self.held.keys()
        self.held.update(new)

    def chosen(self) -> list[str]:
        return self.rng.sample(sorted(self.held), min(len(self.held), self.rng.randint(1, 3)))

    def save(self) -> None:
        if not (marks := self.chosen()):
            return
        with self.database:
            for mark in marks:
                self.store.save(Delivered("s", mark))
        self.saved.update(marks)
        self.known, self.earlier = set(self.saved), None
        if self.rng.random() < 0.05:
            self.restart()
        else:
            self.discard(marks)

    def discard(self, marks: list[str]) -> None:
        for mark in marks:
            self.handle.discard(self.held.pop(mark))
            self.discarded.add(mark)

    def roll_back(self) -> list[str]:
        marks = self.chosen()
        with suppress(RuntimeError), self.database:
            for mark in marks:
                self.store.save(Delivered("s", mark))
            raise RuntimeError
        return marks

    def give_up(self) -> None:
        self.discard(self.roll_back() if self.rng.random() < 0.6 else self.chosen())

    def lose(self) -> None:
        self.handle.link_lost(self.handle.tracker.next_number)
        self.enter()

    def trim(self) -> None:
        with self.database:
            self.store.trim("s")
        if self.handle.tracker.finished_point().items:
            self.known, self.earlier = set(self.saved), None

    def begin_anew(self) -> None:
        self.earlier = self.discarded if self.earlier is None else self.earlier
        self.saved, self.discarded, self.held = set(), set(), {}
        self.enter("0")

    def purge(self) -> None:
        self.store.purge("s")
        self.saved, self.known, self.discarded, self.held = set(), set(), set(), {}
        self.earlier = None
        self.enter()

    def restart(self) -> None:
        self.open()
        if self.earlier is not None:
            self.discarded, self.earlier = self.earlier, None
        self.saved = set(self.known)
        done = {mark for mark in self.log if self.store.is_discarded("s", mark)}
        assert self.known <= done, "it would have its effect again"
        assert done <= self.known | self.discarded, "it would never have its effect"


def test_each_message_has_its_effect_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactional, "_TRIM_EVERY", 3)
    monkeypatch.setattr(tracking, "_CONDENSE_EVERY", 6)
    for seed in range(SEEDS):
        world = World(seed)
        for _ in range(STEPS):
            (move,) = world.rng.choices([*MOVES], [*MOVES.values()])
            getattr(world, move)()
        world.restart()
        world.database.close()

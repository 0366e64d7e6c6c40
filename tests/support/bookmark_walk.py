"""A bookmark store at work, its process killed now and then; and what any crash has to leave of it.

The work is that of `bookmark_world`. Around each move the walk notes on a `RecordingDisk` which
discards the next process has to know of, and which it may know of.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, cast

from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.ring import RingBookmarkStore
from haclient_stores.bookmark_stores.tracked_store import TrackedBookmarkStore
from haclient_stores.disk.files import Disk
from support.bookmark_world import Message, World
from support.recording import (
    FIRST_BOOT,
    Crash,
    Event,
    Image,
    Killed,
    RecordingDisk,
    killed_at_each_event,
    kills,
    power_cuts,
)

__all__ = [
    "OPEN",
    "PATH",
    "BookmarkWalk",
    "State",
    "check",
    "check_next_process",
    "crashes",
    "walked",
]

PATH = Path("/disk/s.bm")
LIVE = "9|1|"
"""A message of another subscription that is never discarded."""

Opened: TypeAlias = TrackedBookmarkStore
OPEN: dict[str, Callable[[Disk], Opened]] = {
    "logged": lambda disk: cast("Opened", LoggedBookmarkStore(PATH, disk=disk)),
    "ring": lambda disk: cast("Opened", RingBookmarkStore(PATH, subscriptions=2, disk=disk)),
}


@dataclass(frozen=True, slots=True)
class State:
    """What counts at a moment.

    Attributes:
        log: The server's log; the first `synced` of it are on the other server too.
        acked: The subscription waits for persisted acks, so that it may go on there.
        promised: Whose discard the next process has to know of.
        begun: Whose discard it may know of.
        durable: A sync has just returned.
    """

    log: tuple[Message, ...]
    synced: int
    acked: bool
    promised: frozenset[Message]
    begun: frozenset[Message]
    durable: bool = False


class BookmarkWalk:
    """One subscription, and another one that holds a message."""

    def __init__(self, kind: str, disk: RecordingDisk, seed: int, *, acked: bool) -> None:
        self.kind = kind
        self.disk = disk
        self.rng = random.Random(seed)
        self.acked = acked
        self.world: World
        self.known: frozenset[Message] = frozenset()
        self.touched: frozenset[Message] = frozenset()

    def open(self) -> None:
        """A process opens the store and subscribes."""
        self.store = OPEN[self.kind](self.disk)
        self.store.open_for("me")
        other = self.store.subscription("other")
        other.begin(acked=False, start="9|0|")  # a record with a value of zero
        other.log(LIVE)
        log = self.store.subscription("s")
        if not hasattr(self, "world"):
            self.world = World(log, self.acked)
            self.world.enter()
        else:
            known = {m for m in self.world.log if log.is_discarded("{}|{}|".format(*m))}
            assert self.known <= known <= self.known | self.touched
            self.world.restart(log, known)

    def note(self, touched: Iterable[Message] = (), *, durable: bool = False) -> None:
        """Say what counts from here on."""
        world = self.world
        self.known = frozenset(world.prefix() if self.kind == "ring" else world.discarded)
        self.touched = frozenset(world.discarded).union(touched)
        self.disk.note(
            State(
                tuple(world.log),
                world.synced,
                self.acked,
                self.known,
                self.touched,
                durable=durable,
            )
        )

    def step(self) -> None:
        """Something, at random."""
        rng, world = self.rng, self.world
        moves: list[Callable[[], None]] = [
            self.receive,
            self.receive,
            self.discard,
            self.discard,
            self.discard,
            self.discard_up_to,
            world.lose_link,
            self.enter_anew,
            self.discard_kept,
            self.ack,
            world.complete,
            self.hear,
            self.sync,
            self.sync,
            self.store.prune,
        ]
        if rng.random() < 0.03:
            self.purge()
            return
        rng.choice(moves)()
        self.note()

    def receive(self) -> None:
        """Messages are published and arrive, and some are handed out."""
        for _ in range(self.rng.randint(0, 4)):
            self.world.publish(self.rng.randint(1, 2), self.rng.randint(1, 2))
        self.note()
        self.world.deliver(self.rng.randint(1, 5))
        self.world.hand_out(self.rng.randint(0, 5))

    def discard(self) -> None:
        """One or two of those that are held."""
        for _ in range(self.rng.randint(1, 2)):
            self.note(self.world.hands.values())
            self.world.discard(self.rng.randrange(20))

    def discard_up_to(self) -> None:
        """All up to one of those that are held."""
        self.note(self.world.hands.values())
        self.world.discard_up_to(self.rng.randrange(20))

    def enter_anew(self) -> None:
        """The id is entered again while a handler still processes messages."""
        self.world.enter_anew(self.rng.randrange(20))

    def discard_kept(self) -> None:
        """One that was kept beyond its subscription."""
        self.note(self.world.kept.values())
        self.world.discard_kept(self.rng.randrange(20))

    def ack(self) -> None:
        """Something has reached the other server, and this one says so."""
        world = self.world
        world.synced = min(len(world.log), world.synced + self.rng.randint(1, 4))
        self.note()
        if self.acked:
            world.ack(self.rng.randrange(60))

    def hear(self) -> None:
        """The server has sent all that it had."""
        self.world.subscription.caught_up(1000 + len(self.world.log))

    def sync(self) -> None:
        """Everything reaches the disk."""
        self.store.sync()
        self.note(durable=True)

    def purge(self) -> None:
        """Everything is forgotten, and the subscription entered from the start."""
        world, before = self.world, frozenset(self.world.discarded)
        world.forget()
        self.note(before)
        self.store.purge("s")
        self.note()
        world.enter()

    def killed_while(self, act: Callable[[], None]) -> None:
        """The process is killed within this or just after it, and the next one goes on."""
        self.disk.kill_after(self.rng.randint(0, self.rng.choice([8, 40])))
        with contextlib.suppress(Killed):
            act()
        self.disk.restart()
        self.open()
        self.note()


def walked(kind: str, seed: int, *, steps: int, kill_every: int = 0) -> list[Event]:
    """Everything that can happen to a subscription, at random; the store is closed in the end."""
    events: list[Event] = []
    walk = BookmarkWalk(kind, RecordingDisk(events), seed, acked=bool(seed % 2))
    if kill_every:
        walk.killed_while(walk.open)
    else:
        walk.open()
        walk.note()
    for number in range(1, steps + 1):
        if kill_every and number % kill_every == 0:
            walk.killed_while(walk.step)
        else:
            walk.step()
    walk.store.close()
    walk.note(durable=True)
    return events


def counting(crash: Crash) -> tuple[State, frozenset[Message], frozenset[Message]]:
    """What was noted last, what has to be known, and what may be."""
    states: list[State] = list(crash.notes) or [State((), 0, False, frozenset(), frozenset())]  # type: ignore[arg-type]  # as the walk makes them
    last = states[-1]
    if crash.boot == FIRST_BOOT:
        return last, last.promised, last.begun
    synced = max((at for at, state in enumerate(states) if state.durable), default=-1)
    if synced < 0:
        return last, frozenset(), frozenset().union(*(state.begun for state in states))
    promised, since = states[synced].promised, states[synced:]
    for state in since:
        promised &= state.promised  # which a purge in between, or half of one, takes away
    return last, promised, frozenset().union(*(state.begun for state in since))


def check(kind: str, crash: Crash) -> None:
    """Nothing promised is missing, nothing is invented, nothing undiscarded is skipped."""
    last, promised, begun = counting(crash)
    store = OPEN[kind](crash.disk())
    log = store.subscription("s")
    point = log.recovery_point()
    start = World.start_of(point, list(last.log))
    assert begun.issuperset(last.log[:start]), "skips what nobody has discarded"
    if last.acked and point.items:
        there = list(last.log[: last.synced])
        assert begun.issuperset(there[: World.start_of(point, there)]), "skips on the other server"
    log.begin(acked=False, start=None)
    names = {message: "{}|{}|".format(*message) for message in last.log}
    numbers = log.log_batch([names[message] for message in last.log[start:]])
    again = {message for number, message in zip(numbers, last.log[start:], strict=True) if number}
    known = set(last.log) - again
    assert promised <= known, f"lost {promised - known}"
    assert known <= begun, f"invented {known - begun}"
    assert "other" not in store.subscriptions or store.log("other", LIVE), "lost what is live"
    for number in numbers:
        log.discard(number)
    assert log.undiscarded_count == 0
    store.close()


def crashes(events: list[Event], *, seed: int = 0, base: Image | None = None) -> Iterator[Crash]:
    """Every kill and every stop of power."""
    yield from kills(events, base=base)
    yield from power_cuts(events, seed=seed, base=base)


def check_next_process(kind: str) -> Iterator[None]:
    """What one process left in the page cache, the file's name too, is synced by the next.

    The first one is killed after its first event, then after its second, and so on.
    """

    def work(disk: RecordingDisk) -> None:
        store = OPEN[kind](disk)
        store.log("s", "1|1|")
        store.sync()
        store.prune()

    for disk, events in killed_at_each_event(work):
        store = OPEN[kind](disk)
        store.discard("s", store.log("s", "1|1|"))
        store.sync()
        for crash in power_cuts(events, after=len(events)):
            again = OPEN[kind](crash.disk())
            assert again.is_discarded("s", "1|1|")
            again.close()
        yield

"""A publish store at work, its process killed now and then; and what any crash has to leave of it.

The walk notes on a `RecordingDisk` how far it is. `crashes` are all kinds of crash on the way, each
with its check: it opens the store on what is left and compares that with what was promised.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from haclient_stores.errors import StoreFull
from haclient_stores.publish_stores.publish_log import PublishLog
from support.frames import frame_of, put, take_all
from support.publish_model import KINDS, PublishModel
from support.recording import (
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
    "Check",
    "PublishWalk",
    "check_next_process",
    "check_power",
    "crashes",
    "found_in",
    "walked",
]

_SIZES = [0, 30, 5000, 9000, 14_000]
_MOVES = ["publish"] * 8 + ["send", "send", "ack", "ack", "sync", "log on"]


@dataclass
class PublishWalk:
    """What a store did.

    Attributes:
        kind: Which store it is.
        states: The model after each step; the first is before all.
        synced: Which step was the last that a sync covers, after each step.
        ever: All messages that were ever stored.
    """

    kind: str
    disk: RecordingDisk
    rng: random.Random
    states: list[PublishModel] = field(default_factory=lambda: [PublishModel()])
    synced: list[int] = field(default_factory=lambda: [0])
    ever: set[tuple[int, bytes]] = field(default_factory=set[tuple[int, bytes]])

    def open(self) -> None:
        """A process opens the store."""
        self.store = KINDS[self.kind].make(self.disk)

    def expect(self, model: PublishModel) -> None:
        """A step begins that leads to this."""
        self.states.append(model)
        self.ever |= model.waiting
        self.synced.append(self.synced[-1])

    def done(self, *, synced: bool = False) -> None:
        """The step is done."""
        if synced:
            self.synced[-1] = len(self.states) - 1
        self.disk.note(len(self.states) - 1)

    def first_logon(self) -> None:
        """Number from the clock."""
        self.expect(self.states[-1].logged_on(0, 0, 1000))
        self.store.reconcile(seen=0, persisted=0, clock_us=1000)
        self.done()

    def step(self) -> None:
        """Something, at random."""
        rng, store, model = self.rng, self.store, self.states[-1]
        match rng.choice(_MOVES):
            case "publish":
                body = bytes([rng.randrange(1, 256)]) * rng.choice(_SIZES)
                self.expect(model.stored(store.last_sequence + 1, body))
                try:
                    put(store, body)
                except StoreFull:  # a ring
                    self.states[-1] = model
                self.done()
            case "send":
                take_all(store)
            case "ack":
                sequence = rng.choice(
                    [store.last_sequence, rng.randint(store.last_persisted, store.last_sequence)]
                )
                self.expect(model.acked(sequence))
                store.discard_up_to(sequence)
                self.done()
            case "log on":
                seen = store.last_sequence + rng.choice([0, 0, 50])
                self.expect(model.logged_on(seen, model.persisted, 5000))
                store.reconcile(seen=seen, persisted=store.last_persisted, clock_us=5000)
                store.rewind(store.last_persisted)
                self.done()
            case _:
                self.expect(model)
                store.sync()
                self.done(synced=True)

    def killed_while(self, act: Callable[[], None]) -> None:
        """The process is killed within this or just after it, and the next one goes on."""
        self.disk.kill_after(self.rng.randint(0, self.rng.choice([8, 40])))
        with contextlib.suppress(Killed):
            act()
        self.disk.restart()
        self.open()
        found = frozenset(found_in(self.store, self))
        self.expect(PublishModel(found, self.store.last_sequence, self.store.last_persisted))
        self.done()
        if not self.store.last_sequence:
            self.first_logon()

    def around(self, crash: Crash) -> tuple[PublishModel, PublishModel]:
        """The state before and after the step that the crash interrupted."""
        done = self.last_done(crash)
        return self.states[done], self.states[min(done + 1, len(self.states) - 1)]

    def last_done(self, crash: Crash) -> int:
        """The last step that was done."""
        return int(str(crash.notes[-1])) if crash.notes else 0

    def kept(self, crash: Crash) -> frozenset[tuple[int, bytes]]:
        """What a sync has covered and no ack."""
        before, after = self.around(crash)
        synced = self.states[self.synced[self.last_done(crash)]]
        return synced.waiting & before.waiting & after.waiting


def walked(
    kind: str, seed: int, *, steps: int, kill_every: int = 0
) -> tuple[PublishWalk, list[Event]]:
    """Publish, send, ack, log on and sync at random; the store is left open."""
    events: list[Event] = []
    walk = PublishWalk(kind, RecordingDisk(events), random.Random(seed))
    if kill_every:
        walk.killed_while(walk.open)
    else:
        walk.open()
        walk.first_logon()
    for number in range(1, steps + 1):
        if kill_every and number % kill_every == 0:
            walk.killed_while(walk.step)
        else:
            walk.step()
    return walk, events


def found_in(store: PublishLog, walk: PublishWalk) -> set[tuple[int, bytes]]:
    """The messages of a store, each of which must be one that was stored, as it was stored."""
    frames = list(store.replay())
    assert [sequence for sequence, _ in frames] == sorted({sequence for sequence, _ in frames})
    stored = {frame_of(sequence, body): (sequence, body) for sequence, body in walk.ever}
    assert all(frame in stored for _, frame in frames), "a message that nobody has stored"
    return {stored[frame] for _, frame in frames}


def check_kill(walk: PublishWalk, crash: Crash) -> None:
    """Nothing that was accepted is missing, nothing that was acknowledged is back."""
    before, after = walk.around(crash)
    store = KINDS[walk.kind].make(crash.disk())
    found = found_in(store, walk)
    assert found <= before.waiting | after.waiting, "what was acknowledged is back"
    assert walk.kept(crash) <= found, "what was synced is missing"
    missing = (before.waiting & after.waiting) - found
    if KINDS[walk.kind].lasting:
        assert not missing
    elif found and missing:  # what is lost of a hybrid store is an end of the backlog
        assert min(missing) > max(found)
    assert store.last_sequence >= min(before.last, after.last)
    assert before.persisted <= store.last_persisted <= after.persisted
    goes_on(store)


def check_power(walk: PublishWalk, crash: Crash) -> None:
    """Nothing that was synced is missing; what was acknowledged may come again."""
    store = KINDS[walk.kind].make(crash.disk())
    found = found_in(store, walk)
    assert walk.kept(crash) <= found, "what was synced is missing"
    assert store.last_sequence >= walk.states[walk.synced[walk.last_done(crash)]].last
    goes_on(store)


def goes_on(store: PublishLog) -> None:
    """What was opened again works."""
    kept = list(store.replay())
    try:
        number = put(store, b"new")
    except StoreFull:  # a ring
        assert len(kept) >= 3  # of its four segments one may be empty, numbered before a jump
    else:
        kept.append((number, frame_of(number, b"new")))
    assert list(store.replay()) == kept
    store.close()


Check: TypeAlias = Callable[[PublishWalk, Crash], None]


def crashes(events: list[Event], base: Image | None = None) -> Iterator[tuple[Crash, Check]]:
    """Every kill and every stop of power."""
    for crash in kills(events, base=base):
        yield crash, check_kill
    for crash in power_cuts(events, base=base):
        yield crash, check_power


def check_next_process(kind: str) -> Iterator[None]:
    """What one process left in the page cache, names and numbers too, is synced by the next.

    The first one is killed after its first event, then after its second, and so on.
    """

    def work(disk: RecordingDisk) -> None:
        store = KINDS[kind].make(disk)
        store.reconcile(seen=0, persisted=0, clock_us=1000)
        put(store)
        store.reconcile(seen=2000, persisted=1000, clock_us=1000)

    for disk, events in killed_at_each_event(work):
        store = KINDS[kind].make(disk)
        number = put(store)
        store.sync()
        for crash in power_cuts(events, after=len(events)):
            again = KINDS[kind].make(crash.disk())
            assert (number, frame_of(number, b"body")) in set(again.replay())
            assert again.last_sequence >= number
            again.close()
        yield

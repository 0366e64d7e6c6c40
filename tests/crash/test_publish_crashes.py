"""A crash at any point, for every publish store with files (PS21, PS22).

A store does a random walk on a disk that records every write. Then it is opened again on everything
that a killed process or a stop of power could have left, and compared with what it had promised.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

from haclient_stores.publish_log import PublishLog
from support.frames import frame_of, put, take_all
from support.publish_model import KINDS, PublishModel
from support.recording import (
    THIRD_BOOT,
    Crash,
    Event,
    Image,
    RecordingDisk,
    failing_sync,
    kills,
    power_cuts,
)

pytestmark = [pytest.mark.row("PS11", "PS13", "PS21", "PS22")]

FILES = ["file", "ring", "hybrid"]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Torn tails are what this is about: their warnings are tested elsewhere."""
    caplog.set_level(logging.ERROR)


@dataclass
class Walk:
    """What a store did.

    Attributes:
        states: The model after each step; the first is before all.
        synced: Which step was the last that a sync covers, after each step.
    """

    states: list[PublishModel]
    synced: list[int] = field(default_factory=lambda: [0])
    ever: set[tuple[int, bytes]] = field(default_factory=set)

    def step(self, disk: RecordingDisk, model: PublishModel, *, synced: bool = False) -> None:
        disk.note(len(self.states))
        self.states.append(model)
        self.ever |= model.waiting
        self.synced.append(len(self.states) - 1 if synced else self.synced[-1])

    def before(self, crash: Crash) -> int:
        """The last step that was done."""
        return int(str(crash.notes[-1])) if crash.notes else 0

    def around(self, crash: Crash) -> tuple[PublishModel, PublishModel]:
        """The state before and after the step that the crash interrupted."""
        done = self.before(crash)
        return self.states[done], self.states[min(done + 1, len(self.states) - 1)]


def walk(
    kind: str, disk: RecordingDisk, seed: int, *, steps: int, start: PublishModel | None = None
) -> Walk:
    """Publish, send, ack, log on and sync at random; the store is left open."""
    rng = random.Random(seed)
    store = KINDS[kind].make(disk)
    model = start or PublishModel()
    done = Walk([model])
    done.ever |= model.waiting
    if start is None:
        store.reconcile(seen=0, persisted=0, clock_us=1000)
        model = model.logged_on(0, 0, 1000)
        done.step(disk, model)
    for _ in range(steps):
        match rng.choice(["publish"] * 8 + ["send", "send", "ack", "ack", "sync", "log on"]):
            case "publish":
                body = bytes([rng.randrange(1, 256)]) * rng.choice([0, 30, 5000, 9000, 14_000])
                model = model.stored(put(store, body), body)
            case "send":
                take_all(store)
            case "ack":
                sequence = rng.choice([store.last_sequence, rng.randint(*ackable(store))])
                store.discard_up_to(sequence)
                model = model.acked(sequence)
            case "log on":
                seen = store.last_sequence + rng.choice([0, 0, 50])
                store.reconcile(seen=seen, persisted=store.last_persisted, clock_us=5000)
                store.rewind(store.last_persisted)
                model = model.logged_on(seen, model.persisted, 5000)
            case _:
                store.sync()
                done.step(disk, model, synced=True)
                continue
        done.step(disk, model)
    return done


def ackable(store: PublishLog) -> tuple[int, int]:
    return store.last_persisted, store.last_sequence


def found_in(store: PublishLog, done: Walk) -> set[tuple[int, bytes]]:
    """The messages of a store, each of which must be one that was stored, as it was stored."""
    frames = list(store.replay())
    assert [sequence for sequence, _ in frames] == sorted({sequence for sequence, _ in frames})
    stored = {frame_of(sequence, body): (sequence, body) for sequence, body in done.ever}
    assert all(frame in stored for _, frame in frames), "a message that nobody has stored"
    return {stored[frame] for _, frame in frames}


def check_kill(kind: str, done: Walk, crash: Crash) -> None:
    """Nothing that was accepted is missing, nothing that was acknowledged is back."""
    before, after = done.around(crash)
    store = KINDS[kind].make(crash.disk())
    found = found_in(store, done)
    assert found <= before.waiting | after.waiting
    missing = (before.waiting & after.waiting) - found
    if KINDS[kind].lasting:
        assert not missing
    elif found:  # what is lost of a hybrid store is an end of the backlog
        assert not missing or min(missing) > max(found)
    assert store.last_sequence >= min(before.last, after.last)
    assert before.persisted <= store.last_persisted <= after.persisted
    goes_on(store)


def check_power(kind: str, done: Walk, crash: Crash) -> None:
    """Nothing that was synced is missing; what was acknowledged may come again."""
    before, after = done.around(crash)
    synced = done.states[done.synced[done.before(crash)]]
    store = KINDS[kind].make(crash.disk())
    found = found_in(store, done)
    assert synced.waiting & before.waiting & after.waiting <= found
    assert store.last_sequence >= synced.last
    goes_on(store)


def goes_on(store: PublishLog) -> None:
    """What was opened again works."""
    kept = list(store.replay())
    number = put(store, b"new")
    assert list(store.replay()) == [*kept, (number, frame_of(number, b"new"))]
    store.close()


Check = Callable[[str, Walk, Crash], None]


def crashes(events: list[Event], base: Image | None = None) -> Iterator[tuple[Crash, Check]]:
    for crash in kills(events, base=base):
        yield crash, check_kill
    for crash in power_cuts(events, base=base):
        yield crash, check_power


@pytest.mark.parametrize("kind", FILES)
def test_whatever_a_crash_leaves_has_what_was_promised_and_nothing_else(
    kind: str, request: pytest.FixtureRequest
) -> None:
    walks = 1 + request.config.getoption("--store-steps") // 2000
    count = 0
    for seed in range(walks):
        events: list[Event] = []
        done = walk(kind, RecordingDisk(events), seed, steps=40)
        for crash, check in crashes(events):
            check(kind, done, crash)
            count += 1
    assert count > 200 * walks


@pytest.mark.row("PS20")
@pytest.mark.parametrize("end", ["goes on", "is closed", "is killed"])
@pytest.mark.parametrize("number", [0, 1])  # a segment, the control page
@pytest.mark.parametrize("kind", FILES)
def test_what_a_failed_sync_has_lost_is_written_again_by_the_next(
    kind: str, number: int, end: str
) -> None:
    """An error of the disk is reported once; then the kernel leaves these pages out."""
    events: list[Event] = []
    disk = RecordingDisk(events)
    make = KINDS[kind].make
    store = make(disk)
    store.reconcile(seen=0, persisted=0, clock_us=1000)
    first = put(store, bytes(9000))
    with failing_sync(disk, number):
        (store.close if end == "is closed" else store.sync)()
    if end != "goes on":
        disk.release_locks()
        store = make(disk)
    last = put(store, bytes(5000))
    store.sync()
    disk.note("synced")
    for crash in power_cuts(events):
        if crash.notes:
            again = make(crash.disk())
            assert [number for number, _ in again.replay()] == [first, last]
            assert again.last_sequence >= store.last_sequence
            again.close()


@pytest.mark.row("PS20")
@pytest.mark.parametrize("kind", FILES)
def test_a_sync_vouches_for_the_names_that_a_killed_process_has_made(kind: str) -> None:
    events: list[Event] = []
    disk = RecordingDisk(events)
    store = KINDS[kind].make(disk)
    store.reconcile(seen=0, persisted=0, clock_us=1000)
    put(store)
    store.checkpoint()  # of a hybrid store nothing else would be left
    disk.release_locks()
    again = KINDS[kind].make(disk)
    kept = list(again.replay())
    again.sync()
    disk.note("synced")
    assert len(kept) == 1
    for crash in power_cuts(events):
        if crash.notes:
            found = KINDS[kind].make(crash.disk())
            assert list(found.replay()) == kept
            found.close()


@pytest.mark.parametrize("kind", FILES)
def test_a_crash_while_the_store_recovers_from_a_crash_leaves_the_same(kind: str) -> None:
    events: list[Event] = []
    done = walk(kind, RecordingDisk(events), 7, steps=25)
    chosen = random.Random(8).sample(list(crashes(events)), 12)
    for crash, _ in chosen:
        again: list[Event] = []
        opened = KINDS[kind].make(crash.disk(again))
        found = found_in(opened, done)
        for second in kills(again, base=crash.image, boot=crash.boot):
            store = KINDS[kind].make(second.disk())
            assert found_in(store, done) == found
            store.close()
        for second in power_cuts(again, base=crash.image, boot=THIRD_BOOT):
            check_power(kind, done, replace(second, notes=crash.notes))
        opened.close()

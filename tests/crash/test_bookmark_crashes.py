"""What any crash leaves of a bookmark store: nothing promised is missing, nothing is invented."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TypeAlias

import pytest

from haclient_stores.files import Disk
from haclient_stores.interfaces import SubscriptionLog
from haclient_stores.logged_bookmark import LoggedBookmarkStore
from haclient_stores.ring_bookmark import RingBookmarkStore
from haclient_stores.tracked_store import Tracked, TrackedBookmarkStore
from support.recording import FIRST_BOOT, Crash, Event, RecordingDisk, kills, power_cuts

PATH = Path("/disk/s.bm")
MESSAGES = [f"{1 + n % 2}|{n}|" for n in range(1, 13)]

Store: TypeAlias = LoggedBookmarkStore | RingBookmarkStore
Opened: TypeAlias = TrackedBookmarkStore[Tracked]

pytestmark = [pytest.mark.row("BS14", "BS15", "BS16"), pytest.mark.timeout(600)]


def logged(disk: Disk) -> LoggedBookmarkStore:
    return LoggedBookmarkStore(PATH, disk=disk)


def ring(disk: Disk) -> RingBookmarkStore:
    return RingBookmarkStore(PATH, subscriptions=2, disk=disk)


BOTH = pytest.mark.parametrize("opened", [logged, ring])


def discard(disk: RecordingDisk, log: SubscriptionLog, number: int, message: str) -> None:
    disk.note(("asked", message))
    log.discard(number)
    disk.note(("done", message))


def work(
    opened: Callable[[Disk], Store],
    disk: RecordingDisk,
    seed: int,
    messages: Sequence[str] = MESSAGES,
) -> None:
    """A process that does everything once, in a seeded order, on two subscriptions."""
    rng = random.Random(seed)
    store = opened(disk)
    store.open_for("me")
    log = store.subscription("s")
    log.begin(acked=False, start=None)
    store.subscription("other").log("9|1|")
    hands: list[tuple[int, str]] = []
    waiting = list(messages)
    while waiting or hands:
        if waiting and rng.random() < 0.5:
            batch = [waiting.pop(0) for _ in range(min(len(waiting), rng.randint(1, 4)))]
            hands += zip(log.log_batch(batch), batch, strict=True)
        elif hands:
            discard(disk, log, *hands.pop(rng.randrange(min(2, len(hands)))))
        if rng.random() < 0.15:
            store.sync()
            disk.note(("synced", ""))
        if rng.random() < 0.15:
            store.prune()
    store.sync()
    disk.note(("synced", ""))
    store.prune()
    store.close()


def promised_and_begun(crash: Crash) -> tuple[set[str], set[str]]:
    """Messages whose discard must be known, and those whose discard may be known."""
    notes: list[tuple[str, str]] = list(crash.notes)  # type: ignore[arg-type]  # as `work` makes them
    begun = {message for what, message in notes if what == "asked"}
    if crash.boot != FIRST_BOOT:  # power was lost
        last = max((at for at, (what, _) in enumerate(notes) if what == "synced"), default=0)
        notes = notes[:last]
    return {message for what, message in notes if what == "done"}, begun


def check(opened: Callable[[Disk], Store], crash: Crash) -> None:
    promised, begun = promised_and_begun(crash)
    if opened is ring:  # which promises no more than the front
        promised = set(takewhile(promised.__contains__, MESSAGES))
    store = opened(crash.disk())
    log = store.subscription("s")
    known = {message for message in MESSAGES if log.is_discarded(message)}
    assert promised <= known, f"lost {promised - known} after {crash.at} events"
    assert known <= begun, f"invented {known - begun} after {crash.at} events"
    for item in log.recovery_point():
        skipped = set(MESSAGES[: MESSAGES.index(str(item)) + 1])
        assert skipped <= begun, f"skips {skipped - begun} after {crash.at} events"
    numbers = log.log_batch(MESSAGES)
    assert {m for n, m in zip(numbers, MESSAGES, strict=True) if not n} == known
    store.close()


def check_all(opened: Callable[[Disk], Store], crashes: Iterable[Crash], *, at_least: int) -> None:
    count = 0
    for crash in crashes:
        check(opened, crash)
        count += 1
    assert count >= at_least


@BOTH
@pytest.mark.parametrize("seed", range(3))
def test_a_process_that_is_killed_at_any_write_loses_no_discard(
    opened: Callable[[Disk], Store], seed: int
) -> None:
    events: list[Event] = []
    work(opened, RecordingDisk(events), seed)
    check_all(opened, kills(events), at_least=60)


@BOTH
def test_a_power_cut_at_any_write_keeps_what_was_synced(
    opened: Callable[[Disk], Store], request: pytest.FixtureRequest
) -> None:
    long = bool(request.config.getoption("--kills"))
    for seed in range(5 if long else 1):
        events: list[Event] = []
        work(opened, RecordingDisk(events), seed, messages=MESSAGES if long else MESSAGES[:4])
        check_all(opened, power_cuts(events, seed=seed), at_least=30)


@BOTH
def test_a_crash_of_the_process_that_recovers_from_a_crash_loses_nothing_either(
    opened: Callable[[Disk], Store],
) -> None:
    events: list[Event] = []
    work(opened, RecordingDisk(events), 5)
    for crash in list(kills(events))[20::25]:
        later: list[Event] = []
        store = opened(crash.disk(later))
        store.prune()
        store.close()
        for second in kills(later, base=crash.image, boot=crash.boot):
            check(opened, Crash(second.image, crash.notes, second.at, second.boot))

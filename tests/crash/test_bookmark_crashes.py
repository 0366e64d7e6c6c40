"""What any crash leaves of a bookmark store: nothing promised is missing, nothing is invented."""

from __future__ import annotations

import contextlib
import itertools
import logging

import pytest

from haclient_stores import record_file
from support.bookmark_walk import OPEN, check, crashes, walked
from support.recording import Crash, Event, Killed, RecordingDisk, kills, power_cuts

pytestmark = [pytest.mark.row("BS14", "BS15", "BS16"), pytest.mark.timeout(7200)]

STEPS = 12
LONG_STEPS = 60


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A log that grows by a block at a time: less to copy for each crash. Torn tails are usual."""
    monkeypatch.setattr(record_file, "GROW_BYTES", record_file.BLOCK_BYTES)
    caplog.set_level(logging.ERROR)


@pytest.mark.parametrize("kill_every", [0, 3])
@pytest.mark.parametrize("kind", OPEN)
def test_whatever_a_crash_leaves_has_what_was_promised_and_nothing_else(
    kind: str, kill_every: int, request: pytest.FixtureRequest
) -> None:
    """Once with one process, and once with a killed one after the other on the same disk."""
    wanted: int = request.config.getoption("--store-steps")
    plans = [(seed, LONG_STEPS) for seed in range(wanted // 2000)] or [(0, STEPS), (1, STEPS)]
    for seed, steps in plans:
        count = 0
        for crash in crashes(walked(kind, seed, steps=steps, kill_every=kill_every), seed=seed):
            check(kind, crash)
            count += 1
        assert count > 60


@pytest.mark.parametrize("kind", OPEN)
def test_what_a_killed_process_left_in_the_page_cache_is_synced_by_the_next(kind: str) -> None:
    """The file's name too, wherever the first process was killed: in making it, or in a prune."""
    for count in itertools.count():
        events: list[Event] = []
        disk = RecordingDisk(events)
        disk.kill_after(count)
        finished = False
        with contextlib.suppress(Killed):
            store = OPEN[kind](disk)
            store.log("s", "1|1|")
            store.sync()
            store.prune()
            finished = True
        disk.restart()
        store = OPEN[kind](disk)
        store.discard("s", store.log("s", "1|1|"))
        store.sync()
        for crash in power_cuts(events, after=len(events)):
            again = OPEN[kind](crash.disk())
            assert again.is_discarded("s", "1|1|")
            again.close()
        if finished:
            assert count > 10
            return


@pytest.mark.parametrize("kind", OPEN)
def test_a_crash_of_the_process_that_recovers_from_a_crash_loses_nothing_either(
    kind: str, request: pytest.FixtureRequest
) -> None:
    events = walked(kind, 5, steps=40)
    every = 5 if request.config.getoption("--store-steps") else 60
    for crash in list(kills(events))[20::every]:
        later: list[Event] = []
        store = OPEN[kind](crash.disk(later))
        store.prune()
        store.close()
        for second in kills(later, base=crash.image, boot=crash.boot):
            check(kind, Crash(second.image, crash.notes, second.at, second.boot))

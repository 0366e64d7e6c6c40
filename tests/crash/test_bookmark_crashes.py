"""What any crash leaves of a bookmark store: nothing promised is missing, nothing is invented."""

from __future__ import annotations

import logging

import pytest

from haclient_stores.bookmark_stores import record_file
from support.bookmark_walk import OPEN, check, check_next_process, crashes, walked
from support.recording import Crash, Event, kills

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
    plans = [(seed, LONG_STEPS) for seed in range(wanted // 2000)] or [(kill_every % 2, STEPS)]
    for seed, steps in plans:
        count = 0
        for crash in crashes(walked(kind, seed, steps=steps, kill_every=kill_every), seed=seed):
            check(kind, crash)
            count += 1
        assert count > 60


@pytest.mark.parametrize("kind", OPEN)
def test_what_a_killed_process_left_in_the_page_cache_is_synced_by_the_next(kind: str) -> None:
    assert sum(1 for _ in check_next_process(kind)) > 10


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

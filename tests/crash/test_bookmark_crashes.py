"""What any crash leaves of a bookmark store: nothing promised is missing, nothing is invented."""

from __future__ import annotations

import itertools

import pytest

from crash.conftest import walks
from support.bookmark_walk import OPEN, check, check_next_process, crashes, walked
from support.recording import Crash, Event, kills

pytestmark = [
    pytest.mark.usefixtures("small_logs"),
    pytest.mark.row("BS14", "BS15", "BS16"),
    pytest.mark.timeout(7200),
]

STEPS = 12


@pytest.mark.parametrize("kill_every", [0, 3])
@pytest.mark.parametrize("kind", OPEN)
def test_whatever_a_crash_leaves_has_what_was_promised_and_nothing_else(
    kind: str, kill_every: int, every: int, request: pytest.FixtureRequest
) -> None:
    """Once with one process, and once with a killed one after the other on the same disk."""
    for seed, steps in walks(request.config, seed=kill_every % 2, steps=STEPS):
        count = 0
        events = walked(kind, seed, steps=steps, kill_every=kill_every)
        for crash in itertools.islice(crashes(events, seed=seed), 0, None, every):
            check(kind, crash)
            count += 1
        assert count > 60 // every


@pytest.mark.parametrize("kind", OPEN)
def test_what_a_killed_process_left_in_the_page_cache_is_synced_by_the_next(kind: str) -> None:
    assert sum(1 for _ in check_next_process(kind)) > 10


@pytest.mark.parametrize("kind", OPEN)
def test_a_crash_of_the_process_that_recovers_from_a_crash_loses_nothing_either(
    kind: str, every: int, request: pytest.FixtureRequest
) -> None:
    events = walked(kind, 5, steps=40)
    step = 5 if request.config.getoption("--store-steps") else 60 * every
    chosen = list(kills(events))[20::step]
    assert chosen
    for crash in chosen:
        later: list[Event] = []
        store = OPEN[kind](crash.disk(later))
        store.prune()
        store.close()
        for second in kills(later, base=crash.image, boot=crash.boot):
            check(kind, Crash(second.image, crash.notes, second.at, second.boot))

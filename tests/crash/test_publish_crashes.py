"""A crash at any point, for every publish store with files (PS21, PS22).

A store does a random walk on a disk that records every write. Then it is opened again on everything
that a killed process or a stop of power could have left, and compared with what it had promised.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from crash.conftest import walks
from support.publish_model import KINDS
from support.publish_walk import check_next_process, check_power, crashes, found_in, walked
from support.recording import THIRD_BOOT, Event, kills, power_cuts

pytestmark = [
    pytest.mark.usefixtures("quiet"),
    pytest.mark.row("PS11", "PS13", "PS21", "PS22"),
    pytest.mark.timeout(7200),
]

STEPS = {"file": 12, "ring": 12, "hybrid": 30}  # until each has used a segment a second time


@pytest.mark.parametrize("kill_every", [0, 5])
@pytest.mark.parametrize("kind", STEPS)
def test_whatever_a_crash_leaves_has_what_was_promised_and_nothing_else(
    kind: str, kill_every: int, every: int, request: pytest.FixtureRequest
) -> None:
    """Once with one process, and once with a killed one after the other on the same disk."""
    for seed, steps in walks(request.config, seed=0, steps=STEPS[kind]):
        walk, events = walked(kind, seed, steps=steps, kill_every=kill_every)
        count = 0
        for crash, check in itertools.islice(crashes(events), 0, None, every):
            check(walk, crash)
            count += 1
        assert count > 200 // every


@pytest.mark.parametrize("kind", STEPS)
def test_what_a_killed_process_left_in_the_page_cache_is_synced_by_the_next(kind: str) -> None:
    assert sum(1 for _ in check_next_process(kind)) > 10


@pytest.mark.parametrize("kind", STEPS)
def test_a_crash_while_the_store_recovers_from_a_crash_leaves_the_same(
    kind: str, every: int, request: pytest.FixtureRequest
) -> None:
    walk, events = walked(kind, 7, steps=25)
    long = bool(request.config.getoption("--store-steps"))
    chosen = random.Random(8).sample(list(crashes(events)), 100 if long else 6 // every)
    for crash, _ in chosen:
        again: list[Event] = []
        opened = KINDS[kind].make(crash.disk(again))
        found = found_in(opened, walk)
        for second in kills(again, base=crash.image, boot=crash.boot):
            store = KINDS[kind].make(second.disk())
            assert found_in(store, walk) == found
            store.close()
        for second in power_cuts(again, base=crash.image, boot=THIRD_BOOT):
            check_power(walk, replace(second, notes=crash.notes))
        opened.close()

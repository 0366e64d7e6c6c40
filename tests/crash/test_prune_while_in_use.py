"""A bookmark log that is pruned while it is used and synced, and a crash at any moment of that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from haclient_stores.bookmark_stores import record_file
from support.prune_in_use import check, crashes
from support.recording import Crash, Event, kills, power_cuts

pytestmark = [pytest.mark.row("BS14", "BS16"), pytest.mark.timeout(3600)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(record_file, "GROW_BYTES", record_file.BLOCK_BYTES)
    caplog.set_level(logging.ERROR)


@pytest.mark.parametrize(("kind", "sample"), [(kills, 5), (power_cuts, 24)])
def test_nothing_synced_or_discarded_while_a_log_is_pruned_is_lost(
    kind: Callable[[list[Event]], Iterator[Crash]],
    sample: int,
    request: pytest.FixtureRequest,
) -> None:
    every = 1 if request.config.getoption("--store-steps") else sample
    count = 0
    for crash in crashes(kind, every=every):
        check(crash)
        count += 1
    assert count > 100

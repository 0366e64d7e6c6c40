"""A bookmark log that is pruned while it is used and synced, and a crash at any moment of that."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.prune_in_use import check, crashes
from support.recording import Crash, Event, kills, power_cuts

pytestmark = [
    pytest.mark.usefixtures("small_logs"),
    pytest.mark.row("BS14", "BS16"),
    pytest.mark.timeout(3600),
]


@pytest.mark.parametrize(("kind", "sample"), [(kills, 5), (power_cuts, 24)])
def test_nothing_synced_or_discarded_while_a_log_is_pruned_is_lost(
    kind: Callable[[list[Event]], Iterator[Crash]],
    sample: int,
    every: int,
    request: pytest.FixtureRequest,
) -> None:
    step = 1 if request.config.getoption("--store-steps") else sample * every
    count = 0
    for crash in crashes(kind, every=step):
        check(crash)
        count += 1
    assert count > 100 // every

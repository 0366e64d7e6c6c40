from __future__ import annotations

from typing import Any

import pytest

from haclient_stores.bookmark_stores.prune_policy import (
    DEFAULT_PRUNE_POLICY,
    LogUsage,
    PrunePolicy,
    PruneSchedule,
)
from haclient_stores.errors import UsageError

pytestmark = pytest.mark.row("BS17")

MIB = 1 << 20


def schedule(policy: PrunePolicy) -> PruneSchedule:
    made = PruneSchedule(policy, MIB, LogUsage(4096, MIB, 0))
    made.pruned(LogUsage(4096, MIB, 0))
    return made


def test_every_so_many_messages() -> None:
    due = schedule(PrunePolicy(every_messages=1000))
    assert not due.due(LogUsage(40_000, MIB, 999), 0.0)
    assert due.due(LogUsage(40_000, MIB, 1000), 0.0)
    due.pruned(LogUsage(5000, MIB, 1000))
    assert not due.due(LogUsage(45_000, MIB, 1999), 0.0)
    assert due.due(LogUsage(45_000, MIB, 2000), 0.0)


def test_over_a_size_but_not_again_and_again_when_that_much_is_live() -> None:
    due = schedule(PrunePolicy(over_bytes=10 * MIB))
    assert not due.due(LogUsage(10 * MIB - 16, 16 * MIB, 1), 0.0)
    assert due.due(LogUsage(10 * MIB, 16 * MIB, 1), 0.0)
    due.pruned(LogUsage(20 * MIB, 20 * MIB, 1))
    assert not due.due(LogUsage(39 * MIB, 40 * MIB, 1), 0.0)
    assert due.due(LogUsage(40 * MIB, 40 * MIB, 1), 0.0)


def test_after_so_many_growths() -> None:
    due = schedule(PrunePolicy(growths=3))
    assert not due.due(LogUsage(3 * MIB, 3 * MIB, 1), 0.0)
    assert due.due(LogUsage(3 * MIB, 4 * MIB, 1), 0.0)


def test_when_nothing_has_happened_for_a_while_and_there_is_something_to_prune() -> None:
    due = schedule(PrunePolicy(idle_s=5.0))
    assert not due.due(LogUsage(9000, MIB, 1), 100.0)
    assert not due.due(LogUsage(9016, MIB, 1), 104.0)
    assert not due.due(LogUsage(9016, MIB, 1), 108.9)
    assert due.due(LogUsage(9016, MIB, 1), 109.0)
    due.pruned(LogUsage(4200, MIB, 1))
    assert not due.due(LogUsage(4200, MIB, 1), 999.0)


def test_on_exit_unless_nothing_was_written() -> None:
    due = schedule(PrunePolicy(on_exit=True))
    assert not due.on_exit(LogUsage(4300, MIB, 1))
    assert due.on_exit(LogUsage(40_000, MIB, 1))
    assert not due.due(LogUsage(40_000, MIB, 1), 1e9)
    assert not schedule(PrunePolicy()).on_exit(LogUsage(40_000, MIB, 1))


def test_what_an_earlier_process_has_left_counts_too() -> None:
    opened = PruneSchedule(PrunePolicy(on_exit=True), MIB, LogUsage(5 * MIB, 5 * MIB, 7))
    assert opened.on_exit(LogUsage(5 * MIB, 5 * MIB, 7))


@pytest.mark.parametrize("name", ["every_messages", "over_bytes", "growths", "idle_s"])
def test_a_limit_below_zero_is_refused(name: str) -> None:
    wrong: dict[str, Any] = {name: -1}
    with pytest.raises(UsageError, match=name):
        PrunePolicy(**wrong)


def test_when_most_of_it_is_dead_and_only_if_a_prune_gives_that_back() -> None:
    made = schedule(DEFAULT_PRUNE_POLICY)
    assert not made.due(LogUsage(7 * MIB, 7 * MIB, 200_000), now=0.0)  # too little
    assert made.due(LogUsage(9 * MIB, 9 * MIB, 200_000), now=0.0)
    open_messages = 9 * MIB // 16  # nobody discards: all of it is needed
    assert not made.due(LogUsage(9 * MIB, 9 * MIB, open_messages, open_messages), now=0.0)
    half = LogUsage(40 * MIB, 40 * MIB, 10**6, 20 * MIB // 64)  # not more than half
    assert not made.due(half, now=0.0)
    made.pruned(LogUsage(30 * MIB, 30 * MIB, 10**6))  # it was needed after all
    assert not made.due(LogUsage(59 * MIB, 59 * MIB, 10**6), now=0.0)
    assert made.due(LogUsage(60 * MIB, 60 * MIB, 10**6), now=0.0)


def test_0_dead_bytes_are_no_condition() -> None:
    made = schedule(PrunePolicy(dead_bytes=0))
    assert not made.due(LogUsage(900 * MIB, 900 * MIB, 10**6), now=0.0)

"""Pages of an unsynced tail that a loss of power has taken, in every log; and what follows them.

A tail of several pages is written and not synced, and some of its pages get to the disk. What the
next process finds is a beginning of what was written, all that was synced included. What it appends
stands behind that: no later loss of power brings back what was cut.
"""

from __future__ import annotations

import itertools

import pytest

from support.unsynced_tail import LOGS, check_appended, check_beginning, cut_while_syncing

pytestmark = [
    pytest.mark.usefixtures("small_logs"),
    pytest.mark.row("PS21", "BS14", "TL1", "TL16"),
    pytest.mark.timeout(3600),
]


@pytest.mark.parametrize("kind", LOGS)
def test_whichever_pages_of_a_tail_are_lost_a_beginning_of_it_is_found(kind: str) -> None:
    longer = [check_beginning(kind, *each) for each in cut_while_syncing(kind)]
    assert any(longer), "some tails were on the disk"
    assert not all(longer)


@pytest.mark.parametrize("kind", LOGS)
def test_what_was_cut_never_comes_back_behind_what_is_appended(
    kind: str, every: int, request: pytest.FixtureRequest
) -> None:
    step = 1 if request.config.getoption("--store-steps") else 7 * every
    cuts = itertools.islice(cut_while_syncing(kind), 0, None, step)
    assert sum(1 for each in cuts for _ in check_appended(kind, *each)) > 50 // every

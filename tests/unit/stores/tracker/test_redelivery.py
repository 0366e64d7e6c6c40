"""Entries that come a second time."""

from __future__ import annotations

import pytest

from haclient_stores.tracker.entries import Chunk
from haclient_stores.tracker.redelivery import Redelivery


def every(_: int) -> bool:
    return True


def test_nothing_is_expected_at_first() -> None:
    again = Redelivery()
    assert not again
    assert not again.awaits(0, 1)
    assert again.resolve_alias(7) == 7
    assert not again.is_elsewhere(1)


@pytest.mark.row("BS4", "BS5")
def test_an_expected_entry_comes_again_under_a_new_number() -> None:
    again = Redelivery()
    again.await_redelivery(3, 0, 30)
    assert again
    assert again.awaits(0, 30)
    assert [again.is_elsewhere(number) for number in (3, 4)] == [True, False]
    alias = again.redeliver(9, 0, 30)
    assert (alias.number, alias.old) == (9, 3)
    assert not again.awaits(0, 30)
    assert [again.is_elsewhere(number) for number in (3, 4)] == [True, False]
    assert (again.aliases_up_to(8), again.aliases_up_to(9)) == ([], [9])
    assert again.resolve_alias(9) == 3
    again.forget(3)
    assert not again
    assert not again.is_elsewhere(3)


def test_of_several_one_that_is_expected_is_enough() -> None:
    again = Redelivery()
    assert not again.awaits_any([0, 1], [30, 30])
    again.await_redelivery(3, 0, 30)
    assert again.awaits_any([1, 0], [30, 30])
    assert not again.awaits_any([1, 0], [30, 31])


@pytest.mark.row("BS4")
def test_a_discard_by_the_holder_of_the_first_delivery_ends_the_expectation() -> None:
    again = Redelivery()
    again.await_redelivery(3, 0, 30)
    assert again.resolve_alias(3) == 3
    again.forget(3)
    again.forget(3)
    assert not again
    assert not again.awaits(0, 30)


@pytest.mark.row("BS4", "BS5")
def test_a_lost_alias_is_superseded_and_a_late_discard_under_it_still_counts() -> None:
    again = Redelivery()
    again.await_redelivery(3, 0, 30)
    again.redeliver(9, 0, 30)
    again.link_lost(9, (), is_open=every)
    assert again.awaits(0, 30)
    assert (list(again.aliases), list(again.superseded)) == ([], [9])
    assert again.resolve_alias(9) == 3


def test_an_alias_that_was_handed_out_before_stays_with_its_holder() -> None:
    again = Redelivery()
    for old, sequence in ((3, 30), (4, 40)):
        again.await_redelivery(old, 0, sequence)
    again.redeliver(9, 0, 30)
    again.redeliver(10, 0, 40)
    again.link_lost(1, [Chunk([3, 4, 5], 0, [30, 40, 50])], is_open=lambda number: number != 5)
    assert list(again.aliases) == []
    assert sorted(again.awaiting) == [3, 4]
    again.redeliver(11, 0, 30)
    again.link_lost(12, [Chunk([3, 4, 13], 0, [30, 40, 60])], is_open=every)
    assert list(again.aliases) == [11]
    assert sorted(again.awaiting) == [4, 13]


def test_what_a_handler_still_processes_is_exempt_under_its_own_number_or_an_alias() -> None:
    again = Redelivery()
    for old, sequence in ((3, 30), (4, 40)):
        again.await_redelivery(old, 0, sequence)
        again.redeliver(old + 6, 0, sequence)
    chunk = Chunk([3, 4, 5, 6], 0, [30, 40, 50, 60])
    again.link_lost(0, [chunk], is_open=every, exempt={10, 6})
    assert (list(again.aliases), sorted(again.awaiting)) == ([10], [3, 5])
    assert [again.resolve_alias(number) for number in (9, 10, 6)] == [3, 4, 6]
    again.link_lost(0, [chunk], is_open=every)
    assert sorted(again.awaiting) == [3, 4, 5, 6]


def test_only_the_last_alias_of_an_entry_that_is_open_is_remembered() -> None:
    again = Redelivery()
    again.await_redelivery(3, 0, 30)
    for number in (9, 10):
        again.redeliver(number, 0, 30)
        again.link_lost(number, (), is_open=every)
    assert list(again.superseded) == [10]
    again.link_lost(11, (), is_open=every)
    assert list(again.superseded) == [10], "nothing came again meanwhile"
    again.link_lost(11, (), is_open=lambda number: number != 3)
    assert again.superseded == {}

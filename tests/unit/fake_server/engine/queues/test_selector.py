"""Which message the consumers of a filter get next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient_fake_server.engine.filters import Document, compile_filter
from haclient_fake_server.engine.queues.message_table import (
    AVAILABLE,
    LEASED,
    MessageRow,
    MessageTable,
)
from haclient_fake_server.engine.queues.roster import FastRoster
from haclient_fake_server.engine.queues.selector import ScanBudget, Selector

PLENTY = 1_000_000


class Shelf:
    """Messages by position, whose bodies are `{"n": position % 3}`; it counts what is read."""

    def __init__(self) -> None:
        self.reads = 0
        self.lost: set[int] = set()

    def document(self, position: int) -> Document | None:
        self.reads += 1
        return None if position in self.lost else Document(b'{"n": %d}' % (position % 3))


def selector(table: MessageTable, text: str = "", *, by_priority: bool = False) -> Selector:
    matches = compile_filter(text) if text else None
    return Selector(table, matches, by_priority=by_priority, roster=FastRoster())


def filled(*positions: int, has_priorities: bool = False) -> MessageTable:
    table = MessageTable(has_priorities=has_priorities)
    for position in positions:
        table.add(MessageRow(position, 1, position, 0), priority=position % 4)
    return table


def test_without_a_filter_the_oldest_comes_and_nothing_is_read() -> None:
    table, shelf = filled(3, 5, 9), Shelf()
    chosen = selector(table)
    assert chosen.wants_all
    for position in (3, 5, 9):
        assert chosen.next(None, shelf, ScanBudget(0)) == (0.0, position)
        table.lease(position)
    assert chosen.next(None, shelf, ScanBudget(0)) is None
    table.release(5)
    chosen.returned(5, shelf)
    assert chosen.next(None, shelf, ScanBudget(0)) == (0.0, 5)
    assert shelf.reads == 0


def test_what_a_filter_does_not_match_is_read_once() -> None:
    table, shelf = filled(*range(1, 31)), Shelf()
    chosen = selector(table, "/n = 0")
    for position in range(3, 31, 3):
        for _ in range(2):  # it stays until it is taken
            assert chosen.next(None, shelf, ScanBudget(PLENTY)) == (0.0, position)
        table.lease(position)
    assert chosen.next(None, shelf, ScanBudget(PLENTY)) is None
    assert shelf.reads == 30


def test_a_returned_message_comes_before_later_ones_if_the_filter_matches_it() -> None:
    table, shelf = filled(*range(1, 31)), Shelf()
    chosen = selector(table, "/n = 0")
    for position in (3, 6, 9):
        assert chosen.next(None, shelf, ScanBudget(PLENTY)) == (0.0, position)
        table.lease(position)
    table.lease(4)  # by somebody else
    for position in (6, 4):
        table.release(position)
        chosen.returned(position, shelf)
    assert chosen.next(None, shelf, ScanBudget(PLENTY)) == (0.0, 6)
    table.remove([6])
    assert chosen.next(None, shelf, ScanBudget(PLENTY)) == (0.0, 12)


@pytest.mark.parametrize("by_priority", [False, True])
def test_a_spent_budget_stops_the_search_and_the_next_one_goes_on(*, by_priority: bool) -> None:
    table, shelf = filled(*range(1, 9), has_priorities=by_priority), Shelf()
    chosen = selector(table, "/n = 0", by_priority=by_priority)
    answers = [chosen.next(None, shelf, ScanBudget(2)) for _ in range(4)]
    if by_priority:  # all have to be examined before the highest is known
        assert answers == [None, None, None, (-3.0, 3)]
    else:
        assert answers == [None, (0.0, 3), (0.0, 3), (0.0, 3)]
    assert shelf.reads == (8 if by_priority else 3)


def test_a_message_that_cannot_be_read_is_for_everyone() -> None:
    table, shelf = filled(1, 2), Shelf()
    shelf.lost = {1}
    chosen = selector(table, "/n = 2")
    assert chosen.next(None, shelf, ScanBudget(PLENTY)) == (0.0, 1)
    assert chosen.accepts(None)


@pytest.mark.parametrize("text", ["", "/n >= 0"])
def test_a_long_queue_is_sorted_by_priority_in_steps(text: str) -> None:
    table, shelf = filled(*range(1, 1001), has_priorities=True), Shelf()
    chosen = selector(table, text, by_priority=True)
    steps = 0
    while (found := chosen.next(None, shelf, ScanBudget(10))) is None:
        steps += 1
    assert found == (-3.0, 3)
    assert steps == (99 if text else 9)


@pytest.mark.parametrize("text", ["", "/n = 0"])
def test_nothing_from_a_barrier_on_is_found(text: str) -> None:
    table, shelf = filled(3, 6, 9), Shelf()
    chosen = selector(table, text)
    assert chosen.next(6, shelf, ScanBudget(PLENTY)) == (0.0, 3)
    table.lease(3)
    assert chosen.next(6, shelf, ScanBudget(PLENTY)) is None
    assert chosen.next(None, shelf, ScanBudget(PLENTY)) == (0.0, 6)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "next", "take", "other", "release", "remove"]),
        st.integers(0, 50),
    ),
    max_size=80,
)


@given(steps=STEPS, text=st.sampled_from(["", "/n = 0", "/n > 0"]), by_priority=st.booleans())
def test_it_finds_what_looking_at_every_message_would_find(
    steps: list[tuple[str, int]], text: str, *, by_priority: bool
) -> None:
    table, shelf = MessageTable(has_priorities=by_priority), Shelf()
    chosen = selector(table, text, by_priority=by_priority)
    last = 0
    for step, number in steps:
        held = list(table.positions())
        leased = [position for position in held if table.state(position) == LEASED]
        available = [position for position in held if table.state(position) == AVAILABLE]
        if step == "add":
            last += number % 3 + 1
            table.add(MessageRow(last, 1, last, 0), priority=number % 4)
        elif step == "other" and available:
            table.lease(available[number % len(available)])
        elif step == "release" and leased:
            position = leased[number % len(leased)]
            table.release(position)
            chosen.returned(position, shelf)
        elif step == "remove" and held:
            table.remove([held[number % len(held)]])
        elif step in {"next", "take"}:
            matching = [
                position for position in available if chosen.accepts(Shelf().document(position))
            ]
            keys = [
                (-table.priority(position) if by_priority else 0.0, position)
                for position in matching
            ]
            found = chosen.next(None, shelf, ScanBudget(PLENTY))
            assert found == min(keys, default=None)
            if found is not None and step == "take":
                table.lease(found[1])


@pytest.mark.parametrize(("text", "by_priority"), [("/n = 0", False), ("", True)])
def test_messages_that_return_over_and_over_are_kept_once(text: str, *, by_priority: bool) -> None:
    table, shelf = filled(*range(1, 10), has_priorities=by_priority), Shelf()
    chosen = selector(table, text, by_priority=by_priority)
    for _ in range(5_000):
        found = chosen.next(None, shelf, ScanBudget(PLENTY))
        assert found is not None
        table.lease(found[1])
        table.release(found[1])
        chosen.returned(found[1], shelf)
    assert len(chosen._heap) <= 2 * 9 + 1024

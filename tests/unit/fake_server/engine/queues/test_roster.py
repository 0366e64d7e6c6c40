"""Delivery fairness: the rosters against plain sorted lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient_fake_server.engine.queues.roster import ROSTERS, Best

NUMBERS = st.integers(1, 6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), NUMBERS, st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9])),
        st.tuples(st.just("discard"), NUMBERS, st.just(0.0)),
    ),
    max_size=300,
)


def expected(kind: str, room: dict[int, float], served: int) -> Best | None:
    """Who is served, by looking at everyone."""
    if not room:
        return None
    if kind == "fast":
        return Best((0, min(room)), min(room))
    if kind == "proportional":
        used, number = min((used, number) for number, used in room.items())
        return Best((used, number), number)
    later = [number for number in room if number > served]
    number = min(later or room)
    return Best((0 if later else 1, number), number)


@pytest.mark.parametrize("kind", list(ROSTERS))
@given(steps=STEPS, served=st.lists(st.integers(0, 7), min_size=1, max_size=3))
def test_a_roster_serves_as_its_rule_says(
    kind: str, steps: list[tuple[str, int, float]], served: list[int]
) -> None:
    roster, room = ROSTERS[kind](), dict[int, float]()
    for step, number, used in steps:
        if step == "put":
            roster.put(number, used)
            room[number] = used
        else:
            roster.discard(number)
            room.pop(number, None)
        assert len(roster) == len(room)
        assert bool(roster) == bool(room)
        for each in served:
            assert roster.best(each) == expected(kind, room, each)


def test_in_turn_is_cyclic_in_the_order_of_subscription() -> None:
    roster = ROSTERS["round-robin"]()
    for number in (3, 1, 2):
        roster.put(number, 0.0)
    served, turns = 0, list[int]()
    for _ in range(7):
        best = roster.best(served)
        assert best is not None
        served = best.number
        turns.append(served)
    assert turns == [1, 2, 3, 1, 2, 3, 1]


def test_the_smallest_used_part_wins_and_the_first_of_equals() -> None:
    roster = ROSTERS["proportional"]()
    for number, used in ((1, 1 / 2), (2, 3 / 4), (3, 4 / 10)):
        roster.put(number, used)
    assert roster.best(0) == Best((0.4, 3), 3)
    roster.put(3, 5 / 10)
    assert roster.best(0) == Best((0.5, 1), 1)


def test_a_heap_of_outdated_parts_is_rebuilt() -> None:
    roster = ROSTERS["proportional"]()
    for turn in range(10_000):
        roster.put(1, turn % 7 / 10)
    roster.put(2, 0.05)
    assert roster.best(0) == Best((0.05, 2), 2)
    roster.discard(2)
    assert roster.best(0) == Best((9_999 % 7 / 10, 1), 1)

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient_stores.tracker import runs
from haclient_stores.tracker.runs import Runs


def test_runs_at_the_end_are_joined_counted_and_skipped() -> None:
    holes = Runs()
    holes.append(3, 4)
    holes.append(4, 6)
    holes.append(9, 10)
    assert holes.count == 4
    assert [number for number in range(12) if number in holes] == [3, 4, 5, 9]
    assert holes.skip(2) == 2
    assert holes.skip(3) == 6
    assert holes.count == 1


def test_neighbours_in_any_order_become_one_run() -> None:
    numbers = Runs()
    for number in (5, 7, 6, 4):
        numbers.add(number)
    assert numbers.scattered == {4}
    assert numbers.ranges() == [(4, 8)]
    assert not numbers.scattered


def test_a_copy_stays_as_it_is() -> None:
    numbers = Runs()
    numbers.append(1, 3)
    numbers.append(5, 6)
    numbers.add(9)
    twin = numbers.copy()
    numbers.add(6)
    numbers.skip(1)
    assert twin.count == 4
    assert twin.ranges() == [(1, 3), (5, 6), (9, 10)]


def test_runs_that_come_and_go_leave_nothing_behind() -> None:
    holes = Runs()
    holes.append(1, 2)
    holes.append(3, 4)
    for number in range(5, 20_001, 2):
        holes.append(number, number + 1)
        holes.skip(number - 4)
    assert holes.count == 2
    assert len(holes._begins) < 3000  # how much memory it takes


@pytest.mark.parametrize("few", [1, 4])
@given(moves=st.lists(st.tuples(st.sampled_from("agps"), st.integers(0, 30))))
def test_runs_are_a_set_of_numbers(few: int, moves: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "_FEW", few)
        found, model, head = Runs(), set[int](), 0
        for move, value in moves:
            number = head + 1 + value
            if move == "s":  # the lowest numbers are not asked for any more
                expected = head + 1
                while expected in model:
                    expected += 1
                head += 1
                while (after := found.skip(head)) != head:
                    head = after
                assert head == expected
                model = {each for each in model if each > head}
            elif move == "g":
                if found.end in range(head + 1, 100) and not found.scattered:
                    model.add(found.end)
                    found.grow()
            elif move == "p":
                begin = max(model, default=head) + 1 + value
                found.append(begin, begin + 2)
                model |= {begin, begin + 1}
            elif number not in model:
                found.add(number)
                model.add(number)
            assert found.count == len(model)
            assert [each for each in range(100) if each in found] == sorted(
                each for each in model if each < 100
            )
        joined = found.ranges()
        assert {n for begin, end in joined for n in range(begin, end)} == model
        assert all(a[1] < b[0] for a, b in pairwise(joined))

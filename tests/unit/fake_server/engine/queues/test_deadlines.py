"""Deadlines against a plain list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient_fake_server.engine.queues import deadlines as module
from haclient_fake_server.engine.queues.deadlines import NEVER_US, Deadlines

MOMENTS = st.integers(0, 20)
POSITIONS = st.integers(1, 2**63)


def test_without_deadlines_nothing_is_ever_due() -> None:
    deadlines = Deadlines()
    assert deadlines.next_us == NEVER_US
    assert list(deadlines.take_due(NEVER_US, 10)) == []


def test_a_deadline_is_due_at_its_very_microsecond() -> None:
    deadlines = Deadlines()
    deadlines.add(1_000, 7)
    assert list(deadlines.take_due(999, 10)) == []
    assert deadlines.next_us == 1_000
    assert list(deadlines.take_due(1_000, 10)) == [(1_000, 7)]
    assert deadlines.next_us == NEVER_US


@given(
    st.sampled_from([2, 3, 1000]),
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), MOMENTS, POSITIONS),
            st.tuples(st.just("take"), MOMENTS, st.integers(0, 3)),
            st.tuples(st.just("keep"), MOMENTS, st.just(0)),
        )
    ),
)
def test_they_come_up_as_a_sorted_list_would_have_them(
    run: int, steps: list[tuple[str, int, int]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "RUN", run)
        check(steps)


def check(steps: list[tuple[str, int, int]]) -> None:
    deadlines, model = Deadlines(), list[tuple[int, int]]()
    for step, moment, number in steps:
        if step == "add":
            deadlines.add(moment, number)
            model = sorted([*model, (moment, number)])
        elif step == "take":
            due = [entry for entry in model if entry[0] <= moment][:number]
            model = model[len(due) :]
            assert list(deadlines.take_due(moment, number)) == due
        else:
            for _ in range(len(steps)):  # at least one for each run
                deadlines.keep(lambda due_us, position: due_us >= moment and position % 2 == 1)  # noqa: B023  # called at once
            model = [entry for entry in model if entry[0] >= moment and entry[1] % 2 == 1]
        assert sorted(zip(*deadlines.columns(), strict=True)) == model
        assert deadlines.next_us == (model[0][0] if model else NEVER_US)


def test_they_are_mostly_stale_when_more_than_twice_those_that_count_are_there() -> None:
    deadlines = Deadlines()
    for position in range(1, 2026):
        deadlines.add(5, position)
    assert not deadlines.is_mostly_stale(501)
    assert deadlines.is_mostly_stale(500)
    deadlines.keep(lambda _, position: position <= 500)
    assert not deadlines.is_mostly_stale(500)
    assert [position for _, position in deadlines.take_due(5, 10_000)] == list(range(1, 501))

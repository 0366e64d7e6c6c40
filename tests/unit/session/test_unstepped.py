"""A time that may be too early, and is never too late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.session.unstepped import Unstepped

pytestmark = pytest.mark.row("BS9", "HA17")

START_US = 1_700_000_000_000_000
HOUR_US = 3_600_000_000


def test_a_clock_that_is_left_alone_is_right() -> None:
    clock = Unstepped(START_US, 50.0)
    assert clock.earliest_us(START_US, 50.0) == START_US
    assert clock.earliest_us(START_US + 7_000_000, 57.0) == START_US + 7_000_000


def test_a_clock_that_is_set_forward_is_not_believed() -> None:
    clock = Unstepped(START_US, 50.0)
    assert clock.earliest_us(START_US + HOUR_US, 51.0) == START_US + 1_000_000
    assert clock.earliest_us(START_US + 2_000_000, 52.0) == START_US + 2_000_000


def test_a_clock_that_is_set_back_is_believed() -> None:
    clock = Unstepped(START_US, 50.0)
    assert clock.earliest_us(START_US - HOUR_US, 51.0) == START_US - HOUR_US


def test_a_clock_that_was_ahead_is_believed_once_it_is_set_right() -> None:
    clock = Unstepped(START_US + HOUR_US, 50.0)
    assert clock.earliest_us(START_US + 1_000_000, 51.0) == START_US + 1_000_000


@given(steps=st.lists(st.tuples(st.integers(0, 86_400), st.integers(-HOUR_US, HOUR_US))))
def test_no_steps_lead_to_a_time_that_is_too_late(steps: list[tuple[int, int]]) -> None:
    clock = Unstepped(START_US, 0.0)
    passed_s = wrong_us = 0
    for seconds, step_us in steps:
        passed_s += seconds
        wrong_us += step_us
        right_us = START_US + passed_s * 1_000_000
        assert clock.earliest_us(right_us + wrong_us, passed_s) == right_us + min(0, wrong_us)

"""The books of a fail-over run."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("benchmarks", reason="benchmarks are not part of the wheel")

from benchmarks.ledger import Ledger, Timeline, body_of, number_in


@pytest.mark.parametrize("number", [1, 999_999_999_999])
def test_a_body_is_json_of_its_size_and_says_its_number(number: int) -> None:
    body = body_of(number)
    assert len(body) == 100
    assert json.loads(body)["n"] == number_in(body) == number


def test_numbers_in_order_are_taken() -> None:
    ledger = Ledger()
    for number in (1, 2, 3):
        ledger.take(number)
    assert ledger.taken == 3


@pytest.mark.parametrize(
    ("numbers", "complaint"),
    [
        ((1, 2, 4), "message 3 is missing: expected 3, got 4"),
        ((1, 2, 2), "message 2 is given twice or out of order"),
        ((1, 2, 1), "message 1 is given twice or out of order"),
        ((2,), "message 1 is missing"),
    ],
)
def test_anything_else_is_refused(numbers: tuple[int, ...], complaint: str) -> None:
    ledger = Ledger()
    for number in numbers[:-1]:
        ledger.take(number)
    with pytest.raises(AssertionError, match=complaint):
        ledger.take(numbers[-1])


def test_only_a_message_after_the_logon_is_the_first_of_the_other_server() -> None:
    timeline = Timeline(10.0)
    assert not timeline.message(10.1)  # still from the one that was killed
    timeline.reached("logged_on", 10.15)  # still told of the connection before
    assert not timeline.message(10.15)
    timeline.reached("disconnected", 10.2)
    timeline.reached("logged_on", 10.3)
    assert timeline.message(10.4)
    assert not timeline.message(10.5)
    rows = timeline.rows("x", {"logged_on": "on", "first message": "first"})
    assert rows == pytest.approx({"x, on": 300.0, "x, first": 400.0})


def test_the_first_time_of_a_step_counts() -> None:
    timeline = Timeline(0.0)
    for now in (1.0, 2.0):
        timeline.reached("disconnected", now)
    assert timeline.rows("x", {"disconnected": "noticed"}) == {"x, noticed": 1000.0}


def test_a_step_that_was_not_reached_is_no_row_of_zero() -> None:
    with pytest.raises(KeyError):
        Timeline(0.0).rows("x", {"first message": "first"})

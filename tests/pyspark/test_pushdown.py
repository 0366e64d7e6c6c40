"""What a filter of a query means to a source."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from haclient.pyspark.options import MAX_INTEGER
from haclient.pyspark.pushdown import wanted_range, wanted_texts

EVERYTHING = (-MAX_INTEGER, MAX_INTEGER)
COLUMN = ("position",)


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        (EqualTo(COLUMN, 5), (5, 6)),
        (GreaterThan(COLUMN, 5), (6, MAX_INTEGER)),
        (GreaterThanOrEqual(COLUMN, 5), (5, MAX_INTEGER)),
        (LessThan(COLUMN, 5), (-MAX_INTEGER, 5)),
        (LessThanOrEqual(COLUMN, 5), (-MAX_INTEGER, 6)),
        (EqualNullSafe(COLUMN, 5), EVERYTHING),
        (EqualTo(("sequence",), 5), EVERYTHING),
        (EqualTo(("position", "inner"), 5), EVERYTHING),
        (EqualTo(COLUMN, "5"), EVERYTHING),
        (In(COLUMN, (1, 2)), EVERYTHING),
    ],
)
def test_a_comparison_is_a_range(condition: Filter, wanted: tuple[int, int]) -> None:
    assert wanted_range(condition, "position") == wanted


def test_a_time_is_compared_in_microseconds_of_utc() -> None:
    for time in (datetime(1970, 1, 1, 0, 0, 1), datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)):  # noqa: DTZ001 - as PySpark may give it
        assert wanted_range(EqualTo(("t",), time), "t") == (1_000_000, 1_000_001)


def test_texts_are_wanted_by_equality_and_lists() -> None:
    assert wanted_texts(EqualTo(("topic",), "a"), "topic") == frozenset({"a"})
    assert wanted_texts(In(("topic",), ("a", "b")), "topic") == frozenset({"a", "b"})
    assert wanted_texts(EqualTo(("command",), "a"), "topic") is None
    assert wanted_texts(GreaterThan(("topic",), "a"), "topic") is None

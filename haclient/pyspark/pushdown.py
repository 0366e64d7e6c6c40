"""What the filters of a query mean to a source: the values for which a condition can hold.

PySpark hands a reader the comparisons of columns with constants (`pushFilters`), and applies all of
them again to what is read. So a source may use any of them to read less, and ignore the others.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from haclient.pyspark.options import MAX_INTEGER

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ANY: Final = -MAX_INTEGER, MAX_INTEGER


def wanted_texts(condition: Filter, column: str) -> frozenset[object] | None:
    """The values of a text column for which a condition can hold; `None` for any."""
    match condition:
        case EqualTo(attribute=(name,), value=str(text)) if name == column:
            return frozenset([text])
        case In(attribute=(name,), value=values) if name == column:
            return frozenset(values)
        case _:
            return None


def wanted_range(condition: Filter, column: str) -> tuple[int, int]:
    """The range of a column of numbers or times in which a condition can hold.

    Returns:
        The first value and the one after the last; of times, in microseconds since 1970.
    """
    if getattr(condition, "attribute", None) != (column,):
        return _ANY
    match getattr(condition, "value", None):
        case int(number):
            return _bounds(condition, number)
        case datetime() as time:
            aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
            return _bounds(condition, (aware - _EPOCH) // timedelta(microseconds=1))
        case _:
            return _ANY


def _bounds(condition: Filter, value: int) -> tuple[int, int]:
    match condition:
        case EqualTo():
            return value, value + 1
        case GreaterThan():
            return value + 1, MAX_INTEGER
        case GreaterThanOrEqual():
            return value, MAX_INTEGER
        case LessThan():
            return -MAX_INTEGER, value
        case LessThanOrEqual():
            return -MAX_INTEGER, value + 1
        case _:
            return _ANY

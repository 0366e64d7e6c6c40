"""Values of the filter language, and the results of its operators.

A value is a number, a string or NULL (`None`). There is no boolean of its own: true is 1 and false
is 0. The empty string is NULL, and a number that fits no 64-bit integer is a float. These rules
hold for each input value (`normal`) and each result of arithmetic, so that operators need not
check.

* Comparison: never true with NULL, not even `!=`. Two strings compare as strings, in the order of
  their bytes. A string compared with a number is converted; one that is not a number is greater
  than any number.
* Arithmetic: NULL with anything is NULL. A string that is not a number is NaN. Integers stay
  integers and divide towards zero; `%` has the sign of its first operand; division by zero is NaN.
* Truth: NULL stays NULL, a number is true when it is not 0, a string counts as its number; NaN and
  strings that are no number are not true.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

Number: TypeAlias = int | float
Value: TypeAlias = int | float | str | None
Comparison: TypeAlias = Callable[[Any, Any], bool]

_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(\.[0-9]*)?|(\.[0-9]+))([eE][+-]?[0-9]+)?")
_INTEGER_DIGITS: Final = 20
_LOWEST: Final = -(2**63)
_HIGHEST: Final = 2**64 - 1

COMPARISONS: Final[dict[str, Comparison]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def normal(value: object) -> Value:
    """The value as the language sees it: no empty strings, no booleans, no huge integers."""
    if isinstance(value, str):
        return value or None
    if isinstance(value, int):
        return _fit(int(value))
    if isinstance(value, bytes):  # of MessagePack, or a FIX field that is not UTF-8
        return value.decode("utf-8", "surrogateescape") or None
    return value if isinstance(value, float) else None


def _fit(value: int) -> Number:
    if _LOWEST <= value <= _HIGHEST:
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def number_from(text: str) -> Number | None:
    """The number that the whole of `text` spells, or None."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    return integer_from(text) if match.lastindex is None else float(text)


def integer_from(text: str) -> Number:
    """The number in a text that consists of digits and an optional sign."""
    return _fit(int(text)) if len(text) <= _INTEGER_DIGITS else float(text)


def compare(test: Comparison, left: Value, right: Value) -> bool:
    """Whether `test` holds between `left` and `right`."""
    if left is None or right is None:
        return False
    if isinstance(left, str):
        return test(left, right) if isinstance(right, str) else _against(test, left, right)
    if isinstance(right, str):
        return _against(_mirrored(test), right, left)
    return test(left, right)


def _against(test: Comparison, text: str, number: Number) -> bool:
    converted = number_from(text)
    if converted is not None:
        return test(converted, number)
    if math.isnan(number):
        return test(number, number)
    return test(1, 0)


def _mirrored(test: Comparison) -> Comparison:
    return _MIRROR.get(test, test)


_MIRROR: Final[dict[Comparison, Comparison]] = {
    operator.lt: operator.gt,
    operator.le: operator.ge,
    operator.gt: operator.lt,
    operator.ge: operator.le,
}


def truth(value: Value) -> bool | None:
    """True, False or NULL, for AND, OR, NOT and the verdict of a whole filter."""
    if value is None:
        return None
    number = number_from(value) if isinstance(value, str) else value
    return number is not None and number != 0 and not math.isnan(number)


def calculate(symbol: str, left: Value, right: Value) -> Value:
    """The result of an arithmetic operator of `ARITHMETIC`."""
    if left is None or right is None:
        return None
    first, second = number_of(left), number_of(right)
    if isinstance(first, int) and isinstance(second, int):
        return _INTEGER[symbol](first, second)
    return ARITHMETIC[symbol](float(first), float(second))


def text_of(value: Number | str) -> str:
    """A value as text; floats in the shortest form that reads back the same.

    A test yields a bool, which is written as 1 or 0.
    """
    if isinstance(value, str):
        return value
    return str(int(value)) if isinstance(value, int) else str(value)


def number_of(value: Number | str) -> Number:
    """A value as a number; NaN for a text that is not a number."""
    if not isinstance(value, str):
        return value
    number = number_from(value)
    return math.nan if number is None else number


def _divide(first: float, second: float) -> float:
    return first / second if second else math.nan


def _modulo(first: float, second: float) -> float:
    return math.fmod(first, second) if second and not math.isinf(first) else math.nan


def _divide_integers(first: int, second: int) -> Number:
    if not second:
        return math.nan
    quotient = abs(first) // abs(second)
    return _fit(quotient if (first < 0) == (second < 0) else -quotient)


def _modulo_integers(first: int, second: int) -> Number:
    if not second:
        return math.nan
    rest = abs(first) % abs(second)
    return -rest if first < 0 else rest


def _add_integers(first: int, second: int) -> Number:
    return _fit(first + second)


def _subtract_integers(first: int, second: int) -> Number:
    return _fit(first - second)


def _multiply_integers(first: int, second: int) -> Number:
    return _fit(first * second)


ARITHMETIC: Final[dict[str, Callable[[float, float], float]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
    "%": _modulo,
}

_INTEGER: Final[dict[str, Callable[[int, int], Number]]] = {
    "+": _add_integers,
    "-": _subtract_integers,
    "*": _multiply_integers,
    "/": _divide_integers,
    "%": _modulo_integers,
}

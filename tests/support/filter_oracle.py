"""A second opinion on filters: their language in the plainest Python that there is.

Expressions are tuples, messages are flat dicts, and nothing is shared with the code under test.
`render` gives the text of an expression, `verdict` says whether a message matches.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, Final, TypeAlias

Expression: TypeAlias = tuple[Any, ...]
Row: TypeAlias = dict[str, Any]

UNARY: Final = {"not": "(NOT {})", "isnull": "({} IS NULL)", "isnan": "({} IS NAN)"}


def render(e: Expression) -> str:
    kind, *parts = e
    if kind in ("literal", "field"):
        return atom(kind, parts[0])
    if kind in UNARY:
        return UNARY[kind].format(render(parts[0]))
    if kind == "infix":
        symbol, left, right = parts
        return f"({render(left)} {symbol} {render(right)})"
    if kind == "between":
        value, low, high = map(render, parts)
        return f"({value} BETWEEN {low} AND {high})"
    if kind == "like":
        return f"({render(parts[0])} LIKE r'{parts[1]}')"
    value, choices = parts
    return f"({render(value)} {kind} ({', '.join(map(render, choices))}))"


def atom(kind: str, value: float | str | None) -> str:
    if kind == "field":
        return f"/{value}"
    if value is None:
        return "NULL"
    return f"'{value}'" if isinstance(value, str) else repr(value)


def verdict(e: Expression, row: Row) -> bool:
    return truth(scalar(e, row)) is True


def truth(value: Any) -> bool | None:  # noqa: ANN401 - an oracle for values of any type
    if value is None:
        return None
    value = number(value)
    return not (math.isnan(value) or value == 0)


def number(value: Any) -> Any:  # noqa: ANN401 - an oracle for values of any type
    if not isinstance(value, str):
        return value
    for convert in (int, float):
        try:
            return convert(value)
        except ValueError:
            continue
    return math.nan


def elements(e: Expression, row: Row) -> list[Any]:
    if e[0] != "field":
        return [scalar(e, row)]
    value = row.get(e[1])
    found = value if isinstance(value, list) else [value]
    return [None if one == "" else one for one in found]


def scalar(e: Expression, row: Row) -> Any:  # noqa: ANN401 - an oracle for values of any type
    kind, *parts = e
    if kind == "literal":
        return None if parts[0] == "" else parts[0]
    if kind == "field":
        return (elements(e, row) or [None])[0]
    if kind == "infix":
        return infix(parts, row)
    if kind == "not":
        answer = truth(scalar(parts[0], row))
        return None if answer is None else not answer
    if kind in ("isnull", "isnan"):
        value = scalar(parts[0], row)
        is_nan = isinstance(value, float) and math.isnan(value)
        return value is None if kind == "isnull" else is_nan
    return any(element_test(kind, one, parts[1:], row) for one in elements(parts[0], row))


def infix(parts: list[Any], row: Row) -> Any:  # noqa: ANN401 - an oracle for values of any type
    symbol, left, right = parts
    if symbol in ("AND", "OR"):
        first = truth(scalar(left, row))
        decides = symbol == "OR"
        return first if first in (None, decides) else truth(scalar(right, row))
    if symbol in ARITHMETIC:
        operands = [scalar(left, row), scalar(right, row)]
        return None if None in operands else arithmetic(symbol, *map(number, operands))
    pairs = [(a, b) for a in elements(left, row) for b in elements(right, row)]
    return any(compare(symbol, a, b) for a, b in pairs)


def element_test(kind: str, one: Any, parts: list[Any], row: Row) -> bool:  # noqa: ANN401 - as above
    if kind == "between":
        low, high = (elements(part, row) for part in parts)
        return any(compare(">=", one, x) for x in low) and any(compare("<=", one, x) for x in high)
    if kind == "like":
        return one is not None and parts[0] in text(one)
    choices = [x for part in parts[0] for x in elements(part, row)]
    if kind == "IN":
        return any(compare("=", one, choice) for choice in choices)
    pairs = [(text(one), text(x)) for x in choices if one is not None and x is not None]
    return any(a[: len(b)] == b if kind == "BEGINS WITH" else a[-len(b) :] == b for a, b in pairs)


def text(value: Any) -> str:  # noqa: ANN401 - an oracle for values of any type
    return json.dumps(int(value) if isinstance(value, bool) else value).strip('"')


ARITHMETIC: Final = {"+", "-", "*", "/", "%", "MOD"}


def arithmetic(symbol: str, a: float, b: float) -> float:
    if symbol in "+-*":
        return {"+": a + b, "-": a - b, "*": a * b}[symbol]
    if b == 0 or math.isnan(a) or math.isnan(b):
        return math.nan
    result = a / b if symbol == "/" else math.fmod(a, b)
    return int(result) if isinstance(a, int) and isinstance(b, int) else result


HOLDS: Final[dict[str, Callable[[int], bool]]] = {
    "=": lambda sign: sign == 0,
    "!=": lambda sign: sign != 0,
    "<>": lambda sign: sign != 0,
    "<": lambda sign: sign < 0,
    "<=": lambda sign: sign <= 0,
    ">": lambda sign: sign > 0,
    ">=": lambda sign: sign >= 0,
}


def compare(symbol: str, a: Any, b: Any) -> bool:  # noqa: ANN401 - as above
    if a is None or b is None:
        return False
    if any(isinstance(x, float) and math.isnan(x) for x in (a, b)):
        return symbol in ("!=", "<>")
    if not (isinstance(a, str) and isinstance(b, str)):
        a, b = rank(a), rank(b)
    return HOLDS[symbol]((a > b) - (a < b))


def rank(value: Any) -> tuple[int, Any]:  # noqa: ANN401 - as above
    value = number(value)
    return (1, 0) if math.isnan(value) else (0, value)

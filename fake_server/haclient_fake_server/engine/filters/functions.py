"""The functions of the filter language.

A function gets the first element of an array, but for those whose name begins with `ARRAY`, which
get all. Texts are bytes: positions and lengths count bytes, and only ASCII letters have cases. NULL
in gives NULL out, unless the function is about NULL. A result that would be longer than
`MOST_TEXT_BYTES` is NULL, since calls in one another could make any message as large as memory,
and take as long.
Every function gives the same result at each call: those that read a clock are not here.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from haclient_fake_server.engine.filters.values import (
    Number,
    Value,
    calculate,
    normal,
    number_of,
    text_of,
    truth,
)
from haclient_fake_server.engine.patterns import Find, to_bytes, to_text

MOST_TEXT_BYTES: Final = 16 * 1024
"""A longer result of a function is NULL: one filter may have thousands of calls."""

_EARTH_RADIUS_M: Final = 6_371_008.8
_LARGEST_BYTE: Final = 255

Argument: TypeAlias = Value | Sequence[Value] | Find


@dataclass(frozen=True, slots=True)
class Function:
    """One function.

    Attributes:
        run: Gets the arguments; of an array function the elements of the first one.
        fewest: The fewest arguments.
        most: The most; `None` for any number.
        takes_array: The first argument is all elements of an array.
        pattern_at: The number of the argument that is a pattern in quotes; -1 for none.
        takes_null: It is called with NULL, too; else NULL gives NULL.
    """

    run: Callable[..., Value]
    fewest: int
    most: int | None
    takes_array: bool = False
    pattern_at: int = -1
    takes_null: bool = False

    def call(self, arguments: Sequence[Argument]) -> Value:
        """The value for these arguments."""
        if not self.takes_null and None in arguments:
            return None
        return normal(self.run(*arguments))


def _bytes(value: Number | str) -> bytes:
    return to_bytes(text_of(value))


def _limited(parts: Iterable[bytes]) -> str | None:
    """Parts as one text, or NULL where it is too long."""
    found: list[bytes] = []
    size = 0
    for part in parts:
        size += len(part)
        if size > MOST_TEXT_BYTES:
            return None
        found.append(part)
    return to_text(b"".join(found))


# -- choices -------------------------------------------------------------------------------------


def _if(condition: Value, one: Value, other: Value) -> Value:
    return one if truth(condition) is True else other


def _coalesce(*values: Value) -> Value:
    return next((value for value in values if value is not None), None)


# -- texts ---------------------------------------------------------------------------------------


def _concat(*values: Value) -> Value:
    return _limited(_bytes(value) for value in values if value is not None)


def _upper(text: Number | str) -> Value:
    return to_text(_bytes(text).upper())


def _lower(text: Number | str) -> Value:
    return to_text(_bytes(text).lower())


def _reverse(text: Number | str) -> Value:
    return to_text(_bytes(text)[::-1])


def _strequal_i(one: Number | str, other: Number | str) -> Value:
    return _bytes(one).lower() == _bytes(other).lower()


def _substr(text: Number | str, position: Number | str, length: Number | str = math.inf) -> Value:
    start, count = number_of(position), number_of(length)
    if math.isnan(start) or math.isnan(count) or start < 1 or math.isinf(start):
        return None
    rest = _bytes(text)[int(start) - 1 :]
    return to_text(rest if math.isinf(count) else rest[: max(0, int(count))])


def _instr(text: Number | str, part: Number | str) -> Value:
    return _bytes(text).find(_bytes(part)) + 1


def _instr_i(text: Number | str, part: Number | str) -> Value:
    return _bytes(text).lower().find(_bytes(part).lower()) + 1


def _replace(text: Value, old: Value, new: Value) -> Value:
    if text is None or old is None:
        return None
    data, gone, put = _bytes(text), _bytes(old), b"" if new is None else _bytes(new)
    size = len(data) + data.count(gone) * (len(put) - len(gone))
    return None if size > max(MOST_TEXT_BYTES, len(data)) else to_text(data.replace(gone, put))


def _regexp_match(text: Number | str, find: Find) -> Value:
    data = _bytes(text)
    begin, end = next(find(data), (0, 0))
    return to_text(data[begin:end])


def _regexp_replace(text: Value, find: Find, new: Value) -> Value:
    if text is None:
        return None
    data, put = _bytes(text), b"" if new is None else _bytes(new)

    def parts() -> Iterable[bytes]:
        at = 0
        for begin, end in find(data):
            yield data[at:begin]
            yield put
            at = end
        yield data[at:]

    return _limited(parts())


def _char(number: Number | str) -> Value:
    code = number_of(number)
    return to_text(bytes([int(code)])) if 0 <= code <= _LARGEST_BYTE else None


# -- numbers -------------------------------------------------------------------------------------


def _abs(value: Number | str) -> Value:
    number = number_of(value)
    return number if not number < 0 else calculate("-", 0, number)


def _crc32(text: Number | str) -> Value:
    return zlib.crc32(_bytes(text))


def _geo_distance(*degrees: Number | str) -> Value:
    """Metres between two places on a sphere, each given by its latitude and longitude."""
    lat, long, other_lat, other_long = (number_of(each) for each in degrees)
    if not all(map(math.isfinite, (lat, long, other_lat, other_long))):
        return math.nan
    one, two = math.radians(lat), math.radians(other_lat)
    up, over = math.sin((two - one) / 2), math.sin(math.radians(other_long - long) / 2)
    half = up * up + math.cos(one) * math.cos(two) * over * over
    return 2 * _EARTH_RADIUS_M * math.asin(math.sqrt(min(1.0, max(0.0, half))))


# -- arrays --------------------------------------------------------------------------------------


def _present(values: Sequence[Value]) -> list[Number | str]:
    return [value for value in values if value is not None]


def _array_count(values: Sequence[Value]) -> Value:
    return len(_present(values))


def _array_to_string(values: Sequence[Value], separator: Number | str = ",") -> Value:
    between = _bytes(separator)
    parts = [each for value in _present(values) for each in (between, _bytes(value))]
    return _limited(parts[1:])


def _array_sum(values: Sequence[Value]) -> Value:
    present = _present(values)
    total: Value = 0 if present else None
    for value in present:
        total = calculate("+", total, value)
    return total


def _array_avg(values: Sequence[Value]) -> Value:
    total = _array_sum(values)
    return None if total is None else float(total) / len(_present(values))


def _array_extreme(choose: Callable[[Iterable[Number]], Number]) -> Callable[..., Value]:
    def run(values: Sequence[Value]) -> Value:
        numbers = [number_of(value) for value in _present(values)]
        if any(map(math.isnan, numbers)):
            return math.nan
        return choose(numbers) if numbers else None

    return run


FUNCTIONS: Final[dict[str, Function]] = {
    "IF": Function(_if, 3, 3, takes_null=True),
    "COALESCE": Function(_coalesce, 1, None, takes_null=True),
    "CONCAT": Function(_concat, 1, None, takes_null=True),
    "UPPER": Function(_upper, 1, 1),
    "LOWER": Function(_lower, 1, 1),
    "SUBSTR": Function(_substr, 2, 3),
    "REVERSE": Function(_reverse, 1, 1),
    "INSTR": Function(_instr, 2, 2),
    "INSTR_I": Function(_instr_i, 2, 2),
    "STREQUAL_I": Function(_strequal_i, 2, 2),
    "REPLACE": Function(_replace, 3, 3, takes_null=True),
    "REGEXP_REPLACE": Function(_regexp_replace, 3, 3, pattern_at=1, takes_null=True),
    "REGEXP_MATCH": Function(_regexp_match, 2, 2, pattern_at=1),
    "ABS": Function(_abs, 1, 1),
    "CRC32": Function(_crc32, 1, 1),
    "GEO_DISTANCE": Function(_geo_distance, 4, 4),
    "ARRAY_COUNT": Function(_array_count, 1, 1, takes_array=True),
    "ARRAY_TO_STRING": Function(_array_to_string, 1, 2, takes_array=True),
    "ARRAY_MIN": Function(_array_extreme(min), 1, 1, takes_array=True),
    "ARRAY_MAX": Function(_array_extreme(max), 1, 1, takes_array=True),
    "ARRAY_SUM": Function(_array_sum, 1, 1, takes_array=True),
    "ARRAY_AVG": Function(_array_avg, 1, 1, takes_array=True),
    "TRUE_VALUE": Function(lambda: 1, 0, 0),
    "FALSE_VALUE": Function(lambda: 0, 0, 0),
    "NAN_VALUE": Function(lambda: math.nan, 0, 0),
    "CHAR_VALUE": Function(_char, 1, 1),
}

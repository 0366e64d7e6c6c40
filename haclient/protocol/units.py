"""Intervals, sizes and rates as the protocol writes them (protocol 7.3).

Intervals are a number and one of `ns us ms s m h d w`; without a unit they are seconds. Sizes are a
number of bytes, with `kb mb gb tb` (powers of 1024) or the exponents `k` and `M` (powers of 1000).
Letter case does not matter.
"""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass
from typing import Final

from haclient.errors import UsageError

__all__ = ["Rate", "RateUnit", "format_interval", "parse_interval", "parse_size"]

_QUANTITY: Final = re.compile(r"([0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20}) *([a-zA-Z]*)")
_PER_SECOND: Final = {"ns": 10**9, "us": 10**6, "ms": 10**3, "s": 1, "": 1}
_SECONDS: Final = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_BYTES: Final = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "kb": 2**10,
    "mb": 2**20,
    "gb": 2**30,
    "tb": 2**40,
}


class RateUnit(enum.StrEnum):
    """What a replay rate counts."""

    MESSAGES = "messages"
    BYTES = "bytes"
    SPEED = "speed"


@dataclass(frozen=True, slots=True)
class Rate:
    """A replay rate: messages a second, bytes a second, or a multiple of the original speed.

    Attributes:
        amount: How many, above 0.
        unit: Of what.
    """

    amount: float
    unit: RateUnit

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Read `1000`, `64KB` or `.5X`.

        Raises:
            UsageError: The text is no rate, or no more than 0.
        """
        amount, unit = _quantity(text, "a rate like 1000, 64KB or 2X")
        if unit == "x":
            rate = cls(amount, RateUnit.SPEED)
        elif unit.endswith("b") and unit in _BYTES:
            rate = cls(amount * _BYTES[unit], RateUnit.BYTES)
        elif unit in _BYTES:
            rate = cls(amount * _BYTES[unit], RateUnit.MESSAGES)
        else:
            raise UsageError(f"wanted a rate like 1000, 64KB or 2X, not {text!r}")
        if not rate.amount:
            raise UsageError(f"a rate is more than 0, not {text!r}; use the option pause")
        return rate


def parse_interval(text: str) -> float:
    """Seconds of an interval like `100ms`.

    Raises:
        UsageError: The text is none.
    """
    amount, unit = _quantity(text, "an interval like 100ms or 2s")
    if unit in _PER_SECOND:
        return amount / _PER_SECOND[unit]
    if unit in _SECONDS:
        return amount * _SECONDS[unit]
    raise UsageError(f"wanted an interval like 100ms or 2s, not {text!r}")


def format_interval(seconds: float) -> str:
    """The shortest interval that is exact to the nanosecond: `0.1` gives `100ms`.

    Raises:
        UsageError: The number is negative or not finite.
    """
    if not (math.isfinite(seconds) and seconds >= 0):
        raise UsageError(f"an interval is a number of seconds from 0 on, not {seconds!r}")
    for unit in ("s", "ms", "us"):
        count = round(seconds * _PER_SECOND[unit])
        if count / _PER_SECOND[unit] == seconds:
            return f"{count}{unit}"
    return f"{round(seconds * _PER_SECOND['ns'])}ns"


def parse_size(text: str) -> int:
    """Bytes of a size like `64KB`.

    Raises:
        UsageError: The text is none.
    """
    amount, unit = _quantity(text, "a size like 64KB")
    if unit not in _BYTES:
        raise UsageError(f"wanted a size like 64KB, not {text!r}")
    return int(amount * _BYTES[unit])


def _quantity(text: str, wanted: str) -> tuple[float, str]:
    found = _QUANTITY.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"wanted {wanted}, not {text!r}")
    number = found[1]
    return (float(number) if "." in number else int(number)), found[2].lower()

"""Server versions as numbers that can be compared (protocol 5.2).

A version is dotted text whose first four parts are major, minor, maintenance and hotfix; what
follows names a build. Each part counts as 99 at most, so that `5.3.4.99` becomes 5030499.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["version_number"]

_PARTS: Final = 4
_LARGEST_PART: Final = 99
_LEADING_DIGITS: Final = re.compile(r"[0-9]*")
_DIGITS_OF_A_PART: Final = 3  # more digits are more than 99 anyway


def version_number(version: str) -> int:
    """The number of a version; reading stops where no number follows, so that nonsense gives 0."""
    number = 0
    parts = version.split(".")[:_PARTS]
    weight = 100**_PARTS
    for part in parts:
        digits = _LEADING_DIGITS.match(part)
        weight //= 100
        if digits is None or not digits[0]:
            break
        number += weight * min(int(digits[0].lstrip("0")[:_DIGITS_OF_A_PART] or "0"), _LARGEST_PART)
        if digits[0] != part:
            break
    return number

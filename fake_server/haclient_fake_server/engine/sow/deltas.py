"""Delta publishes: a message that says only what has changed.

Objects are merged path by path; arrays and everything else are replaced whole; `null` leaves the
old value, so no field can be removed. A body that is no JSON object is taken as the whole message.
"""

from __future__ import annotations

import json
from typing import TypeAlias

__all__ = ["merge"]

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"


def merge(stored: bytes, delta: bytes) -> bytes:
    """The message that `delta` makes of a stored one."""
    try:
        before: Json = json.loads(stored)
        change: Json = json.loads(delta)
    except (ValueError, RecursionError):  # not JSON: nothing to merge, and nothing refused
        return delta
    if not isinstance(before, dict) or not isinstance(change, dict):
        return delta
    try:
        merged = _merged(before, change)
        return json.dumps(merged, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    except (RecursionError, UnicodeEncodeError):  # too deep, or half a surrogate pair
        return delta


def _merged(before: dict[str, Json], change: dict[str, Json]) -> dict[str, Json]:
    result = dict(before)
    for name, value in change.items():
        old = result.get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            result[name] = _merged(old, value)
        elif value is not None or name not in result:
            result[name] = value
    return result

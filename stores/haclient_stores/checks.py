"""Checks of the arguments of stores, policies and adapters, before anything is changed.

The error of each check is one line with what was wanted and what was found. Pure, and not called
per message.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from haclient_stores.errors import UsageError


def check_bytes(name: str, value: object) -> int:
    """A size as it was given.

    Raises:
        UsageError: It is no whole number.
    """
    if not isinstance(value, int):
        raise UsageError(f"{name} is a whole number of bytes, not {value!r}")
    return value


def check_count(name: str, value: object, lowest: int = 0, highest: float = math.inf) -> None:
    """Refuse what is no whole number within limits; True and False are none."""
    if isinstance(value, int) and not isinstance(value, bool) and lowest <= value <= highest:
        return
    limits = f"of at least {lowest}" if highest == math.inf else f"from {lowest} to {highest}"
    raise UsageError(f"{name} is a whole number {limits}, not {value!r}")


def check_seconds(name: str, value: object, *, zero: bool = False, endless: bool = True) -> None:
    """Refuse what is no time above zero.

    Args:
        name: The argument.
        value: What was given.
        zero: Whether it may be zero.
        endless: Whether it may be infinite.
    """
    if (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and (value > 0 or (zero and value == 0))
        and (endless or value < math.inf)
    ):
        return
    limit = "zero or above" if zero else "above 0"
    raise UsageError(f"{name} is a number of seconds, {limit}, not {value!r}")


def check_text(name: str, value: object) -> None:
    """Refuse what is no text that a file can hold, and the empty one."""
    check_utf8(name, value)
    if not value:
        raise UsageError(f"{name} is a text that is not empty, not {value!r}")


def check_utf8(name: str, value: object) -> None:
    """Refuse what is no text that a file can hold."""
    try:
        if isinstance(value, str):
            value.encode("utf-8", "surrogateescape")
            return
    except UnicodeEncodeError:  # half of a character
        pass
    raise UsageError(f"{name} is a text, not {value!r}")


def check_word(name: str, value: object, words: Sequence[str]) -> None:
    """Refuse what is none of some words."""
    if value not in words:
        raise UsageError(f"{name} is one of {', '.join(words)}, not {value!r}")


def check_callable(name: str, value: object) -> None:
    """Refuse a value that is not callable; None means no function."""
    if value is not None and not callable(value):
        raise UsageError(f"{name} is a function or None, not {value!r}")


def check_has(name: str, value: object, wanted: str, *attributes: str) -> None:
    """Refuse what lacks an attribute, and classes, where an object of one is wanted."""
    if isinstance(value, type) or not all(hasattr(value, each) for each in attributes):
        raise UsageError(f"{name} is {wanted}, not {value!r}")


def check_adapter(name: str, value: object) -> None:
    """Refuse what keeps no recovery points."""
    methods = "recover", "update", "purge", "prune", "close"
    check_has(name, value, "a recovery point adapter", *methods)

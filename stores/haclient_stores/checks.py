"""Checks of the arguments of the public API, before anything is changed.

The error of each check is a `UsageError` of one line with what was wanted and what was found. With
`optional` the value may be `None`. Pure, and not called per message.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import cast

from haclient_stores.errors import UsageError


def is_text(value: object) -> bool:
    """Whether a value is a text; for values that an error message must not show."""
    return isinstance(value, str)


def is_number(value: object) -> bool:
    """Whether a value is an int or a float, and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_bytes(name: str, value: object) -> int:
    """A size as it was given.

    Raises:
        UsageError: It is not a whole number.
    """
    if not isinstance(value, int):
        raise UsageError(f"{name} is a whole number of bytes, not {value!r}")
    return value


def check_count(
    name: str, value: object, lowest: int = 0, highest: float = math.inf, *, optional: bool = False
) -> None:
    """Refuse what is not a whole number within the limits, and a bool."""
    if value is None and optional:
        return
    if isinstance(value, int) and not isinstance(value, bool) and lowest <= value <= highest:
        return
    limits = f"of at least {lowest}" if highest == math.inf else f"from {lowest} to {highest}"
    raise UsageError(f"{name} is a whole number {limits}{_or_none(optional)}, not {value!r}")


def check_seconds(
    name: str, value: object, *, zero: bool = False, endless: bool = True, optional: bool = False
) -> None:
    """Refuse what is not a time above zero.

    Args:
        name: The argument.
        value: What was given.
        zero: Whether it may be zero.
        endless: Whether it may be infinite.
        optional: Whether it may be `None`.
    """
    if value is None and optional:
        return
    if isinstance(value, int | float | Real) and not isinstance(value, bool):  # also of numpy
        seconds = cast("float", value)
        if (seconds > 0 or (zero and seconds == 0)) and (endless or seconds < math.inf):
            return
    kind = "a number" if endless else "a finite number"
    limit = "zero or above" if zero else "above 0"
    raise UsageError(f"{name} is {kind} of seconds, {limit}{_or_none(optional)}, not {value!r}")


def check_text(name: str, value: object) -> None:
    """Refuse what is not a text that a file can hold, and the empty one."""
    check_utf8(name, value)
    if not value:
        raise UsageError(f"{name} is a text that is not empty, not {value!r}")


def check_utf8(name: str, value: object) -> None:
    """Refuse what is not a text that a file can hold."""
    try:
        if isinstance(value, str):
            value.encode("utf-8", "surrogateescape")
            return
    except UnicodeEncodeError:  # half of a character
        pass
    raise UsageError(f"{name} is a text, not {value!r}")


def check_texts(name: str, value: object) -> list[str]:
    """Return a list of texts; a single text becomes a list of one.

    Raises:
        UsageError: It is neither a text nor an iterable of texts.
    """
    if isinstance(value, str):
        return [value]
    several = isinstance(value, Iterable) and not isinstance(value, bytes)
    found: list[object] = list(cast("Iterable[object]", value)) if several else [value]
    texts = [each for each in found if isinstance(each, str)]
    if len(texts) < len(found):
        raise UsageError(f"{name} is a text or a list of texts, not {value!r}")
    return texts


def check_word(name: str, value: object, words: Sequence[str], *, function: bool = False) -> None:
    """Refuse what is not one of the words; with `function`, a function is accepted, too."""
    if value not in words and not (function and callable(value)):
        kinds = f"{', '.join(words)} or a function" if function else ", ".join(words)
        raise UsageError(f"{name} is one of {kinds}, not {value!r}")


def check_callable(name: str, value: object, *, optional: bool = True) -> None:
    """Refuse a value that is not callable; `None` means no function."""
    if not callable(value) and not (value is None and optional):
        raise UsageError(f"{name} is a function{_or_none(optional)}, not {value!r}")


def _or_none(optional: bool) -> str:  # noqa: FBT001  # the end of a message
    return " or None" if optional else ""

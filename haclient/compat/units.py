"""Milliseconds and absent values, as the official client writes them."""

from __future__ import annotations

import math

from haclient.errors import UsageError
from haclient_stores.checks import is_number


def seconds_of(milliseconds: object, what: str = "timeout") -> float:
    """A timeout in seconds; 0 is no limit.

    Args:
        milliseconds: The timeout as the official client takes it.
        what: The name of the argument, for the error message.

    Returns:
        Seconds; infinite for 0.

    Raises:
        UsageError: The timeout is negative or not a number.
    """
    if not (isinstance(milliseconds, int | float) and is_number(milliseconds)) or not (
        milliseconds >= 0  # which is false for NaN, too
    ):
        raise UsageError(f"{what} is a number of milliseconds, zero or above, not {milliseconds!r}")
    try:
        return milliseconds / 1000 if milliseconds else math.inf
    except OverflowError:
        raise UsageError(
            f"{what} is a number of milliseconds, and too long: 0 is no limit"
        ) from None


def milliseconds_of(seconds: float) -> int:
    """A time in whole milliseconds; no limit is 0."""
    return 0 if math.isinf(seconds) else round(seconds * 1000)

"""The option string of a command, as a value.

An application writes `Options(oof=True, conflation="100ms")`, which is sent as
`oof,conflation=100ms`; the broker reads it back with `Options.parse`. An option string is a comma
list of `name` and `name=value`; a value in square brackets may hold commas. Empty tokens, spaces
and `none` mean nothing, since official constants end with a comma and are joined by concatenation;
of an option given twice the last wins.

Errors that do not depend on the server are refused on both sides when the value is created: unknown
options, values that cannot be parsed, and options that exclude or require each other.

Intervals are a number and one of `ns us ms s m h d w`; without a unit they are seconds. Sizes are a
number of bytes, with `kb mb gb tb` (powers of 1024) or the exponents `k` and `M` (powers of 1000).
Letter case does not matter.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, cast

from typing_extensions import override

from haclient.errors import UsageError, did_you_mean
from haclient_stores.checks import check_count, check_seconds, check_utf8, check_word, is_number

__all__ = [
    "MAX_OPTIONS_LENGTH",
    "Options",
    "Rate",
    "RateUnit",
    "format_interval",
    "parse_interval",
    "parse_size",
]

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
    """The unit of a replay rate."""

    MESSAGES = "messages"
    BYTES = "bytes"
    SPEED = "speed"


@dataclass(frozen=True, slots=True)
class Rate:
    """A replay rate: messages a second, bytes a second, or a multiple of the original speed.

    Attributes:
        amount: The number of units, above 0.
        unit: The unit.
    """

    amount: float
    unit: RateUnit

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Read a rate.

        Args:
            text: Messages per second such as `1000`, bytes per second such as `64KB`, or a
                multiple of the original speed such as `.5X`.

        Returns:
            The rate.

        Raises:
            UsageError: The text is not a rate, or the rate is 0.
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
    """Read an interval.

    Args:
        text: An interval with a unit, such as `100ms`.

    Returns:
        Seconds.

    Raises:
        UsageError: The text is not an interval.
    """
    amount, unit = _quantity(text, "an interval like 100ms or 2s")
    if unit in _PER_SECOND:
        return amount / _PER_SECOND[unit]
    if unit in _SECONDS:
        return amount * _SECONDS[unit]
    raise UsageError(f"wanted an interval like 100ms or 2s, not {text!r}")


def format_interval(seconds: float) -> str:
    """The shortest interval that is exact to the nanosecond: `0.1` gives `100ms`.

    Args:
        seconds: The interval in seconds.

    Returns:
        The interval with a unit, in the form of an option value.

    Raises:
        UsageError: The number is negative or not finite.
    """
    check_seconds("an interval", seconds, zero=True, endless=False)
    for unit in ("s", "ms", "us"):
        count = round(seconds * _PER_SECOND[unit])
        if count / _PER_SECOND[unit] == seconds:
            return f"{count}{unit}"
    return f"{round(seconds * _PER_SECOND['ns'])}ns"


def parse_size(text: str) -> int:
    """Read a size.

    Args:
        text: A size with a unit, such as `64KB`.

    Returns:
        Bytes.

    Raises:
        UsageError: The text is not a size.
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


# -- the option string -------------------------------------------------------

MAX_OPTIONS_LENGTH: Final = 128 * 1024
"""Longest option string that is read: twice the longest projection there may be."""

_LONGEST_PROJECTION: Final = 64 * 1024
_FLAGS: Final = frozenset(
    {"bookmark", "cancel", "expire", "fully_durable", "live", "no_empties", "no_sowkey"}
    | {"non_regex_topic", "oof", "pause", "pretty", "replace", "resume", "send_empties"}
    | {"send_keys", "timestamp"}
)
_NUMBERS: Final = frozenset({"max_backlog", "top_n", "skip_n"})
_INTERVALS: Final = frozenset({"conflation", "rate_max_gap", "ack_conflation", "lease_extension"})
_LISTS: Final = frozenset({"conflation_key", "select", "projection", "grouping"})
_DEPTH: Final = {"[": 1, "(": 1, "]": -1, ")": -1}
_MOST_DIGITS: Final = 18
_SHOWN: Final = 200
_CONFLATION_WORDS: Final = "auto", "none"
_BOOKMARK_NOT_FOUND: Final = "epoch", "now", "fail"
_EXCLUDE_EACH_OTHER: Final = (
    ("live", "rate"),
    ("live", "pause"),
    ("live", "resume"),
    ("pause", "resume"),
    ("projection", "select"),
    ("cancel", "expire"),
    ("cancel", "lease_extension"),
    ("expire", "lease_extension"),
)
_NEED: Final = (
    ("rate_max_gap", "rate"),
    ("conflation_key", "conflation"),
    ("skip_n", "top_n"),
    ("grouping", "projection"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a command, a logon or a queue acknowledgement.

    Intervals are seconds or text like `100ms`; the property whose name ends in `_s` gives seconds.

    Attributes:
        bookmark: Add a bookmark to each message.
        bookmark_not_found: Where to start if no given bookmark is known: `epoch`, `now` or `fail`.
        conflation: Interval over which updates are merged, so that only the newest message of each
            key is delivered; or `auto` or `none`.
        conflation_key: The fields that form the key; the SOW key by default.
        fully_durable: After the replay, deliver only messages that all synchronous destinations
            have acknowledged.
        live: After the replay, deliver messages before they are persisted.
        max_backlog: The maximum number of unacknowledged messages of a queue.
        no_empties: Send no delta in which no field has changed.
        no_sowkey: Send no SOW keys.
        non_regex_topic: The topic is literal, even if it looks like a regular expression.
        oof: Send an out-of-focus message when a record no longer matches.
        pause: Start the subscription paused, or pause an active one.
        rate: The maximum replay rate in messages per second, or text: `1000`, `64KB`, `2X`.
        rate_max_gap: The longest pause in a replay whose rate is relative to the original speed.
        replace: Replace the subscription that has this id.
        resume: Resume a paused subscription.
        select: Which fields to deliver: `-/`, `+/id`, ...
        send_keys: Include the key fields in deltas.
        timestamp: Add the time of processing to each message.
        top_n: The maximum number of records.
        skip_n: How many records to skip at the start.
        projection: Fields to compute.
        grouping: Fields to group by.
        ack_conflation: Of a logon: how long persisted acks may be held back.
        pretty: Of a logon: send binary types as formatted text.
        cancel: Of a queue acknowledgement: give the message back.
        expire: Of a queue acknowledgement: remove it as expired.
        lease_extension: Of a queue acknowledgement: how much longer to hold the lease.
        send_empties: The default behaviour; servers may name it.

    Raises:
        UsageError: A value cannot be parsed, two options exclude each other, or an option that
            another one needs is missing.
    """

    bookmark: bool = False
    bookmark_not_found: str | None = None
    conflation: float | str | None = None
    conflation_key: tuple[str, ...] = ()
    fully_durable: bool = False
    live: bool = False
    max_backlog: int | None = None
    no_empties: bool = False
    no_sowkey: bool = False
    non_regex_topic: bool = False
    oof: bool = False
    pause: bool = False
    rate: float | str | None = None
    rate_max_gap: float | str | None = None
    replace: bool = False
    resume: bool = False
    select: tuple[str, ...] = ()
    send_keys: bool = False
    timestamp: bool = False
    top_n: int | None = None
    skip_n: int | None = None
    projection: tuple[str, ...] = ()
    grouping: tuple[str, ...] = ()
    ack_conflation: float | str | None = None
    pretty: bool = False
    cancel: bool = False
    expire: bool = False
    lease_extension: float | str | None = None
    send_empties: bool = False

    def __post_init__(self) -> None:
        _check_values(self)
        for one, other in _EXCLUDE_EACH_OTHER:
            if _is_set(self, one) and _is_set(self, other):
                raise UsageError(f"the options {one} and {other} exclude each other")
        for one, other in _NEED:
            if _is_set(self, one) and not _is_set(self, other):
                raise UsageError(f"the option {one} needs {other}")

    @classmethod
    def parse(cls, text: str) -> Options:
        """Read an option string.

        Args:
            text: Options joined by commas, as sent on the wire.

        Returns:
            The options.

        Raises:
            UsageError: An option is unknown or malformed; the message names it.
        """
        check_utf8("options", text)
        if len(text) > MAX_OPTIONS_LENGTH:
            raise UsageError(
                f"an option string has at most {MAX_OPTIONS_LENGTH} characters, not {len(text)}"
            )
        return _parse(text)

    @property
    def conflation_s(self) -> float | None:
        """The conflation interval in seconds; `None` for `auto`, `none` and without the option."""
        return None if self.conflation in _CONFLATION_WORDS else _seconds(self.conflation)

    @property
    def rate_max_gap_s(self) -> float | None:
        """The longest gap in seconds."""
        return _seconds(self.rate_max_gap)

    @property
    def ack_conflation_s(self) -> float | None:
        """How long persisted acks may be held back, in seconds."""
        return _seconds(self.ack_conflation)

    @property
    def lease_extension_s(self) -> float | None:
        """By how much the lease is extended, in seconds."""
        return _seconds(self.lease_extension)

    @property
    def rate_limit(self) -> Rate | None:
        """The replay rate as a value.

        Raises:
            UsageError: It is not a rate, or it is 0.
        """
        if self.rate is None or isinstance(self.rate, str):
            return None if self.rate is None else Rate.parse(self.rate)
        if not (is_number(self.rate) and 0 < self.rate < math.inf):
            raise UsageError(f"a rate is more than 0, not {self.rate!r}; use the option pause")
        return Rate(self.rate, RateUnit.MESSAGES)

    @override
    def __str__(self) -> str:
        names = (name for name in _NAMES if _is_set(self, name))
        return ",".join(_written(self, name) for name in names)

    @override
    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name in _NAMES if _is_set(self, name))
        return f"Options({', '.join(shown)})"

    def __bool__(self) -> bool:
        return any(_is_set(self, name) for name in _NAMES)


@lru_cache(64)  # subscriptions mostly have the same few, and are sent again together
def _parse(text: str) -> Options:
    values: dict[str, Any] = {}
    for item in _split(text):
        if item == "none":
            continue
        name, equals, value = (part.strip() for part in item.partition("="))
        values[name] = _read(name, value if equals else None)
    return Options(**values)


_NAMES: Final = tuple(field.name for field in fields(Options))


def _is_set(options: Options, name: str) -> bool:
    value: object = getattr(options, name)
    is_empty = isinstance(value, tuple | list) and not value
    return value is not None and value is not False and not is_empty


def _written(options: Options, name: str) -> str:
    if name in _FLAGS:
        return name
    if name in _LISTS:
        items: tuple[str, ...] = getattr(options, name)
        return f"{name}=[{','.join(items)}]"
    value: float | str = getattr(options, name)
    if name in _INTERVALS and not isinstance(value, str):
        return f"{name}={format_interval(value)}"
    if isinstance(value, float):  # 1e-07 is none on the wire
        return f"{name}={Decimal(repr(value)):f}"
    return f"{name}={value}"


def _check_values(options: Options) -> None:
    for name in sorted(_LISTS):
        _check_list(name, getattr(options, name))
    for name in sorted(_NUMBERS):
        number = getattr(options, name)
        lowest = 1 if name == "max_backlog" else 0
        check_count(f"the option {name}", number, lowest, optional=True)
    for name in sorted(_INTERVALS):
        interval = getattr(options, name)
        if name != "conflation" or interval not in _CONFLATION_WORDS:
            _seconds(interval)
    if options.bookmark_not_found is not None:
        check_word("bookmark_not_found", options.bookmark_not_found, _BOOKMARK_NOT_FOUND)
    _ = options.rate_limit  # raises what cannot be read


def _check_list(name: str, items: tuple[str, ...]) -> None:
    if not _are_texts(items):
        raise UsageError(f"the option {name} is a tuple of texts that are not empty, not {items!r}")
    if name == "select":
        for item in items:
            if not item.startswith(("+/", "-/")):
                raise UsageError(f"a select directive is +/path or -/path, not {item!r}")
    if name == "projection" and len(",".join(items)) > _LONGEST_PROJECTION:
        raise UsageError(f"a projection has at most {_LONGEST_PROJECTION} characters")


def _are_texts(items: object) -> bool:
    """Whether this is a tuple or list of texts that are not empty."""
    return isinstance(items, tuple | list) and all(
        isinstance(item, str) and item.strip() for item in cast("Iterable[object]", items)
    )


def _seconds(interval: float | str | None) -> float | None:
    if interval is None:
        return None
    if isinstance(interval, str):
        return parse_interval(interval)
    format_interval(interval)  # raises what is not an interval
    return interval


def _read(name: str, value: str | None) -> object:
    if name in _FLAGS:
        if value is not None:
            raise UsageError(f"the option {name} takes no value, found {value!r}")
        return True
    if name not in _NAMES:
        raise UsageError(f"there is no option {name!r}{did_you_mean(name, _NAMES)}")
    if not value:
        raise UsageError(f"the option {name} needs a value: {name}=...")
    if name in _LISTS:
        inner = value[1:-1] if value.startswith("[") and value.endswith("]") else value
        return tuple(_split(inner))
    if name in _NUMBERS:
        if not (value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS):
            raise UsageError(f"the option {name} is a whole number, not {value!r}")
        return int(value)
    return value


def _split(text: str) -> Iterator[str]:
    """Tokens between commas, except commas in brackets and quotes; stripped, none empty."""
    depth = 0
    quote = ""
    start = 0
    for position, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character == "," and depth == 0:
            yield from filter(None, [text[start:position].strip()])
            start = position + 1
        else:
            depth += _DEPTH.get(character, 0)
    if depth or quote:
        raise UsageError(f"brackets or quotes do not match in the options {text[:_SHOWN]!r}")
    yield from filter(None, [text[start:].strip()])

"""The options of a data source: text from a user, read once into typed values.

PySpark passes options as text, with names whose case does not matter. `OptionReader` reads each of
them with its type. Every error is a `UsageError` of one line that names the option as the documents
spell it, what was wanted and what was found. Options that nobody has asked for are unknown, and an
error, too: a misspelt name would otherwise mean its default.

::

    read = OptionReader("amps-journal", options)
    settings = Settings(path=read.required("journalPath"), rows=read.integer("batchRows", 10_000))
    read.check_unknown()
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, overload

from haclient.errors import UsageError
from haclient.protocol.uri import Uri
from haclient_stores.bookmark import Timestamp

MAX_INTEGER: Final = 2**63 - 1
"""What fits into a BIGINT."""

_FOREIGN: Final = frozenset({"checkpointlocation", "path", "queryname"})
"""What PySpark itself puts among the options of a source or sink."""

_EXAMPLE_URI: Final = "tcp://127.0.0.1:9007/amps/json"
_BETWEEN_URIS: Final = re.compile(r"[\s,]*,\s*(?=[A-Za-z]+://)")
_MAYBE_SECRET: Final = re.compile(r"^(?!.*@).*?://[^/]*:(?!\d+(?:[/?]|$))")

_SIZE: Final = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNITS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_FLAGS: Final = {"true": True, "false": False}
_COMPACT: Final = re.compile(r"\d{8}T")
_MICROSECONDS: Final = 1_000_000


class OptionReader:
    """Reads options one by one, and keeps count of the names that were asked for.

    Args:
        format: The name of the data source, for messages.
        given: What the user gave.
    """

    def __init__(self, format: str, given: Mapping[str, str]) -> None:  # noqa: A002 - PySpark's word
        self._format = format
        self._given = {name.lower(): str(value) for name, value in given.items()}
        self._known: dict[str, str] = {}

    def has(self, name: str) -> bool:
        """Whether an option was given.

        Args:
            name: Its name, spelt as in the documents, as in all methods.
        """
        return self._find(name) is not None

    @overload
    def text(self, name: str, default: str) -> str: ...
    @overload
    def text(self, name: str, default: None = None) -> str | None: ...
    def text(self, name: str, default: str | None = None) -> str | None:
        """An option that is any text."""
        found = self._find(name)
        return default if found is None else found

    def required(self, name: str, example: str = "") -> str:
        """An option that has to be there, and not empty.

        Raises:
            UsageError: It is missing.
        """
        found = self._find(name)
        if not found:
            more = f", such as {example}" if example else ""
            raise UsageError(f"{self._format}: the option {name} is missing: set it{more}")
        return found

    @overload
    def integer(self, name: str, default: int, *, minimum: int = 1) -> int: ...
    @overload
    def integer(self, name: str, default: None = None, *, minimum: int = 1) -> int | None: ...
    def integer(self, name: str, default: int | None = None, *, minimum: int = 1) -> int | None:
        """A whole number from `minimum` on.

        Raises:
            UsageError: It is none.
        """
        found = self._find(name)
        if found is None:
            return default
        if re.fullmatch(r"-?\d{1,19}", found) and minimum <= int(found) <= MAX_INTEGER:
            return int(found)
        raise self.error(name, f"a whole number from {minimum} on")

    @overload
    def size(self, name: str, default: int) -> int: ...
    @overload
    def size(self, name: str, default: None = None) -> int | None: ...
    def size(self, name: str, default: int | None = None) -> int | None:
        """A number of bytes, such as `128m`; units are powers of 1024.

        Raises:
            UsageError: It is none, or zero.
        """
        found = self._find(name)
        if found is None:
            return default
        match = _SIZE.fullmatch(found.strip())
        count = int(match.group(1)) << _UNITS[match.group(2).lower()] if match else 0
        if 0 < count <= MAX_INTEGER:
            return count
        raise self.error(name, "a number of bytes, such as 1048576, 64k or 128m")

    def flag(self, name: str, *, default: bool) -> bool:
        """`true` or `false`.

        Raises:
            UsageError: It is neither.
        """
        found = self._find(name)
        if found is None:
            return default
        if found.lower() in _FLAGS:
            return _FLAGS[found.lower()]
        raise self.error(name, "true or false")

    def choice(self, name: str, values: Iterable[str], default: str) -> str:
        """One of some words.

        Raises:
            UsageError: It is another one.
        """
        words = list(values)
        found = self._find(name)
        if found is None:
            return default
        for word in words:
            if word.lower() == found.lower():
                return word
        raise self.error(name, f"one of {', '.join(words)}")

    def names(self, name: str) -> tuple[str, ...]:
        """A list with commas; empty when the option was not given.

        Raises:
            UsageError: A name in it is empty or comes twice.
        """
        found = self._find(name)
        if found is None:
            return ()
        parts = tuple(part.strip() for part in found.split(","))
        if "" in parts or len(set(parts)) < len(parts):
            raise self.error(name, "different names with commas between them")
        return parts

    def pattern(self, name: str) -> re.Pattern[str] | None:
        """A regular expression.

        Raises:
            UsageError: It cannot be compiled.
        """
        found = self._find(name)
        if found is None:
            return None
        try:
            return re.compile(found)
        except re.error as error:
            raise self.error(name, f"a regular expression ({error})") from error

    def timestamp_us(self, name: str) -> int | None:
        """A time in microseconds since 1970, UTC; see `parse_timestamp`.

        Raises:
            UsageError: It is no time.
        """
        found = self._find(name)
        if found is None:
            return None
        try:
            return parse_timestamp(found)
        except (ValueError, UsageError) as error:
            wanted = "a time such as 2026-01-31T09:30:00Z, 20260131T093000 or milliseconds"
            raise self.error(name, wanted) from error

    def at_most_one(self, *names: str) -> str | None:
        """Which of these options was given.

        Raises:
            UsageError: Several of them were, which exclude each other.
        """
        given = [name for name in names if self.has(name)]
        if len(given) > 1:
            raise UsageError(
                f"{self._format}: the options {' and '.join(given)} exclude each other: keep one"
            )
        return given[0] if given else None

    def check_unknown(self) -> None:
        """Check that every option that was given has been asked for.

        Raises:
            UsageError: One has not.
        """
        for name in self._given:
            if name in self._known or name in _FOREIGN:
                continue
            close = difflib.get_close_matches(name, self._known, n=1)
            advice = (
                f"did you mean {self._known[close[0]]}?"
                if close
                else f"known are {', '.join(sorted(self._known.values()))}"
            )
            raise UsageError(f"{self._format}: unknown option {name}: {advice}")

    def uris(self, name: str) -> tuple[str, ...]:
        """The URIs of servers; a password may have a comma, so only one before a scheme parts them.

        Raises:
            UsageError: One is no URI; the message never has a password.
        """
        text = self.required(name, _EXAMPLE_URI)
        uris = tuple(each for each in _BETWEEN_URIS.split(text.strip(", ")) if each)
        if not uris:
            raise UsageError(
                f"{self._format}: the option {name} names no server: set it, such as {_EXAMPLE_URI}"
            )
        for number, uri in enumerate(uris, 1):
            try:
                Uri.parse(uri)
            except UsageError as error:
                # A name and password without a host look like a host and a port.
                reason = "not shown, it may hold a password" if _MAYBE_SECRET.search(uri) else error
                raise UsageError(
                    f"{self._format}: the option {name} has to be URIs such as {_EXAMPLE_URI} with "
                    f"commas between them, found as number {number}: {reason}"
                ) from None
        return uris

    def error(self, name: str, wanted: str) -> UsageError:
        """The error for an option with a value that cannot be.

        Args:
            name: The option.
            wanted: What its value should have been.
        """
        found = self._find(name)
        return UsageError(f"{self._format}: the option {name} has to be {wanted}, found {found!r}")

    def _find(self, name: str) -> str | None:
        self._known[name.lower()] = name
        return self._given.get(name.lower())


def parse_timestamp(text: str) -> int:
    """Read a time as microseconds since 1970, UTC.

    Args:
        text: ISO 8601 (`2026-01-31T09:30:00Z`; without a zone it is UTC), the form of AMPS
            (`20260131T093000.123456`), or milliseconds since 1970.

    Raises:
        ValueError: It is none of them.
        UsageError: It has the form of AMPS, but there is no such moment.
    """
    text = text.strip()
    if _COMPACT.match(text):
        return Timestamp.parse(text).microseconds
    if re.fullmatch(r"\d{9,16}", text):
        return int(text) * 1000
    moment = datetime.fromisoformat(text)
    return _microseconds(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _microseconds(moment: datetime) -> int:
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    seconds = delta.days * 86_400 + delta.seconds
    return seconds * _MICROSECONDS + delta.microseconds

"""The options of the data sources: text from a user, read once into typed values.

PySpark passes options as text, with names whose case does not matter. `OptionReader` reads each of
them with its type. Every error is a `UsageError` of one line that names the option as the user
wrote it, what was wanted and what was found. Options that nobody has asked for are unknown, and an
error, too: a misspelt name would otherwise mean its default.

::

    read = OptionReader("amps-journal", options)
    settings = Settings(path=read.required("journalPath"), rows=read.integer("batchRows", 10_000))
    read.check_unknown()
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias, TypeVar, cast

from haclient.errors import UsageError
from haclient.protocol.uri import Uri
from haclient_stores.bookmark import (
    EPOCH,
    NOW,
    Bookmark,
    BookmarkList,
    BookmarkRange,
    Epoch,
    MostRecent,
    Now,
    Timestamp,
    parse_bookmark,
)

D = TypeVar("D")
T = TypeVar("T")

SERVER: Final = "amps"
JOURNAL: Final = "amps-journal"

Point: TypeAlias = Epoch | Now | Bookmark | Timestamp | BookmarkList
"""Where a range of a log begins or ends."""

MAX_INTEGER: Final = 2**63 - 1
"""What fits into a BIGINT."""

_ALIASES: Final = {
    "endingOffsets": "endingBookmark",
    "maxOffsetsPerTrigger": "maxMessagesPerTrigger",
    "startingOffsets": "startingBookmark",
    "subscribe": "topic",
    "subscribePattern": "topicPattern",
}
"""What users of other connectors type, and what it is here."""

_OF_KAFKA: Final = {"assign": "topic", "kafka.bootstrap.servers": "uri"}
"""Options of the Kafka connector that have no alias, and what takes their place."""

_GONE: Final = {
    # PySpark keeps the partitions of a query with a condition, also for later queries without.
    "filterpushdown": "select with filter, topic or times; a journal's conditions, by read_journal",
}
"""Options of old programs, and what to do instead."""

_ALIASES_OF: Final = {JOURNAL: {**_ALIASES, "path": "journalPath"}}

_WORDS: Final[dict[str, Epoch | Now]] = {
    "earliest": EPOCH,
    "epoch": EPOCH,
    "latest": NOW,
    "now": NOW,
}
_POINTS: Final = "earliest, latest, EPOCH, NOW, bookmarks or a time such as 2026-01-31T09:30:00Z"
_TIMES: Final = "a time such as 2026-01-31T09:30:00Z, 20260131T093000 or milliseconds"

_CLOSE: Final = 0.8  # `topics` for topic, and not `topN`

_FOREIGN: Final = frozenset({"checkpointlocation", "path", "queryname"})
"""What PySpark itself puts among the options of a source or sink."""

LOCAL_SCHEME: Final = re.compile(r"^file:(?://[^/]*)?(?=/)")
"""Before the path, in the URI of a file of this machine."""

_EXAMPLE_URI: Final = "tcp://127.0.0.1:9007/amps/json"
_BETWEEN_URIS: Final = re.compile(r"[\s,]*,\s*(?=[A-Za-z]+://)")
_MAYBE_SECRET: Final = re.compile(r"^(?!.*@).*?://[^/]*:(?!\d+(?:[/?]|$))")

_SIZE: Final = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNITS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_FLAGS: Final = {"true": True, "false": False}
_COMPACT: Final = re.compile(r"\d{8}T")


class OptionReader:
    """Reads options one by one, and keeps count of the names that were asked for.

    Each method takes the name of an option as the documents spell it, and what counts without it.
    A value that cannot be is a `UsageError`.

    Args:
        format: The name of the data source, for messages.
        given: What the user gave.
    """

    def __init__(self, format: str, given: Mapping[str, str]) -> None:  # noqa: A002 - PySpark's word
        self._format = format
        self._given: dict[str, str] = {}
        self._typed: dict[str, str] = {}  # aliases that were used
        self._known: dict[str, str] = {}
        self._aliases = table = _ALIASES_OF.get(format, _ALIASES)
        aliases = {name.lower(): name for name in table}
        for typed, value in given.items():
            alias = aliases.get(typed.lower())
            name = (table[alias] if alias else typed).lower()
            if name in self._given:
                other = self._typed.get(name) or table.get(alias or "", name)
                raise self._exclusive(other, alias or typed)
            self._given[name] = str(value)
            if alias:
                self._typed[name] = alias

    def has(self, name: str) -> bool:
        """Whether an option was given."""
        return self._find(name) is not None

    def text(self, name: str, default: D) -> str | D:
        """An option that is any text."""
        return self._parsed(name, default, str, "a text")

    def required(self, name: str, example: str = "") -> str:
        """An option that has to be there, and not empty.

        Raises:
            UsageError: It is missing, or is spelt in another way.
        """
        found = self._find(name)
        if not found:
            self._check_misspelt(name)
            more = f", such as {example}" if example else ""
            given = sorted(map(self._spelt, self._given.keys() - {name.lower()}))
            more += f"; given are {', '.join(given)}" if given else ""
            if not self._given.keys() - _FOREIGN:
                more += (
                    "; if this is a table, PySpark passes the options of the query only, none of "
                    "CREATE TABLE: FROM name WITH (...), INSERT INTO name WITH (...), "
                    "options(...) before table(name) or toTable(name)"
                )
            raise UsageError(f"{self._format}: the option {name} is missing: set it{more}")
        return found

    def integer(self, name: str, default: D, *, minimum: int = 1) -> int | D:
        """A whole number from `minimum` on."""

        def parse(text: str) -> int:
            if re.fullmatch(r"-?[0-9]{1,19}", text) and minimum <= int(text) <= MAX_INTEGER:
                return int(text)
            raise ValueError

        return self._parsed(name, default, parse, f"a whole number from {minimum} on")

    def size(self, name: str, default: D) -> int | D:
        """A number of bytes, such as `128m`; units are powers of 1024."""

        def parse(text: str) -> int:
            match = _SIZE.fullmatch(text.strip())
            count = int(match.group(1)) << _UNITS[match.group(2).lower()] if match else 0
            if 0 < count <= MAX_INTEGER:
                return count
            raise ValueError

        return self._parsed(name, default, parse, "a number of bytes, such as 1048576, 64k or 128m")

    def flag(self, name: str, *, default: D) -> bool | D:
        """`true` or `false`."""
        return self._parsed(name, default, lambda text: _FLAGS[text.lower()], "true or false")

    def choice(self, name: str, values: Sequence[str], default: str) -> str:
        """One of some words, in any case."""
        words = {word.lower(): word for word in values}
        wanted = f"one of {', '.join(values)}"
        return self._parsed(name, default, lambda text: words[text.lower()], wanted)

    def names(self, name: str) -> tuple[str, ...]:
        """A list with commas; empty when the option was not given."""

        def parse(text: str) -> tuple[str, ...]:
            parts = tuple(part.strip() for part in text.split(","))
            if "" in parts or len(set(parts)) < len(parts):
                raise ValueError
            return parts

        return self._parsed(name, (), parse, "different names with commas between them")

    def pattern(self, name: str) -> re.Pattern[str] | None:
        """A regular expression."""
        return self._parsed(name, None, re.compile, "a regular expression ({})")

    def texts(self, name: str, wanted: str) -> tuple[str, ...]:
        """A JSON list of texts that are not empty; empty when the option was not given."""

        def parse(text: str) -> tuple[str, ...]:
            found = json.loads(text)
            if not isinstance(found, list) or not found:
                raise ValueError
            if not all(isinstance(each, str) and each for each in cast("list[object]", found)):
                raise ValueError
            return tuple(cast("list[str]", found))

        return self._parsed(name, (), parse, wanted)

    def time(self, name: str) -> Timestamp | None:
        """A moment; see `parse_timestamp`."""
        return self._parsed(name, None, lambda text: Timestamp(parse_timestamp(text)), _TIMES)

    def point(self, name: str) -> Point | None:
        """A point of a log: a word, bookmarks or a time."""

        def parse(text: str) -> Point:
            if (word := _WORDS.get(text.strip().lower())) is not None:
                return word
            with suppress(UsageError):
                point = parse_bookmark(text)
                if not isinstance(point, BookmarkRange | MostRecent):
                    return point
            return Timestamp(parse_timestamp(text))

        return self._parsed(name, None, parse, _POINTS)

    def at_most_one(self, *names: str) -> str | None:
        """Which of these options was given.

        Raises:
            UsageError: Several of them were, which exclude each other.
        """
        given = [name for name in names if self.has(name)]
        if len(given) > 1:
            raise self._exclusive(*map(self._spelt, given))
        return given[0] if given else None

    def check_unknown(self) -> None:
        """Check that every option that was given has been asked for.

        Raises:
            UsageError: One has not.
        """
        aliases = self._aliases.items()
        known = {name.lower(): name for name, meant in aliases if meant.lower() in self._known}
        known |= self._known
        for name in self._given:
            if name in self._known or name in _FOREIGN:
                continue
            meant = _OF_KAFKA.get(name, "")
            close = [meant] if meant in known else difflib.get_close_matches(name, known, n=1)
            advice = _GONE.get(name) or (
                f"did you mean {known[close[0]]}?"
                if close
                else f"known are {', '.join(sorted(self._known.values()))}"
            )
            raise self._unknown(name, advice)

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
        """The error for an option with a value that cannot be."""
        name, found = self._spelt(name), self._find(name)
        return UsageError(f"{self._format}: the option {name} has to be {wanted}, found {found!r}")

    def _check_misspelt(self, missing: str) -> None:
        """Name what the user has given in place of an option; not all names are known yet."""
        unknown = [name for name in self._given if name not in self._known]
        close = [name for name in unknown if _OF_KAFKA.get(name) == missing]
        close += difflib.get_close_matches(missing.lower(), unknown, n=1, cutoff=_CLOSE)
        if close:
            raise self._unknown(close[0], f"did you mean {missing}?")

    def _unknown(self, name: str, advice: str) -> UsageError:
        return UsageError(f"{self._format}: unknown option {self._spelt(name)}: {advice}")

    def _exclusive(self, *names: str) -> UsageError:
        both = " and ".join(names)
        return UsageError(f"{self._format}: the options {both} exclude each other: keep one")

    def _spelt(self, name: str) -> str:
        """The name that the user has given: an alias, or the one of the documents."""
        return self._typed.get(name.lower(), name)

    def _find(self, name: str) -> str | None:
        self._known[name.lower()] = name
        return self._given.get(name.lower())

    def _parsed(self, name: str, default: D, parse: Callable[[str], T], wanted: str) -> T | D:
        found = self._find(name)
        if found is None:
            return default
        try:
            return parse(found)
        except (ValueError, LookupError, UsageError, re.error) as error:
            raise self.error(name, wanted.format(error)) from error


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
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)

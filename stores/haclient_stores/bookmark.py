"""Bookmarks: positions in a transaction log, as values.

A *message bookmark* names one message by the identity that every replica of a log agrees on: who
published it (a hash of the client name) and that publisher's sequence number. Two bookmarks can be
compared only when they have the same publisher; no order is defined across publishers, because two
instances may have interleaved them differently. That is why a recovery point is a *list*: one entry
for each publisher, and the server starts after the earliest that it finds in its own log.

`str()` of each value is its wire form, and `parse_bookmark` reads every form there is:

===================  ================================================================
`0`                  `EPOCH`: from the start of the log
`0|1|`               `NOW`: no replay
`recent`             `MOST_RECENT`: a word of the client only, resolved before it is sent
`123|4|`             `Bookmark`: right after that message
`20240131T120000Z`   `Timestamp`: from that moment on, UTC
`123|4|,567|8|`      `BookmarkList`: after the earliest that is found
`[begin:end)`        `BookmarkRange`: replay between two positions, then stop
===================  ================================================================

Values are immutable, compare by value and can be pickled. Text that is none of these raises
`UsageError`; reading is lenient where servers are (a missing last bar, text after
the second bar, a fraction in a timestamp).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from typing_extensions import override

from haclient_stores.errors import UsageError

__all__ = [
    "EPOCH",
    "LAST_MICROSECOND",
    "MOST_RECENT",
    "NOW",
    "Bookmark",
    "BookmarkList",
    "BookmarkRange",
    "Epoch",
    "MostRecent",
    "Now",
    "RangeEnd",
    "StartPoint",
    "Timestamp",
    "parse_bookmark",
]

_LARGEST: Final = 2**64 - 1
_MESSAGE: Final = re.compile(r"([0-9]{1,20})\|([0-9]{1,20})(?:\|[^,:]*)?", re.DOTALL)
_TIMESTAMP: Final = re.compile(r"([0-9]{8}T[0-9]{6})(?:\.([0-9]{1,6}))?Z?")
_START_OF_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)
_END_OF_TIME: Final = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
LAST_MICROSECOND: Final = (_END_OF_TIME - _START_OF_TIME) // timedelta(microseconds=1)
_BRACKETS: Final = frozenset({"[)", "(]", "[]", "()"})


@dataclass(frozen=True, slots=True)
class Epoch:
    """The start of the log."""

    @override
    def __str__(self) -> str:
        return "0"

    @override
    def __repr__(self) -> str:
        return "EPOCH"


@dataclass(frozen=True, slots=True)
class Now:
    """The end of the log at the moment the server reads the command."""

    @override
    def __str__(self) -> str:
        return "0|1|"

    @override
    def __repr__(self) -> str:
        return "NOW"


@dataclass(frozen=True, slots=True)
class MostRecent:
    """Where this subscription left off; resolved by the client and never sent."""

    @override
    def __str__(self) -> str:
        return "recent"

    @override
    def __repr__(self) -> str:
        return "MOST_RECENT"


EPOCH: Final = Epoch()
NOW: Final = Now()
MOST_RECENT: Final = MostRecent()


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A moment, in microseconds since 1970 (UTC).

    Raises:
        UsageError: The moment lies before 1970 or after the year 9999.
    """

    microseconds: int

    def __post_init__(self) -> None:
        if not 0 <= self.microseconds <= LAST_MICROSECOND:
            raise UsageError(
                f"a timestamp lies between 1970 and 9999, not at {self.microseconds} microseconds"
            )

    @classmethod
    def parse(cls, text: str) -> Timestamp:
        """Read a timestamp.

        Args:
            text: `YYYYmmddTHHMMSS`, with an optional fraction and an optional `Z`; always UTC.

        Raises:
            UsageError: It is anything else, or has a zone other than `Z`.
        """
        found = _TIMESTAMP.fullmatch(text)
        if found is None:
            raise UsageError(f"a timestamp is YYYYmmddTHHMMSS[.ffffff][Z], not {text!r}")
        day, time = found[1].split("T")
        try:  # strptime would be imported and compiled while the first subscriber waits
            date = datetime(int(day[:4]), int(day[4:6]), int(day[6:]), tzinfo=UTC)
            whole = date.replace(hour=int(time[:2]), minute=int(time[2:4]), second=int(time[4:]))
        except ValueError as error:  # a month 13, an hour 25
            raise UsageError(f"there is no such moment as {text!r}") from error
        fraction = int((found[2] or "").ljust(6, "0"))
        return cls((whole - _START_OF_TIME) // timedelta(microseconds=1) + fraction)

    @property
    def datetime(self) -> datetime:
        """The same moment as an aware `datetime`."""
        return _START_OF_TIME + timedelta(microseconds=self.microseconds)

    @override
    def __str__(self) -> str:
        moment = self.datetime
        fraction = f".{moment.microsecond:06}" if moment.microsecond else ""
        return f"{moment.year:04}{moment:%m%dT%H%M%S}{fraction}Z"


@dataclass(frozen=True, slots=True)
class Bookmark:
    """One message: its publisher's id and that publisher's sequence number.

    Raises:
        UsageError: A number is not an unsigned 64-bit number.
    """

    publisher_id: int
    sequence: int

    def __post_init__(self) -> None:
        if not (0 <= self.publisher_id <= _LARGEST and 0 <= self.sequence <= _LARGEST):
            raise UsageError(
                "a bookmark is two unsigned 64-bit numbers, "
                f"not {self.publisher_id} and {self.sequence}"
            )

    @classmethod
    def parse(cls, text: str) -> Bookmark:
        """Read a message bookmark.

        Args:
            text: `<publisher id>|<sequence>|`. The last bar may be missing, and text after it is
                ignored.

        Raises:
            UsageError: The text is no message bookmark.
        """
        found = _MESSAGE.fullmatch(text)
        if found is None:
            raise UsageError(f"a message bookmark is <publisher id>|<sequence>|, not {text!r}")
        return cls(int(found[1]), int(found[2]))

    @staticmethod
    def at(moment: datetime) -> Timestamp:
        """The start point at a moment in time.

        Args:
            moment: An aware `datetime`.

        Raises:
            UsageError: The `datetime` has no time zone, so that it names no moment.
        """
        if moment.tzinfo is None:
            raise UsageError(f"{moment!r} has no time zone: pass an aware datetime")
        return Timestamp((moment - _START_OF_TIME) // timedelta(microseconds=1))

    @override
    def __str__(self) -> str:
        return f"{self.publisher_id}|{self.sequence}|"


@dataclass(frozen=True, slots=True)
class BookmarkList:
    """Several positions; the server starts after the earliest of those it knows.

    An empty list stands for "nothing is known" and is written `0`, the start of the log.
    """

    items: tuple[Bookmark | Timestamp, ...] = ()

    @classmethod
    def parse(cls, text: str) -> BookmarkList:
        """Read a comma list of bookmarks and timestamps.

        Args:
            text: The list; empty items and `0` alone give nothing.

        Raises:
            UsageError: An item is neither.
        """
        if text == "0":
            return cls()
        return cls(tuple(_parse_item(item) for item in map(str.strip, text.split(",")) if item))

    def __iter__(self) -> Iterator[Bookmark | Timestamp]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    @override
    def __str__(self) -> str:
        return ",".join(map(str, self.items)) or "0"


RangeEnd: TypeAlias = Epoch | Now | Bookmark | Timestamp | BookmarkList


@dataclass(frozen=True, slots=True)
class BookmarkRange:
    """A replay with an end: nothing follows it.

    A square bracket includes its end, a round one does not.

    Raises:
        UsageError: The brackets are none of `[)`, `(]`, `[]`, `()`.
    """

    begin: RangeEnd
    end: RangeEnd
    brackets: str = "[)"

    def __post_init__(self) -> None:
        if self.brackets not in _BRACKETS:
            raise UsageError(f"a range has brackets like '[)' or '(]', not {self.brackets!r}")

    @classmethod
    def parse(cls, text: str) -> BookmarkRange:
        """Read a range.

        Args:
            text: `[begin:end)`, with a round bracket at an end that is not included.

        Raises:
            UsageError: The text is not a range, or one of its ends is missing or malformed.
        """
        ends = text[1:-1].split(":")
        if text[:1] + text[-1:] not in _BRACKETS or len(ends) != 2:  # noqa: PLR2004  two ends
            raise UsageError(f"a bookmark range is [begin:end) with one colon, not {text!r}")
        return cls(_parse_end(ends[0], text), _parse_end(ends[1], text), text[0] + text[-1])

    @override
    def __str__(self) -> str:
        return f"{self.brackets[0]}{self.begin}:{self.end}{self.brackets[1]}"


StartPoint: TypeAlias = (
    Epoch | Now | MostRecent | Bookmark | Timestamp | BookmarkList | BookmarkRange
)

_WORDS: Final[dict[str, Epoch | Now | MostRecent]] = {
    "0": EPOCH,
    "0|1|": NOW,
    "0|1": NOW,
    "recent": MOST_RECENT,
}


def parse_bookmark(text: str) -> StartPoint:
    """Read a bookmark in any of its wire forms.

    Args:
        text: The wire form; spaces around it are ignored.

    Returns:
        The start point that it names.

    Raises:
        UsageError: The text is not a bookmark; the message names it.
    """
    stripped = text.strip()
    word = _WORDS.get(stripped)
    if word is not None:
        return word
    if stripped[:1] in {"[", "("}:
        return BookmarkRange.parse(stripped)
    if "," not in stripped:
        return _parse_item(stripped)
    items = BookmarkList.parse(stripped)
    if not items.items:
        raise UsageError(f"a bookmark list needs at least one bookmark, not {text!r}")
    return items.items[0] if len(items.items) == 1 else items


def _parse_item(text: str) -> Bookmark | Timestamp:
    if "|" in text:
        return Bookmark.parse(text)
    if "T" in text:
        return Timestamp.parse(text)
    raise UsageError(
        f"{text!r} is no bookmark: wanted 0, <publisher id>|<sequence>|, YYYYmmddTHHMMSS, "
        "a comma list or a [begin:end) range"
    )


def _parse_end(text: str, whole: str) -> RangeEnd:
    end = parse_bookmark(text) if text.strip() else None
    if end is None or isinstance(end, MostRecent | BookmarkRange):
        raise UsageError(f"the range {whole!r} needs a bookmark or a timestamp at each end")
    return end

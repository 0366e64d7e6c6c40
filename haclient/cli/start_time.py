"""Starts of a replay as people write them: an ISO 8601 time, or how long ago.

A time without a zone is UTC, like the bookmarks of the server: the same command line then starts at
the same message on every machine, whatever its time zone is.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from haclient.errors import UsageError
from haclient_stores.bookmark import Bookmark, StartPoint, Timestamp

FORMS: Final = (
    "a time such as 2026-11-20T09:30:00Z (UTC where it has no zone), 2026-11-20 or "
    "20261120T093000Z, or how long ago, such as 30s, 15m, 1h or 2d"
)

_AGO: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([smhdw])", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_ISO: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?)?",
    re.ASCII,
)


def parse_start_time(text: str, now: datetime) -> Timestamp:
    """The moment that a text names.

    Args:
        text: ISO 8601, `YYYYmmddTHHMMSSZ`, or a number with `s`, `m`, `h`, `d` or `w`: so long
            before `now`.
        now: The present moment, with its time zone.

    Raises:
        UsageError: It is none of these, or no moment from 1970 to 9999.
    """
    try:
        if ago := _AGO.fullmatch(text):
            return Bookmark.at(now - timedelta(seconds=float(ago[1]) * _SECONDS[ago[2]]))
        if not _ISO.fullmatch(text):
            return Timestamp.parse(text)
        moment = datetime.fromisoformat(text)
        return Bookmark.at(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (UsageError, ValueError, OverflowError) as error:  # such as month 13, or 999999999w
        raise UsageError(f"{text!r} is no time: wanted {FORMS}") from error


def parse_moment(text: str | None) -> StartPoint | str:
    """The moment that `--at` names; empty for now.

    Args:
        text: A time as `parse_start_time` takes it, or the bookmark of a message; `None` for now.

    Raises:
        UsageError: It is none.
    """
    if text is None:
        return ""
    with suppress(UsageError):
        return Bookmark.parse(text)
    try:
        now = datetime.now(UTC)  # noqa: TID251  # the command line is the edge
        return parse_start_time(text, now)
    except UsageError as error:
        raise UsageError(f"--at {error}, or a bookmark such as 7|42|") from error

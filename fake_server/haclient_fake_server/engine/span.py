"""The part of the log that a bookmark selects.

`span_of` returns the part of the log that a bookmark selects:

=================  ==========================================================================
epoch `0`          the oldest position there is
now `0|1|`         the position that comes next
a bookmark         the position after that message
a list             the earliest of those that are found; of those that were removed with the
                   beginning of the log, what comes next of their publishers counts
a timestamp        the first position at or after it; before the log begins: the oldest
a range            its begin; and its end, after which nothing follows
=================  ==========================================================================

A well-formed bookmark that this log does not hold starts at now, unless `bookmark_not_found` says
otherwise. The client resolves `recent` before it sends a bookmark, so `recent` is refused here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from haclient.errors import UsageError
from haclient_fake_server.engine.acks import Reason, Refused
from haclient_fake_server.engine.journal import MAX_SEARCHED_STRIDES, SearchTooLong
from haclient_fake_server.engine.log_writer import LogWriter
from haclient_stores.bookmark import (
    EPOCH,
    LAST_MICROSECOND,
    Bookmark,
    BookmarkList,
    BookmarkRange,
    Epoch,
    MostRecent,
    Now,
    RangeEnd,
    Timestamp,
    parse_bookmark,
)

MAX_BOOKMARKS: Final = 50_000
"""Bookmarks in one list, one for each publisher of a subscription: more take too long to read."""


class Span(NamedTuple):
    """The part of the log that a subscription asks for.

    Attributes:
        start: Its first position.
        last_position: Its last position; `None` for no such end.
        last_us: The last time in it; `None` for no such end.
        covered: See `covered_by`.
        asks_for_removed: Whether all that it begins after was removed with the beginning of the
            log, so that some of what it asks for may be missing.
    """

    start: int
    last_position: int | None = None
    last_us: int | None = None
    covered: Mapping[int, int] = MappingProxyType({})
    asks_for_removed: bool = False


def covered_by(text: str) -> Mapping[int, int]:
    """The messages that a list of bookmarks covers, as sequences by publisher id.

    A replay begins after the earliest message of the list. Later messages that the list covers are
    included in the records of a query, since its reader does not want them again.

    Args:
        text: A bookmark that `span_of` has accepted.

    Returns:
        Empty for a single bookmark and for other starts: they cover nothing that follows them.
    """
    point = parse_bookmark(text)
    if isinstance(point, BookmarkRange):
        point = point.begin if point.brackets[0] == "(" else EPOCH
    if not isinstance(point, BookmarkList) or len(point.items) == 1:
        return {}
    covered = dict[int, int]()
    for item in point.items:
        if isinstance(item, Bookmark):
            known = covered.get(item.publisher_id, item.sequence)
            covered[item.publisher_id] = min(known, item.sequence)
    return covered


def span_of(log: LogWriter, text: str, *, not_found: str = "now") -> Span:
    """The span of this log that a bookmark selects now.

    Args:
        log: The log and the current batch.
        text: The bookmark, as it was sent.
        not_found: Where to start if the log holds none of it: `now` or `epoch`; `fail` refuses.

    Raises:
        Refused: The text is not a bookmark, or it is one that only a client may use.
        Refused: No bookmark was found and `not_found` is `fail`.
    """
    count = text.count(",") + 1
    if count > MAX_BOOKMARKS:
        raise Refused(Reason.INVALID_BOOKMARK, f"a list of {count}, at most {MAX_BOOKMARKS}")
    try:
        point = parse_bookmark(text)
    except UsageError as error:
        raise Refused(Reason.INVALID_BOOKMARK, str(error)) from error
    if isinstance(point, MostRecent):
        raise Refused(Reason.INVALID_BOOKMARK, "'recent' is to be resolved by the client")
    if isinstance(point, BookmarkRange):
        return _range(log, point, not_found)
    start, asks_for_removed = _start(log, point, inclusive=False, not_found=not_found)
    return Span(start, asks_for_removed=asks_for_removed)


def _range(log: LogWriter, span: BookmarkRange, not_found: str) -> Span:
    inclusive_begin, inclusive_end = span.brackets[0] == "[", span.brackets[1] == "]"
    begin = span.begin
    if isinstance(begin, Timestamp) and not inclusive_begin:  # in a list a time is inclusive
        begin = Timestamp(min(begin.microseconds + 1, LAST_MICROSECOND))
    start, asks_for_removed = _start(log, begin, inclusive=inclusive_begin, not_found=not_found)
    last_position, last_us = _end(log, span.end, inclusive=inclusive_end)
    if last_position is None and last_us is None:
        raise Refused(Reason.BOOKMARK_NOT_FOUND, f"the end of {span} is not in this log")
    return Span(start, last_position, last_us, asks_for_removed=asks_for_removed)


def _items(point: RangeEnd) -> tuple[Epoch | Now | Bookmark | Timestamp, ...]:
    return point.items if isinstance(point, BookmarkList) else (point,)


def _start(log: LogWriter, point: RangeEnd, *, inclusive: bool, not_found: str) -> tuple[int, bool]:
    """The first position of a span, and whether all that it begins after was removed."""
    items = _items(point)
    known = [
        _position(log, item, inclusive=inclusive)
        for item in items
        if not isinstance(item, Bookmark)
    ]
    found = _find(log, items, last=False)
    if found is not None:
        known.append(found + (0 if inclusive else 1))
        known.append(_after_removed(log, items))
    # Every log has every time. Where that is its beginning, what was removed may be missing.
    is_at_first = min(known, default=0) <= log.journal.first_position
    asks_for_removed = found is None and is_at_first and bool(_removed(log, items))
    if known and not asks_for_removed:
        return min(known), False
    if not_found == "fail" and items:
        raise Refused(Reason.BOOKMARK_NOT_FOUND, f"nothing of {point} is in this log")
    at_epoch = not_found == "epoch" or not items or known
    return log.journal.first_position if at_epoch else log.position, asks_for_removed


def _after_removed(log: LogWriter, items: Sequence[Epoch | Now | Bookmark | Timestamp]) -> int:
    """Before what follows the messages of a list that were removed with the beginning of the log.

    Without it, what follows them before the first one that was found would be skipped.
    """
    if len(items) == 1:
        return log.position
    return log.journal.first_after(_removed(log, items)) or log.position


def _removed(log: LogWriter, items: Sequence[Epoch | Now | Bookmark | Timestamp]) -> dict[int, int]:
    """The messages of a list that were removed with the beginning of the log."""
    journal, bookmarks = log.journal, [each for each in items if isinstance(each, Bookmark)]
    if journal.first_position == 1 or not bookmarks:
        return {}
    highest = journal.highest_before(journal.first_position)
    return {
        each.publisher_id: each.sequence
        for each in bookmarks
        if each.sequence <= highest.get(each.publisher_id, -1)
    }


def _position(log: LogWriter, item: Epoch | Now | Timestamp, *, inclusive: bool) -> int:
    match item:
        case Epoch():
            return log.journal.first_position
        case Now():
            if inclusive:  # the last message, if there is one
                return max(log.messages_end - 1, log.journal.first_position)
            return log.position
        case Timestamp(microseconds=moment):
            return log.journal.at_time(moment)


def _end(log: LogWriter, point: RangeEnd, *, inclusive: bool) -> tuple[int | None, int | None]:
    """The last position and the last time of a range; `None` where there is no such end."""
    items, exclusive = _items(point), 0 if inclusive else 1
    positions: list[int] = []
    found = _find(log, items, last=True)
    if found is not None:
        positions.append(found - exclusive)
    for item in items:
        if isinstance(item, Epoch):
            positions.append(log.journal.first_position - 1)
        elif isinstance(item, Now):
            positions.append(log.position - 1)
    times = [item.microseconds - exclusive for item in items if isinstance(item, Timestamp)]
    return max(positions, default=None), max(times, default=None)


def _find(
    log: LogWriter, items: Iterable[Epoch | Now | Bookmark | Timestamp], *, last: bool
) -> int | None:
    """The lowest or highest position of the messages of a list; `None` if there is none of them.

    Raises:
        Refused: To look for them would take too long.
    """
    pairs = {(item.publisher_id, item.sequence) for item in items if isinstance(item, Bookmark)}
    wanted: dict[int, list[int]] = {}
    for publisher_id, sequence in sorted(pairs):
        wanted.setdefault(publisher_id, []).append(sequence)
    of_batch = log.positions_of(pairs)
    if last and of_batch:
        return of_batch[-1]
    try:
        found = log.journal.find_outermost(wanted, last=last)
    except SearchTooLong as error:
        detail = (
            f"of a list of {len(pairs)} bookmarks none is in the first {MAX_SEARCHED_STRIDES} parts"
            " of the log that may have one: send fewer of them"
        )
        raise Refused(Reason.INVALID_BOOKMARK, detail) from error
    return found if found is not None else next(iter(of_batch), None)

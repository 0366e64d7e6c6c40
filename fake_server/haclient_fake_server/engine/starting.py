"""Where a bookmark subscription starts and ends: every form of bookmark as a position of the log.

=================  ==========================================================================
epoch `0`          the oldest position there is
now `0|1|`         the position that comes next
a bookmark         the position after that message
a list             the earliest of those that are found
a timestamp        the first position at or after it; before the log begins: the oldest
a range            its begin; and its end, after which nothing follows
=================  ==========================================================================

A well-formed bookmark that this log does not hold starts at now, unless `bookmark_not_found` says
otherwise. `recent` is a word of the client that must never arrive here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from haclient.errors import UsageError
from haclient_fake_server.engine.acks import Reason, Refused
from haclient_stores.bookmark import (
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

if TYPE_CHECKING:
    from haclient_fake_server.engine.state import State

__all__ = ["Span", "span_of"]


class Span(NamedTuple):
    """The part of the log that a subscription asks for.

    Attributes:
        start: Its first position.
        last_position: Its last position; `None` for no such end.
        last_us: The last time in it; `None` for no such end.
    """

    start: int
    last_position: int | None = None
    last_us: int | None = None


def span_of(state: State, text: str, *, not_found: str = "now") -> Span:
    """What a subscribe's bookmark means in this log, now.

    Raises:
        Refused: The text is no bookmark, or one that only a client may use.
        Refused: No bookmark was found and `not_found` is `fail`.
    """
    try:
        point = parse_bookmark(text)
    except UsageError as error:
        raise Refused(Reason.INVALID_BOOKMARK, str(error)) from error
    if isinstance(point, MostRecent):
        raise Refused(Reason.INVALID_BOOKMARK, "'recent' is to be resolved by the client")
    if isinstance(point, BookmarkRange):
        return _range(state, point, not_found)
    return Span(_start(state, point, inclusive=False, not_found=not_found))


def _range(state: State, span: BookmarkRange, not_found: str) -> Span:
    inclusive_begin, inclusive_end = span.brackets[0] == "[", span.brackets[1] == "]"
    start = _start(state, span.begin, inclusive=inclusive_begin, not_found=not_found)
    ends = [_end(state, item, inclusive=inclusive_end) for item in _items(span.end)]
    positions = [position for position, _ in ends if position is not None]
    times = [time_us for _, time_us in ends if time_us is not None]
    if not positions and not times:
        raise Refused(Reason.BOOKMARK_NOT_FOUND, f"the end of {span} is not in this log")
    return Span(start, max(positions, default=None), max(times, default=None))


def _items(point: RangeEnd) -> tuple[Epoch | Now | Bookmark | Timestamp, ...]:
    return point.items if isinstance(point, BookmarkList) else (point,)


def _start(state: State, point: RangeEnd, *, inclusive: bool, not_found: str) -> int:
    found = [_position(state, item, inclusive=inclusive) for item in _items(point)]
    known = [position for position in found if position is not None]
    if known:
        return min(known)
    if not found or not_found == "epoch":
        return state.journal.first_position
    if not_found == "fail":
        raise Refused(Reason.BOOKMARK_NOT_FOUND, f"nothing of {point} is in this log")
    return state.batch.position


def _position(
    state: State, item: Epoch | Now | Bookmark | Timestamp, *, inclusive: bool
) -> int | None:
    match item:
        case Epoch():
            return state.journal.first_position
        case Now():
            return state.batch.position - (1 if inclusive else 0)
        case Timestamp(microseconds=moment):
            return state.journal.at_time(moment)
        case Bookmark(publisher_id=publisher_id, sequence=sequence):
            found = _find(state, publisher_id, sequence)
            return None if found is None else found + (0 if inclusive else 1)


def _end(
    state: State, item: Epoch | Now | Bookmark | Timestamp, *, inclusive: bool
) -> tuple[int | None, int | None]:
    exclusive = 0 if inclusive else 1
    match item:
        case Epoch():
            return state.journal.first_position - 1, None
        case Now():
            return state.batch.position - 1, None
        case Timestamp(microseconds=moment):
            return None, moment - exclusive
        case Bookmark(publisher_id=publisher_id, sequence=sequence):
            found = _find(state, publisher_id, sequence)
            return None if found is None else found - exclusive, None


def _find(state: State, publisher_id: int, sequence: int) -> int | None:
    found = state.journal.find(publisher_id, sequence)
    return state.batch.find(publisher_id, sequence) if found is None else found

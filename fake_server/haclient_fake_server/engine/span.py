"""The part of the log that a bookmark selects.

`span_of` returns the part of the log that a bookmark selects:

=================  ==========================================================================
epoch `0`          the oldest position there is
now `0|1|`         the position that comes next
a bookmark         the position after that message
a list             the earliest of those that are found
a timestamp        the first position at or after it; before the log begins: the oldest
a range            its begin; and its end, after which nothing follows
=================  ==========================================================================

A well-formed bookmark that this log does not hold starts at now, unless `bookmark_not_found` says
otherwise. The client resolves `recent` before it sends a bookmark, so `recent` is refused here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from haclient.errors import UsageError
from haclient_fake_server.engine.acks import Reason, Refused
from haclient_fake_server.engine.state import State
from haclient_stores.bookmark import (
    EPOCH,
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


class Span(NamedTuple):
    """The part of the log that a subscription asks for.

    Attributes:
        start: Its first position.
        last_position: Its last position; `None` for no such end.
        last_us: The last time in it; `None` for no such end.
        covered: See `covered_by`.
    """

    start: int
    last_position: int | None = None
    last_us: int | None = None
    covered: Mapping[int, int] = MappingProxyType({})


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


def span_of(state: State, text: str, *, not_found: str = "now") -> Span:
    """The span of this log that a bookmark selects now.

    Args:
        state: The log and the current batch.
        text: The bookmark, as it was sent.
        not_found: Where to start if the log holds none of it: `now` or `epoch`; `fail` refuses.

    Raises:
        Refused: The text is not a bookmark, or it is one that only a client may use.
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
            if inclusive:  # the last message, if there is one
                return max(state.batch.messages_end - 1, state.journal.first_position)
            return state.batch.position
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

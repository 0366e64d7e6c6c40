"""Queries of the past: `sow_and_subscribe` with a bookmark, which only our broker serves. Pure.

The server sends the records of an earlier moment and then replays its log from there. The query is
run again after a lost connection. A delivered message is not delivered again, discarded or not. So
the records have to include it, or they would bring back the value that it has replaced. The
bookmark that is sent names the last delivered message of each publisher: the server includes in the
records all messages that the bookmark covers.

A publisher's messages have the same order on every server, so all missing messages of a publisher
come after the message that is named.

The records may lack a delivered message all the same: the server lags, or its log has another
order, or an earlier process has discarded the message before an earlier one. Such a message comes
in the replay, where the bookmark store knows it, and is delivered as a record: dropped, it would
leave the older value for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Final

from typing_extensions import override

from haclient.errors import UsageError
from haclient.protocol.messages import Message
from haclient.session.resume import ResumeContext
from haclient.session.subscriptions import (
    LASTING,
    QUERIES,
    Subscription,
)
from haclient_stores.bookmark import (
    NOW,
    Bookmark,
    BookmarkList,
    BookmarkRange,
    Epoch,
    StartPoint,
    Timestamp,
    parse_bookmark,
)
from haclient_stores.logs import logger_of

MAX_PUBLISHERS: Final = 8_192
"""How many publishers one bookmark names, at up to 42 bytes each.

The messages of further publishers are not covered: records may be older than delivered messages.
"""

_logger = logger_of(__name__)
_BEFORE_ALL: Final = Timestamp(1)  # the start of every log, as an item of a list


def is_historical(command: str, bookmark: str) -> bool:
    """Whether a command sends older records, and then a replay, each time that it resumes."""
    return command in LASTING & QUERIES and bookmark not in {"", str(NOW)}


class HistoricalSubscription(Subscription):
    """A query with a bookmark, with the replay that follows its records."""

    __slots__ = ("_delivered",)

    @override
    def prepare(self) -> None:
        self._delivered = DeliveredMessages()

    @override
    def take_records(self, run: list[Message]) -> int:
        # A server may say which message a record was last. That does not make it the same message.
        count = sum(1 for _ in takewhile(lambda message: message.kind == "sow", run))
        self._delivered.arrived(message.bookmark for message in run[count:])
        return count

    @override
    def is_caught_up_with(self, what: str) -> bool:
        return what == "completed"  # the end of the records is not yet the present

    @override
    def ends_replay(self, ack: Message) -> bool:
        # A server may send a `completed` for the query before the replay: it has no position.
        return bool(ack.bookmark)

    @property
    @override
    def can_be_paused(self) -> bool:
        # Once its records have arrived, it is a bookmark subscription like any other.
        request = self.request
        return (
            request.command == "sow_and_subscribe"
            and request.bookmark != str(NOW)
            and self.is_query_answered
            and request.is_in_log_order
        )

    @override
    def bookmark_candidates(self, resume: ResumeContext, *, resumes: bool) -> tuple[str, ...]:
        if self.request.bookmark == str(NOW):
            return (str(NOW),)  # its records are all that was missed
        return self.covering(super().bookmark_candidates(resume, resumes=resumes))

    @override
    def covering(
        self, bookmarks: tuple[str, ...], queued: Sequence[Message] = ()
    ) -> tuple[str, ...]:
        if self.log is None or not self.request.is_in_log_order:
            return bookmarks
        dropped = _bookmarks(queued)
        return tuple(self._delivered.cover(each, dropped) for each in bookmarks)

    @override
    def note_dropped(self, messages: Sequence[Message]) -> None:
        super().note_dropped(messages)
        self._delivered.dropped(_bookmarks(messages))


def _bookmarks(messages: Sequence[Message]) -> list[str]:
    """Those of the messages among what was queued, which may begin with records."""
    return [message.bookmark for message in messages if message.kind != "sow"]


class DeliveredMessages:
    """The last message of each publisher that was delivered on one subscription.

    Attributes:
        is_over_limit: Whether there were more publishers than one bookmark names.
    """

    __slots__ = ("_last", "is_over_limit")

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        self.is_over_limit = False

    def arrived(self, bookmarks: Iterable[str]) -> None:
        """Note messages that have arrived: they count as delivered unless `dropped` follows.

        Args:
            bookmarks: Their bookmarks.
        """
        last = self._last
        for publisher, sequence in _messages(bookmarks):
            if sequence > last.get(publisher, 0):
                if len(last) >= MAX_PUBLISHERS and publisher not in last:
                    self._note_over_limit()
                else:
                    last[publisher] = sequence

    def _note_over_limit(self) -> None:
        if not self.is_over_limit:
            self.is_over_limit = True
            _logger.warning(
                "a query with a bookmark has delivered messages of more than %d publishers: where "
                "it resumes, its records may be older than messages of the further ones",
                MAX_PUBLISHERS,
            )

    def dropped(self, bookmarks: Iterable[str]) -> None:
        """Note messages that were dropped before they were delivered: they are redelivered.

        Args:
            bookmarks: Their bookmarks.
        """
        self._last = self._without(bookmarks)

    def cover(self, start: str, undelivered: Iterable[str] = ()) -> str:
        """Extend a start, so that it also covers the delivered messages; return it in wire form.

        Args:
            start: Where a replay may begin so that nothing is missing, in wire form.
            undelivered: Bookmarks of queued messages, which a lost connection would drop.
        """
        last = self._without(undelivered)
        if not start or not last:
            return start
        point = parse_bookmark(start)
        if not isinstance(point, BookmarkRange):
            items = _covering(point, last)
            return start if items is None else str(items)
        if point.brackets[0] == "[" and isinstance(point.begin, BookmarkList):
            # The begin is the earliest of its items and covers nothing: no other list says that.
            return start
        # The message that a single bookmark includes comes first: it was delivered, or is not among
        # those that the subscription selects. A server lets a range that includes its begin cover
        # nothing.
        items = _covering(point.begin, last)
        return (
            start
            if items is None
            else str(BookmarkRange(items, point.end, f"({point.brackets[1]}"))
        )

    def _without(self, bookmarks: Iterable[str]) -> dict[int, int]:
        last = dict(self._last)
        for publisher, sequence in _messages(bookmarks):
            if last.get(publisher, 0) >= sequence:
                last[publisher] = sequence - 1
        return {publisher: sequence for publisher, sequence in last.items() if sequence}


def _covering(point: StartPoint, last: dict[int, int]) -> BookmarkList | None:
    """A list of the last messages and the other items of a start; `None` if it cannot be a list."""
    match point:
        case Epoch():
            found: tuple[Bookmark | Timestamp, ...] = (_BEFORE_ALL,)
        case Bookmark() | Timestamp():
            found = (point,)
        case BookmarkList(items=items):
            found = items or (_BEFORE_ALL,)
        case _:
            return None
    last = dict(last)
    others: list[Bookmark | Timestamp] = []
    for item in found:
        if isinstance(item, Bookmark):
            last[item.publisher_id] = max(item.sequence, last.get(item.publisher_id, 0))
        else:
            others.append(item)
    return BookmarkList((*(Bookmark(*each) for each in last.items()), *others))


def _messages(bookmarks: Iterable[str]) -> Iterable[tuple[int, int]]:
    for text in bookmarks:
        try:
            point = parse_bookmark(text) if text else None
        except UsageError:  # a position of another kind of server
            continue
        if isinstance(point, Bookmark):
            yield point.publisher_id, point.sequence

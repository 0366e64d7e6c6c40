"""Where a subscription goes on, in wire form: what all bookmark stores have in common. Pure.

What is finished is the recovery point, and as long as nothing is, the start is. On the server in
whose order it was made that is enough; `resume_elsewhere` is for all others (see `standing`).
"""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from haclient_stores.bookmark import (
    NOW,
    Bookmark,
    BookmarkList,
    BookmarkRange,
    Timestamp,
    parse_bookmark,
)
from haclient_stores.interfaces import SubscriptionLog
from haclient_stores.tracker.server_order import Standing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Resumption", "Start", "sequences"]


class Resumption(SubscriptionLog):
    """Answers to where a subscription goes on.

    Attributes:
        start: Where it began.
    """

    start: Start
    _standing: Standing

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget where it began and where it stands."""
        self.start = Start()
        self._standing = Standing()

    def begin_like(self, other: Resumption) -> None:
        """Begin and stand where another does now, whatever becomes of that one."""
        self.start = copy(other.start)
        self._standing = other.standing.copy()

    def take_order(self, standing: Standing) -> None:
        """Stand where another process has stood."""
        self._standing = standing

    # -- what the store knows -----------------------------------------------------------------

    @abstractmethod
    def finished_point(self) -> BookmarkList:
        """The recovery point, empty while nothing is finished."""
        ...

    @property
    @abstractmethod
    def nothing_came(self) -> bool:
        """Whether no message has arrived since the start."""
        ...

    @abstractmethod
    def arrived(self) -> Mapping[int, int]:
        """How far each publisher, by its id, has been heard of."""
        ...

    @abstractmethod
    def expected(self) -> Iterable[int]:
        """The ids of publishers of whom something has arrived that nobody holds any more."""
        ...

    # -- asking -------------------------------------------------------------------------------

    @override
    def recovery_point(self) -> BookmarkList:
        if (finished := self.finished_point()).items:
            return finished
        return BookmarkList(self.start.resume_items(nothing_came=self.nothing_came))

    @override
    def resume(self) -> str:
        return self.start.resume(self.recovery_point())

    @override
    def resume_elsewhere(self, since_us: int, after: str = "") -> tuple[str, ...]:
        finished = self.finished_point()
        named = sequences(finished)
        if any(publisher not in named for publisher in self.expected()):
            # Expected of a publisher of whom nothing is finished: in the order of another log it
            # may lie before everything that the list names. Only the start is surely before it.
            return (self.resume_from_start(),)
        return self.start.resume_elsewhere(
            self.recovery_point(), since_us, finished=bool(finished.items), after=after
        )

    @override
    def resume_from_start(self) -> str:
        return str(self.start.again) if self.start.range is None else str(self.start.range)

    # -- whose order it is --------------------------------------------------------------------

    @property
    @override
    def standing(self) -> Standing:
        return self._standing

    @property
    @override
    def in_order(self) -> bool:
        return self._standing.orders(sequences(self.finished_point()))

    @override
    def entered(self, server: str) -> None:
        arrived = dict(self.arrived())
        if self.start.entered_us and not self.start.is_now:  # where the log ended, over there
            for publisher, sequence in sequences(BookmarkList(self.start.items)).items():
                arrived.setdefault(publisher, sequence)
        self._standing.entered(server, arrived)

    @override
    def heard(self, until_us: int) -> None:
        self._standing.heard(until_us)


def sequences(point: BookmarkList) -> dict[int, int]:
    """The sequences of a list by publisher id."""
    return {each.publisher_id: each.sequence for each in point if isinstance(each, Bookmark)}


_NOW: Final = Bookmark(0, 1)  # how NOW is written


class Start:
    """The start of a subscription.

    Attributes:
        items: Bookmarks and timestamps to begin after; empty for the start of the log.
        range: The range that was asked for, if it was one.
        entered_us: When it was entered, in microseconds since 1970; 0 when nobody knows.
    """

    __slots__ = ("entered_us", "items", "range")

    def __init__(self) -> None:
        self.items: tuple[Bookmark | Timestamp, ...] = ()
        self.range: BookmarkRange | None = None
        self.entered_us = 0

    @property
    def known(self) -> bool:
        """Whether it is anything but the start of the log."""
        return bool(self.items or self.range)

    @property
    def is_now(self) -> bool:
        """Whether the subscription was entered at NOW and no position is known yet."""
        return self.items == (_NOW,)

    def set(self, wire: str) -> None:
        """Take a start from its wire form.

        Raises:
            UsageError: It is no bookmark.
        """
        match parse_bookmark(wire):
            case Bookmark() | Timestamp() as item:
                self.items = (item,)
            case BookmarkList(items=items):
                self.items = items
            case BookmarkRange() as whole:
                self.range = whole
            case point:
                self.items = (_NOW,) if point == NOW else ()

    def resume_items(self, *, nothing_came: bool) -> tuple[Bookmark | Timestamp, ...]:
        """Where to begin while nothing is finished.

        A subscription entered at NOW begins at that moment. Without a clock it may go to NOW again
        only if nothing was ever delivered; else everything is better than a gap.
        """
        if not self.is_now or (nothing_came and not self.entered_us):
            return self.items
        return (Timestamp(self.entered_us),) if self.entered_us else ()

    @property
    def again(self) -> BookmarkList:
        """Where to begin so that nothing is missing, on any server.

        The position of a `completed` counts on one server only: the time of the entry does on all.
        """
        if self.entered_us:
            return BookmarkList((Timestamp(self.entered_us),))
        return BookmarkList(self.resume_items(nothing_came=False))

    def resume(self, point: BookmarkList) -> str:
        """The wire form for a re-subscribe: a range keeps its end."""
        if self.range is None:
            return str(point)
        if not point.items:
            return str(self.range)
        return str(BookmarkRange(point, self.range.end, "(" + self.range.brackets[1]))

    def resume_elsewhere(
        self, point: BookmarkList, since_us: int, *, finished: bool, after: str = ""
    ) -> tuple[str, ...]:
        """Wire forms for a server whose log may have another order, the best first.

        A server begins at the earliest item that it has, and it has every time. So the list also
        carries a time: the one that is given, but never one before an entry at NOW, which asked
        for nothing older. While nothing is finished, all since that entry is still to come.

        Args:
            point: The recovery point.
            since_us: The time to begin at, in microseconds since 1970; 0 when nobody knows.
            finished: Whether the point is more than the start itself.
            after: A bookmark to begin after; empty when there is none.
        """
        plain = self.resume(_with(point, after))
        named = any(isinstance(item, Bookmark) and item != _NOW for item in point.items)
        if self.range is not None or not named or not since_us:
            return (plain,)
        if self.entered_us and not finished:
            time = str(Timestamp(self.entered_us))
            return f"{plain},{time}", time
        return f"{plain},{Timestamp(max(since_us, self.entered_us))}", plain


def _with(point: BookmarkList, after: str) -> BookmarkList:
    """A list that also carries a bookmark; of one publisher the lower counts."""
    item = parse_bookmark(after) if after else None
    if not isinstance(item, Bookmark) or item == _NOW or not point.items:
        return point
    lower = [
        item
        if isinstance(each, Bookmark)
        and each.publisher_id == item.publisher_id
        and each.sequence > item.sequence
        else each
        for each in point.items
    ]
    publishers = {each.publisher_id for each in lower if isinstance(each, Bookmark)}
    return BookmarkList((*lower, item) if item.publisher_id not in publishers else tuple(lower))

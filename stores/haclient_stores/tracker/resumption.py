"""Where a subscription resumes, in wire form; shared by all bookmark stores. Pure.

The recovery point names the last finished messages or, while there are none, the start. On the
server in whose order it was made that is enough. For any other server `resume_elsewhere` adds a
time (`server_order`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from copy import copy
from typing import Final

from haclient_stores.bookmark import (
    NOW,
    Bookmark,
    BookmarkList,
    BookmarkRange,
    Timestamp,
    parse_bookmark,
)
from haclient_stores.tracker.server_order import ServerOrder


class Resumption:
    """Computes where a subscription resumes.

    Attributes:
        start: Where it began.
    """

    start: Start
    _server_order: ServerOrder

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the start and the server order."""
        self.start = Start()
        self._server_order = ServerOrder()

    def copy_start(self, other: Resumption) -> None:
        """Copy the start and the server order of another subscription.

        Args:
            other: The other one; later changes to it do not matter.
        """
        self.start = copy(other.start)
        self._server_order = other.server_order.copy()

    def set_server_order(self, server_order: ServerOrder) -> None:
        """Take over the server order of another process."""
        self._server_order = server_order

    # -- what the store knows -----------------------------------------------------------------

    @abstractmethod
    def finished_point(self) -> BookmarkList:
        """The recovery point, empty while nothing is finished."""
        ...

    @property
    @abstractmethod
    def nothing_arrived(self) -> bool:
        """Whether no message has arrived since the start."""
        ...

    @abstractmethod
    def arrived(self) -> Mapping[int, int]:
        """The highest sequence received of each publisher, by its id."""
        ...

    @abstractmethod
    def awaiting_redelivery(self) -> Iterable[int]:
        """The ids of the publishers of entries that await redelivery."""
        ...

    # -- asking -------------------------------------------------------------------------------

    def recovery_point(self) -> BookmarkList:
        """See `SubscriptionLog.recovery_point`."""
        if (finished := self.finished_point()).items:
            return finished
        return BookmarkList(self.start.resume_items(nothing_arrived=self.nothing_arrived))

    def resume(self) -> str:
        """See `SubscriptionLog.resume`."""
        return self.start.resume(self.recovery_point())

    def resume_elsewhere(self, since_us: int, after: str = "") -> tuple[str, ...]:
        """See `SubscriptionLog.resume_elsewhere`."""
        finished = self.finished_point()
        named = sequences(finished)
        if any(publisher not in named for publisher in self.awaiting_redelivery()):
            # A message that awaits redelivery is of a publisher with nothing finished. In another
            # log it may precede everything that the list names. Only the start surely precedes it.
            return (self.resume_from_start(),)
        return self.start.resume_elsewhere(
            self.recovery_point(), since_us, finished=bool(finished.items), after=after
        )

    def resume_from_start(self) -> str:
        """See `SubscriptionLog.resume_from_start`."""
        return str(self.start.on_any_server) if self.start.range is None else str(self.start.range)

    # -- server order ---------------------------------------------------------------------------

    @property
    def server_order(self) -> ServerOrder:
        """See `SubscriptionLog.server_order`."""
        return self._server_order

    @property
    def in_order(self) -> bool:
        """See `SubscriptionLog.in_order`."""
        return self._server_order.orders(sequences(self.finished_point()))

    def entered(self, server: str) -> None:
        """See `SubscriptionLog.entered`."""
        arrived = dict(self.arrived())
        if self.start.entered_us and not self.start.is_now:  # where the log ended, over there
            for publisher, sequence in sequences(BookmarkList(self.start.items)).items():
                arrived.setdefault(publisher, sequence)
        self._server_order.entered(server, arrived)

    def caught_up(self, until_us: int) -> None:
        """See `SubscriptionLog.caught_up`."""
        self._server_order.caught_up(until_us)


def sequences(point: BookmarkList) -> dict[int, int]:
    """The sequences of a list by publisher id; times are left out.

    Args:
        point: The list.
    """
    return {each.publisher_id: each.sequence for each in point if isinstance(each, Bookmark)}


_NOW: Final = Bookmark(0, 1)  # how NOW is written


class Start:
    """The start of a subscription.

    Attributes:
        items: Bookmarks and timestamps to begin after; empty for the start of the log.
        range: The requested range, if a range was requested.
        entered_us: When it was entered, in microseconds since 1970; 0 when unknown.
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

        Args:
            wire: A bookmark in any wire form.

        Raises:
            UsageError: It is not a bookmark.
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

    def add(self, item: Bookmark | Timestamp) -> None:
        """Begin after one more bookmark or timestamp."""
        self.items = (*self.items, item)

    def resume_items(self, *, nothing_arrived: bool) -> tuple[Bookmark | Timestamp, ...]:
        """Where to begin while nothing is finished.

        A subscription entered at NOW begins at that moment. Without a clock it may begin at NOW
        again only if nothing was ever delivered; otherwise it begins at the start of the log,
        since redelivery is better than a gap.

        Args:
            nothing_arrived: Whether no message was received since the start.
        """
        if not self.is_now or (nothing_arrived and not self.entered_us):
            return self.items
        return (Timestamp(self.entered_us),) if self.entered_us else ()

    @property
    def on_any_server(self) -> BookmarkList:
        """Where to begin on any server so that nothing is missing.

        The position of a `completed` counts on one server only; the time of the entry on all.
        """
        if self.entered_us:
            return BookmarkList((Timestamp(self.entered_us),))
        return BookmarkList(self.resume_items(nothing_arrived=False))

    def resume(self, point: BookmarkList) -> str:
        """The wire form for a re-subscribe; a range keeps its end.

        Args:
            point: The recovery point, or where to begin while nothing is finished.
        """
        if self.range is None:
            return str(point)
        if not point.items:
            return str(self.range)
        # Messages of a bookmark were delivered; those of exactly a time may not have been.
        opening = "[" if all(isinstance(each, Timestamp) for each in point.items) else "("
        return str(BookmarkRange(point, self.range.end, opening + self.range.brackets[1]))

    def resume_elsewhere(
        self, point: BookmarkList, since_us: int, *, finished: bool, after: str = ""
    ) -> tuple[str, ...]:
        """Wire forms for a server whose log may have another order, the best first.

        A server begins at the earliest item that it has, and it has every time. So the list also
        carries a time: the one that is given, but never one before an entry at NOW, which asked
        for nothing older. While nothing is finished, all since that entry is still to come.

        Args:
            point: The recovery point.
            since_us: The time to begin at, in microseconds since 1970; 0 when unknown.
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

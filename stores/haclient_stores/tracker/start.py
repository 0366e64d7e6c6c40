"""Where a subscription began: what it resumes from until something is finished. Pure."""

from __future__ import annotations

from typing import Final

from haclient_stores.bookmark import (
    NOW,
    Bookmark,
    BookmarkList,
    BookmarkRange,
    Timestamp,
    parse_bookmark,
)

__all__ = ["Start"]

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

"""Where a subscription goes on, in wire form: what all bookmark stores have in common. Pure.

What is finished is the recovery point, and as long as nothing is, the start is. On the server in
whose order it was made that is enough; `resume_elsewhere` is for all others (see `standing`).
"""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from typing import TYPE_CHECKING

from typing_extensions import override

from haclient_stores.bookmark import Bookmark, BookmarkList
from haclient_stores.interfaces import SubscriptionLog
from haclient_stores.tracker.server_order import Standing
from haclient_stores.tracker.start import Start

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Resumption", "sequences"]


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

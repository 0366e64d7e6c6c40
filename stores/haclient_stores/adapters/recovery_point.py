"""Recovery point adapters: a copy of each recovery point somewhere else.

A store in a file is gone with its file, and is no help on another host. An adapter keeps the newest
recovery point of each subscription elsewhere: in a topic of the server, in a database. It knows no
discards behind the point, so what was discarded out of order may come again from it; nothing is
lost.

**Whose order.** A list of bookmarks is a safe place to begin on the server in whose order it was
made. On any other a publisher that it does not name may stand earlier. So a point also says which
server that was, and a time: everything that servers had until then has arrived and is discarded.
Without the time, on another server, only the start of the log is surely safe. An older time is
always safe, too. So a time that has moved is told with the next bookmark, when it has moved by
some seconds, and at the end.

**Order of calls.** The client calls `recover` once, before the first subscribe, and hands the
points to the store. Then it looks about ten times a second which points have moved and calls
`update` for those: a discard itself never waits for an adapter. When it leaves it tells the last
points and calls `close`. `update`, `purge` and `poll` only enqueue.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from haclient_stores.bookmark import Bookmark, BookmarkList

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "CAUGHT_UP_EVERY_US",
    "PointFeed",
    "RecoveryPoint",
    "RecoveryPointAdapter",
    "TimedAdapter",
    "positions",
]

CAUGHT_UP_EVERY_US: Final = 5_000_000
"""By so much a time has moved that is told without a new bookmark."""


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """Where one subscription may resume.

    Attributes:
        sub_id: The subscription.
        bookmark: A comma list in wire form, one bookmark for each publisher.
        server: The address of the server in whose order the list is; empty when nobody knows.
        caught_up_us: Everything that servers had at this time was received and discarded. In
            microseconds since 1970; 0 when nobody knows.
        generation: How often the subscription was begun anew, at an explicit start or by a purge:
            a point of a lower generation than the store's is older, whatever it names. From 1 on;
            0 when nobody knows.
    """

    sub_id: str
    bookmark: str
    server: str = ""
    caught_up_us: int = 0
    generation: int = 0


class RecoveryPointAdapter(Protocol):
    """Keeps the newest recovery point of each subscription of one client."""

    @abstractmethod
    async def recover(self, client_name: str) -> Iterable[RecoveryPoint]:
        """The points that are kept for a client; called once, before it subscribes.

        Raises:
            UsageError: The adapter cannot serve this client.
        """
        ...

    @abstractmethod
    def update(self, point: RecoveryPoint) -> None:
        """A point has moved; only the newest of each subscription counts. Never waits."""
        ...

    @abstractmethod
    def purge(self, sub_id: str | None = None) -> None:
        """Forget one subscription, or all of them. Never waits."""
        ...

    @abstractmethod
    async def prune(self) -> None:
        """Give back the space of what was purged."""
        ...

    @abstractmethod
    async def close(self) -> None:
        """Write what is still enqueued, and let go; twice is the same as once."""
        ...


@runtime_checkable
class TimedAdapter(RecoveryPointAdapter, Protocol):
    """An adapter that holds updates back for a while."""

    @abstractmethod
    def poll(self, now: float) -> None:
        """The time in seconds, about ten times a second: write what has waited long enough."""
        ...


class PointFeed:
    """Tells an adapter which recovery points have moved. Pure: the client's shell calls it.

    Args:
        points: Gives the point of each subscription; one without a bookmark has none.
        adapter: Who is told.
    """

    def __init__(
        self, points: Callable[[], Iterable[RecoveryPoint]], adapter: RecoveryPointAdapter
    ) -> None:
        self._points = points
        self._adapter = adapter
        self._told: dict[str, RecoveryPoint] = {}

    def told(self, points: Iterable[RecoveryPoint]) -> None:
        """The adapter has these already."""
        self._told.update((point.sub_id, point) for point in points)

    def tell(self, *, last: bool = False) -> None:
        """Look at every subscription and tell what has moved.

        Args:
            last: Nothing comes after this.
        """
        for point in list(self._points()):
            told = self._told.get(point.sub_id) or RecoveryPoint(point.sub_id, "")
            if not point.bookmark:  # purged, or begun anew at an explicit start
                if told.bookmark:
                    self._adapter.purge(point.sub_id)
            elif _moved(point, told, CAUGHT_UP_EVERY_US if not last else 1):
                self._adapter.update(point)
            else:
                continue
            self._told[point.sub_id] = point  # not if it raised: then it is told again


def _moved(point: RecoveryPoint, told: RecoveryPoint, by_us: int) -> bool:
    """Whether to tell it; a time that is lower than before belongs to a start anew."""
    same = (point.bookmark, point.server) == (told.bookmark, told.server)
    same = same and told.generation in {0, point.generation}
    return not (same and 0 <= point.caught_up_us - told.caught_up_us < by_us)


def positions(point: BookmarkList) -> dict[int, int]:
    """Publisher ids and sequences; empty for a list with anything but bookmarks of messages.

    A time, or NOW, is where a subscription began. That is no place that it has got to.
    """
    found = {b.publisher_id: b.sequence for b in point if isinstance(b, Bookmark)}
    return found if len(found) == len(point) and 0 not in found else {}

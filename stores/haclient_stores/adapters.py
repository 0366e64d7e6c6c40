"""Recovery point adapters: a copy of each recovery point somewhere else (RP1, RP2).

A store in a file is gone with its file, and is no help on another host. An adapter keeps the newest
recovery point of each subscription elsewhere: in a topic of the server, in a database. It knows no
discards behind the point, so what was discarded out of order may come again from it; nothing is
lost.

**Order.** The client calls `recover` once, before the first subscribe, and hands the points to the
store. Then it looks about ten times a second which points have moved and calls `update` for those:
a discard itself never waits for an adapter. When it leaves it tells the last points and calls
`close`. `update`, `purge` and `poll` only enqueue.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from haclient_stores.bookmarks import Bookmark, BookmarkList

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from haclient_stores.interfaces import SubscriptionLog

__all__ = ["PointFeed", "RecoveryPoint", "RecoveryPointAdapter", "TimedAdapter", "positions"]


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """Where one subscription may resume.

    Attributes:
        sub_id: The subscription.
        bookmark: A comma list in wire form, one bookmark for each publisher.
    """

    sub_id: str
    bookmark: str


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
        subscriptions: The subscriptions of a store, as they come and go.
        adapter: Who is told.
    """

    def __init__(
        self, subscriptions: Mapping[str, SubscriptionLog], adapter: RecoveryPointAdapter
    ) -> None:
        self._subscriptions = subscriptions
        self._adapter = adapter
        self._told: dict[str, str] = {}

    def told(self, points: Iterable[RecoveryPoint]) -> None:
        """The adapter has these already."""
        self._told.update((point.sub_id, point.bookmark) for point in points)

    def tell(self) -> None:
        """Look at every subscription and tell what has moved."""
        for sub_id, handle in list(self._subscriptions.items()):
            point = handle.recovery_point()
            bookmark = str(point) if positions(point) else ""
            if bookmark == self._told.get(sub_id, ""):
                continue
            if bookmark:
                self._adapter.update(RecoveryPoint(sub_id, bookmark))
            else:  # purged, or begun anew at an explicit start
                self._adapter.purge(sub_id)
            self._told[sub_id] = bookmark  # not if it raised: then it is told again


def positions(point: BookmarkList) -> dict[int, int]:
    """Publisher ids and sequences; empty for a list with anything but bookmarks of messages.

    A time, or NOW, is where a subscription began. That is no place that it has got to.
    """
    found = {b.publisher_id: b.sequence for b in point if isinstance(b, Bookmark)}
    return found if len(found) == len(point) and 0 not in found else {}

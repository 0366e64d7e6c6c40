"""Recovery point adapters: a copy of each recovery point somewhere else.

A store in a file is lost with its file, and is no help on another host. An adapter keeps the newest
recovery point of each subscription elsewhere: in a topic of the server, in a database. It knows no
discards after the point, so messages that were discarded out of order may be redelivered; nothing
is lost.

**Server order.** A list of bookmarks is a safe place to begin on the server in whose order it was
made. On any other server a publisher that it does not name may stand earlier. So a point also names
that server and a time: everything that the servers had until then was received and is discarded.
Without the time, only the start of the log is safe on another server. An older time is always safe,
too. So a time that has moved is sent with the next bookmark, when it has moved by some seconds, and
at the end.

**Order of calls.** The client calls `recover` once, before the first subscribe, and hands the
points to the store. Then it checks about ten times a second which points have moved and calls
`update` for those: a discard itself never waits for an adapter. At shutdown it sends the last
points and calls `close`. `update`, `purge` and `poll` only enqueue.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from haclient_stores.bookmark import Bookmark, BookmarkList

__all__ = [
    "CAUGHT_UP_EVERY_US",
    "PointFeed",
    "RecoveryPoint",
    "RecoveryPointAdapter",
    "TimedAdapter",
    "positions",
]

CAUGHT_UP_EVERY_US: Final = 5_000_000
"""A time that has moved by this much is sent without a new bookmark, in microseconds."""


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """Where one subscription may resume.

    Attributes:
        sub_id: The subscription.
        bookmark: A comma list in wire form, one bookmark for each publisher.
        server: The address of the server in whose order the list is; empty when unknown.
        caught_up_us: Everything that servers had at this time was received and discarded. In
            microseconds since 1970; 0 when unknown.
        generation: How often the subscription was started over, at an explicit start or by a purge:
            a point of a lower generation than the store's is older, whatever it names. From 1 on;
            0 when unknown.
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
        """The saved points of a client; called once, before it subscribes.

        Args:
            client_name: The name of the client.

        Returns:
            The newest point of each subscription.

        Raises:
            UsageError: The adapter cannot serve this client.
        """
        ...

    @abstractmethod
    def update(self, point: RecoveryPoint) -> None:
        """Enqueue a point that has moved. Never waits.

        Args:
            point: The point; only the newest of each subscription counts.
        """
        ...

    @abstractmethod
    def purge(self, sub_id: str | None = None) -> None:
        """Enqueue that a subscription was forgotten. Never waits.

        Args:
            sub_id: The id of the subscription; None for all of them.
        """
        ...

    @abstractmethod
    async def prune(self) -> None:
        """Give back the space of what was purged."""
        ...

    @abstractmethod
    async def close(self) -> None:
        """Write what is still enqueued, and release resources; a second call does nothing."""
        ...


@runtime_checkable
class TimedAdapter(RecoveryPointAdapter, Protocol):
    """An adapter that holds updates back for a while."""

    @abstractmethod
    def poll(self, now: float) -> None:
        """Write what has waited long enough; called about ten times a second.

        Args:
            now: The time in seconds, on a clock that never steps.
        """
        ...


class PointFeed:
    """Sends recovery points that have moved to an adapter. Pure: the client's shell calls it.

    Args:
        adapter: Where they are sent.
    """

    def __init__(self, adapter: RecoveryPointAdapter) -> None:
        self._adapter = adapter
        self._sent: dict[str, RecoveryPoint] = {}

    def mark_sent(self, points: Iterable[RecoveryPoint]) -> None:
        """Note points that the adapter has already.

        Args:
            points: What it has returned at the start.
        """
        self._sent.update((point.sub_id, point) for point in points)

    def send_moved(self, points: Iterable[RecoveryPoint], *, last: bool = False) -> None:
        """Compare points with the last ones sent, and send what has moved.

        Args:
            points: Of the subscriptions that may have moved; one without a bookmark has none.
            last: Nothing comes after this; then of all subscriptions.
        """
        for point in points:
            sent = self._sent.get(point.sub_id) or RecoveryPoint(point.sub_id, "")
            if not point.bookmark:  # purged, or started over at an explicit start
                if sent.generation and sent.generation == point.generation:
                    continue  # neither: the store has an older state of its file, so keep the point
                if sent.bookmark:
                    self._adapter.purge(point.sub_id)
            elif _moved(point, sent, CAUGHT_UP_EVERY_US if not last else 1):
                self._adapter.update(point)
            else:
                continue
            self._sent[point.sub_id] = point  # not reached if it raised: then it is sent again


def _moved(point: RecoveryPoint, sent: RecoveryPoint, by_us: int) -> bool:
    """Whether to send it; a lower time than before belongs to a new start."""
    same = (point.bookmark, point.server) == (sent.bookmark, sent.server)
    same = same and sent.generation in {0, point.generation}
    return not (same and 0 <= point.caught_up_us - sent.caught_up_us < by_us)


def positions(point: BookmarkList) -> dict[int, int]:
    """The position of a recovery point.

    A time, or NOW, is where a subscription began and no position that it has reached.

    Args:
        point: A list of bookmarks.

    Returns:
        Sequences by publisher id; empty for a list with anything but bookmarks of messages.
    """
    found = {b.publisher_id: b.sequence for b in point if isinstance(b, Bookmark)}
    return found if len(found) == len(point) and 0 not in found else {}

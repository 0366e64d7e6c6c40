"""What our bookmark stores have in common: a tracker for each subscription, and who is told.

A store of ours is a `SubscriptionTracker` for each subscription and a way to remember its moves.
This is the first half; memory, logged and ring stores add the second.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from typing_extensions import override

from haclient_stores.adapters.recovery_point import RecoveryPoint, positions
from haclient_stores.bookmark import LAST_MICROSECOND, Bookmark, BookmarkList
from haclient_stores.checks import check_adapter, check_has, check_utf8
from haclient_stores.errors import UsageError
from haclient_stores.interfaces import BookmarkStore, SubscriptionLog
from haclient_stores.tools.explain import Explanation, Survival, explain
from haclient_stores.tracker.entries import Publishers
from haclient_stores.tracker.server_order import NOWHERE, Standing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from haclient_stores.adapters.recovery_point import RecoveryPointAdapter
    from haclient_stores.bookmark_stores.watching import UndiscardedWatch
    from haclient_stores.disk.durable_file import Durability
    from haclient_stores.tracker.tracker import SubscriptionTracker

__all__ = ["Tracked", "TrackedBookmarkStore", "point_of", "standing_of"]


class Tracked(SubscriptionLog, Protocol):
    """The handle of a subscription that has a tracker."""

    @abstractmethod
    def seed(self, newest: dict[int, int], standing: Standing) -> None:
        """Begin where another process has got to, and stand where it stood."""
        ...

    @abstractmethod
    def forget(self) -> None:
        """Know nothing, also where it is kept."""
        ...


_Handle = TypeVar("_Handle", bound=Tracked)


class TrackedBookmarkStore(BookmarkStore, Generic[_Handle]):
    """A bookmark store with a tracker for each subscription.

    Args:
        adapter: Keeps a copy of the recovery points somewhere else (RP2).
        watch: Warns of messages that stay undiscarded (BS5).

    Attributes:
        adapter: The same.
        watch: The same.
        durability: What the client waits for.

    Raises:
        UsageError: One of the two is something else.
    """

    _survival: Survival  # what the next process finds
    durability: Durability = "process"

    def __init__(
        self, adapter: RecoveryPointAdapter | None = None, watch: UndiscardedWatch | None = None
    ) -> None:
        if adapter is not None:
            check_adapter("adapter", adapter)
        if watch is not None:
            check_has("watch", watch, "an UndiscardedWatch", "look")
        self.adapter = adapter
        self.watch = watch
        self._publishers = Publishers()
        self._subscriptions: dict[str, _Handle] = {}
        self._client_name = ""

    @property
    @override
    def client_name(self) -> str:
        return self._client_name

    @property
    def subscriptions(self) -> Mapping[str, _Handle]:
        """All subscriptions by id, for those who look."""
        return self._subscriptions

    def subscription(self, sub_id: str) -> _Handle:
        """The fast handle of one subscription; always the same object for the same id (BS7)."""
        found = self._subscriptions.get(sub_id)
        if found is not None:
            return found
        check_utf8("sub_id", sub_id)
        return self._new_subscription(sub_id)

    @abstractmethod
    def _new_subscription(self, sub_id: str) -> _Handle:
        """Enter a subscription that was never seen."""

    @abstractmethod
    def _tracker(self, handle: _Handle) -> SubscriptionTracker:
        """What a handle is about."""

    @override
    def purge(self, sub_id: str | None = None) -> None:
        for name in list(self._subscriptions) if sub_id is None else [sub_id]:
            self.subscription(name).forget()

    # -- one call for each message --------------------------------------------------------------

    @override
    def log(self, sub_id: str, bookmark: str) -> int:
        return self.subscription(sub_id).log(bookmark)

    @override
    def discard(self, sub_id: str, number: int) -> None:
        self.subscription(sub_id).discard(number)

    @override
    def discard_up_to(self, sub_id: str, number: int) -> None:
        self.subscription(sub_id).discard_up_to(number)

    @override
    def is_discarded(self, sub_id: str, bookmark: str) -> bool:
        return self.subscription(sub_id).is_discarded(bookmark)

    @override
    def most_recent(self, sub_id: str) -> BookmarkList:
        found = self._subscriptions.get(sub_id)
        return BookmarkList() if found is None else found.recovery_point()

    @override
    def persisted(self, sub_id: str, bookmark: str) -> None:
        self.subscription(sub_id).persisted(bookmark)

    @override
    def oldest_undiscarded(self, sub_id: str) -> int:
        return self.subscription(sub_id).oldest_undiscarded

    # -- what the client's shell asks --------------------------------------------------------------

    @property
    def prunes(self) -> bool:
        """Whether it has a policy for pruning."""
        return False

    def prune_due(self, now: float) -> bool:  # noqa: ARG002  # for those that have a policy
        """Whether the policy wants a prune now; `now` is in seconds, of any even clock."""
        return False

    @property
    def needs_sync(self) -> bool:
        """Whether something was written since the last `sync` began."""
        return False

    def sync(self) -> None:
        """Write everything through to the disk, if there is one; may run in a thread."""

    # -- looking and seeding ----------------------------------------------------------------------

    def explain(self, sub_id: str) -> Explanation:
        """What comes again, and what does not, if the process died now.

        Raises:
            UsageError: The store knows no such subscription.
        """
        return explain(sub_id, self._known(sub_id), self._publishers, self._survival)

    def entries(self, sub_id: str) -> Iterator[tuple[int, Bookmark, bool]]:
        """Number, bookmark and whether discarded, of all messages that are not finished.

        Of many that were discarded behind an undiscarded one the last of each publisher may do.
        """
        tracker, ids = self._known(sub_id), self._publishers.ids
        point = positions(tracker.recovery_point())
        for number, publisher, sequence, discarded in tracker.entries():
            if not discarded or sequence > point.get(ids[publisher], 0):
                yield number, Bookmark(ids[publisher], sequence), discarded

    def _known(self, sub_id: str) -> SubscriptionTracker:
        found = self._subscriptions.get(sub_id)
        if found is None:
            known = ", ".join(self._subscriptions) or "none"
            raise UsageError(f"no subscription {sub_id!r} in this store; it knows {known}")
        return self._tracker(found)

    def seed(self, points: Iterable[RecoveryPoint]) -> None:
        """Take over recovery points that were kept elsewhere, where they are ahead (RP6).

        The store's own knowledge is finer: it also knows what was discarded behind the point. So
        a point is only taken when it is ahead of it for every publisher: then the file was lost,
        or is from before the subscription went on at another host.

        Raises:
            UsageError: A point is no list of bookmarks; nothing was taken over.
        """
        for point, newest in [(point, self._positions(point)) for point in points]:
            handle = self._subscriptions.get(point.sub_id)
            own: dict[int, int] = {}
            if handle is not None:
                tracker = self._tracker(handle)
                own = tracker.applied()
                if newest == self._positions(point_of(point.sub_id, tracker)):
                    continue  # which is the start, while nothing is finished
            ahead = all(newest.get(publisher, 0) >= own[publisher] for publisher in own)
            if newest and ahead and newest != own:
                self.subscription(point.sub_id).seed(newest, standing_of(point))

    def _positions(self, point: RecoveryPoint) -> dict[int, int]:
        try:
            found = positions(BookmarkList.parse(point.bookmark))
        except UsageError as error:
            raise UsageError(
                f"the recovery point of the subscription {point.sub_id!r} cannot be used: {error}; "
                "delete it where the adapter keeps it"
            ) from error
        return {self._publishers.index(each): sequence for each, sequence in found.items()}

    def recovery_points(self) -> Iterator[RecoveryPoint]:
        """Where each subscription has got to, as adapters are told; without a bookmark, nowhere."""
        for sub_id, handle in list(self._subscriptions.items()):
            yield point_of(sub_id, self._tracker(handle))


def point_of(sub_id: str, tracker: SubscriptionTracker) -> RecoveryPoint:
    """Where one subscription has got to.

    One that was entered at NOW asked for nothing older than its entry, so that time is safe too.
    """
    point = tracker.recovery_point()
    standing = tracker.standing
    standing.settle(tracker.oldest_undiscarded, tracker.next_number)
    in_order = standing.server != NOWHERE and (not standing.before or tracker.in_order)
    return RecoveryPoint(
        sub_id,
        str(point) if positions(point) else "",
        standing.server if in_order else "",
        max(standing.settled_us, tracker.start.entered_us),
    )


def standing_of(point: RecoveryPoint) -> Standing:
    """Where a subscription stands that begins with this; a time that cannot be counts as none."""
    heard_us = point.heard_us if 0 < point.heard_us <= LAST_MICROSECOND else 0
    return Standing(point.server or NOWHERE, heard_us=heard_us, settled_us=heard_us)

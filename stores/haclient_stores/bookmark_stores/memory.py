"""Bookmark stores without a file: one in memory, and one that keeps nothing."""

from __future__ import annotations

from typing_extensions import override

from haclient_stores.bookmark import BookmarkList
from haclient_stores.bookmark_stores.subscription import StoreNotes, SubscriptionHandle
from haclient_stores.bookmark_stores.tracked_store import TrackedBookmarkStore
from haclient_stores.checks import check_text
from haclient_stores.disk.ownership import check_client_name
from haclient_stores.interfaces import BookmarkStore
from haclient_stores.tools.explain import Survival
from haclient_stores.tracker.tracker import UNTRACKED, SubscriptionTracker

__all__ = ["MemoryBookmarkStore", "NullBookmarkStore"]


class MemoryBookmarkStore(TrackedBookmarkStore):
    """Keeps what subscriptions have received and finished in memory.

    It survives lost links, but not the process. With an adapter the next process, on any host,
    starts at the recovery points.
    """

    _survival = Survival.NOTHING

    @override
    def open_for(self, client_name: str) -> None:
        self._thread.check_opening()
        check_client_name("memory", self._client_name, client_name)
        self._client_name = client_name

    @override
    def _new_subscription(self, sub_id: str) -> SubscriptionHandle:
        tracker = SubscriptionTracker(self._publishers)
        found = self._subscriptions[sub_id] = SubscriptionHandle(StoreNotes(tracker, self._thread))
        return found

    def purge_ended(self, sub_id: str) -> None:
        """Purge a subscription that has ended and whose id is not used again.

        Args:
            sub_id: The id of the subscription.
        """
        self.purge(sub_id)
        if self.adapter is None:  # else the adapter has yet to be told of the purge
            del self._subscriptions[sub_id]

    @override
    def prune(self) -> None:
        """Memory holds nothing that is finished."""

    @override
    def close(self) -> None:
        """Release the store. The next client of the process gets all undiscarded messages again."""
        for each in self._subscriptions.values():
            each.tracker.link_lost(0)
        self._thread.release()


class NullBookmarkStore(BookmarkStore):
    """Keeps nothing: every message is delivered, and MOST_RECENT is the start of the log.

    For tests and for subscriptions that are replayed from the start on purpose.
    """

    @property
    @override
    def client_name(self) -> str:
        return ""

    @override
    def open_for(self, client_name: str) -> None:
        """Check the name; the store belongs to no client."""
        check_text("client_name", client_name)

    @override
    def log(self, sub_id: str, bookmark: str) -> int:
        return UNTRACKED

    @override
    def discard(self, sub_id: str, number: int) -> None:
        """Nothing to forget."""

    @override
    def discard_up_to(self, sub_id: str, number: int) -> None:
        """Nothing to forget."""

    @override
    def is_discarded(self, sub_id: str, bookmark: str) -> bool:
        return False

    @override
    def most_recent(self, sub_id: str) -> BookmarkList:
        return BookmarkList()

    @override
    def persisted(self, sub_id: str, bookmark: str) -> None:
        """No point to move."""

    @override
    def oldest_undiscarded(self, sub_id: str) -> int:
        return 0

    @override
    def purge(self, sub_id: str | None = None) -> None:
        """Nothing to forget."""

    @override
    def prune(self) -> None:
        """Nothing to give back."""

    @override
    def close(self) -> None:
        """Nothing to release."""

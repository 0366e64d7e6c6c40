"""A bookmark store in the memory of the process (BS13): it survives lost links, not the process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from haclient_stores.bookmarks import BookmarkList
from haclient_stores.entries import Publishers
from haclient_stores.errors import StoreLocked
from haclient_stores.interfaces import BookmarkStore
from haclient_stores.tracking import SubscriptionTracker

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MemoryBookmarkStore"]


class MemoryBookmarkStore(BookmarkStore):
    """Remembers what subscriptions have received and finished (BS1-BS13, BS19)."""

    def __init__(self) -> None:
        self._publishers = Publishers()
        self._subscriptions: dict[str, SubscriptionTracker] = {}
        self._client_name = ""

    @property
    @override
    def client_name(self) -> str:
        return self._client_name

    @property
    def subscriptions(self) -> Mapping[str, SubscriptionTracker]:
        """What is known of each subscription, for those who look."""
        return self._subscriptions

    @override
    def open_for(self, client_name: str) -> None:
        if self._client_name not in {"", client_name}:
            raise StoreLocked(
                "memory",
                self._client_name,
                f"belongs to the client {self._client_name!r}, not to {client_name!r}",
            )
        self._client_name = client_name

    def subscription(self, sub_id: str) -> SubscriptionTracker:
        """The fast handle of one subscription; always the same object for the same id (BS7)."""
        found = self._subscriptions.get(sub_id)
        if found is None:
            found = self._subscriptions[sub_id] = SubscriptionTracker(self._publishers)
        return found

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

    @override
    def purge(self, sub_id: str | None = None) -> None:
        for name in list(self._subscriptions) if sub_id is None else [sub_id]:
            self.subscription(name).purge()

    @override
    def prune(self) -> None:
        """Memory holds nothing that is finished."""

    @override
    def close(self) -> None:
        """Let go; the next client of the process gets all that is not discarded again."""
        for each in self._subscriptions.values():
            each.ended()

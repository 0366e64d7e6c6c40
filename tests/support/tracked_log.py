"""A subscription of a store in memory, and its tracker in one object."""

from __future__ import annotations

from typing import Any

from haclient_stores.bookmark_stores.subscription import StoreNotes, SubscriptionHandle
from haclient_stores.disk.threads import ThreadBinding
from haclient_stores.tracker.entries import Publishers
from haclient_stores.tracker.tracker import SubscriptionTracker


class TrackedLog(SubscriptionHandle):
    """What it has not itself is its tracker's."""

    def __init__(
        self, publishers: Publishers | None = None, *, tracker: SubscriptionTracker | None = None
    ) -> None:
        tracker = tracker or SubscriptionTracker(publishers)
        super().__init__(StoreNotes(tracker, ThreadBinding("a log of a test")))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # of any kind
        return getattr(self.tracker, name)

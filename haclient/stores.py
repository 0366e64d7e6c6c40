"""The stores, under the name that applications use."""

from __future__ import annotations

from haclient_stores.errors import PublishGap, StoreCorrupt, StoreError, StoreFull, StoreLocked
from haclient_stores.file_publish import FilePublishStore
from haclient_stores.interfaces import BookmarkStore, FrameLog, PublishStore, SubscriptionLog
from haclient_stores.logged_bookmark import LoggedBookmarkStore
from haclient_stores.memory_bookmark import MemoryBookmarkStore
from haclient_stores.memory_publish import MemoryPublishStore

__all__ = [
    "BookmarkStore",
    "FilePublishStore",
    "FrameLog",
    "LoggedBookmarkStore",
    "MemoryBookmarkStore",
    "MemoryPublishStore",
    "PublishGap",
    "PublishStore",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "SubscriptionLog",
]

"""The stores, under the name that applications use."""

from __future__ import annotations

from haclient_stores.errors import PublishGap, StoreCorrupt, StoreError, StoreFull, StoreLocked
from haclient_stores.file_publish import FilePublishStore
from haclient_stores.hybrid_publish import HybridPublishStore
from haclient_stores.interfaces import BookmarkStore, FrameLog, PublishStore, SubscriptionLog
from haclient_stores.logged_bookmark import LoggedBookmarkStore
from haclient_stores.memory_bookmark import MemoryBookmarkStore
from haclient_stores.memory_publish import MemoryPublishStore
from haclient_stores.null_publish import NullPublishStore
from haclient_stores.ring_publish import RingPublishStore
from haclient_stores.sizing import StoreSize, publish_store_size

__all__ = [
    "BookmarkStore",
    "FilePublishStore",
    "FrameLog",
    "HybridPublishStore",
    "LoggedBookmarkStore",
    "MemoryBookmarkStore",
    "MemoryPublishStore",
    "NullPublishStore",
    "PublishGap",
    "PublishStore",
    "RingPublishStore",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "StoreSize",
    "SubscriptionLog",
    "publish_store_size",
]

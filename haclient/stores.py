"""The stores, under the name that applications use."""

from __future__ import annotations

from haclient.sqlite_adapter import SqliteRecoveryPointAdapter
from haclient_stores.adapters import RecoveryPoint, RecoveryPointAdapter, TimedAdapter
from haclient_stores.conflating import ConflatingRecoveryPointAdapter
from haclient_stores.errors import PublishGap, StoreCorrupt, StoreError, StoreFull, StoreLocked
from haclient_stores.explaining import Explanation
from haclient_stores.file_publish import FilePublishStore
from haclient_stores.hybrid_publish import HybridPublishStore
from haclient_stores.interfaces import BookmarkStore, FrameLog, PublishStore, SubscriptionLog
from haclient_stores.logged_bookmark import LoggedBookmarkStore
from haclient_stores.memory_bookmark import MemoryBookmarkStore, NullBookmarkStore
from haclient_stores.memory_publish import MemoryPublishStore
from haclient_stores.null_publish import NullPublishStore
from haclient_stores.prune_policy import PrunePolicy
from haclient_stores.pruning import Pruned, prune
from haclient_stores.ring_bookmark import RingBookmarkStore
from haclient_stores.ring_publish import RingPublishStore
from haclient_stores.sizing import StoreSize, publish_store_size
from haclient_stores.transactional import TransactionalRecoveryPoint
from haclient_stores.watching import OldUndiscarded, UndiscardedWatch

__all__ = [
    "BookmarkStore",
    "ConflatingRecoveryPointAdapter",
    "Explanation",
    "FilePublishStore",
    "FrameLog",
    "HybridPublishStore",
    "LoggedBookmarkStore",
    "MemoryBookmarkStore",
    "MemoryPublishStore",
    "NullBookmarkStore",
    "NullPublishStore",
    "OldUndiscarded",
    "PrunePolicy",
    "Pruned",
    "PublishGap",
    "PublishStore",
    "RecoveryPoint",
    "RecoveryPointAdapter",
    "RingBookmarkStore",
    "RingPublishStore",
    "SqliteRecoveryPointAdapter",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "StoreSize",
    "SubscriptionLog",
    "TimedAdapter",
    "TransactionalRecoveryPoint",
    "UndiscardedWatch",
    "prune",
    "publish_store_size",
]

"""The stores, under the name that applications use."""

from __future__ import annotations

from haclient_stores.adapters import RecoveryPoint, RecoveryPointAdapter, TimedAdapter
from haclient_stores.conflating import ConflatingRecoveryPointAdapter
from haclient_stores.errors import PublishGap, StoreCorrupt, StoreError, StoreFull, StoreLocked
from haclient_stores.explaining import Explanation
from haclient_stores.file_publish import FilePublishStore
from haclient_stores.interfaces import BookmarkStore, FrameLog, PublishStore, SubscriptionLog
from haclient_stores.logged_bookmark import LoggedBookmarkStore
from haclient_stores.memory_bookmark import MemoryBookmarkStore, NullBookmarkStore
from haclient_stores.memory_publish import MemoryPublishStore
from haclient_stores.prune_policy import PrunePolicy
from haclient_stores.pruning import Pruned, prune
from haclient_stores.ring_bookmark import RingBookmarkStore
from haclient_stores.sqlite_adapter import SqliteRecoveryPointAdapter
from haclient_stores.transactional import TransactionalRecoveryPoint
from haclient_stores.watching import OldUndiscarded, UndiscardedWatch

__all__ = [
    "BookmarkStore",
    "ConflatingRecoveryPointAdapter",
    "Explanation",
    "FilePublishStore",
    "FrameLog",
    "LoggedBookmarkStore",
    "MemoryBookmarkStore",
    "MemoryPublishStore",
    "NullBookmarkStore",
    "OldUndiscarded",
    "PrunePolicy",
    "Pruned",
    "PublishGap",
    "PublishStore",
    "RecoveryPoint",
    "RecoveryPointAdapter",
    "RingBookmarkStore",
    "SqliteRecoveryPointAdapter",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "SubscriptionLog",
    "TimedAdapter",
    "TransactionalRecoveryPoint",
    "UndiscardedWatch",
    "prune",
]

"""The stores, under the name that applications use."""

from __future__ import annotations

from haclient.recovery_points.sqlite import SqliteRecoveryPointAdapter
from haclient_stores.adapters.conflating import ConflatingRecoveryPointAdapter
from haclient_stores.adapters.processed_messages import ProcessedMessages
from haclient_stores.adapters.recovery_point import (
    RecoveryPoint,
    RecoveryPointAdapter,
    TimedAdapter,
)
from haclient_stores.adapters.transactional import TransactionalRecoveryPoint
from haclient_stores.audit_log import (
    AuditLog,
    AuditLogReader,
    DeliveryRecord,
    PublishRecord,
)
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore, NullBookmarkStore
from haclient_stores.bookmark_stores.prune_policy import PrunePolicy
from haclient_stores.bookmark_stores.ring import RingBookmarkStore
from haclient_stores.bookmark_stores.undiscarded_watch import OldUndiscarded, UndiscardedWatch
from haclient_stores.errors import PublishGap, StoreCorrupt, StoreError, StoreFull, StoreLocked
from haclient_stores.interfaces import BookmarkStore, FrameLog, PublishStore, SubscriptionLog
from haclient_stores.publish_stores.file import FilePublishStore, StoreSize, publish_store_size
from haclient_stores.publish_stores.hybrid import HybridPublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from haclient_stores.publish_stores.ring import RingPublishStore
from haclient_stores.tools.explain import Explanation
from haclient_stores.tools.store_files import Pruned, prune

__all__ = [
    "AuditLog",
    "AuditLogReader",
    "BookmarkStore",
    "ConflatingRecoveryPointAdapter",
    "DeliveryRecord",
    "Explanation",
    "FilePublishStore",
    "FrameLog",
    "HybridPublishStore",
    "LoggedBookmarkStore",
    "MemoryBookmarkStore",
    "MemoryPublishStore",
    "NullBookmarkStore",
    "OldUndiscarded",
    "ProcessedMessages",
    "PrunePolicy",
    "Pruned",
    "PublishGap",
    "PublishRecord",
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

"""The production stores that plans name, on a simulated disk."""

from __future__ import annotations

from typing import Final

from typing_extensions import override

from haclient.client import BaseClient
from haclient.recovery_points.sow import SOWRecoveryPointAdapter
from haclient_stores.adapters.recovery_point import RecoveryPoint
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.bookmark_stores.prune_policy import PrunePolicy
from haclient_stores.bookmark_stores.ring import RingBookmarkStore
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.hybrid import HybridPublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from haclient_stores.publish_stores.publish_log import PublishLog
from haclient_stores.publish_stores.ring import MIN_RING_BYTES, RingPublishStore
from haclient_stores.publish_stores.segment_log import MIN_SEGMENT_BYTES
from simulation.disk import SimulatedDisk
from simulation.plans import PublisherPlan, SubscriberPlan
from simulation.surviving import GROUP_S, HYBRID_MEMORY_BYTES

__all__ = ["POINTS_TOPIC", "BookmarkStoreOf", "Points", "bookmark_store", "publish_store"]

POINTS_TOPIC: Final = "/ADMIN/bookmark_store"
"""Where a subscriber without a file keeps its recovery points."""

BookmarkStoreOf = LoggedBookmarkStore | RingBookmarkStore | MemoryBookmarkStore
_SEGMENT_BYTES: Final = MIN_SEGMENT_BYTES  # so that segments are recycled
_SMALL_BYTES: Final = 3 * _SEGMENT_BYTES
_POLICIES: Final = {
    "": None,
    "messages": PrunePolicy(every_messages=40),
    "size": PrunePolicy(over_bytes=12 * 1024),
    "idle": PrunePolicy(idle_s=1.0, on_exit=True),
}


def _is_small(size: int) -> bool:
    return size <= _SMALL_BYTES


def publish_store(plan: PublisherPlan, disk: SimulatedDisk) -> PublishLog:
    """The store of a publisher's next process."""
    path = f"/{plan.name}/store"
    if plan.store in {"ring", "ring_memory"}:
        return RingPublishStore(
            None if plan.forgets else path,
            MIN_RING_BYTES,
            plan.when_full or "wait",
            durability=plan.durability,
            group_interval_s=GROUP_S,
            disk=disk,
        )
    max_bytes = _SMALL_BYTES if plan.when_full == "raise" else 2**30
    handler = _is_small if plan.when_full == "wait" else None
    if plan.forgets:
        return MemoryPublishStore(
            segment_bytes=_SEGMENT_BYTES, max_bytes=max_bytes, resize_handler=handler
        )
    if plan.store == "hybrid":
        return HybridPublishStore(
            path,
            memory_bytes=HYBRID_MEMORY_BYTES,
            segment_bytes=_SEGMENT_BYTES,
            max_bytes=max_bytes,
            durability=plan.durability,
            group_interval_s=GROUP_S,
            resize_handler=handler,
            disk=disk,
        )
    return FilePublishStore(
        path,
        segment_bytes=_SEGMENT_BYTES,
        max_bytes=max_bytes,
        durability=plan.durability,
        group_interval_s=GROUP_S,
        resize_handler=handler,
        disk=disk,
    )


class Points(SOWRecoveryPointAdapter):
    """The adapter, and what it has given back.

    Attributes:
        found: The recovery point of each subscription when the process began.
    """

    def __init__(self, client: BaseClient) -> None:
        super().__init__(client, topic=POINTS_TOPIC)
        self.found: dict[str, str] = {}
        self._own = client

    @override
    async def recover(self, client_name: str) -> list[RecoveryPoint]:
        points = list(await super().recover(client_name))
        self.found = {point.sub_id: point.bookmark for point in points}
        return points

    @property
    def kept(self) -> bool:
        """Whether everything that it was told is persisted."""
        return not self._pending and not self._own.unpersisted_count


def bookmark_store(
    plan: SubscriberPlan, disk: SimulatedDisk, adapter: Points | None = None
) -> BookmarkStoreOf:
    """The store of a subscriber's next process."""
    path = f"/{plan.name}/bookmarks"
    match plan.store:
        case "logged":
            policy = _POLICIES[plan.prunes]
            return LoggedBookmarkStore(
                path, durability=plan.durability, prune_policy=policy, disk=disk
            )
        case "ring":
            return RingBookmarkStore(path, subscriptions=2, durability=plan.durability, disk=disk)
        case _:
            return MemoryBookmarkStore(adapter=adapter)

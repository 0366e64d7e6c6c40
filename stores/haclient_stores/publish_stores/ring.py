"""A publish store of a fixed size: all of its space is allocated when it is opened.

It is the segment log over a fixed number of segments, in memory or in files, used in turn. Nothing
is allocated later, so neither a full disk nor a long outage changes its capacity. When the ring is
full, `publish` waits for acks, or raises.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from haclient_stores.checks import check_bytes, check_word
from haclient_stores.disk.durable_file import Durability, DurabilityOptions
from haclient_stores.disk.files import PAGE_BYTES, Disk
from haclient_stores.errors import UsageError
from haclient_stores.publish_stores.memory import MemoryStorage
from haclient_stores.publish_stores.publish_log import PublishLog
from haclient_stores.publish_stores.segment_log import (
    MAX_SEGMENT_BYTES,
    MIN_SEGMENT_BYTES,
    Limits,
    SegmentStorage,
)
from haclient_stores.publish_stores.store_directory import StoreDirectory

WhenFull = Literal["wait", "raise"]
_SEGMENTS: Final = 8  # room comes back in steps of an eighth
MIN_RING_BYTES: Final = 2 * MIN_SEGMENT_BYTES


class RingPublishStore(PublishLog):
    """Keeps unpersisted messages in a fixed amount of space.

    It has eight segments, fewer if it is very small and more if it is very large. Space is freed a
    segment at a time, when all of its frames are persisted. A frame has to fit into one segment.
    The files have the format of a `FilePublishStore`; a ring that is opened with another capacity
    first uses up the existing segments.

    Args:
        path: The store's directory, created when it is missing; None for memory.
        capacity_bytes: The space, all of which is allocated when the store is opened.
        when_full: What `publish` does when there is no room: `"wait"` for acks, or `"raise"`
            `StoreFull`. The store itself never waits, and `publish_nowait` never does.
        durability: What the client waits for; see `publish_log`.
        group_interval_s: How often the client syncs at durability `group`, in seconds.
        error_on_publish_gap: Whether `reconcile` raises `PublishGap` or only records it.
        truncate_on_close: See `FilePublishStore`; opening allocates the space again.
        disk: The file system; simulations pass their own.

    Attributes:
        capacity_bytes: How much was taken.
        when_full: What `publish` does when there is no room.

    Raises:
        StoreFull: The disk has no room for the capacity.
        StoreLocked: Another process has the store open.
        StoreCorrupt: A file does not match its checksums.
        UsageError: The capacity is too small, `when_full` is invalid, or a durability other than
            `process` was requested for memory.
    """

    def __init__(  # noqa: PLR0913  settings, most of them by keyword
        self,
        path: str | Path | None,
        capacity_bytes: int,
        when_full: WhenFull = "wait",
        *,
        durability: Durability = "process",
        group_interval_s: float = 0.01,
        error_on_publish_gap: bool = False,
        truncate_on_close: bool = False,
        disk: Disk | None = None,
    ) -> None:
        segment_bytes = _segment_bytes(capacity_bytes)
        count = capacity_bytes // segment_bytes
        check_word("when_full", when_full, ("wait", "raise"))
        limits = Limits(segment_bytes, capacity_bytes, fixed=True, wait=when_full == "wait")
        options = DurabilityOptions(durability, group_interval_s, truncate_on_close)
        directory: StoreDirectory | None = None
        storage: SegmentStorage
        if path is None:
            if durability != "process":
                raise UsageError(f"a ring in memory cannot have the durability {durability!r}")
            storage = MemoryStorage(segment_bytes, spare_limit=count, preallocated=True)
        else:
            storage = directory = StoreDirectory(
                path, disk, options, segment_bytes=segment_bytes, spare_limit=count
            )
        super().__init__(
            storage, directory, limits=limits, error_on_publish_gap=error_on_publish_gap
        )
        self.capacity_bytes = capacity_bytes
        self.when_full: WhenFull = when_full
        if directory is not None:
            self._take_all(directory)

    def _take_all(self, directory: StoreDirectory) -> None:
        held = sum(segment.size for segment in directory.segments)
        try:
            directory.preallocate(self.capacity_bytes - held)
        except BaseException:  # no store is made, so nothing else would release its files
            directory.close(self.detach())
            raise


def _segment_bytes(capacity_bytes: int) -> int:
    if check_bytes("capacity_bytes", capacity_bytes) < MIN_RING_BYTES:
        raise UsageError(f"capacity_bytes is at least {MIN_RING_BYTES}, not {capacity_bytes}")
    an_eighth = capacity_bytes // _SEGMENTS // PAGE_BYTES * PAGE_BYTES
    return min(max(MIN_SEGMENT_BYTES, an_eighth), MAX_SEGMENT_BYTES)

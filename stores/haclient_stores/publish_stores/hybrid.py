"""A publish store in memory that moves to files what the memory has no room for (PS13).

As long as acks keep up nothing is ever written. In a long outage the backlog goes to the disk, the
oldest messages first, up to `max_bytes`. So it is as fast as memory in good times and as large as
a disk in bad ones; `hybrid_space` says how.

**What a killed process loses:** the newest messages, those that were still in memory: up to
`memory_bytes` of them, and all of them when nothing was moved yet. What had been moved survives,
and is always the older part. `sync` and `close` write the memory out too, so a clean restart loses
nothing; `durability="group"` does it every few milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from typing_extensions import override

from haclient_stores.checks import check_bytes
from haclient_stores.disk.durable_file import Durability, DurabilityOptions
from haclient_stores.errors import UsageError
from haclient_stores.publish_stores.file import DEFAULT_FILE_BYTES
from haclient_stores.publish_stores.hybrid_space import HybridSegment, HybridSpace
from haclient_stores.publish_stores.publish_log import PublishLog
from haclient_stores.publish_stores.segment import Limits, Segment
from haclient_stores.publish_stores.store_directory import Directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from haclient_stores.disk.files import Disk

__all__ = ["DEFAULT_HYBRID_MEMORY_BYTES", "DEFAULT_HYBRID_SEGMENT_BYTES", "HybridPublishStore"]

DEFAULT_HYBRID_MEMORY_BYTES: Final = 64 * 2**20
DEFAULT_HYBRID_SEGMENT_BYTES: Final = 2**20


class HybridPublishStore(PublishLog):
    """Keeps unpersisted messages in memory, and in files above a limit (PS1-PS14).

    Args:
        path: The store's directory; created when it is missing.
        memory_bytes: How much memory it takes before the oldest messages move to files.
        segment_bytes: Memory and files are taken in pieces of this size.
        max_bytes: Memory and files together are never larger: `store` then raises `StoreFull`.
        durability: What the client waits for; see `publish_log`. Here `process` covers only what
            was moved to files.
        group_interval_s: How often the client syncs at durability `group`, in seconds.
        error_on_publish_gap: Whether `reconcile` raises `PublishGap` or only records it (PS9).
        resize_handler: Asked with the new size in bytes before the store grows; False refuses.
        truncate_on_close: See `FilePublishStore` (PS24).
        disk: Where files are; another one in simulations.

    Raises:
        StoreLocked: Another process has the store open.
        StoreCorrupt: A file does not match its checksums.
        UsageError: The memory is less than two segments.
    """

    def __init__(  # noqa: PLR0913  keyword-only settings, each with a default
        self,
        path: str | Path,
        *,
        memory_bytes: int = DEFAULT_HYBRID_MEMORY_BYTES,
        segment_bytes: int = DEFAULT_HYBRID_SEGMENT_BYTES,
        max_bytes: int = DEFAULT_FILE_BYTES,
        durability: Durability = "process",
        group_interval_s: float = 0.01,
        error_on_publish_gap: bool = False,
        resize_handler: Callable[[int], bool] | None = None,
        truncate_on_close: bool = False,
        disk: Disk | None = None,
    ) -> None:
        limits = Limits(segment_bytes, max_bytes, resize_handler)
        options = DurabilityOptions(durability, group_interval_s, truncate_on_close)
        if check_bytes("memory_bytes", memory_bytes) < 2 * segment_bytes:
            raise UsageError(
                f"memory_bytes is at least two segments of {segment_bytes} bytes, not "
                f"{memory_bytes}"
            )
        directory = Directory(path, disk, options, segment_bytes=segment_bytes)
        self._hybrid = HybridSpace(
            directory.files, segment_bytes=segment_bytes, memory_bytes=memory_bytes
        )
        super().__init__(
            directory, self._hybrid, limits=limits, error_on_publish_gap=error_on_publish_gap
        )

    @property
    def memory_used_bytes(self) -> int:
        """How much memory the messages take that are not in files."""
        return self._hybrid.used_bytes

    @override
    def checkpoint(self) -> int:
        """Seal all that is appended and have it in files; returns the last sequence of it."""
        with self._lock:
            sequence = super().checkpoint()
            self._hybrid.copy_out()
            return sequence

    @override
    def detach(self) -> list[Segment]:
        """Let go of all segments; only those in files are anybody else's business."""
        found: list[Segment] = []
        for segment in super().detach():
            if not isinstance(segment, HybridSegment):
                found.append(segment)
            elif segment.twin is not None:
                found.append(segment.twin)
        return found

"""The publish store in the memory of the process.

The memory store is the segment log over anonymous memory: the same code as the file store, without
checksums. It survives lost links, not the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from typing_extensions import override

from haclient_stores.disk.files import Region, Writable, anonymous_region
from haclient_stores.publish_stores.publish_log import PublishLog
from haclient_stores.publish_stores.segment import Limits, Segment, SegmentStorage
from haclient_stores.publish_stores.window import PublishWindow

__all__ = [
    "DEFAULT_MEMORY_BYTES",
    "DEFAULT_MEMORY_SEGMENT_BYTES",
    "MemoryPublishStore",
    "MemorySegment",
    "MemoryStorage",
]

DEFAULT_MEMORY_BYTES: Final = 2**30
DEFAULT_MEMORY_SEGMENT_BYTES: Final = 2**20
_SPARE_SEGMENTS: Final = 4  # enough to roll without new memory while acks keep up


class MemoryPublishStore(PublishLog):
    """Keeps unpersisted messages in memory.

    Args:
        segment_bytes: Memory is allocated in pieces of this size.
        max_bytes: The maximum size of the store; beyond it `store` raises `StoreFull`.
        error_on_publish_gap: Whether `reconcile` raises `PublishGap` or only records it.
        resize_handler: Asked with the new size in bytes before the store grows; False refuses.

    Raises:
        UsageError: The sizes are impossible.
    """

    def __init__(
        self,
        *,
        segment_bytes: int = DEFAULT_MEMORY_SEGMENT_BYTES,
        max_bytes: int = DEFAULT_MEMORY_BYTES,
        error_on_publish_gap: bool = False,
        resize_handler: Callable[[int], bool] | None = None,
    ) -> None:
        super().__init__(
            MemoryStorage(segment_bytes),
            None,
            limits=Limits(segment_bytes, max_bytes, resize_handler),
            error_on_publish_gap=error_on_publish_gap,
        )


class MemorySegment(Segment):
    """A segment in anonymous memory."""

    def __init__(self, region: Region, *, first: int) -> None:
        super().__init__(first=first, begin=0, size=len(region.view))
        self.region = region

    @property
    @override
    def view(self) -> memoryview:
        return self.region.view

    @property
    @override
    def writable(self) -> Writable:
        return self.region.writable


class MemoryStorage(SegmentStorage):
    """Anonymous memory in pieces of `segment_bytes`; a few unused pieces are kept for reuse.

    Args:
        segment_bytes: The size of a recycled segment.
        spare_limit: How many unused segments are kept.
        preallocated: Allocate all of those at the start.

    Raises:
        StoreFull: The machine does not have enough memory.
    """

    begin = 0
    margin = 0

    def __init__(
        self, segment_bytes: int, *, spare_limit: int = _SPARE_SEGMENTS, preallocated: bool = False
    ) -> None:
        self._segment_bytes = segment_bytes
        self._spare_limit = spare_limit
        taken = spare_limit if preallocated else 0
        if preallocated:
            # The kernel refuses the sum where it would grant each piece and later kill the process.
            anonymous_region(spare_limit * segment_bytes, touched=False).close()
        self._spare: list[Region] = [anonymous_region(segment_bytes) for _ in range(taken)]

    @override
    def create(self, first: int, size: int) -> Segment:
        if size == self._segment_bytes and self._spare:
            region = self._spare.pop()
            region.view[:4] = bytes(4)
        else:
            region = anonymous_region(size)
        return MemorySegment(region, first=first)

    @override
    def release(self, segment: Segment) -> None:
        # What is not kept is unmapped with the last reference to it.
        standard = segment.size == self._segment_bytes
        if standard and len(self._spare) < self._spare_limit and isinstance(segment, MemorySegment):
            self._spare.append(segment.region)

    @override
    def park(self, segment: Segment) -> None:
        """Memory cannot be unmapped without being lost."""

    @override
    def seal(self, segment: Segment, end: int, next_sequence: int) -> None:
        """Memory needs no checksum."""

    @override
    def save_numbers(self, window: PublishWindow, *, skipped: bool) -> None:
        """The window is in the same memory."""

"""The publish store in the memory of the process.

The memory store is the segment log over anonymous memory: the same code as the file store, without
checksums. It survives lost links, not the process.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Final

from typing_extensions import override

from haclient_stores.disk.files import Region, Writable, anonymous_region
from haclient_stores.publish_stores.publish_log import PublishLog
from haclient_stores.publish_stores.segment_log import Limits, Segment, SegmentStorage, walk
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
_LIMITS: Final = Limits(DEFAULT_MEMORY_SEGMENT_BYTES, DEFAULT_MEMORY_BYTES, wait=True)


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


class VolatilePublishLog(PublishLog):
    """The log of a client without a store: it keeps messages until their connection ends.

    Numbers, acks and the limit of unpersisted bytes are those of a store in memory. At the end of a
    connection it forgets what is not persisted, since nobody has promised to send it again.
    """

    def __init__(self) -> None:
        super().__init__(
            MemoryStorage(DEFAULT_MEMORY_SEGMENT_BYTES),
            None,
            limits=_LIMITS,
            error_on_publish_gap=False,
        )

    def forget(self) -> None:
        """Forget all messages, because the connection has ended; later numbers are higher."""
        self._thread.check()
        self._begin(self._window.last_sequence, persisted=0)

    def number_from(self, sequence: int) -> None:
        """Give the next message this number, although later numbers may have been skipped to.

        Args:
            sequence: The number. Below the last one it may be only while nothing is stored, and it
                has to be above what is persisted.
        """
        self._thread.check()
        window = self._window
        if sequence <= window.last_sequence and not window.count:
            self._begin(sequence - 1, persisted=min(window.last_persisted, sequence - 1))
        else:
            self.mark_head()
            window.skip_to(sequence - 1)
            active = self._active
            # The numbers of a caller may have a gap before each message: a mark, no new segment.
            if active is not None and active.next_sequence != sequence and not self._jumped:
                active.mark(self._end, sequence)

    @override
    def _frames_of(self, segment: Segment, first: int) -> Iterator[tuple[int, bytes]]:
        offsets, sequences = segment.mark_offsets, segment.mark_sequences
        mark = max(bisect_right(sequences, first) - 1, 0)
        view, offset, sequence = segment.view, offsets[mark], sequences[mark]
        while offset < segment.end:
            while mark < len(offsets) and offsets[mark] <= offset:  # the numbers may jump at a mark
                sequence = sequences[mark]
                mark += 1
            after = walk(view, offset, 1)
            if sequence >= first:
                yield sequence, bytes(view[offset:after])
            offset, sequence = after, sequence + 1

    def _begin(self, last_sequence: int, *, persisted: int) -> None:
        for segment in self.detach():
            segment.released = True
            self._storage.release(segment)
        self._window = window = PublishWindow()
        window.reconciled = True  # nothing is stored before a logon
        window.persist(persisted)
        window.skip_to(last_sequence)

"""A publish store in memory that overflows to files.

As long as acks keep up, nothing is ever written to disk. In a long outage the backlog moves to the
disk, the oldest messages first, up to `max_bytes`. So it is normally as fast as memory, and in an
outage as large as a disk.

**How.** Segments are filled in memory. When the memory is used up, the oldest segment is copied
into a file of its own, which replaces the memory: frames and offsets are the same, so the log is
not affected. The newest segments are always in memory. `sync` and `close` copy all of them to files
and leave them in memory too.

**What a killed process loses:** the newest messages, those that were still in memory: up to
`memory_bytes` of them, and all messages if none was moved yet. Moved messages survive; they are
always the older part, so there is no hole in the backlog. After `sync` and `close` nothing is lost;
`durability="group"` syncs every few milliseconds.

Sequences are assigned faster than the control page can be updated, so it holds an upper bound of
the sequences that the segments in memory can use: after a kill, the next process numbers above it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from typing_extensions import override

from haclient_stores.checks import check_bytes
from haclient_stores.disk.durable_file import Durability, DurabilityOptions
from haclient_stores.disk.files import Disk, Region, Writable, anonymous_region
from haclient_stores.errors import UsageError
from haclient_stores.publish_stores.file import DEFAULT_FILE_BYTES
from haclient_stores.publish_stores.publish_log import PublishLog
from haclient_stores.publish_stores.segment_file import (
    HEADER_BYTES,
    MARGIN_BYTES,
    FileSegment,
    frames_below,
)
from haclient_stores.publish_stores.segment_log import SLOT_BYTES, Limits, Segment, SegmentStorage
from haclient_stores.publish_stores.store_directory import StoreDirectory, highest_number
from haclient_stores.publish_stores.window import PublishWindow

DEFAULT_HYBRID_MEMORY_BYTES: Final = 64 * 2**20
DEFAULT_HYBRID_SEGMENT_BYTES: Final = 2**20
_SPARE_SEGMENTS: Final = 4  # enough to roll without new memory while acks keep up


class HybridPublishStore(PublishLog):
    """Keeps unpersisted messages in memory, and in files above a limit.

    Args:
        path: The store's directory; created when it is missing.
        memory_bytes: How much memory is used before the oldest messages move to files.
        segment_bytes: Memory and files are allocated in pieces of this size.
        max_bytes: The limit of memory and files together; beyond it `store` raises `StoreFull`.
        durability: What the client waits for; see `publish_log`. Here `process` covers only what
            was moved to files.
        group_interval_s: How often the client syncs at durability `group`, in seconds.
        error_on_publish_gap: Whether `reconcile` raises `PublishGap` or only records it.
        resize_handler: Asked with the new size in bytes before the store grows; False refuses.
        truncate_on_close: See `FilePublishStore`.
        disk: The file system; simulations pass their own.

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
        directory = StoreDirectory(path, disk, options, segment_bytes=segment_bytes)
        self._hybrid = HybridStorage(
            directory, segment_bytes=segment_bytes, memory_bytes=memory_bytes
        )
        super().__init__(
            self._hybrid, directory, limits=limits, error_on_publish_gap=error_on_publish_gap
        )

    @property
    def memory_used_bytes(self) -> int:
        """How much memory the messages take that are not in files."""
        return self._hybrid.used_bytes

    @override
    def checkpoint(self) -> int:
        """Seal everything appended and copy it to files; returns the last sequence of it."""
        with self._lock:
            sequence = super().checkpoint()
            self._hybrid.copy_out()
            return sequence

    @override
    def detach(self) -> list[Segment]:
        """Give all segments away, for good: those that are in files."""
        found: list[Segment] = []
        for segment in super().detach():
            if not isinstance(segment, HybridSegment):
                found.append(segment)
            elif segment.twin is not None:
                found.append(segment.twin)
        return found


class HybridSegment(Segment):
    """A segment in memory, in a file, or in both.

    Attributes:
        region: The memory; None once the file has taken over.
        twin: The same frames in a file, as far as they were copied; None before that.
    """

    def __init__(self, region: Region, *, first: int) -> None:
        super().__init__(first=first, begin=HEADER_BYTES, size=len(region.view))
        self.region: Region | None = region
        self.twin: FileSegment | None = None

    @property
    @override
    def view(self) -> memoryview:
        if self.region is None and self.twin is not None:
            return self.twin.view
        return self.memory.view

    @property
    @override
    def writable(self) -> Writable:
        return self.memory.writable

    @property
    @override
    def frame_limit(self) -> int:
        return frames_below(self)

    @property
    def memory(self) -> Region:
        """The memory, which a segment has as long as it is written."""
        if self.region is None:
            raise AssertionError("a segment in a file is not written any more")
        return self.region


class HybridStorage(SegmentStorage):
    """Memory in front of the segment files of a store.

    Args:
        directory: Where segments go when the memory is used up.
        segment_bytes: The size of a recycled segment.
        memory_bytes: How much memory is used; at least two segments.
    """

    begin = HEADER_BYTES
    margin = MARGIN_BYTES

    def __init__(self, directory: StoreDirectory, *, segment_bytes: int, memory_bytes: int) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._memory_bytes = memory_bytes
        self._in_memory: deque[HybridSegment] = deque()  # ascending; the last one is written
        self._used_bytes = 0
        self._spare: list[Region] = []

    @property
    def used_bytes(self) -> int:
        """How much memory the segments take."""
        return self._used_bytes

    @override
    def create(self, first: int, size: int) -> Segment:
        self._directory.ownership.check_usable()
        while len(self._in_memory) > 1 and self._used_bytes + size > self._memory_bytes:
            self._move_out(self._in_memory[0])
        if size == self._segment_bytes and self._spare:
            region = self._spare.pop()
            region.view[HEADER_BYTES : HEADER_BYTES + SLOT_BYTES] = bytes(SLOT_BYTES)
        else:
            region = anonymous_region(size)
        segment = HybridSegment(region, first=first)
        self._in_memory.append(segment)
        self._used_bytes += size
        self._directory.reserve(highest_number(first, size))
        return segment

    def _move_out(self, segment: HybridSegment) -> None:
        self._copy(segment)
        self._leave_memory(segment)
        if segment.twin is not None:
            self._directory.park(segment.twin)

    def _leave_memory(self, segment: HybridSegment) -> None:
        self._in_memory.remove(segment)
        self._used_bytes -= segment.size
        if segment.size == self._segment_bytes and len(self._spare) < _SPARE_SEGMENTS:
            self._spare.append(segment.memory)
        segment.region = None

    def _copy(self, segment: HybridSegment) -> None:
        """Bring the file up to the last mark; the length of its first new frame comes last."""
        twin = segment.twin
        if twin is None:
            twin = segment.twin = self._directory.create(segment.first, segment.size)
        begin, end = twin.end, segment.end
        if end == begin:
            return
        memory, file = segment.memory.view, twin.view
        file[end : end + SLOT_BYTES] = bytes(SLOT_BYTES)
        file[begin + SLOT_BYTES : end] = memory[begin + SLOT_BYTES : end]
        file[begin : begin + SLOT_BYTES] = memory[begin : begin + SLOT_BYTES]
        for index in range(len(twin.mark_offsets), len(segment.mark_offsets)):
            offset, sequence = segment.mark_offsets[index], segment.mark_sequences[index]
            self._directory.seal(twin, offset, sequence)
            twin.mark(offset, sequence)

    def copy_out(self) -> None:
        """Copy every frame up to the last mark to a file."""
        for segment in self._in_memory:
            self._copy(segment)

    @override
    def release(self, segment: Segment) -> None:
        if not isinstance(segment, HybridSegment):
            self._directory.release(segment)
            return
        if segment.region is not None:
            self._leave_memory(segment)
        if segment.twin is not None:
            segment.twin.released = True
            self._directory.release(segment.twin)

    @override
    def park(self, segment: Segment) -> None:
        if not isinstance(segment, HybridSegment):
            self._directory.park(segment)
        elif segment.region is None and segment.twin is not None:
            self._directory.park(segment.twin)

    @override
    def seal(self, segment: Segment, end: int, next_sequence: int) -> None:
        """Memory needs no checksum; `_copy` seals the frames in the file."""
        if isinstance(segment, HybridSegment):
            self._directory.ownership.check_usable()
        else:
            self._directory.seal(segment, end, next_sequence)

    @override
    def save_numbers(self, window: PublishWindow, *, skipped: bool) -> None:
        self._directory.save_numbers(window, skipped=skipped)

"""Segments in memory, of which the oldest move to files when there are too many.

Segments are filled in memory. When the memory is used up, the oldest segment is copied into a file
of its own and goes on from there: same frames, same offsets, so that the log does not notice. The
newest are always the ones in memory. What a killed process loses is therefore an end of the
backlog, never a hole in it.

Numbers are given away faster than the control page can follow, so it holds an upper bound of what
the segments in memory can use: a process that comes after a kill never numbers below it.

`copy_out` writes everything to files and leaves it in memory too; it makes a `sync` possible.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from haclient_stores.disk.files import Region, Writable
from haclient_stores.publish_stores.file_segment import (
    HEADER_BYTES,
    MARGIN_BYTES,
    FileSegment,
    frames_below,
)
from haclient_stores.publish_stores.file_space import FileSpace, highest_number
from haclient_stores.publish_stores.memory_space import anonymous_region
from haclient_stores.publish_stores.segment import SLOT_BYTES, Segment, Space

if TYPE_CHECKING:
    from haclient_stores.publish_stores.window import PublishWindow

__all__ = ["HybridSegment", "HybridSpace"]

_SPARE_SEGMENTS: Final = 4  # enough to roll without new memory while acks keep up


class HybridSegment(Segment):
    """A segment in memory, in a file, or in both.

    Attributes:
        region: The memory; None once the file has taken over.
        twin: The same frames in a file, as far as they were copied; None before that.
    """

    __slots__ = ("region", "twin")

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
        """The memory, which every segment has that is still written."""
        if self.region is None:
            raise AssertionError("a segment in a file is not written any more")
        return self.region


class HybridSpace(Space):
    """Memory in front of the segment files of a store.

    Args:
        files: Where segments go when the memory is used up.
        segment_bytes: How large a segment is that is used again.
        memory_bytes: How much memory is used; two segments at least.
    """

    begin = HEADER_BYTES
    margin = MARGIN_BYTES

    def __init__(self, files: FileSpace, *, segment_bytes: int, memory_bytes: int) -> None:
        self._files = files
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
        self._files.check_usable()
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
        self._files.reserve(highest_number(first, size))
        return segment

    def _move_out(self, segment: HybridSegment) -> None:
        self._copy(segment)
        self._leave_memory(segment)
        if segment.twin is not None:
            self._files.park(segment.twin)

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
            created = self._files.create(segment.first, segment.size)
            assert isinstance(created, FileSegment)  # noqa: S101  files make no other
            twin = segment.twin = created
        begin, end = twin.end, segment.end
        if end == begin:
            return
        memory, file = segment.memory.view, twin.view
        file[end : end + SLOT_BYTES] = bytes(SLOT_BYTES)
        file[begin + SLOT_BYTES : end] = memory[begin + SLOT_BYTES : end]
        file[begin : begin + SLOT_BYTES] = memory[begin : begin + SLOT_BYTES]
        for index in range(len(twin.mark_offsets), len(segment.mark_offsets)):
            offset, sequence = segment.mark_offsets[index], segment.mark_sequences[index]
            self._files.seal(twin, offset, sequence)
            twin.mark(offset, sequence)

    def copy_out(self) -> None:
        """Have every frame up to the last mark in a file."""
        for segment in self._in_memory:
            self._copy(segment)

    @override
    def release(self, segment: Segment) -> None:
        if not isinstance(segment, HybridSegment):
            self._files.release(segment)
            return
        if segment.region is not None:
            self._leave_memory(segment)
        if segment.twin is not None:
            segment.twin.released = True
            self._files.release(segment.twin)

    @override
    def park(self, segment: Segment) -> None:
        if not isinstance(segment, HybridSegment):
            self._files.park(segment)
        elif segment.region is None and segment.twin is not None:
            self._files.park(segment.twin)

    @override
    def seal(self, segment: Segment, end: int, next_sequence: int) -> None:
        """Memory needs no checksum; the file that it is copied to gets the seals as well."""
        if isinstance(segment, HybridSegment):
            self._files.check_usable()
        else:
            self._files.seal(segment, end, next_sequence)

    @override
    def note(self, window: PublishWindow, *, numbering: bool) -> None:
        self._files.note(window, numbering=numbering)

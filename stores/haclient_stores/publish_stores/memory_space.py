"""Segments in the memory of the process."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from haclient_stores.disk.files import MappedRegion, Region, Writable
from haclient_stores.errors import StoreFull
from haclient_stores.publish_stores.segment import Segment, Space

if TYPE_CHECKING:
    from haclient_stores.publish_stores.window import PublishWindow

__all__ = ["MemorySegment", "MemorySpace", "anonymous_region"]

_SPARE_SEGMENTS: Final = 4  # enough to roll without new memory while acks keep up


def anonymous_region(size: int, *, touched: bool = True) -> Region:
    """Memory of the process alone, already touched so that the first writes are not slower.

    Raises:
        StoreFull: The machine has not so much, even untouched.
    """
    populate = getattr(mmap, "MAP_POPULATE", 0) if touched else 0
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | populate
    try:
        return MappedRegion(mmap.mmap(-1, size, flags=flags))
    except (OSError, OverflowError) as error:
        raise StoreFull(f"this machine has no memory for {size} bytes: {error}") from error


class MemorySegment(Segment):
    """A segment in anonymous memory."""

    __slots__ = ("region",)

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


class MemorySpace(Space):
    """Anonymous memory in pieces of `segment_bytes`, of which a few are kept for the next.

    Args:
        segment_bytes: How large a segment is that is used again.
        kept: How many of those are kept.
        preallocated: They are taken at once.

    Raises:
        StoreFull: The machine has not so much memory.
    """

    begin = 0
    margin = 0

    def __init__(
        self, segment_bytes: int, *, kept: int = _SPARE_SEGMENTS, preallocated: bool = False
    ) -> None:
        self._segment_bytes = segment_bytes
        self._kept = kept
        taken = kept if preallocated else 0
        if preallocated:  # all at once, which is refused where the pieces would end the process
            anonymous_region(kept * segment_bytes, touched=False).close()
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
        # What is not kept is unmapped as soon as nobody looks at it any more.
        standard = segment.size == self._segment_bytes
        if standard and len(self._spare) < self._kept and isinstance(segment, MemorySegment):
            self._spare.append(segment.region)

    @override
    def park(self, segment: Segment) -> None:
        """Memory is where it is."""

    @override
    def seal(self, segment: Segment, end: int, next_sequence: int) -> None:
        """Memory needs no checksum."""

    @override
    def note(self, window: PublishWindow, *, numbering: bool) -> None:
        """The window is in the same memory."""

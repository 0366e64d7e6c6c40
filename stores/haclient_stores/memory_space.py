"""Segments in the memory of the process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from typing_extensions import override

from haclient_stores.files import Region, Writable, anonymous_region
from haclient_stores.segment import Segment, Space

if TYPE_CHECKING:
    from haclient_stores.window import PublishWindow

__all__ = ["MemorySegment", "MemorySpace"]

_SPARE_SEGMENTS: Final = 4  # enough to roll without new memory while acks keep up


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
    """

    begin = 0
    margin = 0

    def __init__(
        self, segment_bytes: int, *, kept: int = _SPARE_SEGMENTS, preallocated: bool = False
    ) -> None:
        self._segment_bytes = segment_bytes
        self._kept = kept
        taken = kept if preallocated else 0
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

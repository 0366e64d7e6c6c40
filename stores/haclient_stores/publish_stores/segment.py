"""The parts of a segment log: segments, their limits, and the storage that provides them."""

from __future__ import annotations

import struct
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from haclient_stores.checks import check_bytes
from haclient_stores.disk.files import PAGE_BYTES, Writable
from haclient_stores.errors import StoreFull, UsageError
from haclient_stores.publish_stores.window import PublishWindow

SLOT_BYTES: Final = 4  # the length in front of each frame, and the zero after the last
MIN_SEGMENT_BYTES: Final = 8 * PAGE_BYTES
MAX_SEGMENT_BYTES: Final = 512 * 2**20  # the largest frame fits, and offsets take 4 bytes

frame_length = struct.Struct(">I").unpack_from


@dataclass(frozen=True, slots=True)
class Limits:
    """How a log may grow.

    Attributes:
        segment_bytes: Size of a segment; a larger frame gets a segment of its own size.
        max_bytes: All segments together are never larger than this.
        resize: Asked with the new size in bytes before the log grows; False refuses.
        fixed: Every segment has the same size, so no frame is larger than that.
        wait: The error of a log at its limit says that `publish` should wait for acks.

    Raises:
        UsageError: No segment can have this size, or the log could not have even one.
    """

    segment_bytes: int
    max_bytes: int
    resize: Callable[[int], bool] | None = None
    fixed: bool = False
    wait: bool = False

    def __post_init__(self) -> None:
        size = check_bytes("segment_bytes", self.segment_bytes)
        if not MIN_SEGMENT_BYTES <= size <= MAX_SEGMENT_BYTES:
            raise UsageError(
                f"segment_bytes is from {MIN_SEGMENT_BYTES} to {MAX_SEGMENT_BYTES}, not {size}"
            )
        if check_bytes("max_bytes", self.max_bytes) < size:
            raise UsageError(
                f"max_bytes is at least segment_bytes, which is {size}, not {self.max_bytes}"
            )

    def next_segment(self, needed: int, *, held: int, granted: int, waiting: int) -> int:
        """The size of the next segment, if there may be one.

        Args:
            needed: Bytes that the frame takes, with the header of a segment.
            held: The size of all segments now, in bytes.
            granted: The largest size so far, in bytes; up to this size `resize` is not called
                again.
            waiting: How many messages wait for their acks, for the error.

        Raises:
            StoreFull: The log would be too large, or the handler refused.
            UsageError: No segment of a fixed log takes such a frame.
        """
        size = max(self.segment_bytes, -(-needed // PAGE_BYTES) * PAGE_BYTES)
        total = held + size
        if self.fixed and size > self.segment_bytes:
            raise UsageError(
                f"a frame that takes {needed} bytes does not fit into the {self.segment_bytes} of "
                "a segment of this store: give it more capacity_bytes"
            )
        if total > self.max_bytes:
            setting = "capacity_bytes" if self.fixed else "max_bytes"
            raise StoreFull(
                f"{waiting} messages wait for their persisted acks and fill the store "
                f"({setting}={self.max_bytes}): wait for acks, which a sync destination that is "
                "down holds back, or allow more",
                wait=self.wait,
            )
        if self.resize is not None and total > granted and not self.resize(total):
            what = f"the resize handler refused to let the store grow to {total} bytes"
            raise StoreFull(what, wait=True)
        return size


class Segment:
    """Frames with consecutive sequences in one piece of memory.

    Attributes:
        first: The sequence of the first frame.
        begin: Offset of the first frame.
        end: Offset after the last frame, where a zero length stands. While the segment is the
            active one only the log knows it.
        next_sequence: The sequence after the last frame; like `end`.
        mark_offsets, mark_sequences: Known frame boundaries and the sequence that starts there.
        released: It was returned to the storage: remaining references must not read it.
    """

    def __init__(self, *, first: int, begin: int, size: int) -> None:
        self.first = first
        self.begin = begin
        self.end = begin
        self.size = size
        self.next_sequence = first
        self.mark_offsets = [begin]
        self.mark_sequences = [first]
        self.released = False

    @property
    @abstractmethod
    def view(self) -> memoryview:
        """The bytes of the segment, mapped again if it was parked."""

    @property
    def writable(self) -> Writable:
        """The same bytes, in the form that is fastest to write."""
        return self.view

    @property
    def frame_limit(self) -> int:
        """The offset that frames, and the zero after the last, do not pass."""
        return self.size

    def mark(self, end: int, next_sequence: int) -> None:
        """Note a frame boundary, which becomes the end."""
        self.mark_offsets.append(end)
        self.mark_sequences.append(next_sequence)
        self.end = end
        self.next_sequence = next_sequence

    def offset_of(self, sequence: int) -> int:
        """The offset of a frame in this segment."""
        index = bisect_right(self.mark_sequences, sequence) - 1
        return walk(self.view, self.mark_offsets[index], sequence - self.mark_sequences[index])

    def boundary_before(self, offset: int) -> int:
        """A known frame boundary at or before an offset."""
        return self.mark_offsets[bisect_right(self.mark_offsets, offset) - 1]


class SegmentStorage(Protocol):
    """Where segments come from and go to: anonymous memory, or the files of a store.

    Attributes:
        begin: Offset of the first frame in each segment, in bytes.
        margin: Bytes at the end of a new segment that frames must not take.
    """

    begin: int
    margin: int

    @abstractmethod
    def create(self, first: int, size: int) -> Segment:
        """An empty segment.

        Args:
            first: The sequence of its first frame.
            size: Its size in bytes.

        Raises:
            StoreFull: There is no room; nothing has changed.
        """

    @abstractmethod
    def release(self, segment: Segment) -> None:
        """Take a segment back: all of its frames are persisted."""

    @abstractmethod
    def park(self, segment: Segment) -> None:
        """The segment will not be read for a while: it may be unmapped until then."""

    @abstractmethod
    def seal(self, segment: Segment, end: int, next_sequence: int) -> None:
        """Protect the frames from `segment.end` to `end` with a checksum: they are complete.

        Args:
            segment: The segment, whose `end` and `next_sequence` are still the old ones.
            end: Offset after the last of the frames, in bytes.
            next_sequence: The sequence after the last of them.
        """

    @abstractmethod
    def save_numbers(self, window: PublishWindow, *, skipped: bool) -> None:
        """Save the last persisted and the last used sequence, and whether a server was asked.

        Args:
            window: Where those are.
            skipped: Numbers were skipped of which no segment knows, so this has to be synced too.
        """


def walk(view: memoryview, offset: int, frames: int) -> int:
    """The offset that is `frames` frames after `offset`."""
    for _ in range(frames):
        offset += SLOT_BYTES + int(frame_length(view, offset)[0])
    return offset

"""One segment in a file: a header page, frames that grow upwards, and seals that grow downwards.

The header page (`framing`) says which sequence comes first. There is a seal for each 64 KiB of
frames and for each sync; the first is at the end of the file, the next one before it. The segment
is full when frames and seals meet, so that each sync costs 16 bytes and nothing else: a store that
syncs often holds nearly as much as one that does not. The file is mapped when it is looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from typing_extensions import override

from haclient_stores import framing
from haclient_stores.disk.files import PAGE_BYTES
from haclient_stores.disk.rewriting import write_again
from haclient_stores.publish_stores.segment import Segment

if TYPE_CHECKING:
    from pathlib import Path

    from haclient_stores.disk.files import Disk, File, Region, Writable

__all__ = [
    "HEADER_BYTES",
    "MARGIN_BYTES",
    "SEGMENT_MAGIC",
    "FileSegment",
    "frames_below",
    "seal_at",
    "seal_frames",
    "write_unsynced_again",
]

SEGMENT_MAGIC: Final = b"HAPUBSEG"
HEADER_BYTES: Final = PAGE_BYTES
# Room for the seals that come while an append is under way, and for the zero behind the last.
_LATE_SEALS: Final = 4
MARGIN_BYTES: Final = framing.SEAL_BYTES * (_LATE_SEALS + 1)


class FileSegment(Segment):
    """A segment in a file; mapped when it is looked at.

    Attributes:
        path: The file.
        synced: Its header on disk may vouch for frames, so it must not be overwritten before the
            header says otherwise there.
        lasting: Frames up to this offset were covered by a sync.
    """

    __slots__ = ("_disk", "_file", "_region", "lasting", "path", "synced")

    def __init__(self, disk: Disk, path: Path, *, first: int, size: int) -> None:
        super().__init__(first=first, begin=HEADER_BYTES, size=size)
        self._disk = disk
        self._file: File | None = None
        self._region: Region | None = None
        self.path = path
        self.synced = False
        self.lasting = HEADER_BYTES

    @property
    @override
    def view(self) -> memoryview:
        return self._mapped().view

    @property
    @override
    def writable(self) -> Writable:
        return self._mapped().writable

    @property
    @override
    def frame_limit(self) -> int:
        return frames_below(self)

    def _mapped(self) -> Region:
        if self._region is None:
            self._file = self._disk.open(self.path)
            self._region = self._file.map(0, self.size)
        return self._region

    def adopt(self, file: File) -> None:
        """Use a file that is open already."""
        self._file = file
        self._region = file.map(0, self.size)

    def take_over(self, other: FileSegment) -> None:
        """Use the mapping of a segment that is not used any more: new pages would cost more."""
        self._file, other._file = other._file, None
        self._region, other._region = other._region, None

    def let_go(self) -> None:
        """Unmap and close; `view` opens it again."""
        region, self._region = self._region, None
        file, self._file = self._file, None
        if region is not None:
            region.close()
        if file is not None:
            file.close()


def frames_below(segment: Segment) -> int:
    """Where the frames of a segment with so many seals have to end."""
    return segment.size - framing.SEAL_BYTES * (len(segment.mark_offsets) + _LATE_SEALS)


def seal_at(segment: Segment, index: int) -> int:
    """The offset of a seal, counted from 0."""
    return segment.size - framing.SEAL_BYTES * (index + 1)


def seal_frames(segment: Segment, end: int, next_sequence: int) -> None:
    """Put a checksum over the frames from `segment.end` to `end`."""
    view = segment.view
    crc = framing.seal_checksum(view[segment.end : end], segment.next_sequence, next_sequence)
    at = seal_at(segment, len(segment.mark_offsets) - 1)
    framing.write_seal(view, at, framing.Seal(end, crc, next_sequence))


def write_unsynced_again(segment: FileSegment, file: File) -> None:
    """Write again what no sync has covered: see `rewriting`.

    Only bytes that do not change as long as the segment is in use: an append may be under way.
    """
    sealed = seal_at(segment, len(segment.mark_offsets) - 2)
    write_again(file, framing.IDENTITY_BYTES - 1, framing.IDENTITY_BYTES)  # all of its page
    write_again(file, segment.lasting, segment.end)
    write_again(file, sealed, segment.size)

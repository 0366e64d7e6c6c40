"""One segment in a file: a header page, a table of seals, and frames.

The header page (`framing`) says which sequence comes first; the rest of the 16 KiB header is the
table, one seal for each 64 KiB of frames or for each sync. The file is mapped when it is looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from typing_extensions import override

from haclient_stores import framing
from haclient_stores.segment import Segment

if TYPE_CHECKING:
    from pathlib import Path

    from haclient_stores.files import Disk, File, Region, Writable

__all__ = [
    "HEADER_BYTES",
    "SEALS",
    "SEGMENT_MAGIC",
    "TABLE",
    "FileSegment",
    "seal_frames",
    "takes_more_seals",
]

SEGMENT_MAGIC: Final = b"HAPUBSEG"
HEADER_BYTES: Final = 16 * 1024
TABLE: Final = 256  # where the seal table begins
SEALS: Final = (HEADER_BYTES - TABLE) // framing.SEAL_BYTES
_LATE_SEALS: Final = 4  # for frames that were appended while the last seal was written


class FileSegment(Segment):
    """A segment in a file; mapped when it is looked at.

    Attributes:
        path: The file.
        synced: Its header on disk may vouch for frames, so it must not be overwritten before the
            header says otherwise there.
    """

    __slots__ = ("_disk", "_file", "_region", "path", "synced")

    def __init__(self, disk: Disk, path: Path, *, first: int, size: int) -> None:
        super().__init__(first=first, begin=HEADER_BYTES, size=size)
        self._disk = disk
        self._file: File | None = None
        self._region: Region | None = None
        self.path = path
        self.synced = False

    @property
    @override
    def view(self) -> memoryview:
        return self._mapped().view

    @property
    @override
    def writable(self) -> Writable:
        return self._mapped().writable

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


def seal_frames(segment: Segment, end: int, next_sequence: int) -> bool:
    """Put a checksum over the frames from `segment.end` to `end`; False when it was the last."""
    view = segment.view
    index = len(segment.mark_offsets) - 1
    crc = framing.seal_checksum(view[segment.end : end], next_sequence)
    framing.write_seal(view[TABLE:HEADER_BYTES], index, framing.Seal(end, crc, next_sequence))
    return takes_more_seals(segment)


def takes_more_seals(segment: Segment) -> bool:
    """Whether the table has room for another seal after the next one."""
    return len(segment.mark_offsets) + _LATE_SEALS < SEALS

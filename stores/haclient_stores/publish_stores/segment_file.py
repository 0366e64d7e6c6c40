"""One segment in a file: its layout, its seals, and how it is read back.

The header page (`header_page`) says which sequence comes first. Frames grow upwards after it, seals
grow downwards from the end of the file: one for each 64 KiB of frames and one for each sync. The
segment is full when frames and seals meet, so a sync costs 16 bytes and nothing else.

**Reading back** follows the rule of `checksummed_log`. A block is the frames between two seals; its
checksum covers their offset, their bytes and their sequences, so neither a block from an earlier
use of the file nor one with other sequences is accepted. Frames after the last seal count only if
the machine was not restarted since: then they are still in the page cache, which a killed process
does not tear, and the order of writes guarantees whole frames. They count as long as each carries
the next expected sequence, so frames from an earlier use end them.

A length of zero ends the frames. No frame has this length, since it holds at least the digits of a
sequence.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from typing_extensions import override

from haclient_stores import header_page
from haclient_stores.disk.checksummed_log import (
    BrokenBlock,
    LogHistory,
    block_checksum,
    clear_tail,
    is_same_boot,
    read_blocks,
)
from haclient_stores.disk.durable_file import DurableFile
from haclient_stores.disk.files import PAGE_BYTES, Disk, File, Region, Writable
from haclient_stores.errors import StoreCorrupt
from haclient_stores.logs import logger_of
from haclient_stores.publish_stores.segment_log import SLOT_BYTES, Segment, frame_length

SEGMENT_MAGIC: Final = b"HAPUBSEG"
SEGMENT_VERSION: Final = 1
HEADER_BYTES: Final = PAGE_BYTES
SEAL_BYTES: Final = 16
# Room for the seals that come while an append is under way, and for the zero after the last.
_LATE_SEALS: Final = 4
MARGIN_BYTES: Final = SEAL_BYTES * (_LATE_SEALS + 1)
_DIGITS_WITHIN: Final = 64 * 1024  # the sequence is in the frame's header, which is shorter

_seal = struct.Struct("<IIQ")
_sequences = struct.Struct("<QQ")

_log = logger_of("haclient.publish_store")


# -- seals --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seal:
    """One seal of a segment.

    Attributes:
        end: Offset after the sealed frames, in bytes; they begin where the previous seal's frames
            end.
        crc: `seal_checksum` of them.
        next_sequence: The sequence of the frame after them.
    """

    end: int
    crc: int
    next_sequence: int


def seal_checksum(
    frames: bytes | memoryview, *, begin: int, sequence: int, next_sequence: int
) -> int:
    """The crc32 of a block of frames: of its offset, its bytes and its sequences, in this order.

    Args:
        frames: Their bytes.
        begin: The offset of the first one in the file, in bytes.
        sequence: The sequence of the first one.
        next_sequence: The sequence after the last one.
    """
    checksum = block_checksum(frames, position=begin)
    return zlib.crc32(_sequences.pack(sequence, next_sequence), checksum)


def write_seal(view: memoryview, at: int, seal: Seal) -> None:
    """Write a seal below the others; the word that makes it valid is written last and at once.

    Below is whatever the file held in an earlier life, so the place of the next seal is made zero
    first.
    """
    packed = _seal.pack(seal.end, seal.crc, seal.next_sequence)
    view[at - SEAL_BYTES : at] = bytes(SEAL_BYTES)
    view[at + 8 : at + SEAL_BYTES] = packed[8:]
    view[at : at + 8] = packed[:8]


def read_seal(view: memoryview, at: int) -> Seal | None:
    """The seal at an offset; None where no seal was written, since none ends at offset 0."""
    end, crc, next_sequence = _seal.unpack_from(view, at)
    return Seal(end, crc, next_sequence) if end else None


def seal_at(segment: Segment, index: int) -> int:
    """The offset of a seal, counted from 0."""
    return segment.size - SEAL_BYTES * (index + 1)


def frames_below(segment: Segment) -> int:
    """The offset where the frames of a segment with this many seals must end."""
    return segment.size - SEAL_BYTES * (len(segment.mark_offsets) + _LATE_SEALS)


def seal_frames(segment: Segment, end: int, next_sequence: int) -> None:
    """Put a checksum over the frames from `segment.end` to `end`."""
    view, begin = segment.view, segment.end
    crc = seal_checksum(
        view[begin:end], begin=begin, sequence=segment.next_sequence, next_sequence=next_sequence
    )
    write_seal(view, _next_seal_at(segment), Seal(end, crc, next_sequence))


def _next_seal_at(segment: Segment) -> int:
    return seal_at(segment, len(segment.mark_offsets) - 1)


# -- the file -----------------------------------------------------------------------------------


class FileSegment(Segment):
    """A segment in a file; mapped when it is read or written.

    Attributes:
        path: The file.
        header_on_disk: The header may be on the disk. The file must not receive new frames before
            the header on disk says that it is unused; otherwise the old header would describe them.
        synced_end: Frames up to this offset were covered by a successful sync.
        rewrite_before_fsync: See `DurableFile`.
    """

    def __init__(self, disk: Disk, path: Path, *, first: int, size: int) -> None:
        super().__init__(first=first, begin=HEADER_BYTES, size=size)
        self._disk = disk
        self._file: File | None = None
        self._region: Region | None = None
        self.path = path
        self.header_on_disk = False
        self.synced_end = HEADER_BYTES
        self.rewrite_before_fsync = False

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

    def take_mapping(self, other: FileSegment) -> None:
        """Go on with the mapping of an unused segment: a new one would have to be populated."""
        self._file, other._file = other._file, None
        self._region, other._region = other._region, None

    def unmap(self) -> None:
        """Unmap and close; `view` opens the file again."""
        region, self._region = self._region, None
        file, self._file = self._file, None
        if region is not None:
            region.close()
        if file is not None:
            file.close()

    def rewrite(self, durable: DurableFile) -> None:
        """Write again what no sync has covered.

        Only bytes that do not change as long as the segment is in use: an append may be under way.
        """
        lowest_seal = seal_at(self, len(self.mark_offsets) - 2)
        durable.rewrite(
            (header_page.IDENTITY_BYTES - 1, header_page.IDENTITY_BYTES),  # dirties the header page
            (self.synced_end, self.end),
            (lowest_seal, self.size),
        )


# -- reading back -------------------------------------------------------------------------------


def read_segment(disk: Disk, file: File, boot_id: bytes) -> FileSegment | None:
    """The segment in a file of an earlier process.

    Args:
        disk: Where the file is.
        file: The file, open; the segment takes it over.
        boot_id: That of the machine as it runs now.

    Returns:
        The segment; None when the file is not in use.

    Raises:
        StoreCorrupt: Something that was sealed is damaged.
        StoreError: It is of another format version.
    """
    path, size = file.path, file.size()
    header = file.pread(HEADER_BYTES, 0)
    identity = header_page.read_identity(
        header, magic=SEGMENT_MAGIC, path=str(path), version=SEGMENT_VERSION
    )
    if identity is None:  # made or released by a process that was killed then
        return None
    if size < HEADER_BYTES:
        raise StoreCorrupt(path, size, "the file ends within its header")
    found = header[header_page.BOOT_ID_OFFSET : header_page.BOOT_ID_OFFSET + 16]
    same_boot = is_same_boot(found, boot_id)
    history = LogHistory(same_boot, header_page.read_word(header, header_page.FIRST_WORD))
    if size < identity.file_bytes and (same_boot or history.synced_end):
        raise StoreCorrupt(path, size, f"the file ends before byte {identity.file_bytes}")
    file.allocate(identity.file_bytes)
    segment = FileSegment(disk, path, first=identity.first, size=identity.file_bytes)
    segment.adopt(file)
    segment.header_on_disk = segment.rewrite_before_fsync = True
    segment.synced_end = max(history.synced_end, HEADER_BYTES)
    read_blocks(path, HEADER_BYTES, history, lambda _: _next_block(segment))
    lowest = _next_seal_at(segment)
    if read_seal(segment.view, lowest) is not None:  # the log was cut in front of this block
        clear_tail(file, segment.end, lowest + SEAL_BYTES)
    _take_unsealed(segment, trusted=same_boot)
    segment.view[header_page.BOOT_ID_OFFSET : header_page.BOOT_ID_OFFSET + 16] = boot_id
    return segment


def _next_block(segment: FileSegment) -> int | None:
    """Check the next seal and the frames that it covers, and note where they end."""
    view, begin, sequence = segment.view, segment.end, segment.next_sequence
    at = _next_seal_at(segment)
    seal = read_seal(view, at)
    if seal is None:
        return None
    if seal.end <= begin or seal.next_sequence <= sequence:
        raise BrokenBlock(at, "the seals go backwards")
    if seal.end + SLOT_BYTES > at - SEAL_BYTES:
        raise BrokenBlock(at, "a seal of more frames than there is room for")
    crc = seal_checksum(
        view[begin : seal.end], begin=begin, sequence=sequence, next_sequence=seal.next_sequence
    )
    if crc != seal.crc:
        raise BrokenBlock(begin, "sealed frames do not match their checksum")
    segment.mark(seal.end, seal.next_sequence)
    return seal.end


def _take_unsealed(segment: FileSegment, *, trusted: bool) -> None:
    """Take the frames after the last seal that are whole, seal them, and end the frames there."""
    view = segment.view
    end, next_sequence = segment.end, segment.next_sequence
    limit = seal_at(segment, len(segment.mark_offsets)) - SLOT_BYTES  # and one more seal
    while trusted:
        length = int(frame_length(view, end)[0])
        after = end + SLOT_BYTES + length
        start = bytes(view[end + SLOT_BYTES : min(after, end + _DIGITS_WITHIN)])
        if not length or after > limit or b"%d" % next_sequence not in start:
            break
        end, next_sequence = after, next_sequence + 1
    if frame_length(view, end)[0]:
        _log.warning("%s: a torn frame at byte %d was cut off", segment.path, end)
    view[end : end + SLOT_BYTES] = bytes(SLOT_BYTES)
    if end > segment.end:
        seal_frames(segment, end, next_sequence)
        segment.mark(end, next_sequence)

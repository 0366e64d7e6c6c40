"""Reading a segment file back: what was sealed is checked, what was not is looked at closely.

Sealed frames match their checksum, or the file is corrupt. There is one exception: after a start of
the machine, a block that was sealed but never synced may not have reached the disk. Frames behind
the last seal are taken only if the machine has not been started since, and only as far as each
frame carries the number that has to come next, so frames of the file's earlier life never count.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from haclient_stores import framing
from haclient_stores.errors import StoreCorrupt
from haclient_stores.file_segment import (
    HEADER_BYTES,
    SEALS,
    SEGMENT_MAGIC,
    TABLE,
    FileSegment,
    seal_frames,
)
from haclient_stores.segment import SLOT_BYTES, frame_length

if TYPE_CHECKING:
    from haclient_stores.files import Disk, File

__all__ = ["read_segment"]

_DIGITS_WITHIN: Final = 64 * 1024  # the sequence stands in the frame's header

_log = logging.getLogger(__name__)


def read_segment(disk: Disk, file: File, boot_id: bytes) -> FileSegment | None:
    """The segment in a file of an earlier process; None when the file is not in use.

    Raises:
        StoreCorrupt: Something that was sealed is damaged.
    """
    path, size = file.path, file.size()
    header = file.pread(HEADER_BYTES, 0)
    identity = framing.read_identity(header, magic=SEGMENT_MAGIC, path=str(path))
    if identity is None:  # made or taken back by a process that was killed then
        return None
    if size < HEADER_BYTES:
        raise StoreCorrupt(path, size, "the file ends within its header")
    seals = framing.read_seals(
        header[TABLE:], begin=HEADER_BYTES, first=identity.first, path=str(path), at=TABLE
    )
    sealed = seals[-1].end if seals else HEADER_BYTES
    if size < sealed:
        raise StoreCorrupt(path, size, f"the file ends, but was sealed up to byte {sealed}")
    file.allocate(identity.file_bytes)
    segment = FileSegment(disk, path, first=identity.first, size=identity.file_bytes)
    segment.adopt(file)
    segment.synced = True
    same_boot = header[framing.BOOT_ID_OFFSET : framing.BOOT_ID_OFFSET + 16] == boot_id
    synced = framing.read_word(header, framing.FIRST_WORD)
    _verify(segment, seals, safe=None if same_boot else synced)
    if segment.end < synced:
        at = TABLE + framing.SEAL_BYTES * len(seals)
        raise StoreCorrupt(path, at, f"a seal is missing: the file was synced to byte {synced}")
    _take_unsealed(segment, limit=size, trusted=same_boot)
    segment.view[framing.BOOT_ID_OFFSET : framing.BOOT_ID_OFFSET + 16] = boot_id
    return segment


def _verify(segment: FileSegment, seals: list[framing.Seal], *, safe: int | None) -> None:
    """Check what is sealed.

    After a start of the machine, a block that was never synced may be missing: that is a torn tail
    (`safe` says how far the file was synced). Everything else is corruption.
    """
    view = segment.view
    for index, seal in enumerate(seals):
        begin = segment.end
        if seal.end + SLOT_BYTES > segment.size:
            at = TABLE + framing.SEAL_BYTES * index
            raise StoreCorrupt(segment.path, at, "a seal beyond the file")
        if framing.seal_checksum(view[begin : seal.end], seal.next_sequence) == seal.crc:
            segment.mark(seal.end, seal.next_sequence)
            continue
        if safe is None or begin < safe:
            raise StoreCorrupt(segment.path, begin, "sealed frames do not match their checksum")
        _log.warning(
            "%s: frames from byte %d on were not on disk when the machine stopped: cut",
            segment.path,
            begin,
        )
        table = TABLE + index * framing.SEAL_BYTES
        view[table:HEADER_BYTES] = bytes(HEADER_BYTES - table)
        return


def _take_unsealed(segment: FileSegment, *, limit: int, trusted: bool) -> None:
    view = segment.view
    end, next_sequence = segment.end, segment.next_sequence
    limit = min(limit, segment.size - SLOT_BYTES)
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
    segment.full = len(segment.mark_offsets) > SEALS
    if end > segment.end:
        segment.full = segment.full or not seal_frames(segment, end, next_sequence)
        segment.mark(end, next_sequence)

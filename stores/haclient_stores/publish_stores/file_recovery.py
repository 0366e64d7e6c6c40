"""Reading a segment file back: what was sealed is checked, what was not is looked at closely.

Sealed frames match their checksum, or the file is corrupt. There is one exception: after a start of
the machine, a block that was sealed but never synced may not have reached the disk, nor its seal:
in its place may be bytes of the file's earlier life. Frames behind the last seal are taken only if
the machine has not been started since, and only as far as each frame carries the number that has to
come next, so frames of an earlier life never count.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from haclient_stores import framing
from haclient_stores.errors import StoreCorrupt
from haclient_stores.publish_stores.file_segment import (
    HEADER_BYTES,
    SEGMENT_MAGIC,
    FileSegment,
    seal_at,
    seal_frames,
)
from haclient_stores.publish_stores.segment import SLOT_BYTES, frame_length

if TYPE_CHECKING:
    from haclient_stores.disk.files import Disk, File

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
    same_boot = header[framing.BOOT_ID_OFFSET : framing.BOOT_ID_OFFSET + 16] == boot_id
    synced = framing.read_word(header, framing.FIRST_WORD)
    if size < identity.file_bytes and (same_boot or synced):
        raise StoreCorrupt(path, size, f"the file ends before byte {identity.file_bytes}")
    file.allocate(identity.file_bytes)
    segment = FileSegment(disk, path, first=identity.first, size=identity.file_bytes)
    segment.adopt(file)
    segment.synced = True
    segment.lasting = max(synced, HEADER_BYTES)
    _verify(segment, safe=None if same_boot else synced)
    if segment.end < synced:
        at = seal_at(segment, len(segment.mark_offsets) - 1)
        raise StoreCorrupt(path, at, f"a seal is missing: the file was synced to byte {synced}")
    _take_unsealed(segment, trusted=same_boot)
    segment.view[framing.BOOT_ID_OFFSET : framing.BOOT_ID_OFFSET + 16] = boot_id
    return segment


def _verify(segment: FileSegment, *, safe: int | None) -> None:
    """Check what is sealed.

    After a start of the machine, a block that was never synced may be missing: that is a torn tail
    (`safe` says how far the file was synced). Everything else is corruption.
    """
    view = segment.view
    while seal := framing.read_seal(view, at := seal_at(segment, len(segment.mark_offsets) - 1)):
        wrong = _wrong(segment, seal, at)
        if not wrong:
            segment.mark(seal.end, seal.next_sequence)
            continue
        if safe is None or segment.end < safe:
            raise wrong
        _log.warning(
            "%s: frames from byte %d on were not on disk when the machine stopped: cut",
            segment.path,
            segment.end,
        )
        view[at : at + framing.SEAL_BYTES] = bytes(framing.SEAL_BYTES)


def _wrong(segment: FileSegment, seal: framing.Seal, at: int) -> StoreCorrupt | None:
    """What is wrong with the frames behind the last mark, and their seal."""
    begin, sequence = segment.end, segment.next_sequence
    if seal.end <= begin or seal.next_sequence <= sequence:
        return StoreCorrupt(segment.path, at, "the seals go backwards")
    if seal.end + SLOT_BYTES > at - framing.SEAL_BYTES:
        return StoreCorrupt(segment.path, at, "a seal of more frames than there is room for")
    sealed = segment.view[begin : seal.end]
    if framing.seal_checksum(sealed, sequence, seal.next_sequence) != seal.crc:
        return StoreCorrupt(segment.path, begin, "sealed frames do not match their checksum")
    return None


def _take_unsealed(segment: FileSegment, *, trusted: bool) -> None:
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

"""The segment files of a store: making, recycling, sealing, syncing and finding them again.

A segment file is preallocated, mapped and never grows. A segment whose frames are all persisted is
marked unused, and reused for later frames, so a store on disk is as fast as one in memory.

A long backlog would need thousands of mappings and descriptors, so segments between the cursor and
the head are *parked*: unmapped and closed until somebody reads them again.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from haclient_stores import framing
from haclient_stores.disk.files import PAGE_BYTES
from haclient_stores.disk.rewriting import write_again
from haclient_stores.errors import StoreCorrupt, StoreError, StoreFull, UsageError
from haclient_stores.publish_stores.file_recovery import read_segment
from haclient_stores.publish_stores.file_segment import (
    HEADER_BYTES,
    MARGIN_BYTES,
    SEGMENT_MAGIC,
    FileSegment,
    seal_frames,
    write_unsynced_again,
)
from haclient_stores.publish_stores.segment import SLOT_BYTES, Segment, Space
from haclient_stores.publish_stores.window import PublishWindow

if TYPE_CHECKING:
    from pathlib import Path

    from haclient_stores.disk.files import Disk, File

__all__ = ["SUFFIX", "FileSpace", "highest_number"]

_SPARE_SEGMENTS: Final = 2  # enough to roll without new files while acks keep up
_MAPPED_SEGMENTS: Final = 8  # of those that nobody is writing or sending
_SMALLEST_FRAME_BYTES: Final = SLOT_BYTES + 1  # a length and a digit
SUFFIX: Final = ".seg"
_HIGHEST: Final = 2**64 - 2**40  # a checked word above it is damaged: it leaves no room for numbers
_BOOT_ID: Final = slice(framing.BOOT_ID_OFFSET, framing.BOOT_ID_OFFSET + 16)


class FileSpace(Space):
    """The segment files of one store directory.

    Args:
        disk: Where they are.
        control: The store's first file, which carries the lock.
        segment_bytes: How large a segment is that is used again.
        kept: How many unused segments are kept.
    """

    begin = HEADER_BYTES
    margin = MARGIN_BYTES

    def __init__(
        self, disk: Disk, control: File, *, segment_bytes: int, kept: int = _SPARE_SEGMENTS
    ) -> None:
        self._disk = disk
        self._kept = kept
        self._directory = control.path.parent
        self._segment_bytes = segment_bytes
        self._control_file = control
        self._control_region = control.map(0, PAGE_BYTES)
        self._control = self._control_region.view
        # What a killed process has changed may not be on the disk, whoever reads it from the cache.
        self._control_dirty = True
        self._new_names = True
        self._greeting_synced = False
        self._doubtful = False  # whether a sync has failed, or may have: see rewriting
        self._closed = False
        self._boot_id = disk.boot_id()
        self._process = disk.process_id()
        self._lock = threading.Lock()
        self._spare: list[FileSegment] = []
        self._stale: list[FileSegment] = []  # unused, but the disk does not know it yet
        self._parked: deque[FileSegment] = deque()
        self._dirty: list[FileSegment] = []
        self._next_name = 1
        self._fixed = False
        self._reserved = 0
        self._highest_found = 0  # below the first number of a segment without frames

    def check_usable(self) -> None:
        """Refuse to go on after `close`, or in a fork, which shares the lock and the mapping."""
        if self._closed:
            raise UsageError(f"{self._directory}: the store is closed; open it again")
        process = self._disk.process_id()
        if process != self._process:
            raise UsageError(
                f"{self._directory}: opened by process {self._process} and used by its fork "
                f"{process}: start workers with spawn and let each open a store of its own"
            )

    # -- making and taking back ---------------------------------------------------------------

    @override
    def create(self, first: int, size: int) -> Segment:
        self.check_usable()
        with self._lock:
            spare = self._spare.pop() if size == self._segment_bytes and self._spare else None
        if spare is None and self._fixed:
            spare = self._unused_at_last(size)
        try:
            segment = self._made(first, size) if spare is None else self._reused(spare, first)
        except StoreFull:
            unused = self._unused_at_last(size)
            if unused is None:
                raise
            segment = self._reused(unused, first)
        view = segment.view
        view[HEADER_BYTES : HEADER_BYTES + SLOT_BYTES] = bytes(SLOT_BYTES)
        view[size - framing.SEAL_BYTES :] = bytes(framing.SEAL_BYTES)
        identity = framing.Identity(SEGMENT_MAGIC, HEADER_BYTES, size, first)
        with self._lock:
            framing.write_word(view, framing.FIRST_WORD, 0)
            framing.write_identity(view, identity, self._boot_id)
            self._dirty.append(segment)
            # A sync vouches for the numbers too, however soon their frames are acknowledged.
            framing.write_word(self._control, framing.FOURTH_WORD, highest_number(first, size))
            self._control_dirty = True
        return segment

    def _reused(self, spare: FileSegment, first: int) -> FileSegment:
        segment = FileSegment(self._disk, spare.path, first=first, size=spare.size)
        segment.take_over(spare)
        return segment

    def _unused_at_last(self, size: int) -> FileSegment | None:
        """Without another file it is worth waiting: the disk learns that a segment is unused."""
        with self._lock:
            if size != self._segment_bytes or not self._stale:
                return None
            segment = self._stale[-1]
        self._sync_unused(segment)
        with self._lock:  # a sync in another thread may have come first
            (self._stale if segment in self._stale else self._spare).remove(segment)
        return segment

    def _made(self, first: int, size: int) -> FileSegment:
        path = self._directory / f"{self._next_name:08d}{SUFFIX}"
        self._next_name += 1
        segment = FileSegment(self._disk, path, first=first, size=size)
        file = self._disk.open(path, create=True)
        try:
            file.allocate(size)
            segment.adopt(file)
        except StoreError:
            file.close()
            self._disk.remove(path)
            raise
        self._new_names = True
        return segment

    def preallocate(self, size: int) -> None:
        """Have unused segments of `size` bytes together, and from now on make no other if possible.

        Raises:
            StoreFull: The disk has no room for them.
        """
        self._fixed = True
        found = len(self._spare)
        try:
            while (len(self._spare) + 1) * self._segment_bytes <= size:
                segment = self._made(0, self._segment_bytes)
                segment.let_go()
                self._spare.append(segment)
        except StoreError:  # do not leave a full disk behind
            for segment in self._spare[found:]:
                self._disk.remove(segment.path)
            raise

    @override
    def release(self, segment: Segment) -> None:
        found = _file_segment(segment)
        if found in self._parked:
            self._parked.remove(found)
        with self._lock:
            if found in self._dirty:
                self._dirty.remove(found)
            unused = self._stale if found.synced else self._spare
            keep = found.size == self._segment_bytes and len(unused) < self._kept
            if keep:
                found.view[:8] = bytes(8)
                unused.append(found)
        if not keep:
            found.let_go()
            self._disk.remove(found.path)

    @override
    def park(self, segment: Segment) -> None:
        found = _file_segment(segment)
        if found in self._parked:
            self._parked.remove(found)
        self._parked.append(found)
        while len(self._parked) > _MAPPED_SEGMENTS:
            self._parked.popleft().let_go()

    # -- the control page ---------------------------------------------------------------------

    @property
    def control(self) -> memoryview:
        """The page that belongs to the store as a whole."""
        return self._control

    def window(self, segments: list[Segment]) -> PublishWindow:
        """Take over the numbering of an earlier process.

        Where a word is torn, messages rather come twice than never, and a number rather never than
        twice. If the machine was stopped, numbers may have been used that nothing on disk shows:
        the window is unsure until the client has told the time, and the page says so until then.
        """
        page = self._control
        floor = max(_in_use(page, framing.SECOND_WORD), self._highest_found)
        stopped = bytes(page[_BOOT_ID]) != self._boot_id
        if stopped:  # a clock may be wrong: where a sync has said how far it could have come
            floor = max(floor, _in_use(page, framing.FOURTH_WORD))
            framing.write_word(page, framing.SECOND_WORD, floor)
        return PublishWindow.recovered(
            [(segment.first, segment.next_sequence - 1) for segment in segments],
            last_persisted=min(framing.read_word_pair(page, framing.FIRST_WORD)),
            floor=floor,
            reconciled=any(framing.read_word_pair(page, framing.THIRD_WORD)),
            unsure=stopped,
        )

    def bind(self, client_name: str) -> None:
        """Note the owner, for good."""
        framing.write_owner(self._control, client_name)
        self._control_file.fsync()

    # -- what is kept on disk -----------------------------------------------------------------

    @override
    def seal(self, segment: Segment, end: int, next_sequence: int) -> None:
        self.check_usable()
        seal_frames(segment, end, next_sequence)

    @override
    def note(self, window: PublishWindow, *, numbering: bool) -> None:
        self.check_usable()
        framing.write_word(self._control, framing.FIRST_WORD, window.last_persisted)
        last = max(window.last_sequence, self._reserved)
        framing.write_word(self._control, framing.SECOND_WORD, last)
        framing.write_word(self._control, framing.THIRD_WORD, int(window.reconciled))
        if numbering:
            self._control_dirty = True
        if not window.unsure:
            self._control[_BOOT_ID] = self._boot_id
        if window.reconciled and not self._greeting_synced:
            # Once, and before anything is sent: a server that has seen our messages looks like one
            # that has seen somebody else's, to a store that has forgotten whether it ever asked.
            self._control_file.fsync()
            self._greeting_synced = True

    def reserve(self, sequence: int) -> None:
        """Numbers up to this may be in use without a file: after a kill the next is above it."""
        self._reserved = sequence
        framing.write_word(self._control, framing.SECOND_WORD, sequence)

    def sync(self) -> None:
        """Sync all files that were written since the last time; one thread at a time may call this.

        Files are opened anew, so that a segment may be recycled or removed meanwhile.
        """
        with self._lock:
            dirty = list(self._dirty)
            stale = list(self._stale)
            new_names, self._new_names = self._new_names, False
            control_dirty, self._control_dirty = self._control_dirty, False
        doubtful, self._doubtful = self._doubtful, True
        try:
            for segment in dirty:
                self._sync_file(segment, doubtful=doubtful)
            for segment in stale:
                self._sync_unused(segment)
            with self._lock:
                self._spare += [one for one in stale if one in self._stale]
                self._stale = [one for one in self._stale if one not in stale]
            if control_dirty:
                write_again(self._control_file, 0, 1)
                self._control_file.fsync()
            if new_names:
                self._disk.fsync_dir(self._directory)
        except BaseException:
            self._control_dirty = self._control_dirty or control_dirty
            self._new_names = self._new_names or new_names
            raise
        self._doubtful = False
        finished = dirty[:-1]  # the last one made may have been written to meanwhile
        with self._lock:
            self._dirty = [one for one in self._dirty if one not in finished]

    def _sync_file(self, segment: FileSegment, *, doubtful: bool) -> None:
        try:
            file = self._disk.open(segment.path)
        except StoreError:
            if segment.released:  # persisted and removed in the meantime
                return
            raise
        with contextlib.closing(file):
            with self._lock:
                end = segment.end
                if doubtful and not segment.released:
                    write_unsynced_again(segment, file)
            segment.synced = True
            file.fsync()
            word = bytearray(16)
            framing.write_word(memoryview(word), 0, end)
            with self._lock:
                segment.lasting = end
                if not segment.released:
                    file.pwrite(word, framing.FIRST_WORD)

    def _sync_unused(self, segment: FileSegment) -> None:
        with contextlib.closing(self._disk.open(segment.path)) as file:
            with self._lock:
                if segment in self._stale:  # it may be in use again
                    file.pwrite(bytes(8), 0)  # once more: see rewriting
            file.fsync()

    def remove_all(self, segments: list[Segment]) -> None:
        """Remove every file but the control page, whose numbers reach the disk first.

        Whichever of the files a crash leaves: its frames are known to be persisted.
        """
        self._control_file.fsync()
        for segment in self._all(segments):
            segment.let_go()
            self._disk.remove(segment.path)
        self._spare.clear()
        self._stale.clear()

    def _all(self, segments: list[Segment]) -> list[FileSegment]:
        return [*self._spare, *self._stale, *map(_file_segment, segments)]

    def close(self, segments: list[Segment]) -> None:
        """Unmap everything, the segments in use too."""
        self._closed = True
        for segment in self._all(segments):
            segment.let_go()
        self._control_region.close()
        self._control_file.close()

    # -- reading back -------------------------------------------------------------------------

    def recover(self) -> list[Segment]:
        """The segments of an earlier process, ascending.

        Raises:
            StoreCorrupt: Something that was sealed is damaged.
        """
        found: list[FileSegment] = []
        try:
            for name in self._disk.listdir(self._directory):
                if not name.endswith(SUFFIX):
                    continue
                number = name.removesuffix(SUFFIX)
                if number.isdecimal():
                    self._next_name = max(self._next_name, int(number) + 1)
                segment = self._recovered(self._directory / name)
                if segment is not None:
                    found.append(segment)
            found.sort(key=lambda segment: (segment.first, segment.next_sequence))
            return self._ordered(found)
        except BaseException:
            for segment in [*found, *self._spare, *self._stale]:
                segment.let_go()
            raise

    def _ordered(self, found: list[FileSegment]) -> list[Segment]:
        kept: list[Segment] = []
        for segment in found:
            if segment.end == segment.begin:
                # Killed before its first frame. The next number may jump above its own, and then it
                # would be of no use: a ring without another segment would be full.
                self._highest_found = max(self._highest_found, segment.first - 1)
                segment.released = True
                self.release(segment)
                continue
            if kept and segment.first < kept[-1].next_sequence:
                raise StoreCorrupt(segment.path, 24, "it repeats the sequences of another segment")
            kept.append(segment)
            self._dirty.append(segment)
        return kept

    def _recovered(self, path: Path) -> FileSegment | None:
        file = self._disk.open(path)
        try:
            segment = read_segment(self._disk, file, self._boot_id)
            if segment is None:
                self._keep_unused(file, file.size())
        except BaseException:
            file.close()
            raise
        if segment is None:
            file.close()
        else:
            self._doubtful = True
            segment.let_go()  # there may be more of them than may be open
        return segment

    def _keep_unused(self, file: File, size: int) -> None:
        if size == self._segment_bytes and len(self._spare) < self._kept:
            # On the disk it may still be in use, and must not be overwritten then.
            file.pwrite(bytes(8), 0)
            file.fsync()
            self._spare.append(FileSegment(self._disk, file.path, first=0, size=size))
        else:
            self._disk.remove(file.path)


def highest_number(first: int, size: int) -> int:
    """No segment of this size and first number has a higher one."""
    return first + size // _SMALLEST_FRAME_BYTES


def _in_use(page: memoryview, offset: int) -> int:
    """The higher of the two numbers that a torn word may stand for; none that is out of reach."""
    return max(each for each in (0, *framing.read_word_pair(page, offset)) if each <= _HIGHEST)


def _file_segment(segment: Segment) -> FileSegment:
    if not isinstance(segment, FileSegment):
        raise UsageError(f"{segment!r} is no segment of a file store")
    return segment

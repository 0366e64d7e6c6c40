"""The directory of a publish store: lock and owner, segment files, sequence numbers and notes.

`control` carries the lock, the owner's name and four numbers; `NNNNNNNN.seg` are the segments
(`segment_file`); `notes.json` holds small texts of the application. Formats: `stores/README.md`.

A segment file is preallocated, mapped and never grows. When all of its frames are persisted it is
marked unused and used again for later frames, so a store on disk is as fast as one in memory. A
long backlog would need thousands of mappings and descriptors, so segments between the send cursor
and the head are *parked*: unmapped and closed until somebody reads them again.

**Threads.** The owner's thread creates, releases and seals segments. Another thread may `sync`
meanwhile: what both touch is under `_lock`, and `sync` reopens the files, so that the owner may
recycle or remove a segment while it is synced.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from typing_extensions import override

from haclient_stores import header_page
from haclient_stores.disk.checksummed_log import is_same_boot
from haclient_stores.disk.durable_file import DurabilityOptions, DurableFile
from haclient_stores.disk.files import PAGE_BYTES, Disk, File, RealDisk
from haclient_stores.disk.ownership import Ownership, check_path
from haclient_stores.errors import StoreCorrupt, StoreError, StoreFull, UsageError
from haclient_stores.publish_stores.segment_file import (
    HEADER_BYTES,
    MARGIN_BYTES,
    SEAL_BYTES,
    SEGMENT_MAGIC,
    SEGMENT_VERSION,
    FileSegment,
    read_segment,
    seal_frames,
)
from haclient_stores.publish_stores.segment_log import SLOT_BYTES, Segment, SegmentStorage
from haclient_stores.publish_stores.window import PublishWindow

CONTROL_MAGIC: Final = b"HAPUBCTL"
_CONTROL_VERSION: Final = 1
_CONTROL: Final = "control"
_NOTES: Final = "notes.json"
_SUFFIX: Final = ".seg"
PARKED: Final = ".parked-"
"""Stands between the name of the directory and the sequence of a parked publish."""

# The last one is in the root of each newly created file system.
_OWN_NAMES: Final = {_CONTROL, _NOTES, f"{_NOTES}.new", "lost+found"}
_OF_A_BROKER: Final = "journal.lock"
_SPARE_SEGMENTS: Final = 2  # enough to roll without new files while acks keep up
_MAPPED_SEGMENTS: Final = 8  # of those that are neither written nor sent now
_SMALLEST_FRAME_BYTES: Final = SLOT_BYTES + 1  # a length and a digit
_HIGHEST: Final = 2**64 - 2**40  # a checked word above it is damaged: it leaves no room for numbers
_BOOT_ID: Final = slice(header_page.BOOT_ID_OFFSET, header_page.BOOT_ID_OFFSET + 16)
# Checked words of the control page.
_LAST_PERSISTED: Final = header_page.FIRST_WORD
_LAST_SEQUENCE: Final = header_page.SECOND_WORD
_RECONCILED: Final = header_page.THIRD_WORD
_HIGHEST_NUMBER: Final = header_page.FOURTH_WORD
_SYNCED_END: Final = header_page.FIRST_WORD  # of a segment
_T = TypeVar("_T")


class StoreDirectory(SegmentStorage):
    """The directory of an open publish store.

    Args:
        path: The directory; created when it is missing.
        disk: The file system; None for that of the machine.
        options: What the store promises for a loss of power.
        segment_bytes: The size of a segment that is used again.
        spare_limit: How many unused segments are kept.

    Attributes:
        options: What the store promises for a loss of power.
        ownership: Who may use it.
        segments: The segments left by an earlier process, in ascending order.
        window: The sequence numbers of that process.
        synced_sequence: Everything up to this sequence survives a power loss.

    Raises:
        StoreLocked: The store is open already.
        StoreCorrupt: A file does not match its checksums.
        StoreError: The directory is not a publish store.
    """

    begin = HEADER_BYTES
    margin = MARGIN_BYTES

    def __init__(
        self,
        path: str | Path,
        disk: Disk | None,
        options: DurabilityOptions,
        *,
        segment_bytes: int,
        spare_limit: int = _SPARE_SEGMENTS,
    ) -> None:
        self.options = options
        path = check_path(path, "the directory of the store")
        self._disk = disk = disk or RealDisk()
        self._path = path = disk.resolve(path)  # a relative one ends with a change of directory
        self._segment_bytes = segment_bytes
        self._spare_limit = spare_limit
        self._boot_id = disk.boot_id()
        self._lock = threading.Lock()
        self._spare: list[FileSegment] = []
        self._retired: list[FileSegment] = []  # unused, but on disk their headers say otherwise
        self._parked: deque[FileSegment] = deque()
        self._unsynced: list[FileSegment] = []
        self._next_name = 1
        self._preallocated = False
        self._reserved = 0
        self._highest_found = 0  # below the first number of a segment without frames
        # What a killed process has changed is in the page cache, and may not be on the disk yet.
        self._control_unsynced = True
        self._names_unsynced = True
        self._reconciled_synced = False
        self._sync_lock = threading.Lock()
        self._syncs_begun = 0
        self._syncs_done = 0
        disk.make_directory(path)
        _check_ours(disk, path)
        self.ownership = Ownership(disk, path / _CONTROL, store=path)
        try:
            self._open()
        except BaseException:  # no store is made, so nothing else would release the lock
            self.ownership.close()
            raise

    def _open(self) -> None:
        control = self.ownership.file
        self._check_control(control)
        self._control_file = DurableFile(control, rewrite_before_fsync=True)
        self._control_lock = threading.Lock()
        region = control.map(0, PAGE_BYTES)
        self._control = region.view
        try:
            self.ownership.client_name = header_page.read_owner(region.view, path=str(control.path))
            self._notes = self._read_notes()
            self.segments = self._recover()
        except BaseException:
            region.close()  # a mapping holds the lock as well as the descriptor
            raise
        self._control_region = region
        self.window = window = self._read_window()
        # A killed process may have left what it stored in the page cache only.
        self.synced_sequence = window.lowest - 1 if window.count else window.last_sequence

    @property
    def path(self) -> Path:
        """The directory."""
        return self._path

    @property
    def client_name(self) -> str:
        """The client that the store belongs to; empty before the first `open_for`."""
        return self.ownership.client_name

    def bind(self, client_name: str) -> None:
        """Bind the store to a client, for good.

        Raises:
            StoreLocked: It belongs to another one.
            UsageError: It is not a name, or the store cannot be used.
        """
        if self.ownership.check_client(client_name):
            header_page.write_owner(self._control, client_name)
            self._sync_control()
            self.ownership.client_name = client_name

    def on_fork(self, owner: _T, callback: Callable[[_T], None]) -> None:
        """Call `callback(owner)` in every forked child, which could write into the same files."""
        self._disk.on_fork(owner, callback)

    # -- the control page -----------------------------------------------------------------------

    def _check_control(self, file: File) -> None:
        size = file.size()
        page = file.pread(PAGE_BYTES, 0)
        identity = header_page.read_identity(
            page, magic=CONTROL_MAGIC, path=str(file.path), version=_CONTROL_VERSION
        )
        if identity is None:
            self._make_control(file)
        elif size < PAGE_BYTES:
            raise StoreCorrupt(file.path, size, "the file ends within its header")

    def _make_control(self, file: File) -> None:
        file.allocate(PAGE_BYTES)
        region = file.map(0, PAGE_BYTES)
        identity = header_page.Identity(
            CONTROL_MAGIC, PAGE_BYTES, PAGE_BYTES, version=_CONTROL_VERSION
        )
        header_page.write_identity(region.view, identity, self._disk.boot_id())
        region.close()
        file.fsync()
        self._disk.fsync_dir(self._path)

    def _sync_control(self) -> None:
        # Two threads may sync at once, and only one of them sees an error.
        with self._control_lock:
            self._control_file.sync((0, 1))  # a byte of the magic, which never changes

    def _read_window(self) -> PublishWindow:
        """Take over the numbering of an earlier process.

        Where a word is torn, messages rather come twice than never, and a number rather never than
        twice. If the machine was stopped, numbers may have been used that nothing on disk shows:
        the numbers are uncertain until the client gives the time, and the page says so until then.
        """
        page = self._control
        floor = max(_number_in_use(page, _LAST_SEQUENCE), self._highest_found)
        stopped = not is_same_boot(bytes(page[_BOOT_ID]), self._boot_id)
        if stopped:  # the clock may be wrong, so a sync has recorded an upper bound
            floor = max(floor, _number_in_use(page, _HIGHEST_NUMBER))
            header_page.write_word(page, _LAST_SEQUENCE, floor)
        return PublishWindow.recovered(
            [(segment.first, segment.next_sequence - 1) for segment in self.segments],
            last_persisted=min(header_page.read_word_pair(page, _LAST_PERSISTED)),
            floor=floor,
            reconciled=any(header_page.read_word_pair(page, _RECONCILED)),
            numbers_uncertain=stopped,
        )

    @override
    def save_numbers(self, window: PublishWindow, *, skipped: bool) -> None:
        self.ownership.check_usable()
        header_page.write_word(self._control, _LAST_PERSISTED, window.last_persisted)
        last = max(window.last_sequence, self._reserved)
        header_page.write_word(self._control, _LAST_SEQUENCE, last)
        header_page.write_word(self._control, _RECONCILED, int(window.reconciled))
        if skipped:
            self._control_unsynced = True
        if not window.numbers_uncertain:
            self._control[_BOOT_ID] = self._boot_id
        if window.reconciled and not self._reconciled_synced:
            # Once, and before anything is sent. A store that forgets that it asked a server would
            # take its own messages there for those of another publisher, and refuse the logon.
            self._sync_control()
            self._reconciled_synced = True

    def reserve(self, sequence: int) -> None:
        """Numbers up to this may be in use without a file: after a kill the next is above it."""
        self._reserved = sequence
        header_page.write_word(self._control, _LAST_SEQUENCE, sequence)

    # -- making and taking back -----------------------------------------------------------------

    @override
    def create(self, first: int, size: int) -> FileSegment:
        self.ownership.check_usable()
        with self._lock:
            spare = self._spare.pop() if size == self._segment_bytes and self._spare else None
        if spare is None and self._preallocated:
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
        view[size - SEAL_BYTES :] = bytes(SEAL_BYTES)
        identity = header_page.Identity(
            SEGMENT_MAGIC, HEADER_BYTES, size, first, version=SEGMENT_VERSION
        )
        with self._lock:
            header_page.write_word(view, _SYNCED_END, 0)
            header_page.write_identity(view, identity, self._boot_id)
            self._unsynced.append(segment)
            # A sync covers the numbers too, however soon their frames are acknowledged.
            header_page.write_word(self._control, _HIGHEST_NUMBER, highest_number(first, size))
            self._control_unsynced = True
        return segment

    def _reused(self, spare: FileSegment, first: int) -> FileSegment:
        segment = FileSegment(self._disk, spare.path, first=first, size=spare.size)
        segment.take_mapping(spare)
        return segment

    def _unused_at_last(self, size: int) -> FileSegment | None:
        """A retired segment, once the disk knows that it is unused; None when there is none.

        That takes a sync, which is better than no segment at all.
        """
        with self._lock:
            if size != self._segment_bytes or not self._retired:
                return None
            segment = self._retired[-1]
        self._sync_retired(segment)
        with self._lock:  # a sync in another thread may have run first
            (self._retired if segment in self._retired else self._spare).remove(segment)
        return segment

    def _made(self, first: int, size: int) -> FileSegment:
        path = self._path / f"{self._next_name:08d}{_SUFFIX}"
        self._next_name += 1
        segment = FileSegment(self._disk, path, first=first, size=size)
        file = self._disk.open(path, create=True)
        try:
            file.allocate(size)
            segment.adopt(file)
        except StoreError:  # no room: do not leave an empty file behind
            file.close()
            self._disk.remove(path)
            raise
        self._names_unsynced = True
        return segment

    def preallocate(self, size: int) -> None:
        """Have unused segments of `size` bytes together, and from now on make no other if possible.

        Raises:
            StoreFull: The disk has no room for them.
        """
        self._preallocated = True
        found = len(self._spare)
        try:
            while (len(self._spare) + 1) * self._segment_bytes <= size:
                segment = self._made(0, self._segment_bytes)
                segment.unmap()
                self._spare.append(segment)
        except StoreError:  # do not leave a full disk behind
            for segment in self._spare[found:]:
                self._disk.remove(segment.path)
            raise

    @override
    def release(self, segment: Segment) -> None:
        found = self._unparked(segment)
        with self._lock:
            if found in self._unsynced:
                self._unsynced.remove(found)
            unused = self._retired if found.header_on_disk else self._spare
            keep = found.size == self._segment_bytes and len(unused) < self._spare_limit
            if keep:
                found.view[:8] = bytes(8)
                unused.append(found)
        if not keep:
            found.unmap()
            self._disk.remove(found.path)

    @override
    def park(self, segment: Segment) -> None:
        found = self._unparked(segment)
        self._parked.append(found)
        while len(self._parked) > _MAPPED_SEGMENTS:
            self._parked.popleft().unmap()

    def _unparked(self, segment: Segment) -> FileSegment:
        found = _file_segment(segment)
        if found in self._parked:
            self._parked.remove(found)
        return found

    @override
    def seal(self, segment: Segment, end: int, next_sequence: int) -> None:
        self.ownership.check_usable()
        seal_frames(segment, end, next_sequence)

    # -- syncing --------------------------------------------------------------------------------

    def sync(self, checkpoint: Callable[[], int]) -> None:
        """Write everything stored so far through to the disk; may run in any number of threads.

        Args:
            checkpoint: Seals what is stored, and returns the last sequence of it.

        Raises:
            StoreError: The disk reports an error: nothing is known of what was not synced before.
        """
        self.ownership.check_usable()
        begun = self._syncs_begun
        with self._sync_lock:
            if self._syncs_done > begun:  # another sync began after this call, and is done
                return
            self._syncs_begun += 1
            sequence = checkpoint()
            self._sync_files()
            self.synced_sequence = max(self.synced_sequence, sequence)
            self._syncs_done = self._syncs_begun

    def _sync_files(self) -> None:
        with self._lock:
            unsynced = list(self._unsynced)
            retired = list(self._retired)
            names, self._names_unsynced = self._names_unsynced, False
            control, self._control_unsynced = self._control_unsynced, False
        try:
            for segment in unsynced:
                self._sync_segment(segment)
            for segment in retired:
                self._sync_retired(segment)
            with self._lock:
                self._spare += [one for one in retired if one in self._retired]
                self._retired = [one for one in self._retired if one not in retired]
            if control:
                self._sync_control()
            if names:
                self._disk.fsync_dir(self._path)
        except BaseException:  # the next sync has to do these again
            self._control_unsynced = self._control_unsynced or control
            self._names_unsynced = self._names_unsynced or names
            raise
        finished = unsynced[:-1]  # the last one made may have been written to meanwhile
        with self._lock:
            self._unsynced = [one for one in self._unsynced if one not in finished]

    def _sync_segment(self, segment: FileSegment) -> None:
        try:
            file = self._disk.open(segment.path)
        except StoreError:  # another thread may have removed the file since `sync` began
            if segment.released:  # persisted and removed in the meantime
                return
            raise
        with contextlib.closing(file):
            durable = DurableFile(file, rewrite_before_fsync=segment.rewrite_before_fsync)
            with self._lock:
                end = segment.end
                if not segment.released:
                    segment.rewrite(durable)
            segment.header_on_disk = segment.rewrite_before_fsync = True
            durable.fsync()
            word = bytearray(16)
            header_page.write_word(memoryview(word), 0, end)
            with self._lock:
                segment.rewrite_before_fsync = False
                segment.synced_end = end
                if not segment.released:
                    file.pwrite(word, _SYNCED_END)

    def _sync_retired(self, segment: FileSegment) -> None:
        with contextlib.closing(self._disk.open(segment.path)) as file:
            with self._lock:
                if segment in self._retired:  # it may be in use again
                    # The magic was made zero in memory; written again since a sync may have failed.
                    file.pwrite(bytes(8), 0)
            file.fsync()

    # -- the end --------------------------------------------------------------------------------

    def remove_all(self, segments: list[Segment]) -> None:
        """Remove every segment file; the control page remains and says where numbering continues.

        The page is synced first. Whichever of the files a crash leaves: its frames are persisted.
        """
        self._sync_control()
        for segment in self._all(segments):
            segment.unmap()
            self._disk.remove(segment.path)
        self._spare.clear()
        self._retired.clear()

    def _all(self, segments: list[Segment]) -> list[FileSegment]:
        return [*self._spare, *self._retired, *map(_file_segment, segments)]

    def close(self, segments: list[Segment]) -> None:
        """Unmap everything, the segments in use too, and release the lock whatever fails."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.ownership.close)
            stack.callback(self._control_region.close)
            for segment in self._all(segments):
                stack.callback(segment.unmap)

    # -- reading back ---------------------------------------------------------------------------

    def _recover(self) -> list[Segment]:
        """The segments of an earlier process, ascending."""
        found: list[FileSegment] = []
        try:
            for name in self._disk.listdir(self._path):
                if not name.endswith(_SUFFIX):
                    continue
                number = name.removesuffix(_SUFFIX)
                if number.isdecimal():
                    self._next_name = max(self._next_name, int(number) + 1)
                segment = self._recovered(self._path / name)
                if segment is not None:
                    found.append(segment)
            found.sort(key=lambda segment: (segment.first, segment.next_sequence))
            return self._ordered(found)
        except BaseException:  # mappings hold the lock: release them before the error is raised
            for segment in [*found, *self._spare, *self._retired]:
                segment.unmap()
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
            self._unsynced.append(segment)
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
            segment.unmap()  # there may be more of them than may be open
        return segment

    def _keep_unused(self, file: File, size: int) -> None:
        if size == self._segment_bytes and len(self._spare) < self._spare_limit:
            # On the disk it may still be in use, and must not be overwritten then.
            file.pwrite(bytes(8), 0)
            file.fsync()
            self._spare.append(FileSegment(self._disk, file.path, first=0, size=size))
        else:
            self._disk.remove(file.path)

    # -- parked publishes -----------------------------------------------------------------------

    def park_frame(self, sequence: int, frame: bytes) -> Path:
        """Keep a frame that no server takes in a file beside the directory; return the file."""
        path = self._path.with_name(f"{self._path.name}{PARKED}{sequence}")
        self._disk.replace(path, frame)
        return path

    # -- notes ----------------------------------------------------------------------------------

    @property
    def notes(self) -> dict[str, str]:
        """Small texts that belong to the store."""
        return dict(self._notes)

    def set_note(self, key: str, value: str) -> None:
        """Keep a text beside the messages; it is on the disk when this returns.

        Raises:
            UsageError: One of the two is not a text, or the store cannot be used.
            StoreFull: The disk has no room.
        """
        self.ownership.check_usable()
        given: list[object] = [key, value]
        if not all(isinstance(each, str) for each in given):
            raise UsageError(f"a note is a text under a text, not {value!r} under {key!r}")
        notes = {**self._notes, key: value}
        self._disk.replace(self._path / _NOTES, msgspec.json.encode(notes))
        self._notes = notes

    def _read_notes(self) -> dict[str, str]:
        path = self._path / _NOTES
        if not self._disk.exists(path):
            return {}
        file = self._disk.open(path, writable=False)
        try:
            return msgspec.json.decode(file.pread(file.size(), 0), type=dict[str, str])
        except msgspec.MsgspecError as error:
            raise StoreCorrupt(path, 0, "not a JSON object of texts") from error
        finally:
            file.close()


def highest_number(first: int, size: int) -> int:
    """No segment of this size and first number has a higher one."""
    return first + size // _SMALLEST_FRAME_BYTES


def _number_in_use(page: memoryview, offset: int) -> int:
    """The higher of the two numbers that a torn word may stand for; none that is out of reach."""
    return max(each for each in (0, *header_page.read_word_pair(page, offset)) if each <= _HIGHEST)


def _file_segment(segment: Segment) -> FileSegment:
    if not isinstance(segment, FileSegment):
        raise UsageError(f"{segment!r} is no segment of a file store")
    return segment


def _check_ours(disk: Disk, path: Path) -> None:
    """Refuse a directory that holds anything but a publish store: our files would be lost in it.

    Raises:
        StoreError: It is not empty, and not the directory of a publish store.
    """
    names = disk.listdir(path)
    if _OF_A_BROKER in names:
        raise StoreError(
            f"{path}: the data directory of a broker: give the store a directory of its own"
        )
    if _CONTROL in names:
        file = disk.open(path / _CONTROL, writable=False)
        try:
            if any(file.pread(len(CONTROL_MAGIC), 0)):
                return  # ours, or refused for its magic when it is opened
        finally:
            file.close()
    # Without a header: new, or of a process that was killed while it made the first file.
    foreign = [name for name in names if name not in _OWN_NAMES and not name.endswith(_SUFFIX)]
    if foreign:
        raise StoreError(
            f"{path}: holds {foreign[0]!r} and is no publish store: give the store a new or an "
            "empty directory"
        )

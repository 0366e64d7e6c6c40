"""The journal on disk, open for appending: segment files, their manifests, and the progress file.

Blocks are written with one system call each into a preallocated segment. When the next block does
not fit, the next segment is begun with a prologue, a block that repeats everything needed to read
the segment alone. The full segment waits until `seal` has synced it and written its manifest. That
runs in a thread, since a sync can take seconds.

When the journal is opened, everything that is not sealed is written again and synced before a start
is appended, because after a failed sync the kernel treats the unwritten pages as clean (see
`haclient_stores.disk.durable_file`). For the same reason nothing is appended, synced or sealed
after such an error: the next start repairs it.

A live segment of an older format version is sealed when the journal is opened, and the start goes
into a new one. A crash in between leaves two segments that are not sealed, as after any other roll.

`append` and all that reads belong to the event loop's thread. `sync` and `seal` may run in others;
they touch only shared state: `_unsealed`, `_durable` and a lock.

`ProgressFile`, next to the journal, has the progress of replication: one record of some 50 bytes,
which one system call overwrites before the acks that depend on it are sent. So after a kill, a
logon ack never reports less as persisted than was acknowledged before. A power loss may tear or
lose the record. Then nothing counts as confirmed, every destination is sent the records that its
vector lacks and all records that may differ, and logon acks report less until the destination has
answered.
"""

from __future__ import annotations

import logging
import struct
import threading
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from typing_extensions import override

from haclient_fake_server.engine.journal import Block, BlockIndex, Cursor, JournalReader
from haclient_fake_server.engine.replication.durability import (
    DestinationProgress,
    ReplicationProgress,
)
from haclient_fake_server.journal.format import (
    BLOCK_HEADER_BYTES,
    FORMAT_VERSION,
    NOT_DURABLE,
    SEGMENT_HEADER_BYTES,
    DurablePlace,
    JournalFormatError,
    LogStart,
    Manifest,
    SegmentHeader,
    checked_blocks,
    encode_block,
    encode_start,
    manifest_name,
    segment_name,
)
from haclient_fake_server.journal.places import SegmentPlaces
from haclient_fake_server.journal.segments import JournalSegment, recover_segments
from haclient_fake_server.kill_points import KillPoint, KillPoints
from haclient_stores.disk.durable_file import DurableFile
from haclient_stores.disk.files import Disk, File
from haclient_stores.errors import StoreCorrupt, StoreError, StoreFull

LOCK_NAME: Final = "journal.lock"

SPARE_PREFIX: Final = "journal.spare."
"""Of files that were allocated for the next segments; a start removes them."""

MAX_OPEN_SEGMENTS: Final = 8
"""Sealed segments that are open for reading; a journal may have more of them than a process may
have files."""

_OF_A_STORE: Final = "control"

_log = logging.getLogger(__name__)


class JournalStopped(StoreError):
    """An earlier write or sync has failed; its caller received the error."""


class JournalFiles(JournalReader):
    """The segments of one broker, open for appending.

    Args:
        directory: Where they are; created when missing. Held by a lock while open.
        disk: The file system.
        segment_bytes: Size of new segments; a longer block or prologue makes a segment longer.
        instance_id: Id of the broker instance, which is written into new segments.
        start_id: A random number of 64 bits, another one for each start.
        appends_start: Whether the start is appended here, or by a call of `append_start`.
        kill_points: Where a test may end the process.
        archive: Where sealed segments can be moved to; `None` for nowhere.
        preallocated_files: How many files of segments are allocated, the live one included: from
            the first roll on, a thread keeps the next ones ready.
        copies: Where copies of the log are, which each error about damage names.

    Raises:
        StoreLocked: Another broker has the directory.
        StoreCorrupt: A segment is missing or damaged.
        StoreFull: There is no room for the first segment.
        StoreError: The directory is a client's publish store, or a newer version has written it.
    """

    def __init__(  # noqa: PLR0913  # what a broker has once
        self,
        directory: Path,
        disk: Disk,
        *,
        segment_bytes: int,
        instance_id: int,
        start_id: int = 0,
        appends_start: bool = True,
        kill_points: KillPoints | None = None,
        archive: Path | None = None,
        preallocated_files: int = 1,
        copies: Sequence[str] = (),
    ) -> None:
        self._directory = directory
        self._copies = copies
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._instance_id = instance_id
        self._points = kill_points or KillPoints()
        self._segments: dict[int, JournalSegment] = {}
        self._live: JournalSegment
        self._open_segments = OrderedDict[
            int, JournalSegment
        ]()  # the one that was read last is last
        self._unsealed = deque[JournalSegment]()  # full ones, the oldest first
        self._forgotten = deque[int]()  # numbers of dropped segments whose files are there
        self._spares = deque[Path]()
        self._wanted_spares = preallocated_files - 1
        self._last_spare = 0
        self._durable = NOT_DURABLE
        self._durable_position = 0
        self._unsynced_names = False
        self._last_block: Cursor
        self._dirty = False
        self._syncing = threading.Lock()  # the kernel reports an error to one of two syncs only
        self._failure: BaseException | None = None  # of a write or a sync: nothing may follow it
        disk.make_directory(directory)
        if disk.exists(directory / _OF_A_STORE):
            raise StoreError(
                f"{directory}: a client's publish store: give the broker a directory of its own"
            )
        self._locks = disk.lock_directory(directory, LOCK_NAME)
        try:
            self._open(archive)
            self._start = LogStart(start_id, self.next_position, disk.boot_id())
            self._prologue.take_start(self._start)
            if appends_start:
                self.append_start()
        except StoreCorrupt as error:
            self._close_files()
            raise _with_copies(error, copies) from error
        except BaseException:  # nobody can close a journal that was never opened
            self._close_files()
            raise

    def _open(self, archive: Path | None) -> None:
        """Recover the segments, and sync what an earlier process has left unsynced."""
        for name in self._disk.listdir(self._directory):
            if name.startswith(SPARE_PREFIX):
                self._disk.remove(self._directory / name)
        self._archive = archive
        self._places = SegmentPlaces(self._directory, self._disk, archive)
        if archive is not None:  # two logs in one archive would overwrite each other's segments
            self._locks += self._disk.lock_directory(archive, LOCK_NAME)
        self._segments, self._prologue = recover_segments(
            self._directory, self._disk, self._places, self._instance_id
        )
        self._bring_to_disk()

    # --- writing -------------------------------------------------------------------------------

    def append_start(self) -> None:
        """Append and sync the start of this broker, before anything else is appended.

        Raises:
            StoreFull: There is no room for another segment.
            StoreError: The disk failed.
        """
        now_us = self._live.manifest.last_us
        records = encode_start(self._start, now_us=now_us)
        self._write(records, 1, first_position=self.next_position, now_us=now_us)
        self._last_block = Cursor(self._live.number, self._live.end)
        self._live.manifest.data_bytes += BLOCK_HEADER_BYTES + len(records)
        self.sync()

    def append(self, block: Block) -> None:
        """Write a block; when this returns, a kill of the process no longer loses it.

        Args:
            block: Its first position is `next_position`.

        Raises:
            StoreFull: There is no room for another segment.
            StoreError: The disk failed, now or earlier: the broker has to be started again.
        """
        self._write(
            block.records, block.count, first_position=block.first_position, now_us=block.first_us
        )
        live = self._live
        size = BLOCK_HEADER_BYTES + len(block.records)
        self._last_block = Cursor(live.number, live.end)
        self._prologue.take(block)
        live.add(block, live.end, live.end + size)
        self._dirty = True

    def sync(self) -> None:
        """Sync everything that was written to the disk itself; may run in a thread.

        Raises:
            StoreError: The disk failed, now or earlier: the broker has to be started again.
        """
        self._dirty = False
        live = self._live
        position = live.manifest.next_position - 1  # before `end`, which is moved first
        place = DurablePlace(live.number, live.end)  # a thread syncs at least what is there now
        with self._syncing:
            for segment in (*self._unsealed, live):
                self._sync_segment(segment)
            self._sync_names()
            self._durable = max(self._durable, place)
            self._durable_position = max(self._durable_position, position)

    @property
    def dirty(self) -> bool:
        """Whether something was written since the last `sync`."""
        return self._dirty

    @property
    def has_unsealed(self) -> bool:
        """Whether a full segment waits for `seal`."""
        return bool(self._unsealed)

    def seal(self) -> None:
        """Sync the oldest full segment and write its manifest, if there is one.

        May run in a thread while blocks are appended.

        Raises:
            StoreFull: There is no room for the manifest, which the log does not need: try again.
            StoreError: The disk failed, now or earlier: the broker has to be started again.
        """
        if not self._unsealed:
            return
        segment = self._unsealed[0]
        self._points.reach(KillPoint.BEFORE_SEAL)
        with self._syncing:
            self._sync_segment(segment)
            self._sync_names()
            self._durable = max(self._durable, DurablePlace(segment.number, segment.end))
            last_position = segment.manifest.next_position - 1
            self._durable_position = max(self._durable_position, last_position)
        self._points.reach(KillPoint.BEFORE_MANIFEST)
        segment.manifest.sealed = True
        try:
            self._write_manifest(segment)
        except BaseException:
            segment.manifest.sealed = False
            raise
        segment.manifest.topics.clear()  # only the manifest on disk needs them
        self._unsealed.popleft()  # from here on the loop may close its file
        self._points.reach(KillPoint.AFTER_MANIFEST)
        with suppress(StoreError):  # a full disk: the next roll reports it
            self._allocate_spares()

    def _allocate_spares(self) -> None:
        while len(self._spares) < self._wanted_spares:
            self._last_spare += 1  # another name: the loop may be using the one that it took
            path = self._directory / f"{SPARE_PREFIX}{self._last_spare}"
            file = self._disk.create_new(path)
            try:
                file.allocate(self._segment_bytes)
            except BaseException:
                self._disk.remove(path)
                raise
            finally:
                file.close()
            self._spares.append(path)

    # --- sealed segments -----------------------------------------------------------------------

    def copy_sealed(self, number: int, *, compress: bool) -> Path:
        """Write a sealed segment once more, compressed or into the archive; may run in a thread.

        Its checksums are checked. Everything is read from the old file until `use_copy`.

        Returns:
            The new file, whole and synced.

        Raises:
            StoreCorrupt: The segment is damaged; it stays as it is.
            StoreError: The disk failed or is full.
        """
        if self._archive is not None and not compress:
            self._check_there(self._archive)
        pending = b""  # a block may go on in the next part

        def check(data: bytes, offset: int) -> None:
            nonlocal pending
            pending += data if offset else data[SEGMENT_HEADER_BYTES:]
            begin = offset + len(data) - len(pending)
            usable = max(self.whole_blocks(pending, number, begin), 0)
            if not data and usable < len(pending):
                path = self._places.path(number)
                raise StoreCorrupt(path, begin + usable, "a block is cut short")
            pending = pending[usable:]

        end = self._segments[number].end
        path = self._places.copy(number, end, compress=compress, check=check)
        if path.parent != self._directory:  # before it is used: what fails is done again as a whole
            self._note_archived(number, archived=True)
        return path

    def is_archived(self, number: int) -> bool:
        """Whether a segment is in the archive."""
        return self._places.is_archived(number)

    def is_compressed(self, number: int) -> bool:
        """Whether a segment is compressed."""
        return self._places.is_compressed(number)

    def file_of(self, number: int) -> Path:
        """The file of a segment."""
        return self._places.path(number)

    def use_copy(self, number: int, path: Path) -> None:
        """Read a segment from its new file from here on; only in the event loop."""
        self._places.use(number, path)
        self._forget_file(self._segments[number])

    def finish_copy(self, number: int) -> None:
        """Remove the file that `use_copy` has replaced; may run in a thread.

        Raises:
            StoreError: The disk failed. Both files stay; either of them serves.
        """
        self._places.remove_others(number)

    def forget_oldest(self) -> int:
        """Drop the oldest segment, which must be sealed, from the log; only in the event loop.

        Returns:
            Its number, for `remove_files`.
        """
        number = next(iter(self._segments))
        assert self._segments[number].manifest.sealed  # noqa: S101  # the caller has asked
        self._forget_file(self._segments.pop(number))
        self._forgotten.append(number)
        return number

    def is_forgotten(self, number: int) -> bool:
        """Whether `remove_files` has still to remove files of a dropped segment."""
        return number in self._forgotten

    def remove_files(self, number: int) -> None:
        """Remove the files of the dropped segments up to this one; may run in a thread.

        The oldest first, also where an earlier call has failed: a start refuses a gap.

        Raises:
            StoreError: The disk failed: the next start may find the segment again.
        """
        while self._forgotten and self._forgotten[0] <= number:
            oldest = self._forgotten[0]
            if self._places.is_archived(oldest):
                self._check_there(self._places.path(oldest).parent)
                # Else a kill would leave what looks like a loss.
                self._note_archived(oldest, archived=False)
            self._places.remove(oldest)
            self._disk.remove(self._directory / manifest_name(oldest))
            self._disk.fsync_dir(self._directory)
            self._forgotten.popleft()

    def _note_archived(self, number: int, *, archived: bool) -> None:
        path = self._directory / manifest_name(number)
        if not self._disk.exists(path):
            return
        file = self._disk.open(path, writable=False)
        try:
            manifest = Manifest.from_json(file.pread(file.size(), 0).decode("utf-8"))
        except (JournalFormatError, UnicodeDecodeError):  # a start builds it anew
            return
        finally:
            file.close()
        manifest.archived = archived
        self._disk.replace(path, manifest.to_json().encode("ascii"))

    def _forget_file(self, segment: JournalSegment) -> None:
        self._open_segments.pop(segment.number, None)
        if segment.file is not None:
            segment.file.close()
            segment.file = None

    def close(self) -> None:
        """Seal what is full, leave a manifest of the live segment behind, and close all files.

        The manifest of the live segment only spares the next start reading that segment.

        Raises:
            StoreError: The disk failed.
        """
        try:
            self._seal_all()
            self._live.manifest.topics.update(self._prologue.topics)
            try:
                self._write_manifest(self._live)
            except StoreError as error:  # a full disk, which may have ended the broker
                _log.warning("%s: not written, and not needed: %s", self._directory, error)
            for spare in self._spares:
                self._disk.remove(spare)
        finally:
            self._close_files()

    def _write(self, records: bytes, count: int, *, first_position: int, now_us: int) -> None:
        self._check_not_failed()
        try:
            self._write_block(records, count, first_position=first_position, now_us=now_us)
        except BaseException as error:
            # The engine counts these records as written. A later block, as of a task that does not
            # know of the failure yet, would take their place in the file with later positions.
            self._failure = error
            raise

    def _write_block(self, records: bytes, count: int, *, first_position: int, now_us: int) -> None:
        live = self._live
        if live.end + BLOCK_HEADER_BYTES + len(records) > live.capacity_bytes:
            live = self._roll(first_position, now_us, room=BLOCK_HEADER_BYTES + len(records))
        data = encode_block(
            records,
            count=count,
            first_position=first_position,
            segment=live.number,
            offset=live.end,
            durable=self._durable,
        )
        file = self._file(live)
        if self._points.is_due(KillPoint.IN_WRITE):
            file.pwrite(data[: len(data) // 2], live.end)
        self._points.reach(KillPoint.IN_WRITE)
        file.pwrite(data, live.end)

    def _sync_segment(self, segment: JournalSegment) -> None:
        """Sync a file unless it was synced already; the caller holds the lock.

        A segment that was sealed meanwhile was synced under the same lock. Its file is not touched,
        since the event loop may have closed it.
        """
        self._check_not_failed()
        if segment.file is not None and self._durable < DurablePlace(segment.number, segment.end):
            self._try(segment.file.fsync)

    def _sync_names(self) -> None:
        if self._unsynced_names:
            self._unsynced_names = False  # first: a segment that is begun meanwhile needs another
            self._try(partial(self._disk.fsync_dir, self._directory))

    def _try(self, sync: Callable[[], None]) -> None:
        try:
            sync()
        except BaseException as error:  # even the kill of a test: nothing later may count as synced
            self._failure = error
            raise

    def _check_not_failed(self) -> None:
        if self._failure is not None:
            raise JournalStopped(
                f"{self._directory}: a write or a sync has failed: start the broker again"
            ) from self._failure

    def _roll(self, position: int, now_us: int, *, room: int) -> JournalSegment:
        self._points.reach(KillPoint.BEFORE_ROLL)
        old = self._live
        self._live = self._begin(old.number + 1, position=position, now_us=now_us, room=room)
        old.manifest.topics.update(self._prologue.topics)
        self._unsealed.append(old)
        self._points.reach(KillPoint.AFTER_ROLL)
        return self._live

    def _begin(
        self, number: int, *, position: int, now_us: int, room: int, sync: bool = False
    ) -> JournalSegment:
        """Create a segment. It gets its name when it is whole: a kill leaves all of it or nothing.

        Without `sync` a loss of power may leave a part of it, which then has no synced block in it:
        see `recover_segments`.
        """
        header = SegmentHeader(number, position, now_us, self._instance_id).encode()
        prologue = self._prologue.encode(
            DurablePlace(number, len(header)),
            position=position,
            now_us=now_us,
            durable=self._durable,
        )
        end = len(header) + len(prologue)
        # At least half of a segment is for blocks: a long prologue must not fill all of it.
        size = max(self._segment_bytes, end + max(room, self._segment_bytes // 2))
        path = self._directory / segment_name(number)
        file, temporary = None, path.with_name(path.name + ".new")
        if size == self._segment_bytes and self._spares:
            spare = self._spares.popleft()
            with suppress(StoreError):  # somebody may have removed it, to have more room
                file, temporary = self._disk.open(spare), spare
        if file is None:
            file = self._disk.create_new(temporary)
        try:
            file.allocate(size)
            file.pwrite(header + prologue, 0)
            if sync:
                self._try(file.fsync)
        finally:
            file.close()
        self._disk.rename(temporary, path)
        self._unsynced_names = True
        manifest = Manifest(number, position, position, end, last_us=now_us)
        segment = JournalSegment(manifest, BlockIndex(manifest.index), size)
        self._segments[number] = segment
        self._file(segment)
        return segment

    def _bring_to_disk(self) -> None:
        """Sync what an earlier process may have left in the page cache, and append after it."""
        for segment in self._segments.values():
            if not segment.manifest.sealed:
                self._unsealed.append(segment)
                file = DurableFile(self._file(segment), rewrite_before_fsync=True)
                file.rewrite((0, segment.end))
        self._unsynced_names = True
        last_number = max(self._segments, default=0)
        if (
            self._unsealed
            and self._unsealed[-1].number == last_number
            and self._unsealed[-1].version == FORMAT_VERSION  # else it is sealed below
        ):
            self._live = self._unsealed.pop()
        else:
            numbers = [*self._segments]
            last = self._segments[numbers[-1]].manifest if numbers else Manifest(0, 1, 1)
            number, position = last.number + 1, last.next_position
            self._live = self._begin(
                number, position=position, now_us=last.last_us, room=0, sync=True
            )
        self.sync()
        for segment in self._unsealed:
            segment.manifest.topics.update(self._prologue.topics)
        self._seal_all()

    def _seal_all(self) -> None:
        try:
            while self._unsealed and self._failure is None:
                self.seal()
        except StoreFull as error:  # the log has room in its own files
            _log.warning("%s: not written, and not needed: %s", self._directory, error)

    def _write_manifest(self, segment: JournalSegment) -> None:
        path = self._directory / manifest_name(segment.number)
        self._disk.replace(path, segment.manifest.to_json().encode("ascii"))

    def _file(self, segment: JournalSegment) -> File:
        """A segment's file, opened again if necessary; sealed ones that are not read are closed.

        For the thread of the event loop only.
        """
        files, number = self._open_segments, segment.number
        if segment.file is None:
            segment.file = self._places.open(number)
        files[number] = segment
        files.move_to_end(number)
        if len(files) > MAX_OPEN_SEGMENTS:
            idle = next((each for each in files.values() if each.manifest.sealed), segment)
            if idle is not segment and idle.file is not None:
                del files[idle.number]
                idle.file.close()
                idle.file = None
        return segment.file

    def _close_files(self) -> None:
        for segment in self._segments.values():
            if segment.file is not None:
                segment.file.close()
        for lock in self._locks:
            lock.close()

    # --- reading -------------------------------------------------------------------------------

    @property
    @override
    def segments(self) -> Mapping[int, JournalSegment]:
        return self._segments

    @property
    @override
    def live(self) -> JournalSegment:
        return self._live

    @property
    @override
    def log_starts(self) -> tuple[LogStart, ...]:
        return tuple(self._prologue.starts)

    @property
    def last_block(self) -> Cursor:
        """The place of the header of the block that was written last."""
        return self._last_block

    @property
    @override
    def durable_position(self) -> int:
        return self._durable_position

    @override
    def has_segment(self, number: int) -> bool:
        segment = self._segments.get(number)
        if segment is None:
            return False
        # An operator may remove the oldest files beside a running broker; one that is open stays
        # readable.
        if segment.file is not None or self._places.exists(number):
            return True
        if self._places.is_archived(number):  # as at a start; it may be copied back just now
            raise StoreError(f"{self._places.path(number)}: is away: bring it back")
        self._check_there(self._directory)
        return False

    def _check_there(self, directory: Path) -> None:
        """Check that a directory has its lock, as it has while its file system is mounted.

        Raises:
            StoreError: It is not there, or is an empty mount point.
        """
        if not self._disk.exists(directory / LOCK_NAME):
            raise StoreError(f"{directory}: is away, with the segments in it: bring it back")

    @override
    def summary(self) -> bytes:
        live = self._live
        place = DurablePlace(live.number, live.end)
        return self._prologue.encode(
            place, position=self.next_position, now_us=live.manifest.last_us, durable=self._durable
        )

    @override
    def read_bytes(self, number: int, count: int, offset: int) -> bytes:
        data = self._file(self._segments[number]).pread(count, offset)
        if len(data) < count:
            raise self.damage(number, offset + len(data), "the file ends before its data")
        return data

    @override
    def damage(self, number: int, offset: int, what: str) -> StoreCorrupt:
        return _with_copies(StoreCorrupt(self._places.path(number), offset, what), self._copies)

    @override
    def whole_blocks(self, data: bytes, number: int, offset: int) -> int:
        try:
            return checked_blocks(data, segment=number, base=offset)
        except JournalFormatError as error:
            raise self.damage(number, error.offset, error.what) from error


def _with_copies(error: StoreCorrupt, copies: Sequence[str]) -> StoreCorrupt:
    if not copies:
        return error
    what = f"{error.what}; what was replicated is also at {', '.join(copies)}"
    return StoreCorrupt(error.path, error.offset, what)


# -- the progress of replication -----------------------------------------------------------------


PROGRESS_NAME: Final = "replication.progress"

_HEADER: Final = struct.Struct("<QII")
"""confirmed position, bytes of destinations, crc32 of all but this field"""
_DESTINATION: Final = struct.Struct("<QHH")
"""position, bytes of the address, bytes of the instance name, which follow"""
_NO_POSITION: Final = 2**64 - 1
_DAMAGED: Final = ReplicationProgress(0)


class ProgressFile:
    """The file, open for overwriting.

    Args:
        directory: The journal's directory, whose lock also protects this file.
        disk: The file system.

    Attributes:
        progress: What it holds: with confirmed position 0 when it is damaged, `None` while nothing
            was ever written.

    Raises:
        StoreError: The file cannot be opened.
    """

    def __init__(self, directory: Path, disk: Disk) -> None:
        self.progress: ReplicationProgress | None = None
        self._disk = disk
        self._file = disk.open(directory / PROGRESS_NAME, create=True)
        data = self._file.pread(self._file.size(), 0)
        if data:
            self.progress = _decode(data)

    def write(self, progress: ReplicationProgress) -> None:
        """Overwrite it; when this returns a killed process no longer loses it.

        Args:
            progress: What the file holds from now on.

        Raises:
            StoreError: The disk failed.
        """
        if progress == self.progress:
            return
        self._file.pwrite(_encode(progress), 0)
        if self.progress is None:
            # A loss of power may take what follows, but must not leave an empty file: it says that
            # no destination was ever waited for.
            self._file.fsync()
            self._disk.fsync_dir(self._file.path.parent)
        self.progress = progress

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _encode(progress: ReplicationProgress) -> bytes:
    parts: list[bytes] = []
    for address, instance, position in progress.destinations:
        names = address.encode(), instance.encode("utf-8", "surrogateescape")
        parts += (_DESTINATION.pack(position, *map(len, names)), *names)
    body = b"".join(parts)
    confirmed = _NO_POSITION if progress.confirmed is None else progress.confirmed
    crc = zlib.crc32(body, zlib.crc32(_HEADER.pack(confirmed, len(body), 0)))
    return _HEADER.pack(confirmed, len(body), crc) + body


def _decode(data: bytes) -> ReplicationProgress:
    """Decode the record; an earlier, longer record may have left bytes after it."""
    if len(data) < _HEADER.size:
        return _DAMAGED
    confirmed, size, crc = _HEADER.unpack_from(data)
    body = data[_HEADER.size : _HEADER.size + size]
    if len(body) < size or crc != zlib.crc32(body, zlib.crc32(_HEADER.pack(confirmed, size, 0))):
        return _DAMAGED
    destinations: list[DestinationProgress] = []
    at = 0
    while at < size:
        position, address_size, instance_size = _DESTINATION.unpack_from(body, at)
        at += _DESTINATION.size
        address = body[at : at + address_size].decode()
        at += address_size
        instance = body[at : at + instance_size].decode("utf-8", "surrogateescape")
        at += instance_size
        destinations.append(DestinationProgress(address, instance, position))
    known = None if confirmed == _NO_POSITION else confirmed
    return ReplicationProgress(known, tuple(destinations))

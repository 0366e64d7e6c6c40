"""The journal on disk: segment files, their recovery and their manifests (TL1, TL5, TL12, TL16).

Blocks are written with one system call each into a preallocated segment. When the next block does
not fit, the segment is sealed, its manifest written, and the next one begun with a block that
repeats all topic definitions and all publishers' highest sequences: each segment reads alone.

At start the last segment is read block by block. A torn tail, which a killed process leaves at
most once and only there, is cut (overwritten with zeros) with a warning. A damaged block that
whole blocks follow, a damaged sealed segment, or a segment that is missing in the middle means
that acknowledged messages would be lost silently: the broker refuses to start and says where.

What was read at start is vouched for from then on, so the last segment and its name are synced
first. Its bytes are written again before: the kernel takes for written what a failed sync has left
(see `haclient_stores.disk.rewriting`). For the same reason nothing is synced or sealed after such
an error: the next start does that.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final

from typing_extensions import override

from haclient_fake_server.engine.journal import (
    Block,
    BlockIndex,
    Cursor,
    JournalReader,
    find_in_chunk,
    first_at_or_after,
    whole_blocks,
)
from haclient_fake_server.engine.scanning import scan
from haclient_fake_server.journal.format import (
    BLOCK_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    JournalFormatError,
    Manifest,
    SegmentHeader,
    find_whole_block,
    manifest_name,
    read_blocks,
    segment_name,
    segment_number,
)
from haclient_fake_server.journal.segments import Knowledge, Segment, summarise
from haclient_stores.disk.files import Disk
from haclient_stores.disk.rewriting import write_again
from haclient_stores.errors import StoreCorrupt, StoreError

__all__ = ["JournalFiles"]

LOCK_NAME: Final = "journal.lock"
_OF_A_STORE: Final = "control"
_ZEROS: Final = bytes(1024 * 1024)
_log = logging.getLogger(__name__)


class JournalFiles(JournalReader):
    """The segments of one broker, open for appending.

    Args:
        directory: Where they are; created when missing. Held by a lock while open.
        disk: The file system.
        segment_bytes: Size of new segments.
        instance_id: The broker's; written into new segments.

    Raises:
        StoreLocked: Another broker has the directory.
        StoreCorrupt: A segment is missing or damaged (TL12, TL16).
        StoreFull: There is no room for the first segment.
        StoreError: The directory is a client's publish store.
    """

    def __init__(
        self, directory: Path, disk: Disk, *, segment_bytes: int, instance_id: int
    ) -> None:
        self._directory = directory
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._instance_id = instance_id
        self._known = Knowledge()
        self._segments: dict[int, Segment] = {}
        self._dirty = False
        self._syncing = threading.Lock()  # an error is told to one of two syncs only
        self._sync_failed = False
        disk.make_directory(directory)
        if disk.exists(directory / _OF_A_STORE):
            raise StoreError(
                f"{directory}: a client's publish store: give the broker a directory of its own"
            )
        self._lock = disk.open_locked(directory / LOCK_NAME)
        try:
            self._open_all()
            if self._segments:
                self._bring_to_disk(self._segments[max(self._segments)])
            else:
                self._begin(1, first_position=1, now_us=0, room=0)
        except BaseException:
            self._close_files()
            raise
        self._live = self._segments[max(self._segments)]

    # --- writing -------------------------------------------------------------------------------

    def append(self, block: Block) -> None:
        """Write a block; when this returns a killed process no longer loses it.

        Raises:
            StoreFull: There is no room for another segment.
            StoreError: The disk failed.
        """
        live = self._live
        if live.end + len(block.data) > live.capacity_bytes:
            live = self._roll(block)
        live.file.pwrite(block.data, live.end)
        self._known.take(block)
        live.index.add(block, live.end)
        manifest = live.manifest
        manifest.data_bytes += len(block.data)
        manifest.next_position = block.next_position
        manifest.first_us = manifest.first_us or block.first_us
        manifest.last_us = block.last_us
        for topic_id, message_type, topic in block.definitions:
            manifest.topics[topic_id] = (message_type, topic)
        self._dirty = True

    def sync(self) -> None:
        """Force what was written to the disk itself.

        Raises:
            StoreError: The disk failed, now or in an earlier sync: only the next start may go on.
        """
        self._dirty = False
        self._sync(self._live)

    @property
    def dirty(self) -> bool:
        """Whether something was written since the last `sync`."""
        return self._dirty

    def close(self) -> None:
        """Leave a manifest of the live segment behind and let go of the directory."""
        self._write_manifest(self._live)
        self._close_files()

    def _sync(self, segment: Segment) -> None:
        with self._syncing:
            if self._sync_failed:
                raise StoreError(f"{segment.file.path}: a sync has failed: start the broker again")
            try:
                segment.file.fsync()
            except BaseException:
                self._sync_failed = True
                raise

    def _roll(self, block: Block) -> Segment:
        old = self._live
        self._sync(old)  # nobody reads a sealed segment again: its manifest must not be ahead
        old.manifest.sealed = True
        self._write_manifest(old)
        number = old.manifest.number + 1
        self._live = self._begin(
            number,
            first_position=block.first_position,
            now_us=block.first_us,
            room=len(block.data),
        )
        return self._live

    def _begin(self, number: int, *, first_position: int, now_us: int, room: int) -> Segment:
        """Create a segment. It gets its name only when it is whole: a kill leaves none or all."""
        summary = self._known.encode(position=first_position, now_us=now_us)
        header = SegmentHeader(number, first_position, now_us, self._instance_id).encode()
        size = max(self._segment_bytes, len(header) + len(summary) + room)
        path = self._directory / segment_name(number)
        temporary = path.with_name(path.name + ".new")
        self._disk.remove(temporary)
        file = self._disk.open(temporary, create=True)
        try:
            file.allocate(size)
            file.pwrite(header + summary, 0)
            file.fsync()
        finally:
            file.close()
        self._disk.rename(temporary, path)
        self._disk.fsync_dir(self._directory)
        end = len(header) + len(summary)
        manifest = Manifest(number, first_position, first_position, end)
        manifest.topics.update(self._known.topics)
        segment = Segment(manifest, self._disk.open(path), BlockIndex(manifest.index), size)
        self._segments[number] = segment
        return segment

    def _write_manifest(self, segment: Segment) -> None:
        path = self._directory / manifest_name(segment.manifest.number)
        self._disk.replace(path, segment.manifest.to_json().encode("ascii"))

    def _close_files(self) -> None:
        for segment in self._segments.values():
            segment.file.close()
        self._lock.close()

    # --- opening -------------------------------------------------------------------------------

    def _open_all(self) -> None:
        names = self._disk.listdir(self._directory)
        numbers = sorted(number for name in names if (number := segment_number(name)) is not None)
        for wanted, found in zip(
            range(numbers[0], 1 + numbers[-1]) if numbers else (), numbers, strict=False
        ):
            if wanted != found:
                raise StoreCorrupt(
                    self._directory / segment_name(wanted),
                    0,
                    f"this segment is missing, {segment_name(found)} is there: bring it back",
                )
        for number in numbers:
            self._segments[number] = self._open_segment(number, last=number == numbers[-1])
        self._check_chain()

    def _check_chain(self) -> None:
        segments = list(self._segments.values())
        for before, after in pairwise(segments):
            if before.manifest.next_position != after.manifest.first_position:
                raise StoreCorrupt(
                    after.file.path,
                    0,
                    f"it begins at position {after.manifest.first_position}, "
                    f"the one before ends before {before.manifest.next_position}",
                )

    def _open_segment(self, number: int, *, last: bool) -> Segment:
        path = self._directory / segment_name(number)
        file = self._disk.open(path)
        size = file.size()
        try:
            header = SegmentHeader.decode(file.pread(SEGMENT_HEADER_BYTES, 0))
        except JournalFormatError as error:
            file.close()
            raise StoreCorrupt(path, error.offset, error.what) from error
        manifest = None if last else self._read_manifest(number)
        if manifest is not None:
            return Segment(manifest, file, BlockIndex(manifest.index), size)
        manifest = Manifest(number, header.first_position, header.first_position)
        segment = Segment(manifest, file, BlockIndex(manifest.index), size)
        self._scan(segment, last=last)
        return segment

    def _read_manifest(self, number: int) -> Manifest | None:
        path = self._directory / manifest_name(number)
        if not self._disk.exists(path):
            return None
        file = self._disk.open(path, writable=False)
        try:
            manifest = Manifest.from_json(file.pread(file.size(), 0).decode("utf-8"))
        except (JournalFormatError, UnicodeDecodeError) as error:
            _log.warning("%s is unreadable and is built anew: %s", path, error)
            return None
        finally:
            file.close()
        return manifest if manifest.sealed and manifest.number == number else None

    def _scan(self, segment: Segment, *, last: bool) -> None:
        """Read a segment block by block: its index, its topics, and where it ends."""
        data = segment.file.pread(segment.capacity_bytes, 0)
        manifest = segment.manifest
        try:
            for found in read_blocks(data, SEGMENT_HEADER_BYTES):
                block = summarise(manifest, scan(data, found.start, found.end))
                segment.index.add(block, found.offset)
                self._known.take(block)
                for topic_id, message_type, topic in block.definitions:
                    manifest.topics[topic_id] = (message_type, topic)
                manifest.next_position = block.next_position
                manifest.first_us = manifest.first_us or block.first_us
                manifest.last_us = block.last_us
                manifest.data_bytes = found.end
        except JournalFormatError as error:
            self._cut(segment, data, error, last=last)
        if not last:
            manifest.sealed = True
            self._write_manifest(segment)

    def _cut(self, segment: Segment, data: bytes, error: JournalFormatError, *, last: bool) -> None:
        """Cut a torn tail (TL16), unless it is no tail."""
        if not last:
            raise StoreCorrupt(segment.file.path, error.offset, error.what) from error
        whole = find_whole_block(data, segment.end)
        if whole is not None:
            what = f"{error.what}, and a whole block follows at {whole}"
            raise StoreCorrupt(segment.file.path, error.offset, what) from error
        _log.warning("%s: a torn block at byte %d is cut", segment.file.path, segment.end)
        for offset in range(segment.end, segment.capacity_bytes, len(_ZEROS)):
            rest = segment.capacity_bytes - offset
            if data[offset : offset + len(_ZEROS)].strip(b"\0"):
                segment.file.pwrite(_ZEROS[:rest], offset)

    def _bring_to_disk(self, segment: Segment) -> None:
        """Bring to the disk itself what an earlier process may have left in the kernel only."""
        write_again(segment.file, 0, segment.end)
        self._sync(segment)
        self._disk.fsync_dir(self._directory)

    # --- reading -------------------------------------------------------------------------------

    @property
    @override
    def first_position(self) -> int:
        return self._segments[min(self._segments)].manifest.first_position

    @property
    @override
    def next_position(self) -> int:
        return self._live.manifest.next_position

    @override
    def summary(self) -> bytes:
        now_us = self._live.manifest.last_us
        return self._known.encode(position=self.next_position, now_us=now_us)

    @override
    def seek(self, position: int) -> Cursor:
        if position >= self.next_position:
            return Cursor(self._live.manifest.number, self._live.end)
        for number, segment in reversed(self._segments.items()):
            if segment.manifest.first_position <= position:
                stride = segment.index.stride_of_position(position)
                at = (
                    SEGMENT_HEADER_BYTES if stride is None else segment.index.strides[stride].offset
                )
                return Cursor(number, at)
        return Cursor(min(self._segments), SEGMENT_HEADER_BYTES)

    @override
    def read(self, cursor: Cursor, max_bytes: int) -> tuple[bytes, Cursor]:
        number, offset = cursor
        segment = self._segments[number]
        while offset >= segment.end:
            if segment is self._live:
                return b"", Cursor(number, offset)
            number += 1
            segment, offset = self._segments[number], SEGMENT_HEADER_BYTES
        return self._read_blocks(segment, offset, max_bytes)

    def _read_blocks(self, segment: Segment, offset: int, max_bytes: int) -> tuple[bytes, Cursor]:
        count = max(max_bytes, BLOCK_HEADER_BYTES)
        data = segment.file.pread(min(count, segment.end - offset), offset)
        usable = whole_blocks(data)
        if usable < 0:
            data = segment.file.pread(-usable, offset)
            usable = len(data)
        return data[:usable], Cursor(segment.manifest.number, offset + usable)

    @override
    def find(self, publisher_id: int, sequence: int) -> int | None:
        for segment in self._segments.values():
            for stride in segment.index.strides_of_bookmark(publisher_id, sequence):
                found = find_in_chunk(self._stride(segment, stride), publisher_id, sequence)
                if found is not None:
                    return found
        return None

    @override
    def at_time(self, timestamp_us: int) -> int:
        for segment in self._segments.values():
            if segment.manifest.last_us < timestamp_us:
                continue
            stride = segment.index.stride_of_time(timestamp_us)
            if stride is None:
                return segment.manifest.first_position
            found = first_at_or_after(self._stride(segment, stride), timestamp_us)
            if found is not None:
                return found
            following = segment.index.strides[stride + 1 : stride + 2]
            return following[0].position if following else segment.manifest.next_position
        return self.next_position

    @override
    def first_beyond(self, vector: Mapping[int, int]) -> int:
        for segment in self._segments.values():
            number = segment.index.stride_beyond(vector)
            if number is not None:
                return segment.index.strides[number].position
        return self.next_position

    def _stride(self, segment: Segment, number: int) -> bytes:
        start, end = segment.index.span(number, segment.end)
        return segment.file.pread(end - start, start)

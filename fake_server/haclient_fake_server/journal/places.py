"""Where the segments of a journal are: in its directory or in the archive, compressed or not.

A segment that is sealed never changes, so it may be copied to the archive, or compressed, while it
is read. The copy gets its name when it is whole and synced; only then is the original removed. A
kill in between leaves both, of which either serves, and the next such action removes the other.

A compressed segment is a file of gzip, which any program can read. Its members have
`MEMBER_BYTES` of the segment each, and their length in an extra field of their header, so that a
read decompresses only what it needs; the module `gzip` neither writes that field nor reads one
member. gzip's checksum of each member is checked with every read.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from typing_extensions import override

from haclient_fake_server.journal.format import COMPRESSED_SUFFIX, segment_name, segment_number
from haclient_stores.disk.files import Disk, File, Region
from haclient_stores.errors import StoreCorrupt, StoreError

MEMBER_BYTES: Final = 256 * 1024
"""As much as one entry of a segment's sparse index: what a look-up reads."""

_HEADER: Final = struct.Struct("<4sIBBH2sHI")
"""magic, method and flags; time; extra flags; system; bytes of extra fields; id and bytes of the
one field; bytes of the whole member"""
_TRAILER: Final = struct.Struct("<II")
"""crc32 and length of what was compressed"""
_START: Final = (b"\x1f\x8b\x08\x04", 0, 0, 255, 8, b"HA", 4)
_LEVEL: Final = 6


def compressed_member(data: bytes) -> bytes:
    """One member of a compressed segment."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = packer.compress(data) + packer.flush()
    size = _HEADER.size + len(body) + _TRAILER.size
    return _HEADER.pack(*_START, size) + body + _TRAILER.pack(zlib.crc32(data), len(data))


class CompressedFile(File):
    """A compressed segment, open for reading; offsets and sizes are those of the segment.

    Args:
        file: The file of gzip; closed with this one.

    Raises:
        StoreCorrupt: It is damaged, or was compressed by another program.
    """

    def __init__(self, file: File) -> None:
        self._file = file
        self._members: list[tuple[int, int]] = []  # offset and length in the file
        self._size = 0
        self.path = file.path
        self._last: tuple[int, bytes] = (-1, b"")
        offset, end = 0, file.size()
        while offset < end:
            size = self._length_at(offset, end)
            self._members.append((offset, size))
            offset += size
        if self._members:
            last, size = self._members[-1]
            _, length = _TRAILER.unpack(file.pread(_TRAILER.size, last + size - _TRAILER.size))
            self._size = (len(self._members) - 1) * MEMBER_BYTES + length

    def _length_at(self, offset: int, end: int) -> int:
        head = self._file.pread(_HEADER.size, offset)
        if len(head) == _HEADER.size:
            fields = _HEADER.unpack(head)
            size: int = fields[-1]
            if fields[:-1] == _START and _HEADER.size + _TRAILER.size < size <= end - offset:
                return size
        raise self._damaged(offset, "not the beginning of a whole part that a broker compressed")

    @override
    def size(self) -> int:
        return self._size

    @override
    def pread(self, count: int, offset: int) -> bytes:
        end = min(offset + count, self._size)
        if offset >= end:
            return b""
        first, last = offset // MEMBER_BYTES, (end - 1) // MEMBER_BYTES
        data = b"".join([self._member(number) for number in range(first, last + 1)])
        return data[offset - first * MEMBER_BYTES : end - first * MEMBER_BYTES]

    def _member(self, number: int) -> bytes:
        if self._last[0] == number:  # a replay reads on where it has stopped
            return self._last[1]
        offset, size = self._members[number]
        raw = self._file.pread(size, offset)
        wanted = min(MEMBER_BYTES, self._size - number * MEMBER_BYTES)
        try:
            unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
            data = unpacker.decompress(raw[_HEADER.size : -_TRAILER.size], wanted + 1)
        except zlib.error as error:
            raise self._damaged(offset, f"cannot be decompressed: {error}") from error
        found = (zlib.crc32(data), len(data))
        if len(data) != wanted or _TRAILER.unpack(raw[-_TRAILER.size :]) != found:
            raise self._damaged(offset, "the checksum of what was compressed is wrong")
        self._last = (number, data)
        return data

    def _damaged(self, offset: int, what: str) -> StoreCorrupt:
        return StoreCorrupt(self.path, offset, what)

    @override
    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        raise self._read_only()

    @override
    def allocate(self, size: int) -> None:
        raise self._read_only()

    @override
    def map(self, offset: int, length: int) -> Region:
        raise self._read_only()

    def _read_only(self) -> StoreError:
        return StoreError(f"{self._file.path}: a compressed segment is never changed")

    @override
    def fsync(self) -> None:
        return

    @override
    def close(self) -> None:
        self._file.close()


class SegmentPlaces:
    """The files of the segments of one journal.

    Args:
        directory: The directory of the journal.
        disk: The file system.
        archive: Where segments are moved to by `archive`; `None` for nowhere.
    """

    def __init__(self, directory: Path, disk: Disk, archive: Path | None = None) -> None:
        self._directory = directory
        self._disk = disk
        self._archive = archive
        self._paths: dict[int, Path] = {}
        if archive is not None:
            disk.make_directory(archive)

    def find(self) -> list[int]:
        """The numbers of all segments that are there, rising."""
        found: set[int] = set()
        for directory in self._directories():
            numbers = map(segment_number, self._disk.listdir(directory))
            found.update(number for number in numbers if number is not None)
        for number in found:
            self._paths[number] = next(filter(self._disk.exists, self._candidates(number)))
        return sorted(found)

    def _directories(self) -> list[Path]:
        return [self._directory, *([] if self._archive is None else [self._archive])]

    def _candidates(self, number: int) -> list[Path]:
        """Where a segment may be; the first that exists is read."""
        names = segment_name(number), segment_name(number) + COMPRESSED_SUFFIX
        return [each / name for each in self._directories() for name in names]

    def path(self, number: int) -> Path:
        """The file of a segment; where it is created, if there is none."""
        return self._paths.get(number) or self._directory / segment_name(number)

    def is_moved(self, number: int) -> bool:
        """Whether a segment was archived or compressed, and so is sealed."""
        return self.path(number) != self._directory / segment_name(number)

    def is_archived(self, number: int) -> bool:
        """Whether a segment is in the archive."""
        return self.path(number).parent != self._directory

    def is_compressed(self, number: int) -> bool:
        """Whether a segment is compressed."""
        return self.path(number).suffix == COMPRESSED_SUFFIX

    def exists(self, number: int) -> bool:
        """Whether the file of a segment is still there."""
        return self._disk.exists(self.path(number))

    def open(self, number: int, *, writable: bool = True) -> File:
        """Open the file of a segment: for reading only, when it was archived or compressed.

        Args:
            number: The segment.
            writable: Open it for writing, too, if it was neither.

        Raises:
            StoreError: It is not there.
            StoreCorrupt: It is compressed and damaged.
        """
        writable = writable and not self.is_moved(number)
        file = self._disk.open(self.path(number), writable=writable)
        if not self.is_compressed(number):
            return file
        try:
            return CompressedFile(file)
        except BaseException:
            file.close()
            raise

    def copy(
        self, number: int, size: int, *, compress: bool, check: Callable[[bytes, int], None]
    ) -> Path:
        """Write a sealed segment once more, compressed or into the archive; may run in a thread.

        Args:
            number: The segment.
            size: Its bytes.
            compress: Compress it where it is; otherwise copy it to the archive as it is.
            check: Refuses damage in some bytes of the segment, given their offset; its last call
                has none.

        Returns:
            The new file, whole and synced. `use` puts it in the place of the old one.

        Raises:
            StoreCorrupt: The segment is damaged.
            StoreError: The disk failed or is full.
        """
        old = self.path(number)
        if compress or self._archive is None:
            target = old.with_name(segment_name(number) + COMPRESSED_SUFFIX)
        else:
            target = self._archive / old.name
        encode = compressed_member if target.suffix == COMPRESSED_SUFFIX else bytes
        temporary = target.with_name(target.name + ".new")
        source = self.open(number, writable=False)
        try:
            file = self._disk.create_new(temporary)
            try:
                written = 0
                for offset in range(0, size, MEMBER_BYTES):
                    data = source.pread(min(MEMBER_BYTES, size - offset), offset)
                    check(data, offset)
                    part = encode(data)
                    file.pwrite(part, written)
                    written += len(part)
                check(b"", size)
                file.fsync()
            except BaseException:
                self._disk.remove(temporary)
                raise
            finally:
                file.close()
        finally:
            source.close()
        self._disk.rename(temporary, target)
        self._disk.fsync_dir(target.parent)
        return target

    def use(self, number: int, path: Path) -> None:
        """Read a segment from another of its files from here on."""
        self._paths[number] = path

    def remove_others(self, number: int) -> None:
        """Remove the files of a segment from which it is not read; may run in a thread."""
        self._remove(number, keep=self.path(number))

    def remove(self, number: int) -> None:
        """Remove all files of a segment; may run in a thread."""
        self._remove(number, keep=None)

    def _remove(self, number: int, *, keep: Path | None) -> None:
        for path in self._candidates(number):
            if path != keep and self._disk.exists(path):
                self._disk.remove(path)
                self._disk.fsync_dir(path.parent)

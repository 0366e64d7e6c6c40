"""What a slow client has not read yet, in a file: first in, first out.

The file is a ring of blocks: length (4 bytes, little-endian), CRC-32 of the data (4) and the data.
It has no name while it is in use, so nothing is left of it after a crash. Small chunks are gathered
in memory until a block is worth a write; what was not written yet is the end of the queue.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Final

from haclient_stores.disk.files import Disk, File
from haclient_stores.errors import StoreError, StoreFull

BLOCK_BYTES: Final = 256 * 1024
"""A block is written when it has so much data."""

_BLOCK: Final = struct.Struct("<II")


class OfflineQueue:
    """The unsent bytes of one connection.

    Args:
        file: An empty file.
        capacity: The most bytes of data that it holds.

    Attributes:
        size: How many bytes wait, also in memory.
    """

    def __init__(self, file: File, *, capacity: int) -> None:
        self.size = 0
        self._file = file
        # Each block but the last has BLOCK_BYTES or more.
        self._ring = capacity + _BLOCK.size * (capacity // BLOCK_BYTES + 2)
        self._written = self._read = 0
        self._new: list[bytes] = []
        self._new_bytes = 0

    @classmethod
    def create(cls, disk: Disk, path: Path, *, capacity: int) -> OfflineQueue:
        """A queue in a new file, whose name is free again.

        Raises:
            StoreError: The file cannot be made.
        """
        file = disk.create_new(path)
        try:
            disk.remove(path)
        except StoreError:
            file.close()
            raise
        return cls(file, capacity=capacity)

    def append(self, data: bytes) -> None:
        """Add a chunk.

        Raises:
            StoreFull: The queue or the disk is full.
            StoreError: The file cannot be written.
        """
        self._new.append(data)
        self._new_bytes += len(data)
        self.size += len(data)
        if self._new_bytes >= BLOCK_BYTES:
            block = b"".join(self._new)
            self._new, self._new_bytes = [], 0
            self._write(_BLOCK.pack(len(block), zlib.crc32(block)) + block)

    def take(self) -> bytes:
        """Remove the oldest chunks, joined; empty when there are none.

        Raises:
            StoreError: The file cannot be read, or is damaged.
        """
        if self._read < self._written:
            size, checksum = _BLOCK.unpack(self._read_bytes(_BLOCK.size).ljust(_BLOCK.size, b"\0"))
            block = self._read_bytes(size) if size <= self._written - self._read else b""
            if not block or len(block) != size or zlib.crc32(block) != checksum:
                raise StoreError(f"{self._file.path}: what waited for a client is damaged")
        else:
            block = b"".join(self._new)
            self._new, self._new_bytes = [], 0
        self.size -= len(block)
        return block

    def close(self) -> None:
        """Give up the file, and what waits in it."""
        self._file.close()

    def _write(self, data: bytes) -> None:
        if self._written + len(data) - self._read > self._ring:
            raise StoreFull(f"{self._file.path}: more waits for a client than the queue holds")
        at = self._written % self._ring
        room = self._ring - at
        self._file.pwrite(data[:room], at)
        if len(data) > room:
            self._file.pwrite(data[room:], 0)
        self._written += len(data)

    def _read_bytes(self, count: int) -> bytes:
        at = self._read % self._ring
        data = self._file.pread(min(count, self._ring - at), at)
        if len(data) < count:
            data += self._file.pread(count - len(data), 0)
        self._read += count
        return data

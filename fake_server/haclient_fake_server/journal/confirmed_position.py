"""How far the log is safe on all synchronous destinations, written down (RE4, RE11).

One number in a file of 16 bytes: position and checksum, overwritten by one system call before the
acks that depend on it are sent. A killed process therefore never tells a publisher, in a logon ack,
of less than it has acknowledged. A loss of power may tear or lose it; then the number is 0, every
destination is asked anew, and publishers are told less until it has answered.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Final

from haclient_stores.disk.files import Disk

__all__ = ["FILE_NAME", "ConfirmedPosition"]

FILE_NAME: Final = "replication.confirmed"
_POSITION: Final = struct.Struct("<Q")
_CHECKSUM: Final = struct.Struct("<Q")
_BYTES: Final = _POSITION.size + _CHECKSUM.size


class ConfirmedPosition:
    """The file of one broker, open.

    Args:
        directory: That of the journal, whose lock protects this file, too.
        disk: The file system.

    Attributes:
        position: The number; 0 when the file is damaged, `None` while there never was one.

    Raises:
        StoreError: The file cannot be opened.
    """

    def __init__(self, directory: Path, disk: Disk) -> None:
        self.position: int | None = None
        self._file = disk.open(directory / FILE_NAME, create=True)
        data = self._file.pread(_BYTES, 0)
        if data:
            self.position = _decode(data)

    def write(self, position: int) -> None:
        """Overwrite it; when this returns a killed process no longer loses it.

        Raises:
            StoreError: The disk failed.
        """
        if position != self.position:
            self._file.pwrite(_encode(position), 0)
            self.position = position

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def _encode(position: int) -> bytes:
    packed = _POSITION.pack(position)
    return packed + _CHECKSUM.pack(zlib.crc32(packed))


def _decode(data: bytes) -> int:
    position = int.from_bytes(data[: _POSITION.size], "little")
    return position if len(data) == _BYTES and _encode(position) == data else 0

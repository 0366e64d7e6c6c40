"""The progress of replication, in a file next to the journal.

One record of some 50 bytes, which one system call overwrites before the acks that depend on it are
sent. So after a kill, a logon ack never reports less as persisted than was acknowledged before. A
power loss may tear or lose the record. Then nothing counts as confirmed, every destination is sent
the records that its vector lacks and all records that may differ, and logon acks report less until
the destination has answered.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Final

from haclient_fake_server.engine.replication.durability import (
    DestinationProgress,
    ReplicationProgress,
)
from haclient_stores.disk.files import Disk

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

"""The shared rule for logs with checksums: which blocks count, where the log ends, what is cleared.

A log is a run of *blocks*, each with a checksum. Publish segments, bookmark logs and the broker's
journal have blocks of different layouts and share this rule:

1. **A block carries its position.** The checksum covers the block's offset or position
   (`block_checksum`), or the block states it. A whole block from an earlier use of the file, or
   from a tail that was cut, is not mistaken for the next block.
2. **Recovery ends at the first block that is not whole, or not in its place** (`read_blocks`).
   Anything after it is ignored: it was never reported as stored, or it is lost.
3. **That is either a torn tail or corruption.** A block may be missing only if the machine stopped
   before it was synced: if it was restarted since, and the block lies after the offset that the
   last successful sync recorded. Then the log ends there, with a warning. Otherwise the block was
   reported as synced, or a running kernel has lost it: `StoreCorrupt`.
4. **The cut tail is cleared, and that is synced, before anything is appended** (`clear_tail`).
   Otherwise a second power loss could bring back an old block after a new one.
5. **Zero is a value.** A block or record ends the log because its commit mark was never written
   (a kind, a length or a magic that is never zero), not because a value in it is zero.

Each format has its own rule for records after the last block, which a killed process has left in
the page cache: they count only if the machine was not restarted since. Where it has no boot id,
that is unknown, so it may have been.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from haclient_stores.disk.files import File
from haclient_stores.errors import StoreCorrupt, StoreError
from haclient_stores.logs import logger_of

_CHUNK_BYTES: Final = 2**20
_position = struct.Struct("<Q")

_log = logger_of("haclient.store_file")


@dataclass(frozen=True, slots=True)
class LogHistory:
    """The state in which the last process left a log.

    Attributes:
        same_boot: The machine was not restarted since, so its page cache is complete.
        synced_end: The offset up to which the log was synced according to the header, in bytes.
    """

    same_boot: bool
    synced_end: int

    def check_torn(self, path: Path, end: int, broken: BrokenBlock) -> None:
        """Decide whether a broken block is a torn tail: return if it is.

        Args:
            path: The file, for the error.
            end: Where the last whole block ends, in bytes.
            broken: What is wrong with the block after it.

        Raises:
            StoreCorrupt: It is damage, not a tail that was lost with power.
        """
        if self.same_boot or end < self.synced_end:
            raise StoreCorrupt(path, broken.offset, broken.what)
        what = "%s: byte %d: %s: it was not on disk when the machine stopped, and is cut"
        _log.warning(what, path, broken.offset, broken.what)


def is_same_boot(found: bytes, boot_id: bytes) -> bool:
    """Whether the machine was surely not restarted since a file was written.

    Args:
        found: The boot id in the file.
        boot_id: That of the machine as it runs now; zeros where that is unknown.
    """
    return found == boot_id and any(boot_id)


class BrokenBlock(Exception):
    """The next block is not whole, or not in its place.

    Attributes:
        offset: Its offset in the file, in bytes.
        what: What is wrong there.
    """

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(f"byte {offset}: {what}")
        self.offset = offset
        self.what = what


def block_checksum(data: bytes | bytearray | memoryview, *, position: int) -> int:
    """The crc32 of a block in its place.

    Args:
        data: The bytes of the block.
        position: Where it is: an offset or a number that no other block of the log has, below 2^64.

    Returns:
        The checksum, below 2^32. It may be zero.
    """
    return zlib.crc32(data, zlib.crc32(_position.pack(position)))


def read_blocks(
    path: Path, begin: int, history: LogHistory, next_block: Callable[[int], int | None]
) -> int:
    """Read a log from its first block on.

    Args:
        path: The file, for errors.
        begin: Where the first block is, in bytes.
        history: How the log was left.
        next_block: Called with the offset of each block in turn. It checks the block, takes what
            is in it, and returns the offset after it; None where no block was ever written. It
            raises `BrokenBlock` for one that is not whole or not in its place, and takes nothing.

    Returns:
        The offset after the last block that counts, in bytes.

    Raises:
        StoreCorrupt: A block is damaged, or blocks are missing that were synced.
    """
    end = begin
    while True:
        try:
            after = next_block(end)
        except BrokenBlock as broken:
            history.check_torn(path, end, broken)
            break
        if after is None:
            break
        end = after
    if end < history.synced_end:
        what = f"the log was synced up to byte {history.synced_end}, and ends here"
        raise StoreCorrupt(path, end, what)
    return end


def clear_tail(file: File, end: int, limit: int) -> bool:
    """Make everything after the end of a log zero, on the disk too.

    Call it before the first append to a log that another process has left. It syncs the whole file
    even if it finds nothing but zeros: a process that was killed here may have cleared the tail in
    the page cache only.

    Args:
        file: The file.
        end: Where the log ends, in bytes.
        limit: Up to where bytes may be left of an earlier log, in bytes.

    Returns:
        Whether anything was there.

    Raises:
        StoreError: The disk has failed. What was there is there again, so that the next process
            finds it, too.
    """
    cleared: list[tuple[int, bytes]] = []
    try:
        for at in range(end, limit, _CHUNK_BYTES):
            data = file.pread(min(_CHUNK_BYTES, limit - at), at)
            if data.count(0) < len(data):
                cleared.append((at, data))
                file.pwrite(bytes(len(data)), at)
        file.fsync()
    except BaseException:
        # The kernel may take these zeros for written now. A later process that found them would
        # clear nothing and sync nothing, so put back what it has to clear.
        with contextlib.suppress(StoreError):
            for at, data in cleared:
                file.pwrite(data, at)
        raise
    return bool(cleared)

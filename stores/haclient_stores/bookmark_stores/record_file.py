"""A file of 16-byte records that only grows at its end: where a bookmark log is kept.

After the header page (`framing`) come blocks of 64 KiB: 4095 records and a seal, the crc32 of
those. A sync or a close seals what the last block holds so far with a *partial seal*, a record
like the others, and goes on behind it. Records are written straight into mapped, preallocated
memory, value first; the word after the last record is zero.

Reading back follows the rules of `framing`: what is sealed has to match, what is not sealed is
trusted if the machine was not started since, and a torn tail is cut off with a warning.
"""

from __future__ import annotations

import logging
import zlib
from array import array
from typing import TYPE_CHECKING, Final

from haclient_stores import framing
from haclient_stores.bookmark_stores.records import Kind
from haclient_stores.disk.files import PAGE_BYTES
from haclient_stores.errors import StoreCorrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from haclient_stores.disk.files import File, Region

__all__ = ["BLOCK_BYTES", "GROW_BYTES", "LOG_MAGIC", "RecordFile", "create", "recover"]

LOG_MAGIC: Final = b"HABMKLOG"
BLOCK_BYTES: Final = 64 * 1024
GROW_BYTES: Final = 16 * BLOCK_BYTES  # the file grows by so much, which is also what is mapped
RECORD_BYTES: Final = 16
_BLOCK_WORDS: Final = BLOCK_BYTES // 8
_SEAL_AT: Final = BLOCK_BYTES - RECORD_BYTES
_CRC_MARK: Final = 1 << 32  # keeps the value of a seal from being zero
_SEAL_KIND: Final = Kind.SEAL << 56
_PARTIAL_KIND: Final = Kind.PARTIAL_SEAL << 56

_log = logging.getLogger(__name__)


class RecordFile:
    """The open end of a log.

    Whoever writes much does so by hand: `words[index + 1] = value`, then `words[index] = word`,
    then `index += 2`; first `turn()` when `index >= limit`.

    Attributes:
        words: The mapped part of the file, as 64-bit words.
        index: The word where the next record goes.
        limit: The word where the seal of this block goes.
    """

    __slots__ = ("_allocated", "_base", "_block", "_file", "_region", "index", "limit", "words")

    def __init__(self, file: File, end: int) -> None:
        self._file = file
        self._allocated = max(file.size(), PAGE_BYTES)
        self._region: Region | None = None
        self._base = 0
        self.words = memoryview(b"")
        self._map(PAGE_BYTES + (end - PAGE_BYTES) // GROW_BYTES * GROW_BYTES)
        self.index = (end - self._base) // 8
        self._block = self.index // _BLOCK_WORDS * _BLOCK_WORDS
        self.limit = self._block + _SEAL_AT // 8

    def _map(self, base: int) -> None:
        if base + GROW_BYTES > self._allocated:
            self._file.allocate(base + GROW_BYTES)
            self._allocated = base + GROW_BYTES
        region = self._file.map(base, GROW_BYTES)
        if self._region is not None:
            self.words.release()
            self._region.close()
        self._region = region
        self._base = base
        self.words = region.view.cast("Q")

    @property
    def allocated(self) -> int:
        """Size of the file in bytes."""
        return self._allocated

    @property
    def end(self) -> int:
        """Offset behind the last record, in bytes."""
        return self._base + self.index * 8

    def has_room(self, records: int) -> bool:
        """Whether so many records fit without a larger file."""
        return self.end + (records + records // 4095 + 2) * RECORD_BYTES <= self._allocated

    def size_for(self, records: int) -> int:
        """How large the file has to be for so many more records, in bytes; no less than it is."""
        needed = self.end + (records + records // 4095 + 2) * RECORD_BYTES
        return max(
            self._allocated, PAGE_BYTES + -(-(needed - PAGE_BYTES) // GROW_BYTES) * GROW_BYTES
        )

    def reserve(self, records: int) -> None:
        """Make sure that so many records fit.

        Raises:
            StoreFull: They do not; nothing has changed.
        """
        if not self.has_room(records):
            size = self.size_for(records)
            self._file.allocate(size)
            self._allocated = size

    def put(self, first: int, value: int) -> None:
        """Write one record."""
        if self.index >= self.limit:
            self.turn()
        self.words[self.index + 1] = value
        self.words[self.index] = first
        self.index += 2

    def put_all(self, records: Iterable[tuple[int, int]]) -> None:
        """Write records."""
        for first, value in records:
            self.put(first, value)

    def put_words(self, words: array[int]) -> None:
        """Write records that are there as words already."""
        at = 0
        while at < len(words):
            if self.index >= self.limit:
                self.turn()
            part = words[at : at + self.limit - self.index]
            self.words[self.index : self.index + len(part)] = part
            self.index += len(part)
            at += len(part)

    def turn(self) -> None:
        """Seal a full block and begin the next."""
        block = self.words[self._block : self.limit]
        if self.limit + 2 >= len(self.words):
            self._seal(_SEAL_KIND, block, self.limit)
            self._map(self._base + GROW_BYTES)
            self._block = 0
        else:
            self._seal(_SEAL_KIND, block, self.limit)
            self._block = self.limit + 2
        self.index = self._block
        self.limit = self._block + _SEAL_AT // 8

    def _seal(self, kind: int, covered: memoryview, at: int) -> None:
        self.words[at + 1] = zlib.crc32(covered) | _CRC_MARK
        self.words[at] = kind | len(covered)

    def seal(self) -> None:
        """Seal what the last block holds so far."""
        if self.index >= self.limit:
            self.turn()
        if self.index > self._block and self.words[self.index - 2] >> 56 != Kind.PARTIAL_SEAL:
            covered = self.words[self._block : self.index]
            self._seal(_PARTIAL_KIND, covered, self.index)
            self.index += 2

    def copy_to(self, other: RecordFile, begin: int, end: int) -> None:
        """Append the records between two offsets to another log, without their seals.

        Another thread may write behind `end` meanwhile.
        """
        while begin < end:
            block_end = begin - (begin - PAGE_BYTES) % BLOCK_BYTES + BLOCK_BYTES
            upto = min(end, block_end)
            words = array("Q", self._file.pread(upto - begin, begin))
            begin = upto
            if max(words[0::2]) >= _PARTIAL_KIND:
                pairs = zip(words[0::2], words[1::2], strict=True)
                words = array("Q", [w for pair in pairs if pair[0] < _PARTIAL_KIND for w in pair])
            other.put_words(words)

    def close(self) -> None:
        """Unmap."""
        if self._region is not None:
            self.words.release()
            self._region.close()
            self._region = None


def create(file: File, *, boot_id: bytes, owner: str) -> RecordFile:
    """Make a file without a header a log, whatever a loss of power has left in it."""
    _clear(file, PAGE_BYTES)
    header = file.map(0, PAGE_BYTES)
    header.view[:] = bytes(PAGE_BYTES)
    if owner:
        framing.write_owner(header.view, owner)
    framing.write_identity(header.view, framing.Identity(LOG_MAGIC, PAGE_BYTES), boot_id)
    header.close()
    return RecordFile(file, PAGE_BYTES)


class _Reading:
    """One pass over a log."""

    def __init__(self, file: File, *, same_boot: bool, synced: int) -> None:
        self.file = file
        self.same_boot = same_boot
        self.synced = synced
        self.end = PAGE_BYTES

    def blocks(self) -> Iterator[array[int]]:
        size = self.file.size()
        whole = PAGE_BYTES + (size - PAGE_BYTES) // RECORD_BYTES * RECORD_BYTES
        if (size - PAGE_BYTES) % GROW_BYTES:
            self._warn(size, "the file was cut off")
        offset = PAGE_BYTES
        while offset < whole:
            words = array("Q", self.file.pread(min(BLOCK_BYTES, whole - offset), offset))
            sealed = self._sealed(words, offset)
            complete = len(words) == _BLOCK_WORDS and sealed == _BLOCK_WORDS - 2
            count = sealed if complete else self._unsealed(words, offset, sealed)
            self.end = offset + count * 8
            if count:
                yield words[:count]
            if not complete:
                self._check_end(offset + BLOCK_BYTES, whole)
                return
            offset += BLOCK_BYTES
            self.end = offset

    def _sealed(self, words: array[int], offset: int) -> int:
        """How many words of a block are protected by a seal that matches."""
        is_full = len(words) == _BLOCK_WORDS and words[-2] == _SEAL_KIND | _BLOCK_WORDS - 2
        last = _BLOCK_WORDS - 2
        if is_full and zlib.crc32(words[:last]) | _CRC_MARK == words[last + 1]:
            return last
        whole, damaged = self._partly_sealed(words)
        if is_full and not damaged:
            damaged = last
        if damaged:
            if self.same_boot or offset + damaged * 8 <= self.synced:
                raise StoreCorrupt(
                    self.file.path, offset, "sealed records do not match their checksum"
                )
            self._warn(offset, "records were not on disk when the machine stopped: cut")
        return whole

    @staticmethod
    def _partly_sealed(words: array[int]) -> tuple[int, int]:
        """The words in front of the last partial seal that matches, and of the first that does not.

        Each seal covers its block from the beginning. A loss of power may keep a later page and its
        seal and lose an earlier page, which was written after the seals in front of it: what those
        protect may have been synced, and is still there.
        """
        whole = damaged = covered = checksum = 0
        view = memoryview(words)
        for index in range(0, len(words) - 1, 2):
            if words[index] == _PARTIAL_KIND | index:
                checksum = zlib.crc32(view[covered:index], checksum)
                covered = index
                if checksum | _CRC_MARK == words[index + 1]:
                    whole = index
                elif not damaged:
                    damaged = index
        return whole, damaged

    def _unsealed(self, words: array[int], offset: int, sealed: int) -> int:
        """Where the records end, in a block that is not full."""
        end = sealed + 2 if sealed else 0
        if self.same_boot:
            most = min(len(words), _BLOCK_WORDS - 2)
            while end < most and words[end] and words[end + 1]:
                end += 2
        if any(words[end:]):
            self._warn(offset + end * 8, "a torn record was cut off")
        return end

    def _check_end(self, offset: int, whole: int) -> None:
        """Behind the last block nothing may have been written."""
        follows = array("Q", self.file.pread(RECORD_BYTES, offset)) if offset < whole else ()
        if any(follows) and self.same_boot:
            raise StoreCorrupt(
                self.file.path, offset - RECORD_BYTES, "a block before the end has no seal"
            )

    def _warn(self, offset: int, what: str) -> None:
        _log.warning("%s: byte %d: %s", self.file.path, offset, what)


def recover(file: File, boot_id: bytes, take: Callable[[array[int]], None]) -> RecordFile:
    """Read a log and open its end.

    Args:
        file: The file; it has a header.
        boot_id: That of the machine as it runs now.
        take: Gets the records as words, in order, seals among them.

    Raises:
        StoreCorrupt: What was sealed is damaged.
    """
    header = file.pread(PAGE_BYTES, 0)
    path: Path = file.path
    if len(header) < PAGE_BYTES:
        raise StoreCorrupt(path, len(header), "the file ends within its header")
    found = header[framing.BOOT_ID_OFFSET : framing.BOOT_ID_OFFSET + 16]
    reading = _Reading(
        file,
        same_boot=found == boot_id,
        synced=framing.read_word(header, framing.FIRST_WORD),
    )
    for words in reading.blocks():
        take(words)
    end = reading.end
    if end < reading.synced:
        raise StoreCorrupt(
            path, end, f"the records up to byte {reading.synced} were synced, and are not there"
        )
    _clear(file, end)
    opened = RecordFile(file, end)
    opened.seal()
    file.pwrite(boot_id, framing.BOOT_ID_OFFSET)
    return opened


def _clear(file: File, end: int) -> None:
    """Zero everything behind the end, as far as it is not zero."""
    size = max(file.size(), PAGE_BYTES)
    base = PAGE_BYTES + -(-(size - PAGE_BYTES) // GROW_BYTES) * GROW_BYTES
    file.allocate(max(base, PAGE_BYTES + GROW_BYTES))
    while end < size:
        data = file.pread(min(GROW_BYTES, size - end), end)
        if data.count(0) < len(data):
            file.pwrite(bytes(len(data)), end)
        end += len(data)

"""An append-only file of 16-byte records, which holds a bookmark log.

After the `header_page` come blocks of 64 KiB: 4095 records and a seal, the checksum of
those in their place. A sync or a close seals the records of the last block so far with a *partial
seal*, a record like the others; later records follow it. Records are written straight into mapped,
preallocated memory, value first. The first word of a record is never zero; a zero in its place is
the end of the log. Any value may be zero. All words are little-endian.

Reading back follows `disk.checksummed_log`. Records after the last seal count if the machine was
not restarted since.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Iterable
from typing import Final

from haclient_stores import header_page
from haclient_stores.bookmark_stores.records import RecordKind
from haclient_stores.disk.checksummed_log import (
    BrokenBlock,
    LogHistory,
    block_checksum,
    clear_tail,
    is_same_boot,
    read_blocks,
)
from haclient_stores.disk.files import PAGE_BYTES, File, Region
from haclient_stores.errors import StoreCorrupt
from haclient_stores.logs import logger_of

LOG_MAGIC: Final = b"HABMKLOG"
BLOCK_BYTES: Final = 64 * 1024
GROW_BYTES: Final = 16 * BLOCK_BYTES  # the file grows by so much, which is also what is mapped
RECORD_BYTES: Final = 16
_BLOCK_WORDS: Final = BLOCK_BYTES // 8
_SEAL_AT: Final = BLOCK_BYTES - RECORD_BYTES
_SEAL_KIND: Final = RecordKind.SEAL << 56
_PARTIAL_KIND: Final = RecordKind.PARTIAL_SEAL << 56

_log = logger_of("haclient.bookmark_store")


def _checksum(words: memoryview | array[int], offset: int) -> int:
    return block_checksum(memoryview(words).cast("B"), position=offset)


class RecordFile:
    """The open end of a log.

    For speed, callers on the hot path write records directly: `words[index + 1] = value`, then
    `words[index] = word`, then `index += 2`; before that `turn()` if `index >= limit`.

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
        """Offset after the last record, in bytes."""
        return self._base + self.index * 8

    def has_room(self, records: int) -> bool:
        """Whether records fit without a larger file.

        Args:
            records: The number of records, of 16 bytes each.
        """
        return self.end + (records + records // 4095 + 2) * RECORD_BYTES <= self._allocated

    def size_for(self, records: int) -> int:
        """How large the file has to be for more records, in bytes; no less than it is.

        Args:
            records: The number of records, of 16 bytes each.
        """
        needed = self.end + (records + records // 4095 + 2) * RECORD_BYTES
        return max(
            self._allocated, PAGE_BYTES + -(-(needed - PAGE_BYTES) // GROW_BYTES) * GROW_BYTES
        )

    def reserve(self, records: int) -> None:
        """Make sure that records fit.

        Args:
            records: The number of records, of 16 bytes each.

        Raises:
            StoreFull: They do not; nothing has changed.
        """
        if not self.has_room(records):
            size = self.size_for(records)
            self._file.allocate(size)
            self._allocated = size

    def put(self, first: int, value: int) -> None:
        """Write one record.

        Args:
            first: Its first word, which is not 0.
            value: Its second word.

        Raises:
            StoreFull: The file has no room that was reserved, and the disk has none.
        """
        if self.index >= self.limit:
            self.turn()
        self.words[self.index + 1] = value
        self.words[self.index] = first
        self.index += 2

    def put_all(self, records: Iterable[tuple[int, int]]) -> None:
        """Write records.

        Args:
            records: First word and value of each.

        Raises:
            StoreFull: The file has no room that was reserved, and the disk has none.
        """
        for first, value in records:
            self.put(first, value)

    def put_words(self, words: array[int]) -> None:
        """Write records that are there as words already.

        Args:
            words: First word, value, first word, value, and so on.

        Raises:
            StoreFull: The file has no room that was reserved, and the disk has none.
        """
        at = 0
        while at < len(words):
            if self.index >= self.limit:
                self.turn()
            part = words[at : at + self.limit - self.index]
            begin, end = self.index, self.index + len(part)
            # In this order a process that is killed in between leaves whole records in front and
            # no first word after them; one copy of both might be cut off anywhere.
            self.words[begin + 1 : end : 2] = part[1::2]
            self.words[begin:end:2] = part[0::2]
            self.index = end
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
        self.words[at + 1] = _checksum(covered, self._base + self._block * 8)
        self.words[at] = kind | len(covered)

    def seal(self) -> None:
        """Seal what the last block holds so far."""
        if self.index >= self.limit:
            self.turn()
        if self.index > self._block and self.words[self.index - 2] >> 56 != RecordKind.PARTIAL_SEAL:
            covered = self.words[self._block : self.index]
            self._seal(_PARTIAL_KIND, covered, self.index)
            self.index += 2

    def copy_to(self, other: RecordFile, begin: int, end: int) -> None:
        """Append the records between two offsets to another log, without their seals.

        Another thread may write after `end` meanwhile.

        Args:
            other: The other log.
            begin: The offset of the first record, in bytes.
            end: The offset after the last one, in bytes.
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
    size = file.size()
    _allocate_whole(file)
    if size > PAGE_BYTES:
        clear_tail(file, PAGE_BYTES, size)
    header = file.map(0, PAGE_BYTES)
    header.view[:] = bytes(PAGE_BYTES)
    if owner:
        header_page.write_owner(header.view, owner)
    header_page.write_identity(header.view, header_page.Identity(LOG_MAGIC, PAGE_BYTES), boot_id)
    header.close()
    return RecordFile(file, PAGE_BYTES)


class _Reading:
    """One pass over a log.

    Args:
        file: The file.
        history: The state in which the last process left the log.
        take: Called with the records of each block as words, in order and including seals, and
            whether a seal protects all of them.
    """

    def __init__(
        self, file: File, history: LogHistory, take: Callable[[array[int], bool], None]
    ) -> None:
        self._file = file
        self._same_boot = history.same_boot
        self._take = take
        self._size = file.size()
        self._is_over = False  # the last block was read
        self._broken: BrokenBlock | None = None  # what is wrong after the part of it that counts

    def next_block(self, offset: int) -> int | None:
        """Take the block at an offset; of the last one, what its seals protect."""
        if self._broken is not None:
            raise self._broken
        whole = (self._size - offset) // RECORD_BYTES * RECORD_BYTES
        if self._is_over or whole <= 0:
            return None
        words = array("Q", self._file.pread(min(BLOCK_BYTES, whole), offset))
        sealed, damaged = self._sealed(words, offset)
        if sealed == _BLOCK_WORDS - 2:
            self._take(words[:sealed], True)
            return offset + BLOCK_BYTES
        self._is_over = True
        if damaged:
            self._broken = BrokenBlock(offset, "records do not match their checksum")
            count = sealed + 2 if sealed else 0
        else:
            count = self._unsealed(words, offset, sealed)
            self._check_end(offset + BLOCK_BYTES)
        if not count:
            return self.next_block(offset)
        self._take(words[:count], False)
        return offset + count * 8

    @staticmethod
    def _sealed(words: array[int], offset: int) -> tuple[int, int]:
        """How many words seals protect, and the position of the first seal that does not match."""
        full = _BLOCK_WORDS - 2
        is_full = len(words) == _BLOCK_WORDS and words[-2] == _SEAL_KIND | full
        if is_full and _checksum(words[:full], offset) == words[-1]:
            return full, 0
        whole, damaged = _Reading._partly_sealed(words, offset)
        return whole, damaged or (full if is_full else 0)

    @staticmethod
    def _partly_sealed(words: array[int], offset: int) -> tuple[int, int]:
        """The positions of the last partial seal that matches, and of the first that does not.

        Each seal covers its block from the beginning. A power loss may keep a later page with its
        seal and lose an earlier page, which was written after the seals before it: the records that
        those protect may have been synced, and are still there.
        """
        whole = damaged = covered = 0
        checksum = block_checksum(b"", position=offset)
        view = memoryview(words)
        for index in range(0, len(words) - 1, 2):
            if words[index] == _PARTIAL_KIND | index:
                checksum = zlib.crc32(view[covered:index], checksum)
                covered = index
                if checksum == words[index + 1]:
                    whole = index
                elif not damaged:
                    damaged = index
        return whole, damaged

    def _unsealed(self, words: array[int], offset: int, sealed: int) -> int:
        """Where the records end, in a block that is not full: a first word is never zero."""
        end = sealed + 2 if sealed else 0
        if self._same_boot:
            most = min(len(words), _BLOCK_WORDS - 2)
            while end < most and words[end]:
                end += 2
        if any(words[end:]):
            at = offset + end * 8
            _log.warning("%s: byte %d: a torn record was cut off", self._file.path, at)
        return end

    def _check_end(self, offset: int) -> None:
        """A running kernel loses no seal, so after the last block nothing can have been written.

        Raises:
            StoreCorrupt: There is something.
        """
        if offset < self._size and self._same_boot and any(self._file.pread(RECORD_BYTES, offset)):
            at = offset - RECORD_BYTES
            raise StoreCorrupt(self._file.path, at, "a block before the end has no seal")


def recover(file: File, boot_id: bytes, take: Callable[[array[int], bool], None]) -> RecordFile:
    """Read a log and open its end.

    Args:
        file: The file; it has a header.
        boot_id: That of the machine as it runs now.
        take: Gets the records as words, in order, seals among them, and whether a seal protects
            all of them.

    Raises:
        StoreCorrupt: What was sealed is damaged, or what was synced is missing.
    """
    header = file.pread(PAGE_BYTES, 0)
    if len(header) < PAGE_BYTES:
        raise StoreCorrupt(file.path, len(header), "the file ends within its header")
    found = header[header_page.BOOT_ID_OFFSET : header_page.BOOT_ID_OFFSET + 16]
    same_boot = is_same_boot(found, boot_id)
    history = LogHistory(same_boot, header_page.read_word(header, header_page.FIRST_WORD))
    size = file.size()
    if (size - PAGE_BYTES) % GROW_BYTES:
        _log.warning("%s: byte %d: the file was cut off", file.path, size)
    reading = _Reading(file, history, take)
    end = read_blocks(file.path, PAGE_BYTES, history, reading.next_block)
    _allocate_whole(file)
    clear_tail(file, end, size)
    opened = RecordFile(file, end)
    opened.seal()
    file.pwrite(boot_id, header_page.BOOT_ID_OFFSET)
    return opened


def _allocate_whole(file: File) -> None:
    """Make the file as large as whole parts that are mapped at once."""
    size = max(file.size(), PAGE_BYTES + GROW_BYTES)
    file.allocate(PAGE_BYTES + -(-(size - PAGE_BYTES) // GROW_BYTES) * GROW_BYTES)

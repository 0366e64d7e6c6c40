"""A disk that exists in memory and fails on purpose.

Theory. A file is an inode: the bytes that every process sees (the page cache, which mappings share)
and the bytes that the disk itself has. `fsync` copies the first to the second. Names are kept the
same way: a directory's creations, renames and removals are on the disk after `fsync_dir`, and until
then the disk holds some earlier state of them.

*A killed process* loses nothing of this: `after_kill` is the same image, without locks. *A loss of
power* keeps of each file what was synced and, of the pages written since, any subset; one page in
four of those is torn at a sector. Of the changes to names a prefix survives, as with an ordered
journal of metadata. The machine then has another boot id.

Either way the old disk stays usable by tasks that have yet to notice that their process has died:
they write into a copy that nobody reads any more.

*Faults* are armed one by one (`arm`): the next operation of a kind fails with an error number; a
write that fails has written the first part of its bytes. A failed `fsync` has synced nothing, and
counts all pages as clean from then on: processes see what was written, the disk has the old bytes,
and a later `fsync` leaves a page out until it is written again. A write into mapped memory is
noticed by what it changes only; a `pwrite` of the same bytes is a write.

*Other processes* may come at the two moments that matter to locks: `meanwhile`.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, TypeVar

from typing_extensions import override

from haclient_stores.disk.files import Disk, File, Region, Writable
from haclient_stores.errors import StoreError, StoreFull, StoreLocked

__all__ = ["FAULTS", "SimulatedDisk"]

FAULTS: Final = ("open", "allocate", "pwrite", "fsync", "fsync_dir", "rename", "map", "pread")
"""The operations that can be made to fail."""

_RESERVED_BYTES: Final = 16 * 2**20  # address space, not memory, for each file
_PAGE_BYTES: Final = 4096
_SECTOR_BYTES: Final = 512
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_T = TypeVar("_T")


class _Inode:
    """A file's bytes: as processes see them, and as they are on the disk."""

    def __init__(self, content: bytes | bytearray = b"") -> None:
        self.memory = mmap.mmap(-1, _RESERVED_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.size = len(content)
        self.memory[: self.size] = bytes(content)
        self.synced = bytes(content)
        self.lost: dict[int, bytes] = {}  # pages that a failed sync has left, by their offset
        self.locked = False

    def copy(self) -> _Inode:
        made = _Inode(self.content())
        made.synced = self.synced
        made.lost = self.lost.copy()
        return made

    def page(self, start: int) -> bytes:
        return self.memory[start : start + _PAGE_BYTES]

    def write(self, data: bytes, offset: int) -> None:
        """As a system call: the pages are dirty whatever they had."""
        end = offset + len(data)
        self.memory[offset:end] = data
        self.size = max(self.size, end)
        self.lost = {
            at: page for at, page in self.lost.items() if not offset - _PAGE_BYTES < at < end
        }

    def is_lost(self, start: int) -> bool:
        """Whether a page is taken for written, and is not."""
        return start in self.lost and self.lost[start] == self.page(start)

    def sync(self) -> None:
        """Write all dirty pages to the disk."""
        old = self.synced
        self.synced = self.content()
        self.lost = {start: page for start, page in self.lost.items() if self.is_lost(start)}
        if self.lost:
            found = bytearray(self.synced)
            for start in self.lost:
                end = min(start + _PAGE_BYTES, self.size)
                found[start:end] = old[start:end].ljust(end - start, b"\0")
            self.synced = bytes(found)

    def lose_sync(self) -> None:
        """All dirty pages count as clean."""
        for start in range(0, self.size, _PAGE_BYTES):
            old = self.synced[start : start + _PAGE_BYTES].ljust(_PAGE_BYTES, b"\0")
            if (page := self.page(start)) != old:
                self.lost[start] = page

    def content(self) -> bytes:
        return self.memory[: self.size]


class SimulatedDisk(Disk):
    """One machine's file system.

    Args:
        boot: Counts the starts of the machine.

    Attributes:
        failures: How often each armed fault was met.
        meanwhile: What another process does, once, between open and `lock`, or after a `rename`.
    """

    def __init__(self, boot: int = 1) -> None:
        self._boot = boot
        self._names: dict[Path, _Inode] = {}
        self._history: dict[Path, list[dict[Path, _Inode]]] = {}  # since a directory was synced
        self._armed: dict[str, list[int]] = {}
        self.failures: Counter[str] = Counter()
        self.meanwhile: dict[Literal["lock", "rename"], Callable[[], None]] = {}

    # -- faults -------------------------------------------------------------

    def arm(self, operation: str, number: int, *, times: int = 1) -> None:
        """Let the next operations of a kind fail with this error number."""
        self._armed.setdefault(operation, []).extend([number] * times)

    def disarm(self) -> None:
        """From now on nothing fails."""
        self._armed.clear()

    def check(self, operation: str, path: Path) -> None:
        """Fail if a fault is armed for this operation."""
        if self._armed.get(operation):
            raise self.failure(operation, path)

    def failure(self, operation: str, path: Path) -> StoreError:
        """The error of the armed fault, translated as `files` does it."""
        number = self._armed[operation].pop(0)
        self.failures[operation] += 1
        text = f"{path}: cannot {operation}: {os.strerror(number)}"
        return StoreFull(text) if number in _FULL else StoreError(text)

    def is_armed(self, operation: str) -> bool:
        """Whether the next such operation will fail."""
        return bool(self._armed.get(operation))

    # -- crashes ------------------------------------------------------------

    def after_kill(self) -> SimulatedDisk:
        """What the next process finds after this one was killed."""
        made = SimulatedDisk(self._boot)
        copies: dict[int, _Inode] = {}  # a renamed file may stand under two names in the history

        def copied(names: dict[Path, _Inode]) -> dict[Path, _Inode]:
            return {path: copies.setdefault(id(i), i.copy()) for path, i in names.copy().items()}

        made._names = copied(self._names)
        made._history = {
            directory: [copied(state) for state in states]
            for directory, states in self._history.items()
        }
        return made

    def after_power_loss(self, chance: random.Random) -> SimulatedDisk:
        """What the machine finds when it starts again."""
        names: dict[Path, _Inode] = {}
        for states in self._history.values():
            names |= chance.choice(states)
        made = SimulatedDisk(self._boot + 1)
        for path, inode in names.items():
            made._names[path] = _Inode(_survivors(inode, chance))
        for path in made._names:
            made._history[path.parent] = [made._in(path.parent)]
        return made

    def content(self, path: Path) -> bytes:
        """What a process would read."""
        return self._names[path].content()

    # -- the seam -----------------------------------------------------------

    def _in(self, directory: Path) -> dict[Path, _Inode]:
        names = self._names.copy()  # another thread may make a file meanwhile, as on a real disk
        return {path: inode for path, inode in names.items() if path.parent == directory}

    def _changed(self, path: Path) -> None:
        self._history.setdefault(path.parent, [{}]).append(self._in(path.parent))

    @override
    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        self.check("open", path)
        if path not in self._names:
            if not create:
                raise StoreError(f"{path}: cannot open: {os.strerror(errno.ENOENT)}")
            self._names[path] = _Inode()
            self._changed(path)
        return _SimulatedFile(self, path, self._names[path])

    @override
    def open_locked(self, path: Path) -> File:
        while True:
            file = self.open(path, create=True)
            assert isinstance(file, _SimulatedFile)
            self.meanwhile.pop("lock", _nothing)()
            if not file.lock():
                raise StoreLocked(path, "", "in use by another process; close that one first")
            if self._leads_to(path, file):
                return file
            file.close()

    def _leads_to(self, path: Path, file: _SimulatedFile) -> bool:
        return self._names.get(path) is file.inode

    @override
    def exists(self, path: Path) -> bool:
        return path in self._names

    @override
    def make_directory(self, path: Path) -> None:
        pass  # a name with a slash is enough

    @override
    def listdir(self, path: Path) -> list[str]:
        return sorted(each.name for each in self._in(path))

    @override
    def rename(self, source: Path, target: Path) -> None:
        self.check("rename", source)
        self._names[target] = self._names.pop(source)
        self._changed(target)
        self.meanwhile.pop("rename", _nothing)()

    @override
    def remove(self, path: Path) -> None:
        if self._names.pop(path, None) is not None:
            self._changed(path)

    @override
    def fsync_dir(self, path: Path) -> None:
        self.check("fsync_dir", path)
        self._history[path] = [self._in(path)]

    @override
    def replace(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(path.name + ".new")
        self.remove(temporary)
        file = self.open(temporary, create=True)
        file.pwrite(data, 0)
        file.fsync()
        self.rename(temporary, path)
        self.fsync_dir(path.parent)

    @override
    def boot_id(self) -> bytes:
        return b"boot" + self._boot.to_bytes(12, "big")

    @override
    def process_id(self) -> int:
        return 1

    @override
    def on_fork(self, owner: _T, callback: Callable[[_T], None]) -> None:
        pass  # nobody forks here


def _nothing() -> None:
    pass


def _survivors(inode: _Inode, chance: random.Random) -> bytearray:
    """What the disk has of a file after a loss of power."""
    now, old = inode.content(), inode.synced
    size = max(len(old), chance.choice((len(old), len(now))))
    found = bytearray(old.ljust(size, b"\0"))
    for start in range(0, size, _PAGE_BYTES):
        page = now[start : start + _PAGE_BYTES][: size - start]
        if page == found[start : start + len(page)] or inode.is_lost(start):
            continue
        match chance.randrange(4):
            case 0:
                pass
            case 1:  # torn: the first sectors only
                count = chance.randrange(1, _PAGE_BYTES // _SECTOR_BYTES) * _SECTOR_BYTES
                found[start : start + min(count, len(page))] = page[:count]
            case _:
                found[start : start + len(page)] = page
    return found


class _SimulatedFile(File):
    def __init__(self, disk: SimulatedDisk, path: Path, inode: _Inode) -> None:
        self._disk = disk
        self.path = path
        self.inode = inode
        self._open = True
        self._holds_lock = False

    def lock(self) -> bool:
        """Take the lock if nobody has it."""
        if self.inode.locked:
            return False
        self.inode.locked = self._holds_lock = True
        return True

    def _check(self, operation: str) -> None:
        if not self._open:
            raise StoreError(f"{self.path}: cannot {operation}: the file is closed")
        self._disk.check(operation, self.path)

    @override
    def size(self) -> int:
        return self.inode.size

    @override
    def pread(self, count: int, offset: int) -> bytes:
        self._check("pread")
        return self.inode.memory[offset : min(offset + count, self.inode.size)]

    @override
    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        torn = self._disk.is_armed("pwrite")
        whole = bytes(data)
        written = whole[: len(whole) // 2] if torn else whole
        assert offset + len(whole) <= _RESERVED_BYTES, "a file of the simulation is small"
        self.inode.write(written, offset)
        self._check("pwrite")

    @override
    def allocate(self, size: int) -> None:
        self._check("allocate")
        assert size <= _RESERVED_BYTES, "a file of the simulation is small"
        self.inode.size = max(self.inode.size, size)

    @override
    def map(self, offset: int, length: int) -> Region:
        self._check("map")
        return _SimulatedRegion(memoryview(self.inode.memory)[offset : offset + length])

    @override
    def fsync(self) -> None:
        if self._disk.is_armed("fsync"):
            self.inode.lose_sync()
        self._check("fsync")
        self.inode.sync()

    @override
    def close(self) -> None:
        self._open = False
        if self._holds_lock:
            self.inode.locked = self._holds_lock = False


class _SimulatedRegion(Region):
    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.writable: Writable = view

    @override
    def close(self) -> None:
        with contextlib.suppress(BufferError):  # others still hold slices of it
            self.view.release()

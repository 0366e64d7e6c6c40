"""A disk that shows files and changes none: how stores are inspected while a client uses them.

The store's own class opens the files on this disk, so there is one way to read a format. What that
class writes (a boot id, a seal, a torn tail that is cut off) goes to private copies of the pages.
No lock is taken, so neither the client nor a cron job notices.

A file that is written to meanwhile may be seen in the middle of a change. `inspecting` tries again
in that case.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from typing_extensions import override

from haclient_stores.disk.files import Disk, File, RealDisk, Region, Writable
from haclient_stores.errors import StoreError

_T = TypeVar("_T")


class ViewDisk(Disk):
    """Real files, as they are now; whatever is written stays in this object."""

    def __init__(self) -> None:
        self._real = RealDisk()
        self._changed: dict[Path, bytes | None] = {}  # names that are new or, for None, gone

    @override
    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        if path in self._changed or (create and not path.exists()):
            return _ViewFile(path, self._changed.setdefault(path, b"") or b"")
        file = self._real.open(path, writable=False)
        try:
            return _ViewFile(path, _mapped(path, file.size()))
        finally:
            file.close()

    @override
    def open_locked(self, path: Path) -> File:
        return self.open(path)

    @override
    def resolve(self, path: Path) -> Path:
        return self._real.resolve(path)

    @override
    def exists(self, path: Path) -> bool:
        return self._changed[path] is not None if path in self._changed else path.exists()

    @override
    def make_directory(self, path: Path) -> None:
        if not path.is_dir():
            raise StoreError(f"{path}: no such directory")

    @override
    def listdir(self, path: Path) -> list[str]:
        paths = {path / name for name in self._real.listdir(path)}
        paths |= {changed for changed in self._changed if changed.parent == path}
        return sorted(each.name for each in paths if self.exists(each))

    @override
    def rename(self, source: Path, target: Path) -> None:
        self._changed[target] = self._changed.get(source)
        self._changed[source] = None

    @override
    def remove(self, path: Path) -> None:
        self._changed[path] = None

    @override
    def fsync_dir(self, path: Path) -> None:
        """Nothing has changed."""

    @override
    def replace(self, path: Path, data: bytes) -> None:
        self._changed[path] = data

    @override
    def boot_id(self) -> bytes:
        return self._real.boot_id()

    @override
    def process_id(self) -> int:
        return self._real.process_id()

    @override
    def on_fork(self, owner: _T, callback: Callable[[_T], None]) -> None:
        """A copy may be shared with a child."""


def _mapped(path: Path, size: int) -> mmap.mmap | bytes:
    if not size:
        return b""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:  # mmap raises ValueError for a file that was cut
        raise StoreError(f"{path}: cannot read it: {error}") from error


class _ViewFile(File):
    def __init__(self, path: Path, content: mmap.mmap | bytes) -> None:
        self.path = path
        self._size = len(content)
        self._memory: mmap.mmap | bytearray = (
            content if isinstance(content, mmap.mmap) else bytearray(content)
        )

    @override
    def size(self) -> int:
        return self._size

    @override
    def pread(self, count: int, offset: int) -> bytes:
        return bytes(self._memory[offset : min(offset + count, self._size)])

    @override
    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        self.allocate(offset + len(data))
        if self._memory[offset : offset + len(data)] != data:  # each page written takes memory
            self._memory[offset : offset + len(data)] = bytes(data)

    @override
    def allocate(self, size: int) -> None:
        if size > self._size:  # rare: a file that was cut off
            self._memory = bytearray(self._memory[: self._size].ljust(size, b"\0"))
            self._size = size

    @override
    def map(self, offset: int, length: int) -> Region:
        return _ViewRegion(memoryview(self._memory)[offset : offset + length])

    @override
    def fsync(self) -> None:
        """Do nothing: changes stay in memory."""

    @override
    def close(self) -> None:
        """The mapping goes with the last view of it."""


class _ViewRegion(Region):
    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.writable: Writable = view

    @override
    def close(self) -> None:
        """The mapping goes with the last view of it."""

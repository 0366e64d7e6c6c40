"""A real disk that can be watched, lose its power, and belong to another boot or process."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from typing_extensions import override

from haclient_fake_server.journal.format import segment_name
from haclient_stores.disk.files import File, FileAccess, RealDisk, Region
from haclient_stores.errors import StoreFull

__all__ = ["FullDisk", "RefusingDisk", "WatchedDisk", "tiny_file_system"]


@contextlib.contextmanager
def tiny_file_system(path: Path, size: int) -> Generator[Path]:
    """A file system of so many bytes; the test is skipped where nobody may mount one."""
    path.mkdir()
    mount = shutil.which("mount")
    umount = shutil.which("umount")
    if mount is None or umount is None or os.geteuid() != 0:
        pytest.skip("not applicable: only root may mount a small file system")
    options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    if subprocess.run([mount, *options], check=False, capture_output=True).returncode != 0:
        pytest.skip("not applicable: this machine mounts nothing")
    try:
        yield path
    finally:
        subprocess.run([umount, "--lazy", str(path)], check=True)


class FullDisk(RealDisk):
    """A disk on which no second segment of a journal fits."""

    @override
    def rename(self, source: Path, target: Path) -> None:
        if target.name == segment_name(2):
            raise StoreFull(f"{target}: no room")
        super().rename(source, target)


class RefusingDisk(RealDisk):
    """A disk without room for what replaces a file, until it gets some."""

    def __init__(self) -> None:
        self.is_full = False

    @override
    def replace(self, path: Path, data: bytes) -> None:
        if self.is_full:
            raise StoreFull(f"{path}: no room")
        super().replace(path, data)


class WatchedDisk(RealDisk):
    """The file system, with a memory of what was synced.

    Attributes:
        synced: The content of each file when it was last synced.
        events: What was synced, created or made durable, in order: ("sync", "control") ...
        before: Called with each event before it happens; an error it raises is the disk's.
        boot: The boot id.
        process: The process id; None for the true one.
        open_files: How many files are open now.
        access: Who may use each file; None for what the file system says.
    """

    def __init__(self, *, boot: bytes = b"first boot......") -> None:
        self.synced: dict[Path, bytes] = {}
        self.events: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] | None = None
        self.boot = boot
        self.process: int | None = None
        self.open_files = 0
        self.access: FileAccess | None = None

    def happens(self, action: str, path: Path) -> None:
        """Note an event."""
        if self.before is not None:
            self.before(action, path.name)
        self.events.append((action, path.name))

    @override
    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        if create and not path.exists():
            self.happens("create", path)
        return _WatchedFile(self, super().open(path, create=create, writable=writable))

    @override
    def open_locked(self, path: Path) -> File:
        return _WatchedFile(self, super().open_locked(path))

    @override
    def create_new(self, path: Path, *, locked: bool = False) -> File:
        if not locked:
            self.happens("create", path)
        return _WatchedFile(self, super().create_new(path, locked=locked))

    @override
    def fsync_dir(self, path: Path) -> None:
        self.happens("sync names", path)
        super().fsync_dir(path)

    @override
    def boot_id(self) -> bytes:
        return self.boot

    @override
    def process_id(self) -> int:
        return super().process_id() if self.process is None else self.process

    def write_back(self, directory: Path) -> None:
        """The kernel has found time to write everything to the disk."""
        self.synced |= {path: path.read_bytes() for path in directory.iterdir()}

    def lose_power(self, source: Path, target: Path, *, pages: Callable[[str, int], bool]) -> None:
        """What is on the disk of `source` when power fails now, in another directory.

        A file is as it was when it was last synced (zeros if never), but each page of 4096 bytes
        for which `pages(name, index)` is true, which had been written back by chance.
        """
        target.mkdir()
        for path in source.iterdir():
            now = path.read_bytes()
            disk = bytearray(self.synced.get(path, b"").ljust(len(now), b"\0"))
            for index, start in enumerate(range(0, len(now), 4096)):
                if pages(path.name, index):
                    disk[start : start + 4096] = now[start : start + 4096]
            (target / path.name).write_bytes(disk)


class _WatchedFile(File):
    def __init__(self, disk: WatchedDisk, file: File) -> None:
        self._disk = disk
        self._file = file
        self._open = True
        self.path = file.path
        disk.open_files += 1

    @override
    def size(self) -> int:
        return self._file.size()

    @override
    def pread(self, count: int, offset: int) -> bytes:
        return self._file.pread(count, offset)

    @override
    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._file.pwrite(data, offset)

    @override
    def allocate(self, size: int) -> None:
        self._file.allocate(size)

    @override
    def map(self, offset: int, length: int) -> Region:
        return self._file.map(offset, length)

    @override
    def access(self) -> FileAccess | None:
        return self._disk.access or self._file.access()

    @override
    def set_access(self, access: FileAccess) -> None:
        self._file.set_access(access)

    @override
    def fsync(self) -> None:
        self._disk.happens("sync", self.path)
        self._file.fsync()
        with contextlib.suppress(FileNotFoundError):  # removed while it was synced
            self._disk.synced[self.path] = self.path.read_bytes()

    @override
    def close(self) -> None:
        self._disk.open_files -= self._open
        self._open = False
        self._file.close()

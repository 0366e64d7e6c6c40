"""The disk seam: the only module of the stores that talks to the operating system's files.

Stores and the broker's journal use only `Disk` and `File`; production passes `RealDisk`, the
simulator a disk that fails on purpose. Five rules are implemented here, once:

* **Errors are translated once.** No space (`ENOSPC`, `EDQUOT`, `EFBIG`) becomes `StoreFull`, every
  other `OSError` becomes `StoreError` with the path and what was tried.
* **Space is allocated, never assumed.** Writing into a mapped hole of a full disk kills the process
  with SIGBUS, so `File.allocate` reserves real blocks before anything is mapped.
* **A lock is on the file that the path names.** `flock` locks an inode, but another file may have
  been renamed to the path meanwhile. So the two are compared after locking, and the lock is taken
  again when they differ.
* **A replaced file is whole or absent.** `replace` syncs a temporary file and renames it.
* **A new file is nobody's but ours.** `create_new` makes it, in place of whatever has its name: the
  directory may belong to a user who plants a link there for root to follow.
* **A replaced file stays whose it was.** `File.access` and `File.set_access` carry owner and mode
  over to the file that takes the place of another.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
import weakref
from abc import abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol, TypeAlias, TypeVar

from typing_extensions import override

from haclient_stores.errors import StoreError, StoreFull, StoreLocked

PAGE_BYTES: Final = 4096  # reaches the disk as a whole or not at all, except for torn sectors

_NO_SPACE: Final = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space of this user",
    errno.EFBIG: "allow the process larger files (ulimit -f)",
}
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_ZEROS: Final = bytes(2**16)
_LOCK_ATTEMPTS: Final = 100  # each retry means that the file was renamed in between
_T = TypeVar("_T")
# The files that this process has locked, by device and inode.
_locked_here: Final = weakref.WeakValueDictionary[tuple[int, int], "_RealFile"]()
# This is global and not per disk, since a fork copies the whole process. An entry is removed with
# its store.
_fork_callbacks: Final = weakref.WeakKeyDictionary[object, "Callable[..., None]"]()


def _release_all_of_parent() -> None:
    for owner, callback in list(_fork_callbacks.items()):
        callback(owner)
    # The parent keeps its locks: one ends when the last descriptor of its open file is closed. A
    # child that kept a copy would hold the lock of a parent that was killed.
    for file in list(_locked_here.values()):
        file.close()


os.register_at_fork(after_in_child=_release_all_of_parent)

Writable: TypeAlias = mmap.mmap | memoryview  # slices of it may be assigned


class Region(Protocol):
    """Writable memory: a mapped file, or anonymous memory of the process.

    Attributes:
        view: All bytes of the region; valid until `close`.
        writable: The same bytes, in the form that is fastest to write.
    """

    view: memoryview
    writable: Writable

    @abstractmethod
    def close(self) -> None:
        """Release the memory; views that are still referenced elsewhere stay valid."""


@dataclass(frozen=True, slots=True)
class FileAccess:
    """Who may use a file: its owner, its group and its permission bits."""

    user: int
    group: int
    mode: int


class File(Protocol):
    """One open file. Offsets and sizes are bytes.

    Attributes:
        path: The name under which the file was opened.
    """

    path: Path

    @abstractmethod
    def size(self) -> int:
        """The length of the file."""

    @abstractmethod
    def pread(self, count: int, offset: int) -> bytes:
        """Up to `count` bytes from `offset`; fewer only at the end of the file."""

    @abstractmethod
    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write all of `data`.

        Raises:
            StoreFull: The disk has no room.
        """

    @abstractmethod
    def allocate(self, size: int) -> None:
        """Give the first `size` bytes real blocks; never shrinks, new bytes are zero.

        Raises:
            StoreFull: The disk has no room.
        """

    @abstractmethod
    def map(self, offset: int, length: int) -> Region:
        """Map allocated bytes for reading and writing; `offset` is a multiple of the page size."""

    def access(self) -> FileAccess | None:
        """Who may use the file; None on a disk that knows no users."""
        return None

    def set_access(self, access: FileAccess) -> None:  # noqa: ARG002  # for disks that know users
        """Change who may use the file.

        Args:
            access: What `access` has returned of another file.

        Raises:
            StoreError: This process may not give the file to that user, or to that group.
        """
        return

    @abstractmethod
    def fsync(self) -> None:
        """Return when everything written so far would survive a loss of power."""

    @abstractmethod
    def close(self) -> None:
        """Close; a lock that was taken with the file ends."""


class Disk(Protocol):
    """The file system operations that stores need."""

    @abstractmethod
    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        """Open a file, creating it empty when asked to.

        Raises:
            StoreError: It does not exist, or may not be opened.
        """

    @abstractmethod
    def open_locked(self, path: Path) -> File:
        """Open or create a file and hold its lock until it is closed; never waits.

        Raises:
            StoreLocked: Somebody else holds it.
        """

    def create_new(self, path: Path, *, locked: bool = False) -> File:
        """A new, empty file in place of whatever has this name: for every temporary file.

        A link is removed, never followed.

        Args:
            path: Its name.
            locked: Hold its lock until it is closed.

        Raises:
            StoreError: It cannot be made, or somebody has made a file of that name meanwhile.
        """
        self.remove(path)
        return self.open_locked(path) if locked else self.open(path, create=True)

    def lock_directory(self, path: Path, name: str) -> list[File]:
        """Lock a directory, until what is returned is closed; never waits.

        Where possible that is also a lock on the directory itself: a file in it can be removed and
        made again beside its holder.

        Args:
            path: The directory.
            name: The file in it that carries the lock.

        Raises:
            StoreLocked: Somebody else holds it.
        """
        return [self.open_locked(path / name)]

    def resolve(self, path: Path) -> Path:
        """The absolute path of a file, through all symbolic links; it need not exist.

        For files that are replaced, or that have others beside them: a rename would replace the
        link and leave the file, and a relative path means another file once the process has changed
        its directory.

        Raises:
            StoreError: The working directory is gone.
        """
        return path

    @abstractmethod
    def exists(self, path: Path) -> bool:
        """Whether the path names anything."""

    @abstractmethod
    def make_directory(self, path: Path) -> None:
        """Create a directory and its parents where they are missing, and have them on disk."""

    @abstractmethod
    def listdir(self, path: Path) -> list[str]:
        """The names in a directory, sorted."""

    @abstractmethod
    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, atomically replacing what was there."""

    @abstractmethod
    def remove(self, path: Path) -> None:
        """Remove a file; nothing happens when there is none."""

    @abstractmethod
    def fsync_dir(self, path: Path) -> None:
        """Return when creations, renames and removals in this directory would survive."""

    @abstractmethod
    def replace(self, path: Path, data: bytes) -> None:
        """Make `data` the content of a file: afterwards it is old or new, never a mixture.

        Owner and mode of the old one are kept where this process may set them.
        """

    @abstractmethod
    def boot_id(self) -> bytes:
        """16 bytes that change when the machine starts; zeros where that is unknown."""

    @abstractmethod
    def process_id(self) -> int:
        """The process that asks, to notice a fork."""

    @abstractmethod
    def on_fork(self, owner: _T, callback: Callable[[_T], None]) -> None:
        """Call `callback(owner)` in every forked child, for as long as the owner lives.

        A mapping is shared with the child, which could write into its parent's file.
        """


@contextlib.contextmanager
def _translated(path: Path, action: str) -> Generator[None]:
    try:
        yield
    except ValueError as error:  # the file is closed, or shorter than what is mapped
        raise StoreError(f"{path}: cannot {action}: {error}") from error
    except OSError as error:
        text = f"{path}: cannot {action}: {error.strerror or error}"
        if error.errno in _NO_SPACE:
            raise StoreFull(f"{text}; {_NO_SPACE[error.errno]} and try again") from error
        raise StoreError(text) from error


class MappedRegion(Region):
    """A region over an `mmap`."""

    __slots__ = ("_map", "view", "writable")

    def __init__(self, mapping: mmap.mmap) -> None:
        self._map = mapping
        self.writable: Writable = mapping
        self.view = memoryview(mapping)

    @override
    def close(self) -> None:
        # Slices that a caller holds (a send in progress) keep the mapping alive until they die.
        with contextlib.suppress(BufferError):
            self.view.release()
            self._map.close()


def open_new(path: Path) -> int:
    """The descriptor of a new file: no link, and not one that somebody has made before.

    Raises:
        StoreError: It cannot be made, or the name is taken.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with _translated(path, "create"):
        return os.open(path, flags, 0o666)


def anonymous_region(size: int, *, touched: bool = True) -> Region:
    """Memory of the process alone.

    Args:
        size: How much, in bytes.
        touched: Have the kernel map all pages now, so that the first writes are not slower.

    Raises:
        StoreFull: The machine does not have so much.
    """
    populate = getattr(mmap, "MAP_POPULATE", 0) if touched else 0
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | populate
    try:
        return MappedRegion(mmap.mmap(-1, size, flags=flags))
    except (OSError, OverflowError) as error:
        raise StoreFull(f"this machine has no memory for {size} bytes: {error}") from error


class _RealFile(File):
    __slots__ = ("_descriptor", "_locked", "_writable", "path")

    def __init__(self, path: Path, descriptor: int, *, writable: bool) -> None:
        self.path = path
        self._descriptor = descriptor
        self._writable = writable
        self._locked: tuple[int, int] | None = None  # the inode, while this file holds its lock

    @override
    def size(self) -> int:
        with _translated(self.path, "read its size"):
            return os.fstat(self._descriptor).st_size

    @override
    def pread(self, count: int, offset: int) -> bytes:
        parts: list[bytes] = []
        with _translated(self.path, "read"):
            while count > 0:
                part = os.pread(self._descriptor, count, offset)
                if not part:
                    break
                parts.append(part)
                count -= len(part)
                offset += len(part)
        return b"".join(parts)

    @override
    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        rest = memoryview(data)
        with _translated(self.path, "write"):
            while rest:
                written = os.pwrite(self._descriptor, rest, offset)
                rest = rest[written:]
                offset += written

    @override
    def allocate(self, size: int) -> None:
        with _translated(self.path, f"reserve {size} bytes"):
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._descriptor, 0, size)
                return
        self._write_zeros(size)  # pragma: no cover  systems without posix_fallocate

    def _write_zeros(self, size: int) -> None:
        offset = self.size()
        while offset < size:
            chunk = _ZEROS[: size - offset]
            self.pwrite(chunk, offset)
            offset += len(chunk)

    @override
    def map(self, offset: int, length: int) -> Region:
        access = mmap.PROT_READ | (mmap.PROT_WRITE if self._writable else 0)
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        with _translated(self.path, f"map {length} bytes at {offset}"):
            descriptor = self._descriptor if self._locked is None else self._opened_again()
            try:
                return MappedRegion(
                    mmap.mmap(descriptor, length, flags=flags, prot=access, offset=offset)
                )
            finally:
                if descriptor != self._descriptor:
                    os.close(descriptor)

    def _opened_again(self) -> int:
        """Another open file of the same inode: a mapping in a forked child must not hold the lock.

        Its name would not do: `prune` renames the file.
        """
        flags = (os.O_RDWR if self._writable else os.O_RDONLY) | os.O_CLOEXEC
        try:
            return os.open(f"/proc/self/fd/{self._descriptor}", flags)
        except OSError:  # a system without it
            return os.dup(self._descriptor)

    @override
    def access(self) -> FileAccess:
        with _translated(self.path, "read its owner"):
            status = os.fstat(self._descriptor)
        return FileAccess(status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode))

    @override
    def set_access(self, access: FileAccess) -> None:
        own = self.access()
        if (own.user, own.group) != (access.user, access.group):
            action = f"give it to the user {access.user} and the group {access.group}"
            with _translated(self.path, action):
                os.fchown(self._descriptor, access.user, access.group)
        with _translated(self.path, f"set its mode to {access.mode:o}"):  # chown may clear bits
            os.fchmod(self._descriptor, access.mode)

    @override
    def fsync(self) -> None:
        with _translated(self.path, "sync"):
            os.fsync(self._descriptor)

    @override
    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            if self._locked is not None:
                _locked_here.pop(self._locked, None)
            with _translated(self.path, "close"):
                os.close(descriptor)

    def __del__(self) -> None:
        """Close a file that was dropped unclosed: its lock could never be released otherwise."""
        with contextlib.suppress(StoreError):
            self.close()

    def lock(self) -> bool:
        """Take the lock unless it is held; whether that succeeded."""
        with _translated(self.path, "lock"):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # held, perhaps by another descriptor of this process
                return False
            self._locked = self._inode()
        _locked_here[self._locked] = self
        return True

    def is_locked_here(self) -> bool:
        """Whether it is this process that holds the lock of the file, by another descriptor."""
        with _translated(self.path, "read its inode"):
            return self._inode() in _locked_here

    def _inode(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_dev, status.st_ino

    def is_what_the_path_names(self) -> bool:
        """Whether the path still leads to this inode."""
        try:
            named = self.path.stat()
        except FileNotFoundError:  # removed or renamed by another process
            return False
        return self._inode() == (named.st_dev, named.st_ino)


def _locked(file: _RealFile) -> _RealFile:
    """A file of which this process holds the lock from now on.

    Raises:
        StoreLocked: Somebody else holds it; the file is closed.
    """
    if not file.lock():
        here = file.is_locked_here()
        file.close()
        who = "open already in this process" if here else "in use by another process"
        raise StoreLocked(file.path, "", f"{who}; close that one first", in_this_process=here)
    return file


class RealDisk(Disk):
    """The file system of this machine."""

    __slots__ = ()

    @override
    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        return self._open(path, create=create, writable=writable)

    @staticmethod
    def _open(path: Path, *, create: bool, writable: bool) -> _RealFile:
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC
        if create:
            flags |= os.O_CREAT
        with _translated(path, "open"):
            return _RealFile(path, os.open(path, flags, 0o666), writable=writable)

    @override
    def open_locked(self, path: Path) -> File:
        for _ in range(_LOCK_ATTEMPTS):
            file = _locked(self._open(path, create=True, writable=True))
            with _translated(path, "compare with its name"):
                if file.is_what_the_path_names():
                    return file
            file.close()  # renamed between open and lock: the path names another inode now
        raise StoreLocked(path, "", "is being replaced all the time by another process")

    @override
    def create_new(self, path: Path, *, locked: bool = False) -> File:
        self.remove(path)
        file = _RealFile(path, open_new(path), writable=True)
        return _locked(file) if locked else file

    @override
    def lock_directory(self, path: Path, name: str) -> list[File]:
        held = super().lock_directory(path, name)
        try:
            with _translated(path, "open the directory"):
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            directory = _RealFile(path, descriptor, writable=False)
            held.append(directory)
            _locked(directory)
        except StoreLocked:
            held[0].close()
            raise
        except StoreError:  # NFS, which locks only what is open for writing
            pass
        return held

    @override
    def resolve(self, path: Path) -> Path:
        with _translated(path, "resolve"):
            return Path(os.path.realpath(path))

    @override
    def exists(self, path: Path) -> bool:
        with _translated(path, "check whether it exists"):
            return path.exists()

    @override
    def make_directory(self, path: Path) -> None:
        with _translated(path, "create the directory"):
            if path.exists() and not path.is_dir():
                raise StoreError(f"{path}: is a file, where a directory is wanted")
            missing = [each for each in (path, *path.parents) if not each.exists()]
            path.mkdir(parents=True, exist_ok=True)
        for each in missing:  # else a power loss could take the store's name, and so the store
            self.fsync_dir(each.parent)

    @override
    def listdir(self, path: Path) -> list[str]:
        with _translated(path, "list"):
            return sorted(entry.name for entry in path.iterdir())

    @override
    def rename(self, source: Path, target: Path) -> None:
        with _translated(source, f"rename to {target}"):
            source.replace(target)

    @override
    def remove(self, path: Path) -> None:
        with _translated(path, "remove"):
            path.unlink(missing_ok=True)

    @override
    def fsync_dir(self, path: Path) -> None:
        with _translated(path, "sync the directory"):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    @override
    def replace(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(path.name + ".new")
        self.remove(temporary)
        file = _RealFile(temporary, open_new(temporary), writable=True)
        try:
            self._keep_access(path, file)
            file.pwrite(data, 0)
            file.fsync()
        finally:
            file.close()
        self.rename(temporary, path)
        self.fsync_dir(path.parent)

    def _keep_access(self, path: Path, file: _RealFile) -> None:
        try:
            old = self._open(path, create=False, writable=False)
        except StoreError:  # there is none yet
            return
        with contextlib.closing(old):
            wanted = old.access()
        try:
            file.set_access(wanted)
        except StoreError:  # it belongs to another user
            file.set_access(replace(file.access(), mode=wanted.mode))

    @override
    def boot_id(self) -> bytes:
        try:
            return bytes.fromhex(_BOOT_ID.read_text("ascii").strip().replace("-", ""))
        except (OSError, ValueError):  # another system, which has no such file
            return bytes(16)

    @override
    def process_id(self) -> int:
        return os.getpid()

    @override
    def on_fork(self, owner: _T, callback: Callable[[_T], None]) -> None:
        _fork_callbacks[owner] = callback

"""Read and prune store files without a client, for the command line and cron jobs.

`viewed` changes and locks nothing, so a client may have the file in use. It shows the state at one
moment; a file that changed while it was read is read again. `prune` locks the file, so no client
may have it in use.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias, cast

from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.record_file import LOG_MAGIC
from haclient_stores.bookmark_stores.ring import RING_MAGIC, RingBookmarkStore
from haclient_stores.disk.ownership import check_path
from haclient_stores.disk.view_disk import ViewDisk
from haclient_stores.errors import StoreCorrupt, StoreError, UsageError
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.store_directory import PARKED

__all__ = [
    "BookmarkFile",
    "Pruned",
    "StoreFile",
    "kind_of",
    "parked_files",
    "prune",
    "size_of",
    "viewed",
]

_ATTEMPTS: Final = 5
_MAGIC_BYTES: Final = 8

BookmarkFile: TypeAlias = LoggedBookmarkStore | RingBookmarkStore
StoreFile: TypeAlias = BookmarkFile | FilePublishStore


def kind_of(path: Path) -> type[StoreFile] | None:
    """Which store a file, or a directory, belongs to.

    Args:
        path: The file, or the directory of a publish store.

    Returns:
        The class of the store; None for a file that has no header, as a process leaves it that is
        killed while it makes a bookmark store: either kind takes it for a new file.

    Raises:
        StoreError: There is no such file, or it is not a store.
    """
    if path.is_dir() and (path / "control").is_file():
        return FilePublishStore
    magic = b""
    try:
        if not path.is_dir():
            with path.open("rb") as file:
                magic = file.read(_MAGIC_BYTES)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    kinds: dict[bytes, type[StoreFile]] = {
        LOG_MAGIC: LoggedBookmarkStore,
        RING_MAGIC: RingBookmarkStore,
    }
    if path.is_file() and not any(magic):  # the magic is written last
        return None
    if magic not in kinds:
        raise StoreError(f"{path}: neither a bookmark store nor the directory of a publish store")
    return kinds[magic]


def parked_files(path: Path) -> dict[int, Path]:
    """The files of the publishes that no server took, by sequence, in ascending order.

    Args:
        path: The directory of the publish store; they are beside it.

    Raises:
        OSError: The directory that it is in cannot be read.
    """
    store = path.resolve()
    begin = f"{store.name}{PARKED}"
    found = {
        file.name.removeprefix(begin): file
        for file in store.parent.iterdir()
        if file.name.startswith(begin)
    }
    return {int(number): found[number] for number in sorted(filter(str.isdecimal, found), key=int)}


def size_of(path: Path) -> int:
    """The size of a file, or of all files in a directory, in bytes.

    Args:
        path: The file or directory.

    Raises:
        OSError: It cannot be read.
    """
    return sum(file.stat().st_size for file in (path.iterdir() if path.is_dir() else [path]))


@contextlib.contextmanager
def viewed(path: Path, on_progress: Callable[[int], object] | None = None) -> Generator[StoreFile]:
    """A copy of a store as it is now; what is done to it changes no file.

    A bookmark file without a header is an empty `LoggedBookmarkStore`.

    Args:
        path: The file, or the directory of a publish store.
        on_progress: Called with the bytes read so far of a bookmark log.

    Raises:
        StoreCorrupt: What was sealed does not match its checksum.
        StoreError: There is no store at this path.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        kind = kind_of(path) or LoggedBookmarkStore  # a header may be written meanwhile
        try:
            store = _opened(kind, path, on_progress)
        except StoreCorrupt:  # or only caught in the middle of a change
            if attempt == _ATTEMPTS:
                raise
        else:
            with contextlib.closing(store):
                yield store
            return


def _opened(
    kind: type[StoreFile], path: Path, on_progress: Callable[[int], object] | None
) -> StoreFile:
    if kind is LoggedBookmarkStore:
        return LoggedBookmarkStore(path, on_progress=on_progress, disk=ViewDisk())
    return kind(path, disk=ViewDisk())


@dataclass(frozen=True, slots=True)
class Pruned:
    """The result of pruning one file.

    Attributes:
        path: The file.
        before_bytes: Its size before.
        after_bytes: Its size now.
    """

    path: Path
    before_bytes: int
    after_bytes: int


def prune(
    paths: Iterable[str | Path], *, on_progress: Callable[[int], object] | None = None
) -> list[Pruned]:
    """Prune bookmark logs, one after the other.

    Stores that never grow, and files without a header, are left as they are.

    Args:
        paths: The files.
        on_progress: Called with the bytes read so far of the file that is pruned.

    Returns:
        The sizes of each file before and after, in the order of `paths`.

    Raises:
        StoreLocked: A client has the file in use; those before it are pruned.
        StoreError: There is no store at a path.
        UsageError: One of these is no path, or they are one path; nothing is pruned.
    """
    done: list[Pruned] = []
    for path in _checked(paths):
        before_bytes = size_of(path) if path.exists() else 0
        if kind_of(path) is LoggedBookmarkStore:
            store = LoggedBookmarkStore(path, on_progress=on_progress)
            try:
                store.prune()
                store.answer_prune()  # those who ask, so that `close` does not prune again
            finally:
                store.close()
        done.append(Pruned(path, before_bytes, size_of(path)))
    return done


def _checked(paths: object) -> list[Path]:
    """All of them as paths; one alone is refused, for a text would be a path for each letter."""
    if isinstance(paths, (str, bytes)) or not isinstance(paths, Iterable):
        raise UsageError(f"paths is a list of files, not {paths!r}")
    given = cast("Iterable[str | Path]", paths)
    return [check_path(path, "the file of a store") for path in given]

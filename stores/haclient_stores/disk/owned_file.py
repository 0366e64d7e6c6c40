"""Files that belong to one process and to one client: the errors for everybody else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from haclient_stores import framing
from haclient_stores.disk.files import PAGE_BYTES
from haclient_stores.errors import StoreLocked, UsageError

if TYPE_CHECKING:
    from haclient_stores.disk.files import Disk, File

__all__ = ["check_path", "check_process", "not_the_owner", "open_owned"]


def check_path(path: str | Path, what: str) -> Path:
    """The path of a store.

    Raises:
        UsageError: It is none, none that a file may have, or empty, which would be the working
            directory.
    """
    try:
        found = Path(path)
    except TypeError:
        found = None
    if found is None or path == "" or "\0" in str(found):
        raise UsageError(f"path is {what}, not {path!r}")
    return found


def open_owned(disk: Disk, path: Path) -> File:
    """Open or create a file and lock it.

    Raises:
        StoreLocked: Another process holds it; the error names the client that it belongs to.
    """
    try:
        return disk.open_locked(path)
    except StoreLocked as error:
        reader = disk.open(path, writable=False)
        page = reader.pread(PAGE_BYTES, 0).ljust(PAGE_BYTES, b"\0")
        reader.close()
        owner = framing.read_owner(page, path=str(path))
        raise StoreLocked(
            path,
            owner,
            f"in use by another process as client {owner!r}: close that one first, or give "
            "each process a store of its own",
        ) from error


def not_the_owner(path: Path, owner: str, client_name: str) -> StoreLocked:
    """The error for a client of another name."""
    return StoreLocked(
        path,
        owner,
        f"belongs to the client {owner!r}, not to {client_name!r}: "
        "use a store of its own for each client name",
    )


def check_process(path: Path, opened_by: int, process: int) -> None:
    """Refuse a fork: it shares the lock and the mapping of its parent.

    Raises:
        UsageError: This is another process than the one that has opened the file.
    """
    if process != opened_by:
        raise UsageError(
            f"{path}: opened by process {opened_by} and used by its fork {process}: "
            "start workers with spawn and let each open a store of its own"
        )

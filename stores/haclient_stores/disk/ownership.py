"""Who may use a store on disk: one process and one client, until it is closed.

A store has one file that carries its lock and, in its `header_page`, the client name that
it belongs to. The lock shows which process has the store open now; the name shows whose messages or
bookmarks are in it, even while no process has it open. `threads` says which thread may call it.
"""

from __future__ import annotations

from pathlib import Path

from haclient_stores import header_page
from haclient_stores.checks import check_text
from haclient_stores.disk.files import PAGE_BYTES, Disk, File
from haclient_stores.errors import StoreLocked, UsageError


def check_path(path: str | Path, what: str) -> Path:
    """The path of a store.

    Args:
        path: What the caller gave.
        what: What it has to be, for the error.

    Raises:
        UsageError: It is not a path, not one that a file may have, or empty, which would be the
            working directory.
    """
    try:
        found = Path(path)
    except TypeError:  # neither text nor a path
        found = None
    if found is None or path == "" or "\0" in str(found):
        raise UsageError(f"path is {what}, not {path!r}")
    return found


def check_client_name(store: str | Path, owner: str, client_name: str) -> None:
    """Refuse a client that a store does not belong to.

    Args:
        store: The store, for the error.
        owner: The name that the store belongs to; empty before the first `open_for`.
        client_name: The client that wants to use it.

    Raises:
        StoreLocked: The store belongs to a client of another name.
        UsageError: `client_name` is no name.
    """
    check_text("client_name", client_name)
    if owner not in {"", client_name}:
        raise StoreLocked(
            store,
            owner,
            f"belongs to the client {owner!r}, not to {client_name!r}: sequence numbers and "
            "bookmarks are those of one client name, so use a store of its own for each",
        )


class Ownership:
    """The locked file of an open store.

    Args:
        disk: Where the file is.
        path: The file that carries the lock; created when it is missing.
        store: The path that errors name: the store's directory, or `path` for None.

    Attributes:
        file: The locked file. `replace_file` exchanges it.
        client_name: The client that the store belongs to; empty before the first `open_for`. The
            store sets it from the header when it is opened (`header_page.read_owner`).
        is_closed: `close` was called.

    Raises:
        StoreLocked: The store is open already, in this process or in another one. The error names
            the client that it belongs to.
    """

    __slots__ = ("_disk", "_process", "_store", "client_name", "file", "is_closed")

    def __init__(self, disk: Disk, path: Path, *, store: Path | None = None) -> None:
        self._disk = disk
        self._store = store or path
        self._process = disk.process_id()
        self.client_name = ""
        self.is_closed = False
        try:
            self.file = disk.open_locked(path)
        except StoreLocked as error:  # by another process, or by another store of this one
            raise self._explained(error, path) from error

    def _explained(self, error: StoreLocked, path: Path) -> StoreLocked:
        reader = self._disk.open(path, writable=False)
        try:
            page = reader.pread(PAGE_BYTES, 0).ljust(PAGE_BYTES, b"\0")
        finally:
            reader.close()
        owner = header_page.read_owner(page, path=str(path))
        if error.in_this_process:
            what = (
                f"open already in this process, as client {owner!r}: close that store first, or "
                "use the one that is open"
            )
        else:
            what = (
                f"in use by another process as client {owner!r}: close that one first, or give "
                "each process a store of its own"
            )
        return StoreLocked(self._store, owner, what, in_this_process=error.in_this_process)

    def check_usable(self) -> None:
        """Refuse a closed store, and one whose process has forked.

        A fork shares the lock and the mappings of its parent, so both would write.

        Raises:
            UsageError: The store is closed, or this is a fork of the process that opened it.
        """
        if self.is_closed:
            raise UsageError(f"{self._store}: the store is closed; open it again")
        process = self._disk.process_id()
        if process != self._process:
            raise UsageError(
                f"{self._store}: opened by process {self._process} and used by its fork "
                f"{process}: start workers with spawn and let each open a store of its own"
            )

    def check_client(self, client_name: str) -> bool:
        """Whether the name of the client still has to be written to the header.

        Args:
            client_name: The client that wants to use the store.

        Raises:
            StoreLocked: The store belongs to a client of another name.
            UsageError: It is not a name, or the store cannot be used; see `check_usable`.
        """
        self.check_usable()
        check_client_name(self._store, self.client_name, client_name)
        return not self.client_name

    def replace_file(self, file: File) -> File:
        """Go on with another locked file, which has taken over the name of this one.

        Args:
            file: The new file; it holds a lock of its own already.

        Returns:
            The old file, which still holds its lock: close it.
        """
        old, self.file = self.file, file
        return old

    def close(self) -> None:
        """Close the file and release the lock; twice is the same as once."""
        self.is_closed = True
        self.file.close()

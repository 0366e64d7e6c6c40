"""A bookmark store in a file that belongs to one process and to one client (BS21).

What the logged and the ring store have in common beside their trackers: where the file is, who may
use it, and for how long.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from typing_extensions import override

from haclient_stores.bookmark_stores.tracked_store import Tracked, TrackedBookmarkStore
from haclient_stores.checks import check_has, check_text
from haclient_stores.disk.durable_file import check_durability
from haclient_stores.disk.files import Disk, RealDisk
from haclient_stores.disk.owned_file import check_path, check_process, not_the_owner, open_owned
from haclient_stores.errors import UsageError

if TYPE_CHECKING:
    from haclient_stores.adapters.recovery_point import RecoveryPointAdapter
    from haclient_stores.bookmark_stores.watching import UndiscardedWatch
    from haclient_stores.disk.durable_file import Durability

__all__ = ["BookmarkFileStore"]

_Handle = TypeVar("_Handle", bound=Tracked)


class BookmarkFileStore(TrackedBookmarkStore[_Handle]):
    """A bookmark store that has opened and locked its file; whoever inherits reads it.

    Args:
        path: The file; created when it is missing.
        adapter: Keeps a copy of the recovery points somewhere else (RP2).
        watch: Warns of messages that stay undiscarded (BS5).
        durability: What the client waits for, as in `FilePublishStore`.
        disk: Where files are; another one in simulations.

    Raises:
        StoreLocked: Another process has the store open.
        UsageError: One of these is something else.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        adapter: RecoveryPointAdapter | None,
        watch: UndiscardedWatch | None,
        durability: Durability,
        disk: Disk | None,
    ) -> None:
        check_durability(durability)
        if disk is not None:
            check_has("disk", disk, "a Disk", "open_locked")
        super().__init__(adapter, watch)
        self.durability: Durability = durability
        self._path = check_path(path, "the file of the store")
        self._disk = disk or RealDisk()
        self._process = self._disk.process_id()
        self._closed = False
        self._file = open_owned(self._disk, self._path)

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @override
    def open_for(self, client_name: str) -> None:
        self._check_usable()
        check_text("client_name", client_name)
        if self._client_name == client_name:
            return
        if self._client_name:
            raise not_the_owner(self._path, self._client_name, client_name)
        self._write_owner(client_name)
        self._client_name = client_name

    @abstractmethod
    def _write_owner(self, client_name: str) -> None:
        """Note in the header whose file it is from now on."""

    def _check_usable(self) -> None:
        if self._closed:
            raise UsageError(f"{self._path}: the store is closed; open it again")
        check_process(self._path, self._process, self._disk.process_id())

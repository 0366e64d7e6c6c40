"""A publish store in a directory (PS11), which survives a killed process and a stopped machine.

Formats: `stores/README.md`. In short: `control` holds the lock, the owner's name and three numbers,
`NNNNNNNN.seg` are the segments (`file_space`), `notes.json` holds small texts of the application.

Durability says what survives without the client waiting for more:

* `process`: everything that `store` returned for survives a killed process. A machine that loses
  power may lose what was not written back yet.
* `group`: the client calls `sync` every few milliseconds in a thread; `publish_flush` can wait.
* `fsync`: the client calls `sync` before a publish is reported as done.

The store itself never waits: `needs_sync` and `synced_sequence` tell the client, `sync` does it.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from typing_extensions import override

from haclient_stores import framing
from haclient_stores.errors import StoreCorrupt, StoreLocked, UsageError
from haclient_stores.file_space import FileSpace
from haclient_stores.files import Disk, RealDisk
from haclient_stores.publish_log import PublishLog, owned_text
from haclient_stores.segment import PAGE_BYTES, Limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from haclient_stores.files import File

__all__ = [
    "CONTROL_MAGIC",
    "DEFAULT_FILE_BYTES",
    "DEFAULT_FILE_SEGMENT_BYTES",
    "Durability",
    "FilePublishStore",
]

CONTROL_MAGIC: Final = b"HAPUBCTL"
DEFAULT_FILE_BYTES: Final = 4 * 2**30
DEFAULT_FILE_SEGMENT_BYTES: Final = 4 * 2**20

Durability = Literal["process", "group", "fsync"]
_DURABILITIES: Final = ("process", "group", "fsync")


class FilePublishStore(PublishLog):
    """Keeps unpersisted messages in files (PS1-PS12, PS14, PS20-PS22).

    Args:
        path: The store's directory; created when it is missing.
        segment_bytes: Files are made of this size and recycled.
        max_bytes: More than this is never taken: `store` then raises `StoreFull`.
        durability: What the client waits for; see the module.
        error_on_publish_gap: Whether `reconcile` raises `PublishGap` or only records it (PS9).
        resize_handler: Asked with the new size in bytes before the store grows; False refuses.
        disk: Where files are; another one in simulations.

    Attributes:
        durability: What the client waits for.

    Raises:
        StoreLocked: Another process has the store open.
        StoreCorrupt: A file does not match its checksums.
    """

    def __init__(  # noqa: PLR0913  keyword-only settings, each with a default
        self,
        path: str | Path,
        *,
        segment_bytes: int = DEFAULT_FILE_SEGMENT_BYTES,
        max_bytes: int = DEFAULT_FILE_BYTES,
        durability: Durability = "process",
        error_on_publish_gap: bool = False,
        resize_handler: Callable[[int], bool] | None = None,
        disk: Disk | None = None,
    ) -> None:
        if durability not in _DURABILITIES:
            raise UsageError(f"durability is one of {', '.join(_DURABILITIES)}, not {durability!r}")
        limits = Limits(segment_bytes, max_bytes, resize_handler)
        self.durability: Durability = durability
        self._path = Path(path)
        self._disk = disk or RealDisk()
        self._disk.make_directory(self._path)
        control = self._lock_control()
        self._files = FileSpace(self._disk, control, segment_bytes=segment_bytes)
        try:
            self._client_name = framing.read_owner(self._files.control, path=str(control.path))
            self._notes = self._read_notes()
            segments = self._files.recover()
        except BaseException:
            self._files.close([])  # a mapping holds the lock as well as the descriptor
            raise
        window = self._files.window(segments)
        super().__init__(
            self._files, window, limits=limits, error_on_publish_gap=error_on_publish_gap
        )
        self._closed = False
        # A killed process may have left what it stored in the page cache only.
        self._synced_sequence = window.lowest - 1 if window.count else window.last_sequence
        self._sync_lock = threading.Lock()
        self._syncs_begun = 0
        self._syncs_done = 0
        self.restore(segments)
        self._disk.on_fork(self, FilePublishStore.forked)

    def _lock_control(self) -> File:
        path = self._path / "control"
        try:
            file = self._disk.open_locked(path)
        except StoreLocked as error:
            reader = self._disk.open(path, writable=False)
            owner = framing.read_owner(
                reader.pread(PAGE_BYTES, 0).ljust(PAGE_BYTES, b"\0"), path=str(path)
            )
            reader.close()
            raise StoreLocked(
                self._path,
                owner,
                f"in use by another process as client {owner!r}: close that one first, or give "
                "each process a store of its own",
            ) from error
        try:
            self._check_control(file)
        except BaseException:
            file.close()
            raise
        return file

    def _check_control(self, file: File) -> None:
        size = file.size()
        page = file.pread(PAGE_BYTES, 0)
        if framing.read_identity(page, magic=CONTROL_MAGIC, path=str(file.path)) is None:
            self._make_control(file)
        elif size < PAGE_BYTES:
            raise StoreCorrupt(file.path, size, "the file ends within its header")

    def _make_control(self, file: File) -> None:
        file.allocate(PAGE_BYTES)
        region = file.map(0, PAGE_BYTES)
        identity = framing.Identity(CONTROL_MAGIC, PAGE_BYTES, PAGE_BYTES)
        framing.write_identity(region.view, identity, self._disk.boot_id())
        region.close()
        file.fsync()
        self._disk.fsync_dir(self._path)

    # -- who ----------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """The store's directory."""
        return self._path

    @property
    @override
    def client_name(self) -> str:
        return self._client_name

    @override
    def open_for(self, client_name: str) -> None:
        self._files.check_usable()
        if self._client_name == client_name:
            return
        if self._client_name:
            raise StoreLocked(
                self._path, self._client_name, owned_text(self._client_name, client_name)
            )
        self._files.bind(client_name)
        self._client_name = client_name

    # -- durability ---------------------------------------------------------------------------

    @property
    def synced_sequence(self) -> int:
        """Everything up to here survives a loss of power (PS20)."""
        return self._synced_sequence

    @property
    def needs_sync(self) -> bool:
        """Whether something was stored since the last `sync` began."""
        return self._synced_sequence < self._window.last_sequence

    @override
    def sync(self) -> None:
        """Write everything stored so far through to the disk; may run in any number of threads.

        Raises:
            StoreError: The disk reports an error; nothing may be assumed of what is not synced.
        """
        self._files.check_usable()
        begun = self._syncs_begun
        with self._sync_lock:
            if self._syncs_done > begun:  # somebody's sync began after this call, and is done
                return
            self._syncs_begun += 1
            sequence = self.checkpoint()
            self._files.sync()
            self._synced_sequence = max(self._synced_sequence, sequence)
            self._syncs_done = self._syncs_begun

    @override
    def close(self) -> None:
        """Sync, unmap and unlock; twice is the same as once."""
        if self._closed:
            return
        self.sync()
        self._closed = True
        self._files.close(self.detach())

    # -- notes --------------------------------------------------------------------------------

    @property
    def notes(self) -> dict[str, str]:
        """Small texts that belong to the store, such as the line a file publisher started from."""
        return dict(self._notes)

    def set_note(self, key: str, value: str) -> None:
        """Keep a text beside the messages; it is on the disk when this returns."""
        self._files.check_usable()
        notes = {**self._notes, key: value}
        self._disk.replace(self._path / "notes.json", msgspec.json.encode(notes))
        self._notes = notes

    def _read_notes(self) -> dict[str, str]:
        path = self._path / "notes.json"
        if not self._disk.exists(path):
            return {}
        file = self._disk.open(path, writable=False)
        try:
            return msgspec.json.decode(file.pread(file.size(), 0), type=dict[str, str])
        except msgspec.MsgspecError as error:
            raise StoreCorrupt(path, 0, "not a JSON object of texts") from error
        finally:
            file.close()

"""The directory of a publish store: its lock, its owner, its notes, and syncing it.

`control` holds the lock, the owner's name and three numbers, `NNNNNNNN.seg` are the segments
(`file_space`), `notes.json` holds small texts of the application. Formats: `stores/README.md`.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from typing_extensions import override

from haclient_stores import framing
from haclient_stores.checks import check_has
from haclient_stores.disk.durable_file import DurabilityOptions
from haclient_stores.disk.files import PAGE_BYTES, RealDisk
from haclient_stores.disk.owned_file import check_path
from haclient_stores.errors import StoreCorrupt, StoreError, StoreLocked, UsageError
from haclient_stores.publish_stores.file_space import SUFFIX, FileSpace
from haclient_stores.publish_stores.home import Home, check_owner

if TYPE_CHECKING:
    from collections.abc import Callable

    from haclient_stores.disk.files import Disk, File
    from haclient_stores.publish_stores.segment import Segment

__all__ = ["CONTROL_MAGIC", "Directory"]

CONTROL_MAGIC: Final = b"HAPUBCTL"
_OF_A_BROKER: Final = "journal.lock"
_CONTROL: Final = "control"
_NOTES: Final = "notes.json"
# The last one is in the root of each new file system of its own.
_OWN_NAMES: Final = {_CONTROL, _NOTES, f"{_NOTES}.new", "lost+found"}
_T = TypeVar("_T")


class Directory(Home):
    """The home of a store in files.

    Args:
        path: The directory; created when it is missing.
        disk: Where files are; those of the machine for None.
        options: How messages are kept.
        segment_bytes: See `FileSpace`.
        kept: See `FileSpace`.

    Attributes:
        files: The segment files.

    Raises:
        StoreLocked: Another process has the store open.
        StoreCorrupt: A file does not match its checksums.
        StoreError: The directory is something else.
    """

    def __init__(
        self,
        path: str | Path,
        disk: Disk | None,
        options: DurabilityOptions,
        *,
        segment_bytes: int,
        kept: int = 2,
    ) -> None:
        self.durability_options = options
        self._path = path = check_path(path, "the directory of the store")
        if disk is not None:
            check_has("disk", disk, "a Disk", "open_locked")
        self._disk = disk = disk or RealDisk()
        disk.make_directory(path)
        _check_ours(disk, path)
        control = self._lock_control()
        self.files = FileSpace(disk, control, segment_bytes=segment_bytes, kept=kept)
        try:
            self.client_name = framing.read_owner(self.files.control, path=str(control.path))
            self._notes = self._read_notes()
            self.segments = self.files.recover()
        except BaseException:
            self.files.close([])  # a mapping holds the lock as well as the descriptor
            raise
        self.window = self.files.window(self.segments)
        # A killed process may have left what it stored in the page cache only.
        window = self.window
        self.synced_sequence = window.lowest - 1 if window.count else window.last_sequence
        self._sync_lock = threading.Lock()
        self._syncs_begun = 0
        self._syncs_done = 0

    @property
    @override
    def path(self) -> Path:
        return self._path

    def _lock_control(self) -> File:
        path = self.path / _CONTROL
        try:
            file = self._disk.open_locked(path)
        except StoreLocked as error:
            reader = self._disk.open(path, writable=False)
            owner = framing.read_owner(
                reader.pread(PAGE_BYTES, 0).ljust(PAGE_BYTES, b"\0"), path=str(path)
            )
            reader.close()
            raise StoreLocked(
                self.path,
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
        self._disk.fsync_dir(self.path)

    @override
    def open_for(self, client_name: str) -> None:
        self.files.check_usable()
        check_owner(self.path, self.client_name, client_name)
        if not self.client_name:
            self.files.bind(client_name)
            self.client_name = client_name

    @override
    def sync(self, checkpoint: Callable[[], int]) -> None:
        """Write everything stored so far through to the disk; may run in any number of threads.

        Raises:
            StoreError: The disk reports an error; nothing may be assumed of what is not synced.
        """
        self.files.check_usable()
        begun = self._syncs_begun
        with self._sync_lock:
            if self._syncs_done > begun:  # somebody's sync began after this call, and is done
                return
            self._syncs_begun += 1
            sequence = checkpoint()
            self.files.sync()
            self.synced_sequence = max(self.synced_sequence, sequence)
            self._syncs_done = self._syncs_begun

    @override
    def give_back(self, segments: list[Segment]) -> None:
        """Remove all segment files; what remains says how numbers go on."""
        self.files.remove_all(segments)

    @override
    def close(self, segments: list[Segment]) -> None:
        """Unmap and unlock."""
        self.files.close(segments)

    @override
    def on_fork(self, owner: _T, told: Callable[[_T], None]) -> None:
        self._disk.on_fork(owner, told)

    @property
    def notes(self) -> dict[str, str]:
        """Small texts that belong to the store."""
        return dict(self._notes)

    def set_note(self, key: str, value: str) -> None:
        """Keep a text beside the messages; it is on the disk when this returns."""
        self.files.check_usable()
        given: list[object] = [key, value]
        if not all(isinstance(each, str) for each in given):
            raise UsageError(f"a note is a text under a text, not {value!r} under {key!r}")
        notes = {**self._notes, key: value}
        self._disk.replace(self.path / _NOTES, msgspec.json.encode(notes))
        self._notes = notes

    def _read_notes(self) -> dict[str, str]:
        path = self.path / _NOTES
        if not self._disk.exists(path):
            return {}
        file = self._disk.open(path, writable=False)
        try:
            return msgspec.json.decode(file.pread(file.size(), 0), type=dict[str, str])
        except msgspec.MsgspecError as error:
            raise StoreCorrupt(path, 0, "not a JSON object of texts") from error
        finally:
            file.close()


def _check_ours(disk: Disk, path: Path) -> None:
    """Refuse a directory that holds anything but a publish store: our files would be lost in it.

    Raises:
        StoreError: It is not empty, and not the directory of a publish store.
    """
    names = disk.listdir(path)
    if _OF_A_BROKER in names:
        raise StoreError(
            f"{path}: the data directory of a broker: give the store a directory of its own"
        )
    if _CONTROL in names:
        file = disk.open(path / _CONTROL, writable=False)
        try:
            if any(file.pread(len(CONTROL_MAGIC), 0)):
                return  # ours, or refused for its magic when it is opened
        finally:
            file.close()
    # Without a header: new, or of a process that was killed while it made the first file.
    foreign = [name for name in names if name not in _OWN_NAMES and not name.endswith(SUFFIX)]
    if foreign:
        raise StoreError(
            f"{path}: holds {foreign[0]!r} and is no publish store: give the store a new or an "
            "empty directory"
        )

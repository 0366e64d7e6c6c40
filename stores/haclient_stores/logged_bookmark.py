"""A bookmark store in a file (BS14): what was discarded stays discarded when the process is killed.

It is a `SubscriptionTracker` for each subscription and a log of their moves (`records` in a
`record_file`). Opening the store makes the moves again; `prune` writes the fewest records that lead
to the same state into a new file and puts that in place of the old one.

Order: a message is in the log before anybody sees it, and a discard before `discard` returns, both
by a store into mapped memory. Room for the discards of everything logged is reserved when it is
logged, so a full disk stops new messages and never a discard.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, cast

from typing_extensions import override

from haclient_stores import framing, record_file
from haclient_stores.bookmarks import BookmarkList
from haclient_stores.entries import Publishers
from haclient_stores.errors import StoreCorrupt, StoreError, StoreLocked, UsageError
from haclient_stores.files import Disk, RealDisk
from haclient_stores.interfaces import BookmarkStore
from haclient_stores.logged_subscription import LoggedSubscription, OpenLog
from haclient_stores.records import LogReader, name_records, publisher_record, snapshot
from haclient_stores.segment import PAGE_BYTES
from haclient_stores.tracking import SubscriptionTracker

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable

    from haclient_stores.file_publish import Durability
    from haclient_stores.files import File
    from haclient_stores.record_file import RecordFile

__all__ = ["LoggedBookmarkStore"]

_NAME_RECORDS: Final = 64  # more than any sub id of a sensible length takes


class LoggedBookmarkStore(BookmarkStore):
    """Remembers in a file what subscriptions have received and finished (BS1-BS14, BS16, BS21).

    Args:
        path: The file; created when it is missing. `<path>.prune` beside it is used by `prune`.
        durability: What the client waits for, as in `FilePublishStore`.
        resize_handler: Asked with the new size in bytes before messages make the file larger, and
            must not use the store; False refuses, and they are not delivered (BS18). Discards
            always have room.
        disk: Where files are; another one in simulations.

    Attributes:
        durability: What the client waits for.

    Raises:
        StoreLocked: Another process has the store open.
        StoreCorrupt: The file does not match its checksums.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        durability: Durability = "process",
        resize_handler: Callable[[int], bool] | None = None,
        disk: Disk | None = None,
    ) -> None:
        self._resize_handler = resize_handler
        self.durability: Durability = durability
        self._path = Path(path)
        self._disk = disk or RealDisk()
        self._process = self._disk.process_id()
        self._closed = False
        self._synced_end = 0
        self._alive_us = 0
        self._publishers = Publishers()
        self._subscriptions: dict[str, LoggedSubscription] = {}
        self._file = self._locked()
        try:
            self._client_name = ""
            self._open()
        except BaseException:
            self._file.close()
            raise
        self._disk.on_fork(self, LoggedBookmarkStore._forked)

    def _forked(self) -> None:
        """We are a forked child, and the file is the parent's: not even a discard may reach it."""
        self._log.file = cast("RecordFile", _Unusable(self._path, "the store is used by its fork"))

    def _locked(self) -> File:
        try:
            return self._disk.open_locked(self._path)
        except StoreLocked as error:
            reader = self._disk.open(self._path, writable=False)
            page = reader.pread(PAGE_BYTES, 0).ljust(PAGE_BYTES, b"\0")
            reader.close()
            owner = framing.read_owner(page, path=str(self._path))
            raise StoreLocked(
                self._path,
                owner,
                f"in use by another process as client {owner!r}: close that one first, or give "
                "each process a store of its own",
            ) from error

    def _open(self) -> None:
        boot_id = self._disk.boot_id()
        self._disk.remove(self._pruned_path)  # of a prune that was killed
        header = self._file.pread(PAGE_BYTES, 0)
        identity = framing.read_identity(header, magic=record_file.LOG_MAGIC, path=str(self._path))
        if identity is None:
            file = record_file.create(self._file, boot_id=boot_id, owner="")
            self._disk.fsync_dir(self._path.parent)
            self._log = OpenLog(file, self._publishers, self._resize_handler)
            return
        self._alive_us = framing.read_word(header, framing.SECOND_WORD)
        reader = LogReader(self._publishers)

        def take(words: array[int]) -> None:
            reader.read(words)
            if reader.unknown is not None:
                raise StoreCorrupt(self._path, 0, f"a record of unknown kind {reader.unknown}")

        file = record_file.recover(self._file, boot_id, take)
        reader.finish()
        self._client_name = framing.read_owner(header, path=str(self._path))
        self._log = OpenLog(file, self._publishers, self._resize_handler)
        for index, tracker in sorted(reader.trackers.items()):
            handle = LoggedSubscription(self._log, index, tracker)
            self._subscriptions[reader.names.get(index, f"\0{index}")] = handle
            if tracker.undiscarded_count:
                handle.ended()  # nobody holds what the earlier process had received

    @property
    def _pruned_path(self) -> Path:
        return self._path.with_name(self._path.name + ".prune")

    # -- who ----------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    @override
    def client_name(self) -> str:
        return self._client_name

    @override
    def open_for(self, client_name: str) -> None:
        self._check_usable()
        if self._client_name == client_name:
            return
        if self._client_name:
            raise StoreLocked(
                self._path,
                self._client_name,
                f"belongs to the client {self._client_name!r}, not to {client_name!r}: "
                "use a store of its own for each client name",
            )
        header = self._file.map(0, PAGE_BYTES)
        framing.write_owner(header.view, client_name)
        header.close()
        self._client_name = client_name

    def _check_usable(self) -> None:
        if self._closed:
            raise UsageError(f"{self._path}: the store is closed; open it again")
        process = self._disk.process_id()
        if process != self._process:
            raise UsageError(
                f"{self._path}: opened by process {self._process} and used by its fork {process}: "
                "start workers with spawn and let each open a store of its own"
            )

    # -- when ---------------------------------------------------------------------------------

    @property
    def alive_us(self) -> int:
        """When its client was last connected, in microseconds since 1970; 0 when unknown."""
        return self._alive_us

    def note_alive(self, now_us: int) -> None:
        """The client is connected now: a new process resumes from a little before this time."""
        self._check_usable()
        self._alive_us = now_us
        self._write_alive(self._file)

    def _write_alive(self, file: File) -> None:
        word_bytes = bytearray(16)
        framing.write_word(memoryview(word_bytes), 0, self._alive_us)
        file.pwrite(word_bytes, framing.SECOND_WORD)

    # -- subscriptions ------------------------------------------------------------------------

    def subscription(self, sub_id: str) -> LoggedSubscription:
        """The fast handle of one subscription; always the same object for the same id (BS7)."""
        found = self._subscriptions.get(sub_id)
        if found is None:
            found = self._new_subscription(sub_id)
        return found

    def _new_subscription(self, sub_id: str) -> LoggedSubscription:
        self._check_usable()
        index = len(self._subscriptions)
        tracker = SubscriptionTracker(self._publishers)
        with self._log.gate.standstill():
            records = list(name_records(index, sub_id))
            self._log.file.reserve(len(records) + _NAME_RECORDS)
            self._log.file.put_all(records)
            found = self._subscriptions[sub_id] = LoggedSubscription(self._log, index, tracker)
        return found

    @override
    def log(self, sub_id: str, bookmark: str) -> int:
        return self.subscription(sub_id).log(bookmark)

    @override
    def discard(self, sub_id: str, number: int) -> None:
        self.subscription(sub_id).discard(number)

    @override
    def discard_up_to(self, sub_id: str, number: int) -> None:
        self.subscription(sub_id).discard_up_to(number)

    @override
    def is_discarded(self, sub_id: str, bookmark: str) -> bool:
        return self.subscription(sub_id).is_discarded(bookmark)

    @override
    def most_recent(self, sub_id: str) -> BookmarkList:
        found = self._subscriptions.get(sub_id)
        return BookmarkList() if found is None else found.recovery_point()

    @override
    def persisted(self, sub_id: str, bookmark: str) -> None:
        self.subscription(sub_id).persisted(bookmark)

    @override
    def oldest_undiscarded(self, sub_id: str) -> int:
        return self.subscription(sub_id).oldest_undiscarded

    @override
    def purge(self, sub_id: str | None = None) -> None:
        for name in list(self._subscriptions) if sub_id is None else [sub_id]:
            self.subscription(name).purge()

    # -- the file -----------------------------------------------------------------------------

    @property
    def needs_sync(self) -> bool:
        """Whether something was written since the last `sync` began."""
        return self._log.file.end > self._synced_end

    def sync(self) -> None:
        """Write everything through to the disk; may run in a thread of its own.

        Raises:
            StoreError: The disk reports an error; nothing may be assumed of what is not synced.
        """
        self._check_usable()
        with self._log.gate.standstill():
            self._log.file.seal()
            end, file = self._log.file.end, self._file
        file.fsync()
        word_bytes = bytearray(16)
        framing.write_word(memoryview(word_bytes), 0, end)
        file.pwrite(word_bytes, framing.FIRST_WORD)
        self._synced_end = end

    @override
    def prune(self) -> None:
        """Rewrite the file without what is finished; may run in a thread of its own (BS16).

        The new file is whole and locked before it takes the name of the old one, so the store can
        be killed at any moment, and another process never gets in between.

        Raises:
            StoreFull: There is no room for the new file; the old one stays as it is.
        """
        self._check_usable()
        target = self._pruned_path
        self._disk.remove(target)
        file = self._disk.open_locked(target)
        try:
            pruned = record_file.create(file, boot_id=self._disk.boot_id(), owner=self._client_name)
            with self._log.gate.standstill():
                records = self._snapshot()
                mark = self._log.file.end
            pruned.put_all(records)
            pruned.seal()
            file.fsync()
            with self._log.gate.standstill():
                self._replace(file, pruned, mark)
        except StoreError:
            file.close()
            self._disk.remove(target)
            raise
        self._disk.fsync_dir(self._path.parent)

    def _snapshot(self) -> list[tuple[int, int]]:
        subscriptions: list[tuple[int, int]] = []
        for index, (sub_id, handle) in enumerate(self._subscriptions.items()):
            subscriptions += name_records(index, sub_id)
            subscriptions += snapshot(index, handle.tracker, self._publishers)
        publishers = [publisher_record(*each) for each in enumerate(self._publishers.ids)]
        return publishers + subscriptions

    def _replace(self, file: File, pruned: RecordFile, mark: int) -> None:
        """Add what was written meanwhile, and exchange the files."""
        old_file, old = self._file, self._log.file
        pruned.put_all(old.written(mark))
        if self.durability != "process":
            file.fsync()
        self._write_alive(file)
        self._disk.rename(self._pruned_path, self._path)
        self._log.file, self._file = pruned, file
        self._synced_end = 0
        old.close()
        old_file.close()

    @override
    def close(self) -> None:
        """Sync, unmap and unlock; twice is the same as once."""
        if self._closed:
            return
        self.sync()
        self._closed = True
        self._log.file.close()
        self._log.file = cast("RecordFile", _Unusable(self._path, "the store is closed"))
        self._file.close()


class _Unusable:
    """In place of the log of a closed or forked store: for those who still hold messages."""

    def __init__(self, path: Path, why: str) -> None:
        self._path = path
        self._why = why

    def __getattr__(self, _: str) -> NoReturn:
        raise UsageError(f"{self._path}: {self._why}; open it again")

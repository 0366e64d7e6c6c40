"""A bookmark store in a file: discarded messages stay discarded when the process is killed.

It consists of a `SubscriptionTracker` for each subscription and a log of their state changes
(`records` in a `record_file`). Opening the store replays the log. `prune` writes the fewest records
that lead to the same state into a new file, which then replaces the old one.

Order: a message is in the log before it is delivered, and a discard before `discard` returns, both
by a store into mapped memory. Room for the discards of everything logged is reserved when it is
logged, so a full disk stops new messages and never a discard. No other record may use that room. If
there is no room, a record is omitted if that can only cause redelivery and never a skipped message:
persisted acks and caught-up times (`_OPTIONAL`). Any other record, such as a new link's, raises
`StoreFull`.
"""

from __future__ import annotations

import contextlib
import threading
from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from threading import get_ident
from typing import Final, NoReturn, cast

from typing_extensions import override

from haclient_stores import header_page
from haclient_stores.adapters.recovery_point import RecoveryPointAdapter
from haclient_stores.bookmark_stores import record_file
from haclient_stores.bookmark_stores.prune_policy import (
    DEFAULT_PRUNE_POLICY,
    LogUsage,
    PrunePolicy,
    PruneSchedule,
)
from haclient_stores.bookmark_stores.prune_request import PruneRequest
from haclient_stores.bookmark_stores.record_file import BLOCK_BYTES, GROW_BYTES, RecordFile
from haclient_stores.bookmark_stores.records import (
    BadRecord,
    BookmarkLogReader,
    RecordKind,
    frozen,
    name_records,
    publisher_record,
    server_order_records,
    server_records,
    snapshot,
    start_records,
    word,
)
from haclient_stores.bookmark_stores.subscription import StoreNotes, SubscriptionHandle
from haclient_stores.bookmark_stores.tracked_store import BookmarkFileStore
from haclient_stores.bookmark_stores.undiscarded_watch import UndiscardedWatch
from haclient_stores.disk.durable_file import Durability, DurableFile
from haclient_stores.disk.files import PAGE_BYTES, Disk, File
from haclient_stores.disk.threads import Gate, ThreadBinding
from haclient_stores.errors import StoreCorrupt, StoreError, StoreFull, UsageError
from haclient_stores.interfaces import Discard
from haclient_stores.logs import logger_of
from haclient_stores.tools.explain import Survival
from haclient_stores.tracker.entries import Alias, Chunk, Publishers
from haclient_stores.tracker.tracker import SubscriptionTracker

__all__ = ["LoggedBookmarkStore"]

_ROOM: Final = 64  # records kept free for moves that are not counted
_RECORDS_PER_MESSAGE: Final = 3  # its arrival, its discard, and a new publisher
_OPTIONAL: Final = {
    RecordKind.PERSISTED,
    RecordKind.PERSISTED_WHILE_PAUSED,
    RecordKind.COMPLETED,
    RecordKind.COMPLETED_SOMEWHERE,
    RecordKind.CAUGHT_UP,
    RecordKind.DISCARDED_UNTIL,
}
_DISCARDS: Final = {
    RecordKind.DISCARDED,
    RecordKind.DISCARDED_UP_TO,
}  # their room is reserved already
_NAME_RECORDS: Final = 64  # more than any sub id of a sensible length takes
_CATCH_UP_ROUNDS: Final = 64  # each is shorter than the one before, unless the disk is very slow

_HEADER_BYTE: Final = (header_page.IDENTITY_BYTES - 1, header_page.IDENTITY_BYTES)  # for its page

_logger = logger_of("haclient.bookmark_store")


class OpenLog:
    """The open log, shared by all subscriptions of a store; `prune` replaces its file.

    Attributes:
        file: The file that records are written to.
        gate: Closed while no record may be written.
        publishers: All publishers; `publishers_written` of them are in the log.
        trackers: All trackers.
        resize: Asked with the new size in bytes before messages make the file larger.

    Args:
        file: Where records go.
        publishers: All publishers; those that are there are in the log already.
        resize: See above.
        syncs: Whether each record may be followed by a sync, which adds a seal.
    """

    # For speed: it is asked for room at each batch and each ack.
    __slots__ = (
        "_promised",
        "_seals",
        "_skips",
        "file",
        "gate",
        "publishers",
        "publishers_written",
        "resize",
        "trackers",
    )

    def __init__(
        self,
        file: RecordFile,
        publishers: Publishers,
        resize: Callable[[int], bool] | None = None,
        *,
        syncs: bool = False,
    ) -> None:
        self._seals = 2 if syncs else 1  # so many records for each that is written
        self.file = file
        self.resize = resize
        self.gate = Gate()
        self.publishers = publishers
        self.publishers_written = len(publishers.ids)
        self.trackers: list[SubscriptionTracker] = []
        self._promised = 0  # at most so many entries are undiscarded
        self._skips = False  # an optional record had no room, and the file has not grown since

    def reserve(self, messages: int) -> None:
        """Reserve room for arrivals, and for the discards of everything logged.

        Args:
            messages: The number of arrivals.

        Raises:
            StoreFull: There is none; nothing has changed.
        """
        self._promised += messages
        wanted = _RECORDS_PER_MESSAGE * messages + _ROOM
        if not self.file.has_room(wanted + self._seals * self._promised):
            self._promised = messages + sum(each.undiscarded_count for each in self.trackers)
            self._grow(wanted + self._seals * self._promised)

    def reserve_moves(self, records: int) -> None:
        """Reserve room for records, in addition to that for the discards of everything logged.

        The file grows without a call of `resize`, which is called only for messages.

        Args:
            records: The number of records, of 16 bytes each.

        Raises:
            StoreFull: There is none; nothing has changed.
        """
        records = self._seals * (records + len(self.publishers.ids) - self.publishers_written)
        if not self.file.has_room(records + self._seals * self._promised):
            self._promised = sum(each.undiscarded_count for each in self.trackers)
            self.file.reserve(records + self._seals * self._promised)
            self._skips = False  # there is room again

    def has_room_for_optional(self, records: int) -> bool:
        """Whether there is room for records that the next process does not need.

        Args:
            records: The number of records, of 16 bytes each.
        """
        try:
            self.reserve_moves(_ROOM + records)
        except StoreFull as error:
            if not self._skips:  # once, not for each ack
                _logger.warning("acks and caught-up times are not written down: %s", error)
            self._skips = True
            return False
        return True

    def _grow(self, records: int) -> None:
        """Make room for this many records, if the resize handler agrees."""
        size = self.file.size_for(records)
        if self.resize is not None and not self.file.has_room(records) and not self.resize(size):
            raise StoreFull(
                f"the resize handler refused to let the bookmark store grow to {size} bytes: "
                "prune the store, or allow more"
            )
        self.file.reserve(records)

    def reserve_discards(self, file: RecordFile) -> None:
        """Reserve room in another file for the discards of everything logged.

        Args:
            file: The other file.

        Raises:
            StoreFull: There is none; nothing has changed.
        """
        # Nothing is being logged here, so no room is promised but for what is undiscarded.
        self._promised = sum(each.undiscarded_count for each in self.trackers)
        file.reserve(_ROOM + self._seals * self._promised)

    def write_new_publishers(self) -> None:
        """Write records for new publishers."""
        ids, written = self.publishers.ids, self.publishers_written
        if written < len(ids):
            first, _ = publisher_record(written, 0)  # the index is in the lowest bits
            words = array("Q", bytes(16 * (len(ids) - written)))
            words[0::2] = array("Q", range(first, first + len(ids) - written))
            words[1::2] = array("Q", ids[written:])
            self.file.put_words(words)
            self.publishers_written = len(ids)


class LogNotes(StoreNotes):
    """Writes the state changes of one tracker to the log.

    Args:
        log: The log of the store.
        index: The number of the subscription in the log.
        tracker: The tracker of the subscription.
        thread: The thread that the store belongs to.

    Attributes:
        index: The number of the subscription in the log.
    """

    def __init__(
        self, log: OpenLog, index: int, tracker: SubscriptionTracker, thread: ThreadBinding
    ) -> None:
        super().__init__(tracker, thread, log.gate)
        self._log = log
        self.index = index
        log.trackers.append(tracker)

    @override
    def discard_function(self, elsewhere: Discard) -> Discard:
        log, gate, thread = self._log, self.gate, self.thread
        try_discard, first_word = self.tracker.try_discard, word(RecordKind.DISCARDED, self.index)

        def discard(number: int) -> None:
            if get_ident() != thread.ident:
                elsewhere(number)
                return
            gate.busy = True
            if gate.closed:
                gate.wait()
            try:
                file = log.file
                if file.index >= file.limit:
                    file.turn()  # first: if it fails, nothing is discarded
                if try_discard(number):
                    words, index = file.words, file.index
                    words[index + 1] = number
                    words[index] = first_word
                    file.index = index + 2
            finally:
                gate.busy = False

        return discard

    @override
    def reserve(self, messages: int) -> None:
        self._log.reserve(messages)

    @override
    def note_logged(self, pieces: Sequence[Chunk | Alias | None]) -> None:
        self._log.write_new_publishers()
        file = self._log.file
        base = word(RecordKind.LOGGED, self.index)
        for piece in pieces:
            if piece is None:
                file.put(word(RecordKind.CONDENSED, self.index), 1)
                continue
            if isinstance(piece, Alias):
                file.put(word(RecordKind.ALIAS, self.index), piece.old)
                continue
            count = len(piece.sequences)
            words = array("Q", bytes(16 * count))
            if piece.publisher >= 0:
                words[0::2] = array("Q", [base | piece.publisher]) * count
            else:
                words[0::2] = array("Q", [base | publisher for publisher in piece.publishers])
            words[1::2] = array("Q", piece.sequences)
            file.put_words(words)

    @override
    def moving(self) -> AbstractContextManager[object]:
        return self.gate.standstill()

    @override
    def note(self, kind: RecordKind, value: int = 1, publisher: int = 0) -> None:
        if kind in _OPTIONAL:
            if not self._log.has_room_for_optional(1):
                return
        elif kind not in _DISCARDS:
            self._log.reserve_moves(1)
        self._log.write_new_publishers()
        self._log.file.put(word(kind, self.index, publisher), value)

    @override
    def note_start(self) -> None:
        self._put(start_records(self.index, self.tracker, self._log.publishers))

    @override
    def note_server(self, server: str, *, is_progress: bool) -> None:
        records = list(server_records(self.index, server))
        if not is_progress or self._log.has_room_for_optional(len(records)):
            self._put(records)

    @override
    def note_seed(self, newest: dict[int, int]) -> None:
        for publisher, sequence in newest.items():
            self.note(RecordKind.RECOVERED, sequence, publisher)
            self.note(RecordKind.SEEN, sequence, publisher)
        self._put(server_order_records(self.index, self.tracker, self._log.publishers))

    def _put(self, records: Iterable[tuple[int, int]]) -> None:
        made = list(records)  # which may meet publishers that are new
        self._log.reserve_moves(len(made))
        self._log.write_new_publishers()
        self._log.file.put_all(made)


class LoggedBookmarkStore(BookmarkFileStore):
    """Records in a file what subscriptions have received and finished.

    Args:
        path: The file; created with its directory when it is missing. `<path>.prune` beside it is
            used by `prune`. A symbolic link is followed when the store is opened.
        adapter: Keeps a copy of the recovery points somewhere else.
        prune_policy: When the client prunes the log; by default when 8 MiB and more than half of
            it are dead. With None only `prune()` and `haclient store prune` do.
        watch: Warns of messages that stay undiscarded.
        durability: What the client waits for, as in `FilePublishStore`.
        resize_handler: Called with the new size in bytes before messages make the file larger. It
            must not use the store. If it returns False, the messages are not delivered. Discards
            always have room.
        on_progress: Called with the bytes read so far while a log is opened.
        disk: The file system; simulations pass their own.

    Attributes:
        durability: What the client waits for.

    Raises:
        StoreLocked: Another process has the store open.
        StoreCorrupt: The file does not match its checksums.
        UsageError: An argument is invalid.
    """

    _survival = Survival.ALL

    def __init__(  # noqa: PLR0913  # keyword-only settings, each with a default
        self,
        path: str | Path,
        *,
        adapter: RecoveryPointAdapter | None = None,
        prune_policy: PrunePolicy | None = DEFAULT_PRUNE_POLICY,
        watch: UndiscardedWatch | None = None,
        durability: Durability = "process",
        resize_handler: Callable[[int], bool] | None = None,
        on_progress: Callable[[int], object] | None = None,
        disk: Disk | None = None,
    ) -> None:
        super().__init__(path, adapter=adapter, watch=watch, durability=durability, disk=disk)
        self._resize_handler = resize_handler
        self._next_index = 0
        self._has_client = False
        self._synced_end = 0
        self._pruning = threading.Lock()
        self._name_synced = False  # a killed process may have made it, and not have come so far
        self._syncing = threading.Lock()  # a sync and the exchange of the files exclude each other
        try:
            self._open(on_progress)
        except BaseException:
            self._owner.close()
            raise
        self._schedule = (
            PruneSchedule(prune_policy, GROW_BYTES, self._usage()) if prune_policy else None
        )
        self._request = PruneRequest(self._disk, self._file_path)
        self._disk.on_fork(self, LoggedBookmarkStore._forked)

    def _forked(self) -> None:
        """Handle a fork: the file belongs to the parent, so not even a discard may be written."""
        self._log.file = cast("RecordFile", _Unusable(self._path, "the store is used by its fork"))

    def _open(self, on_progress: Callable[[int], object] | None) -> None:
        boot_id = self._disk.boot_id()
        with contextlib.suppress(StoreError):  # the next prune finds the reason again, and says it
            self._disk.remove(self._pruned_path)  # of a prune that was killed
        owned = self._owner.file
        header = owned.pread(PAGE_BYTES, 0)
        identity = header_page.read_identity(
            header, magic=record_file.LOG_MAGIC, path=str(self._path)
        )
        if identity is None:
            self._durable = DurableFile(owned, rewrite_before_fsync=False)
            file = record_file.create(owned, boot_id=boot_id, owner="")
            self._log = self._open_log(file)
            return
        self._durable = DurableFile(owned, rewrite_before_fsync=True)
        reader = BookmarkLogReader(self._publishers)
        done = PAGE_BYTES

        def take(words: array[int], is_sealed: bool) -> None:  # noqa: FBT001  # a callback
            try:
                reader.read(words, is_sealed=is_sealed)
            except BadRecord as error:
                raise StoreCorrupt(self._path, 0, str(error)) from error
            if on_progress is not None:
                nonlocal done
                done += 8 * len(words)
                on_progress(done)

        file = record_file.recover(owned, boot_id, take)
        reader.finish()
        self._synced_end = header_page.read_word(header, header_page.FIRST_WORD)
        self._owner.client_name = header_page.read_owner(header, path=str(self._path))
        self._log = self._open_log(file)
        self._next_index = 1 + max((*reader.names, *reader.trackers), default=-1)
        for index, tracker in sorted(reader.trackers.items()):
            handle = self._handle(index, tracker)
            self._subscriptions[reader.names.get(index, f"\0{index}")] = handle
            if tracker.undiscarded_count:
                handle.ended()  # the consumers of the earlier process ended with it
        self._thread.release()  # another thread than the opening one may use it

    def _open_log(self, file: RecordFile) -> OpenLog:
        syncs = self.durability != "process"
        return OpenLog(file, self._publishers, self._resize_handler, syncs=syncs)

    def _handle(self, index: int, tracker: SubscriptionTracker) -> SubscriptionHandle:
        return SubscriptionHandle(LogNotes(self._log, index, tracker, self._thread))

    @property
    def _pruned_path(self) -> Path:
        return self._file_path.with_name(self._file_path.name + ".prune")

    # -- who ----------------------------------------------------------------------------------

    @override
    def open_for(self, client_name: str) -> None:
        super().open_for(client_name)
        self._has_client = True

    @override
    def _write_owner(self, client_name: str) -> None:
        header = self._owner.file.map(0, PAGE_BYTES)
        header_page.write_owner(header.view, client_name)
        header.close()

    # -- subscriptions ------------------------------------------------------------------------

    @override
    def _new_subscription(self, sub_id: str) -> SubscriptionHandle:
        self._owner.check_usable()
        index = self._next_index
        tracker = SubscriptionTracker(self._publishers)
        with self._log.gate.standstill():
            records = list(name_records(index, sub_id))
            self._log.reserve_moves(len(records) + _NAME_RECORDS)
            self._log.file.put_all(records)
            found = self._subscriptions[sub_id] = self._handle(index, tracker)
            self._next_index = index + 1
        return found

    # -- the file -----------------------------------------------------------------------------

    @property
    @override
    def needs_sync(self) -> bool:
        return self._log.file.end > self._synced_end

    @override
    def sync(self) -> None:
        """Write everything through to the disk; may run in a thread of its own.

        Raises:
            StoreError: The disk reports an error; nothing may be assumed of what is not synced.
        """
        self._owner.check_usable()
        with self._syncing:
            with self._log.gate.standstill():
                self._log.file.seal()
                end = self._log.file.end
            self._durable.sync(_HEADER_BYTE, (max(self._synced_end, PAGE_BYTES), end))
            self._note_synced(self._owner.file, end)
            self._sync_name()
            self._synced_end = end

    def _sync_name(self) -> None:
        """Sync the file's name; until then a power loss may restore the old file or none."""
        if not self._name_synced:
            self._disk.fsync_dir(self._file_path.parent)
            self._name_synced = True

    @staticmethod
    def _note_synced(file: File, end: int) -> None:
        word_bytes = bytearray(16)
        header_page.write_word(memoryview(word_bytes), 0, end)
        file.pwrite(word_bytes, header_page.FIRST_WORD)

    # -- pruning --------------------------------------------------------------------------------

    def _usage(self) -> LogUsage:
        messages = sum(tracker.next_number for tracker in self._log.trackers)
        undiscarded = sum(tracker.undiscarded_count for tracker in self._log.trackers)
        file = self._log.file
        return LogUsage(file.end, file.allocated, messages, undiscarded)

    @property
    @override
    def prunes(self) -> bool:
        return True

    @property
    @override
    def prune_requested(self) -> bool:
        return self._request.is_made

    @override
    def answer_prune(self, error: str = "") -> None:
        self._request.answer(error)

    @property
    @override
    def prunes_on_close(self) -> bool:
        is_due = self._schedule is not None and self._schedule.on_exit(self._usage())
        # Who only looks at a file, or prunes it, carries out no requests.
        return is_due or (self._has_client and self.prune_requested)

    @override
    def prune_due(self, now: float) -> bool:
        return self._schedule is not None and self._schedule.due(self._usage(), now)

    @override
    def prune(self) -> None:
        """Rewrite the file without finished entries; may run in a thread of its own.

        The client continues meanwhile: it is blocked only while containers are copied and while the
        files are exchanged. The new file is whole, locked and synced before it takes the name of
        the old one, so the store can be killed at any moment, and another process never gets in
        between.

        Raises:
            StoreFull: There is no room for the new file; the old one stays as it is.
            StoreError: The new file cannot be made or written, as in a directory that this user may
                not change, or cannot have the owner and the mode of the old one; likewise.
        """
        with self._pruning:
            self._owner.check_usable()
            target = self._pruned_path
            file = self._disk.create_new(target, locked=True)
            try:
                self._keep_access(file)
                old, old_file = self._write_pruned(file)
            except StoreError:  # the store continues with the old file
                file.close()
                with contextlib.suppress(StoreError):  # the first error says more
                    self._disk.remove(target)
                raise
            old.close()
            old_file.close()
            if self._schedule is not None:
                self._schedule.pruned(self._usage())
            with self._syncing:
                self._sync_name()

    def _keep_access(self, file: File) -> None:
        """Give the new file the owner and the mode of the old one, before anything is in it.

        Raises:
            StoreError: This process may not do that: whoever uses the log could lose it.
        """
        access = self._owner.file.access()
        if access is None:
            return
        try:
            file.set_access(access)
        except StoreError as error:
            raise StoreError(
                f"{error}; the pruned file would not belong to the owner of the log: prune it as "
                "that user, or as root"
            ) from error

    def _write_pruned(self, file: File) -> tuple[RecordFile, File]:
        """Write the new file, which takes the place of the old one; return the old one."""
        pruned = record_file.create(file, boot_id=self._disk.boot_id(), owner=self.client_name)
        log = self._log
        with log.gate.standstill():
            states = [
                (cast("LogNotes", handle.notes).index, name, frozen(handle.tracker))
                for name, handle in self._subscriptions.items()
            ]
            publishers = list(self._publishers.ids)
            end = log.file.end
        pruned.put_all(publisher_record(*each) for each in enumerate(publishers))
        for index, name, tracker in states:
            pruned.put_all(name_records(index, name))
            pruned.put_all(snapshot(index, tracker, self._publishers))
        with self._syncing:
            end = self._catch_up(pruned, end)
            pruned.seal()
            synced_end = pruned.end
            durable = DurableFile(file, rewrite_before_fsync=False)
            durable.fsync()
            self._note_synced(file, synced_end)
            with log.gate.standstill():
                log.file.copy_to(pruned, end, log.file.end)
                log.reserve_discards(pruned)
                self._disk.rename(self._pruned_path, self._file_path)
                old, log.file = log.file, pruned
                old_file = self._owner.replace_file(file)
                self._durable = durable
                self._name_synced = False
                self._synced_end = synced_end
        return old, old_file

    def _catch_up(self, pruned: RecordFile, begin: int) -> int:
        """Copy the records written meanwhile, up to a short rest; return where that begins.

        Everything that a sync of the old file has covered is copied: no sync happens meanwhile, and
        the new file is synced next.
        """
        for _ in range(_CATCH_UP_ROUNDS):
            with self._log.gate.standstill():
                file, end = self._log.file, self._log.file.end
            file.copy_to(pruned, begin, end)
            if end - begin < BLOCK_BYTES:
                return end
            begin = end
        return begin

    @override
    def close(self) -> None:
        """Sync, unmap and unlock; a second call does nothing."""
        if self._owner.is_closed:
            return
        with contextlib.ExitStack() as closing:
            closing.callback(self._close)  # whatever becomes of the prune
            if self.prunes_on_close:
                self._try_to_prune()

    def _try_to_prune(self) -> None:
        try:
            self.prune()
        except StoreError as error:
            _logger.warning("%s: not pruned: %s", self._path, error)
            self.answer_prune(str(error))
        else:
            self.answer_prune()

    def _close(self) -> None:
        # After a disk failure another process has to be able to open the store.
        with self._pruning, contextlib.ExitStack() as closing:
            closing.callback(self._owner.close)
            closing.callback(self._unmap)
            self.sync()

    def _unmap(self) -> None:
        file = self._log.file
        self._log.file = cast("RecordFile", _Unusable(self._path, "the store is closed"))
        file.close()


class _Unusable:
    """Replaces the log of a closed or forked store, for code that still holds messages."""

    def __init__(self, path: Path, why: str) -> None:
        self._path = path
        self._why = why

    def __getattr__(self, _: str) -> NoReturn:
        raise UsageError(f"{self._path}: {self._why}; open it again")

"""The common base of our publish stores: the segment log as a `FrameLog`, with its owner and files.

A store is this class plus a `SegmentStorage` that provides segments and, on disk, the
`StoreDirectory` that it belongs to. It is a subclass of the log and not a wrapper around it, since
`append` is called for each message and one more call would cost a fifth of it.

Durability says what survives without further waiting:

* `process`: every message for which `store` has returned survives a killed process. A power loss
  may lose messages that were not written back yet.
* `group`: the client calls `sync` every few milliseconds in a thread; `publish_flush` can wait.
* `fsync`: the client calls `sync` before a publish is reported as done.

The store itself never waits: the client asks `needs_sync` and `synced_sequence` and calls `sync`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from typing_extensions import override

from haclient_stores.disk.durable_file import Durability, DurabilityOptions
from haclient_stores.disk.ownership import check_client_name
from haclient_stores.errors import PublishGap, UsageError
from haclient_stores.interfaces import FrameLog
from haclient_stores.publish_stores.segment_log import Limits, SegmentLog, SegmentStorage
from haclient_stores.publish_stores.store_directory import StoreDirectory
from haclient_stores.publish_stores.window import PublishWindow

_MEMORY: Final = "a publish store in memory"
_PARKED: Final = "haclient.parked"  # the note of the last parked publish, and what was acknowledged


class PublishLog(SegmentLog, FrameLog):
    """A publish store over any storage.

    Args:
        storage: Provides the segments.
        directory: The store's directory, whose numbers and segments it continues; None in memory.
        limits: How the log may grow.
        error_on_publish_gap: Whether `reconcile` raises `PublishGap` or only records it.

    Attributes:
        error_on_publish_gap: Whether `reconcile` raises `PublishGap` or only records it.
    """

    def __init__(
        self,
        storage: SegmentStorage,
        directory: StoreDirectory | None,
        *,
        limits: Limits,
        error_on_publish_gap: bool,
    ) -> None:
        window = PublishWindow() if directory is None else directory.window
        name = _MEMORY if directory is None else directory.path
        super().__init__(storage, window, limits=limits, name=name)
        self.error_on_publish_gap = error_on_publish_gap
        self._directory = directory
        self._options = directory.options if directory is not None else DurabilityOptions()
        self._memory_owner = ""  # the client name, where there is no directory to note it
        self._gap: PublishGap | None = None
        self._closed = False
        if directory is not None:
            try:
                self.restore(directory.segments)
            except BaseException:  # no store is made, so nothing else would release its files
                directory.close(self.detach())
                raise
            directory.on_fork(self, PublishLog.forked)

    @override
    def store(self, head: bytes, tail: bytes, body: bytes | bytearray | memoryview) -> int:
        self._thread.check()
        return self.append(head, tail, body)

    @property
    @override
    def unpersisted_count(self) -> int:
        return self._window.count

    @property
    @override
    def lowest_unpersisted(self) -> int:
        return self._window.lowest

    @property
    @override
    def last_persisted(self) -> int:
        return self._window.last_persisted

    @property
    @override
    def last_sequence(self) -> int:
        return self._window.last_sequence

    @property
    def last_used_sequence(self) -> int:
        """The highest number of a message that is stored, or that a server knows.

        It is below `last_sequence` if numbers were skipped since then, as at the first logon after
        the machine was started. Use it to count what was published.
        """
        return self._window.last_used

    def missing_after(self, sequence: int) -> tuple[int, int] | None:
        """The first numbers above this one whose messages a loss of power has taken.

        Args:
            sequence: The last number before the messages that are asked about; there must be no
                jump of the numbering among them.

        Returns:
            First and last number of messages that are neither stored nor known to a server, while
            later ones are stored; None when none is missing.
        """
        return self._window.missing_after(sequence)

    @property
    @override
    def gap(self) -> PublishGap | None:
        return self._gap

    @override
    def replay(self, after: int = 0) -> Iterator[tuple[int, bytes]]:
        self._thread.check()
        return self.frames(after)

    @override
    def replay_single(self, sequence: int) -> bytes | None:
        self._thread.check()
        for found, frame in self.frames(sequence - 1):
            return frame if found == sequence else None
        return None

    @override
    def reconcile(self, *, seen: int, persisted: int, clock_us: int) -> None:
        """Take over the logon ack.

        Raises:
            PublishGap: The server lacks what was acknowledged, and `error_on_publish_gap` is set.
            StoreError: See `PublishWindow.reconcile`.
        """
        self._thread.check()
        acknowledged = self.last_acknowledged
        self._gap = PublishGap(acknowledged, persisted) if persisted < acknowledged else None
        if self._gap is not None and self.error_on_publish_gap:
            raise self._gap
        super().reconcile(seen=seen, persisted=persisted, clock_us=clock_us)

    def park_publish(self, sequence: int) -> Path:
        """Write an unpersisted publish to a file beside the store, which has to have a path.

        It is in the store until `note_parked` and `discard_up_to` are called, in this order, when
        it is the lowest.

        Args:
            sequence: The publish.

        Returns:
            The file. It has the frame as it is sent; `haclient store` shows and drops it.

        Raises:
            StoreError: The file cannot be written.
            UsageError: There is no such publish, or the store is in memory.
        """
        frame, directory = self.replay_single(sequence), self._directory
        if frame is None or directory is None:
            raise UsageError(f"{sequence} is not an unpersisted publish of a store with a path")
        return directory.park_frame(sequence, frame)

    def note_parked(self, sequence: int) -> None:
        """Note that the lowest publish, which is about to be discarded, was not acknowledged."""
        if self._directory is not None:
            self._directory.set_note(_PARKED, f"{sequence} {self.last_acknowledged}")

    @property
    def last_acknowledged(self) -> int:
        """The highest number that a server has acknowledged.

        It is below `last_persisted` if that is the number of a parked publish, which no server has.
        """
        notes = {} if self._directory is None else self._directory.notes
        parked, acknowledged = map(int, notes.get(_PARKED, "0 0").split())
        return acknowledged if parked == self.last_persisted else self.last_persisted

    # -- who ----------------------------------------------------------------------------------

    @property
    def path(self) -> Path | None:
        """The store's directory; None when it is in memory."""
        return None if self._directory is None else self._directory.path

    @property
    @override
    def client_name(self) -> str:
        return self._memory_owner if self._directory is None else self._directory.client_name

    @override
    def open_for(self, client_name: str) -> None:
        self._thread.check_opening()
        if self._directory is not None:
            self._directory.bind(client_name)
            return
        check_client_name(_MEMORY, self._memory_owner, client_name)
        self._memory_owner = client_name

    # -- durability ---------------------------------------------------------------------------

    @property
    def durability(self) -> Durability:
        """What the client waits for; see the module."""
        return self._options.durability

    @property
    def group_interval_s(self) -> float:
        """How often the client syncs at durability `group`, in seconds."""
        return self._options.group_interval_s

    @property
    def synced_sequence(self) -> int:
        """Everything up to here survives a loss of power; 0 in memory."""
        return 0 if self._directory is None else self._directory.synced_sequence

    @property
    def needs_sync(self) -> bool:
        """Whether something was stored since the last `sync` began; never in memory."""
        return self._directory is not None and self.synced_sequence < self._window.last_sequence

    @override
    def sync(self) -> None:
        """Write everything stored so far through to the disk; may run in any number of threads.

        Raises:
            StoreError: The disk reports an error: nothing is known of what was not synced before.
        """
        if self._directory is not None:
            self._directory.sync(self.checkpoint)

    @override
    def close(self) -> None:
        """Sync and release files and lock; twice is the same as once. Any thread may call this.

        A store in memory may be used again, by another thread too.

        Raises:
            StoreError: It could not be synced, or its files not be removed; the lock is released
                all the same.
        """
        directory = self._directory
        if directory is None:
            self._thread.release()
            return
        if self._closed:
            return
        self._closed = True
        try:
            self.sync()
            if self._options.truncate_on_close and not self._window.count:
                directory.remove_all(self.detach())
        finally:
            directory.close(self.detach())

"""What all our publish stores share: the segment log, spoken to as a `FrameLog`.

A store is this class plus a `Space` that says where segments live and a `Home` that says who owns
them and how they last. It is a subclass of the log and not a wrapper around it, because `append` is
called for each message and one more call would cost a fifth of it.

Durability says what survives without the client waiting for more:

* `process`: everything that `store` returned for survives a killed process. A machine that loses
  power may lose what was not written back yet.
* `group`: the client calls `sync` every few milliseconds in a thread; `publish_flush` can wait.
* `fsync`: the client calls `sync` before a publish is reported as done.

The store itself never waits: `needs_sync` and `synced_sequence` tell the client, `sync` does it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from haclient_stores.interfaces import FrameLog
from haclient_stores.publish_stores.segment_log import SegmentLog

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from haclient_stores.disk.durable_file import Durability
    from haclient_stores.errors import PublishGap
    from haclient_stores.publish_stores.home import Home
    from haclient_stores.publish_stores.segment import Limits, Space

__all__ = ["PublishLog"]


class PublishLog(SegmentLog, FrameLog):
    """A publish store over any space, which goes on with what its home has kept.

    Attributes:
        error_on_publish_gap: Whether `reconcile` raises `PublishGap` or only records it (PS9).
    """

    def __init__(
        self, home: Home, space: Space, *, limits: Limits, error_on_publish_gap: bool
    ) -> None:
        name = home.path or "a publish store in memory"
        super().__init__(space, home.window, limits=limits, name=name)
        self.error_on_publish_gap = error_on_publish_gap
        self._home = home
        self._gap: PublishGap | None = None
        self._closed = False
        try:
            self.restore(home.segments)
        except BaseException:
            home.close(self.detach())
            raise
        home.on_fork(self, PublishLog.forked)

    store = SegmentLog.append  # pyright: ignore[reportAssignmentType]  one function for both

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
    def number_above(self, sequence: int) -> None:
        super().number_above(sequence)

    @override
    def reconcile(self, *, seen: int, persisted: int, clock_us: int) -> None:
        """Take over the logon ack.

        Raises:
            PublishGap: The server lacks what was acknowledged, and `error_on_publish_gap` is set.
            StoreError: See `PublishWindow.reconcile`.
        """
        self._thread.check()
        self._gap = self._window.gap(persisted)
        if self._gap is not None and self.error_on_publish_gap:
            raise self._gap
        super().reconcile(seen=seen, persisted=persisted, clock_us=clock_us)

    # -- who ----------------------------------------------------------------------------------

    @property
    def path(self) -> Path | None:
        """The store's directory; None when it is in memory."""
        return self._home.path

    @property
    @override
    def client_name(self) -> str:
        return self._home.client_name

    @override
    def open_for(self, client_name: str) -> None:
        self._thread.check()
        self._home.open_for(client_name)

    # -- durability ---------------------------------------------------------------------------

    @property
    def durability(self) -> Durability:
        """What the client waits for; see the module."""
        return self._home.durability_options.durability

    @property
    def group_interval_s(self) -> float:
        """How often the client syncs at durability `group`, in seconds."""
        return self._home.durability_options.group_interval_s

    @property
    def synced_sequence(self) -> int:
        """Everything up to here survives a loss of power (PS20); 0 in memory."""
        return self._home.synced_sequence

    @property
    def needs_sync(self) -> bool:
        """Whether something was stored since the last `sync` began; never in memory."""
        return self.path is not None and self.synced_sequence < self._window.last_sequence

    @override
    def sync(self) -> None:
        """Write everything stored so far through to the disk; may run in any number of threads.

        Raises:
            StoreError: The disk reports an error; nothing may be assumed of what is not synced.
        """
        self._home.sync(self.checkpoint)

    @override
    def close(self) -> None:
        """Sync and let go of everything; twice is the same as once. Any thread may call this.

        A store in memory may be used again, by another thread too.

        Raises:
            StoreError: It could not be synced, or its files not be removed; the lock is released
                all the same.
        """
        if self.path is None:
            self._thread.release()
            return
        if self._closed:
            return
        self._closed = True
        try:
            self.sync()
            if self._home.durability_options.truncate_on_close and not self._window.count:
                self._home.give_back(self.detach())
        finally:
            self._home.close(self.detach())

"""A broker engine with two queues over one topic, its journal and its `queues.ack` on a disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from typing_extensions import override

from haclient_fake_server.engine.broker import Engine
from haclient_fake_server.engine.outbox import Effects
from haclient_fake_server.engine.settings import QueueTopic
from haclient_fake_server.journal.files import JournalFiles
from haclient_fake_server.journal.queue_points import QueuePointFile
from haclient_fake_server.journal.queue_snapshots import QueueSnapshotFiles
from haclient_stores.disk.files import Disk
from support.engine import Peer, World

__all__ = ["DIRECTORY", "FILE_BACKED", "ONCE", "QUEUES", "TOPIC", "WORK", "QueueWorld"]

DIRECTORY = Path("/disk")
TOPIC, WORK, ONCE = "orders", "work", "once"
QUEUES = (
    QueueTopic(name=WORK, topics=(TOPIC,), max_per_subscription_backlog=100),
    QueueTopic(
        name=ONCE, topics=(TOPIC,), semantics="at-most-once", max_per_subscription_backlog=100
    ),
)
FILE_BACKED = tuple(replace(queue, file_backed=True) for queue in QUEUES)
SEGMENT_BYTES = 8192


class QueueWorld(World):
    """What the shells do for queues, with the files that they write.

    Args:
        disk: The file system.
        start_id: Another number for each start.
        is_synced: Whether each block is synced before anything is sent.
        queues: The queues.
        segment_bytes: Size of a segment of the journal.
        archive: The directory of archived segments; `None` for none.
        settings: As for `World`.

    Attributes:
        disk: The file system.
        files: The journal.
        point_file: The file `queues.ack`.
        snapshot_files: The files of file-backed queues.
    """

    def __init__(
        self,
        disk: Disk,
        *,
        start_id: int,
        is_synced: bool,
        queues: tuple[QueueTopic, ...] = QUEUES,
        segment_bytes: int = SEGMENT_BYTES,
        archive: Path | None = None,
        **settings: Any,  # noqa: ANN401  # of `EngineSettings`
    ) -> None:
        self.files = JournalFiles(
            DIRECTORY,
            disk,
            segment_bytes=segment_bytes,
            instance_id=1,
            start_id=start_id,
            archive=archive,
        )
        self.disk = disk
        self.point_file = QueuePointFile(DIRECTORY, disk, log_starts=self.files.log_starts)
        kept = [(each.name, each.message_type) for each in queues if each.file_backed]
        self.snapshot_files = QueueSnapshotFiles(DIRECTORY, disk, self.files, queues=kept)
        self._is_synced = is_synced
        super().__init__(journal=self.files, queues=queues, **settings)

    @override
    def write(self, effects: Effects) -> None:
        super().write(effects)
        if effects.block is not None and self._is_synced:
            self.files.sync()
        while self.files.has_unsealed:
            self.files.seal()
        if effects.queue_points is not None:
            self.point_file.write(effects.queue_points)

    def keep_snapshots(self) -> None:
        """Write the files of file-backed queues."""
        if self.snapshot_files.is_due:
            snapshots = self.engine.queue_snapshots()
            self.snapshot_files.write(self.snapshot_files.prepare(snapshots))

    def consumer(self, queue: str) -> Peer:
        """A connection with a subscription to a queue; what it gets is not taken."""
        peer = self.client(f"consumer of {queue}")
        peer.send(c="subscribe", cid="1", sub_id="1", t=queue, opts="max_backlog=100")
        return peer

    def available(self, queue: str, **logon: str) -> set[str]:
        """The bookmarks of the messages that a queue could deliver now."""
        peer = self.client("browser", **logon)
        peer.send(c="sow", cid="2", query_id="2", t=queue, opts="top_n=100000")
        found = {each.bookmark for each in peer.take() if each.kind == "sow"}
        peer.close()
        return found

    @override
    def _new_engine(self) -> Engine:
        self.queue_points = self.point_file.points
        self.queue_snapshots = self.snapshot_files.snapshots
        engine = super()._new_engine()
        if engine.queue_points:
            self.point_file.write(engine.queue_points)
        return engine

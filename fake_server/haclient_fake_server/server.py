"""The broker as a server: listeners, connections and one engine.

::

    async with BrokerServer(BrokerConfig(data_dir=Path("data"))) as server:
        print(server.uris)      # ["tcp://127.0.0.1:40123"]
        ...

Leaving the block closes all connections and the journal. Killing the process at any moment loses
nothing that was acknowledged.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import trio

from haclient.errors import UsageError
from haclient.protocol.identity import publisher_id
from haclient.transport.links.link import Link
from haclient.transport.tasks import open_nursery
from haclient_fake_server.admin import (
    AdminServer,
    JournalAction,
    answer,
    is_of_this_machine,
    parse_admin,
)
from haclient_fake_server.config import BrokerConfig, FsyncPolicy, ReplicateTo
from haclient_fake_server.engine.journal import MemoryJournal
from haclient_fake_server.engine.replication.destination import DestinationStatus
from haclient_fake_server.engine.sow.saved import SowLayout
from haclient_fake_server.engine.statistics import Row
from haclient_fake_server.hub import BrokerFiles, Hub
from haclient_fake_server.journal.files import JournalFiles, ProgressFile
from haclient_fake_server.journal.guard_file import GuardFile
from haclient_fake_server.journal.parquet import sealing_command
from haclient_fake_server.journal.queue_points import QueuePointFile
from haclient_fake_server.journal.queue_snapshots import QueueSnapshotFiles
from haclient_fake_server.journal.sow_database import SowDatabase, report_unused
from haclient_fake_server.kill_points import KillPoints
from haclient_fake_server.listener import Listener, has_room, listen, server_context
from haclient_fake_server.maintenance import JournalMaintenance
from haclient_fake_server.offline_queue import OfflineQueue
from haclient_fake_server.session import Dial, Session, dial_destination, keep_connected
from haclient_stores.disk.files import Disk, RealDisk

__all__ = ["BrokerServer", "serve"]

_MAX_DIGITS = 18

_log = logging.getLogger(__name__)


class BrokerServer:
    """A running broker, for as long as its `async with` block.

    Args:
        config: The configuration of the broker.
        disk: The file system of the journal; the real one by default.
        wall_clock_us: Returns microseconds since 1970; called once, at the start.
        dial: How to reach a destination of replication.
        start_id: Returns a random number of 64 bits; called once, at the start: see `LogStart`.
        kill_points: Where a test may end the process.

    Raises:
        StoreError: The data directory is relative, and the working directory is gone.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        disk: Disk | None = None,
        wall_clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        dial: Dial = dial_destination,
        start_id: Callable[[], int] = lambda: secrets.randbits(64),
        kill_points: KillPoints | None = None,
    ) -> None:
        self._disk = disk or RealDisk()
        if config.data_dir is not None:  # a relative one would end with a change of directory
            config = replace(config, data_dir=self._disk.resolve(config.data_dir))
        if config.archive_dir is not None:
            config = replace(config, archive_dir=self._disk.resolve(config.archive_dir))
        self._dial = dial
        self._start_id = start_id
        self._points = kill_points or KillPoints()
        self._progress_file: ProgressFile | None = None
        self._sow: SowDatabase | None = None
        self._config = config
        self._wall_clock_us = wall_clock_us
        self._nurseries = open_nursery()
        self._nursery: trio.Nursery | None = None
        self._listeners: list[Listener] = []
        self._disabled: set[int] = set()
        self._admin = AdminServer(self._answer_admin, has_room=has_room) if config.admin else None
        self._journal: JournalFiles | MemoryJournal | None = None
        self._hub: Hub | None = None
        self._maintenance: JournalMaintenance | None = None

    @property
    def uris(self) -> list[str]:
        """The addresses on which it listens, with their real ports."""
        return [listener.uri for listener in self._listeners]

    @property
    def admin_uri(self) -> str:
        """The URI of the admin interface, with its real port; empty without one."""
        return "" if self._admin is None else self._admin.uri

    def _answer_admin(self, head: bytes) -> bytes:
        config = self._config
        is_local = is_of_this_machine(parse_admin(config.admin)[0])
        return answer(head, broker=self, users=None if is_local else config.users)

    async def __aenter__(self) -> Self:
        """Open the listeners and the journal.

        Raises:
            StoreError: The journal cannot be opened; see `JournalFiles`.
            UsageError: An address to listen on is malformed, or a certificate cannot be used.
            OSError: An address cannot be used for listening.
        """
        try:
            tls = None if self._config.tls is None else server_context(self._config.tls)
            for uri in self._config.listen:
                accept = partial(self._accept, len(self._listeners))
                self._listeners.append(listen(uri, accept, context=tls))
            if self._admin is not None:
                await self._admin.listen(*parse_admin(self._config.admin))
            self._journal = self._open_journal()
            self._progress_file = self._open_progress_file()
            files = BrokerFiles(
                self._progress_file,
                self._open_guard_file(),
                self._open_queue_point_file(self._journal),
                self._open_queue_snapshot_files(self._journal),
                self._open_sow_database(self._journal),
                None if self._config.data_dir is None else self._new_offline_queue,
            )
            self._append_start(files)
            self._hub = Hub(
                self._config,
                self._journal,
                now_us=self._wall_clock_us(),
                files=files,
                kill_points=self._points,
            )
        except BaseException:  # `__aexit__` is not called when entering fails
            self._close()
            raise
        self._maintenance = JournalMaintenance(self._config, self._journal, self._hub)
        self._nursery = await self._nurseries.__aenter__()
        self._nursery.start_soon(self._maintenance.keep)
        self._nursery.start_soon(self._hub.keep_time)
        self._nursery.start_soon(self._hub.keep_sealed)
        self._nursery.start_soon(self._hub.keep_queue_points)
        self._nursery.start_soon(self._hub.keep_queue_snapshots)
        self._nursery.start_soon(self._hub.keep_sow)
        if self._config.fsync is FsyncPolicy.INTERVAL:
            self._nursery.start_soon(self._hub.keep_synced)
        if self._config.parquet:
            self._nursery.start_soon(self._keep_exported)
        for listener in self._listeners:
            self._nursery.start_soon(listener.run)
        if self._admin is not None:
            self._nursery.start_soon(self._admin.run)
        for to in self._config.replicate_to:
            self._nursery.start_soon(self._replicate, to)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close all connections, then the journal.

        Raises:
            StoreError: The journal could not be written, which has stopped the broker.
        """
        nursery, self._nursery = self._nursery, None
        if nursery is not None:
            nursery.cancel_scope.cancel()
        try:
            # Of a failed journal, the other connections get `JournalStopped` from their next write.
            # Its cause is the failure, which the nursery raises alone.
            await self._nurseries.__aexit__(kind, error, traceback)
        finally:
            self._close()

    def _accept(self, listener: int, link: Link) -> None:
        if listener in self._disabled:
            link.close()
        else:
            self.attach(link)

    def attach(self, link: Link) -> None:
        """Serve a connection that was made in any other way than through a listener.

        Args:
            link: The broker's end. It is closed at once while the broker is closing.

        Raises:
            UsageError: The broker does not run.
        """
        hub = self._entered()
        if self._nursery is None:  # it is closing
            link.close()
            return
        session = Session(hub.next_number(), link, hub=hub, config=self._config)
        hub.accepted(session, peer=link.peer)
        self._nursery.start_soon(session.run)

    @property
    def destinations(self) -> tuple[DestinationStatus, ...]:
        """The state of each destination of replication, as configured.

        Raises:
            UsageError: The broker does not run.
        """
        return self._entered().destinations

    @property
    def missing(self) -> int:
        """How many replicated records were dropped, since this log has later ones of the publisher.

        This log and that of their sender differ for good: see README.md, *Replication*.

        Raises:
            UsageError: The broker does not run.
        """
        return self._entered().missing

    @property
    def ended_connections(self) -> dict[str, int]:
        """How many connections have ended since the start, by reason: see README.md.

        Raises:
            UsageError: The broker does not run.
        """
        return self._entered().ended_connections

    def rows(self, table: str, *, after: int = 0) -> list[Row]:
        """A table of the statistics, as the admin interface serves it.

        Args:
            table: `instance`, or one of `haclient_fake_server.admin.TABLES`.
            after: Only rows after this number, of tables that may be long.

        Raises:
            UsageError: The broker does not run.
        """
        hub = self._entered()
        if table == "transaction_log" and isinstance(self._journal, JournalFiles):
            file = self._journal.file_of
            return [
                {**row, "file": str(file(int(row["number"])))}
                for row in hub.rows(table, after=after)
            ]
        if table != "transports":
            return hub.rows(table, after=after)
        return [
            {"name": each.uri, "is_enabled": number not in self._disabled}
            for number, each in enumerate(self._listeners)
        ]

    def disconnect(self, client: str) -> None:
        """End the connection of a client, which is told so.

        Args:
            client: Its name, or the number of the connection.

        Raises:
            UsageError: There is no such connection.
        """
        self._entered().disconnect(client)

    def set_transport(self, uri: str, *, enabled: bool) -> None:
        """Accept connections at an address, or close each at once; those that are open stay.

        Args:
            uri: One of `uris`.
            enabled: Whether connections are accepted.

        Raises:
            UsageError: The broker does not listen there.
        """
        if uri not in self.uris:
            raise UsageError(f"{uri!r}: the broker listens on {', '.join(self.uris)}")
        number = self.uris.index(uri)
        (self._disabled.discard if enabled else self._disabled.add)(number)

    async def maintain_journal(self, action: JournalAction, number: int) -> None:
        """Archive, compress or remove a segment of the log, and return when that is done.

        Args:
            action: What to do.
            number: The segment, as the table `transaction_log` has it.

        Raises:
            UsageError: It cannot be done now; the text says why, and who needs the segment.
            StoreError: The segment is damaged, or the disk failed. The log is as before.
        """
        self._entered()
        if self._maintenance is not None:
            await self._maintenance.run(action, number)

    def begin_journal_action(self, action: JournalAction, segment: str) -> None:
        """As `maintain_journal`, without waiting for its end, which the log of the broker has.

        Raises:
            UsageError: It cannot be begun; the text says why, and who needs the segment.
        """
        self._entered()
        if not segment.isdecimal() or len(segment) > _MAX_DIGITS:
            raise UsageError(f"{segment[:40]!r}: wanted the number of a segment of the log")
        if self._maintenance is not None and self._nursery is not None:
            self._maintenance.check(action, int(segment))
            self._nursery.start_soon(self._maintenance.run_reported, action, int(segment))

    def downgrade(self, address: str) -> None:
        """Do not hold persisted acks back for a destination any more, until `upgrade`.

        Acks that only wait for it are sent at once.

        Args:
            address: `tcp://HOST:PORT`, as in `destinations`.

        Raises:
            UsageError: There is no such synchronous destination.
        """
        self._entered().downgrade(address)

    def upgrade(self, address: str) -> None:
        """Hold persisted acks back for a destination again, as soon as it has caught up.

        Args:
            address: `tcp://HOST:PORT`, as in `destinations`.

        Raises:
            UsageError: There is no such synchronous destination.
        """
        self._entered().upgrade(address)

    def _entered(self) -> Hub:
        """The hub of a running broker."""
        if self._hub is None:
            raise UsageError("use the broker as `async with BrokerServer(...) as server:`")
        return self._hub

    async def _replicate(self, to: ReplicateTo) -> None:
        await keep_connected(to, hub=self._entered(), config=self._config, dial=self._dial)

    async def _keep_exported(self) -> None:
        """Write sealed segments as Parquet, in a process of its own; never returns.

        An export that fails is reported, and tried again when the next segment was sealed: the
        broker does not depend on it.
        """
        config, directory = self._config, self._config.data_dir
        assert directory is not None  # noqa: S101  # the configuration was checked
        command = sealing_command(directory, config.archive_dir, config.parquet_compression)
        while True:
            if reason := await _problem_of(command):
                _log.error("%s: export to Parquet: %s", config.name, reason)
            await self._entered().wait_sealed()

    def _open_progress_file(self) -> ProgressFile | None:
        config = self._config
        if config.data_dir is None or not config.log_topics or not config.replicate_to:
            return None
        return ProgressFile(config.data_dir, self._disk)

    def _open_guard_file(self) -> GuardFile | None:
        config = self._config
        if config.data_dir is None or not config.log_topics:
            return None
        return GuardFile(config.data_dir, self._disk)

    def _open_queue_point_file(
        self, journal: JournalFiles | MemoryJournal
    ) -> QueuePointFile | None:
        config = self._config
        if config.data_dir is None or isinstance(journal, MemoryJournal):
            return None
        return QueuePointFile(config.data_dir, self._disk, log_starts=journal.log_starts)

    def _open_queue_snapshot_files(
        self, journal: JournalFiles | MemoryJournal
    ) -> QueueSnapshotFiles | None:
        config = self._config
        queues = [(each.name, each.message_type) for each in config.queues if each.file_backed]
        if config.data_dir is None or isinstance(journal, MemoryJournal) or not queues:
            return None
        return QueueSnapshotFiles(config.data_dir, self._disk, journal, queues=queues)

    def _open_sow_database(self, journal: JournalFiles | MemoryJournal) -> SowDatabase | None:
        config = self._config
        layout = SowLayout.of(config.sow_topics, config.queues)
        if config.data_dir is None or isinstance(journal, MemoryJournal):
            return None
        if layout.is_empty:
            report_unused(config.data_dir, journal)
            return None
        self._sow = SowDatabase(config.data_dir, journal, layout)
        return self._sow

    def _new_offline_queue(self, number: int) -> OfflineQueue:
        path = Path(self._config.data_dir or "", f"offline.{number}")
        return OfflineQueue.create(self._disk, path, capacity=self._config.slow_client_bytes)

    def _open_journal(self) -> JournalFiles | MemoryJournal:
        config = self._config
        if config.data_dir is None or not config.log_topics:
            return MemoryJournal(self._start_id())
        return JournalFiles(
            config.data_dir,
            self._disk,
            segment_bytes=config.segment_bytes,
            instance_id=publisher_id(config.name),
            start_id=self._start_id(),
            appends_start=False,
            kill_points=self._points,
            archive=config.archive_dir,
            preallocated_files=config.preallocated_files,
            copies=[to.address for to in config.replicate_to],
        )

    def _append_start(self, files: BrokerFiles) -> None:
        """Append the start, when nothing can prevent it any more, and write it to the other files.

        The log knows its last starts only. Failed starts, as with a port in use or a full disk,
        must not displace them, nor may these files name one that was displaced.
        """
        if isinstance(self._journal, JournalFiles):
            self._journal.append_start()
        if files.queue_points is not None:
            files.queue_points.note_start()
        if files.sow is not None:
            files.sow.note_start()

    def _close(self) -> None:
        for listener in self._listeners:
            listener.close()
        if self._admin is not None:
            self._admin.close()
        try:
            if self._hub is not None:
                self._hub.close()
        finally:
            if self._sow is not None:
                self._sow.close()
            if self._progress_file is not None:
                self._progress_file.close()
            if isinstance(self._journal, JournalFiles):
                self._journal.close()  # last: it holds the lock of the directory


async def _problem_of(command: Sequence[str]) -> str:
    """Run an export; why it has failed, or nothing."""
    try:
        done = await trio.run_process(
            command, check=False, capture_stderr=True, deliver_cancel=_kill
        )
    except OSError as error:  # no memory, no descriptor or no room for a process
        return f"cannot be started: {error}"
    lines = done.stderr.decode(errors="replace").splitlines()
    return (lines[-1] if lines else f"exit code {done.returncode}") if done.returncode else ""


async def _kill(process: trio.Process) -> None:
    """End an export; at any moment it leaves whole files or none."""
    process.kill()


async def serve(
    config: BrokerConfig,
    *,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a broker until cancelled.

    Args:
        config: The configuration of the broker.
        task_status: Gets the addresses when the broker listens.

    Raises:
        StoreError: The journal cannot be opened or written.
        UsageError: An address to listen on is malformed.
        OSError: An address cannot be used for listening.
    """
    async with BrokerServer(config) as server:
        task_status.started(server.uris)
        await trio.sleep_forever()

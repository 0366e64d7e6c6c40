"""The hub: applies the engine's effects, in an order that is part of the contract.

The journal is written first, then data is sent, then connections are closed; only `live`
subscriptions are sent data earlier. Everything here is synchronous, so nothing runs between an
engine step and its effects. This guarantees that every subscriber receives messages in the order of
the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Final, NamedTuple, Protocol

import trio

from haclient.protocol.framing import CAPACITY_BYTES
from haclient.protocol.messages import Message
from haclient_fake_server.config import BrokerConfig, FsyncPolicy
from haclient_fake_server.engine.acks import end_ack
from haclient_fake_server.engine.broker import Engine
from haclient_fake_server.engine.guards import Guard
from haclient_fake_server.engine.journal import MemoryJournal
from haclient_fake_server.engine.outbox import ENDED_BY_PEER, Effects
from haclient_fake_server.engine.queues.points import QueuePoint
from haclient_fake_server.engine.recovery import SavedState
from haclient_fake_server.engine.replication.destination import DestinationStatus
from haclient_fake_server.engine.replication.durability import ReplicationProgress
from haclient_fake_server.engine.sow.table import SowRecord
from haclient_fake_server.engine.statistics import Row
from haclient_fake_server.journal.files import JournalFiles, JournalStopped, ProgressFile
from haclient_fake_server.journal.guard_file import GuardFile
from haclient_fake_server.journal.queue_points import QueuePointFile
from haclient_fake_server.journal.queue_snapshots import QueueSnapshotFiles
from haclient_fake_server.journal.sow_database import SowDatabase
from haclient_fake_server.kill_points import KillPoint, KillPoints
from haclient_fake_server.offline_queue import OfflineQueue
from haclient_stores.errors import StoreError, StoreFull

_log = logging.getLogger(__name__)


class SessionLike(Protocol):
    """What the hub needs of a connection."""

    number: int
    unsent_bytes: int

    @property
    def is_offline(self) -> bool:
        """Whether unsent bytes wait in a file."""
        ...

    @property
    def offline_bytes(self) -> int:
        """Those that wait in a file."""
        ...

    def take_offline(self, queue: OfflineQueue) -> None:
        """Move what is queued, and what follows, to a file until all of it was sent."""

    def put(self, data: bytes) -> None:
        """Queue bytes for sending."""

    def wake(self) -> None:
        """Wake the writer: there may be a backlog to send."""

    def finish(self, reason: str) -> None:
        """Close the connection once everything queued was sent; `reason` is for the log."""

    def finish_slow_client(self, detail: str = "") -> None:
        """Close a connection whose peer does not read, with the reason in a last ack."""

    def cut(self, reason: str) -> None:
        """Close the connection at once; `reason` is for the log."""


class BrokerFiles(NamedTuple):
    """The files next to the journal.

    Attributes:
        progress: Where the progress of replication is written; `None` without destinations.
        guards: Where the guards against removal are written; `None` for a journal in memory.
        queue_points: Where the recovery points of the queues are written; `None` for a journal in
            memory.
        queue_snapshots: Where file-backed queues are kept; `None` without any.
        sow: Where file-backed topics are kept; `None` without any.
        new_offline_queue: Makes the file of a slow client, by the number of its connection; `None`
            for a journal in memory.
    """

    progress: ProgressFile | None = None
    guards: GuardFile | None = None
    queue_points: QueuePointFile | None = None
    queue_snapshots: QueueSnapshotFiles | None = None
    sow: SowDatabase | None = None
    new_offline_queue: Callable[[int], OfflineQueue] | None = None


SOW_INTERVAL_S: Final = 10.0
"""How often the records of file-backed topics are written."""

SNAPSHOT_INTERVAL_S: Final = 60.0
"""How often file-backed queues are written: a start after a kill reads that much of the log."""

HINT_RETRY_S: Final = 10.0
"""The wait after the recovery points of queues could not be written."""

UNSENT_CHECKS: Final = 16
"""How often the unsent bytes of all connections are counted while as many as they may have are
queued: counting them for each message would take longer than sending it."""

OFFLINE_STEP_BYTES: Final = 64 * 2**20
"""After so many bytes are written to files of clients taken offline in one step, the next ones wait
for another step: clients that read equally slowly have too much unsent at the same message."""

MAX_UNFINISHED_BYTES: Final = 512 * 2**20
"""Bytes of incomplete frames of all connections together; buffers are up to twice as large."""

NO_FILES: Final = BrokerFiles()


class Hub:
    """One engine, its journal and its connections.

    Args:
        config: The configuration of the broker.
        journal: An open journal.
        now_us: The wall clock in microseconds; from here on only trio's clock is read.
        files: The files next to the journal.
        kill_points: Where a test may end the process.

    Attributes:
        turn: Held for a long step of a connection and a round of the event loop: many connections
            with long steps take them one in a round, between which all others are served.
        end_turn: Likewise for the end of a connection: thousands may end at once.
    """

    _failure: BaseException | None = None  # of a write

    def __init__(
        self,
        config: BrokerConfig,
        journal: MemoryJournal | JournalFiles,
        *,
        now_us: int,
        files: BrokerFiles = NO_FILES,
        kill_points: KillPoints | None = None,
    ) -> None:
        self.turn = trio.Lock()
        self.end_turn = trio.Lock()
        self._config = config
        self._progress_file = files.progress
        self._guard_file = files.guards
        self._queue_point_file = files.queue_points
        self._snapshot_files = files.queue_snapshots
        self._sow = files.sow
        self._new_offline_queue = files.new_offline_queue
        self._times_offline = 0
        self._new_queue_points: tuple[QueuePoint, ...] = ()
        self._queue_points_changed = trio.Event()
        # A write has failed or is running: the journal may lack what the engine has done.
        self._is_unwritten = False
        self._journal = journal
        self._files = journal if isinstance(journal, JournalFiles) else None
        self._points = kill_points or KillPoints()
        self._rolled = trio.Event()
        self._sealed = trio.Event()
        if self._files is not None and self._files.has_unsealed:
            self._rolled.set()  # there was no room for a manifest
        self._sessions: dict[int, SessionLike] = {}
        self._unfinished: dict[int, int] = {}  # bytes of long, incomplete frames
        self._due_sooner = trio.Event()
        self._planned_tick = float("inf")
        self._connections = 0
        self._queued_bytes = 0  # since the unsent bytes were counted
        self._moved_bytes = 0  # to files of clients, in this step
        self._engine = Engine(
            config.engine_settings(),
            journal,
            now=trio.current_time(),
            now_us=now_us,
            saved=SavedState(
                None if files.progress is None else files.progress.progress,
                () if files.guards is None else files.guards.guards,
                () if files.queue_points is None else files.queue_points.points,
                () if files.queue_snapshots is None else files.queue_snapshots.snapshots,
                None if files.sow is None else files.sow.saved,
            ),
        )
        self._write_progress(self._engine.progress)
        if files.sow is not None:
            files.sow.saved = None  # the engine has them
        self._write_first()

    def _write_first(self) -> None:
        """Write what the start has changed in the files next to the journal."""
        # A guard that was moved back to the end of the log stays there when the log grows again.
        guards, guard_file = self._engine.guards, self._guard_file
        if guard_file is not None and {*guards} != {*guard_file.guards}:
            self._write_guards(guards, ())
        points, file = self._engine.queue_points, self._queue_point_file
        if file is not None and points and points != file.points:
            try:  # a queue that begins now keeps its beginning
                file.write(points)
            except StoreError as error:  # as later: see `keep_queue_points`
                self._report_unwritten(error)
                self._new_queue_points = points
                self._queue_points_changed.set()

    def close(self) -> None:
        """Write the files that are otherwise written periodically; the last call.

        A disk that fails is reported: the next start reads more of the log, and what has ended the
        broker is not hidden.
        """
        try:
            self._write_last()
        except StoreError as error:
            self._report_unwritten(error)

    def _write_last(self) -> None:
        file, points = self._queue_point_file, self._engine.queue_points
        # After a failed write the engine has removed messages that the journal still has.
        if file is not None and not self._is_unwritten and points != file.points:
            file.write(points)
        snapshots = self._snapshot_files
        if snapshots is not None and not self._is_unwritten and snapshots.is_due:
            snapshots.write(snapshots.prepare(self._engine.queue_snapshots()))
        if self._sow is not None and not self._is_unwritten and self._sow.is_due:
            prepared = self._sow.prepare(self._engine.sow_changes())
            if self._files is not None:
                self._files.sync()
            self._sow.write(prepared)

    def next_number(self) -> int:
        """A number for a new connection."""
        self._connections += 1
        return self._connections

    def accepted(self, session: SessionLike, *, peer: str) -> None:
        """Register a connection that a client or another broker has made.

        Args:
            session: The connection.
            peer: The other end's address, for the log.
        """
        self._sessions[session.number] = session
        self._engine.connected(session.number, trio.current_time(), peer=peer)

    def dialled(self, session: SessionLike, address: str) -> None:
        """Register a connection to a destination of replication, and log on there."""
        self._sessions[session.number] = session
        self._apply(self._engine.dialled(session.number, address, trio.current_time()))

    @property
    def destinations(self) -> tuple[DestinationStatus, ...]:
        """The state of each destination of replication."""
        return self._engine.destinations

    @property
    def missing(self) -> int:
        """See `Engine.missing`."""
        return self._engine.missing

    @property
    def ended_connections(self) -> dict[str, int]:
        """See `Engine.ended_connections`."""
        return self._engine.ended_connections

    def rows(self, table: str, *, after: int = 0) -> list[Row]:
        """See `Engine.rows`; also what was not sent to clients yet."""
        rows = self._engine.rows(table, trio.current_time(), after=after)
        if table == "instance":
            waiting = sum(each.offline_bytes for each in self._sessions.values())
            more = {"times_offline": self._times_offline, "offline_bytes": waiting}
            return [{**row, **more} for row in rows]
        if table != "clients":
            return rows
        return [{**row, **self._unsent(int(row["id"]))} for row in rows]

    def _unsent(self, number: int) -> dict[str, int]:
        session = self._sessions.get(number)
        return {
            "unsent_bytes": 0 if session is None else session.unsent_bytes,
            "offline_bytes": 0 if session is None else session.offline_bytes,
        }

    def log_holder(self, position: int) -> str:
        """See `Engine.log_holder`."""
        file = self._queue_point_file
        points = self._engine.queue_points if file is None else file.points
        if self._sow is not None and self._sow.safe_position <= position:
            return "the records of file-backed topics are not written yet"
        return self._engine.log_holder(position, points, trio.current_time())

    def sow_snapshot(self) -> list[tuple[str, list[SowRecord]]]:
        """See `Engine.sow_snapshot`."""
        return self._engine.sow_snapshot()

    @property
    def clock_us(self) -> int:
        """See `Engine.clock_us`."""
        return self._engine.clock_us(trio.current_time())

    def disconnect(self, client: str) -> None:
        """See `Engine.disconnect`."""
        self._apply(self._engine.disconnect(client, trio.current_time()))

    def downgrade(self, address: str) -> None:
        """See `Engine.downgrade`."""
        self._apply(self._engine.downgrade(address, trio.current_time()))

    def upgrade(self, address: str) -> None:
        """See `Engine.upgrade`."""
        self._apply(self._engine.upgrade(address, trio.current_time()))

    def received(self, session: SessionLike, messages: Sequence[Message]) -> None:
        """Process commands from a connection; none means that bytes of one came."""
        self._check_written()
        self._apply(self._engine.received(session.number, messages, trio.current_time()))

    def ending(self, session: SessionLike) -> None:
        """See `Engine.ending`."""
        self._engine.ending(session.number)

    def end_subscriptions(self, session: SessionLike) -> bool:
        """End some subscriptions of a connection that has ended; whether it has had many."""
        if self._is_unwritten:  # as in `disconnected`
            return False
        effects = self._engine.end_subscriptions(session.number, trio.current_time())
        if effects is not None:
            self._apply(effects)
        return effects is not None

    def disconnected(self, session: SessionLike, reason: str = ENDED_BY_PEER) -> None:
        """Unregister a connection that has ended; `reason` is for the log and the statistics."""
        self._unfinished.pop(session.number, None)
        self._sessions.pop(session.number, None)
        if self._is_unwritten:  # the engine cannot go on, and ends with the broker
            return
        self._apply(self._engine.disconnected(session.number, trio.current_time(), reason))

    def unfinished(self, session: SessionLike, size: int) -> None:
        """Note how much of a frame has arrived; beyond the limit, end the one with the most."""
        if size <= CAPACITY_BYTES:
            self._unfinished.pop(session.number, None)
            return
        self._unfinished[session.number] = size
        if sum(self._unfinished.values()) > MAX_UNFINISHED_BYTES:
            number, size = max(self._unfinished.items(), key=itemgetter(1))
            del self._unfinished[number]
            detail = f"{size} bytes of a frame, and too many of all connections"
            self._sessions[number].put(end_ack("unknown command", detail=detail))
            self._sessions[number].finish(f"unknown command: {detail}")

    def is_known(self, session: SessionLike) -> bool:
        """Whether the other end of a connection has logged on, or is a destination."""
        return self._engine.is_known(session.number)

    def is_busy(self, session: SessionLike) -> bool:
        """Whether a connection is not to be read from for now: commands of it wait (`go_on`)."""
        return self._engine.is_busy(session.number)

    def has_long_commands(self, session: SessionLike) -> bool:
        """Whether `pump` has a query to answer or commands to carry out for a connection."""
        return self._engine.has_long_commands(session.number)

    def has_backlog(self, session: SessionLike) -> bool:
        """Whether `pump` has something for a connection."""
        return self._engine.has_backlog(session.number)

    def pump(self, session: SessionLike) -> bool:
        """Send the next chunk of replays on a connection; whether there was one."""
        if not self._engine.has_backlog(session.number):
            return False
        self._check_written()
        self._apply(self._engine.pump(session.number, trio.current_time()))
        return True

    def go_on(self, session: SessionLike) -> None:
        """Take a step of the commands of a connection that wait."""
        self._check_written()
        self._apply(self._engine.go_on(session.number, trio.current_time()))

    def sent(self) -> None:
        """Note that the kernel has accepted bytes of a connection."""
        self._points.reach(KillPoint.AFTER_SEND)

    async def keep_time(self) -> None:
        """Call the engine whenever one of its deadlines is due; never returns.

        Raises:
            StoreError: The journal could not be written.
        """
        while True:
            self._planned_tick = self._engine.next_due
            with trio.move_on_at(self._planned_tick):
                await self._due_sooner.wait()
            self._due_sooner = trio.Event()
            now = trio.current_time()
            if self._engine.next_due <= now:
                self._check_written()
                self._apply(self._engine.tick(now))

    async def keep_synced(self) -> None:
        """Sync the journal every `flush_interval_s` seconds, for policy `interval`; never returns.

        Raises:
            StoreError: The disk failed.
        """
        while True:
            await trio.sleep(self._config.flush_interval_s)
            if self._files is not None and self._files.dirty:
                await trio.to_thread.run_sync(self._files.sync)

    async def keep_sealed(self) -> None:
        """Seal segments that are full, in a thread, since their syncs take long; never returns.

        Raises:
            StoreError: The disk failed. The broker stops then, as after any failed sync.
        """
        while self._files is not None:
            await self._rolled.wait()
            self._rolled = trio.Event()
            while self._files.has_unsealed:
                try:
                    await trio.to_thread.run_sync(self._files.seal)
                    self._sealed.set()
                except StoreFull as error:  # a full disk: a start reads the segment in its place
                    self._report_unwritten(error)
                    await trio.sleep(HINT_RETRY_S)

    async def keep_queue_points(self) -> None:
        """Write the recovery points of queues, in a thread since it syncs them; never returns."""
        while self._queue_point_file is not None:
            await self._queue_points_changed.wait()
            self._queue_points_changed = trio.Event()
            try:
                await trio.to_thread.run_sync(self._queue_point_file.write, self._new_queue_points)
            except StoreError as error:  # a full disk: without them a start reads more of the log
                self._report_unwritten(error)
                await trio.sleep(HINT_RETRY_S)
                self._queue_points_changed.set()

    async def keep_queue_snapshots(self) -> None:
        """Write the state of file-backed queues periodically, in a thread; never returns."""
        files = self._snapshot_files
        while files is not None:
            await trio.sleep(SNAPSHOT_INTERVAL_S)
            if files.is_due:
                try:
                    prepared = files.prepare(self._engine.queue_snapshots())
                    await trio.to_thread.run_sync(files.write, prepared)
                except StoreError as error:  # as for the recovery points
                    self._report_unwritten(error)

    async def keep_sow(self) -> None:
        """Write the records of file-backed topics periodically, in a thread; never returns."""
        sow = self._sow
        while sow is not None:
            await trio.sleep(SOW_INTERVAL_S)
            if sow.is_due:
                await self._write_sow(sow)

    async def _write_sow(self, sow: SowDatabase) -> None:
        is_syncing = False
        try:
            changes, place = sow.prepare(self._engine.sow_changes())
            for each in changes:  # in steps, between which others are served
                await trio.to_thread.run_sync(sow.add, each)
            if self._files is not None:
                is_syncing = True
                await trio.to_thread.run_sync(self._files.sync)
                is_syncing = False
            await trio.to_thread.run_sync(sow.commit, place)
        except BaseException as error:  # also a broker that is closed meanwhile
            sow.rollback()
            self._engine.restore_sow_changes()
            if is_syncing or not isinstance(error, StoreError):
                raise  # a failed sync ends the broker
            self._report_unwritten(error)

    async def wait_sealed(self) -> None:
        """Wait until a segment was sealed since the last call."""
        await self._sealed.wait()
        self._sealed = trio.Event()

    def _report_unwritten(self, error: StoreError) -> None:
        _log.warning("%s: not written, and tried again later: %s", self._config.name, error)

    def _write_guards(self, guards: tuple[Guard, ...], guarding: Sequence[int]) -> None:
        """Write the guards; if that fails, end the connections that wait for it."""
        if self._guard_file is None:
            return
        try:
            self._guard_file.write(guards)
        except StoreError as error:  # a full disk: the log has room in its own files
            self._report_unwritten(error)
            for number in guarding:
                if number in self._sessions:
                    self._sessions[number].cut(f"internal error: {error}")

    def _write_progress(self, progress: ReplicationProgress) -> None:
        if self._progress_file is not None:
            self._progress_file.write(progress)
            self._points.reach(KillPoint.AFTER_CONFIRMED)

    def _check_written(self) -> None:
        """Check that no write has failed: then the engine has records that the journal lacks.

        Raises:
            JournalStopped: One has; it is the cause.
        """
        if self._is_unwritten:
            raise JournalStopped(
                f"{self._config.name}: a write has failed: start the broker again"
            ) from self._failure

    def _apply(self, effects: Effects) -> None:
        self._moved_bytes = 0
        for number, data in effects.early:
            self._send(number, data)
        try:
            self._write(effects)
        except BaseException as error:
            self._failure = self._failure or error
            raise
        for number, data in effects.sends:
            self._send(number, data)
        for number, reason in effects.closes:
            if number in self._sessions:
                self._sessions[number].finish(reason)
        for number in effects.with_backlog:
            if number in self._sessions:
                self._sessions[number].wake()
        if self._engine.next_due < self._planned_tick:
            self._due_sooner.set()

    def _write(self, effects: Effects) -> None:
        """Write what has to be in the files before any ack or message is sent."""
        was_unwritten, self._is_unwritten = self._is_unwritten, True
        if effects.block is not None:
            self._points.reach(KillPoint.BEFORE_WRITE)
            self._journal.append(effects.block)
            if self._files is not None:
                if self._config.fsync is FsyncPolicy.BATCH:
                    self._files.sync()
                if self._files.has_unsealed:
                    self._rolled.set()
            self._points.reach(KillPoint.AFTER_WRITE)
        if effects.progress is not None:
            self._write_progress(effects.progress)
        if effects.guards is not None:
            self._write_guards(effects.guards, effects.guarding)
        # Connections that end after a failed write have effects too, which repair nothing.
        self._is_unwritten = was_unwritten
        if effects.queue_points is not None and not was_unwritten:
            self._new_queue_points = effects.queue_points
            self._queue_points_changed.set()
        for severity, text in effects.events:
            _log.log(severity, "%s: %s", self._config.name, text)

    def _send(self, number: int, data: bytes) -> None:
        session = self._sessions.get(number)
        if session is None:  # the connection has ended in the same step
            return
        session.put(data)
        if session.unsent_bytes > self._config.high_water_bytes:
            self._over_high_water(session)
        self._queued_bytes += len(data)
        if self._queued_bytes > self._config.max_unsent_bytes // UNSENT_CHECKS:
            self._check_unsent()

    def _over_high_water(self, session: SessionLike) -> None:
        """Let bookmark subscriptions read the log again; above the limits, offline or cut it."""
        self._engine.over_high_water(session.number)
        if session.unsent_bytes > self._config.slow_client_bytes:
            session.finish_slow_client()
        elif (
            session.unsent_bytes > self._config.offline_bytes
            and not session.is_offline
            and self._moved_bytes < OFFLINE_STEP_BYTES
        ):
            self._take_offline(session)

    def _take_offline(self, session: SessionLike) -> None:
        """Let what is unsent wait in a file, if the broker has files."""
        if self._new_offline_queue is None:
            return
        what = f"{self._engine.describe(session.number)}: {session.unsent_bytes} bytes unsent"
        self._moved_bytes += session.unsent_bytes
        try:
            session.take_offline(self._new_offline_queue(session.number))
        except StoreError as error:  # they stay in memory, up to the limit
            _log.warning("%s: %s: not taken offline: %s", self._config.name, what, error)
            return
        self._times_offline += 1
        _log.warning("%s: %s: taken offline, to a file", self._config.name, what)

    def _check_unsent(self) -> None:
        """Offline or cut the slowest clients while all connections have too much to send."""
        self._queued_bytes = 0
        unsent = sum(map(_bytes_in_memory, self._sessions.values()))
        for session in sorted(self._sessions.values(), key=_bytes_in_memory, reverse=True):
            if unsent <= self._config.max_unsent_bytes:
                break
            unsent -= _bytes_in_memory(session)
            was_offline = session.is_offline
            if not was_offline:
                self._take_offline(session)
            if was_offline or not session.is_offline:
                session.finish_slow_client()
        offline = sum(map(_bytes_in_file, self._sessions.values()))
        for session in sorted(self._sessions.values(), key=_bytes_in_file, reverse=True):
            if offline <= self._config.max_offline_bytes:
                break
            offline -= session.offline_bytes
            session.finish_slow_client()


def _bytes_in_memory(session: SessionLike) -> int:
    return session.unsent_bytes - session.offline_bytes


def _bytes_in_file(session: SessionLike) -> int:
    return session.offline_bytes

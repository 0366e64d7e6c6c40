"""Crashes of a broker with a file-backed state of the world: it has what the log had.

A real broker writes records, deletes some, writes its database and removes the segments of the log
that the database replaces. Its journal is on a disk in memory that records each write. SQLite has
`sow.db` in a directory; it syncs a transaction before it returns, so before that the disk may have
any part of what it has written, and afterwards all of it.

The next broker must have the records as they were at the end of its log, and that end is not before
what was promised.
"""

from __future__ import annotations

import itertools
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import pytest
from typing_extensions import override

from haclient.errors import UsageError
from haclient.protocol.codec import encode_frame
from haclient_fake_server.config import BrokerConfig, FsyncPolicy, SowTopic
from haclient_fake_server.engine.broker import Engine
from haclient_fake_server.engine.recovery import SavedState
from haclient_fake_server.engine.sow.saved import SowLayout
from haclient_fake_server.journal import sow_database
from haclient_fake_server.journal.files import JournalFiles
from haclient_fake_server.journal.log_place import LogPlace
from haclient_fake_server.journal.sow_database import FILE_NAME, SowDatabase
from haclient_fake_server.server import BrokerServer
from haclient_stores.disk.files import Disk
from haclient_stores.errors import StoreCorrupt
from support.engine import START_US, World, decode
from support.recording import Crash, Event, RecordingDisk, kills, power_cuts
from support.silent_session import SilentSession
from support.still_time import run, wait

pytestmark = [pytest.mark.row("SW10", "TL11"), pytest.mark.usefixtures("quiet", "small_database")]

Crashes = Callable[..., Iterator[Crash]]
DatabaseFiles: TypeAlias = "dict[str, bytes]"
Records: TypeAlias = "dict[int, bytes]"
Driven: TypeAlias = "tuple[Driver, list[Event]]"

TOPIC: Final = SowTopic("orders", ("/id",), file_backed=True)
SEGMENT_BYTES: Final = 4096
PAGE_BYTES: Final = 4096
SECTOR_BYTES: Final = 512


class Noted(NamedTuple):
    """What was so when something was noted.

    Attributes:
        position: The last one that was answered.
        database: The number of the database's last whole transaction.
        is_writing: Whether the next one is being written.
    """

    position: int
    database: int
    is_writing: bool


@pytest.fixture
def small_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the write-ahead log comes into the database after a few pages."""
    connect = sow_database._connect

    def connect_small(path: Path) -> sqlite3.Connection:
        database = connect(path)
        assert database.execute("pragma synchronous").fetchone() == (2,), "`torn` relies on it"
        database.execute("pragma wal_autocheckpoint = 8")
        return database

    monkeypatch.setattr(sow_database, "_connect", connect_small)


class Driver:
    """Uses a broker.

    Attributes:
        directory: Where the database is.
        records: By position of the log the records that there are after it.
        databases: The files of the database after each of its transactions.
        removed: How many segments were removed.
    """

    def __init__(self, directory: Path, events: list[Event], *, is_synced: bool) -> None:
        self.directory = directory
        self.disk = RecordingDisk(events)
        self.records: list[Records] = [{}]
        self.databases: list[DatabaseFiles] = []
        self.removed = 0
        fsync = FsyncPolicy.BATCH if is_synced else FsyncPolicy.NONE
        self._config = BrokerConfig(
            listen=(),
            data_dir=directory,
            segment_bytes=SEGMENT_BYTES,
            sow_topics=(TOPIC,),
            fsync=fsync,
        )

    def note(self, *, is_writing: bool = False) -> None:
        self.disk.note(Noted(len(self.records) - 1, len(self.databases) - 1, is_writing))

    def note_database(self) -> None:
        """The database has ended a transaction."""
        self.databases.append(files_in(self.directory))
        self.note()

    async def run(self) -> None:
        """All that happens before the crash."""
        server = BrokerServer(
            self._config, disk=self.disk, wall_clock_us=lambda: START_US, start_id=lambda: 1
        )
        async with server:
            hub = server._entered()
            session = SilentSession(hub.next_number())
            hub.accepted(session, peer="test")

            def send(data: bytes = b"", /, **fields: str) -> None:
                hub.received(session, decode(encode_frame(fields, data)))
                while hub.pump(session):
                    pass

            send(c="logon", client_name="pubber")
            rng = random.Random(5)
            for turn in range(6):
                for number in range(8):
                    key, now = rng.randrange(12), dict(self.records[-1])
                    if key in now and rng.random() < 0.3:
                        send(c="sow_delete", t=TOPIC.name, filter=f"/id = {key}")
                        del now[key]
                    else:
                        now[key] = b'{"id":%d,"v":"%02d%0200d"}' % (key, turn, number)
                        send(now[key], c="p", t=TOPIC.name)
                    self.records.append(now)
                    self.note()
                await wait(5.0)
                await wait(5.0)
                with suppress(UsageError):  # the next one is needed, or still written
                    for number in itertools.count(self.removed + 1):
                        await server.maintain_journal("remove", number)
                        self.removed += 1


def files_in(directory: Path) -> DatabaseFiles:
    """The files of the database; without the shared memory, which no crash leaves."""
    names = FILE_NAME, FILE_NAME + "-wal"
    return {name: (directory / name).read_bytes() for name in names if (directory / name).exists()}


def torn(
    before: DatabaseFiles, after: DatabaseFiles, rng: random.Random
) -> Iterator[DatabaseFiles]:
    """What the files may be while a transaction is written.

    The write-ahead log is synced before anything of it comes into the database, and the database
    before the log begins anew.
    """
    name, log = FILE_NAME, FILE_NAME + "-wal"
    yield before
    yield after
    old, new = before.get(log, b""), after[log]
    for _ in range(3):
        end = rng.randrange(len(new))
        yield {name: before[name], log: new[:end] + old[end:]}
        yield {name: before[name], log: mixed(old, new, SECTOR_BYTES, rng)}
        if before[name] != after[name]:
            yield {name: mixed(before[name], after[name], PAGE_BYTES, rng), log: new}


def mixed(old: bytes, new: bytes, size: int, rng: random.Random) -> bytes:
    """A file of which some parts are old, and the others new."""
    chosen = (rng.choice((old, new)) for _ in range(0, len(new), size))
    return b"".join(
        (each[at : at + size]).ljust(min(size, len(new) - at), b"\0")
        for at, each in zip(range(0, len(new), size), chosen, strict=True)
    )


def left(driver: Driver, crash: Crash, rng: random.Random) -> Iterator[DatabaseFiles]:
    """What a crash may leave of the database; nothing where it was not made yet."""
    noted = crash.notes[-1] if crash.notes else None
    if not isinstance(noted, Noted) or noted.database < 0:
        yield {}
    elif noted.is_writing and noted.database + 1 < len(driver.databases):
        before, after = driver.databases[noted.database : noted.database + 2]
        yield from torn(before, after, rng)
    else:
        yield driver.databases[noted.database]


class Reopened(World):
    """The next broker."""

    def __init__(self, disk: Disk, log: Path, database: Path) -> None:
        self.files = JournalFiles(log, disk, segment_bytes=SEGMENT_BYTES, instance_id=1, start_id=2)
        self.database = SowDatabase(database, self.files, SowLayout.of((TOPIC,)))
        self.has_saved = self.database.saved is not None
        super().__init__(journal=self.files, sow_topics=(TOPIC,))

    @override
    def _new_engine(self) -> Engine:
        self.database.note_start()
        saved = SavedState(records=self.database.saved)
        return Engine(self.settings, self.files, now=self.now, now_us=START_US, saved=saved)

    @property
    def records(self) -> list[bytes]:
        """The records that it has, in order."""
        reader = self.client("reader")
        reader.send(c="sow", cid="1", t=TOPIC.name)
        return sorted(each.data for each in reader.take() if each.kind == "sow")

    def close(self) -> None:
        self.database.close()
        self.files.close()


def drive(directory: Path, monkeypatch: pytest.MonkeyPatch, *, is_synced: bool) -> Driven:
    """A broker does its work, of which each event is recorded."""
    log = directory / "log"
    log.mkdir()
    events: list[Event] = []
    driver = Driver(log, events, is_synced=is_synced)
    commit = SowDatabase.commit

    def commit_noted(database: SowDatabase, place: LogPlace) -> None:
        if not driver.databases:
            driver.databases.append(files_in(driver.directory))
        driver.note(is_writing=True)
        commit(database, place)
        driver.note_database()

    with monkeypatch.context() as patch:
        patch.setattr(SowDatabase, "commit", commit_noted)
        run(driver.run)
    assert driver.removed > 2
    assert len({each[FILE_NAME] for each in driver.databases}) > 2, "the log came into the database"
    return driver, events


def check(directory: Path, driven: Driven, crashes: Iterator[Crash], *, keeps_all: bool) -> None:
    """Check what the next broker has after each of some crashes."""
    driver, _ = driven
    rng, database, taken, during = random.Random(1), directory / "next", 0, 0
    for crash in crashes:
        noted = crash.notes[-1] if crash.notes else Noted(0, -1, False)
        assert isinstance(noted, Noted)
        during += noted.is_writing
        for files in left(driver, crash, rng):
            shutil.rmtree(database, ignore_errors=True)
            database.mkdir()
            for name, data in files.items():
                (database / name).write_bytes(data)
            world = Reopened(crash.disk(), driver.directory, database)
            end = world.files.next_position - 1
            assert world.records == sorted(driver.records[end].values()), crash.at
            assert end >= noted.position or not keeps_all
            taken += world.has_saved
            world.close()
    assert taken
    assert during


@pytest.mark.parametrize(
    ("crash", "is_synced"), [(kills, False), (power_cuts, True), (power_cuts, False)]
)
def test_whatever_a_crash_leaves_the_records_are_those_of_the_log(
    crash: Crashes,
    every: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_synced: bool,
) -> None:
    driven = drive(tmp_path, monkeypatch, is_synced=is_synced)
    chosen = itertools.islice(crash(driven[1]), 0, None, 2 * every)
    check(tmp_path, driven, chosen, keeps_all=is_synced or crash is kills)


def test_a_database_that_is_written_before_the_log_is_synced_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = JournalFiles.sync

    def sync_sealed(journal: JournalFiles) -> None:
        if journal.has_unsealed:
            sync(journal)

    with monkeypatch.context() as patch:
        patch.setattr(JournalFiles, "sync", sync_sealed)
        driven = drive(tmp_path, monkeypatch, is_synced=False)
    chosen = itertools.islice(power_cuts(driven[1]), 0, None, 5)
    with pytest.raises((AssertionError, StoreCorrupt)):  # other records, or a log it cannot have
        check(tmp_path, driven, chosen, keeps_all=False)

"""Whichever read of its files fails once, a broker that starts has all or says what is wrong.

The broker is a real one. Its journal and what is next to it are on a disk in memory, but for the
records of file-backed topics: SQLite has those in a directory.
"""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Final, TypeVar

import pytest
from typing_extensions import override

from haclient.protocol.codec import encode_frame
from haclient_fake_server.config import BrokerConfig, QueueTopic, SowTopic
from haclient_fake_server.journal import sow_database
from haclient_fake_server.server import BrokerServer
from haclient_stores.errors import StoreError
from support.engine import START_US, decode
from support.read_faults import (
    PUBBER,
    SEGMENT_BYTES,
    ReadFaultDisk,
    body,
    check_each_read,
    number,
    small_reads,
)
from support.silent_session import SilentSession
from support.still_time import run, wait

T = TypeVar("T")
TOPICS: Final = "orders", "kept"
SOW: Final = (
    SowTopic("orders", ("/n",)),
    SowTopic("kept", ("/n",), file_backed=True),
)
QUEUES: Final = (
    QueueTopic(name="work", topics=("orders",)),
    QueueTopic(name="paged", topics=("kept",), file_backed=True, priority="/p"),
)


@pytest.fixture(autouse=True)
def _small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    small_reads(monkeypatch)
    connect = sow_database._connect

    def connect_without_sync(path: Path) -> sqlite3.Connection:  # nobody loses power here
        database = connect(path)
        database.execute("pragma synchronous = off")
        return database

    monkeypatch.setattr(sow_database, "_connect", connect_without_sync)


class StartDisk(ReadFaultDisk):
    """A disk of which each read of any file counts."""

    @override
    def _counts(self, path: Path) -> bool:
        return path.suffix not in {".lock", ".new"}


class BrokerData:
    """The files of a broker, and its processes one after the other.

    Args:
        disk: The files but one.
        directory: Where the records of file-backed topics are.
    """

    def __init__(self, disk: ReadFaultDisk, directory: Path) -> None:
        self.disk = disk
        self._directory = directory
        self._now_us = self._copied_us = START_US
        self._copy = directory.with_name("copy")
        self._config = BrokerConfig(
            listen=(),
            data_dir=directory,
            archive_dir=Path("/archive"),
            segment_bytes=SEGMENT_BYTES,
            sow_topics=SOW,
            queues=QUEUES,
        )

    def copy(self) -> None:
        """Keep the records of file-backed topics as they are now, for `restore`."""
        shutil.copytree(self._directory, self._copy)
        self._copied_us = self._now_us

    def restore(self) -> None:
        """Have the records as they were when they were copied."""
        shutil.rmtree(self._directory)
        shutil.copytree(self._copy, self._directory)
        self._now_us = self._copied_us

    def server(self) -> BrokerServer:
        self._now_us += 1000 * 1_000_000  # by as much later is each process
        now_us = self._now_us
        return BrokerServer(
            self._config, disk=self.disk, wall_clock_us=lambda: now_us, start_id=lambda: now_us
        )


def send(server: BrokerServer, name: str, commands: list[bytes]) -> None:
    """Send commands, each again where the connection has ended with it."""
    hub = server._entered()
    logon = encode_frame({"c": "logon", "client_name": name}, b"")
    waiting = commands[::-1]
    while waiting:
        session = SilentSession(hub.next_number())
        hub.accepted(session, peer="test")
        hub.received(session, decode(logon))
        while waiting:
            hub.received(session, decode(waiting[-1]))
            while hub.pump(session):  # a delete may take several steps
                pass
            if session.is_over:
                break
            waiting.pop()
        hub.disconnected(session)


def publish(server: BrokerServer, first: int, last: int) -> None:
    commands = [
        encode_frame({"c": "p", "t": topic, "s": 2 * n + more}, body(n))
        for n in range(first, last + 1)
        for more, topic in enumerate(TOPICS)
    ]
    send(server, "pubber", commands)


def remove(server: BrokerServer, *numbers: int) -> None:
    """Messages leave the queues, and the file-backed topic."""
    commands: list[dict[str, str | int]] = []
    for n in numbers:
        for more, queue in enumerate(QUEUES):
            mark = f"{PUBBER}|{2 * n + more}|"
            commands.append({"c": "sow_delete", "t": queue.name, "bm": mark})
        commands.append({"c": "sow_delete", "t": "kept", "filter": f"/n = {n}"})
    send(server, "worker", [encode_frame(each, b"") for each in commands])


def state(server: BrokerServer) -> dict[str, object]:
    """What a broker knows."""
    engine = server._entered()._engine
    routes = engine._routes
    found: dict[str, object] = {
        "position": engine.next_position,
        "seen": [each.seen for each in engine._log.publishers if each.id == PUBBER],
    }
    for topic in routes.sow:
        assert all(each.body == body(number(each.body)) for each in topic)
        found[topic.name] = sorted(number(each.body) for each in topic)
    for queue in routes.queues:
        found[queue.settings.name] = [*queue.table.positions()]
    return found


async def fill(data: BrokerData, count: int, *, is_killed: bool) -> ReadFaultDisk:
    """The disk after a process that has written all of its files, and has then gone on."""
    async with data.server() as server:
        publish(server, 1, count)
        remove(server, 1, 2)
        for _ in range(7):
            await wait(10.0)
        publish(server, count + 1, count + 3)
        remove(server, 3, count + 1)
        if is_killed:
            data.copy()
            return StartDisk(data.disk)
    data.copy()
    return StartDisk(data.disk)


async def start_story(data: BrokerData, count: int) -> dict[str, object]:
    """A process starts, writes its files, and ends; then the next one starts."""
    data.disk.is_counting = True
    for _ in range(2):
        try:
            async with data.server() as server:
                publish(server, count + 4, count + 5)
                remove(server, 4, count + 4)
                for _ in range(2):
                    await wait(10.0)
            break
        except StoreError:
            data.disk.release_locks()
    data.disk.is_counting = False
    async with data.server() as server:
        return state(server)


@pytest.mark.parametrize(
    ("is_killed", "count"),
    [(True, 8), *(pytest.param(each, 24, marks=pytest.mark.full) for each in (True, False))],
)
def test_a_start_has_all_or_says_what_is_wrong(
    count: int, *, is_killed: bool, tmp_path: Path
) -> None:
    directory = tmp_path / "log"
    directory.mkdir()
    data = BrokerData(StartDisk(), directory)
    before = run(fill, data, count, is_killed=is_killed)

    def outcome(disk: ReadFaultDisk) -> dict[str, object]:
        data.disk = disk
        data.restore()
        return run(start_story, data, count)

    check_each_read(before, outcome, at_least=40)

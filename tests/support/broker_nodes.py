"""Brokers with options in one process: their files, and their processes one after the other."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import trio
from typing_extensions import override

from haclient.transport.links.memory_network import network
from haclient_fake_server.config import BrokerConfig, FsyncPolicy
from haclient_fake_server.engine.settings import (
    Entitlement,
    LogTopic,
    QueueTopic,
    ReplicateTo,
    SowTopic,
)
from haclient_fake_server.server import BrokerServer
from haclient_stores.disk.files import File, FileAccess, RealDisk, Region
from haclient_stores.errors import StoreError, StoreFull
from support.broker_clients import Surroundings
from support.engine import START_US

__all__ = ["EAST", "EXPIRATION_S", "LEASE_S", "OPTIONS", "WEST", "Case", "Node"]

EAST, WEST = "pairs-east:1", "pairs-west:1"
EXPIRATION_S: Final = 30.0
LEASE_S: Final = 2.0

Options: TypeAlias = dict[str, Any]

_SMALL: Final[Options] = {"segment_bytes": 2048, "preallocated_files": 1}
_LOW: Final[Options] = {"high_water_bytes": 1000, "low_water_bytes": 200}
_QUEUE: Final = QueueTopic(name="jobs", topics=("work",), max_per_subscription_backlog=3)
_PRICES: Final = SowTopic("prices", ("/id",))
_REPLICA: Final = {"sync replica", "async replica", "downgraded replica"}

OPTIONS: Final[dict[str, Options]] = {
    "plain": {},
    "queue leases": {"queue": {"lease_s": LEASE_S}},
    "queue paged": {"queue": {"file_backed": True}},
    "queue expiration": {"queue": {"expiration_s": 15.0, "dead_letter": "dead"}},
    "queue once": {"queue": {"semantics": "at-most-once"}},
    "queue of a pattern": {"queue": {"topics": ("^wor",)}},
    "priority": {"queue": {"priority": "/n"}},
    "dead letters": {"queue": {"max_deliveries": 2, "lease_s": LEASE_S, "dead_letter": "dead"}},
    "sow expiration": {"sow": {"expiration_s": EXPIRATION_S}},
    "sow on disk": {"sow": {"file_backed": True}},
    "pattern": {"sow": {"name": "^pri", "is_pattern": True}},
    "history": {"sow": {"history": True}},
    "past": {"sow": {"history": True}},
    "page": {},
    "durable reader": {},
    "conflation": {},
    "rate": {},
    "sync replica": {},
    "async replica": {},
    "downgraded replica": {},
    "filtered log": {},
    "small segments": _SMALL,
    "by age": {**_SMALL, "archive_after_s": 5.0, "compress_after_s": 10.0, "remove_after_s": 70.0},
    "preallocated": {"segment_bytes": 4096, "preallocated_files": 4},
    "entitlements": {"users": {"ann": "x", "bob": "x"}},
    "offline": {"offline_bytes": 3000},
    "cut": {**_LOW, "offline_bytes": 3000, "slow_client_bytes": 15000},
    "little memory": {**_LOW, "max_unsent_bytes": 15000},
    "from the log": _LOW,
    "fsync": {"fsync": FsyncPolicy.BATCH},
    "acks at once": {"ack_interval_s": 0.0},
    "small steps": {"query_step_bytes": 1},
}


class Case(NamedTuple):
    """What is combined.

    Attributes:
        options: Of the broker, one or two.
        changes: What happens, in order.
        seed: Of what a case decides by chance.
        overlaps: Whether the changes happen at once.
    """

    options: tuple[str, ...]
    changes: tuple[str, ...]
    seed: int = 0
    overlaps: bool = False

    @property
    def has_replica(self) -> bool:
        return bool(_REPLICA & {*self.options})

    @property
    def has_clocks(self) -> bool:
        return bool({"clock ahead", "clock back"} & {*self.changes})


def _config(case: Case, name: str, directory: Path) -> BrokerConfig:
    given: Options = {"ack_interval_s": 0.5, "segment_bytes": 64 * 1024}
    queue, sow = _QUEUE, _PRICES
    for option in case.options:
        more = {**OPTIONS[option]}
        queue = replace(queue, **more.pop("queue", {}))
        sow = replace(sow, **more.pop("sow", {}))
        given |= more
    log = ("work", "prices", "dead", "orders")
    filtered = "filtered log" in case.options
    given["log_topics"] = tuple(
        LogTopic(each, filter="/even = 1" if filtered and each == "orders" else "") for each in log
    )
    login = ""
    if "users" in given:
        login = "ann:x@"
        given["entitlements"] = (
            Entitlement("ann", "all", ".*"),
            Entitlement("ann", "replicate", ".*"),
            Entitlement("bob", "read", "orders", "/even = 1"),
        )
    if case.has_replica:
        other = WEST if name == "east" else EAST
        mode: Any = "async" if "async replica" in case.options else "sync"
        after = 1.0 if "downgraded replica" in case.options else None
        given["replicate_to"] = (ReplicateTo(f"mem://{login}{other}", mode, after),)
    return BrokerConfig(
        name=name,
        listen=(f"mem://{EAST if name == 'east' else WEST}",),
        data_dir=directory / "log",
        archive_dir=directory / "archive",
        sow_topics=(sow,),
        queues=(queue,),
        **given,
    )


class Node:
    """A broker, its files, and its processes, one after the other.

    Attributes:
        ahead_s: By how much its clock is ahead.
    """

    def __init__(self, name: str, case: Case, root: Path, around: Surroundings) -> None:
        self.name = name
        self.address = EAST if name == "east" else WEST
        self.ahead_s = 0.0
        self.disk = FaultyDisk()
        self.server: BrokerServer | None = None
        self._case = case
        self._root = root
        self._around = around
        self._lives = 0
        self._scope = trio.CancelScope()
        self._over = trio.Event()

    @property
    def is_up(self) -> bool:
        return self.server is not None

    @property
    def directory(self) -> Path:
        return self._root / f"{self.name}-{self._lives}"

    def clock_us(self) -> int:
        return START_US + int((trio.current_time() + self.ahead_s) * 1e6)

    async def start(self) -> None:
        """Start a process, on what the last one has left."""
        if self.server is None:
            await self._around.nursery.start(self._run)

    async def _run(self, *, task_status: trio.TaskStatus[None]) -> None:
        self.disk = disk = FaultyDisk()
        self._scope, self._over = trio.CancelScope(), trio.Event()
        scope, over = self._scope, self._over
        config = _config(self._case, self.name, self.directory)
        number = random.Random(f"{self.name} {trio.current_time()}").getrandbits(60)
        try:
            with scope:
                async with BrokerServer(
                    config, disk=disk, wall_clock_us=self.clock_us, start_id=lambda: number
                ) as server:
                    self.server = server
                    task_status.started()
                    await trio.sleep_forever()
        except* StoreError as error:
            if not disk.has_failed:
                self._around.problems.append(f"{self.name} has ended with {error!r}")
        finally:
            if self.server is not None:
                self.check_statistics()
            self.server = None
            over.set()

    def check_statistics(self) -> None:
        """Check what a broker says of itself."""
        assert self.server is not None
        if self.server.missing:
            self._around.problems.append(f"{self.name}: {self.server.missing} records are missing")
        if self.server.ended_connections.get("internal error") and not self.disk.has_failed:
            self._around.problems.append(f"{self.name}: a connection has met an internal error")

    async def stop(self) -> None:
        """Stop cleanly."""
        self._scope.cancel()
        await self._over.wait()

    async def kill(self) -> None:
        """End the process at this instant: its files are as they are now."""
        if self.server is None:
            return
        before = self.directory
        self._lives += 1
        if before.exists():
            shutil.copytree(before, self.directory)
        for each in network().connections:
            if self.address == each.target or each.source == self.name:
                each.reset()
        await self.stop()
        shutil.rmtree(before, ignore_errors=True)


class FaultyDisk(RealDisk):
    """A disk whose writes fail.

    Attributes:
        writes_fail: The next write to the journal is made by half and fails, for ever after.
        has_room: Whether other files than the journal can be written.
        has_failed: Whether anything has failed.
    """

    def __init__(self) -> None:
        self.writes_fail = False
        self.has_room = True
        self.has_failed = False

    def check(self, path: Path) -> None:
        """Fail if a write to this file is to fail."""
        is_journal = path.name.startswith("journal.")
        if self.writes_fail if is_journal else not self.has_room:
            self.has_failed = True
            text = f"{path.name}: planted"
            raise StoreError(text) if is_journal else StoreFull(text)

    @override
    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        return _File(self, super().open(path, create=create, writable=writable))

    @override
    def create_new(self, path: Path, *, locked: bool = False) -> File:
        return _File(self, super().create_new(path, locked=locked))

    @override
    def replace(self, path: Path, data: bytes) -> None:
        self.check(path)
        super().replace(path, data)

    @override
    def fsync_dir(self, path: Path) -> None:
        """Nobody loses power here."""


class _File(File):
    def __init__(self, disk: FaultyDisk, file: File) -> None:
        self._disk = disk
        self._file = file
        self.path = file.path

    @override
    def size(self) -> int:
        return self._file.size()

    @override
    def pread(self, count: int, offset: int) -> bytes:
        return self._file.pread(count, offset)

    @override
    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        try:
            self._disk.check(self.path)
        except StoreError:
            self._file.pwrite(memoryview(data)[: len(data) // 2], offset)
            raise
        self._file.pwrite(data, offset)

    @override
    def allocate(self, size: int) -> None:
        self._file.allocate(size)

    @override
    def map(self, offset: int, length: int) -> Region:
        return self._file.map(offset, length)

    @override
    def access(self) -> FileAccess | None:
        return self._file.access()

    @override
    def set_access(self, access: FileAccess) -> None:
        self._file.set_access(access)

    @override
    def fsync(self) -> None:
        """Nobody loses power here."""

    @override
    def close(self) -> None:
        self._file.close()

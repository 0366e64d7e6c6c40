"""Stories of a broker that are told once for each read of its journal, which then fails.

A story is a broker on a disk in memory, and actors: clients that do what theirs do, and connect
again when their connection has ended. It is told without a fault first. Then each read of a segment
and each open of one fails once, and what the actors end with has to be the same: only the time may
be another one.
"""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, cast

import pytest
from typing_extensions import override

from haclient.protocol.identity import publisher_id
from haclient.protocol.messages import Message
from haclient_fake_server.engine import journal, log_query, recovery, replay
from haclient_fake_server.engine.journal import records_of
from haclient_fake_server.engine.queues import message_reader, message_table
from haclient_fake_server.engine.replication import destination, receiver
from haclient_fake_server.engine.sow import history
from haclient_fake_server.journal import files, places
from haclient_fake_server.journal.format import Record
from haclient_stores.errors import StoreError
from simulation.disk import SimulatedDisk
from support.engine import Peer
from support.queue_world import QueueWorld

__all__ = ["SEGMENT_BYTES", "Actor", "ReadFaultDisk", "Story", "check_each_read", "small_reads"]

SEGMENT_BYTES: Final = 4096
MAX_SHOWN: Final = 5
_CHUNK_BYTES: Final = 700
_SMALL: Final = (
    (journal, "INDEX_STRIDE_BYTES", 600),
    (message_table, "PAGED_ROWS", 4),
    (message_table, "PAGED_STRETCH", 16),
    (message_table, "RESIDENT_CHUNKS", 2),
    (message_reader, "READ_AHEAD_BYTES", _CHUNK_BYTES),
    (message_reader, "REREAD_BYTES", _CHUNK_BYTES),
    (replay, "CHUNK_BYTES", _CHUNK_BYTES),
    (replay, "AHEAD_BYTES", _CHUNK_BYTES),
    (destination, "CHUNK_BYTES", _CHUNK_BYTES),
    (receiver, "CHUNK_BYTES", _CHUNK_BYTES),
    (recovery, "_CHUNK_BYTES", 2 * _CHUNK_BYTES),
    (history, "STEP_BYTES", _CHUNK_BYTES),
    (log_query, "STEP_BYTES", _CHUNK_BYTES),
    (places, "MEMBER_BYTES", 1024),
    (files, "MAX_OPEN_SEGMENTS", 2),
)


KINDS: Final = "abacdbaefgdb"
PUBBER: Final = publisher_id("pubber")


def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything read little at a time: a short log then takes many reads."""
    for module, name, value in _SMALL:
        monkeypatch.setattr(module, name, value)


class ReadFaultDisk(SimulatedDisk):
    """A disk on which some reads of a journal in a row fail.

    Args:
        before: Whose files it has.
        fails_at: The number of the first read that fails, from 1; 0 for none.
        times: How many fail.

    Attributes:
        is_counting: Whether reads count now, and may fail.
        reads: What was read so far.
    """

    def __init__(
        self, before: SimulatedDisk | None = None, *, fails_at: int = 0, times: int = 1
    ) -> None:
        super().__init__()
        if before is not None:
            copied = before.after_kill()
            self._names, self._history = copied._names, copied._history
        self._failing = range(fails_at, fails_at + times) if fails_at else range(0)
        self.is_counting = False
        self.reads: list[str] = []
        self._one = threading.Lock()  # each read has a number of its own, whatever thread it is in

    @override
    def check(self, operation: str, path: Path) -> None:
        if self.is_counting and operation in {"open", "pread"} and self._counts(path):
            with self._one:
                self.reads.append(f"{operation} {path.name}")
                number = len(self.reads)
            if number in self._failing:
                raise StoreError(f"{path}: cannot {operation}: planted")
        super().check(operation, path)

    def _counts(self, path: Path) -> bool:
        return path.name.startswith("journal.") and path.suffix not in {".lock", ".new"}

    def release_locks(self) -> None:
        """The process that held them is gone."""
        for inode in self._names.values():
            inode.locked = False


class Actor(ABC):
    """A client of the broker.

    Attributes:
        name: Its name.
        user: Its user.
        peer: Its connection, the last one if it has none now.
    """

    name = ""
    user = "all"

    def __init__(self) -> None:
        self.peer: Peer | None = None

    @property
    def is_connected(self) -> bool:
        return self.peer is not None and not self.peer.closed

    def step(self, world: QueueWorld) -> None:
        """Connect if that is necessary, and do the next thing."""
        if not self.is_connected:
            if self.peer is not None:
                assert self.peer.closed in {"internal error", "restart"}, self.peer.closed
                self.lost()
            self.peer = world.client(self.name, user_id=self.user, pw="x")
            self.connected(self.peer)
        if self.peer is not None and self.is_connected:
            self.act(self.peer)

    def close(self) -> None:
        """End the connection, until the next step."""
        if self.peer is not None:
            self.peer.close()
            self.lost()
            self.peer = None

    def connected(self, peer: Peer) -> None:  # noqa: B027  # some have nothing to do then
        """A connection has logged on."""

    def lost(self) -> None:  # noqa: B027  # as above
        """A connection has ended."""

    @abstractmethod
    def act(self, peer: Peer) -> None:
        """Do the next thing."""


def ask(peer: Peer, data: bytes = b"", /, *, ack: str, **fields: str) -> Message | None:
    """The answer to a command; `None` when the connection ends with it."""
    peer.send(data, cid="ask", a=ack, **fields)
    inbox = peer.take()
    answers = [each for each in inbox if each.kind == "ack" and each.ack_type == ack]
    peer.put_back([each for each in inbox if each not in answers])
    if not answers:
        assert peer.closed == "internal error", (fields, inbox)
        return None
    assert answers[-1].status == "success", answers
    return answers[-1]


class Publisher(Actor):
    """Publishes the messages of some numbers, two in each step, until they are confirmed."""

    name = "pubber"

    def __init__(self, first: int, last: int) -> None:
        super().__init__()
        self._next, self._last = first, last

    @override
    def act(self, peer: Peer) -> None:
        for _ in range(2):
            if self._next <= self._last:
                n = self._next
                if ask(peer, body(n), ack="persisted", c="p", t="orders", s=str(n)) is None:
                    return
                self._next += 1


class Story:
    """A broker, its processes one after the other, and its actors.

    Args:
        disk: Its files.
        start: Starts a process at a time.
        actors: The clients.

    Attributes:
        world: The present process.
        actors: The clients; there may come more.
        events: What all processes have reported.
    """

    def __init__(
        self,
        disk: ReadFaultDisk,
        start: Callable[[ReadFaultDisk, float], QueueWorld],
        actors: Sequence[Actor],
    ) -> None:
        self.disk = disk
        self._start = start
        self.actors = list(actors)
        self.events: list[str] = []
        self.world = start(disk, 100.0)

    def run(self, rounds: int) -> None:
        """Let each actor do a thing each second."""
        self.disk.is_counting = True
        for _ in range(rounds):
            for actor in self.actors:
                self.attempt(actor.step)
            self.attempt(lambda world: world.advance(1.0))

    def wait_until(self, now: float) -> None:
        """Let time pass."""
        while self.world.now < now:
            self.attempt(lambda world: world.advance(now - world.now))

    def attempt(self, what: Callable[[QueueWorld], None]) -> None:
        """Do something; a broker that ends with a failed disk is started again."""
        try:
            what(self.world)
        except StoreError as error:
            self.events.append(str(error))
            self.restart()

    def restart(self) -> None:
        """The process is gone, and the next one starts."""
        for peer in tuple(self.world.peers.values()):
            peer.closed = peer.closed or "restart"
        self.events += self.world.events
        self.disk.release_locks()
        was_counting, self.disk.is_counting = self.disk.is_counting, False
        self.world = self._start(self.disk, self.world.now + 1.0)
        self.disk.is_counting = was_counting


def body(n: int) -> bytes:
    """The message of a number."""
    kind = KINDS[n % len(KINDS)]
    return b'{"n": %d, "kind": "%b", "p": %d, "fill": "%b"}' % (
        n,
        kind.encode(),
        n * 7 % 5,
        b"x" * (n * 137 % 350),
    )


def number(data: bytes) -> int:
    found = re.match(rb'{"n": (\d+)', data)
    assert found is not None, data
    return int(found[1])


def records(world: QueueWorld) -> Iterator[Record]:
    """All that the log has."""
    chunk, cursor = world.journal.read(world.journal.seek(1), 4096)
    while chunk:
        yield from records_of(chunk)
        chunk, cursor = world.journal.read(cursor, 4096)


def filled(start: Callable[[ReadFaultDisk, float], QueueWorld], count: int) -> ReadFaultDisk:
    """The files of a broker that was closed with some messages in several segments."""
    disk = ReadFaultDisk()
    world = start(disk, 90.0)
    publisher, other = (world.client(each, user_id="all", pw="x") for each in ("pubber", "other"))
    for n in range(1, count + 1):
        publisher.publish(n, body(n))
        if n % 3 == 0:
            other.publish(n, b"{}" * 250, t="others")
    world.advance(2.0)
    world.keep_snapshots()
    world.files.close()
    return disk


def check_each_read(
    before: ReadFaultDisk,
    tell: Callable[[ReadFaultDisk], Mapping[str, object]],
    *,
    at_least: int,
    times: int = 1,
) -> None:
    """Tell a story once for each of its reads, which fails; the end always has to be the same.

    Args:
        before: The files with which it begins.
        tell: Tells it; the end.
        at_least: So many reads there have to be.
        times: How many reads fail, one after the other.
    """
    disk = type(before)(before)
    expected = tell(disk)
    assert len(disk.reads) >= at_least, disk.reads
    problems: list[str] = []
    for number in range(1, len(disk.reads) + 1):
        disk = type(before)(before, fails_at=number, times=times)
        try:
            found = tell(disk)
            problem = "" if found == expected else f"{_differences(found, expected)}"
        except AssertionError as error:
            problem = f"{error}"
        if problem:
            problems.append(f"when read {number} failed, {disk.reads[number - 1]}: {problem}")
    assert not problems, f"{len(problems)} problems\n" + "\n".join(problems[:MAX_SHOWN])


def _differences(found: Mapping[str, object], expected: Mapping[str, object]) -> str:
    parts: list[str] = []
    for name, wanted in expected.items():
        here = found[name]
        if isinstance(here, list) and isinstance(wanted, list):
            more, less = cast("list[object]", here), cast("list[object]", wanted)
            parts += [f"{name}: more {each}" for each in more if each not in less]
            parts += [f"{name}: not {each}" for each in less if each not in more]
        if here != wanted:
            parts.append(f"{name} differs")
    return ", ".join(parts)

"""Whichever read of the journal fails once, a queue ends with what it would have had."""

from __future__ import annotations

import base64
import json
from typing import Any, Final

import pytest
from typing_extensions import override

from haclient.protocol.messages import Message
from haclient_fake_server.engine.settings import Entitlement, QueueTopic
from haclient_fake_server.journal.format import RecordCommand, read_removals
from support.engine import Peer
from support.queue_world import QueueWorld
from support.read_faults import (
    KINDS,
    PUBBER,
    SEGMENT_BYTES,
    Actor,
    Publisher,
    ReadFaultDisk,
    Story,
    ask,
    body,
    check_each_read,
    filled,
    number,
    records,
    small_reads,
)


@pytest.fixture(autouse=True)
def _small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    small_reads(monkeypatch)


def numbers(kind: str, count: int) -> list[int]:
    return [n for n in range(1, count + 1) if KINDS[n % len(KINDS)] == kind]


class Worker(Actor):
    """Takes messages of one kind from the queue; each is acknowledged in the step after."""

    def __init__(self, kind: str, held: dict[int, Worker], *, cancels: bool = False) -> None:
        super().__init__()
        self.name, self.user = f"worker {kind}", kind
        self.kind = kind
        self.got: list[int] = []
        self._held = held  # by the worker that has each message now
        self._done: set[int] = set()
        self._mine: dict[int, str] = {}
        self._fields = {"opts": "cancel"} if cancels else {}

    @override
    def connected(self, peer: Peer) -> None:
        peer.send(
            c="subscribe",
            cid="1",
            sub_id="1",
            t="work",
            opts="max_backlog=3",
            filter=f"/kind = '{self.kind}'",
        )

    @override
    def lost(self) -> None:
        assert self.peer is not None
        self._take_all(self.peer)
        for n in self._mine:
            self._held.pop(n, None)
        self._mine.clear()

    @override
    def act(self, peer: Peer) -> None:
        for n, bookmark in list(self._mine.items()):
            if ask(peer, ack="persisted", c="sow_delete", t="work", bm=bookmark, **self._fields):
                del self._mine[n], self._held[n]
                if not self._fields:
                    self._done.add(n)
        self._take_all(peer)

    def _take_all(self, peer: Peer) -> None:
        for message in peer.take():
            if message.kind == "p":
                self._take(message)

    def _take(self, message: Message) -> None:
        n = number(message.data)
        assert message.data == body(n)
        assert KINDS[n % len(KINDS)] == self.kind, "its filter excludes this one"
        assert n not in self._held, "somebody has it"
        assert n not in self._done, "it was acknowledged"
        self._held[n], self._mine[n] = self, message.bookmark
        self.got.append(n)


class Operator(Actor):
    """Ends messages that nobody takes: by a filter, and by their bookmarks."""

    name = "operator"

    def __init__(self, bookmarks: str) -> None:
        super().__init__()
        self._commands: list[dict[str, str]] = [
            {"filter": "/kind = 'e'", "s": "1"},
            {"bm": bookmarks},
            {"filter": "/kind = 'g' and /n < 20", "opts": "expire", "s": "2"},
        ]

    @override
    def act(self, peer: Peer) -> None:
        if self._commands and ask(
            peer, ack="persisted", c="sow_delete", t="work", **self._commands[0]
        ):
            del self._commands[0]


QUEUES: Final[dict[str, dict[str, Any]]] = {
    "paged": {"file_backed": True},
    "in memory": {},
    "priorities": {"file_backed": True, "priority": "/p"},
    "once": {"file_backed": True, "semantics": "at-most-once", "lease_s": None, "max_cancels": 0},
    "entitlements": {"file_backed": True, "priority": "/p"},
}


ENTITLEMENTS: Final = (
    *(Entitlement(kind, "all", "work", f"/kind = '{kind}'") for kind in ("a", "b", "d")),
    Entitlement("all", "all", ".*"),
)


class QueueStory(Story):
    """Workers of a queue, others that end its messages, and what it leaves as dead letters."""

    def __init__(self, disk: ReadFaultDisk, kind: str, count: int) -> None:
        options = QUEUES[kind]
        self._entitlements = ENTITLEMENTS if kind == "entitlements" else ()
        settings: dict[str, Any] = {"lease_s": 30.0, "max_cancels": 1, **options}
        self._queue = QueueTopic(
            name="work",
            topics=("orders",),
            max_per_subscription_backlog=3,
            expiration_s=100.0,
            dead_letter="dead",
            **settings,
        )
        self._count = count
        held: dict[int, Worker] = {}
        self.workers = [Worker("a", held), Worker("b", held), Worker("d", held, cancels=True)]
        bookmarks = ",".join(f"{PUBBER}|{n}|" for n in numbers("f", count))
        self.operator = Operator(bookmarks)
        super().__init__(disk, self.start, [*self.workers, Publisher(count + 1, count + 3)])

    def start(self, disk: ReadFaultDisk, now: float) -> QueueWorld:
        return QueueWorld(
            disk,
            start_id=int(now),
            is_synced=False,
            queues=(self._queue,),
            segment_bytes=SEGMENT_BYTES,
            now=now,
            ack_interval_s=0.0,
            users=dict.fromkeys(("a", "b", "d", "all"), "x"),
            entitlements=self._entitlements,
        )

    def end(self) -> dict[str, object]:
        self.run(3)
        self.attempt(lambda _: self.workers[0].close())
        self.run(6 + self._count // 3)
        early = [sorted({*each.got}) for each in self.workers]
        self.actors.append(self.operator)
        self.run(6)
        self.wait_until(300.0)
        self.disk.is_counting = False
        world, removed = self.world, list[tuple[int, int]]()
        dead: list[tuple[int, str]] = []
        for record in records(world):
            if record.command == RecordCommand.QUEUE_REMOVE:
                removed += [(each.sequence, each.reason) for each in read_removals(record).entries]
            elif record.correlation_id:
                reason = json.loads(base64.b64decode(record.correlation_id))["reason"]
                assert record.payload == body(number(record.payload))
                dead.append((number(record.payload), reason))
        return {
            "early": early,
            "removed": sorted(removed),
            "dead": sorted(dead),
            "taken": [sorted({*each.got}) for each in self.workers],
            "left": world.available("work", user_id="all", pw="x"),
        }


FULL: Final = [pytest.param(kind, 16, marks=pytest.mark.full) for kind in QUEUES]


@pytest.mark.parametrize(("kind", "count"), [("paged", 8), ("in memory", 12), *FULL])
def test_a_queue_delivers_and_expires_the_same_whatever_read_fails(kind: str, count: int) -> None:
    before = filled(QueueStory(ReadFaultDisk(), kind, count).start, count)
    check_each_read(before, lambda disk: QueueStory(disk, kind, count).end(), at_least=40)

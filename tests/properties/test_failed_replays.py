"""Whichever read of the journal fails once, those who read the log get all of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final, cast

import pytest
import trio
from typing_extensions import override

from haclient.errors import UsageError
from haclient.protocol.messages import Message
from haclient_fake_server.admin import JournalAction
from haclient_fake_server.config import BrokerConfig
from haclient_fake_server.engine.settings import SowTopic
from haclient_fake_server.hub import Hub
from haclient_fake_server.journal.format import segment_number
from haclient_fake_server.maintenance import JournalMaintenance
from haclient_stores.errors import StoreError
from support.engine import Peer
from support.queue_world import DIRECTORY, QueueWorld
from support.read_faults import (
    PUBBER,
    SEGMENT_BYTES,
    Actor,
    Publisher,
    ReadFaultDisk,
    Story,
    body,
    check_each_read,
    filled,
    number,
    small_reads,
)

ARCHIVE: Final = Path("/archive")


@pytest.fixture(autouse=True)
def _small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    small_reads(monkeypatch)


TOPICS: Final = (SowTopic("orders", ("/p",), history=True),)


def start(disk: ReadFaultDisk, now: float, sow_topics: tuple[SowTopic, ...] = TOPICS) -> QueueWorld:
    return QueueWorld(
        disk,
        start_id=int(now),
        is_synced=False,
        queues=(),
        segment_bytes=SEGMENT_BYTES,
        archive=ARCHIVE,
        now=now,
        ack_interval_s=0.0,
        sow_topics=sow_topics,
    )


class Reader(Actor):
    """Reads the log, and goes on behind the last message that it has got.

    Args:
        name: Of the client.
        bookmark: Where it begins.
        fields: Of its subscription.
    """

    def __init__(self, name: str, bookmark: str = "0", **fields: str) -> None:
        super().__init__()
        self.name = name
        self.got: list[int] = []
        self._bookmark = bookmark
        self._fields = fields

    @override
    def connected(self, peer: Peer) -> None:
        peer.subscribe(bm=self._bookmark, **self._fields)

    @override
    def act(self, peer: Peer) -> None:
        for message in peer.take():
            if message.kind == "p":
                self.take(message)

    @override
    def lost(self) -> None:
        assert self.peer is not None
        self.act(self.peer)

    def take(self, message: Message) -> None:
        assert message.data == body(number(message.data))
        self.got += [number(message.data)] * max(len(message.sub_ids), 1)
        self._bookmark = message.bookmark


class RangeReader(Reader):
    """Reads a part of the log, from its beginning again where its connection has ended."""

    @override
    def lost(self) -> None:
        self.got.clear()

    @override
    def take(self, message: Message) -> None:
        before = self._bookmark
        super().take(message)
        self._bookmark = before


class GroupReader(RangeReader):
    """Two subscriptions that are resumed together."""

    @override
    def connected(self, peer: Peer) -> None:
        for sub_id in ("1", "2"):
            peer.subscribe(sub_id, bm="0", opts="pause", filter=f"/p != {sub_id}")
        if not peer.closed:
            peer.send(c="subscribe", sub_id="1,2", opts="resume")


class Asker(Actor):
    """Asks once for the records of a topic as they were."""

    name = "asker"

    def __init__(self, bookmark: str) -> None:
        super().__init__()
        self.got: list[bytes] = []
        self._bookmark = bookmark

    @override
    def act(self, peer: Peer) -> None:
        if not self.got:
            peer.send(c="sow", cid="1", t="orders", bm=self._bookmark, a="completed")
            inbox = peer.take()
            if not peer.closed:
                assert inbox[-1].ack_type == "completed", inbox
                self.got = [each.data for each in inbox if each.kind == "sow"]


class PastReader(RangeReader):
    """Asks for records as they were, and for what has followed."""

    @override
    def connected(self, peer: Peer) -> None:
        fields = {"c": "sow_and_subscribe", "t": "orders", "bm": self._bookmark}
        peer.send(cid="1", sub_id="1", a="processed", **fields)

    @override
    def act(self, peer: Peer) -> None:
        for message in peer.take():
            if message.kind in {"p", "sow"}:
                self.take(message)


def sealed_log(count: int) -> ReadFaultDisk:
    """A log whose first segments are compressed, archived, and both."""
    disk = filled(start, count)
    world = start(disk, 95.0)
    files = world.files
    actions = (1, True), (2, False), (3, False), (3, True)
    for segment, compress in actions:
        if segment < files.live.number:
            files.use_copy(segment, files.copy_sealed(segment, compress=compress))
            files.finish_copy(segment)
    files.close()
    disk.release_locks()
    return disk


def replay_story(disk: ReadFaultDisk, count: int) -> dict[str, object]:
    """All kinds of readers."""
    half = f"{PUBBER}|{count // 2}|"
    readers: list[Reader | Asker] = [
        Reader("filter", filter="/p > 2"),
        Reader("from half", half, filter="/p != 2"),
        Reader("durable", opts="fully_durable"),
        Reader("rate", opts="rate=5"),
        RangeReader("range", f"[{PUBBER}|3|:{half})", filter="/p < 4"),
        GroupReader("group"),
        PastReader("past", half),
        Asker(half),
    ]
    story = Story(disk, start, [Publisher(count + 1, count + 4), *readers])
    story.run(4 + count // 4)
    return {each.name: each.got for each in readers}


@pytest.mark.parametrize("count", [8, pytest.param(24, marks=pytest.mark.full)])
def test_whoever_reads_the_log_gets_all_of_it(count: int) -> None:
    check_each_read(sealed_log(count), partial(replay_story, count=count), at_least=30)


# --- archive, compress, remove --------------------------------------------------------------------


class SlowReader(Reader):
    """Reads a part of the log in each step."""

    @override
    def connected(self, peer: Peer) -> None:
        peer.stalled = True
        super().connected(peer)

    @override
    def act(self, peer: Peer) -> None:
        if not peer.closed:
            peer.world.apply(peer.world.engine.pump(peer.number, peer.world.now))
        super().act(peer)


class _Hub:
    """What the actions of an administrator ask a broker."""

    def __init__(self, world: QueueWorld) -> None:
        self._world = world
        self.sow_snapshot = world.engine.sow_snapshot

    def log_holder(self, position: int) -> str:
        world = self._world
        return world.engine.log_holder(position, world.point_file.points, world.now)


class Admin(Actor):
    """Archives, compresses and removes one segment after the other; what fails is tried again."""

    name = "admin"

    def __init__(self, until: int, reader: Reader) -> None:
        super().__init__()
        self._reader = reader  # while it is away, nothing holds what it has not read
        actions: list[JournalAction] = ["archive", "compress"]
        self.left = [(action, number) for number in range(1, until) for action in actions]
        self.left += [("remove", number) for number in range(1, until - 1)]

    @override
    def act(self, peer: Peer) -> None:
        world = cast("QueueWorld", peer.world)
        config = BrokerConfig(data_dir=DIRECTORY, archive_dir=ARCHIVE)
        maintenance = JournalMaintenance(config, world.files, cast("Hub", _Hub(world)))
        for _ in range(2):
            if self.left and (self.left[0][0] != "remove" or self._reader.is_connected):
                try:
                    trio.run(maintenance.run, *self.left[0])
                except StoreError:
                    continue
                except UsageError as error:
                    if "already" not in str(error):
                        continue
                del self.left[0]


def maintenance_story(disk: ReadFaultDisk, segments: int) -> dict[str, object]:
    """Segments are moved and removed beside a slow reader; then the log is read once more."""
    reader, later = SlowReader("slow", opts="bookmark_not_found=epoch"), Reader("later")
    admin = Admin(segments, reader)
    story = Story(disk, start_without_records, [reader, admin])
    story.run(12 * segments)
    assert not admin.left
    story.restart()
    story.actors[:] = [later]
    story.run(3)
    files = [each for place in (DIRECTORY, ARCHIVE) for each in disk.listdir(place)]
    return {"slow": reader.got, "later": later.got, "files": sorted(files)}


def start_without_records(disk: ReadFaultDisk, now: float) -> QueueWorld:
    return start(disk, now, sow_topics=())


@pytest.mark.parametrize("count", [8, pytest.param(24, marks=pytest.mark.full)])
def test_segments_are_moved_and_removed_beside_their_readers(count: int) -> None:
    before = filled(start_without_records, count)
    segments = sum(segment_number(each) is not None for each in before.listdir(DIRECTORY))
    check_each_read(before, partial(maintenance_story, segments=segments), at_least=30)

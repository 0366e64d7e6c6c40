"""Reading queued messages, from memory and from segment files that roll."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from haclient.protocol.codec import encode_frame
from haclient_fake_server.engine.broker import Engine
from haclient_fake_server.engine.journal import MemoryJournal
from haclient_fake_server.engine.outbox import Effects
from haclient_fake_server.engine.queues import message_reader, message_table
from haclient_fake_server.engine.queues import queue as queue_module
from haclient_fake_server.engine.queues.message_table import (
    PAGED_STRETCH,
    MessageRow,
    MessageTable,
    split_place,
)
from haclient_fake_server.engine.queues.queue import Queue
from haclient_fake_server.engine.settings import EngineSettings, QueueTopic
from haclient_fake_server.journal.files import JournalFiles
from haclient_fake_server.journal.format import segment_name
from haclient_stores.disk.files import RealDisk
from haclient_stores.errors import StoreCorrupt, StoreError
from support.engine import START_US, decode
from support.queue_engine import QueueWorld, delivered, numbers

BODIES = [b'{"n": %d, "fill": "%s"}' % (n, b"x" * (n * 37 % 300)) for n in range(1, 201)]


def read_all(queue: Queue) -> list[bytes]:
    """The bodies of all messages that a queue holds."""
    contents = [queue.content(position) for position in queue.table.positions()]
    return [b"gone" if content is None else content.body for content in contents]


@pytest.fixture(params=[64, 100, 64 * 1024])
def read_ahead(request: pytest.FixtureRequest) -> Iterator[int]:
    """So many bytes are read at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message_reader, "READ_AHEAD_BYTES", request.param)
        yield request.param


@pytest.mark.usefixtures("read_ahead")
@pytest.mark.parametrize("batch", [1, 7, 200])
def test_every_message_is_read_from_memory_and_then_from_the_journal(batch: int) -> None:
    world = QueueWorld(max_per_subscription_backlog=200)
    for first in range(0, 200, batch):
        world.publish(*BODIES[first : first + batch])
    assert read_all(world.queue()) == BODIES  # the last batch's places are not known yet
    world.publish(b"{}", topic="elsewhere")
    assert read_all(world.queue()) == BODIES
    assert not world.engine._routes.queues.reader._fresh
    backwards = [world.queue().content(position) for position in range(200, 0, -1)]
    assert [content.body for content in backwards if content] == BODIES[::-1]
    assert [message.data for message in delivered(world.consumer(opts="max_backlog=200"))] == BODIES


def test_a_message_of_the_running_batch_is_delivered_in_that_batch() -> None:
    world = QueueWorld()
    worker = world.consumer()
    world.publish(*BODIES[:2])
    assert numbers(worker) == [1]


class Broker:
    """An engine over real segment files."""

    def __init__(
        self, directory: Path, *, segment_bytes: int = 4096, file_backed: bool = False
    ) -> None:
        self.files = JournalFiles(
            directory, RealDisk(), segment_bytes=segment_bytes, instance_id=1, start_id=1
        )
        queue = QueueTopic(
            name="work",
            topics=("jobs",),
            max_per_subscription_backlog=1000,
            file_backed=file_backed,
        )
        self.engine = Engine(EngineSettings(queues=(queue,)), self.files, now=1.0, now_us=START_US)
        self.out: dict[int, list[bytes]] = {1: [], 2: []}
        for number in self.out:
            self.engine.connected(number, 1.0)
            self.send(number, c="logon", cid="0", client_name=f"client{number}")

    def send(self, number: int, body: bytes = b"", /, **fields: str | int) -> None:
        messages = decode(encode_frame(fields, body), expand_sow=False)
        self.carry_out(self.engine.received(number, messages, 1.0))

    def carry_out(self, effects: Effects) -> None:
        if effects.block is not None:
            self.files.append(effects.block)
        for number, data in effects.sends:
            self.out[number].append(data)

    def publish(self, *bodies: bytes) -> None:
        for body in bodies:
            self.send(1, body, c="p", t="jobs")

    def bodies(self) -> list[bytes]:
        messages = decode(*self.out[2])
        self.out[2] = []
        return [message.data for message in messages if message.kind == "p"]

    @property
    def queue(self) -> Queue:
        (queue,) = self.engine._routes.queues
        return queue


@pytest.fixture(params=[False, True], ids=["in memory", "paged"])
def file_backed(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether the queue pages its state out, in chunks of seven messages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message_table, "PAGED_ROWS", 7)
        patch.setattr(message_table, "RESIDENT_CHUNKS", 2)
        patch.setattr(message_reader, "REREAD_BYTES", 600)
        patch.setattr(queue_module, "MAX_REREADS", 1_000_000)  # of so small parts
        yield request.param


@pytest.mark.usefixtures("read_ahead")
def test_messages_are_found_in_segment_files_that_roll(
    tmp_path: Path, *, file_backed: bool
) -> None:
    broker = Broker(tmp_path, file_backed=file_backed)
    try:
        broker.publish(*BODIES)
        assert read_all(broker.queue) == BODIES
        places = [broker.queue.table.row(n) for n in range(1, 200)]
        assert len({split_place(row.place)[0] for row in places if row}) > 5
        broker.send(2, c="subscribe", sub_id="1", t="work", opts="max_backlog=1000")
        assert broker.bodies() == BODIES
    finally:
        broker.files.close()


def test_after_a_restart_the_places_are_those_of_the_files(
    tmp_path: Path, *, file_backed: bool
) -> None:
    broker = Broker(tmp_path, file_backed=file_backed)
    broker.publish(*BODIES)
    broker.files.close()
    broker = Broker(tmp_path, file_backed=file_backed)
    try:
        assert read_all(broker.queue) == BODIES
        broker.publish(*BODIES[:3])
        assert read_all(broker.queue) == BODIES + BODIES[:3]
    finally:
        broker.files.close()


def test_a_message_whose_segment_was_removed_leaves_the_queue(
    tmp_path: Path, *, file_backed: bool
) -> None:
    broker = Broker(tmp_path, file_backed=file_backed)
    broker.publish(*BODIES)
    while broker.files.has_unsealed:
        broker.files.seal()
    broker.files.close()
    broker = Broker(tmp_path, file_backed=file_backed)
    try:
        rows = [broker.queue.table.row(position) for position in range(1, 201)]
        segments = [split_place(row.place)[0] for row in rows if row]
        lost = segments.count(segments[0])
        assert 0 < lost < 50
        # An operator may do that beside a running broker.
        (tmp_path / segment_name(segments[0])).unlink()
        broker.publish(b"{}")  # it has paged out what it had read
        assert broker.queue.content(1) is None
        broker.send(2, c="subscribe", sub_id="1", t="work", opts="max_backlog=1000")
        assert broker.bodies() == [*BODIES[lost:], b"{}"]
        assert broker.queue.counts["lost"] == lost
    finally:
        broker.files.close()


@pytest.mark.row("QB30")
def test_damage_in_what_is_paged_out_is_met_by_the_delivery_alone(
    tmp_path: Path, *, file_backed: bool
) -> None:
    broker = Broker(tmp_path, file_backed=file_backed)
    broker.publish(*BODIES)
    while broker.files.has_unsealed:
        broker.files.seal()
    broker.files.close()
    path = tmp_path / segment_name(1)
    broker = Broker(tmp_path, file_backed=file_backed)
    try:
        whole = path.read_bytes()
        path.write_bytes(whole[:2000] + bytes([whole[2000] ^ 1]) + whole[2001:])
        broker.publish(b"{}")
        assert broker.engine._queues.points[0].position == 1
        assert broker.engine._queues.statistics(broker.queue)["depth"] == 201
        broker.send(2, c="subscribe", sub_id="1", t="work", opts="max_backlog=1000")
        assert broker.bodies() == BODIES[: len(broker.bodies())]
        assert broker.engine._queues.statistics(broker.queue)["is_stopped"]
        assert len(broker.queue.table) == 201
    finally:
        broker.files.close()


@pytest.mark.parametrize("position", [1, 2, 77])
def test_a_damaged_message_is_refused_with_its_place(tmp_path: Path, position: int) -> None:
    broker = Broker(tmp_path, segment_bytes=2**20)
    broker.publish(*BODIES)
    try:
        row = broker.queue.table.row(position)
        assert row is not None
        number, offset = split_place(row.place)
        with (tmp_path / segment_name(number)).open("r+b") as file:
            file.seek(offset + 50)
            byte = file.read(1)
            file.seek(offset + 50)
            file.write(bytes([byte[0] ^ 1]))
        with pytest.raises(StoreCorrupt, match="the checksum of a block is wrong") as error:
            broker.queue.content(position)
        assert error.value.path == tmp_path / segment_name(number)
    finally:
        broker.files.close()


def test_what_lies_between_paged_messages_is_not_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = QueueWorld(file_backed=True)
    for number in range(8):
        world.publish_numbers(1, first=number)
        for _ in range(10):
            world.publish(b"x" * 100_000, topic="elsewhere")
    read = [0]
    before = MemoryJournal.read_bytes

    def read_bytes(self: MemoryJournal, number: int, count: int, offset: int) -> bytes:
        read[0] += count
        return before(self, number, count, offset)

    monkeypatch.setattr(MemoryJournal, "read_bytes", read_bytes)
    positions = [*world.queue().table.positions()]
    places, _, sequences = world.engine._routes.queues.reader.reread(positions[::7])
    assert list(sequences) == positions[::7]
    assert all(places)
    assert read[0] < 2**20  # of 8 MB


def test_the_messages_of_a_paged_chunk_are_near_each_other_in_the_log() -> None:
    table = MessageTable(reread=lambda _: (array("Q"), array("Q"), array("Q")))
    for position in (1, 2, PAGED_STRETCH, PAGED_STRETCH + 1, PAGED_STRETCH + 2):
        table.add(MessageRow(position, 1, position, 0))
    chunks = [list(each.positions) for each in table.columns()]
    assert chunks == [[1, 2, PAGED_STRETCH], [PAGED_STRETCH + 1, PAGED_STRETCH + 2]]


def test_a_read_that_fails_half_way_leaves_what_was_read_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(message_reader, "READ_AHEAD_BYTES", 500)
    world = QueueWorld()
    for number in range(1, 5):
        world.publish(b'{"n": %d, "fill": "%s"}' % (number, b"x" * 300))
        world.publish(b'{"m": %d, "fill": "%s"}' % (number, b"x" * 300), topic="other")
    world.publish(b"{}", topic="other")
    bodies, journal = read_all(world.queue()), world.journal
    second, third = [*world.queue().table.positions()][1:3]
    world.queue().content(second)
    real, reads = journal.read_bytes, []

    def read_bytes(number: int, count: int, offset: int) -> bytes:
        reads.append(offset)
        if len(reads) == 2:
            raise StoreCorrupt(Path("journal"), offset, "damaged")
        return real(number, count, offset)

    with monkeypatch.context() as patch:
        patch.setattr(journal, "read_bytes", read_bytes)
        with pytest.raises(StoreCorrupt):
            world.queue().content(third)
    content = world.queue().content(second)
    assert content is not None
    assert content.body == bodies[1]
    assert read_all(world.queue()) == bodies


def test_a_message_whose_directory_is_away_stays_in_the_queue(
    tmp_path: Path, *, file_backed: bool
) -> None:
    directory, away = tmp_path / "log", tmp_path / "away"
    broker = Broker(directory, file_backed=file_backed)
    broker.publish(*BODIES)
    while broker.files.has_unsealed:
        broker.files.seal()
    broker.files.close()
    broker = Broker(directory, file_backed=file_backed)
    try:
        broker.publish(b"{}")  # it has paged out what it had read
        directory.rename(away)
        with pytest.raises(StoreError, match="log: is away"):
            broker.queue.content(1)
        away.rename(directory)
        assert read_all(broker.queue) == [*BODIES, b"{}"]
    finally:
        broker.files.close()

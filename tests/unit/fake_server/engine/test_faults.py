"""Faults of the broker in the work for one client, and in its own: everybody else is served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from haclient_fake_server.engine.conflation import Conflation
from haclient_fake_server.engine.connections import Selection
from haclient_fake_server.engine.field_selection import FieldSelection
from haclient_fake_server.engine.patterns import TopicMatcher
from haclient_fake_server.engine.queues.message_reader import MessageReader
from haclient_fake_server.engine.queues.message_table import MessageTable
from haclient_fake_server.engine.queues.queue import Queue
from haclient_fake_server.engine.retries import MAX_ATTEMPTS
from haclient_fake_server.engine.settings import QueueTopic, SowTopic
from haclient_fake_server.journal.files import JournalFiles
from haclient_fake_server.journal.format import segment_name
from haclient_stores.disk.files import RealDisk
from haclient_stores.errors import StoreCorrupt, StoreError
from support.engine import Peer, World
from support.queue_engine import QueueWorld, acknowledge, delivered, numbers


def fault(*_: object, **__: object) -> bool:
    """What no broker should do."""
    raise ArithmeticError("no such number")


def faults(world: World) -> list[str]:
    """The lines of the log that tell of one; the ends of connections are others."""
    return [text for text in world.events if ": internal error" in text and " ended: " not in text]


def test_a_fault_in_a_deadline_of_one_client_ends_its_connection_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(sow_topics=(SowTopic("records", ("/id",)),))
    reader, other = world.client("reader"), world.client("other")
    reader.subscribe(t="records", opts="conflation=1s")
    other.subscribe(t="records")
    world.client().publish(1, b'{"id":1}', t="records")
    with monkeypatch.context() as patch:
        patch.setattr(Conflation, "_frames", fault)
        world.advance(1.0)
    assert (reader.closed, reader.take()[-1].reason) == ("internal error", "internal error")
    assert other.bodies() == [b'{"id":1}']
    (told,) = faults(world)
    assert told.startswith("connection 1 of client 'reader' at test: internal error")


@pytest.mark.parametrize("selection", ["filter", "fields", "oof"])
def test_a_fault_in_what_one_subscriber_has_asked_for_is_not_the_publishers(
    selection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(sow_topics=(SowTopic("orders", ("/id",)),))
    publisher, reader, other = (world.client(name) for name in ("pubber", "reader", "other"))
    reader.subscribe(opts="select=[-/,+/id]" if selection == "fields" else "", filter="/id > 0")
    other.subscribe(filter="/id >= 0")
    item = world.engine._connections[reader.number].subscriptions["1"]
    if selection == "fields":
        monkeypatch.setattr(FieldSelection, "apply", fault)
    else:
        oof = selection == "oof"
        item.select(Selection(TopicMatcher("orders"), filter=fault, oof=oof))
        world.engine._routes["json"]._forget_plans()
    publisher.publish(1, b'{"id":1}')
    publisher.publish(2, b'{"id":1,"n":2}')
    assert reader.closed == "internal error"
    assert not publisher.closed
    assert other.bodies() == [b'{"id":1}', b'{"id":1,"n":2}']
    assert world.engine._outbox.faults == len(faults(world)) == 1


def test_a_fault_in_the_filter_of_a_queues_consumer_leaves_the_messages_to_the_others() -> None:
    world = QueueWorld()
    worker = world.consumer(filter="/n > 0")
    queue = world.queue()
    for selector in queue._selectors.values():
        selector._matches = fault
    other = world.consumer("other")
    world.publish(b'{"n": 1}')
    assert worker.closed == "internal error"
    assert numbers(other) == [1]


def test_a_fault_at_the_end_of_a_connection_ends_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = QueueWorld()
    worker, other = world.consumer(), world.consumer("other")
    with monkeypatch.context() as patch:
        patch.setattr(Queue, "unsubscribe", fault)
        worker.close()
    assert not other.closed
    assert len(faults(world)) == 1


def test_the_brokers_own_work_is_tried_again_after_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = QueueWorld(expiration_s=5.0)
    world.publish(b"{}")
    with monkeypatch.context() as patch:
        patch.setattr(Queue, "tick", fault)
        world.advance(6.0)
        assert len(faults(world)) == 2  # at 5 s and a second later
    assert world.queue().counts["time_limit"] == 0
    world.advance(2.0)
    assert world.queue().counts["time_limit"] == 1
    assert faults(world)[0].startswith("queue 'work': internal error")


def test_what_fails_again_and_again_waits_for_the_next_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = QueueWorld(expiration_s=5.0)
    world.publish(b"{}")
    monkeypatch.setattr(Queue, "tick", fault)
    world.advance(3600.0)
    assert len(faults(world)) == MAX_ATTEMPTS
    assert "given up until the next start, after 10 attempts" in faults(world)[-1]
    assert world.engine._outbox.faults == MAX_ATTEMPTS
    world.consumer()  # it looks at the queue, whose deadline has passed
    world.advance(3600.0)
    assert len(faults(world)) == MAX_ATTEMPTS


class DamagedWorld(World):
    """Two queues over real files, of which one has a damaged message."""

    def __init__(self, directory: Path) -> None:
        self.files = JournalFiles(directory, RealDisk(), segment_bytes=2**16, instance_id=1)
        queues = (
            QueueTopic(name="bad", max_per_subscription_backlog=9, dead_letter="dead"),
            QueueTopic(name="good", max_per_subscription_backlog=9),
        )
        super().__init__(journal=self.files, queues=queues)
        self._path = directory / segment_name(1)
        self._damage = b""
        peer = self.client("filler")
        for body in (b'{"n": 1}', b'{"damage": 0}', b'{"n": 3}'):
            peer.publish(None, body, t="bad")
        peer.publish(None, b'{"n": 9}', t="good")

    def toggle(self) -> None:
        """Damage the file, or mend it."""
        data = self._path.read_bytes()
        old, new = (b"damage", b"DAMAGE") if b"damage" in data else (b"DAMAGE", b"damage")
        self._path.write_bytes(data.replace(old, new))

    def consumer(self, queue: str) -> Peer:
        peer = self.client(f"worker of {queue}")
        peer.subscribe(t=queue, opts="max_backlog=9")
        return peer


def test_a_damaged_message_stops_its_queue_alone_until_it_is_mended(tmp_path: Path) -> None:
    world = DamagedWorld(tmp_path)
    world.toggle()
    bad, good = world.consumer("bad"), world.consumer("good")
    assert (bad.bodies(), good.bodies()) == ([], [b'{"n": 9}'])
    assert len(faults(world)) == 1
    assert faults(world)[0].startswith("delivery of queue 'bad': internal error")
    assert faults(world)[0].endswith("the checksum of a block is wrong")  # and no traceback
    world.client().publish(None, b'{"n": 10}', t="good")
    assert good.bodies() == [b'{"n": 10}']
    assert not bad.closed
    assert [row["is_stopped"] for row in world.engine.rows("queues", world.now)] == [True, False]
    world.toggle()
    world.advance(1.0)
    assert [row["is_stopped"] for row in world.engine.rows("queues", world.now)] == [False, False]
    assert bad.bodies() == [b'{"n": 1}', b'{"damage": 0}', b'{"n": 3}']
    world.files.close()


def test_a_message_that_expires_damaged_has_no_dead_letter_and_ends_nothing(
    tmp_path: Path,
) -> None:
    world = DamagedWorld(tmp_path)
    bad = world.consumer("bad")
    damaged = bad.take()[-2].bookmark
    world.toggle()
    world.engine._routes.queues.reader._data = b""  # what it has read ahead
    bad.send(c="sow_delete", t="bad", bm=damaged, opts="expire")
    assert not bad.closed
    (told,) = faults(world)
    assert told.startswith(f"queue 'bad': {damaged} has expired without a dead letter")
    world.files.close()


def unreadable(*_: object) -> None:
    """What a disk does for a while."""
    raise StoreError("journal.00000001: cannot open: Input/output error")


@pytest.mark.parametrize("reason", ["time_limit", "forced_expire", "max_cancels"])
def test_a_message_that_cannot_be_read_when_it_expires_stays_until_its_copy_can_be_made(
    reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = {"max_cancels": 1, "max_cancels_rule": "at"} if reason == "max_cancels" else {}
    world = QueueWorld(expiration_s=5.0, dead_letter="dead", **limit)
    dead = world.client("undertaker")
    dead.subscribe(t="dead")
    worker = world.consumer()
    world.publish(b'{"n": 1}')
    (message,) = delivered(worker)
    with monkeypatch.context() as patch:
        patch.setattr(MessageReader, "content", unreadable)
        if reason == "time_limit":
            worker.close()
            world.advance(6.0)
        else:
            option = "expire" if reason == "forced_expire" else "cancel"
            acknowledge(worker, message.bookmark, opts=option)
            world.advance(0.5)
        assert world.queue().counts[reason] == 0
        assert (world.states(), dead.bodies()) == ((1, 0), [])
        assert faults(world)[0].startswith("delivery of queue 'work': internal error")
        assert [row["is_stopped"] for row in world.engine.rows("queues", world.now)] == [True]
    world.advance(4.0)
    assert (world.states(), dead.bodies()) == ((0, 0), [b'{"n": 1}'])
    assert world.queue().counts[reason] == 1
    assert [row["is_stopped"] for row in world.engine.rows("queues", world.now)] == [False]
    assert delivered(worker) == []


def test_a_message_that_is_acknowledged_before_its_copy_can_be_made_does_not_expire(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = QueueWorld(dead_letter="dead")
    dead = world.client("undertaker")
    dead.subscribe(t="dead")
    worker = world.consumer()
    world.publish(b'{"n": 1}')
    (message,) = delivered(worker)
    with monkeypatch.context() as patch:
        patch.setattr(MessageReader, "content", unreadable)
        acknowledge(worker, message.bookmark, opts="expire")
        acknowledge(worker, message.bookmark)
    world.advance(4.0)
    assert (world.states(), dead.bodies()) == ((0, 0), [])
    assert world.queue().counts["forced_expire"] == 0


@pytest.mark.parametrize("options", [{}, {"priority": "/n"}])
def test_what_a_filter_could_not_read_is_examined_when_it_can_be_read(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = QueueWorld(max_per_subscription_backlog=9, **options)
    other = world.consumer("other", filter="/n < 3", opts="max_backlog=9")
    world.publish_numbers(4)
    with monkeypatch.context() as patch:
        patch.setattr(MessageReader, "content", unreadable)
        worker = world.consumer(filter="/n > 3", opts="max_backlog=9")
    assert delivered(worker) == []
    world.advance(1.0)
    assert numbers(worker) == [4]
    with monkeypatch.context() as patch:
        patch.setattr(MessageReader, "content", unreadable)
        other.close()
    world.advance(1.0)
    assert delivered(worker) == []
    assert sorted(numbers(world.consumer("third", opts="max_backlog=9"))) == [1, 2, 3]


@pytest.mark.parametrize("what", [(MessageTable, "row"), (MessageReader, "content")])
def test_what_expires_while_its_row_cannot_be_read_expires_later(
    what: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = QueueWorld(expiration_s=5.0, dead_letter="dead", file_backed=True)
    dead = world.client("undertaker")
    dead.subscribe(t="dead")
    world.publish_numbers(3)
    with monkeypatch.context() as patch:
        patch.setattr(*what, unreadable)
        world.advance(6.0)
    assert (world.states(), dead.bodies()) == ((3, 0), [])
    world.advance(4.0)
    assert sorted(numbers(dead)) == [1, 2, 3]
    assert world.states() == (0, 0)


def test_a_queue_goes_on_after_a_long_outage_of_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    world = QueueWorld()
    world.publish_numbers(1)
    with monkeypatch.context() as patch:
        patch.setattr(MessageReader, "content", unreadable)
        worker = world.consumer()
        world.advance(24 * 3600.0)
        assert "given up" not in "".join(world.events)
        assert delivered(worker) == []
    world.advance(60.0)
    assert numbers(worker) == [1]
    assert [row["is_stopped"] for row in world.engine.rows("queues", world.now)] == [False]


def test_a_queue_goes_on_after_an_outage_of_the_disk_that_ends_with_a_file_in_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = QueueWorld()
    world.publish_numbers(1)

    def in_part(*_: object) -> None:
        raise StoreCorrupt(Path("/archive/journal.00000001"), 4096, "the file ends before its data")

    with monkeypatch.context() as patch:
        patch.setattr(MessageReader, "content", unreadable)
        worker = world.consumer()
        world.advance(600.0)
        patch.setattr(MessageReader, "content", in_part)
        world.advance(60.0)
    world.advance(60.0)
    assert numbers(worker) == [1]

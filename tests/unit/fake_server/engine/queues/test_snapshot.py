"""Snapshots of queues: what they hold, and when they are of use."""

from __future__ import annotations

from dataclasses import replace

import pytest
from typing_extensions import override

from haclient_fake_server.engine.broker import Engine
from haclient_fake_server.engine.journal import Cursor, MemoryJournal
from haclient_fake_server.engine.queues.snapshot import QueueSnapshot, definition_of
from haclient_fake_server.engine.recovery import SavedState
from haclient_fake_server.engine.settings import QueueTopic
from support.engine import START_US, Peer, World

WORK = QueueTopic(
    name="work",
    topics=("orders",),
    max_per_subscription_backlog=100,
    file_backed=True,
    priority="/p",
)
BARRIER = QueueTopic(
    name="gate",
    topics=("orders",),
    max_per_subscription_backlog=100,
    file_backed=True,
    barrier="/p = 9",
    expiration_s=100.0,
)
PLAIN = QueueTopic(name="plain", topics=("orders",), max_per_subscription_backlog=100)


def publish(world: World, first: int, *priorities: int) -> None:
    publisher = world.client("pubber")
    for number, priority in enumerate(priorities, first):
        publisher.publish(number, b'{"n":%d,"p":%d}' % (number, priority))
    publisher.close()


def consumer(world: World, queue: str) -> Peer:
    peer = world.client(f"consumer of {queue}")
    peer.send(c="subscribe", cid="1", sub_id="1", t=queue, opts="max_backlog=100")
    return peer


def numbers(peer: Peer) -> list[int]:
    """The sequences of the messages that a consumer has got."""
    return [int(each.bookmark.split("|")[1]) for each in peer.take() if each.kind == "p"]


def acknowledge(peer: Peer, queue: str, *sequences: int) -> None:
    bookmarks = ",".join(f"7094790850998930143|{number}|" for number in sequences)
    peer.send(c="sow_delete", cid="2", t=queue, bm=bookmarks)


def restart(world: World, snapshots: list[QueueSnapshot]) -> None:
    """A new broker on the same journal, with snapshots, and without any points."""
    world.peers.clear()
    world.now += 1.0
    world.engine = Engine(
        world.settings,
        world.journal,
        now=world.now,
        now_us=START_US + int(world.now * 1e6),
        saved=SavedState(queue_snapshots=snapshots),
    )


@pytest.mark.row("QB30")
def test_a_queue_goes_on_from_its_snapshot_with_what_the_log_has_after_it() -> None:
    world = World(queues=(WORK, PLAIN))
    publish(world, 1, 1, 3, 2, 3)
    peer = consumer(world, "work")
    acknowledge(peer, "work", 2)
    (snapshot,) = world.engine.queue_snapshots()
    acknowledge(peer, "work", 3)
    publish(world, 5, 9)
    # What was removed before is left out later: in a thread, for a queue of millions.
    assert [[*each.positions] for each in snapshot.columns.messages] == [[1, 2, 3, 4]]
    assert [[*each.packed().positions] for each in snapshot.columns.messages] == [[1, 3, 4]]
    restart(world, [snapshot])
    assert numbers(consumer(world, "work")) == [5, 4, 1]
    assert numbers(consumer(world, "plain")) == [1, 2, 3, 4, 5]


class WatchedJournal(MemoryJournal):
    """A journal that notes from where on it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.begins: list[Cursor] = []

    @override
    def read(self, cursor: Cursor, max_bytes: int) -> tuple[bytes, Cursor]:
        self.begins.append(cursor)
        return super().read(cursor, max_bytes)


@pytest.mark.row("QB30")
@pytest.mark.parametrize("is_used", [True, False])
def test_the_log_before_a_snapshot_is_not_read(*, is_used: bool) -> None:
    journal = WatchedJournal()
    world = World(queues=(WORK,), journal=journal)
    publish(world, 1, 1, 2, 3)
    snapshots = world.engine.queue_snapshots()
    publish(world, 4, 4)
    journal.begins.clear()
    restart(world, snapshots if is_used else [])
    assert (min(journal.begins) >= snapshots[0].end) == is_used
    assert numbers(consumer(world, "work")) == [4, 3, 2, 1]


@pytest.mark.row("QB30")
def test_a_snapshot_is_enough_where_only_removals_follow_it() -> None:
    world = World(queues=(WORK,))
    publish(world, 1, 1, 1, 1)
    peer = consumer(world, "work")
    snapshots = world.engine.queue_snapshots()
    acknowledge(peer, "work", 1, 3)
    restart(world, snapshots)
    assert numbers(consumer(world, "work")) == [2]


@pytest.mark.row("QB30")
def test_barriers_and_expirations_are_in_a_snapshot() -> None:
    world = World(queues=(BARRIER,))
    publish(world, 1, 1, 9, 1)
    world.advance(50.0)
    publish(world, 4, 1)
    snapshots = world.engine.queue_snapshots()
    restart(world, snapshots)
    peer = consumer(world, "gate")
    assert numbers(peer) == [1]
    acknowledge(peer, "gate", 1)
    assert numbers(peer) == [2, 3, 4]
    peer.close()
    world.advance(60.0)
    assert numbers(consumer(world, "gate")) == [4]


@pytest.mark.row("QB30")
def test_a_leased_message_that_has_expired_meanwhile_expires_after_a_restart() -> None:
    world = World(queues=(BARRIER,))
    publish(world, 1, 1)
    assert numbers(consumer(world, "gate")) == [1]
    world.advance(200.0)
    snapshots = world.engine.queue_snapshots()
    restart(world, snapshots)
    peer = consumer(world, "gate")
    peer.close()
    world.advance(1.0)
    assert numbers(consumer(world, "gate")) == []


@pytest.mark.row("QB30")
def test_a_snapshot_of_another_definition_is_not_taken() -> None:
    world = World(queues=(WORK,))
    publish(world, 1, 1, 2)
    (snapshot,) = world.engine.queue_snapshots()
    empty = snapshot._replace(columns=snapshot.columns._replace(messages=[]))
    for wrong in (empty._replace(definition="{}"), empty._replace(name="other")):
        restart(world, [wrong])
        assert numbers(consumer(world, "work")) == [2, 1]


@pytest.mark.row("QB30")
@pytest.mark.parametrize(
    "change",
    [
        {"topics": ("orders", "prices")},
        {"recovery_point": "now"},
        {"expiration_s": 5.0},
        {"expiration_model": "queue"},
        {"priority": "/q"},
        {"priority": "", "barrier": "/p = 9"},
    ],
)
def test_what_a_queue_holds_depends_on_these_settings(change: dict[str, object]) -> None:
    assert definition_of(replace(WORK, **change)) != definition_of(WORK)  # type: ignore[arg-type]  # as listed


@pytest.mark.parametrize("change", [{"max_backlog": 5}, {"lease_s": 1.0}, {"max_cancels": 3}])
def test_what_a_queue_holds_does_not_depend_on_how_it_delivers(change: dict[str, object]) -> None:
    assert definition_of(replace(WORK, **change)) == definition_of(WORK)  # type: ignore[arg-type]  # as listed

"""Whichever read of the journal fails once, on either side, replicas end with the same log."""

from __future__ import annotations

from typing import Final, cast

import pytest

from haclient.protocol.identity import publisher_id
from haclient_fake_server.engine.settings import LogTopic, QueueTopic, ReplicateTo
from haclient_stores.errors import StoreError
from support.engine import World
from support.queue_world import QueueWorld
from support.read_faults import (
    SEGMENT_BYTES,
    ReadFaultDisk,
    body,
    check_each_read,
    records,
    small_reads,
)
from support.replicas import Group, address

QUEUE: Final = QueueTopic(
    name="work", topics=("orders",), max_per_subscription_backlog=5, file_backed=True
)


@pytest.fixture(autouse=True)
def _small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    small_reads(monkeypatch)


class Pair(Group):
    """Two instances that replicate to each other, with their journals on disks.

    Args:
        disks: By instance.
        now: When they start.
    """

    def __init__(self, disks: dict[str, ReadFaultDisk], now: float) -> None:
        super().__init__({"a": ("b",), "b": ("a",)})
        self.disks = disks
        for name in disks:
            self.worlds[name] = self._world(name, now)

    def _world(self, name: str, now: float) -> QueueWorld:
        (other,) = {"a", "b"} - {name}
        return QueueWorld(
            self.disks[name],
            start_id=int(now),
            is_synced=False,
            queues=(QUEUE,),
            segment_bytes=SEGMENT_BYTES,
            now=now,
            name=name,
            ack_interval_s=0.0,
            log_topics=(LogTopic(".*"),),
            replicate_to=(ReplicateTo(address(other)),),
        )

    def restart_failed(self, name: str) -> None:
        """A process has ended with its disk."""
        old, self.disks[name].is_counting = self.worlds[name], False
        old.peers.clear()  # it is told of nothing any more
        for wire in self.wires.values():
            wire.lose()
        self.disks[name].release_locks()
        self.worlds[name] = self._world(name, old.now + 1.0)

    def step(self) -> None:
        """A second passes."""
        for wire in self.wires.values():
            if any(end.peer.closed for end in wire.ends):
                wire.lose()
        try:
            for world in self.worlds.values():
                world.advance(1.0)
            self.settle()
        except StoreError:
            for name, world in tuple(self.worlds.items()):
                if cast("QueueWorld", world).files._failure is not None:
                    self.restart_failed(name)

    def close(self) -> None:
        """End both processes."""
        for name, world in self.worlds.items():
            files = cast("QueueWorld", world)
            files.keep_snapshots()
            files.files.close()
            self.disks[name].release_locks()


def publish(world: World, name: str, first: int, last: int) -> None:
    publisher = world.client(name)
    for n in range(first, last + 1):
        publisher.publish(n, body(n))
    publisher.close()


def remove(world: World, name: str, *sequences: int) -> None:
    """Messages of a publisher leave the queue."""
    peer, publisher = world.client("worker"), publisher_id(name)
    bookmarks = ",".join(f"{publisher}|{each}|" for each in sequences)
    peer.send(c="sow_delete", t="work", bm=bookmarks)
    peer.close()


def separated(count: int) -> dict[str, ReadFaultDisk]:
    """The disks of two instances that have gone on without each other."""
    disks = {"a": ReadFaultDisk(), "b": ReadFaultDisk()}
    pair = Pair(disks, 90.0)
    third = count // 3
    publish(pair["a"], "pub a", 1, third)
    publish(pair["b"], "pub b", 1, third)
    pair.settle()
    remove(pair["a"], "pub a", 1)
    pair.settle()
    pair.cut("a", "b")
    pair.cut("b", "a")
    for name, other in ("ab", "ba"):
        world = pair[name]
        publish(world, f"pub {name}", third + 1, count)
        remove(world, f"pub {other}", 2, third)
        remove(world, f"pub {name}", 3, third + 2)
    pair.close()
    return disks


def replication_story(disks: dict[str, ReadFaultDisk]) -> dict[str, object]:
    """They find each other again."""
    pair = Pair(disks, 100.0)
    for disk in disks.values():
        disk.is_counting = True
    for _ in range(8):
        pair.step()
    for disk in disks.values():
        disk.is_counting = False
    found: dict[str, object] = {}
    for name, world in pair.worlds.items():
        log = [each for each in records(cast("QueueWorld", world)) if each.is_data]
        assert all(each.payload == body(each.sequence) for each in log)
        found[f"log of {name}"] = sorted((each.publisher_id, each.sequence) for each in log)
        found[f"queue of {name}"] = cast("QueueWorld", world).available("work")
        found[f"missing at {name}"] = world.engine.missing
    found["destinations"] = [
        (each.instance, each.is_connected, each.behind)
        for world in pair.worlds.values()
        for each in world.engine.destinations
    ]
    return found


@pytest.mark.parametrize(
    ("name", "count"),
    [("a", 9), *(pytest.param(name, 24, marks=pytest.mark.full) for name in "ab")],
)
def test_replicas_end_with_the_same_log(name: str, count: int) -> None:
    before = separated(count)
    (other,) = {"a", "b"} - {name}

    def outcome(disk: ReadFaultDisk) -> dict[str, object]:
        return replication_story({name: disk, other: ReadFaultDisk(before[other])})

    expected = outcome(ReadFaultDisk(before[name]))
    assert expected["log of a"] == expected["log of b"]
    assert expected["queue of a"] == expected["queue of b"]
    check_each_read(before[name], outcome, at_least=20)

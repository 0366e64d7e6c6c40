"""Queues of the same name on instances that replicate to each other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from haclient_fake_server.engine.broker import Engine
from haclient_fake_server.engine.recovery import SavedState
from haclient_fake_server.engine.replication.receiver import HEAR_FIRST_S, TAKE_OVER_S
from haclient_fake_server.engine.settings import QueueTopic
from support.engine import START_US, Peer, World
from support.replicas import Group

QUEUE = QueueTopic(name="work", topics=("orders",), max_per_subscription_backlog=10)
BOTH_WAYS = {"a": ("b",), "b": ("a",)}


def depth(world: World) -> int:
    peer = world.client("watcher")
    peer.send(c="sow", cid="q", t="/HACLIENT/queues")
    answer: dict[str, Any] = json.loads(peer.take()[1].data)
    peer.close()
    return int(answer["queues"][0]["depth"])


def consume(world: World, count: int) -> Peer:
    """A consumer that has acknowledged the first messages."""
    peer = world.client("consumer")
    peer.subscribe("1", t="work", opts="max_backlog=10")
    bookmarks = [message.bookmark for message in peer.take() if message.kind == "p"]
    peer.send(c="sow_delete", t="work", bm=",".join(bookmarks[:count]))
    return peer


def group_with_messages(count: int) -> Group:
    group = Group(BOTH_WAYS, queues=(QUEUE,))
    group.settle()
    publisher = group["a"].client("pubber")
    for sequence in range(1, count + 1):
        publisher.publish(sequence, b"%d" % sequence)
    group.settle()
    return group


def test_what_is_acknowledged_on_one_instance_leaves_the_queue_of_the_other() -> None:
    group = group_with_messages(5)
    assert (depth(group["a"]), depth(group["b"])) == (5, 5)
    consume(group["a"], 3)
    group.settle()
    assert (depth(group["a"]), depth(group["b"])) == (2, 2)
    other = group["b"].client("second")
    other.subscribe("1", t="work", opts="max_backlog=10")
    assert other.bodies() == [b"4", b"5"]


def test_an_acknowledgement_while_the_link_is_down_arrives_after_it() -> None:
    group = group_with_messages(5)
    group.cut("a", "b")
    consume(group["a"], 3)
    group.settle()
    assert (depth(group["a"]), depth(group["b"])) == (2, 5)
    group.cut_off.clear()
    group.settle()
    assert depth(group["b"]) == 2


@pytest.mark.parametrize("restart", [False, True])
def test_an_acknowledgement_arrives_after_many_records_from_the_other_side(
    *, restart: bool
) -> None:
    """They are skipped, since the other side has them; the acknowledgement before them is not."""
    group = group_with_messages(5)
    group.cut("a", "b")
    consume(group["a"], 3)
    publisher = group["b"].client("other")
    for sequence in range(1, 41):
        publisher.publish(sequence, b'"%b"' % (b"x" * 20_000), topic="others")
    group.settle()
    if restart:
        group.restart("a")
    group.heal()
    assert (depth(group["a"]), depth(group["b"])) == (2, 2)
    assert not group.status("a", "b").behind


def test_an_acknowledgement_arrives_though_its_frame_is_lost_and_records_come_meanwhile() -> None:
    group = group_with_messages(5)
    consume(group["a"], 3)
    group.tick()
    for end in group.wires["a", "b"].ends:
        end.take_off()  # it is on its way
    publisher = group["b"].client("other")
    for sequence in range(1, 41):
        publisher.publish(sequence, b'"%b"' % (b"x" * 20_000), topic="others")
    while group.wires["b", "a"].move():
        group["a"].advance(0.0)
    group.lose("a", "b")
    group.settle()
    assert (depth(group["a"]), depth(group["b"])) == (2, 2)


def test_an_acknowledgement_survives_restarts_of_both_instances() -> None:
    group = group_with_messages(5)
    group.cut("a", "b")
    consume(group["a"], 3)
    group.settle()
    group.restart("a")
    group.cut_off.clear()
    group.settle()
    group.restart("b")
    group.settle()
    assert (depth(group["a"]), depth(group["b"])) == (2, 2)


def test_a_removal_is_passed_on_no_further_than_it_changes_something() -> None:
    group = group_with_messages(3)
    consume(group["a"], 3)
    group.settle()
    records = [len(world.journal.summary()) for world in group.worlds.values()]
    group.settle()
    for name in ("a", "b"):
        group.lose(name, "b" if name == "a" else "a")
    group.settle()
    assert [len(world.journal.summary()) for world in group.worlds.values()] == records


@pytest.mark.row("QB15")
def test_each_instance_is_fair_to_its_own_consumers_alone() -> None:
    group = group_with_messages(0)
    here = [group["a"].client(name) for name in ("first", "second")]
    there = group["b"].client("third")
    for number, consumer in enumerate([*here, there]):
        consumer.subscribe(str(number), t="work", opts="max_backlog=4")
        consumer.take()
    publisher = group["a"].client("other")
    for sequence in range(1, 5):
        publisher.publish(sequence, b"%d" % sequence)
    group.settle()
    assert [consumer.bodies() for consumer in here] == [[b"1", b"3"], [b"2", b"4"]]
    assert there.bodies() == [b"1", b"2", b"3", b"4"]  # the only consumer of its instance


EXPIRING = QueueTopic(
    name="work",
    topics=("orders",),
    max_per_subscription_backlog=10,
    expiration_s=5.0,
    dead_letter="dead",
    file_backed=True,
)


class Expiring(Group):
    """Instances with a queue whose messages expire after 5 s."""

    def __init__(self, links: Mapping[str, tuple[str, ...]] = BOTH_WAYS) -> None:
        super().__init__(links, queues=(EXPIRING,))
        self.settle()
        self.advance(int(HEAR_FIRST_S))
        self["a"].client("pubber").publish(1, b"1")
        self.settle()

    def advance(self, seconds: int) -> None:
        for _ in range(2 * seconds):  # heartbeats arrive in between
            for world in self.worlds.values():
                world.advance(0.5)
            self.settle()

    def dead(self, name: str) -> list[bytes]:
        """What has gone to the dead-letter topic, as one instance has it."""
        peer = self[name].client("reader")
        peer.subscribe(t="dead", bm="0", a="")
        bodies = peer.bodies()
        peer.close()
        return bodies


def test_a_message_that_is_leased_on_one_instance_does_not_expire_on_the_other() -> None:
    group = Expiring()
    worker = group["a"].client("worker")
    worker.subscribe("1", t="work", opts="max_backlog=10")
    bookmark = worker.take()[-1].bookmark
    group.advance(10)
    assert (depth(group["a"]), depth(group["b"])) == (1, 1)
    worker.send(c="sow_delete", t="work", bm=bookmark)
    group.settle()
    assert (depth(group["a"]), depth(group["b"])) == (0, 0)
    assert (group.dead("a"), group.dead("b")) == ([], [])


def test_one_instance_expires_a_message_and_writes_its_dead_letter() -> None:
    group = Expiring()
    group.advance(6)
    assert (depth(group["a"]), depth(group["b"])) == (0, 0)
    assert (group.dead("a"), group.dead("b")) == ([b"1"], [b"1"])


def test_a_message_that_expires_on_its_instance_stays_where_it_is_leased() -> None:
    group = Expiring()
    worker = group["b"].client("worker")
    worker.subscribe("1", t="work", opts="max_backlog=10")
    group.advance(6)
    assert (depth(group["a"]), depth(group["b"])) == (0, 1)
    worker.close()
    group.settle()
    assert (depth(group["a"]), depth(group["b"])) == (0, 0)
    assert (group.dead("a"), group.dead("b")) == ([b"1"], [b"1"])


def test_instances_that_lease_what_has_expired_elsewhere_record_it_once() -> None:
    group = Expiring({"a": ("~b", "~c"), "b": ("~a", "~c"), "c": ("~a", "~b")})
    for name in ("b", "c"):
        group[name].client("worker").subscribe("1", t="work", opts="max_backlog=10")
    group.advance(6)
    ends = [group[name].journal.next_position for name in ("b", "c")]
    group.advance(1)
    assert [group[name].journal.next_position for name in ("b", "c")] == ends
    assert [depth(group[name]) for name in ("b", "c")] == [1, 1]


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_what_has_expired_elsewhere_does_not_return_with_a_restart(*, has_snapshot: bool) -> None:
    group = Expiring()
    replica = group["b"]
    replica.client("worker").subscribe("1", t="work", opts="max_backlog=10")
    group.advance(6)
    snapshots = replica.engine.queue_snapshots() if has_snapshot else []
    assert len(snapshots) == has_snapshot
    assert depth(replica) == 1
    publisher = group["a"].client("other")
    for sequence in range(1, 4):  # a removal is sent again with what is near it in the log
        publisher.publish(sequence, bytes(200_000), t="others")
    group.settle()
    group.restart("b")
    replica.engine = Engine(
        replica.settings,
        replica.journal,
        now=replica.now,
        now_us=START_US + int(replica.now * 1e6),
        saved=SavedState(queue_snapshots=snapshots),
    )
    group.advance(1)
    assert depth(replica) == 0


def test_what_was_acknowledged_elsewhere_while_its_instance_was_away_does_not_expire() -> None:
    group = Expiring()
    group.cut("a", "b")
    group.cut("b", "a")
    worker = group["b"].client("worker")
    worker.subscribe("1", t="work", opts="max_backlog=10")
    worker.send(c="sow_delete", t="work", bm=worker.take()[-1].bookmark)
    group["a"].now += 6.0  # it was killed before the message expired, and starts after that
    group.restart("a")
    group["a"].advance(2.0)  # until the other has connected
    group.heal()
    group.advance(int(HEAR_FIRST_S))
    assert (depth(group["a"]), depth(group["b"])) == (0, 0)
    assert (group.dead("a"), group.dead("b")) == ([], [])


@pytest.mark.parametrize("restarted", ["", "restarted"])
def test_messages_expire_on_a_replica_once_their_instance_has_been_away(restarted: str) -> None:
    group = Expiring()
    group.cut("a", "b")
    if restarted:
        group.restart("b")
    replica = group["b"]
    replica.advance(TAKE_OVER_S - 2.0)
    assert depth(replica) == 1
    replica.advance(3.0)
    assert depth(replica) == 0
    assert group.dead("b") == [b"1"]

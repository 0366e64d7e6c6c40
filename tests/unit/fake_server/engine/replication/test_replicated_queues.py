"""Queues of the same name on instances that replicate to each other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from haclient_fake_server.engine.settings import QueueTopic
from support.engine import Peer, World
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

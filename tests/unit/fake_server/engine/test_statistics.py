"""The tables of statistics, over the broker's own topics."""

from __future__ import annotations

import json
from typing import Any

import pytest

from haclient_fake_server.engine import statistics
from haclient_fake_server.engine.settings import QueueTopic
from support.engine import Peer, World
from support.replicas import Group


def ask(peer: Peer, topic: str, **parameters: object) -> dict[str, Any]:
    peer.send(json.dumps(parameters).encode(), c="sow", cid="q", t=f"/HACLIENT/{topic}")
    (record,) = [each for each in peer.take() if each.kind == "sow"]
    answer: dict[str, Any] = json.loads(record.data)
    return answer


def test_the_lag_of_a_subscription_is_what_it_has_not_read_of_the_log() -> None:
    world = World()
    publisher = world.client()
    slow, live = world.client("slow"), world.client("live")
    live.subscribe(bm="0", a="")
    for sequence in range(1, 4):
        publisher.publish(sequence)
    slow.stalled = True
    slow.subscribe(bm="0", a="")
    live.subscribe("plain")
    slow.subscribe("later", bm="0", opts="pause", a="")
    found = ask(world.client("watcher"), "subscriptions")
    assert found["last_position"] == 3
    assert [
        (each["client_name"], each["sub_id"], each["kind"], each["position"], each["lag"])
        for each in found["subscriptions"]
    ] == [
        ("live", "1", "live", 3, 0),
        ("slow", "1", "replay", 0, 3),
        ("live", "plain", "live", 0, 0),
        ("slow", "later", "paused", 0, 3),
    ]
    of_one = ask(world.client("watcher"), "subscriptions", client="live")["subscriptions"]
    assert [each["sub_id"] for each in of_one] == ["1", "plain"]


def test_many_rows_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "MAX_ROWS", 2)
    world = World()
    for number in range(5):
        world.client(f"client{number}")
    names: list[str] = []
    watcher, after = world.client("watcher"), 0
    while rows := ask(watcher, "clients", after=after)["clients"]:
        assert len(rows) <= 2
        after = rows[-1]["id"]
        names += [row["client_name"] for row in rows]
    assert names == [*(f"client{number}" for number in range(5)), "watcher"]
    assert ask(watcher, "clients")["is_complete"]


def test_a_row_of_a_client_says_who_it_is_and_what_it_has() -> None:
    world = World()
    joe = world.client("joe", user_id="j")
    joe.publish(7)
    joe.subscribe()
    stranger = world.connect()
    world.advance(2.5)
    watcher = world.client("watcher")
    first, second, _ = ask(watcher, "clients")["clients"]
    assert (first["id"], first["client_name"], first["kind"]) == (joe.number, "joe", "client")
    assert (first["last_sequence"], first["subscriptions"], first["idle_s"]) == (7, 1, 2.5)
    assert (second["id"], second["kind"]) == (stranger.number, "not logged on")


@pytest.mark.row("AD3")
def test_a_destination_is_as_many_seconds_behind_as_its_oldest_record_is_old() -> None:
    group = Group({"a": ("~b",), "b": ()})
    group.settle()
    world = group["a"]
    publisher = world.client()
    publisher.publish(1)
    group.settle()
    (row,) = world.engine.rows("replication", world.now)
    assert (row["is_connected"], row["messages_behind"], row["seconds_behind"]) == (True, 0, 0.0)
    group.cut("a", "b")
    for sequence in (2, 3):
        publisher.publish(sequence)
        world.advance(1.5)
    (row,) = world.engine.rows("replication", world.now)
    assert (row["is_connected"], row["messages_behind"], row["seconds_behind"]) == (False, 2, 3.0)
    assert (row["name"], row["acknowledged_position"]) == ("b", 1)


@pytest.mark.row("AD3")
def test_the_oldest_lease_of_a_queue_and_those_that_time_has_ended() -> None:
    world = World(queues=(QueueTopic(name="orders", lease_s=5.0, max_per_subscription_backlog=2),))
    worker = world.client("worker")
    worker.subscribe(opts="max_backlog=2")
    for sequence in (1, 2):
        world.client().publish(sequence)
        world.advance(2.0)
    (row,) = world.engine.rows("queues", world.now)
    assert (row["leased"], row["age_of_oldest_lease"], row["expired_leases"]) == (2, 4.0, 0)
    world.advance(2.0)
    (row,) = world.engine.rows("queues", world.now)
    assert (row["age_of_oldest_lease"], row["expired_leases"]) == (4.0, 1)
    assert (row["topics"], row["expired_time_limit"], row["max_backlog"]) == ("orders", 0, "")
    worker.close()
    (row,) = world.engine.rows("queues", world.now)
    assert row["age_of_oldest_lease"] == 0.0

"""Queries and deletes that take several steps, between which others are served."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haclient.protocol.codec import encode_frame
from haclient.protocol.messages import Message
from haclient_fake_server.engine.journal import records_of
from haclient_fake_server.engine.patterns import TopicMatcher
from haclient_fake_server.engine.requests import MAX_PENDING_COMMANDS
from haclient_fake_server.engine.settings import TOPIC_BYTES, LogTopic, QueueTopic, SowTopic
from haclient_fake_server.journal.format import RecordCommand
from support.engine import Peer, World
from support.lengths import length

SOW = (SowTopic("orders", ("/id",)), SowTopic("kept", ("/id",), history=True))
ALL = "received,processed,persisted,completed,stats"


def stepped_world(
    count: int,
    *,
    step_bytes: int = 1,
    max_held_bytes: int = 2**20,
    max_held_together_bytes: int = 2**20,
) -> tuple[World, Peer]:
    """A broker with some records, of which each step looks at one."""
    world = World(
        sow_topics=SOW,
        query_step_bytes=step_bytes,
        max_held_bytes=max_held_bytes,
        max_held_together_bytes=max_held_together_bytes,
    )
    publisher = world.client("pubber")
    for number in range(count):
        publisher.publish(number + 1, b'{"id":%d,"v":0}' % number)
    publisher.take()
    return world, publisher


def paused(world: World, name: str = "reader") -> Peer:
    """A client that takes one step at a time."""
    peer = world.client(name)
    peer.stalled = True
    return peer


def step(world: World, peer: Peer) -> None:
    """Let a client take what is ready, and the broker one step for it."""
    world.apply(world.engine.pump(peer.number, world.now))


def finish(world: World, peer: Peer) -> None:
    peer.stalled = False
    world.replay_backlog(peer)


def bodies(messages: Sequence[Message]) -> list[bytes]:
    return [message.data for message in messages if message.kind in {"sow", "p"}]


def values_of(messages: Sequence[Message]) -> dict[bytes, bytes]:
    """The records that a subscriber knows, by key, after what it has received."""
    known: dict[bytes, bytes] = {}
    for message in messages:
        key = message.sow_key.encode()
        if message.kind == "oof":
            known.pop(key, None)
        elif message.kind in {"sow", "p"}:
            known[key] = message.data
    return known


def test_a_query_has_the_records_of_the_moment_at_which_it_came() -> None:
    world, publisher = stepped_world(5)
    reader = paused(world)
    reader.send(c="sow", cid="1", t="orders", a="processed,completed,stats", query_id="q")
    assert [m.ack_type or m.kind for m in reader.take()] == ["processed"]
    step(world, reader)
    assert [m.kind for m in reader.take()] == ["group_begin", "sow"]
    publisher.publish(6, b'{"id":4,"v":1}')
    publisher.publish(7, b'{"id":9}')
    publisher.send(c="sow_delete", cid="d", t="orders", sow_keys="nothing", a="processed", s=8)
    assert [m.ack_type for m in publisher.take()][-1] == "processed"  # others are served
    finish(world, reader)
    answer = reader.take()
    assert bodies(answer) == [b'{"id":%d,"v":0}' % number for number in range(1, 5)]
    assert [m.ack_type or m.kind for m in answer[-3:]] == ["group_end", "completed", "stats"]
    assert (answer[-1].records_returned, answer[-1].topic_matches) == (5, 5)


@pytest.mark.parametrize("order", [{}, {"orderby": "/v DESC, /id"}, {"opts": "skip_n=2,top_n=4"}])
def test_steps_find_what_one_step_finds(order: dict[str, str]) -> None:
    if "opts" in order:
        order = {**order, "orderby": "/v"}
    found: list[list[bytes]] = []
    for step_bytes in (1, 1100, 2**20):
        world = World(sow_topics=SOW, query_step_bytes=step_bytes)
        peer = world.client()
        for number in range(12):
            peer.publish(None, b'{"id":%d,"v":%d}' % (number, number * 7 % 5))
        peer.send(c="sow", cid="1", t="orders", filter="/id != 3", a="stats", **order)
        messages = peer.take()
        found.append(bodies(messages))
        assert messages[-1].matches == 11
    assert found[0] == found[1] == found[2]
    assert found[0]


def test_an_answer_is_paced_by_what_its_reader_has_taken() -> None:
    world, _ = stepped_world(10)
    reader = paused(world)
    reader.send(c="sow", cid="1", t="orders")
    assert bodies(reader.take()) == []  # the first step has its turn, too
    for _ in range(3):
        step(world, reader)
    assert len(bodies(reader.take())) == 3


def test_more_queries_than_may_wait_are_refused_but_small_ones_are_answered_at_once() -> None:
    world, publisher = stepped_world(3, step_bytes=600)
    reader = paused(world)
    for number in range(MAX_PENDING_COMMANDS + 1):
        reader.send(c="sow", cid=f"{number}", t="orders", a="processed")
    assert [m.status for m in reader.take() if m.kind == "ack"] == [
        *["success"] * MAX_PENDING_COMMANDS,
        "failure",
    ]
    publisher.publish(None, b'{"id":1}', t="kept")
    reader.send(c="sow", cid="small", t="kept", a="completed")
    assert [m.ack_type or m.kind for m in reader.take()] == [
        "group_begin",
        "sow",
        "group_end",
        "completed",
    ]


@pytest.mark.parametrize("topic", ["orders", "kept"])
def test_changes_follow_the_answer_of_the_query_of_their_subscription(topic: str) -> None:
    world = World(sow_topics=SOW, query_step_bytes=1)
    publisher = world.client("pubber")
    for number in range(3):
        publisher.publish(None, b'{"id":%d,"v":0}' % number, t=topic)
    reader = paused(world)
    start = {"bm": "0|1|"} if topic == "kept" else {}
    reader.send(c="sow_and_subscribe", cid="1", sub_id="s", t=topic, a="completed", **start)
    publisher.publish(None, b'{"id":2,"v":1}', t=topic)
    step(world, reader)
    publisher.publish(None, b'{"id":2,"v":2}', t=topic)
    finish(world, reader)
    publisher.publish(None, b'{"id":2,"v":3}', t=topic)
    messages = reader.take()
    assert [m.kind for m in messages if m.kind != "ack"] == [
        "group_begin",
        *["sow"] * 3,
        "group_end",
        *["p"] * 3,
    ]
    assert [m.data for m in messages if m.kind == "p"] == [
        b'{"id":2,"v":%d}' % value for value in (1, 2, 3)
    ]


def test_a_subscription_that_ends_in_the_middle_of_its_query_receives_nothing_more() -> None:
    world, publisher = stepped_world(4)
    reader = paused(world)
    reader.send(c="sow_and_subscribe", cid="1", sub_id="s", t="orders")
    publisher.publish(5, b'{"id":1,"v":1}')
    reader.take()
    reader.send(c="unsubscribe", cid="2", sub_id="s", a="processed")
    publisher.publish(6, b'{"id":1,"v":2}')
    finish(world, reader)
    assert [m.ack_type for m in reader.take()] == ["processed"]
    reader.send(c="sow_and_subscribe", cid="3", sub_id="s", t="orders")
    publisher.publish(7, b'{"id":1,"v":3}')
    assert bodies(reader.take())[-1] == b'{"id":1,"v":3}'


def test_a_client_that_ends_in_the_middle_of_its_query_leaves_nothing() -> None:
    world, publisher = stepped_world(4)
    reader = paused(world)
    reader.send(c="sow_and_subscribe", cid="1", sub_id="s", t="orders")
    publisher.publish(5, b'{"id":1,"v":1}')
    reader.close()
    publisher.publish(6, b'{"id":1,"v":2}')
    assert world.engine._subscribing._held == {}


def test_a_subscription_that_is_replaced_in_the_middle_of_its_query_misses_nothing() -> None:
    world, publisher = stepped_world(6)
    reader = paused(world)
    fields = {"c": "sow_and_subscribe", "cid": "1", "sub_id": "s", "t": "orders"}
    reader.send(**fields, opts="oof")
    step(world, reader)  # two records are sent
    publisher.send(c="sow_delete", t="orders", filter="/id = 0", s=7)
    reader.send(**fields, opts="oof,replace", filter="/id != 1")
    finish(world, reader)
    known = values_of(reader.take())
    assert sorted(known.values()) == [b'{"id":%d,"v":0}' % number for number in range(2, 6)]


def test_a_subscriber_that_does_not_read_its_answer_is_cut_when_too_much_waits() -> None:
    world, publisher = stepped_world(4, max_held_bytes=1000)
    reader = paused(world)
    reader.send(c="sow_and_subscribe", cid="1", sub_id="s", t="orders")
    for number in range(5, 30):
        publisher.publish(number, b'{"id":1,"v":%d}' % number)
    assert reader.closed == "slow client"


def test_who_has_the_most_is_cut_when_too_much_waits_for_all_together() -> None:
    world, publisher = stepped_world(4, max_held_together_bytes=3000)
    readers = [paused(world, f"reader-{number}") for number in range(3)]
    for reader in readers:
        reader.send(c="sow_and_subscribe", cid="1", sub_id=f"s-{reader.number}", t="orders")
        publisher.publish(None, b'{"id":1,"v":%d}' % reader.number)
    for number in range(5, 18):
        publisher.publish(number, b'{"id":1,"v":%d}' % number)
    assert [each.closed for each in readers] == ["slow client", "", ""]
    finish(world, readers[1])
    assert readers[1].take()[-1].data == b'{"id":1,"v":17}'


def test_conflated_changes_follow_the_answer_too() -> None:
    world, publisher = stepped_world(3)
    reader = paused(world)
    fields = {"c": "sow_and_subscribe", "cid": "1", "sub_id": "s", "t": "orders"}
    reader.send(**fields, opts="conflation=100ms")
    publisher.publish(4, b'{"id":0,"v":1}')
    world.advance(1)
    step(world, reader)
    assert {m.kind for m in reader.take()} == {"group_begin", "sow"}
    finish(world, reader)
    assert [m.kind for m in reader.take()] == ["sow", "sow", "group_end", "p"]


# -- deletes ----------------------------------------------------------------------------------


def test_a_delete_in_steps_deletes_all_and_answers_once() -> None:
    world, publisher = stepped_world(5)
    watcher = world.client("watcher")
    watcher.send(c="sow_and_subscribe", cid="1", sub_id="s", t="orders", opts="oof")
    watcher.take()
    publisher.stalled = True
    publisher.send(c="sow_delete", cid="d", t="orders", filter="/id > 0", a=ALL, s=6)
    assert publisher.take() == []
    step(world, publisher)
    step(world, publisher)
    query = world.client("other")
    query.send(c="sow", cid="1", t="orders")
    assert len(bodies(query.take())) < 5  # others are served meanwhile
    finish(world, publisher)
    world.advance(2)
    answer = publisher.take()
    assert sorted(m.ack_type for m in answer) == sorted(ALL.split(","))
    (stats,) = [m for m in answer if m.ack_type == "stats"]
    assert (stats.records_deleted, stats.topic_matches, stats.matches) == (4, 5, 4)
    assert [m.kind for m in watcher.take()] == ["oof"] * 4


def test_a_delete_by_keys_takes_steps_too_and_deletes_them_alone() -> None:
    world, publisher = stepped_world(5)
    other = world.client("other")
    other.send(c="sow", cid="1", t="orders")
    keys = [message.sow_key for message in other.take() if message.kind == "sow"]
    command = {"c": "sow_delete", "cid": "d", "t": "orders", "a": "stats"}
    publisher.send(**command, sow_keys=",".join([*keys[1:4], keys[1], "unknown"]), s=6)
    assert publisher.take()[-1].records_deleted == 3
    other.send(c="sow", cid="2", t="orders")
    assert [m.sow_key for m in other.take() if m.kind == "sow"] == [keys[0], keys[4]]


def test_what_follows_a_delete_on_its_connection_waits_for_it() -> None:
    world, publisher = stepped_world(4)
    publisher.stalled = True
    publisher.send(c="sow_delete", cid="d", t="orders", filter="/id >= 0", a="processed", s=5)
    publisher.publish(6, b'{"id":3,"v":9}')
    publisher.send(b'{"id":2,"w":1}', c="delta_publish", t="orders", s=7)
    assert world.engine.is_busy(publisher.number)
    finish(world, publisher)
    assert not world.engine.is_busy(publisher.number)
    publisher.take()
    publisher.send(c="sow", cid="1", t="orders")
    assert bodies(publisher.take()) == [b'{"id":3,"v":9}', b'{"id":2,"w":1}']


def test_a_client_is_not_silent_while_the_broker_does_not_read_it() -> None:
    world, publisher = stepped_world(4)
    publisher.send(c="heartbeat", opts="start,1")
    publisher.stalled = True
    publisher.send(c="sow_delete", cid="d", t="orders", filter="/id >= 0", s=5)
    world.advance(20)
    assert not publisher.closed
    finish(world, publisher)
    world.advance(2)
    assert not publisher.closed
    world.advance(2)
    assert publisher.closed.startswith("heartbeat")


def test_a_delete_that_was_cut_is_sent_again_and_carried_out_to_its_end() -> None:
    world, publisher = stepped_world(4)
    publisher.stalled = True
    delete: dict[str, str | int] = {
        "c": "sow_delete",
        "cid": "d",
        "t": "orders",
        "filter": "/id >= 0",
        "s": 5,
    }
    publisher.send(**delete)
    step(world, publisher)
    publisher.close()
    world.restart()
    again = world.client("pubber")
    again.send(**delete, a="stats")
    (stats,) = again.take()
    assert stats.records_deleted in {1, 2, 3}
    world.restart()
    again = world.client("pubber")
    again.send(**delete, a="stats")
    assert again.take()[0].records_deleted == 0  # a duplicate
    again.send(c="sow", cid="1", t="orders")
    assert bodies(again.take()) == []


def test_a_restart_and_a_replica_see_the_same_deletes() -> None:
    world, publisher = stepped_world(6)
    publisher.send(c="sow_delete", cid="d", t="orders", filter="/id > 1", s=7)
    deletes = [
        record
        for chunk in [world.journal.read(world.journal.seek(1), 2**20)[0]]
        for record in records_of(chunk)
        if record.command == RecordCommand.SOW_DELETE
    ]
    assert len(deletes) == 4
    world.restart()
    peer = world.client("other")
    peer.send(c="sow", cid="1", t="orders")
    assert bodies(peer.take()) == [b'{"id":0,"v":0}', b'{"id":1,"v":0}']


# -- any order ----------------------------------------------------------------------------------

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["p", "delta_publish", "sow_delete", "step", "step"]), st.integers(0, 5)
    ),
    max_size=25,
)


@settings(max_examples=length(150))
@given(
    actions=ACTIONS,
    kind=st.sampled_from(["sow_and_subscribe", "sow_and_delta_subscribe"]),
    filtered=st.booleans(),
)
def test_a_subscriber_knows_the_records_after_any_interleaving(
    actions: list[tuple[str, int]], kind: str, *, filtered: bool
) -> None:
    world, publisher = stepped_world(4)
    reader = paused(world)
    whole = {"filter": "/v < 3"} if filtered else {}
    reader.send(c=kind, cid="1", sub_id="s", t="orders", opts="oof", **whole)
    for number, (action, key) in enumerate(actions, 5):
        if action == "step":
            step(world, reader)
        elif action == "sow_delete":
            publisher.send(c=action, cid="d", t="orders", filter=f"/id = {key}", s=number)
        else:
            publisher.send(b'{"id":%d,"v":%d}' % (key, number % 5), c=action, t="orders", s=number)
    finish(world, reader)
    messages = reader.take()
    ends = [at for at, message in enumerate(messages) if message.kind == "group_end"]
    assert len(ends) == 1
    assert all(m.kind == "sow" for m in messages[1 : ends[0]])
    assert all(m.kind in {"p", "oof"} for m in messages[ends[0] + 1 :])
    publisher.send(c="sow", cid="q", t="orders", **whole)
    wanted = values_of([m for m in publisher.take() if m.kind == "sow"])
    known = values_of(messages)
    assert known == wanted if kind == "sow_and_subscribe" else known.keys() == wanted.keys()


@settings(max_examples=length(150))
@given(
    actions=st.lists(
        st.tuples(
            st.sampled_from(["p", "sow_delete", "replace", "step", "step"]), st.integers(0, 5)
        ),
        max_size=30,
    )
)
def test_a_subscriber_that_is_replaced_in_steps_knows_what_the_last_query_gives(
    actions: list[tuple[str, int]],
) -> None:
    world, publisher = stepped_world(4)
    reader = paused(world)
    fields = {"c": "sow_and_subscribe", "cid": "1", "sub_id": "s", "t": "orders"}
    wanted = "/v < 3"
    reader.send(**fields, opts="oof", filter=wanted)
    for number, (action, key) in enumerate(actions, 5):
        if action == "step":
            step(world, reader)
        elif action == "replace":
            wanted = f"/v < {key}" if number % 2 else f"/v >= {key}"
            reader.send(**fields, opts="oof,replace", filter=wanted)
        elif action == "sow_delete":
            publisher.send(c=action, cid="d", t="orders", filter=f"/id = {key}", s=number)
        else:
            publisher.send(b'{"id":%d,"v":%d}' % (key, number % 5), c=action, t="orders", s=number)
    finish(world, reader)
    publisher.send(c="sow", cid="q", t="orders", filter=wanted)
    there = values_of([each for each in publisher.take() if each.kind == "sow"])
    assert values_of(reader.take()) == there


def test_what_leaves_a_replaced_subscription_is_told_in_steps() -> None:
    world, _ = stepped_world(8)
    reader = paused(world)
    fields = {"c": "sow_and_subscribe", "cid": "1", "sub_id": "s", "t": "orders"}
    reader.send(**fields, opts="oof")
    finish(world, reader)
    reader.take()
    reader.stalled = True
    reader.send(**fields, opts="oof,replace", filter="/id >= 7")
    step(world, reader)
    assert len([each for each in reader.take() if each.kind == "oof"]) == 1
    reader.send(c="unsubscribe", sub_id="s")
    finish(world, reader)
    assert reader.take() == []
    for _ in range(MAX_PENDING_COMMANDS + 2):
        reader.stalled = True
        reader.send(**fields, opts="oof,replace", a="processed")
    answers = [each for each in reader.take() if each.kind == "ack"]
    assert [each.reason for each in answers][-1] == "too many queries"


def test_what_left_an_earlier_subscription_comes_before_the_group_of_a_short_query() -> None:
    world, publisher = stepped_world(20, step_bytes=20 * 1024)
    reader = paused(world)
    fields = {"c": "sow_and_subscribe", "cid": "1", "sub_id": "s", "t": "orders"}
    long = " OR ".join(["/v = 1"] * 500)
    for options, filter_ in (("oof", "/v = 0"), ("oof,replace", long), ("oof,replace", "/v = 0")):
        reader.send(**fields, opts=options, filter=filter_)
    publisher.publish(21, b'{"id":99,"v":0}')
    finish(world, reader)
    assert len(values_of(reader.take())) == 21


@pytest.mark.parametrize("command", ["sow", "sow_delete"])
def test_a_long_filter_counts_for_as_much_as_it_costs(command: str) -> None:
    world, _ = stepped_world(20, step_bytes=20 * 1024)
    peer = paused(world)
    short, long = "/v = 0", " OR ".join(["/v = 1"] * 500)
    peer.send(c=command, cid="c", t="orders", filter=f"{short} AND /id > 99", a="completed")
    assert peer.acks()
    peer.send(c=command, cid="c", t="orders", filter=long, a="completed")
    assert not peer.acks()
    finish(world, peer)
    assert peer.acks()


def test_publishes_to_new_topics_beside_many_patterns_take_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("haclient_fake_server.engine.broker.MAX_PATTERN_CHECKS", 20)
    world = World()
    subscriber = world.client("subscriber")
    for number in range(15):
        subscriber.subscribe(f"{number}", t=f"^topic.*{number}$")
    publisher = paused(world, "publisher")
    frames = [encode_frame({"c": "p", "t": f"topic{n}", "s": n + 1}, b"%d" % n) for n in range(6)]
    publisher.send_all([*frames, encode_frame({"c": "flush", "cid": "f", "a": "completed"})])
    assert subscriber.bodies() == [b"0", b"1"]
    assert world.engine.is_busy(publisher.number)
    assert world.engine.has_long_commands(publisher.number)
    step(world, publisher)
    assert subscriber.bodies() == [b"2", b"3"]
    publisher.send_all([encode_frame({"c": "p", "t": "topic14", "s": 7}, b"last")])
    assert subscriber.bodies() == []  # it waits for those that came before it
    finish(world, publisher)
    assert subscriber.bodies() == [b"4", b"5", b"last"]
    assert [ack.command_id for ack in publisher.acks()] == ["f"]
    assert not world.engine.is_busy(publisher.number)


@pytest.mark.parametrize("topic", ["topic", "kept", "queue"])
def test_a_publish_is_compared_with_very_many_patterns_in_steps(
    topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("haclient_fake_server.engine.broker.MAX_PATTERN_CHECKS", 4)
    world = World(
        sow_topics=(SowTopic("kept", ("/id",)),),
        queues=(QueueTopic(name="queue", topics=("topic",)),),
    )
    subscriber, other = world.client("subscriber"), world.client("other")
    target = "topic" if topic == "queue" else topic
    for number in range(10):
        subscriber.subscribe(f"{number}", t=f"^{target}|{number}$")
    publisher = paused(world, "publisher")
    kinds = ("p", "delta_publish", "publish")
    publisher.send_all(
        [
            encode_frame({"c": kind, "t": topic, "s": n}, b'{"id":%d}' % n)
            for n, kind in enumerate(kinds, 1)
        ]
    )
    for number in (10, 11):  # of which the second has no new pattern to look at in its step
        assert subscriber.bodies() == []
        other.publish(number, b"x", t="other")
        subscriber.subscribe(f"{number}", t=f"^{target}|{number}$")
        step(world, publisher)
    assert subscriber.bodies() == [b'{"id":1}']
    finish(world, publisher)
    assert subscriber.bodies() == [b'{"id":2}', b'{"id":3}']


@pytest.mark.parametrize("topic", ["", "a\nb", "/AMPS/x", "/HACLIENT/x", "jobs", "long" * 99])
def test_a_publish_that_is_refused_leaves_no_topic_behind(
    topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("haclient_fake_server.engine.broker.MAX_PATTERN_CHECKS", 1)
    world = World(
        queues=(QueueTopic(name="jobs", topics=("a", "b")),),
        log_topics=(LogTopic("^[ab]$"),),
        max_topic_bytes=TOPIC_BYTES + 100,
    )
    subscriber = world.client("subscriber")
    for number in range(3):
        subscriber.subscribe(f"{number}", t=f"x|{number}$")
    publisher = world.client("publisher")
    publisher.publish(1, t=topic)
    assert [each.status for each in publisher.acks()] == ["failure"]
    assert topic not in world.engine._routes["json"].routes


def test_refused_publishes_beside_many_patterns_do_not_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("haclient_fake_server.engine.broker.MAX_PATTERN_CHECKS", 1)
    monkeypatch.setattr("haclient_fake_server.engine.routes.MAX_PLANNED_MEMBERS", 10)
    world = World(sow_topics=(SowTopic("^k", ("/id",), is_pattern=True),))
    subscriber, publisher = world.client("subscriber"), world.client("publisher")
    for number in range(4):
        subscriber.subscribe(f"{number}", t=f"^k|{number}$")
    for number in range(9):  # a topic each, and no key
        publisher.publish(number + 1, b"{}", t=f"k{number}")
    assert {each.status for each in publisher.acks()} == {"failure"}
    known = world.engine._routes["json"]._known.values()
    assert sum(1 + len(each.matching) for each in known) <= 15


def test_new_topics_that_are_compared_in_turns_do_not_forget_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Together they match more patterns than are kept; each began again before its next turn."""
    monkeypatch.setattr("haclient_fake_server.engine.broker.MAX_PATTERN_CHECKS", 1)
    monkeypatch.setattr("haclient_fake_server.engine.routes.MAX_PLANNED_MEMBERS", 10)
    world = World()
    subscriber = world.client("subscriber")
    for number in range(4):
        subscriber.subscribe(f"{number}", t=f"^k|{number}$")
    publishers = [paused(world, f"publisher-{number}") for number in range(9)]
    for number, each in enumerate(publishers):
        each.publish(1, b"%d" % number, t=f"k{number}")
    for _ in range(4):
        for each in publishers:
            step(world, each)
    assert {each.data for each in subscriber.take() if each.kind == "p"} == {
        b"%d" % number for number in range(9)
    }


def test_a_new_topic_of_many_publishers_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the work grows with the publishers, as after each start of the broker."""
    monkeypatch.setattr("haclient_fake_server.engine.broker.MAX_PATTERN_CHECKS", 3)
    world, compared = World(), 0
    matches = TopicMatcher.matches

    def counted(self: TopicMatcher, topic: str) -> bool:
        nonlocal compared
        compared += topic == "new"
        return matches(self, topic)

    subscriber = world.client("subscriber")
    for number in range(10):
        subscriber.subscribe(f"{number}", t=f"^new|{number}$")
    publishers = [paused(world, f"publisher-{number}") for number in range(9)]
    monkeypatch.setattr(TopicMatcher, "matches", counted)
    for each in publishers:
        each.publish(1, b"x", t="new")
        if each is publishers[0]:
            each.close()  # what it has done is done again
    for each in publishers[1:]:
        finish(world, each)
    assert len(subscriber.bodies()) == 8
    assert compared <= 10 + 3 + 2  # the routes look at it, too


@pytest.mark.parametrize("topic", ["orders", "plain"])
def test_publishes_to_many_subscribers_take_turns(
    topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("haclient_fake_server.engine.broker.MAX_PATTERN_CHECKS", 4)
    world = World(sow_topics=(SowTopic("orders", ("/id",)),))
    subscriber = world.client("subscriber")
    for number in range(12):
        subscriber.subscribe(f"{number}", t=topic, filter="/id >= 0")
    publisher = paused(world, "publisher")
    bodies = [b'{"id":%d}' % n for n in range(6)]
    publisher.send_all(
        [encode_frame({"c": "p", "t": topic, "s": n}, body) for n, body in enumerate(bodies, 1)]
    )
    assert subscriber.bodies() == bodies[:2]
    assert world.engine.is_busy(publisher.number)
    step(world, publisher)
    assert subscriber.bodies() == bodies[2:4]
    finish(world, publisher)
    assert subscriber.bodies() == bodies[4:]


@pytest.mark.parametrize("step_bytes", [1, 2**20])
@pytest.mark.parametrize(
    ("options", "wanted"),
    [("", [9, 8, 4, 3, 2, 1]), ("top_n=2", [9, 8]), ("top_n=2,skip_n=2", [4, 3])],
)
def test_the_order_of_a_query_counts_over_all_its_topics(
    step_bytes: int, options: str, wanted: list[int]
) -> None:
    world, publisher = stepped_world(0, step_bytes=step_bytes)
    for number, value in enumerate((1, 9, 4, 3, 2, 8), 1):
        topic = "orders" if number % 2 else "kept"
        publisher.publish(number, b'{"id":%d,"v":%d}' % (number, value), t=topic)
    reader = paused(world)
    fields = {"opts": options} if options else {}
    reader.send(c="sow", cid="1", t="orders|kept", orderby="/v DESC", bs=4, **fields)
    finish(world, reader)
    found = [json.loads(each.data)["v"] for each in reader.take() if each.kind == "sow"]
    assert found == wanted

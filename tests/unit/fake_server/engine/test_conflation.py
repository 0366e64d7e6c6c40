"""The option `conflation` of subscriptions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haclient.errors import UsageError
from haclient.live_records import apply_delta
from haclient.protocol.messages import Message
from haclient_fake_server.engine.conflation import MAX_KEY_FIELDS
from haclient_fake_server.engine.settings import LogTopic, QueueTopic, SowTopic
from support.engine import Peer, World
from support.lengths import length

pytestmark = pytest.mark.row("OP9")

SOW = (SowTopic("records", ("/id",)), SowTopic("named"))


def conflating() -> World:
    return World(sow_topics=SOW)


def put(peer: Peer, key: int, value: int, topic: str = "records") -> None:
    peer.publish(None, b'{"id":%d,"v":%d}' % (key, value), t=topic)


def published(peer: Peer) -> list[Message]:
    return [each for each in peer.take() if each.kind in {"p", "oof"}]


def values(peer: Peer) -> list[tuple[str, int, int]]:
    found = [(each.kind, json.loads(each.data)) for each in published(peer)]
    return [(kind, body["id"], body["v"]) for kind, body in found]


def test_only_the_last_message_of_each_record_is_sent_when_the_interval_ends() -> None:
    world = conflating()
    reader, publisher = world.client("reader"), world.client()
    reader.subscribe(t="records", opts="conflation=1s")
    for value in range(3):
        put(publisher, 1, value)
        put(publisher, 2, 10 * value)
        world.advance(0.25)
    assert values(reader) == []
    world.advance(0.25)
    assert values(reader) == [("p", 1, 2), ("p", 2, 20)]
    world.advance(5.0)
    assert values(reader) == []
    put(publisher, 1, 7)
    world.advance(0.75)
    assert values(reader) == []
    world.advance(0.25)
    assert values(reader) == [("p", 1, 7)]


def test_fields_of_the_message_are_the_key_of_a_topic_without_records() -> None:
    world = conflating()
    reader, publisher = world.client("reader"), world.client()
    reader.subscribe(opts="conflation=1s,conflation_key=[/id,/side]")
    reader.subscribe("2", t="^ord", opts="conflation=1s,conflation_key=[/id]")
    reader.take()
    for side, value in (("b", 1), ("s", 2), ("b", 3)):
        publisher.publish(None, b'{"id":1,"side":"%b","v":%d}' % (side.encode(), value))
    publisher.publish(None, b"no fields")
    publisher.publish(None, b"no fields, too")
    world.advance(1.0)
    found = [(each.sids, each.data) for each in reader.take()]
    assert found == [
        ("1", b'{"id":1,"side":"b","v":3}'),
        ("1", b'{"id":1,"side":"s","v":2}'),
        ("1", b"no fields"),
        ("1", b"no fields, too"),
        ("2", b'{"id":1,"side":"b","v":3}'),
        ("2", b"no fields"),
        ("2", b"no fields, too"),
    ]


def test_numbers_that_no_float_holds_are_keys_apart_as_in_a_state_of_the_world() -> None:
    world = World(sow_topics=SOW)
    reader, publisher = world.client("reader"), world.client()
    reader.subscribe(t="numbers", opts="conflation=1s,conflation_key=[/id]")
    texts = [b"98765432109876543210", b"98765432109876543211", b"0.1", b"0.10000000000000000001"]
    for text in (*texts, b'"0.1"'):
        publisher.publish(None, b'{"id":%b}' % text, t="numbers")
    world.advance(1.0)
    found = [each.data for each in published(reader)]
    assert found == [b'{"id":%b}' % text for text in (*texts[:2], b'"0.1"', texts[3])]


@pytest.mark.row("OP10")
@pytest.mark.parametrize("bookmark", ["", "0|1|"])
def test_a_message_has_the_bookmark_and_the_time_of_the_first_of_its_interval(
    bookmark: str,
) -> None:
    world = conflating()
    reader, plain, publisher = world.client("reader"), world.client("plain"), world.client()
    start = {"bm": bookmark} if bookmark else {}
    fields = {"t": "records", **start}
    reader.subscribe(opts="bookmark,timestamp,conflation=1s", **fields)
    plain.subscribe(opts="bookmark,timestamp", **fields)
    for value in range(3):
        put(publisher, 1, value)
        world.advance(0.2)
    world.advance(1.0)
    (found,) = published(reader)
    first, _, last = published(plain)
    assert (found.bookmark, found.timestamp) == (first.bookmark, first.timestamp)
    assert (found.data, found.sow_key) == (last.data, last.sow_key)


@pytest.mark.parametrize("option", ["none", "0s"])
def test_without_an_interval_nothing_is_held(option: str) -> None:
    world = conflating()
    reader, publisher = world.client("reader"), world.client()
    reader.subscribe(opts=f"conflation={option}")
    reader.take()
    publisher.publish(None, b"1")
    assert reader.bodies() == [b"1"]


def test_the_interval_of_auto_grows_where_the_connection_has_too_much_to_send() -> None:
    world = conflating()
    reader, publisher = world.client("reader"), world.client()
    reader.subscribe(t="records", opts="conflation=auto")
    waits: list[float] = []
    for value in range(3):
        put(publisher, 1, value)
        world.engine.over_high_water(reader.number)
        began = world.now
        reader.take()
        while not reader.bodies():
            world.advance(0.0625)
        waits.append(world.now - began)
    assert waits == [0.125, 0.25, 0.4375]


@pytest.mark.row("CC21", "OP17")
@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"opts": "conflation=1s"}, "'orders' is no topic with a state of the world, so it needs"),
        ({"opts": "conflation=auto"}, "it needs a conflation_key"),
        ({"t": "^rec", "opts": "conflation=1s"}, "it needs a conflation_key"),
        ({"opts": "conflation=1s,conflation_key=[id]"}, "conflation_key: "),
        (
            {"opts": f"conflation=1s,conflation_key=[{','.join(['/a'] * (MAX_KEY_FIELDS + 1))}]"},
            "wanted at most 100",
        ),
        ({"t": "records", "opts": "oof,conflation=1s,conflation_key=[/v]"}, "with oof or deltas"),
        ({"t": "named", "opts": "oof,conflation=1s,conflation_key=[/v]"}, "with oof or deltas"),
        (
            {"c": "delta_subscribe", "t": "records", "opts": "conflation=1s,conflation_key=[/v]"},
            "with oof or deltas",
        ),
        ({"t": "work", "opts": "conflation=1s,conflation_key=[/v]"}, "is not for a queue"),
        ({"t": "records", "bm": "0", "top_n": 2, "opts": "conflation=1s"}, "top_n counts"),
        (
            {"c": "sow_and_subscribe", "t": "records", "opts": "conflation=1s,top_n=2,skip_n=0"},
            "conflation is not for a page",
        ),
        ({"c": "sow", "t": "records", "opts": "conflation=1s"}, "is not supported with sow"),
    ],
)
def test_what_cannot_be_conflated_is_refused(fields: dict[str, str | int], detail: str) -> None:
    world = World(
        sow_topics=SOW, log_topics=(LogTopic("work"), LogTopic("records")),
        queues=(QueueTopic(name="work"),),
    )  # fmt: skip
    peer = world.client()
    peer.subscribe(**fields)
    (ack,) = [each for each in peer.take() if each.status == "failure"]
    assert ack.reason == "invalid options"
    assert detail in world.events[-1]


def test_the_key_of_the_topic_may_be_named_with_oof() -> None:
    peer = conflating().client()
    peer.subscribe(t="records", opts="oof,conflation=1s,conflation_key=[/id]")
    assert peer.take()[0].status == "success"


def test_out_of_focus_replaces_the_message_and_says_what_the_subscriber_has() -> None:
    world = conflating()
    reader, publisher = world.client("reader"), world.client()
    put(publisher, 1, 1)
    put(publisher, 2, 2)
    reader.subscribe(c="sow_and_subscribe", t="records", filter="/v < 10", opts="oof,conflation=1s")
    assert sorted(json.loads(each.data)["v"] for each in reader.take() if each.kind == "sow") == [
        1,
        2,
    ]
    put(publisher, 1, 5)
    put(publisher, 1, 50)  # out of focus: the subscriber has 1
    publisher.send(c="sow_delete", t="records", filter="/id = 2")
    put(publisher, 3, 3)
    publisher.send(c="sow_delete", t="records", filter="/id = 3")  # it never had that
    put(publisher, 4, 40)
    put(publisher, 4, 4)
    world.advance(1.0)
    found = published(reader)
    assert [(each.kind, each.reason, json.loads(each.data)) for each in found] == [
        ("oof", "match", {"id": 1, "v": 1}),
        ("oof", "deleted", {"id": 2, "v": 2}),
        ("p", "", {"id": 4, "v": 4}),
    ]
    put(publisher, 4, 44)
    put(publisher, 4, 8)  # in focus again before it was known to have left
    world.advance(1.0)
    assert values(reader) == [("p", 4, 8)]


@settings(max_examples=length(60))
@given(
    steps=st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 9) | st.none(), st.integers(0, 4)),
        max_size=30,
    ),
    has_filter=st.booleans(),
    deltas=st.booleans(),
)
def test_a_view_that_is_kept_by_conflated_messages_is_what_a_query_gives_in_the_end(
    steps: list[tuple[int, int | None, int]],
    has_filter: bool,  # noqa: FBT001  # Hypothesis calls it
    deltas: bool,  # noqa: FBT001  # Hypothesis calls it
) -> None:
    world = conflating()
    reader, publisher = world.client("reader"), world.client()
    filter_ = {"filter": "/v > 3"} if has_filter else {}
    kind = "sow_and_delta_subscribe" if deltas else "sow_and_subscribe"
    reader.subscribe(c=kind, t="records", opts="oof,conflation=1s", **filter_)
    reader.take()
    view: dict[str, Any] = {}
    last: dict[str, float] = {}

    def read_all() -> None:
        for each in published(reader):
            if each.kind == "oof":
                assert view.pop(each.sow_key) == json.loads(each.data)
            else:
                known, body = view.get(each.sow_key), json.loads(each.data)
                view[each.sow_key] = apply_delta(known, body) if known and deltas else body
            assert world.now - last.get(each.sow_key, -1.0) >= 1.0
            last[each.sow_key] = world.now

    for key, value, wait in steps:
        if value is None:
            publisher.send(c="sow_delete", t="records", filter=f"/id = {key}")
        else:
            put(publisher, key, value)
        for _ in range(wait):
            world.advance(0.25)
            read_all()
    world.advance(0.75)
    read_all()
    world.advance(0.25)
    read_all()
    reader.send(c="sow", t="records", query_id="q", **filter_)
    queried = {each.sow_key: json.loads(each.data) for each in reader.take() if each.kind == "sow"}
    assert view == queried


def test_a_replay_is_conflated_and_completed_follows_what_was_held() -> None:
    world = conflating()
    reader, publisher = world.client("reader"), world.client()
    for value in range(5):
        put(publisher, 1, value)
        put(publisher, 2, value)
    reader.subscribe(t="records", bm="0", opts="conflation=1s", a="completed")
    kinds = [(each.kind, each.data) for each in reader.take()]
    assert kinds == [("p", b'{"id":1,"v":4}'), ("p", b'{"id":2,"v":4}'), ("ack", b"")]
    put(publisher, 1, 5)
    put(publisher, 1, 6)
    world.advance(1.0)
    assert values(reader) == [("p", 1, 6)]


@pytest.mark.row("X4")
def test_the_interval_of_a_replay_is_the_time_of_the_replay_and_not_that_of_the_messages() -> None:
    world = conflating()
    reader, late, publisher = world.client("reader"), world.client("late"), world.client()
    for value in range(5):
        put(publisher, 1, value)
        put(publisher, 2, value)
        world.advance(180.0)
    fields = {"t": "records", "bm": "0", "a": "completed"}
    reader.subscribe(opts="conflation=1s", **fields)
    assert [(each.kind, each.data) for each in reader.take()] == [
        ("p", b'{"id":1,"v":4}'),
        ("p", b'{"id":2,"v":4}'),
        ("ack", b""),
    ]
    late.subscribe(**fields)
    assert len(published(late)) == 10  # all of them are in the log


@pytest.mark.row("X4")
def test_the_interval_can_be_measured_in_the_time_of_the_messages() -> None:
    world = World(sow_topics=SOW, conflation_time="messages")
    reader, publisher = world.client("reader"), world.client()
    for value in range(6):
        put(publisher, 1, value)
        world.advance(0.4)
    put(publisher, 2, 0)
    reader.subscribe(t="records", bm="0", opts="conflation=1s", a="")
    assert values(reader) == [("p", 1, 2), ("p", 1, 5)]
    world.advance(0.9)
    assert values(reader) == []  # its interval has not ended: it began with the message
    put(publisher, 2, 1)
    world.advance(0.1)
    assert values(reader) == [("p", 2, 1)]


@pytest.mark.row("X4")
@pytest.mark.parametrize("opts", ["pause,conflation=1s", "conflation=1s,rate=2", "conflation=1s"])
def test_in_their_own_time_messages_are_conflated_alike_at_any_pace(opts: str) -> None:
    world = World(sow_topics=SOW, conflation_time="messages")
    reader, publisher = world.client("reader"), world.client()
    live = world.client("live")
    live.subscribe(t="records", opts="conflation=1s,timestamp")
    for value in range(20):
        put(publisher, value % 3, value)
        world.advance(0.3 if value % 2 else 0.25)
    world.advance(2.0)
    reader.subscribe(t="records", bm="0", opts=f"{opts},timestamp")
    world.advance(5.0)
    if "pause" in opts:
        assert values(reader) == []
        reader.send(c="subscribe", sub_id="1", opts="resume")
    world.advance(60.0)
    seen, expected = published(reader), published(live)
    assert [(m.timestamp, m.data) for m in seen] == [(m.timestamp, m.data) for m in expected]


def test_the_time_of_conflation_is_one_of_two() -> None:
    with pytest.raises(UsageError, match="conflation_time='wall': wanted replay or messages"):
        World(conflation_time="wall")


def test_a_range_delivers_what_is_held_when_it_ends() -> None:
    world = conflating()
    reader, publisher = world.client("reader"), world.client()
    for value in range(5):
        put(publisher, 1, value)
    reader.subscribe(t="records", bm="[0:0|1|]", opts="conflation=1h")
    assert values(reader) == [("p", 1, 4)]


def test_a_paused_subscription_keeps_what_it_holds() -> None:
    world = conflating()
    reader, publisher = world.client("reader"), world.client()
    reader.subscribe(t="records", bm="0|1|", opts="conflation=1s")
    put(publisher, 1, 1)
    reader.send(c="subscribe", sub_id="1", opts="pause")
    put(publisher, 1, 2)
    world.advance(3.0)
    assert values(reader) == []
    reader.send(c="subscribe", sub_id="1", opts="resume")
    world.advance(1.0)
    assert values(reader) in ([("p", 1, 2)], [("p", 1, 1), ("p", 1, 2)])


@pytest.mark.parametrize("bookmark", ["", "0|1|"])
def test_a_replacement_follows_what_was_held(bookmark: str) -> None:
    world = conflating()
    reader, publisher = world.client("reader"), world.client()
    start = {"bm": bookmark} if bookmark else {}
    reader.subscribe(t="records", opts="conflation=1h", **start)
    reader.take()
    put(publisher, 1, 1)
    reader.subscribe(t="records", opts="replace")
    assert [each.kind for each in reader.take()] == ["p", "ack"]
    put(publisher, 1, 2)
    assert values(reader) == [("p", 1, 2)]


def test_a_subscription_that_ends_gets_nothing_of_what_was_held() -> None:
    world = conflating()
    reader, publisher = world.client("reader"), world.client()
    reader.subscribe(t="records", opts="conflation=1s")
    reader.take()
    put(publisher, 1, 1)
    reader.send(c="unsubscribe", sub_id="1")
    gone = world.client("gone")
    gone.subscribe(t="records", opts="conflation=1s")
    put(publisher, 1, 2)
    gone.close()
    world.advance(2.0)
    assert values(reader) == []
    assert world.engine.next_due > world.now


def test_only_the_selected_fields_are_sent() -> None:
    world = conflating()
    reader, publisher = world.client("reader"), world.client()
    reader.subscribe(t="records", opts="conflation=1s,no_sowkey,select=[-/,+/v]")
    reader.take()
    put(publisher, 1, 1)
    put(publisher, 1, 2)
    world.advance(1.0)
    (found,) = reader.take()
    assert (found.data, found.sow_key) == (b'{"v":2}', "")

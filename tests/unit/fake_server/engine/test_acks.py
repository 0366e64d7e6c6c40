"""Acks as frames."""

from __future__ import annotations

import pytest

from haclient.protocol.codec import encode_frame
from haclient.protocol.messages import Message
from haclient_fake_server.engine.acks import BEAT, ack, failure_ack, name_in_use_ack, requested
from haclient_fake_server.engine.filters.bodies import MAX_FIELDS
from haclient_fake_server.engine.outbox import MAX_COMMANDS_REPORTED
from haclient_fake_server.engine.settings import SowTopic
from haclient_fake_server.engine.sow import delta
from support.engine import World, decode


@pytest.mark.row("AK1")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", set()),
        ("none", set()),
        ("persisted", {"persisted"}),
        (" processed, persisted ,,", {"processed", "persisted"}),
        ("Completed,none", {"completed"}),
    ],
)
def test_a_list_of_acks_is_read_with_tolerance(text: str, wanted: set[str]) -> None:
    assert requested(text) == wanted


def test_the_fields_of_an_ack_stand_in_the_order_of_published_samples() -> None:
    frame = ack("processed", "7", reason="because", more={"s": 3, "sub_id": "1"})
    assert frame[4:] == (
        b'{"c":"ack","cid":"7","s":3,"sub_id":"1","a":"processed","status":"success",'
        b'"reason":"because"}'
    )


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("processed,completed", "processed"),
        ("persisted,stats", "persisted"),
        ("stats,completed", "completed"),
    ],
)
def test_a_failure_is_told_in_the_first_ack_that_was_asked_for(asked: str, told: str) -> None:
    frame = failure_ack(Message(ack_type=asked, command_id="7"), "bad filter")
    assert frame is not None
    (message,) = decode(frame)
    assert (message.ack_type, message.status, message.reason) == (told, "failure", "bad filter")


def test_a_detail_is_one_line_of_limited_length_after_the_reason() -> None:
    frame = ack("processed", status="failure", reason="bad filter", detail="a\n\x1bb" + 300 * "c")
    assert frame[4:] == (
        b'{"c":"ack","a":"processed","status":"failure","reason":"bad filter",'
        b'"detail":"a \\\\x1bb' + 193 * b"c" + b'"}'
    )


@pytest.mark.parametrize(
    ("command", "reason", "detail"),
    [
        (
            {"c": "subscribe", "t": "orders", "filter": "px > 10"},
            "bad filter",
            "character 0: expected a path or a value, found the unknown word 'px'",
        ),
        (
            {"c": "sow", "t": "prices", "orderby": "/id UP"},
            "invalid orderby",
            "character 4: expected ASC, DESC, a comma or the end, found 'UP'",
        ),
        (
            {"c": "subscribe", "t": "orders", "opts": "projection=[/a]"},
            "invalid options",
            "projection is not supported with subscribe by this broker",
        ),
        (
            {"c": "subscribe", "t": "orders", "bm": "yesterday"},
            "invalid bookmark",
            "'yesterday'",
        ),
        ({"c": "sow", "t": "orders"}, "invalid topic", "'orders' has no state of the world"),
        ({"c": "p", "t": "prices"}, "bad sow key", "topic 'prices' needs key field /id"),
        ({"c": "p", "t": "keyed"}, "bad sow key", "topic 'keyed' needs a sow_key"),
        ({"c": "sow_delete", "t": "prices"}, "bad sow key", "topic 'prices' needs key field /id"),
        ({"c": "p", "t": "/AMPS/x"}, "not entitled", "topics that begin with /AMPS"),
        ({"c": "subscribe", "t": "("}, "bad regex topic", "topic '(' is not a valid pattern"),
        ({"c": "p", "t": "a\nb"}, "invalid topic", "character 1 of the topic is a control"),
        ({"c": "sow", "t": "a\tb"}, "invalid topic", "character 1 of the topic is a control"),
        ({"c": "subscribe", "t": "\x85"}, "invalid topic", "character 0 of the topic is a control"),
        ({"c": "sow_delete", "t": "a\x7f"}, "invalid topic", "character 1 of the topic is"),
    ],
)
@pytest.mark.parametrize("kind", ["processed", "persisted"])
def test_a_refusal_says_what_exactly_was_wrong(
    command: dict[str, str], reason: str, detail: str, kind: str
) -> None:
    world = World(sow_topics=(SowTopic("prices", ("/id",)), SowTopic("keyed")))
    peer = world.client()
    peer.send(b"{}", cid="1", a=kind, **command)
    (failure,) = peer.take()
    assert (failure.status, failure.reason, failure.ack_type) == ("failure", reason, kind)
    assert failure.detail.startswith(detail) or detail in failure.detail
    assert world.events[-1].endswith(f"refused: {reason}: {failure.detail}")


def test_a_body_that_is_no_json_is_told_of_with_its_topic() -> None:
    world = World(sow_topics=(SowTopic("prices", ("/id",)),))
    peer = world.client()
    peer.send(b"no", c="p", t="prices", cid="1", a="processed")
    (failure,) = peer.take()
    assert failure.reason == "bad message"
    assert failure.detail == "topic 'prices' takes JSON bodies only, to find their keys"


def test_a_body_that_is_too_large_to_find_its_key_is_refused() -> None:
    world = World(sow_topics=(SowTopic("prices", ("/id",)),))
    peer = world.client()
    peer.send(b'{"id":1,"a":[%b1]}' % (b"1," * MAX_FIELDS), c="p", t="prices", cid="1")
    body = b'{"id":1,"%b":[%b1]}'
    for name in (b"a", b"b"):
        delta = body % (name, b"1," * (MAX_FIELDS // 2))
        peer.send(delta, c="delta_publish", t="prices", cid=name.decode(), a="processed")
    assert [(each.status, each.reason) for each in peer.take()] == [
        ("success", ""),
        ("failure", "bad message"),
    ]
    assert "no key is looked for in a body with more than 50000 values" in world.events[0]
    assert "the record would be a body with more than 50000 values" in world.events[1]


def test_a_delta_with_too_many_levels_is_refused_and_leaves_its_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each level is read again: with large bodies that would hold up all clients."""
    monkeypatch.setattr(delta, "MAX_READ_BYTES", 1_000)
    world = World(sow_topics=(SowTopic("prices", ("/id",)),))
    peer = world.client()
    peer.send(b'{"id":1,"a":{"b":{"c":{"d":1}}}}', c="p", t="prices", cid="1")
    for number, change in enumerate((b'{"c":{"d":2},"x":"%b"}' % (b"x" * 400), b'{"c":{"d":3}}')):
        body = b'{"id":1,"a":{"b":%b}}' % change
        peer.send(body, c="delta_publish", t="prices", cid=str(number), a="processed")
    assert [(each.status, each.reason) for each in peer.take()] == [
        ("failure", "bad message"),
        ("success", ""),
    ]
    assert "have too many levels" in world.events[0]
    peer.send(c="sow", t="prices", cid="q")
    assert b'{"id":1,"a":{"b":{"c":{"d":3}}}}' in [each.data for each in peer.take()]


def test_a_failure_that_nobody_wants_to_hear_is_not_told() -> None:
    assert failure_ack(Message(), "bad filter") is None


@pytest.mark.row("AD9", "ID7")
def test_frames_without_a_command_have_no_command_id() -> None:
    beat, last_words = decode(BEAT, name_in_use_ack("pubber"))
    assert beat.kind == "heartbeat"
    assert (last_words.client_name, last_words.command_id) == ("pubber", "")
    assert last_words.reason == "name in use"


def test_the_log_describes_a_limited_number_of_refusals() -> None:
    world = World()
    peer = world.client()
    peer.send_all([encode_frame({"c": "subscribe", "cid": "1", "t": "("})] * 1000)
    assert len(world.events) == MAX_COMMANDS_REPORTED + 1
    assert "980 further refusals" in world.events[-1]


def test_of_a_flood_of_ack_types_those_that_exist_are_found() -> None:
    assert requested("x," * 99 + "processed,y") == {"x", "processed", "y"}
    assert requested("x," * 1000 + " Processed") == {"x", "processed"}

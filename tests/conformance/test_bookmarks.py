"""Bookmark subscriptions: where they begin and end, and what they send."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from conformance.wire import Frame, Json, Wire


def fill(wire: Wire, topic: str, *bodies: bytes) -> list[str]:
    """Publish, and return the bookmarks."""
    wire.subscribe(topic, sub_id="fill", opts="bookmark")
    for body in bodies:
        wire.publish(topic, body)
    marks = [wire.next_message()["bm"] for _ in bodies]
    wire.do("unsubscribe", sub_id="fill")
    return marks


def replay(wire: Wire, topic: str, bookmark: str, **more: Json) -> list[bytes]:
    """The bodies that a bookmark subscription has replayed when it is complete."""
    wire.send("subscribe", t=topic, bm=bookmark, cid="r", a="processed,completed", **more)
    frames = wire.frames_until(
        lambda each: each.kind == "ack" and (each["a"] == "completed" or is_failure(each))
    )
    assert not is_failure(frames[-1]), frames[-1].header
    wire.do("unsubscribe", sub_id="r")
    return [each.body for each in frames if each.kind == "publish"]


def is_failure(frame: Frame) -> bool:
    return bool(frame["status"] != "success")


def test_a_replay_is_processed_replayed_completed_and_live(wire: Wire, logged: str) -> None:
    """In this order, in the order of the log, each message with its bookmark
    (docs/protocol.md#bookmarks)."""
    marks = fill(wire, logged, b"1", b"2")
    wire.send("subscribe", t=logged, bm="0", sub_id="s", cid="c", a="received,processed,completed")
    frames = wire.frames_until(lambda each: each.get("a") == "completed")
    wire.publish(logged, b"3")
    frames.append(wire.next_message())
    assert [each.get("a") or each.body for each in frames] == [
        "received",
        "processed",
        b"1",
        b"2",
        "completed",
        b"3",
    ]
    assert [frames[2]["bm"], frames[3]["bm"]] == marks
    assert frames[4]["bm"]
    assert frames[5]["bm"] not in marks


@pytest.mark.parametrize(
    ("start", "bodies"),
    [
        ("0", [b"1", b"2", b"3"]),
        ("0|1|", []),
        ("{0}", [b"2", b"3"]),
        ("{1},{0}", [b"2", b"3"]),
        ("{1},1|1|", [b"3"]),
        ("1|1|", []),
    ],
    ids=["epoch", "now", "message", "list", "list with an unknown one", "unknown"],
)
def test_a_bookmark_says_where_a_replay_begins(
    wire: Wire, logged: str, start: str, bodies: list[bytes]
) -> None:
    """After a message, after the earliest that is known of a list, at the end if none is
    (docs/protocol.md#bookmarks)."""
    marks = fill(wire, logged, b"1", b"2", b"3")
    assert replay(wire, logged, start.format(*marks)) == bodies


@pytest.mark.parametrize(("choice", "bodies"), [("epoch", [b"1"]), ("now", []), ("fail", None)])
def test_bookmark_not_found_says_what_to_do_without_any(
    wire: Wire, logged: str, choice: str, bodies: list[bytes] | None
) -> None:
    """`epoch`, `now` or `fail` (docs/protocol.md#decisions)."""
    fill(wire, logged, b"1")
    opts = f"bookmark_not_found={choice}"
    if bodies is None:
        answer = wire.ask("subscribe", t=logged, bm="1|1|", opts=opts)
        assert answer["status"] == "failure"
    else:
        assert replay(wire, logged, "1|1|", opts=opts) == bodies


def test_a_replay_may_begin_at_a_time(wire: Wire, logged: str) -> None:
    """A time in UTC; one before the log is its beginning (docs/protocol.md#bookmarks)."""
    wire.subscribe(logged, sub_id="s", opts="timestamp")
    wire.publish(logged, b"1")
    second = wire.next_message()["ts"][:15]
    for start in (second, f"{second}Z", "19700101T000000Z"):
        assert replay(wire, logged, start) == [b"1"]


@pytest.mark.parametrize("bookmark", ["nonsense", "1|x|", "20201301T000000Z", "(0:", "[0:1]x"])
def test_a_malformed_bookmark_is_refused(wire: Wire, logged: str, bookmark: str) -> None:
    """It is no place in any log (docs/protocol.md#decisions)."""
    assert wire.ask("subscribe", t=logged, bm=bookmark)["status"] == "failure"


@pytest.mark.parametrize(
    ("span", "bodies"),
    [
        ("[{0}:{2}]", [b"1", b"2", b"3"]),
        ("({0}:{2}]", [b"2", b"3"]),
        ("[{0}:{2})", [b"1", b"2"]),
        ("({0}:{2})", [b"2"]),
        ("[{1},{0}:{1},{2}]", [b"1", b"2", b"3"]),
        ("[0:{1}]", [b"1", b"2"]),
    ],
)
def test_a_range_ends_with_its_completed_ack(
    wire: Wire, logged: str, span: str, bodies: list[bytes]
) -> None:
    """Brackets include the ends, parentheses do not; nothing follows
    (docs/protocol.md#bookmarks)."""
    marks = fill(wire, logged, b"1", b"2", b"3", b"4")
    wire.send(
        "subscribe", t=logged, bm=span.format(*marks), sub_id="r", cid="r", a="processed,completed"
    )
    frames = wire.frames_until(lambda each: each.get("a") == "completed")
    assert [each.body for each in frames if each.kind == "publish"] == bodies
    wire.subscribe(logged, sub_id="live")
    wire.publish(logged, b"5")
    assert wire.next_message().sids == {"live"}


def test_top_n_limits_a_replay(wire: Wire, logged: str) -> None:
    """So many messages, then nothing more."""
    fill(wire, logged, b"1", b"2", b"3")
    assert replay(wire, logged, "0", top_n=2) == [b"1", b"2"]


def test_a_topic_that_is_not_logged_has_no_replay(wire: Wire, unlogged: str) -> None:
    """Such a subscribe fails (docs/protocol.md#decisions)."""
    assert wire.ask("subscribe", t=unlogged, bm="0")["status"] == "failure"


def test_a_replay_of_a_pattern_has_the_logged_topics_alone(
    connect: Callable[..., Wire], logged: str, unlogged: str
) -> None:
    """A pattern is accepted, whatever it matches; the other topics have nothing to replay."""
    wire = connect()
    wire.publish(unlogged, b"unlogged")
    fill(wire, logged, b"1")
    assert replay(wire, f"^({unlogged}|{logged})$", "0") == [b"1"]


def test_a_filter_holds_for_a_replay(wire: Wire, logged: str) -> None:
    """The log is searched for what matches."""
    fill(wire, logged, b'{"a":1}', b'{"a":2}')
    assert replay(wire, logged, "0", filter="/a = 2") == [b'{"a":2}']


def test_a_subscriber_is_told_how_far_the_log_is_safe(
    connect: Callable[..., Wire], logged: str
) -> None:
    """`persisted` acks of a bookmark subscription have a bookmark and its id
    (docs/protocol.md#acknowledgements)."""
    wire = connect(opts="ack_conflation=20ms")
    wire.do("subscribe", t=logged, sub_id="s", cid="c", bm="0", a="persisted,processed")
    wire.publish(logged, b"1", s=1)
    frame = wire.next_message()
    acks = wire.frames_until(lambda each: each.get("a") == "persisted")
    while acks[-1]["bm"] != frame["bm"]:
        acks = wire.frames_until(lambda each: each.get("a") == "persisted")
    assert "s" in {acks[-1].get("sub_id"), acks[-1].get("cid")} or acks[-1].get("cid") == "c"


@pytest.mark.parametrize(
    "option", ["live", "fully_durable", "rate=1000", "rate=1000KB", "rate=50X"]
)
def test_a_replay_takes_its_options(wire: Wire, logged: str, option: str) -> None:
    """`live`, `fully_durable` and rates change when messages come, never which."""
    fill(wire, logged, b"1", b"2")
    assert replay(wire, logged, "0", opts=option) == [b"1", b"2"]


@pytest.mark.parametrize("option", ["rate_max_gap=1s", "live,rate=1", "live,pause", "rate=x"])
def test_options_of_a_replay_that_contradict_each_other_are_refused(
    wire: Wire, logged: str, option: str
) -> None:
    """`rate_max_gap` needs a rate; `live` excludes rates and pauses."""
    assert wire.ask("subscribe", t=logged, bm="0", sub_id="s", opts=option)["status"] == "failure"


def test_a_rate_limits_messages_a_second(wire: Wire, logged: str) -> None:
    """Three messages at ten a second take at least two tenths."""
    fill(wire, logged, b"1", b"2", b"3")
    began = time.perf_counter()
    assert replay(wire, logged, "0", opts="rate=10") == [b"1", b"2", b"3"]
    assert time.perf_counter() - began >= 0.19


def test_a_replay_can_be_paused_and_resumed(wire: Wire, logged: str) -> None:
    """It keeps its place; messages come from there on (docs/ha.md)."""
    fill(wire, logged, b"1", b"2")
    wire.subscribe(logged, bm="0", sub_id="s", opts="pause")
    wire.subscribe(logged, sub_id="witness")
    wire.publish(logged, b"3")
    assert wire.next_message().sids == {"witness"}
    wire.do("unsubscribe", sub_id="witness")
    wire.do("subscribe", t=logged, sub_id="s", opts="resume")
    assert [wire.next_message().body for _ in range(3)] == [b"1", b"2", b"3"]
    wire.do("subscribe", t=logged, sub_id="s", opts="pause")
    wire.publish(logged, b"4")
    wire.do("subscribe", t=logged, sub_id="s", opts="resume")
    assert wire.next_message().body == b"4"


def test_those_that_one_command_resumes_share_the_order_of_the_log(wire: Wire, logged: str) -> None:
    """Subscriptions with the same bookmark and rate are one replay, across their topics."""
    topics = [f"{logged}-a", f"{logged}-b"]
    for number in range(20):
        wire.store(topics[number % 2], str(number).encode())
    for topic in topics:
        wire.subscribe(topic, bm="0", sub_id=topic, opts="pause")
    wire.do("subscribe", sub_id=",".join(topics), opts="resume")
    bodies = [int(wire.next_message().body) for _ in range(20)]
    assert bodies == list(range(20))


def test_replace_keeps_the_place_of_a_replay(wire: Wire, logged: str) -> None:
    """Another filter, from where it is on."""
    fill(wire, logged, b'{"a":1}', b'{"a":2}')
    wire.subscribe(logged, bm="0", sub_id="s", filter="/a = 1")
    assert wire.next_message().body == b'{"a":1}'
    wire.subscribe(logged, sub_id="s", filter="/a = 3", opts="replace")
    wire.publish(logged, b'{"a":2}')
    wire.publish(logged, b'{"a":3}')
    assert wire.next_message().body == b'{"a":3}'


def test_a_bookmark_and_deltas_exclude_each_other(wire: Wire, sow: str) -> None:
    """The log has whole messages (docs/deltas.md)."""
    assert wire.ask("delta_subscribe", t=sow, bm="0")["status"] == "failure"


def test_bookmarks_of_a_publisher_rise(wire: Wire, logged: str) -> None:
    """Within the log of a server the sequences of each publisher are in order."""
    marks = fill(wire, logged, *[b"x"] * 20)
    assert len({mark.split("|")[0] for mark in marks}) == 1
    numbers = [int(mark.split("|")[1]) for mark in marks]
    assert numbers == sorted(set(numbers))

"""Where a bookmark subscription starts."""

from __future__ import annotations

import pytest

from haclient.protocol.codec import encode_frame
from haclient.protocol.identity import publisher_id
from haclient_stores.bookmark import Timestamp
from support.engine import START_US, Peer, World

A, B = publisher_id("A"), publisher_id("B")


@pytest.fixture
def world() -> World:
    """A1 B1 A2 B2, ten seconds apart."""
    world = World()
    a, b = world.client("A"), world.client("B")
    for number in (1, 2):
        for name, peer in (("A", a), ("B", b)):
            peer.publish(number, f"{name}{number}".encode())
            world.advance(10)
    return world


def replayed(world: World, bookmark: str, **fields: str) -> list[str]:
    reader = world.client("reader")
    reader.subscribe(bm=bookmark, a="processed", **fields)
    ack, *messages = reader.take()
    assert ack.status == "success", ack
    return [message.data.decode() for message in messages]


def refusal(reader: Peer, bookmark: str, **fields: str) -> str:
    reader.subscribe(bm=bookmark, **fields)
    (ack,) = reader.take()
    assert ack.status == "failure"
    return ack.reason


def at(seconds: float) -> str:
    return str(Timestamp(START_US + int((100 + seconds) * 1e6)))


@pytest.mark.row("RB3")
def test_epoch_is_the_start_of_the_log(world: World) -> None:
    assert replayed(world, "0") == ["A1", "B1", "A2", "B2"]


@pytest.mark.row("RB4")
def test_now_replays_nothing(world: World) -> None:
    assert replayed(world, "0|1|") == []


@pytest.mark.row("RB1")
def test_a_bookmark_starts_right_after_its_message(world: World) -> None:
    assert replayed(world, f"{A}|1|") == ["B1", "A2", "B2"]
    assert replayed(world, f"{B}|2|") == []


@pytest.mark.row("RB5")
def test_a_list_starts_after_the_earliest_that_is_found(world: World) -> None:
    assert replayed(world, f"{A}|2|,{B}|1|") == ["A2", "B2"]
    assert replayed(world, f"{A}|99|,{B}|1|,5|5|") == ["A2", "B2"]


@pytest.mark.row("RB5")
def test_a_list_may_hold_a_timestamp(world: World) -> None:
    assert replayed(world, f"{A}|2|,{at(10)}") == ["B1", "A2", "B2"]


@pytest.mark.row("RB6", "TL17")
@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [
        (-1000, ["A1", "B1", "A2", "B2"]),
        (0, ["A1", "B1", "A2", "B2"]),
        (0.000001, ["B1", "A2", "B2"]),
        (20, ["A2", "B2"]),
        (30.5, []),
    ],
)
def test_a_timestamp_starts_with_what_came_after(
    world: World, seconds: float, wanted: list[str]
) -> None:
    assert replayed(world, at(seconds)) == wanted


@pytest.mark.row("RB7")
def test_an_unknown_bookmark_is_now(world: World) -> None:
    assert replayed(world, f"{A}|99|") == []
    assert replayed(world, f"{A}|99|", opts="bookmark_not_found=now") == []


@pytest.mark.row("RB7")
def test_an_unknown_bookmark_may_be_epoch_or_a_failure(world: World) -> None:
    assert len(replayed(world, f"{A}|99|", opts="bookmark_not_found=epoch")) == 4
    reason = refusal(world.client("reader"), f"{A}|99|", opts="bookmark_not_found=fail")
    assert reason == "bookmark not found"
    assert f"{A}|99|" in world.events[-1]


@pytest.mark.row("RB7")
def test_a_known_bookmark_is_found_whatever_not_found_says(world: World) -> None:
    assert replayed(world, f"{A}|2|", opts="bookmark_not_found=epoch") == ["B2"]


@pytest.mark.row("RB2")
def test_a_topic_that_is_not_logged_is_refused() -> None:
    reader = World(log_topics=()).client("reader")
    assert refusal(reader, "0") == "invalid topic"
    assert refusal(reader, "0", t="or.*") == "invalid topic"


@pytest.mark.row("OP17")
@pytest.mark.parametrize("bookmark", ["recent", "yesterday", "1|2|3:4", "[0:", "20231301T000000"])
def test_an_unknown_bookmark_word_is_refused_by_name(world: World, bookmark: str) -> None:
    reason = refusal(world.client("reader"), bookmark)
    assert reason == "invalid bookmark"
    assert bookmark in world.events[-1]


@pytest.mark.row("RB8")
def test_a_range_whose_end_is_unknown_is_refused(world: World) -> None:
    reason = refusal(world.client("reader"), f"[0:{A}|99|]")
    assert reason == "bookmark not found"


@pytest.mark.row("RB8")
def test_an_inclusive_now_gives_the_last_message(world: World) -> None:
    assert replayed(world, "[0|1|:20990101T000000]") == ["B2"]


@pytest.mark.row("RB8")
def test_a_range_that_ends_at_epoch_is_empty(world: World) -> None:
    assert replayed(world, "[0:0]") == []


def test_a_bookmark_of_the_very_same_batch_is_found(world: World) -> None:
    peer = world.client("C")
    peer.send_all(
        [
            encode_frame({"c": "p", "t": "orders", "s": 1}, b"C1"),
            encode_frame({"c": "p", "t": "orders", "s": 2}, b"C2"),
            encode_frame(
                {"c": "subscribe", "t": "orders", "cid": "1", "bm": f"{publisher_id('C')}|1|"}
            ),
            encode_frame(
                {"c": "subscribe", "t": "orders", "cid": "2", "bm": f"{publisher_id('C')}|9|"}
            ),
        ]
    )
    assert [(m.sids, m.data) for m in peer.take()] == [("1", b"C2")]


def test_an_empty_list_means_the_start(world: World) -> None:
    assert len(replayed(world, "0")) == 4

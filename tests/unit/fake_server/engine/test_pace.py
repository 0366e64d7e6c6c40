"""The pace of a replay, beside the sums that define it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.protocol.messages import Message
from haclient.protocol.options import Rate
from haclient_fake_server.engine import replay
from haclient_fake_server.engine.pace import CREDIT_S, ReplayPace
from support.engine import Peer, World

pytestmark = pytest.mark.row("OP1")


def moments(pace: ReplayPace, messages: list[tuple[int, int]]) -> list[float]:
    """When messages are sent by one who is always ready; each is a size and a time."""
    now, found = 50.0, list[float]()
    for size, time_us in messages:
        now = max(now, pace.due(now, time_us))
        pace.sent(now, size, time_us)
        found.append(now - 50.0)
    return found


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        ("10", [0, 0.1, 0.2, 0.3]),
        ("1KB", [0, 0.5, 1.5, 1.5]),
        ("2X", [0, 1, 1, 6]),
        (".5X", [0, 4, 4, 24]),
    ],
)
def test_each_message_is_due_some_time_after_the_one_before(
    rate: str, expected: list[float]
) -> None:
    messages = [(512, 7_000_000), (1024, 9_000_000), (0, 9_000_000), (1, 19_000_000)]
    assert moments(ReplayPace(Rate.parse(rate)), messages) == pytest.approx(expected)


@pytest.mark.row("OP3")
def test_a_gap_is_at_most_as_long_as_the_longest() -> None:
    messages = [(1, 0), (1, 1_000_000), (1, 90_000_000), (1, 90_500_000)]
    assert moments(ReplayPace(Rate.parse("1X"), 2.0), messages) == pytest.approx([0, 1, 3, 3.5])


def test_a_clock_that_was_set_back_is_no_gap() -> None:
    assert moments(ReplayPace(Rate.parse("1X")), [(1, 5_000_000), (1, 1_000_000)]) == [0, 0]


@given(
    waits=st.lists(st.floats(0, 0.5), min_size=1, max_size=60),
    rate=st.sampled_from([1.0, 7.0, 100.0]),
)
def test_whoever_is_late_never_gets_more_than_the_rate_and_the_credit(
    waits: list[float], rate: float
) -> None:
    pace, now, sent = ReplayPace(Rate.parse(str(rate))), 0.0, list[float]()
    for wait in waits:
        now += wait
        while len(sent) < 10_000 and pace.due(now, 0) <= now:
            pace.sent(now, 1, 0)
            sent.append(now)
    for start, first in enumerate(sent):
        for end in range(start, len(sent)):
            assert end - start <= (sent[end] - first + CREDIT_S) * rate + 1e-6


def world_with(*gaps_s: float) -> World:
    """A world with a message before each of these times, and one after the last."""
    world = World()
    publisher = world.client()
    for number, gap in enumerate((*gaps_s, 0), 1):
        publisher.publish(number, b"%03d" % number)
        world.advance(gap)
    publisher.close()
    return world


def arrivals(world: World, peer: Peer, seconds: float, step: float = 0.01) -> dict[str, float]:
    """When each message comes, in seconds from now on, and `completed`."""
    start, found = world.now, dict[str, float]()
    for number in range(round(seconds / step) + 1):
        for message in peer.take():
            name = message.ack_type if message.kind == "ack" else message.data.decode()
            found[name] = round(world.now - start, 3)
        world.advance(start + (number + 1) * step - world.now)
    found.pop("processed", None)
    found.pop("persisted", None)
    return found


def reader(world: World, **fields: str | int) -> Peer:
    peer = world.client("reader")
    peer.subscribe(**{"bm": "0", **fields})
    return peer


def test_a_replay_has_the_rate_and_what_follows_it_is_live() -> None:
    world = world_with(0, 0, 0)
    peer = reader(world, opts="rate=4")
    found = arrivals(world, peer, 1)
    assert found == {"001": 0, "002": 0.25, "003": 0.5, "004": 0.75, "completed": 0.75}
    publisher = world.client()
    for number in (5, 6, 7):
        publisher.publish(number, b"%03d" % number)
    assert peer.bodies() == [b"005", b"006", b"007"]


def test_who_was_live_has_no_rate_when_it_reads_the_log_again() -> None:
    world = world_with()
    peer, publisher = reader(world, opts="rate=4"), world.client()
    assert list(arrivals(world, peer, 0)) == ["001", "completed"]
    peer.stalled = True
    world.engine.over_high_water(peer.number)
    for number in range(2, 9):
        publisher.publish(number, b"%03d" % number)
    peer.stalled = False
    world.replay_backlog(peer)
    assert peer.bodies() == [b"%03d" % number for number in range(2, 9)]


def test_a_replay_may_have_the_pace_of_the_publishers_and_faster() -> None:
    world = world_with(1, 0.5, 30)
    found = arrivals(world, reader(world, opts="rate=5X,rate_max_gap=2s", a=""), 4)
    assert found == {"001": 0, "002": 0.2, "003": 0.3, "004": 2.3}


def test_only_messages_that_match_count() -> None:
    world = World()
    publisher = world.client()
    for number in range(1, 41):
        publisher.publish(number, b'{"n":%d}' % number)
    peer = reader(world, opts="rate=10", filter="/n IN (3, 30, 31)", a="")
    assert arrivals(world, peer, 1) == {'{"n":3}': 0, '{"n":30}': 0.1, '{"n":31}': 0.2}


def test_a_pause_keeps_the_place_and_nothing_comes_at_once_after_it() -> None:
    world = world_with(*[0] * 9)
    peer = reader(world, opts="rate=2", a="")
    assert arrivals(world, peer, 0.6) == {"001": 0, "002": 0.5}
    peer.send(c="subscribe", sub_id="1", opts="pause")
    world.advance(30)
    assert peer.take() == []
    peer.send(c="subscribe", sub_id="1", opts="resume")
    assert arrivals(world, peer, 0.8) == {"003": 0, "004": 0.4}


def test_a_replacement_has_its_own_rate_or_none_and_misses_nothing() -> None:
    world = world_with(*[0] * 9)
    peer = reader(world, opts="rate=1", a="")
    assert peer.bodies() == [b"001"]
    peer.subscribe(opts="replace,rate=100", a="")
    first = list(arrivals(world, peer, 0.03))
    assert 3 <= len(first) <= 5
    peer.subscribe(opts="replace", a="")
    rest = [body.decode() for body in peer.bodies()]
    assert first + rest == [f"{number:03}" for number in range(2, 11)]


@pytest.mark.parametrize("options", ["rate=10,fully_durable", "rate=10,select=[+/]"])
@pytest.mark.parametrize("fields", [{"top_n": 3}, {"bm": "[0:0|1|)"}, {}])
def test_ends_and_other_options_go_with_a_rate(options: str, fields: dict[str, str | int]) -> None:
    world = world_with(0, 0)
    peer = reader(world, opts=options, **fields)
    found = arrivals(world, peer, 1)
    assert found == {"001": 0, "002": 0.1, "003": 0.2, "completed": 0.2}
    peer.close()
    assert world.engine.next_due == float("inf")


def test_a_high_rate_is_reached_although_timers_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "AHEAD_BYTES", 200)
    world = world_with(*[0] * 499)
    peer, count, start = reader(world, opts="rate=1000", a=""), 0, world.now
    while count < 500:
        count += len(peer.bodies())
        world.advance(replay.MIN_HOLD_S)
    assert world.now - start == pytest.approx(0.5, abs=0.03)


@pytest.mark.row("OP2")
@pytest.mark.parametrize(
    "fields",
    [
        {"opts": "rate=5,live", "bm": "0"},
        {"opts": "rate=0", "bm": "0"},
        {"opts": "rate=fast", "bm": "0"},
        {"opts": "rate_max_gap=1s", "bm": "0"},
        {"opts": "rate=5"},
        {"opts": "resume,rate=5", "sub_id": "known"},
        {"opts": "rate=5", "c": "sow_and_subscribe"},
    ],
)
def test_a_rate_where_there_is_no_replay_is_refused(fields: dict[str, str | int]) -> None:
    world = world_with(0)
    peer = world.client("reader")
    peer.subscribe("known", bm="0", a="", opts="pause")
    peer.subscribe(**{**fields, "a": "processed"})
    answer: Message
    (answer,) = peer.take()
    assert (answer.status, answer.reason) == ("failure", "invalid options")

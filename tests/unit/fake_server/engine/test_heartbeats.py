"""What time brings about: heartbeats and collected acks."""

from __future__ import annotations

import pytest

from support.engine import World

PUBBER = 7094790850998930143


@pytest.mark.row("AD9")
def test_a_heartbeat_is_sent_once_per_interval() -> None:
    world = World()
    peer = world.client()
    peer.send(c="heartbeat", cid="3", a="received,processed", opts="start,5")
    assert [ack.ack_type for ack in peer.take()] == ["received", "processed"]
    for _ in range(3):
        world.advance(4.9)
        assert peer.take() == []
        world.advance(0.1)
        assert peer.take_bytes()[4:] == b'{"c":"heartbeat"}'
        peer.send(c="heartbeat", opts="beat")
    assert not peer.closed


@pytest.mark.row("AD9", "HB4")
def test_two_and_a_half_intervals_of_silence_end_the_connection() -> None:
    world = World()
    peer = world.client()
    peer.send(c="heartbeat", opts="start,1")
    world.advance(2.49)
    before = peer.closed
    world.advance(0.02)
    assert (before, peer.closed) == ("", "heartbeat")


@pytest.mark.row("AD9", "FI8")
def test_a_client_whose_second_beat_is_a_little_late_is_kept() -> None:
    world = World()
    peer = world.client()
    peer.send(c="heartbeat", opts="start,1")
    for _ in range(10):
        world.advance(2.01)
        peer.send(c="heartbeat", opts="beat")
    assert not peer.closed


@pytest.mark.row("AD9")
def test_any_traffic_counts_as_a_heartbeat() -> None:
    world = World()
    peer = world.client()
    peer.send(c="heartbeat", opts="start,1")
    for _ in range(5):
        world.advance(1.5)
        peer.send_all([])
    assert not peer.closed


def test_a_stopped_heartbeat_is_no_longer_expected() -> None:
    world = World()
    peer = world.client()
    peer.send(c="heartbeat", opts="start,1")
    peer.send(c="heartbeat", opts="stop")
    world.advance(100)
    assert peer.take() == []
    assert not peer.closed


@pytest.mark.parametrize(
    "options", ["start,x", "start,0", "start,-1", "start,inf", "start,nan", "start,1e-9", "begin,5"]
)
def test_a_malformed_heartbeat_is_refused(options: str) -> None:
    peer = World().client()
    peer.send(c="heartbeat", cid="1", a="processed", opts=options)
    (ack,) = peer.take()
    assert (ack.status, ack.reason) == ("failure", "invalid options")


@pytest.mark.row("RB16")
def test_a_bookmark_subscription_hears_about_once_a_second_how_far_the_log_is_safe() -> None:
    world = World()
    reader, publisher = world.client("reader"), world.client("pubber")
    reader.subscribe(bm="0")
    reader.take()
    publisher.publish(1, t="elsewhere")
    world.advance(0.5)
    publisher.publish(2, t="elsewhere")
    assert reader.take() == []
    world.advance(0.5)
    (ack,) = reader.take()
    assert (ack.ack_type, ack.sub_id, ack.command_id) == ("persisted", "1", "1")
    assert ack.bookmark == f"{PUBBER}|2|"
    world.advance(10)
    assert reader.take() == []


@pytest.mark.row("RB16")
@pytest.mark.parametrize("bookmark", ["0", "0|1|"])
def test_a_subscription_to_a_quiet_log_hears_it_too(bookmark: str) -> None:
    world = World()
    world.client("pubber").publish(1)
    reader = world.client("reader")
    reader.subscribe(bm=bookmark)
    world.advance(1)
    assert reader.take()[-1].ack_type == "persisted"


@pytest.mark.row("RB16")
def test_a_long_replay_is_acknowledged_while_it_goes_on() -> None:
    world = World()
    publisher, reader = world.client("pubber"), world.client("reader")
    for number in range(1, 4):
        publisher.publish(number, b"x" * 200_000)
    reader.stalled = True
    reader.subscribe(bm="0")
    told: list[str] = []
    for _ in range(3):
        world.apply(world.engine.feed(reader.number, world.now))
        world.advance(1)
        told += [ack.bookmark for ack in reader.acks() if ack.ack_type == "persisted"]
    assert told == [f"{PUBBER}|{number}|" for number in (1, 2, 3)]


@pytest.mark.row("RB16")
def test_a_subscription_is_never_told_of_a_position_that_it_has_not_passed() -> None:
    world = World()
    reader, publisher = world.client("reader"), world.client("pubber")
    reader.subscribe(bm="0")
    publisher.publish(1)
    reader.stalled = True
    world.engine.congested(reader.number)
    publisher.publish(2)
    world.advance(1)
    persisted = [ack for ack in reader.take() if ack.ack_type == "persisted"]
    assert [ack.bookmark for ack in persisted] == [f"{PUBBER}|1|"]


@pytest.mark.row("RB16", "AK1")
def test_a_subscription_that_did_not_ask_hears_nothing() -> None:
    world = World()
    reader = world.client("reader")
    reader.subscribe(bm="0", a="completed")
    reader.take()
    world.client("pubber").publish(1, t="elsewhere")
    world.advance(5)
    assert reader.take() == []


def test_an_ended_subscription_gets_no_more_acks() -> None:
    world = World()
    reader = world.client("reader")
    reader.subscribe(bm="0")
    reader.send(c="unsubscribe", sub_id="1")
    reader.take()
    world.client("pubber").publish(1)
    world.advance(5)
    assert reader.take() == []

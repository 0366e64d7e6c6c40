"""Heartbeats."""

from __future__ import annotations

import pytest

from support.engine import World


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

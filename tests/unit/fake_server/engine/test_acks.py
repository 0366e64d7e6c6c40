"""Acks as frames."""

from __future__ import annotations

import pytest

from haclient.protocol.codec import encode_frame
from haclient.protocol.messages import Message
from haclient_fake_server.engine.acks import BEAT, ack, failure_ack, name_in_use_ack, requested
from haclient_fake_server.engine.state import MAX_REFUSALS_REPORTED
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
    assert len(world.events) == MAX_REFUSALS_REPORTED + 1
    assert "980 further refusals" in world.events[-1]

"""Who published what."""

from __future__ import annotations

import pytest

from haclient_fake_server.engine.publishers import KnownPublishers
from support.engine import START_US, World

PUBBER = 7094790850998930143


@pytest.mark.row("ID1")
def test_a_publisher_is_the_checksum_of_its_name() -> None:
    publishers = KnownPublishers("AMPS-Sample", started_s=1_700_000_000)
    assert publishers.of_client("pubber").id == PUBBER
    assert publishers.of_client("pubber") is publishers.of_id(PUBBER)
    assert publishers.of_client("pubber").bookmark(3) == f"{PUBBER}|3|"


@pytest.mark.row("ID3")
def test_an_origin_is_the_checksum_of_client_and_instance() -> None:
    publishers = KnownPublishers("AMPS-Sample", started_s=1_711_058_949)
    assert publishers.of_origin("pubber").id == 16619966516483552159
    assert publishers.assign() == 1_711_058_949_000_000_001


@pytest.mark.row("ID3")
def test_assigned_sequences_rise_across_restarts_within_one_second() -> None:
    publishers = KnownPublishers("broker", started_s=5)
    publishers.restore(1, 5_000_000_007, assigned=True)
    publishers.restore(2, 9_000_000_000, assigned=False)
    assert publishers.assign() == 5_000_000_008
    assert publishers.of_id(2).seen == 9_000_000_000


@pytest.mark.row("ID2")
def test_a_duplicate_is_dropped_and_still_acknowledged() -> None:
    world = World()
    peer = world.client()
    for sequence in (1, 2, 3):
        peer.publish(sequence)
    for sequence in (2, 3, 4):
        peer.publish(sequence)
    assert world.engine.next_position == 5
    world.advance(1.0)
    (ack,) = peer.take()
    assert (ack.ack_type, ack.sequence, ack.bookmark) == ("persisted", 4, f"{PUBBER}|4|")


@pytest.mark.row("ID2")
def test_a_duplicate_is_still_known_after_a_restart() -> None:
    world = World()
    world.client().publish(7)
    world.restart()
    peer = world.client()
    peer.publish(7)
    peer.publish(6)
    assert world.engine.next_position == 2
    world.advance(1.0)
    (ack,) = peer.take()
    assert (ack.status, ack.sequence) == ("success", 7)


@pytest.mark.row("ID2")
def test_a_duplicate_says_so_in_its_processed_ack() -> None:
    world = World()
    peer = world.client()
    peer.publish(1)
    peer.publish(1, cid="9", a="received,processed,completed")
    acks = peer.acks()
    assert [(ack.ack_type, ack.status, ack.reason) for ack in acks] == [
        ("received", "success", ""),
        ("processed", "success", "duplicate"),
        ("completed", "success", ""),
    ]


@pytest.mark.row("ID2")
def test_publishers_do_not_see_each_others_sequences() -> None:
    world = World()
    world.client("a").publish(5)
    world.client("b").publish(1)
    assert world.engine.next_position == 3


@pytest.mark.row("ID2")
def test_a_sequence_seen_on_an_unlogged_topic_is_remembered_too() -> None:
    world = World(log_topics=())
    peer = world.client()
    peer.publish(3)
    peer.publish(3)
    reader = world.client("reader")
    reader.subscribe()
    peer.publish(2)
    assert reader.bodies() == []


@pytest.mark.row("ID3")
def test_a_publish_without_a_sequence_gets_the_instances_own() -> None:
    world = World(name="AMPS-Sample")
    reader = world.client("reader")
    reader.subscribe(opts="bookmark")
    publisher = world.client("pubber")
    publisher.publish(None)
    publisher.publish(None, cid="4", a="persisted")
    messages = [message for message in reader.take() if message.kind == "p"]
    first = (START_US // 10**6 + 100) * 10**9 + 1
    assert [message.bookmark for message in messages] == [
        f"16619966516483552159|{first}|",
        f"16619966516483552159|{first + 1}|",
    ]
    (ack,) = publisher.acks()
    assert (ack.command_id, ack.sequence, ack.bookmark) == ("4", None, messages[1].bookmark)


@pytest.mark.row("ID3")
def test_assigned_sequences_and_bookmarks_survive_a_restart() -> None:
    world = World()
    world.client().publish(None, b"1")
    world.restart()
    world.client().publish(None, b"2")
    reader = world.client("reader")
    reader.subscribe(bm="0")
    first, second = [message for message in reader.take() if message.kind == "p"]
    assert first.position is not None
    assert second.position is not None
    assert first.position.publisher_id == second.position.publisher_id
    assert first.position.sequence < second.position.sequence

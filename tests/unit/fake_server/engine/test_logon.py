"""Logging on: positions, credentials and who may bear a name."""

from __future__ import annotations

import gc

import pytest

from haclient.protocol.codec import encode_frame
from haclient_fake_server.engine.publishers import KnownPublisher
from haclient_fake_server.engine.settings import MESSAGE_TYPES, LogTopic, QueueTopic, SowTopic
from support.engine import World

PUBBER = 7094790850998930143


def logon(**fields: str) -> dict[str, str]:
    return {"c": "logon", "cid": "0", "client_name": "pubber", "a": "processed", **fields}


def test_the_ack_says_what_the_published_sample_says() -> None:
    peer = World().connect()
    peer.send(**logon())
    assert peer.take_bytes()[4:] == (
        b'{"c":"ack","cid":"0","s":0,"bm":"7094790850998930143|0|","client_name":"pubber",'
        b'"version":"5.3.5.0.reference","log_starts":"0000000000000000@1",'
        b'"a":"processed","status":"success","reason":"authentication disabled"}'
    )


@pytest.mark.row("ID8", "ID1")
def test_the_ack_carries_the_clients_last_sequence_and_bookmark() -> None:
    world = World()
    world.client().publish(41)
    peer = world.connect()
    peer.send(**logon())
    (ack,) = peer.take()
    assert (ack.sequence, ack.bookmark) == (41, f"{PUBBER}|41|")


def test_nothing_is_answered_where_nothing_was_asked() -> None:
    peer = World().connect()
    peer.send(**logon(a=""))
    assert peer.take() == []
    peer.send(c="flush", cid="1", a="processed")
    assert len(peer.take()) == 1


def test_received_comes_before_processed() -> None:
    peer = World().connect()
    peer.send(**logon(a="processed,received"))
    assert [ack.ack_type for ack in peer.take()] == ["received", "processed"]


def test_a_client_without_a_name_gets_one() -> None:
    peer = World().connect()
    peer.send(c="logon", a="processed")
    (ack,) = peer.take()
    assert ack.client_name == "unnamed-0000000000000000-1"


@pytest.mark.row("ID2")
def test_clients_without_names_are_other_publishers_after_each_start_and_on_each_instance() -> None:
    """Otherwise the messages of one would be dropped as duplicates of another one's."""
    names: list[str] = []
    for start_id in (7, 2**63):
        world = World(start_id=start_id)
        for _ in range(2):
            peer = world.connect()
            peer.send(c="logon", a="processed")
            names.append(peer.take()[0].client_name)
    assert names == [
        "unnamed-0000000000000007-1",
        "unnamed-0000000000000007-2",
        "unnamed-8000000000000000-1",
        "unnamed-8000000000000000-2",
    ]


def test_another_command_before_the_logon_is_refused_and_ends_the_connection() -> None:
    peer = World().connect()
    peer.send(c="p", t="orders", a="persisted")
    (ack,) = peer.take()
    assert (ack.status, ack.reason) == ("failure", "logon required")
    assert peer.closed == "auth"


def test_a_second_logon_is_refused_and_ends_the_connection() -> None:
    world = World()
    peer = world.client()
    peer.send(**logon(cid="7"))
    (ack,) = peer.take()
    assert (ack.command_id, ack.status, ack.reason) == ("7", "failure", "duplicate logon attempt")
    assert peer.closed


def test_commands_behind_a_refused_logon_are_not_carried_out() -> None:
    world = World(users={"ann": "secret"})
    peer = world.connect()
    message = logon(user_id="ann", pw="wrong")
    peer.send_all([encode_frame(message), encode_frame({"c": "p", "t": "orders", "s": 1})])
    assert world.engine.next_position == 1


@pytest.mark.row("AK7")
@pytest.mark.parametrize("fields", [{}, {"user_id": "ann"}, {"user_id": "ann", "pw": "wrong"}])
def test_wrong_credentials_end_the_connection(fields: dict[str, str]) -> None:
    peer = World(users={"ann": "secret"}).connect()
    peer.send(**logon(**fields))
    (ack,) = peer.take()
    assert (ack.status, ack.reason) == ("failure", "auth failure")
    assert peer.closed == "auth"


def test_right_credentials_are_accepted() -> None:
    peer = World(users={"ann": "secret"}).connect()
    peer.send(**logon(user_id="ann", pw="secret"))
    (ack,) = peer.take()
    assert (ack.status, ack.reason) == ("success", "")


@pytest.mark.row("OP17")
def test_an_unknown_logon_option_is_named() -> None:
    world = World()
    peer = world.connect()
    peer.send(**logon(opts="ack_conflation=1s,fast"))
    (ack,) = peer.take()
    assert ack.status == "failure"
    assert ack.reason == "invalid options"
    assert "'fast'" in world.events[-1]


@pytest.mark.row("ID4", "ID5", "ID7")
def test_the_same_user_displaces_the_older_connection() -> None:
    world = World()
    old = world.client("pubber", user_id="ann")
    new = world.connect()
    new.send(**logon(user_id="ann"))
    (last_words,) = old.take()
    assert (last_words.status, last_words.reason) == ("failure", "name in use")
    assert old.closed == "name in use"
    (ack,) = new.take()
    assert ack.status == "success"
    assert not new.closed


@pytest.mark.row("ID6", "ID7")
def test_another_user_is_refused_and_the_older_connection_stays() -> None:
    world = World()
    old = world.client("pubber", user_id="ann")
    new = world.connect()
    new.send(**logon(user_id="bob"))
    (ack,) = new.take()
    assert (ack.status, ack.reason) == ("failure", "name in use")
    assert new.closed == "name in use"
    assert not old.closed
    (told,) = world.events
    start = (
        "connection 2 at test ended: name in use: logon of client 'pubber' refused: name in use: "
    )
    assert told.startswith(start)
    assert told.endswith("'pubber' belongs to user 'ann', refused to 'bob'")
    old.publish(1)
    assert world.engine.next_position == 2


@pytest.mark.row("ID4")
def test_without_a_transaction_log_names_are_not_looked_at() -> None:
    world = World(log_topics=())
    old, new = world.client("pubber"), world.client("pubber")
    assert not old.closed
    assert not new.closed


def test_a_displaced_connection_takes_nothing_from_the_new_one_when_it_ends() -> None:
    world = World()
    world.client("pubber")
    second = world.client("pubber")
    third = world.client("pubber")
    assert second.closed == "name in use"
    assert not third.closed


def known() -> int:
    """How many publishers are remembered in this process."""
    gc.collect()
    # By the type: an object of some library may do anything when it is asked for its class.
    return sum(issubclass(type(each), KnownPublisher) for each in gc.get_objects())


def test_names_that_never_publish_are_forgotten_with_their_connections() -> None:
    world, before = World(), known()
    for number in range(50):  # as the tasks of a job, each with a name of its own
        world.client(f"reader{number}").close()
    assert known() == before
    for fields in ({"s": 1}, {}):
        publisher = world.client("pubber")
        publisher.send(c="p", t="orders", **fields)
        publisher.close()
    assert known() == before + 2
    refused = world.client("refused")
    refused.send(c="p", t="/HACLIENT/status", s=7)
    refused.close()
    again = world.connect()
    again.send(c="logon", cid="0", client_name="refused", a="processed")
    assert again.take()[0].sequence == 7


def test_a_name_that_is_taken_over_is_the_same_publisher() -> None:
    world = World()
    world.client("pubber")
    younger = world.client("pubber")  # the older connection has ended
    world.client("reader").close()
    younger.publish(5)
    younger.close()
    again = world.connect()
    again.send(c="logon", cid="0", client_name="pubber", a="processed")
    assert again.take()[0].sequence == 5


def test_a_message_type_that_fits_no_record_is_refused() -> None:
    world = World()
    peer = world.connect()
    peer.send(**logon(mt="j" * 70_000))
    (ack,) = peer.take()
    assert (ack.status, ack.reason) == ("failure", "invalid message type")
    assert ack.detail == "70000 characters, at most 255"
    assert peer.closed
    longest = "j" * 255
    world = World(message_types=(longest,))
    world.client("next", mt=longest).publish(1)
    assert world.journal.next_position == 2


@pytest.mark.parametrize("message_type", ["jsno", "JSON", "composite", "x" * 100])
def test_a_message_type_that_nobody_knows_is_refused_by_name(message_type: str) -> None:
    """A client that misspells it would publish to topics that nobody reads."""
    world = World()
    peer = world.connect()
    peer.send(**logon(mt=message_type))
    (ack,) = peer.take()
    assert (ack.status, ack.reason) == ("failure", "invalid message type")
    assert ack.detail.startswith(
        f"'{message_type[:40]}' is none of bflat, binary, bson, composite-*, fix, json, "
    )
    assert ack.detail.endswith("the broker's --message-type adds one")
    assert peer.closed
    [line] = world.events
    refused = f"logon of client 'pubber' refused: invalid message type: {ack.detail}"
    assert line == f"connection 1 at test ended: auth: {refused}"


@pytest.mark.parametrize(
    "message_type",
    ["", *sorted(MESSAGE_TYPES), "composite-local", "ours", "logged", "prices", "work"],
)
def test_the_types_of_amps_of_the_topics_and_those_that_were_added_are_known(
    message_type: str,
) -> None:
    world = World(
        message_types=("ours",),
        log_topics=(LogTopic(".*"), LogTopic(".*", "logged")),
        sow_topics=(SowTopic("a", message_type="prices"),),
        queues=(QueueTopic(name="b", message_type="work"),),
    )
    world.client(mt=message_type)


@pytest.mark.row("AD6")
def test_who_is_not_logged_on_is_told_of_no_other_user() -> None:
    world = World(users={"ann": "1", "joe": "2"})
    world.client(user_id="ann", pw="1")
    for fields in ({"user_id": "joe", "pw": "2"}, {"user_id": "eve", "pw": "3"}):
        peer = world.connect()
        peer.send(**logon(**fields))
        (ack,) = peer.take()
        assert (ack.status, ack.detail) == ("failure", "")
    assert "belongs to user 'ann'" in world.events[-2]


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

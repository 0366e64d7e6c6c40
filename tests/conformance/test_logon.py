"""Logging on, client names, heartbeats."""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from conformance.wire import Wire, unique


def test_the_answer_to_a_logon_has_name_version_and_position(connect: Callable[..., Wire]) -> None:
    """`s`, `bm`, `client_name` and `version` (docs/protocol.md#names-and-numbers)."""
    name = unique("client")
    answer = connect(name=name, version="1.0:test", x="bG9nb24=").logon
    assert (answer["client_name"], answer["s"], answer["status"]) == (name, 0, "success")
    publisher, sequence, _ = answer["bm"].split("|")
    assert publisher.isdigit()
    assert sequence == "0"
    assert len(answer["version"].split(".")) >= 4
    assert all(part.isdigit() for part in answer["version"].split(".")[:4])


def test_a_publisher_id_is_a_hash_of_the_client_name(connect: Callable[..., Wire]) -> None:
    """The same name has the same id on every server: a published sample of a logon ack."""
    assert connect(name="pubber").logon["bm"].startswith("7094790850998930143|")


def test_a_server_without_authentication_says_so(wire: Wire) -> None:
    """Such a logon succeeds, with the reason `authentication disabled` (docs/ha.md)."""
    if "reason" not in wire.logon:
        pytest.skip("not applicable: the server asks for a password")
    assert wire.logon["reason"] == "authentication disabled"


def test_a_logon_may_leave_out_the_message_type(connect: Callable[..., Wire]) -> None:
    """The path of a URI may be `/amps` alone: then there is no `mt`."""
    wire = connect(name=None)
    assert wire.ask("logon", client_name=unique("client"))["status"] == "success"


def test_a_message_type_that_the_server_does_not_have_is_refused(
    connect: Callable[..., Wire],
) -> None:
    """Any type that is configured, and no other (docs/protocol.md#decisions)."""
    wire = connect(name=None)
    assert wire.ask("logon", client_name=unique("client"), mt="no-such")["status"] == "failure"
    assert not wire.is_open()


def test_a_logon_can_ask_for_the_ack_that_it_was_received(connect: Callable[..., Wire]) -> None:
    """Acks of a logon are `received` and `processed`; each type is a frame of its own."""
    wire = connect(name=None)
    wire.send("logon", cid="0", client_name=unique("client"), mt="json", a="received,processed")
    assert [wire.next_frame()["a"], wire.next_frame()["a"]] == ["received", "processed"]


def test_a_logon_takes_the_options_of_a_connection(connect: Callable[..., Wire]) -> None:
    """`ack_conflation` and `pretty` are options of the logon."""
    assert connect(opts="ack_conflation=100ms,pretty").logon["status"] == "success"


def test_a_connection_begins_with_its_logon(connect: Callable[..., Wire], plain: str) -> None:
    """Another command that comes first is rejected."""
    wire = connect(name=None)
    wire.send("subscribe", cid="1", t=plain, sub_id="s", a="processed")
    answers = list(wire.rest())
    assert [each.get("status") for each in (frame.header for frame in answers)] == ["failure"]


def test_a_connection_has_one_logon(wire: Wire) -> None:
    """A second one fails as a duplicate, and ends the connection."""
    assert wire.ask("logon", client_name=wire.name, mt="json")["status"] == "failure"
    assert not wire.is_open()


def test_the_same_user_displaces_the_older_connection_of_a_name(
    connect: Callable[..., Wire],
) -> None:
    """A name belongs to one connection where there is a log (fake_server/README.md)."""
    name = unique("client")
    old, new = connect(name=name), connect(name=name)
    list(old.rest())
    assert not old.is_open()
    assert new.is_open()


def test_another_user_does_not_get_a_name_that_is_in_use(connect: Callable[..., Wire]) -> None:
    """The new logon fails with `name in use`, and its connection is closed."""
    name = unique("client")
    holder = connect(name=name, user_id="joe", pw="secret")
    if holder.logon["status"] != "success":
        pytest.skip("not applicable: the server asks for a password")
    other = connect(name=None)
    answer = other.ask("logon", client_name=name, mt="json", user_id="ann", pw="other")
    assert (answer["status"], answer["reason"]) == ("failure", "name in use")
    assert not other.is_open()
    assert holder.is_open()


def test_a_wrong_password_is_refused_and_ends_the_connection(user_uri: str) -> None:
    """Authentication fails with `auth failure` (docs/ha.md#user-and-password)."""
    with Wire(user_uri, pw="wrong") as wire:
        assert (wire.logon["status"], wire.logon["reason"]) == ("failure", "auth failure")
        assert not wire.is_open()


def test_user_and_password_of_the_logon_admit_a_client(user_uri: str) -> None:
    """`user_id` and `pw` are the credentials (docs/ha.md#user-and-password)."""
    assert urlsplit(user_uri).password
    with Wire(user_uri) as wire:
        assert wire.logon["status"] == "success"


def test_heartbeats_come_in_their_interval_and_silence_ends_the_connection(
    connect: Callable[..., Wire],
) -> None:
    """One a second after `start,1`; any traffic of the client counts (docs/ha.md#heartbeats).

    The silent client is cut after two intervals; the one that answers outlives it.
    """
    silent, flushing, beating = connect(), connect(), connect()
    began = time.perf_counter()
    for each in (silent, flushing, beating):
        each.do("heartbeat", opts="start,1")
    for _ in range(4):
        assert flushing.frames_until(lambda frame: frame.kind == "heartbeat")[-1].body == b""
        flushing.ask("flush")
        beating.frames_until(lambda frame: frame.kind == "heartbeat")
        beating.send("heartbeat", opts="beat")
    received = list(silent.rest())
    assert time.perf_counter() - began >= 2
    assert [each.kind for each in received].count("heartbeat") >= 2
    assert flushing.is_open()
    assert beating.is_open()


def test_heartbeats_can_be_stopped(wire: Wire) -> None:
    """After `stop` the server neither sends heartbeats nor waits for those of the client."""
    wire.do("heartbeat", opts="start,60")
    wire.do("heartbeat", opts="stop")
    assert wire.is_open()


def test_a_heartbeat_can_ask_for_the_ack_that_it_was_received(wire: Wire) -> None:
    """Its acks are `received` and `processed`."""
    wire.send("heartbeat", cid="1", opts="start,60", a="received,processed")
    assert [wire.next_frame()["a"], wire.next_frame()["a"]] == ["received", "processed"]

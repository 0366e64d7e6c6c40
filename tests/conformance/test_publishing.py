"""Publishes, their acks, sequences and duplicates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conformance.wire import Frame, Wire, unique

PROMPT = "ack_conflation=20ms"


def is_persisted(frame: Frame, sequence: int) -> bool:
    """Whether a frame is the ack that covers a sequence."""
    return frame.kind == "ack" and frame["a"] == "persisted" and frame.get("s") == sequence


@pytest.mark.parametrize("more", [{}, {"a": "none"}], ids=["nothing", "none"])
def test_a_command_has_only_the_acks_that_it_asks_for(
    wire: Wire, plain: str, more: dict[str, Any]
) -> None:
    """Without `a`, or with `none`, a command is not answered."""
    wire.send("subscribe", t=plain, sub_id="s", cid="1", **more)
    wire.publish(plain, b"1", cid="2", **more)
    assert wire.ask("flush", cid="3")["cid"] == "3"
    assert [each.kind for each in wire.frames_until(lambda each: each.body == b"1")] == ["publish"]


def test_each_type_of_ack_is_a_frame_of_its_own(wire: Wire, plain: str) -> None:
    """A publish has `received`, `processed`, `completed` and `persisted`; not `stats`."""
    wire.ask(
        "publish", t=plain, body=b"1", cid="1", a="stats,received,processed,completed,persisted"
    )
    wire.ask("flush", cid="2", a="completed")
    wire.send("publish", t=plain, body=b"1", cid="3", a="received,processed,completed,persisted")
    found: set[str] = set()
    while len(found) < 4:
        frame = wire.next_frame()
        if frame.get("cid") == "3":
            assert frame["status"] == "success"
            found.add(frame["a"])
    assert found == {"received", "processed", "completed", "persisted"}


def test_an_ack_has_the_id_of_its_command(wire: Wire, plain: str) -> None:
    """All acks but the collected ones have it, in whatever form the client has given it."""
    assert wire.ask("publish", t=plain, body=b"1", cid="x-7")["cid"] == "x-7"


def test_persisted_acks_of_a_logged_topic_are_collected(
    connect: Callable[..., Wire], logged: str
) -> None:
    """One ack without a command id covers a sequence and all before it
    (docs/protocol.md#acknowledgements)."""
    wire = connect(opts=PROMPT)
    for sequence in range(1, 101):
        wire.publish(logged, b"1", s=sequence, a="persisted", cid=str(sequence))
    acks = wire.frames_until(lambda each: is_persisted(each, 100))
    assert len(acks) < 100
    assert [ack["s"] for ack in acks] == sorted({ack["s"] for ack in acks})
    assert all("cid" not in ack and ack["status"] == "success" for ack in acks)
    publisher = wire.logon["bm"].split("|")[0]
    assert acks[-1]["bm"] == f"{publisher}|100|"


def test_a_topic_without_a_log_has_a_persisted_ack_all_the_same(wire: Wire, unlogged: str) -> None:
    """There is nothing to wait for; the publisher is answered nevertheless."""
    assert wire.ask("publish", t=unlogged, body=b"1", a="persisted")["status"] == "success"


def test_a_failure_splits_a_run_of_persisted_acks(
    connect: Callable[..., Wire], sow: str, logged: str
) -> None:
    """Of 1 to 5 the third is refused: success up to 2, failure of 3, success up to 5
    (docs/protocol.md#acknowledgements)."""
    wire = connect(opts=PROMPT)
    for sequence in range(1, 6):
        body = b"no record" if sequence == 3 else b"{}"
        topic = sow if sequence == 3 else logged
        wire.publish(topic, body, s=sequence, a="persisted", cid=f"c{sequence}")
    acks = wire.frames_until(lambda each: is_persisted(each, 5))
    acks = [each for each in acks if each["a"] == "persisted"]
    assert [(each["status"], each["s"]) for each in acks if each["s"] in {2, 3, 5}] == [
        ("success", 2),
        ("failure", 3),
        ("success", 5),
    ]
    failure = next(each for each in acks if each["status"] == "failure")
    assert failure["cid"] == "c3"
    assert failure["reason"]


def test_what_was_published_twice_is_stored_once(connect: Callable[..., Wire], logged: str) -> None:
    """A sequence at or below the highest one of its publisher is a duplicate; a gap is none
    (docs/guarantees.md)."""
    name = unique("client")
    with connect(name=name, opts=PROMPT) as wire:
        for sequence in (1, 2, 7):
            wire.publish(logged, str(sequence).encode(), s=sequence, a="persisted")
        wire.frames_until(lambda each: is_persisted(each, 7))
    wire = connect(name=name, opts=PROMPT)
    publisher = wire.logon["bm"].split("|")[0]
    assert (wire.logon["s"], wire.logon["bm"]) == (7, f"{publisher}|7|")
    for sequence in (2, 5, 7, 8):
        wire.publish(logged, str(sequence).encode(), s=sequence, a="persisted")
    wire.frames_until(lambda each: is_persisted(each, 8))
    wire.subscribe(logged, bm="0")
    assert [each.body for each in (wire.next_message() for _ in range(4))] == [
        b"1",
        b"2",
        b"7",
        b"8",
    ]


def test_a_publish_without_a_sequence_is_given_an_identity(
    connect: Callable[..., Wire], logged: str
) -> None:
    """Its publisher id is another one than that of the client's numbered messages
    (docs/protocol.md#names-and-numbers)."""
    wire = connect()
    wire.subscribe(logged, bm="0")
    wire.publish(logged, b"1")
    wire.publish(logged, b"2", s=1)
    wire.publish(logged, b"3")
    ids = [each["bm"].split("|")[:2] for each in (wire.next_message() for _ in range(3))]
    assert ids[1] == [wire.logon["bm"].split("|")[0], "1"]
    assert ids[0][0] == ids[2][0] != ids[1][0]
    assert int(ids[0][1]) < int(ids[2][1])


def test_a_publish_is_to_one_topic_even_if_it_looks_like_a_pattern(wire: Wire, plain: str) -> None:
    """Only subscriptions and queries have patterns (docs/broker.md)."""
    wire.subscribe(plain + ".*", sub_id="literal", opts="non_regex_topic")
    wire.subscribe(plain + "-other", sub_id="other")
    wire.publish(plain + ".*", b"1")
    assert wire.next_message().sids == {"literal"}


def test_topics_of_the_server_take_no_publishes_but_devnull(wire: Wire) -> None:
    """What begins with `/AMPS` is reserved; `/AMPS/devnull` takes anything."""
    assert wire.ask("publish", t="/AMPS/devnull", body=b"1")["status"] == "success"
    assert wire.ask("publish", t="/AMPS/ClientStatus", body=b"{}")["status"] == "failure"


def test_a_correlation_id_comes_with_the_message(wire: Wire, plain: str) -> None:
    """`x` is passed on as it is."""
    wire.subscribe(plain)
    wire.publish(plain, b"1", x="YWJj+/=")
    assert wire.next_message()["x"] == "YWJj+/="


def test_a_flush_answers_when_the_commands_before_it_are_done(
    connect: Callable[..., Wire], logged: str
) -> None:
    """`completed` when they are processed, `persisted` when the publishes among them are."""
    wire = connect(opts=PROMPT)
    for sequence in (1, 2, 3):
        wire.publish(logged, b"1", s=sequence, a="persisted")
    wire.send("flush", cid="f", a="received,processed,completed,persisted")
    frames = wire.frames_until(lambda each: each.get("cid") == "f" and each["a"] == "persisted")
    assert {each["a"] for each in frames if each.get("cid") == "f"} == {
        "received",
        "processed",
        "completed",
        "persisted",
    }
    assert connect(name=wire.name).logon["s"] == 3

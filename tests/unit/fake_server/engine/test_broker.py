"""The engine as a whole: dispatch, flush, and the order of effects."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from haclient.protocol.codec import encode_frame
from haclient_fake_server.engine.answers import Answer
from haclient_fake_server.engine.outbox import MAX_ENDS_REPORTED
from haclient_fake_server.engine.persisted_acks import PersistedAcks
from support.engine import Peer, World, decode


@pytest.mark.parametrize("command", ["start_timer", "nonsense", ""])
def test_an_unknown_command_ends_the_connection(command: str) -> None:
    world = World()
    peer = world.client()
    peer.send_all([encode_frame({"c": command}), encode_frame({"c": "p", "t": "orders"})])
    assert peer.closed == "unknown command"
    assert [(ack.reason, ack.detail) for ack in peer.take()] == [
        ("unknown command", f"'{command}'")
    ]
    assert world.engine.next_position == 1


def test_an_unknown_command_before_the_logon_ends_the_connection_too() -> None:
    peer = World().connect()
    peer.send(c="nonsense", cid="7", a="completed")
    assert peer.closed == "unknown command"
    assert [(ack.command_id, ack.ack_type, ack.status) for ack in peer.take()] == [
        ("7", "completed", "failure")
    ]


def test_the_ack_of_an_old_client_is_answered_and_its_connection_stays() -> None:
    world = World()
    peer = world.client("old")
    peer.send(c="ack", t="work", bm="1|1|")
    (ack,) = peer.take()
    assert (ack.status, ack.reason) == ("failure", "unknown command")
    assert ack.detail == "'ack': messages are acknowledged by sow_delete"
    assert not peer.closed
    (line,) = world.events
    assert line.startswith("ack on 'work' of connection 1 'old' refused: unknown command: 'ack'")


def test_a_command_before_the_logon_is_told_why_it_ends_the_connection() -> None:
    world = World()
    peer = world.connect()
    peer.send(c="p", t="orders")
    assert [ack.reason for ack in peer.take()] == ["logon required"]
    assert world.events == ["connection 1 at test ended: auth: 'p' before the logon"]


def test_the_log_quotes_little_of_what_strangers_send() -> None:
    world = World()
    long = "x" * 1_000_000
    for fields in (
        {"c": long},
        {"c": "p", "t": long},
        {"c": "logon", "client_name": long, "mt": long},
    ):
        world.connect().send(**fields)
    world.client("joe").send(c="subscribe", t=long + "(")
    world.client(long).send(c="sow_delete", t=long, filter="(")
    assert len(world.events) == 5
    assert not any("x" * 81 in event for event in world.events)
    assert max(map(len, world.events)) < 500


def test_publish_is_spelled_in_two_ways() -> None:
    world = World()
    peer = world.client()
    peer.send(c="publish", t="orders")
    peer.send(c="p", t="orders")
    assert world.engine.next_position == 3


@pytest.mark.row("TL7", "AK2")
def test_a_flush_brings_the_collected_ack_at_once() -> None:
    world = World()
    peer = world.client()
    peer.publish(1)
    peer.publish(2)
    peer.send(c="flush", cid="9", a="persisted")
    assert [(ack.ack_type, ack.sequence, ack.command_id) for ack in peer.take()] == [
        ("persisted", 2, ""),
        ("persisted", None, "9"),
    ]
    world.advance(5)
    assert peer.take() == []


def test_a_flush_answers_each_ack_type() -> None:
    peer = World().client()
    peer.publish(1)
    peer.send(c="flush", cid="9", a="processed,completed,received")
    assert [ack.ack_type for ack in peer.take()] == ["received", "processed", "completed"]


@pytest.mark.row("TL7")
def test_the_block_and_what_follows_from_it_are_one_step() -> None:
    world = World()
    peer = world.client("pubber", opts="ack_conflation=0s")
    message = decode(encode_frame({"c": "p", "t": "orders", "s": 1, "a": "persisted"}))
    effects = world.engine.received(peer.number, message, world.now)
    assert effects.block is not None
    assert effects.block.next_position == 2
    assert [number for number, _ in effects.sends] == [peer.number]
    assert world.journal.next_position == 1, "the engine writes nothing itself"


def test_delta_publish_without_a_record_to_merge_into_is_a_publish() -> None:
    world = World()
    peer = world.client()
    peer.publish(1, c="delta_publish")
    peer.publish(2, c="delta_publish")
    assert world.engine.next_position == 3


def test_messages_of_a_connection_that_has_gone_are_dropped() -> None:
    world = World()
    peer = world.client()
    peer.close()
    peer.publish(1)
    assert world.engine.next_position == 1
    world.engine.over_high_water(peer.number)
    assert not world.engine.has_backlog(peer.number)
    assert world.engine.pump(peer.number, world.now).sends == []
    assert world.engine.disconnected(peer.number, world.now).block is None


def test_a_connection_may_end_before_it_logs_on() -> None:
    world = World()
    world.connect().close()
    assert world.engine.next_due == float("inf")


def test_a_failure_is_told_in_the_ack_that_was_asked_for() -> None:
    peer = World().client()
    peer.send(c="sow", cid="1", t="orders", a="stats,completed")
    (ack,) = peer.take()
    assert (ack.ack_type, ack.status) == ("completed", "failure")
    peer.send(c="sow", cid="1", t="orders", a="none")
    assert peer.take() == []


def work(step: Callable[[], object]) -> int:
    """How many instructions of the interpreter a step takes."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Callable[..., Any]:  # noqa: ANN401  # as sys.settrace has it
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()  # that of a measurement of coverage, which goes on afterwards
    gc.disable()  # Hypothesis has itself called by each collection, and would be counted
    sys.settrace(trace)
    try:
        step()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def idle(count: int) -> tuple[World, Peer]:
    """A broker with so many subscriptions, on connections of their own and on a shared one."""
    world = World()
    for number in range(count):
        each = world.client(f"reader {number}")
        each.send(c="heartbeat", opts="start,60")
        each.subscribe("1", t=f"topic {number}", bm="0|1|", a="persisted")
        each.subscribe("2", t=f"topic {number}", a="")
    shared = world.client("shared")
    for number in range(count):
        shared.subscribe(str(number), t=f"topic {number}", bm="0|1|", a="persisted")
    publisher = world.client("pubber")
    publisher.publish(1)
    return world, publisher


@pytest.mark.parametrize("command", ["publish", "subscribe", "flush", "tick", "over high water"])
def test_a_batch_costs_the_same_whatever_is_idle(command: str) -> None:
    def cost(count: int) -> int:
        world, publisher = idle(count)
        frames: dict[str, dict[str, str | int]] = {
            "publish": {"c": "p", "t": "orders", "s": 2, "a": "persisted"},
            "subscribe": {"c": "subscribe", "t": "orders", "sub_id": "new", "bm": "0|1|"},
            "flush": {"c": "flush", "cid": "1", "a": "persisted"},
        }
        messages = decode(encode_frame(frames.get(command, {"c": "heartbeat"})))
        engine = world.engine
        if command == "tick":
            return work(partial(engine.tick, world.now))
        if command == "over high water":
            return work(partial(engine.over_high_water, publisher.number))
        return work(partial(engine.received, publisher.number, messages, world.now))

    assert cost(300) <= cost(3) + 20


@pytest.fixture
def _faulty_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that meets a fault of the broker."""

    def flush(*_: object, **__: object) -> None:
        raise OverflowError("out of paper")

    monkeypatch.setattr(PersistedAcks, "flush", flush)


@pytest.mark.usefixtures("_faulty_flush")
def test_a_fault_of_one_command_ends_its_connection_alone() -> None:
    world = World()
    peer, other = world.client("joe"), world.client("other")
    flush = encode_frame({"c": "flush", "cid": "1", "a": "persisted"})
    peer.send_all([publish_frame(), flush, publish_frame()])
    assert (peer.closed, peer.take()[-1].reason) == ("internal error", "internal error")
    other.publish(1)
    assert world.engine.next_position == 3
    (told,) = [text for text in world.events if "Traceback" in text]
    assert told.startswith("connection 1 of client 'joe' at test: internal error\nTraceback")
    assert told.endswith("OverflowError: out of paper")
    last = "connection 1 of client 'joe' at test ended: internal error: OverflowError: out of paper"
    assert world.events[-1] == last
    assert ends(other) == {"internal error": 1}


def test_a_fault_in_a_later_step_of_a_query_ends_its_connection_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    peer, other = world.client("joe"), world.client("other")
    peer.stalled = True
    peer.send(c="sow", cid="1", t="/HACLIENT/status")
    with monkeypatch.context() as patch:
        patch.setattr(Answer, "end", lambda *_, **__: 1 // 0)
        world.apply(world.engine.pump(peer.number, world.now))
    assert peer.closed == "internal error"
    assert ends(other) == {"internal error": 1}


def publish_frame() -> bytes:
    return encode_frame({"c": "p", "t": "orders"})


def ends(peer: Peer) -> dict[str, int]:
    """The statistics of the broker: how many connections have ended, by reason."""
    peer.send(c="sow", cid="1", t="/HACLIENT/status")
    (record,) = [message.data for message in peer.take() if message.kind == "sow"]
    found: dict[str, int] = json.loads(record)["ended_connections"]
    return found


def test_the_log_describes_few_of_many_ends_and_the_statistics_count_all() -> None:
    world = World()
    other = world.client("other")
    for _ in range(2 * MAX_ENDS_REPORTED):
        world.connect().close()
    assert not world.events, "a client has closed each of them"
    for _ in range(MAX_ENDS_REPORTED + 3):
        world.connect().send(c="nonsense")
    assert len(world.events) == MAX_ENDS_REPORTED
    assert world.events[0] == "connection 22 at test ended: unknown command: 'nonsense'"
    world.advance(2)
    world.connect().send(c="nonsense")
    assert world.events[-2] == "3 further connections ended in one second"
    assert ends(other) == {
        "unknown command": MAX_ENDS_REPORTED + 4,
        "connection closed": 2 * MAX_ENDS_REPORTED,
    }

"""What a user may do who may not do everything (docs/broker.md#what-users-may-do)."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.conftest import name_of
from conformance.wire import Wire, unique


@pytest.fixture
def opened() -> str:
    """A topic of this test alone that the reader may read."""
    return unique(name_of("AMPS_TEST_OPEN"))


@pytest.fixture
def closed() -> str:
    """The same that the reader may not read."""
    return unique("conformance-closed")


@pytest.mark.parametrize(
    ("command", "header"),
    [
        ("subscribe", {"sub_id": "s"}),
        ("sow_and_subscribe", {"sub_id": "s"}),
        ("sow", {"query_id": "s"}),
        ("subscribe", {"sub_id": "s", "bm": "0"}),
        ("publish", {"body": b"{}"}),
        ("sow_delete", {"filter": "1=1"}),
    ],
)
def test_a_command_on_a_literal_topic_is_refused(
    reader: Wire, closed: str, command: str, header: dict[str, Any]
) -> None:
    """The connection stays."""
    answer = reader.ask(command, t=closed, **header)
    assert (answer["status"], answer["reason"]) == ("failure", "not entitled")
    assert reader.is_open()


def test_a_pattern_is_accepted_and_delivers_what_may_be_read(
    reader: Wire, owner: Wire, opened: str, closed: str
) -> None:
    """Topics that it must not read are as if nothing was published to them."""
    reader.subscribe(f"^({opened}|{closed})$")
    for number in range(3):
        owner.store(closed, {"n": -number})
        owner.store(opened, {"n": number})
    found = [reader.next_message() for _ in range(3)]
    assert [(each["t"], each.json["n"]) for each in found] == [(opened, n) for n in range(3)]
    reader.ask("flush")
    assert reader.ask("unsubscribe", sub_id="all")["status"] == "success"


def test_who_may_read_may_not_publish(reader: Wire, owner: Wire, opened: str) -> None:
    """`processed` and `persisted` acks say so, and nobody gets the message."""
    owner.subscribe(opened)
    for ack in ("processed", "persisted"):
        answer = reader.ask("publish", t=opened, body=b"1", a=ack, s=1 + len(ack))
        assert (answer["a"], answer["reason"]) == (ack, "not entitled")
    owner.publish(opened, b"2")
    assert owner.next_message().body == b"2"


def test_who_may_read_a_queue_may_acknowledge_its_messages(reader: Wire, owner: Wire) -> None:
    """No other entitlement is needed for it."""
    queue, body = name_of("AMPS_TEST_OPEN_QUEUE"), unique("body").encode()
    owner.do("sow_delete", t=queue, filter="1=1", a="processed,completed")
    reader.subscribe(queue, sub_id="s", opts="max_backlog=1")
    for each in (body, b"last"):
        owner.store(queue, each)
    found = [reader.next_message()]
    reader.do("sow_delete", t=queue, bm=found[0]["bm"])
    found.append(reader.next_message())  # there was room for one
    assert [each.body for each in found] == [body, b"last"]
    reader.do("sow_delete", t=queue, bm=found[1]["bm"])
    assert reader.ask("publish", t=queue, body=b"3")["reason"] == "not entitled"

"""A query and subscription that takes the place of another one of its id."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.live_records import apply_delta
from haclient.protocol.messages import Message
from haclient_fake_server.engine.settings import LogTopic, QueueTopic
from haclient_fake_server.engine.settings import SowTopic as SowSettings
from support.engine import Peer, World

pytestmark = pytest.mark.row("CC15", "CC22")

KINDS = ("sow_and_subscribe", "sow_and_delta_subscribe")
SOW = (SowSettings("orders", ("/id",)), SowSettings("trades", ("/id",)))


def order(number: int, px: int) -> bytes:
    return b'{"id":%d,"px":%d}' % (number, px)


def world_with(*bodies: bytes) -> tuple[World, Peer]:
    world = World(sow_topics=SOW)
    publisher = world.client("pubber")
    for body in bodies:
        publisher.publish(None, body)
    publisher.take()
    return world, publisher


def send(peer: Peer, **fields: str | int) -> list[tuple[str, str, str]]:
    """Send a query and subscription; what comes, as kind, reason and body."""
    command: dict[str, str | int] = {
        "c": KINDS[0],
        "cid": "1",
        "sub_id": "1",
        "t": "orders",
        "bs": 10,
    }
    peer.send(**{**command, **fields})
    return shown(peer.take())


def shown(messages: list[Message]) -> list[tuple[str, str, str]]:
    return [(each.kind, each.reason, each.text) for each in messages if each.data]


@pytest.mark.parametrize("kind", KINDS)
def test_what_has_arrived_is_not_answered_again_and_what_is_not_selected_has_left(
    kind: str,
) -> None:
    world, publisher = world_with(*(order(number, number * 10) for number in range(1, 6)))
    peer = world.client("reader")
    first = send(peer, c=kind, filter="/px < 35", opts="oof")
    assert [each[2] for each in first] == [order(n, n * 10).decode() for n in (1, 2, 3)]
    publisher.publish(None, order(9, 25))
    peer.take()
    peer.send(
        c=kind,
        cid="2",
        sub_id="1",
        t="orders",
        bs=10,
        filter="/px > 22",
        opts="oof,replace",
        a="processed,completed,stats",
    )
    messages = peer.take()
    assert shown(messages) == [
        ("oof", "match", order(1, 10).decode()),
        ("oof", "match", order(2, 20).decode()),
        ("sow", "", order(4, 40).decode()),
        ("sow", "", order(5, 50).decode()),
    ]
    told = [each.ack_type or each.kind for each in messages]
    assert told == [
        "processed",
        "oof",
        "oof",
        "group_begin",
        "sow",
        "sow",
        "group_end",
        "completed",
        "stats",
    ]
    assert (messages[-1].records_returned, messages[-1].matches) == (2, 2)
    publisher.publish(None, order(4, 1))
    assert shown(peer.take()) == [("oof", "match", order(4, 1).decode())]


def test_without_oof_only_the_records_are_told_that_are_new() -> None:
    world, _ = world_with(order(1, 10), order(2, 20))
    peer = world.client("reader")
    send(peer, filter="/px < 15")
    assert send(peer, filter="/px > 15", opts="replace") == [("sow", "", order(2, 20).decode())]


@pytest.mark.parametrize(
    "before",
    [
        {"c": "subscribe"},
        {"c": "delta_subscribe"},
        {"opts": "top_n=1"},
        {"sow_keys": "no such key"},
        {"opts": "conflation=1s,conflation_key=/px"},
    ],
)
def test_a_subscription_that_may_lack_records_gets_all_of_them(before: dict[str, str]) -> None:
    world, _ = world_with(order(1, 10), order(2, 20))
    peer = world.client("reader")
    send(peer, **before)
    everything = [("sow", "", order(1, 10).decode()), ("sow", "", order(2, 20).decode())]
    assert send(peer, opts="replace,oof") == everything
    assert send(peer, opts="replace,oof") == [], "now it has them"


def test_another_topic_takes_the_place_of_the_one_before() -> None:
    world, publisher = world_with(order(1, 10))
    publisher.publish(None, order(1, 99), topic="trades")
    peer = world.client("reader")
    send(peer)
    assert send(peer, t="trades", opts="oof,replace") == [
        ("oof", "match", order(1, 10).decode()),
        ("sow", "", order(1, 99).decode()),
    ]
    assert send(peer, t="^(orders|trades)$", opts="oof,replace") == [
        ("sow", "", order(1, 10).decode())
    ]


def test_held_messages_come_before_the_answer() -> None:
    world, publisher = world_with(order(1, 10))
    peer = world.client("reader")
    send(peer, opts="conflation=1h,oof")
    publisher.publish(None, order(1, 11))
    assert shown(peer.take()) == []
    assert send(peer, filter="/px > 50", opts="oof,replace") == [
        ("p", "", order(1, 11).decode()),
        ("oof", "match", order(1, 11).decode()),
    ]


@pytest.mark.parametrize("start", ["queue", "log"])
def test_what_is_of_a_queue_or_of_the_log_is_not_replaced_by_a_query(start: str) -> None:
    world = World(
        sow_topics=SOW,
        log_topics=(LogTopic("^(orders|jobs.*)$"),),
        queues=(QueueTopic(name="jobs", topics=("jobs.new",)),),
    )
    peer = world.client("reader")
    if start == "queue":
        peer.send(c="subscribe", cid="1", sub_id="1", t="jobs")
    else:
        peer.send(c="subscribe", cid="1", sub_id="1", t="orders", bm="0")
    peer.take()
    peer.send(c=KINDS[0], cid="2", sub_id="1", t="orders", bm="0|1|", opts="replace", a="processed")
    (answer,) = (each for each in peer.take() if each.command_id == "2")
    assert (answer.status, answer.reason) == ("failure", "invalid options")


EVENTS = st.lists(
    st.tuples(st.sampled_from(["p", "p", "delta_publish", "sow_delete"]), st.integers(1, 6))
    | st.tuples(st.just("replace"), st.integers(0, 5)),
    max_size=25,
)


@given(
    events=EVENTS,
    values=st.lists(st.integers(0, 5), min_size=25, max_size=25),
    kind=st.sampled_from(KINDS),
    options=st.sampled_from(["", ",select=[-/extra]"]),
)
def test_who_applies_what_comes_has_what_the_later_query_gives(
    events: list[tuple[str, int]], values: list[int], kind: str, options: str
) -> None:
    world, publisher = world_with(*(order(number, number) for number in range(1, 4)))
    world.client("other")
    peer = world.client("reader")
    wanted = "/px >= 2"
    found: dict[str, dict[str, object]] = {}

    def ask(more: str) -> None:
        peer.send(
            c=kind,
            cid="1",
            sub_id="1",
            t="orders",
            bs=10,
            filter=wanted,
            opts=f"oof{options}{more}",
        )

    ask("")
    for event, px in [("look", 0), *zip([*events], values, strict=False)]:
        match event:
            case ("replace", number):
                wanted = f"/px >= {number}" if px % 2 else f"/px < {number}"
                ask(",replace")
            case (command, number):
                body = {"id": number, "px": px, f"n{px % 2}": number, "extra": px}
                publisher.send(json.dumps(body).encode(), c=command, t="orders")
            case _:
                pass
        for each in peer.take():
            if each.kind == "oof":
                del found[each.sow_key]
            elif each.kind == "p" and "delta" in kind and each.sow_key in found:
                found[each.sow_key] = apply_delta(found[each.sow_key], json.loads(each.data))
            elif each.kind in {"p", "sow"}:
                assert each.kind == "p" or each.sow_key not in found, "it has arrived already"
                found[each.sow_key] = json.loads(each.data)
        publisher.send(c="sow", cid="q", t="orders", bs=10, filter=wanted, opts=options.strip(","))
        there = [each for each in publisher.take() if each.kind == "sow"]
        assert found == {each.sow_key: json.loads(each.data) for each in there}

"""Delta subscriptions: who gets whole messages and who the changes, and what both lead to."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haclient.live_records import apply_delta
from haclient.protocol.messages import Message
from haclient_fake_server.engine.settings import LogTopic, SowTopic
from support.engine import Peer, World
from support.lengths import length

pytestmark = pytest.mark.row("CC12")

SOW = (SowTopic("orders", ("/id",)),)


def subscriber(world: World, *ids: str, **fields: str | int) -> Peer:
    peer = world.client("sub")
    for sub_id in ids:
        peer.subscribe(sub_id, **{"c": "delta_subscribe", **fields})
    assert [ack.status for ack in peer.take()] == ["success"] * len(ids)
    return peer


def shown(peer: Peer) -> list[tuple[str, str, str]]:
    """Ids, command and body of each message."""
    return [(each.sids, each.kind, each.data.decode()) for each in peer.take()]


def test_a_new_record_comes_whole_and_an_update_as_what_it_has_changed() -> None:
    world = World(sow_topics=SOW)
    peer, publisher = subscriber(world, "1"), world.client()
    for body in (b'{"id":1,"px":1,"q":1}', b'{"id":1,"px":2,"q":1}', b'{"id":1,"px":2,"q":1}'):
        publisher.publish(None, body)
    publisher.send(b'{"id":1,"q":9}', c="delta_publish", t="orders")
    assert shown(peer) == [
        ("1", "p", '{"id":1,"px":1,"q":1}'),
        ("1", "p", '{"px":2,"id":1}'),
        ("1", "p", '{"id":1}'),
        ("1", "p", '{"q":9,"id":1}'),
    ]


def test_options_leave_empty_updates_and_keys_out() -> None:
    world = World(sow_topics=SOW)
    bare = subscriber(world, "1", opts="no_empties,no_sowkey")
    keys = world.client("keys")
    keys.subscribe("2", c="delta_subscribe", opts="no_empties,send_keys,timestamp")
    keys.take()
    publisher = world.client()
    for body in (b'{"id":1,"px":1}', b'{"id":1,"px":1.0}', b'{"id":1,"px":2}'):
        publisher.publish(None, body)
    assert shown(bare) == [("1", "p", '{"id":1,"px":1}'), ("1", "p", '{"px":2}')]
    assert shown(keys) == [("2", "p", '{"id":1,"px":1}'), ("2", "p", '{"px":2,"id":1}')]


def test_a_subscription_to_whole_messages_of_one_connection_shares_its_frames() -> None:
    world = World(sow_topics=SOW)
    peer, publisher = subscriber(world, "1", "2"), world.client()
    publisher.publish(None, b'{"id":1,"px":1}')
    peer.subscribe("whole", filter="/px > 5")
    peer.take()
    publisher.publish(None, b'{"id":1,"px":2}')
    publisher.publish(None, b'{"id":1,"px":7}')
    assert shown(peer) == [("1,2", "p", '{"px":2,"id":1}'), ("1,2,whole", "p", '{"id":1,"px":7}')]


@pytest.mark.parametrize(
    ("topics", "logged"),
    [((), (LogTopic("orders"),)), ((), ()), ((SowTopic("orders"),), (LogTopic("orders"),))],
)
def test_without_a_record_to_compare_with_messages_come_whole(
    topics: tuple[SowTopic, ...], logged: tuple[LogTopic, ...]
) -> None:
    world = World(sow_topics=topics, log_topics=logged)
    peer, publisher = subscriber(world, "1", opts="no_empties"), world.client()
    for body in (b'{"px":1}', b"no json", b"no json"):
        publisher.publish(None, body, k="a" if body != b'{"px":1}' else "b")
    assert [body for _, _, body in shown(peer)] == ['{"px":1}', "no json", "no json"]


def test_a_record_that_comes_back_is_whole_for_those_who_want_to_know_that_it_left() -> None:
    world = World(sow_topics=SOW)
    oof, plain = subscriber(world, "1", filter="/px < 5", opts="oof"), world.client("plain")
    plain.subscribe("2", c="delta_subscribe", filter="/px < 5")
    plain.take()
    publisher = world.client()
    for px in (1, 9, 2):
        publisher.publish(None, b'{"id":1,"q":0,"px":%d}' % px)
    publisher.send(c="sow_delete", cid="9", t="orders", filter="/id = 1")
    assert shown(oof) == [
        ("1", "p", '{"id":1,"q":0,"px":1}'),
        ("1", "oof", '{"id":1,"q":0,"px":9}'),
        ("1", "p", '{"id":1,"q":0,"px":2}'),
        ("1", "oof", '{"id":1,"q":0,"px":2}'),
    ]
    assert shown(plain) == [("2", "p", '{"id":1,"q":0,"px":1}'), ("2", "p", '{"px":2,"id":1}')]


def test_a_replay_stays_one_of_whole_messages_and_a_subscription_may_become_one_of_deltas() -> None:
    world = World(sow_topics=SOW)
    peer, publisher = world.client("sub"), world.client()
    peer.subscribe("replay", bm="0")
    peer.subscribe("live")
    peer.take()
    peer.subscribe("replay", c="delta_subscribe", opts="replace")
    peer.subscribe("live", c="delta_subscribe", opts="replace")
    assert [ack.status for ack in peer.take()] == ["failure", "success"]
    peer.send(c="unsubscribe", cid="9", sub_id="replay")
    publisher.publish(None, b'{"id":1,"px":1}')
    publisher.publish(None, b'{"id":1,"px":2}')
    assert [each[2] for each in shown(peer)] == ['{"id":1,"px":1}', '{"px":2,"id":1}']


values = st.sampled_from([None, 0, 1, True, "x", [1], {"x": 1}, {"x": 2, "y": {"z": 1}}, {}])
bodies = st.fixed_dictionaries({"id": st.integers(1, 3)}, optional={"a": values, "b": values})
steps = st.lists(
    st.tuples(st.sampled_from(["publish", "delta_publish", "delete", "restart"]), bodies),
    max_size=25,
)


@given(
    steps=steps,
    filter_=st.sampled_from(["", '/a = 1 OR /b = "x" OR /a/x > 1']),
    options=st.sampled_from(["oof", "no_empties,oof"]),
)
@settings(max_examples=length(150))
def test_records_and_deltas_lead_to_the_state_of_the_server(
    steps: list[tuple[str, dict[str, object]]], filter_: str, options: str
) -> None:
    world = World(sow_topics=SOW)
    fields: dict[str, str | int] = {"filter": filter_} if filter_ else {}
    copy: dict[str, dict[str, object]] = {}

    def follow() -> Peer:
        peer = world.client("sub")
        peer.send(c="sow_and_delta_subscribe", cid="1", t="orders", opts=options, **fields)
        copy.clear()
        return peer

    peer, publisher = follow(), world.client()
    for kind, body in steps:
        if kind == "restart":
            world.restart()
            peer, publisher = follow(), world.client()
        elif kind == "delete":
            publisher.send(c="sow_delete", cid="9", t="orders", filter=f"/id = {body['id']}")
        else:
            publisher.send(json.dumps(body).encode(), c=kind, t="orders")
        for message in peer.take():
            receive(copy, message)
        publisher.send(c="sow", cid="8", t="orders", **fields)
        wanted = {each.sow_key: each.json() for each in publisher.take() if each.kind == "sow"}
        assert without_nulls(copy) == without_nulls(wanted)


def receive(copy: dict[str, dict[str, object]], message: Message) -> None:
    """What the program of docs/deltas.md does."""
    if message.command == "oof":
        copy.pop(message.sow_key, None)
    elif message.command in {"sow", "publish"}:
        known = {} if message.command == "sow" else copy.get(message.sow_key, {})
        copy[message.sow_key] = apply_delta(known, message.json(dict[str, object]))


def without_nulls(value: object) -> str:
    """NULL and a field that is missing are the same; `true` and 1 are not."""
    return json.dumps(_without_nulls(value), sort_keys=True)


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return value


@pytest.mark.row("OP16")
def test_the_delta_of_selected_fields_is_empty_when_only_others_have_changed() -> None:
    world = World(sow_topics=SOW)
    some = subscriber(world, "1", opts="select=[-/q]")
    quiet = world.client("quiet")
    quiet.subscribe("2", c="delta_subscribe", opts="select=[-/,+/a/b],no_empties")
    quiet.take()
    publisher = world.client()
    for body in (b'{"id":1,"a":{"b":1},"q":1}', b'{"id":1,"a":{"b":1},"q":2}', b'{"id":1}'):
        publisher.publish(None, body)
    assert shown(some) == [
        ("1", "p", '{"id":1,"a":{"b":1}}'),
        ("1", "p", '{"id":1}'),
        ("1", "p", '{"a":null,"id":1}'),
    ]
    assert shown(quiet) == [("2", "p", '{"a":{"b":1}}'), ("2", "p", '{"a":null}')]

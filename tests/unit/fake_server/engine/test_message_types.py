"""Filters, SOW keys and deltas on bodies of each message type that has fields."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import msgpack
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from haclient_fake_server.engine.connections import Style
from haclient_fake_server.engine.filters import Document, compile_filter, parse_path
from haclient_fake_server.engine.filters.bodies import (
    MAX_FIELDS,
    MAX_MSGPACK_BYTES,
    MAX_PARSED_BYTES,
    parser_of,
)
from haclient_fake_server.engine.settings import QueueTopic, SowTopic
from haclient_fake_server.engine.sow.delta import Delta, merge_delta
from support.engine import Peer, World
from support.lengths import length

pytestmark = pytest.mark.row("SW9")

Values: TypeAlias = Mapping[str, object]


def fix(values: Values) -> bytes:
    return b"".join(f"{name}={value}\x01".encode() for name, value in values.items())


def composite(*parts: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)


class Kind(NamedTuple):
    """How messages of a type are written in these tests; the names of fields are tags of FIX."""

    name: str
    write: Callable[[Values], bytes]
    damaged: bytes
    at: str = ""


KINDS = [
    Kind("json", msgspec.json.encode, b'{"1":'),
    Kind("msgpack", msgpack.packb, b"\x81\xa1"),
    Kind("nvfix", fix, b"1=2\x01no field\x01"),
    Kind("fix", fix, b"1=2\x01x=3\x01"),
    Kind("composite-binary-json", lambda v: composite(b"*", msgspec.json.encode(v)), b"\0", "/1"),
    Kind("composite-global-nvfix", lambda v: composite(fix(v), b""), b"\0\0\0\2a"),
]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])


def world_of(kind: Kind) -> tuple[World, Peer]:
    topic = SowTopic("orders", (f"{kind.at}/1",), message_type=kind.name)
    world = World(sow_topics=(topic,))
    return world, world.client(message_type=kind.name)


def records(peer: Peer, **fields: str | int) -> list[bytes]:
    peer.send(**{"c": "sow", "cid": "q", "t": "orders", **fields})
    return [message.data for message in peer.take() if message.kind == "sow"]


@each_kind
def test_filters_keys_and_orders_see_the_fields(kind: Kind) -> None:
    world, peer = world_of(kind)
    reader = world.client("reader", message_type=kind.name)
    reader.subscribe(filter=f"{kind.at}/44 > 19.5 AND {kind.at}/55 = 'IBM'")
    reader.take()
    first = kind.write({"1": 7, "55": "IBM", "44": 20})
    other = kind.write({"1": 8, "55": "SAP", "44": 21})
    again = kind.write({"1": 7, "55": "IBM", "44": 19})
    peer.publish(1, first)
    peer.publish(2, other)
    assert reader.bodies() == [first]
    assert records(peer, orderby=f"{kind.at}/44 DESC") == [other, first]
    peer.publish(3, again)
    assert reader.bodies() == []
    assert records(peer, orderby=f"{kind.at}/44") == [again, other]
    world.restart()
    peer = world.client(message_type=kind.name)
    assert records(peer, orderby=f"{kind.at}/44") == [again, other]
    peer.send(first, c="sow_delete", t="orders")
    assert records(peer) == [other]
    peer.send(c="sow_delete", t="orders", filter=f"{kind.at}/44 = 21")
    assert records(peer) == []


@each_kind
def test_a_damaged_body_is_a_bad_message_where_keys_are_fields(kind: Kind) -> None:
    world, peer = world_of(kind)
    peer.publish(1, kind.damaged)
    assert [(ack.status, ack.reason) for ack in peer.acks()] == [("failure", "bad message")]
    peer.publish(2, kind.write({"2": 1}))
    assert [ack.reason for ack in peer.acks()] == ["bad sow key"]
    reader = world.client("reader", message_type=kind.name)
    reader.subscribe("all", t="others", filter=f"{kind.at}/1 IS NULL")
    reader.take()
    peer.publish(3, kind.damaged, t="others")
    assert reader.bodies() == [kind.damaged]


@pytest.mark.row("SW5")
@each_kind
def test_deltas_are_merged_and_sent(kind: Kind) -> None:
    world, peer = world_of(kind)
    reader = world.client("reader", message_type=kind.name)
    reader.send(c="delta_subscribe", cid="1", t="orders")
    peer.publish(1, kind.write({"1": 7, "55": "IBM", "44": 10}))
    reader.take()
    peer.send(kind.write({"1": 7, "44": 11}), c="delta_publish", t="orders")
    (record,) = records(peer)
    (sent,) = reader.bodies()
    if "global" in kind.name:  # it has no deltas
        assert record == sent == kind.write({"1": 7, "44": 11})
        return
    assert record == kind.write({"1": 7, "55": "IBM", "44": 11})
    unchanged = composite(b"", b"") if kind.at else b""
    parse = parser_of(kind.name)
    wanted = parse(kind.write({"44": 11, "1": 7}))
    if kind.at:
        assert sent == composite(b"", b'{"44":11,"1":7}')
    else:
        assert parse(sent) == wanted
    peer.send(unchanged or kind.write({"1": 7}), c="delta_publish", t="orders")
    assert records(peer) == [record]


def test_a_queue_sees_the_fields_too() -> None:
    queue = QueueTopic(
        name="work",
        topics=("jobs",),
        message_type="msgpack",
        priority="/p",
        max_per_subscription_backlog=9,
    )
    world = World(queues=(queue,))
    publisher = world.client(message_type="msgpack")
    for number, priority in enumerate((1, 3, 2), 1):
        publisher.publish(number, msgpack.packb({"p": priority}), t="jobs")
    publisher.take()
    publisher.subscribe(t="work", opts="max_backlog=10", filter="/p > 1")
    assert [msgpack.unpackb(body)["p"] for body in publisher.bodies()] == [3, 2]


@pytest.mark.parametrize(
    ("kind", "body", "expression"),
    [
        ("msgpack", msgpack.packb({"a": {"b": [{"c": 1}, {"c": 2}]}}), "/a/b/c[1] = 2"),
        ("msgpack", msgpack.packb({"a": b"raw", "b": True}), "/a = 'raw' AND /b = 1"),
        ("msgpack", msgpack.packb({"a": msgpack.ExtType(5, b"x")}), "/a IS NULL"),
        ("msgpack", msgpack.packb({"a": msgpack.Timestamp(1)}), "/a IS NULL"),
        ("msgpack", msgpack.packb({"a": 2**64 - 1, "b": -(2**63)}), "/a > 1 AND /b < 0"),
        ("msgpack", b"\x81\xa1a\xa1\xff", "/a IS NOT NULL"),
        ("fix", b"55=A\x0155=B\x01", "/55 = 'B' AND /55[0] = 'A'"),
        ("fix", b"95=5\x0196=a\x01b=c\x0158=x\x01", "/58 = 'x' AND /96 LIKE 'b=c$'"),
        ("fix", b"55=A", "/55 = 'A'"),
        ("nvfix", b"price=10.50\x01sym=\x01", "/price = 10.5 AND /sym IS NULL"),
        ("nvfix", b"a=\xff\x01", "/a IS NOT NULL"),
        ("composite-local", composite(b'{"a":1}', b'{"a":2}'), "/0/a = 1 AND /1/a = 2"),
        ("composite-json-nvfix", composite(b"{}", b"a=1\x01", b"a=2\x01"), "/1/a = 1 AND /2/a = 2"),
        ("composite-json", composite(b"{", b'{"a":2}'), "/0/a IS NULL AND /1/a = 2"),
        ("composite-global-json-nvfix", composite(b'{"a":1}', b"a=2\x01b=3"), "/a[1]=2 AND /b=3"),
        ("xml", b"<a>1</a>", "/a IS NULL"),
    ],
)
def test_what_filters_see(kind: str, body: bytes, expression: str) -> None:
    assert compile_filter(expression)(Document(body, kind))


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("msgpack", b"\x91" * 100_000),
        ("msgpack", b"\x81\x90\x01"),
        ("msgpack", b"\xdd\x7f\xff\xff\xff"),
        ("msgpack", b"\x00\x00"),
        ("msgpack", b"\x91\xc6" + struct.pack(">I", MAX_MSGPACK_BYTES) + bytes(MAX_MSGPACK_BYTES)),
        ("json", b"[1" + b",1" * MAX_FIELDS + b"]"),
        ("json", b"[[" + b"[]," * (MAX_FIELDS // 2) + b"[]]]"),
        ("json", b'["%b"]' % (b"x" * MAX_PARSED_BYTES)),
        ("fix", b"1=\x01" * (MAX_FIELDS + 1)),
        ("composite-json", 2 * composite(b"[1" + b",1" * (MAX_FIELDS // 2) + b"]")),
        ("fix", b"95=9\x0196=a\x01"),
        ("composite-json", b"\0\0\0\0" * (MAX_FIELDS + 1)),
        ("composite-json", b"\0\0\0"),
        ("composite-json", b"\xff\xff\xff\xffa"),
    ],
)
def test_a_body_that_is_damaged_or_too_large_has_no_fields(kind: str, body: bytes) -> None:
    assert not Document(body, kind).has_fields
    assert merge_delta(body, body, kind) == body


@pytest.mark.parametrize(
    ("kind", "stored", "delta", "merged"),
    [
        ("msgpack", {"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"c": None, "e": 3}, "d": [2]}, None),
        ("nvfix", b"a=1\x01a=2\x01b=3\x01", b"a=4\x01c=5\x01b=\x01", b"a=4\x01b=3\x01c=5\x01"),
        (
            "fix",
            b"95=1\x0196=x\x0158=t\x01",
            b"95=2\x0196=\x01y\x01",
            b"95=2\x0196=\x01y\x0158=t\x01",
        ),
        ("composite-json", (b'{"a":1,"b":2}', b"x"), (b"", b"y"), (b'{"a":1,"b":2}', b"y")),
        ("composite-json", (b'{"a":1}',), (b'{"b":2}', b"{}"), (b'{"a":1,"b":2}', b"{}")),
        ("composite-binary", (b"a", b"b"), (b"", b"c"), (b"a", b"c")),
        ("composite-global", (b'{"a":1}',), (b'{"b":2}',), (b'{"b":2}',)),
        ("binary", b"a", b"b", b"b"),
    ],
)
def test_what_a_delta_makes_of_a_record(
    kind: str, stored: object, delta: object, merged: object
) -> None:
    def body(value: object) -> bytes:
        match value:
            case dict():
                return msgpack.packb(value)
            case tuple():
                return composite(*value)
            case _:
                assert isinstance(value, bytes)
                return value

    if kind == "msgpack":
        merged = {"a": {"b": 1, "c": 2, "e": 3}, "d": [2]}
    assert merge_delta(body(stored), body(delta), kind) == body(merged)


def test_numbers_and_types_of_a_record_stay_as_they_were_published() -> None:
    stored = b"\x83\xa1a\xca\x3f\x80\x00\x00\xa1b\xcd\x00\x01\xa1c\xc4\x01x"  # float32, uint16, bin
    assert merge_delta(stored, msgpack.packb({"d": 1}), "msgpack") == (
        b"\x84" + stored[1:] + b"\xa1d\x01"
    )


CHANGED = Style.DELTA | Style.NO_EMPTIES


def test_a_field_that_is_gone_is_sent_without_a_value() -> None:
    key = (parse_path("/1"),)
    gone = Delta(b"1=a\x012=b\x01", b"1=a\x01", key, "fix")
    assert gone.body(CHANGED) == b"2=\x01"
    assert gone.body(Style.DELTA) == b"2=\x011=a\x01"
    before, after = msgpack.packb({"1": 1, "2": 2}), msgpack.packb({"1": 1.0})
    assert Delta(before, after, key, "msgpack").body(CHANGED) == msgpack.packb({"2": None})


def test_the_parts_of_a_composite_message_change_each_on_its_own() -> None:
    keys = (parse_path("/0/id"),)
    before = composite(b'{"id":1,"a":1}', b"x", b"y")
    after = composite(b'{"id":1,"a":1}', b"z", b"y")
    delta = Delta(before, after, keys, "composite-json-binary")
    assert delta.body(Style.DELTA) == composite(b'{"id":1}', b"z", b"")
    assert delta.body(CHANGED) == composite(b"", b"z", b"")
    assert Delta(before, before, keys, "composite-json-binary").body(CHANGED) is None
    assert merge_delta(before, composite(b"", b"z", b""), "composite-json-binary") == after


TYPES = ["json", "msgpack", "fix", "nvfix", "composite-msgpack-fix", "composite-global", "xml"]
PIECES = st.sampled_from(
    [
        b"\x81\xa11\x01",
        b"1=2\x01",
        b"95=3\x01",
        b"96=a\x01b\x01",
        b"\0\0\0\x04",
        b'{"1":2}',
        b"\xdd",
    ]
)
BODIES = st.lists(PIECES | st.binary(max_size=5), max_size=8).map(b"".join)


@settings(max_examples=length(300))
@given(kind=st.sampled_from(TYPES), before=BODIES, after=BODIES)
@example(kind="json", before=b"", after=b"\\\x80")
def test_whatever_a_body_is_nothing_is_raised(kind: str, before: bytes, after: bytes) -> None:
    document = Document(before, kind)
    compile_filter("/1 > 2 OR /0/1 LIKE 'a' OR /96 = 1")(document)
    document.key_text(parse_path("/1"))
    merged = merge_delta(before, after, kind)
    assert isinstance(merged, bytes)
    for style in (Style.DELTA, CHANGED):
        delta = Delta(before, after, (parse_path("/1"),), kind).body(style)
        assert delta is None or isinstance(delta, bytes)

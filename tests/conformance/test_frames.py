"""Frames, headers and connections."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from conformance.wire import Wire, frame_of, unique

BODY = bytes(range(256)) + b'{"c":"p"}}{'


def test_the_body_begins_right_behind_the_header_and_may_hold_any_byte(
    wire: Wire, plain: str
) -> None:
    """A frame is a length, a header, and a body (docs/protocol.md#frames)."""
    wire.subscribe(plain)
    wire.publish(plain, BODY)
    assert wire.next_message().body == BODY


def test_a_frame_may_be_a_header_alone(wire: Wire) -> None:
    """Acks have no body: the header fills the frame (docs/protocol.md#frames)."""
    answer = wire.do("flush")
    assert answer.body == b""
    assert answer.text.endswith(b"}")


def test_both_directions_have_the_same_frames_and_the_client_speaks_first(
    connect: Callable[..., Wire],
) -> None:
    """There is no greeting: the first frame of a server answers the logon."""
    wire = connect(name=None)
    wire.send("logon", cid="0", client_name=unique("client"), mt="json", a="processed")
    answer = wire.next_frame()
    assert (answer.kind, answer["cid"], answer["a"]) == ("ack", "0", "processed")


def test_frames_are_read_whatever_the_segments_that_they_arrive_in(wire: Wire, plain: str) -> None:
    """Several in one segment, one in many: only the lengths divide them."""
    wire.subscribe(plain)
    frame = frame_of({"c": "p", "t": plain}, b"1")
    for byte in frame:
        wire.write(bytes([byte]))
    wire.write(frame * 3)
    assert [wire.next_message().body for _ in range(4)] == [b"1"] * 4


def test_a_message_of_many_megabytes_passes(wire: Wire, plain: str) -> None:
    """Commands of up to about 200 MB are taken; this one has 8 MiB (docs/protocol.md#frames)."""
    wire.subscribe(plain)
    wire.publish(plain, bytes(8 << 20))
    assert wire.next_message().body == bytes(8 << 20)


@pytest.mark.parametrize("names", ["short", "long"])
def test_headers_have_long_and_short_names(wire: Wire, plain: str, names: str) -> None:
    """A server reads both names of a header (docs/protocol.md#frames)."""
    fields = {
        "short": {"c": "subscribe", "cid": "7", "t": plain, "a": "processed", "o": "timestamp"},
        "long": {
            "cmd": "subscribe",
            "cmd_id": "7",
            "topic": plain,
            "ack_type": "processed",
            "opts": "timestamp",
        },
    }[names]
    wire.write(
        frame_of({**fields, "sub_id": "s", ("f" if names == "short" else "filter"): "/a = 1"})
    )
    answer = wire.next_frame()
    assert (answer["cid"], answer["status"]) == ("7", "success")
    wire.publish(plain, {"a": 2})
    wire.write(
        frame_of(
            {"cmd": "publish", "topic": plain, "correlation_id": "abc"}
            if names == "long"
            else {"c": "publish", "t": plain, "x": "abc"},
            b'{"a":1}',
        )
    )
    message = wire.next_message()
    assert (message.body, message["x"], "ts" in message) == (b'{"a":1}', "abc", True)


@pytest.mark.parametrize("name", ["p", "publish"])
def test_a_publish_has_two_names(wire: Wire, plain: str, name: str) -> None:
    """`p` and `publish` are one command; all other names are spelled out."""
    wire.subscribe(plain)
    wire.send(name, t=plain, body=b"{}")
    assert wire.next_message().body == b"{}"


def test_the_order_of_headers_does_not_matter(wire: Wire, plain: str) -> None:
    """Each client writes its headers in an order of its own (docs/protocol.md#frames)."""
    wire.subscribe(plain)
    wire.write(frame_of({"t": plain, "x": "abc", "c": "p"}, b"1"))
    assert wire.next_message()["x"] == "abc"


def test_white_space_between_the_tokens_of_a_header_is_skipped(wire: Wire, plain: str) -> None:
    """Blanks, tabs and line ends may stand between tokens."""
    wire.subscribe(plain)
    text = f'{{ "c" :\t"publish" ,\r\n "t":\n"{plain}" }}'
    wire.write(frame_of(text.encode(), b"1"))
    assert wire.next_message().body == b"1"


def test_numbers_are_unquoted_and_texts_are_quoted(connect: Callable[..., Wire]) -> None:
    """`s` is a number; ids are texts, also where they look like numbers."""
    wire = connect(name=None)
    wire.ask("logon", client_name=unique("client"), mt="json", cid="0")
    wire = connect(name=unique("client"))
    assert re.search(rb'"s":\d+[,}]', wire.logon.text)
    answer = wire.ask("flush", cid="12")
    assert b'"cid":"12"' in answer.text


def test_topics_are_bytes_in_no_certain_encoding(wire: Wire, plain: str) -> None:
    """A topic or client name may have any byte: it comes back as it was sent."""
    topic = plain + "-caf\xe9"  # one byte, which is not UTF-8
    text = f'{{"c":"subscribe","cid":"1","t":"{topic}","sub_id":"s","a":"processed"}}'
    wire.write(frame_of(text.encode("latin-1")))
    assert wire.next_frame()["status"] == "success"
    wire.write(frame_of(f'{{"c":"p","t":"{topic}"}}'.encode("latin-1"), b"1"))
    message = wire.next_message()
    assert (message["t"], message.body) == (topic, b"1")


def test_a_client_name_may_have_any_byte(connect: Callable[..., Wire]) -> None:
    """The ack of the logon repeats the name as it was sent."""
    wire = connect(name=None)
    name = unique("caf\xe9 [1] %s")
    text = f'{{"c":"logon","cid":"0","client_name":"{name}","mt":"json","a":"processed"}}'
    wire.write(frame_of(text.encode("latin-1")))
    assert wire.next_frame()["client_name"] == name


@pytest.mark.parametrize("options", ["timestamp,", ",,timestamp", " timestamp , none ,"])
def test_empty_options_and_blanks_are_skipped(wire: Wire, plain: str, options: str) -> None:
    """Clients join options that end with a comma (docs/protocol.md#frames)."""
    wire.subscribe(plain, opts=options)
    wire.publish(plain, b"1")
    assert "ts" in wire.next_message()


def test_a_message_for_several_subscriptions_is_sent_once_with_all_ids(
    wire: Wire, plain: str
) -> None:
    """`sids` lists the subscriptions of the connection that a message is for."""
    wire.subscribe(plain, sub_id="a")
    wire.subscribe("^" + plain, sub_id="b")
    wire.publish(plain, b"1")
    wire.publish(plain, b"2")
    first, second = wire.next_message(), wire.next_message()
    assert (first.sids, first.body) == ({"a", "b"}, b"1")
    assert second.body == b"2"


def test_a_server_notices_that_a_connection_is_compressed(uri: str, plain: str) -> None:
    """Zlib in both directions, from the first byte on, without any configuration."""
    with Wire(uri, compressed=True) as wire:
        wire.subscribe(plain)
        wire.publish(plain, bytes(100_000))
        assert wire.next_message().body == bytes(100_000)


def test_a_connection_may_begin_as_an_upgrade_of_http(connect: Callable[..., Wire]) -> None:
    """A client that has to pass a proxy asks for an upgrade first; then frames follow."""
    wire = connect(name=None)
    wire.write(
        b"GET /amps/json HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\n"
        b"Upgrade: amps\r\nX-More: 1\r\n\r\n"
    )
    assert wire.read_line().startswith(b"HTTP/1.1 101")
    while wire.read_line():
        pass
    assert wire.ask("logon", client_name=unique("client"), mt="json")["status"] == "success"


def test_tls_begins_with_the_first_byte(tls_uri: str) -> None:
    """`tcps` is TLS with the same frames inside (docs/tls.md)."""
    with Wire(tls_uri) as wire:
        assert wire.logon["status"] == "success"


def test_a_server_with_a_certificate_takes_no_client_without_tls(tls_uri: str) -> None:
    """A client that does not write `tcps` is not served."""
    parts = urlsplit(tls_uri)
    with socket.create_connection((parts.hostname, parts.port), 60) as plain_socket:
        plain_socket.sendall(frame_of({"c": "logon", "client_name": unique("client")}))
        received = b"-"
        while received:
            try:
                received = plain_socket.recv(4096)
            except ConnectionResetError:
                break
            assert b'"ack"' not in received


def test_a_connection_that_ends_takes_its_subscriptions_along(
    connect: Callable[..., Wire], plain: str
) -> None:
    """The same client connects again and has no subscription (docs/ha.md)."""
    name = unique("client")
    with connect(name=name) as wire:
        wire.subscribe(plain, sub_id="s")
    again = connect(name=name)
    again.subscribe(plain, sub_id="s")  # else the id would be in use
    again.publish(plain, b"1")
    again.do("unsubscribe", sub_id="s")
    again.subscribe(plain, sub_id="other")
    again.publish(plain, b"2")
    assert [each.sids for each in again.messages_until(b"2")] == [{"s"}]


@pytest.mark.parametrize("command", ["no_such_command", "start_timer", ""])
def test_an_unknown_command_ends_the_connection(wire: Wire, command: str) -> None:
    """What a server does not know it does not skip (docs/protocol.md#decisions)."""
    wire.send(command, cid="1", a="processed")
    list(wire.rest())
    assert not wire.is_open()


def test_a_malformed_header_ends_the_connection(wire: Wire) -> None:
    """Nothing behind a header that cannot be read can be trusted (docs/protocol.md#frames)."""
    wire.write(frame_of(b'{"c":"p","t":"x'))
    list(wire.rest())
    assert not wire.is_open()

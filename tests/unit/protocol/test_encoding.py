from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from haclient.errors import UsageError
from haclient.protocol import encoding
from haclient.protocol.encoding import (
    PUBLISH_TAIL,
    encode_frame,
    encode_header,
    encode_string,
    publish_frame_without_store,
    publish_head,
    sow_batch,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def test_the_published_frames_are_written_byte_by_byte() -> None:
    assert publish_frame_without_store("test", b"Data=0\x01") == bytes.fromhex(
        "0000001b 7b2263223a2270222c2274223a2274657374227d 446174613d3001".replace(" ", "")
    )
    beat = encode_frame({"c": "heartbeat", "opts": "beat"})
    assert beat == b'\0\0\0\x1f{"c":"heartbeat","opts":"beat"}'
    logon = {"c": "logon", "cid": "0", "client_name": "pubber", "mt": "json", "a": "processed"}
    frame = encode_frame({**logon, "version": "1.0:py"})
    assert len(frame) == 97
    assert frame[:12] == bytes.fromhex("0000005d7b2263223a226c6f")
    batch = sow_batch(
        {"c": "sow", "query_id": "2", "t": "orders"},
        [({"k": "11"}, b'{"id":1}'), ({"k": "12"}, b'{"id":22}')],
    )
    assert batch == (
        b'\0\0\0\x5f{"c":"sow","query_id":"2","t":"orders","bs":2}'
        b'{"k":"11","l":8}{"id":1}{"k":"12","l":9}{"id":22}'
    )


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("plain", b'"plain"'),
        ("", b'""'),
        ('a"b\\c', rb'"a\"b\\c"'),
        ("\b\t\n\f\r", rb'"\b\t\n\f\r"'),
        ("\x00\x01\x1f\x7f", b'"\\u0000\\u0001\\u001f\x7f"'),
        ("gr\u00fcn/\U0001f600", b'"gr\xc3\xbcn/\xf0\x9f\x98\x80"'),
        ("\udcff", b'"\xff"'),
    ],
)
def test_only_what_must_be_is_escaped(text: str, written: bytes) -> None:
    assert encode_string(text) == written
    if text.isprintable() and "\udcff" not in text:
        assert json.loads(written) == text


@pytest.mark.row("AT12")
def test_text_that_cannot_be_written_is_not_shown_since_it_may_be_a_password() -> None:
    with pytest.raises(UsageError, match="its character 2") as caught:
        encode_string("se\ud800cret")
    assert "cret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_half_a_surrogate_pair_cannot_be_written() -> None:
    with pytest.raises(UsageError, match="surrogate"):
        encode_string("\ud800")


def test_numbers_are_written_without_quotes() -> None:
    assert encode_header({"s": 2**64 - 1, "cid": "7"}) == b'{"s":18446744073709551615,"cid":"7"}'
    assert encode_frame({}) == b"\0\0\0\x02{}"


@pytest.mark.row("PS4")
def test_the_head_of_a_stored_publish_ends_where_the_sequence_begins() -> None:
    assert publish_head("orders") == b'{"c":"p","t":"orders","a":"persisted","s":'
    assert publish_head("orders", persisted=False) == b'{"c":"p","t":"orders","s":'
    assert publish_head('a"}', command="delta_publish", expiration=0, correlation_id="Zm8=") == (
        rb'{"c":"delta_publish","t":"a\"}","x":"Zm8=","e":0,"a":"persisted","s":'
    )
    assert publish_head("o", sow_key="k") + b"7" + PUBLISH_TAIL == (
        b'{"c":"p","t":"o","k":"k","a":"persisted","s":7}'
    )


def test_a_publish_without_a_store_asks_for_nothing() -> None:
    frame = publish_frame_without_store("o", b"x", expiration=5, correlation_id="a", sow_key="k")
    assert frame[4:] == b'{"c":"p","t":"o","k":"k","x":"a","e":5}x'


def publish_nothing(topic: str, *, correlation_id: str = "") -> bytes:
    return publish_frame_without_store(topic, b"", correlation_id=correlation_id)


@pytest.mark.parametrize("publish", [publish_head, publish_nothing])
def test_a_publish_needs_a_topic_and_a_clean_correlation_id(publish: Callable[..., bytes]) -> None:
    with pytest.raises(UsageError, match="topic"):
        publish("")
    with pytest.raises(UsageError, match="'a b'"):
        publish("t", correlation_id="a b")


def test_a_frame_that_no_peer_accepts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MAX_FRAME_BYTES", 20)
    assert encode_frame({"c": "p"}, b"x" * 11)
    with pytest.raises(UsageError, match="21 bytes is too large"):
        encode_frame({"c": "p"}, b"x" * 12)


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({"topic": b"x"}, "topic has to be a str, found bytes b'x': decode it first"),
        ({"topic": 5}, "topic has to be a str, found int 5: give text"),
        ({"topic": "t", "sow_key": 5}, "sow_key has to be a str"),
        ({"topic": "t", "correlation_id": b"YQ=="}, "correlation_id has to be a str"),
        ({"topic": "t", "expiration": "5"}, "expiration is a whole number of seconds, not '5'"),
        ({"topic": "t", "expiration": -1}, "expiration is a whole number of seconds, not -1"),
    ],
)
def test_a_publish_with_a_value_of_the_wrong_type_is_refused_in_one_line(
    arguments: dict[str, object], wanted: str
) -> None:
    with pytest.raises(UsageError, match=wanted):
        publish_head(**arguments)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(UsageError, match=wanted):
        publish_frame_without_store(body=b"", **arguments)  # type: ignore[arg-type]  # likewise

"""Framing and decoding under any chunking and any garbage (AT14)."""

from __future__ import annotations

import struct
import tracemalloc

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from haclient.errors import ProtocolError
from haclient.protocol.codec import MessageDecoder, encode_frame, parse_header, sow_batch
from haclient.protocol.framing import MAX_FRAME_BYTES, FrameReader
from haclient.protocol.messages import HEADERS, WIRE_NAMES, Message

# Text as a peer may send it: any character, and bytes that are no UTF-8 as surrogate escapes.
texts = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from('}{":,\\\n \x00\udc80\udcff'),
    ),
    max_size=12,
).filter(
    lambda text: text == text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
)
numbers = st.integers(0, 2**64 - 1)
messages = st.builds(
    lambda values, body: (values, body),
    st.fixed_dictionaries(
        {"kind": st.sampled_from(["p", "ack", "publish", "oof", "heartbeat", "group_end"])},
        optional={
            header.attribute: numbers if header.kind is int else texts
            for header in HEADERS
            if header.attribute != "kind"
        },
    ),
    st.binary(max_size=40),
)


def as_frame(values: dict[str, str | int], body: bytes) -> bytes:
    return encode_frame({WIRE_NAMES[name]: value for name, value in values.items()}, body)


def as_message(values: dict[str, str | int], body: bytes) -> Message:
    message = Message(data=body)
    for name, value in values.items():
        setattr(message, name, value)
    return message


def decode_in_chunks(data: bytes, sizes: list[int], capacity: int) -> list[Message]:
    reader = FrameReader(capacity=capacity)
    decoder = MessageDecoder()
    result: list[Message] = []
    position = 0
    for size in [*sizes, len(data)]:
        result += decoder.decode(*reader.feed(data[position : position + size]))
        position += size
    assert reader.pending == 0
    return result


@pytest.mark.row("AT14")
@given(
    st.lists(messages, max_size=8), st.lists(st.integers(1, 60), max_size=30), st.integers(1, 64)
)
def test_any_messages_in_any_chunks_come_back_as_they_were(
    sent: list[tuple[dict[str, str | int], bytes]], sizes: list[int], capacity: int
) -> None:
    data = b"".join(as_frame(values, body) for values, body in sent)
    assert decode_in_chunks(data, sizes, capacity) == [as_message(*one) for one in sent]


@given(
    st.lists(st.tuples(texts, texts, st.binary(max_size=30)), min_size=1, max_size=6),
    st.lists(st.integers(1, 60), max_size=10),
)
def test_any_records_of_a_batch_come_back_as_they_were(
    records: list[tuple[str, str, bytes]], sizes: list[int]
) -> None:
    data = sow_batch({"c": "sow"}, [({"k": key, "x": x}, body) for key, x, body in records])
    received = decode_in_chunks(data, sizes, 64)
    assert [(m.sow_key, m.correlation_id, m.data) for m in received] == records
    assert {(m.kind, m.batch_size) for m in received} == {("sow", len(records))}


# Garbage that looks like the protocol gets further than random bytes do.
tokens = st.sampled_from(
    [
        *(
            b"{",
            b"}",
            b'"',
            b":",
            b",",
            b"\\",
            b"[",
            b"]",
            b" ",
            b"\n",
            b"\xff",
            b"\0",
            b"null",
            b"-1",
        ),
        *(b'"c":"p"', b'"c":"sow"', b'"bs":2', b'{"l":3}', b'"s":1e999', b'"s":"1"', b'"t":"a}b"'),
        *(b'{"c":"p"}', b'{"c":"sow","bs":1}', b"\\ud800", b'"\x7fnumber":1', b'"\x7fowner":null'),
    ]
)
garbage = st.one_of(st.binary(max_size=60), st.lists(tokens, max_size=12).map(b"".join))


@pytest.mark.row("AT14")
@given(st.lists(garbage, max_size=5), st.lists(garbage, max_size=3).map(b"".join))
@example([b"{" + b"[" * 5000 + b"}"], b"")
def test_any_garbage_gives_messages_or_a_protocol_error(frames: list[bytes], tail: bytes) -> None:
    data = b"".join(struct.pack(">I", len(frame)) + frame for frame in frames) + tail
    reader = FrameReader(max_frame_bytes=10_000, capacity=64)
    decoder = MessageDecoder()
    try:
        for message in decoder.decode(*reader.feed(data)):
            assert isinstance(message, Message)
            assert (message.number, message.owner) == (0, None)
    except ProtocolError:
        return


@pytest.mark.row("AT14")
@given(garbage)
def test_any_header_gives_messages_or_a_protocol_error(header: bytes) -> None:
    heads, bodies = [b'{"c":"p"}', header + b"}", b'{"c":"p"}'], [b"", b"", b""]
    try:
        decoded = MessageDecoder(expand_sow=False).decode(heads, bodies)
    except ProtocolError:
        return
    assert len(decoded) == 3
    assert decoded[0] == decoded[2] == Message(kind="p")


@pytest.mark.row("AT14")
@given(st.binary(min_size=1, max_size=3000), st.integers(16, 64))
def test_memory_follows_what_arrived_and_never_what_was_announced(
    rest: bytes, capacity: int
) -> None:
    reader = FrameReader(capacity=capacity)
    reader.feed(struct.pack(">I", MAX_FRAME_BYTES) + rest)
    assert len(reader._view) <= max(capacity, 2 * (len(rest) + 4))
    assert len(reader.writable()) <= capacity


def has_other_protocol(length: int) -> bool:
    """Whether the error names HTTP or TLS instead of the length."""
    return struct.pack(">I", length) == b"HTTP" or length & 0xFFFF00FF == 0x15030000


@pytest.mark.row("AT14")
@given(
    st.integers(MAX_FRAME_BYTES + 1, 2**32 - 1).filter(
        lambda length: not has_other_protocol(length)
    ),
    st.binary(max_size=20),
)
def test_a_length_above_the_limit_is_refused_at_its_fourth_byte(length: int, rest: bytes) -> None:
    reader = FrameReader()
    announced = struct.pack(">I", length)
    assert reader.feed(announced[:3]) == ([], [])
    with pytest.raises(ProtocolError, match=str(length)):
        reader.feed(announced[3:] + rest)


@pytest.mark.row("AT14")
def test_a_hostile_peer_cannot_make_a_decoder_hold_much_more_than_it_sent() -> None:
    reader = FrameReader()
    decoder = MessageDecoder()
    record = b'{"l":0}'
    flood = encode_frame({"c": "sow", "bs": 1}, record * 200_000)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decoder.decode(*reader.feed(flood))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 * len(flood)


# What the typed decoder may be given: JSON with every kind of value under every kind of name.
names = st.one_of(
    st.sampled_from([spelling for header in HEADERS for spelling in header.spellings]),
    st.sampled_from(["\x7fdata", "\x7fnumber", "\x7fowner", "data", "unknown"]),
    texts.filter(lambda text: text.isascii()),
)
values = st.one_of(
    *(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), texts),
    st.integers(0, 2**64).map(str),
    st.floats(0, 1e20).map(str),
    st.sampled_from(
        ["null", "NULL", "-0", "1e3", "12.0", "9007199254740993.0", "00", "0x1", "1_0"]
    ),
)
json_headers = st.lists(st.tuples(names, values), max_size=6).map(
    lambda pairs: b"{%b}" % b",".join(msgspec.json.encode(n) + b":" + written(v) for n, v in pairs)
)


def written(value: object) -> bytes:
    if isinstance(value, float):
        return repr(value).encode()  # 1e+20, inf and nan too
    if isinstance(value, str):
        return b'"%b"' % value.encode("utf-8", "surrogateescape").replace(b'"', b'\\"')
    return msgspec.json.encode(value)


@given(
    st.one_of(json_headers, st.lists(tokens, max_size=10).map(b"".join).map(lambda t: b"{%b}" % t))
)
@example(b'{"s":9007199254740993.0}')
@example(b'{"\x7fowner":null,"c":"p"}')
@example(b'{"c":"p","c":"q","cmd":"r"}')
def test_the_lenient_decoder_reads_what_the_typed_one_reads_and_alike(header: bytes) -> None:
    try:
        typed = msgspec.json.decode(header, type=Message, strict=False)
    except (msgspec.MsgspecError, ValueError):
        return
    lenient = Message()
    fields, end = parse_header(header)
    for name, value in fields.items():
        setattr(lenient, name, value)
    assert lenient == typed
    assert not header[end:].strip()

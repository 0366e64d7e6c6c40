"""Codecs and typed topics, by example; the laws are in tests/properties/test_codecs.py."""

from __future__ import annotations

import enum
import math
from array import array
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from typing_extensions import override

from haclient.codecs import (
    FIX_DATA_FIELDS,
    Codec,
    CompositeCodec,
    FixCodec,
    JsonCodec,
    MsgpackCodec,
    NvfixCodec,
    ProtobufCodec,
    Topic,
)
from haclient.errors import DecodeError, UsageError
from haclient.protocol.messages import Message


class Side(enum.Enum):
    BUY = "buy"


class Order(msgspec.Struct):
    id: int
    px: float = 0.0
    side: Side = Side.BUY


@dataclass
class Trade:
    id: int

    def __post_init__(self) -> None:
        if self.id == 13:
            raise LookupError("secret 13")


ORDERS = Topic("orders", Order)


# -- JSON and MessagePack --------------------------------------------------------------------


@pytest.mark.row("CC36")
def test_a_topic_of_a_struct_writes_and_reads_json() -> None:
    body = ORDERS.encode(Order(1, 10.5))
    assert body == b'{"id":1,"px":10.5,"side":"buy"}'
    assert ORDERS.decode(Message(data=body)) == Order(1, 10.5)
    assert Message(data=body).json(Order) == Order(1, 10.5)


@pytest.mark.row("CC36")
def test_a_topic_may_have_dataclasses_and_messagepack() -> None:
    trades = Topic("trades", Trade, format="msgpack")
    assert trades.encode(Trade(7)) == b"\x81\xa2id\x07"
    assert trades.decode(Message(data=b"\x81\xa2id\x07")) == Trade(7)
    assert repr(trades) == "Topic('trades', msgpack)"


@pytest.mark.row("CC36", "AT12")
@pytest.mark.parametrize(
    ("data", "position"),
    [
        (b'{"id": xsecret}', "byte 7"),
        (b'{"id": "secret"}', "$.id"),
        (b'{"id": 1, "side": "secret"}', "$.side"),
        (b'{"id": 1, "secret', "byte 17"),
        (b"", "byte 0"),
        (b'{"px": 1}', ""),
    ],
)
def test_what_does_not_decode_says_where_and_not_what(data: bytes, position: str) -> None:
    with pytest.raises(DecodeError, match=r"^the body on 'orders' cannot be read as json: ") as no:
        ORDERS.decode(Message(topic="orders", data=data))
    assert (no.value.topic, no.value.codec, no.value.position) == ("orders", "json", position)
    assert "secret" not in str(no.value)


def test_what_a_type_raises_itself_is_an_error_of_decoding() -> None:
    for topic in (Topic("t", Trade), Topic("t", Trade, format="msgpack")):
        with pytest.raises(DecodeError, match="its type raised LookupError") as no:
            topic.decode(Message(data=topic.encode(_13())))
        assert "secret" not in str(no.value)
    with pytest.raises(DecodeError, match="nested too deeply"):
        JsonCodec(object).decode(b"[" * 100_000)
    with pytest.raises(DecodeError, match="not UTF-8"):
        JsonCodec(object).decode(b'"\xff"')


def _13() -> Trade:
    made = Trade(1)
    made.id = 13
    return made


@pytest.mark.parametrize("codec", [JsonCodec[object], MsgpackCodec[object]])
def test_a_value_or_a_type_that_cannot_be_written_is_refused(codec: Any) -> None:  # noqa: ANN401  # any class
    with pytest.raises(UsageError, match=r"^(json|msgpack|object|complex) ?.*: "):
        codec(object).encode(object())
    with pytest.raises(UsageError, match="can be read as"):
        codec(set[dict[int, Exception]] | list[bytes])


class Quote(msgspec.Struct):
    bid: float
    ask: float | None = None
    depth: dict[str, list[float]] = msgspec.field(default_factory=dict[str, list[float]])
    size: Decimal = Decimal(1)
    steps: dict[float, int] = msgspec.field(default_factory=dict[float, int])


@pytest.mark.parametrize(
    ("quote", "place"),
    [
        (Quote(math.nan), "$.bid"),
        (Quote(1.0, -math.inf), "$.ask"),
        (Quote(0.0, depth={"a": [], "b": [1.0, math.inf]}), "$.depth.b[1]"),
        (Quote(0.0, size=Decimal("NaN")), "$.size"),
        (Quote(0.0, size=Decimal("-Infinity")), "$.size"),
        (Quote(0.0, steps={math.nan: 1}), "$.steps.nan"),
    ],
)
def test_a_number_that_json_lacks_is_refused_at_its_place(quote: Quote, place: str) -> None:
    with pytest.raises(UsageError) as refused:
        JsonCodec(Quote).encode(quote)
    assert str(refused.value) == (
        f"Quote cannot be written as json: {place} is not finite, and JSON has no such number"
    )


def test_null_and_finite_numbers_are_written() -> None:
    quote = Quote(0.0, None, {"null": [1.5]})
    codec = JsonCodec(Quote)
    assert codec.encode(quote) == (
        b'{"bid":0.0,"ask":null,"depth":{"null":[1.5]},"size":"1","steps":{}}'
    )
    assert codec.decode(codec.encode(quote)) == quote


def test_a_decimal_keeps_its_digits() -> None:
    codec = JsonCodec(dict[str, Decimal])
    value = {"px": Decimal("1.100"), "NaN": Decimal("-0E-7"), "inf": Decimal("1E+400")}
    assert codec.encode(value) == b'{"px":"1.100","NaN":"-0E-7","inf":"1E+400"}'
    assert repr(codec.decode(codec.encode(value))) == repr(value)
    assert codec.decode(b'{"px":12345678901234567890.123456789}') == {
        "px": Decimal("12345678901234567890.123456789")
    }


def test_a_topic_needs_one_codec() -> None:
    wrong: Any = Topic
    for given in ({}, {"type_": Order, "codec": NvfixCodec()}):
        with pytest.raises(UsageError, match="the topic 't' needs either a type or a codec="):
            wrong("t", **given)
    with pytest.raises(UsageError, match="format is 'json' or 'msgpack', not 'xml'"):
        wrong("t", Order, format="xml")


class Wrapped(msgspec.Struct):
    text: str
    part: msgspec.Raw
    px: float = 0.0


@pytest.mark.row("CC36")
def test_json_that_is_written_already_may_stand_beside_a_word_like_nan() -> None:
    codec, part = JsonCodec(Wrapped), msgspec.Raw(b'{"a":null}')
    assert codec.encode(Wrapped("financial", part)) == (
        b'{"text":"financial","part":{"a":null},"px":0.0}'
    )
    with pytest.raises(UsageError, match=r"\$.px is not finite"):
        codec.encode(Wrapped("financial", part, math.nan))


# -- FIX and NVFIX -----------------------------------------------------------------------------


@pytest.mark.row("CC34")
def test_nvfix_is_pairs_in_their_order() -> None:
    pairs = [("id", "1"), ("note", "a=b"), ("id", "2"), ("empty", "")]
    assert NvfixCodec().encode(pairs) == b"id=1\x01note=a=b\x01id=2\x01empty=\x01"
    assert NvfixCodec().decode(b"id=1\x01note=a=b\x01id=2\x01empty=") == pairs
    assert NvfixCodec("|").decode(b"id=1|") == [("id", "1")]
    assert NvfixCodec().decode(b"") == []


@pytest.mark.row("CC34")
def test_fix_has_numbers_for_names() -> None:
    assert FixCodec("|").encode([(8, "FIX.4.4"), (55, "IBM")]) == b"8=FIX.4.4|55=IBM|"
    assert FixCodec("|").decode(b"8=FIX.4.4|55=IBM|") == [(8, "FIX.4.4"), (55, "IBM")]


@pytest.mark.row("CC34")
def test_a_data_field_of_fix_is_as_long_as_the_field_before_it_says() -> None:
    fields: list[tuple[int, str | bytes]]
    fields = [(95, "10"), (96, "x|54=2|y=z"), (354, "4"), (355, b"a|\xff|"), (54, "1")]
    body = b"95=10|96=x|54=2|y=z|354=4|355=a|\xff||54=1|"
    assert FixCodec("|").decode(body) == fields
    assert FixCodec("|").decode(body[:-1]) == fields
    assert FixCodec("|").encode(fields) == body
    assert FixCodec("|").decode(b"95=0|96=|") == [(95, "0"), (96, "")]
    assert FixCodec("|").decode(b"95=9|54=1|96=a|") == [(95, "9"), (54, "1"), (96, "a")]
    own = FixCodec("|", data_fields=FIX_DATA_FIELDS | {9501: 9502})
    assert own.decode(b"9501=3|9502=a|b|") == [(9501, "3"), (9502, "a|b")]


@pytest.mark.row("CC34")
def test_a_data_field_with_another_length_than_that_before_it_is_not_written() -> None:
    with pytest.raises(UsageError, match="field 96 has 3 bytes, and the field before it says 2"):
        FixCodec("|").encode([(95, "2"), (96, "a|b")])
    with pytest.raises(UsageError, match="field 96 has a field separator in it"):
        FixCodec("|").encode([(96, "a|b")])


@pytest.mark.row("CC34")
def test_a_length_with_leading_zeros_is_read_and_written_again() -> None:
    wire = b"95=003|96=a|b|"
    assert FixCodec("|").encode(FixCodec("|").decode(wire)) == wire
    with pytest.raises(
        UsageError, match="field 96 has 2 bytes, and the field before it says no le"
    ):
        FixCodec("|").encode([(95, "x"), (96, "ab")])


@pytest.mark.row("CC34")
def test_the_pairs_of_an_iterator_are_all_written() -> None:
    made: Any = zip([35, 55, 95, 96], ["D", "IBM", "3", "a|b"], strict=True)
    assert FixCodec("|").encode(made) == b"35=D|55=IBM|95=3|96=a|b|"


@pytest.mark.row("CC34")
def test_a_value_that_is_not_utf_8_is_bytes() -> None:
    latin = "gr\xfcn".encode("latin-1")
    assert NvfixCodec().decode(b"a=" + latin) == [("a", latin)]
    assert NvfixCodec().encode([("a", latin), ("b", b"x")]) == b"a=" + latin + b"\x01b=x\x01"
    assert FixCodec().decode(FixCodec().encode([(58, latin)])) == [(58, latin)]


_TOO_LONG = "a field is not as long as the one before it says"


@pytest.mark.row("CC34")
@pytest.mark.parametrize(
    ("codec", "data", "wanted"),
    [
        (FixCodec("|"), b"8=a|x=1|", "a tag is a number from 1 to 9 digits at byte 4"),
        (FixCodec("|"), b"08=a", "a tag is a number from 1 to 9 digits at byte 0"),
        (NvfixCodec("|"), b"a=1|secret|", "a field is name=value, and has no '=' here at byte 4"),
        (NvfixCodec("|"), b"a=1||b=1", "a field is name=value, and has no '=' here at byte 4"),
        (NvfixCodec("|"), b"|", "a field is name=value, and has no '=' here at byte 0"),
        (NvfixCodec("|"), b"=1", "a field has no name at byte 0"),
        (NvfixCodec("|"), b"a=1|\xff=2", "a field is not UTF-8 at byte 4"),
        (FixCodec("|"), b"95=10|96=a|b|54=1|", f"{_TOO_LONG} at byte 6"),
        (FixCodec("|"), b"95=2|96=a|b|", f"{_TOO_LONG} at byte 5"),
        (FixCodec("|"), b"95=x|96=ab|", f"{_TOO_LONG} at byte 5"),
        (FixCodec("|"), b"95=-1|96=ab|", f"{_TOO_LONG} at byte 6"),
        (FixCodec("|"), b"95=" + b"9" * 5000 + b"|96=ab|", f"{_TOO_LONG} at byte 5004"),
    ],
)
def test_fields_that_cannot_be_read_are_named_by_their_place(
    codec: Codec[object], data: bytes, wanted: str
) -> None:
    with pytest.raises(DecodeError) as no:
        codec.decode(data)
    assert str(no.value) == f"the body cannot be read as {codec.name}: {wanted}"


@pytest.mark.row("CC34")
@pytest.mark.parametrize("name", ["", "a=b", "a|b", 5])
def test_a_name_that_would_be_read_otherwise_is_refused(name: Any) -> None:  # noqa: ANN401  # also wrong types
    with pytest.raises(UsageError, match="cannot be the name of a nvfix field"):
        NvfixCodec("|").encode([(name, "1")])
    with pytest.raises(UsageError, match=r"-1 cannot be the name of a fix field"):
        FixCodec("|").encode([(-1, "1")])


@pytest.mark.row("CC34")
def test_a_value_that_would_end_its_field_is_refused_and_not_shown() -> None:
    with pytest.raises(UsageError, match="field a has a field separator in it") as no:
        NvfixCodec("|").encode([("a", "secret|b=2")])
    assert "secret" not in str(no.value)
    with pytest.raises(UsageError, match="field a is no text"):
        NvfixCodec("|").encode([("a", "\ud800")])
    with pytest.raises(UsageError, match=r"'.ud800' cannot be the name of a nvfix field"):
        NvfixCodec("|").encode([("\ud800", "a")])
    for separator in ("", "=", "ab", "\u00e9"):
        with pytest.raises(UsageError, match="a field separator is one ASCII character"):
            NvfixCodec(separator)


# -- composite messages and protobuf -----------------------------------------------------------


@pytest.mark.row("CC33")
def test_parts_stand_behind_their_lengths() -> None:
    wire = bytes.fromhex("00000008 7b226964223a317d 00000000 00000002 dead")
    parts = [b'{"id":1}', b"", b"\xde\xad"]
    composite = Topic("both", codec=CompositeCodec())
    assert composite.encode(parts) == wire
    assert composite.decode(Message(data=wire)) == parts
    assert JsonCodec(Order).decode(parts[0]) == Order(1)


@pytest.mark.row("CC33")
@pytest.mark.parametrize("cut", [1, 3, 4, 11, 13, 17])
def test_a_composite_message_that_was_cut_is_refused(cut: int) -> None:
    wire = CompositeCodec().encode([b'{"id":1}', b"\xde\xad"])
    with pytest.raises(DecodeError, match=r"part [01] needs \d+ bytes with its length, \d+ are"):
        CompositeCodec().decode(wire[:cut])


def test_parts_that_are_no_bytes_are_refused() -> None:
    wrong: Any = CompositeCodec()
    for value in (b"abc", "abc", ["abc"], [5]):
        with pytest.raises(UsageError, match="composite message is"):
            wrong.encode(value)


@pytest.mark.row("CC36")
def test_a_generated_class_of_protobuf_is_a_type() -> None:
    text = pytest.importorskip("google.protobuf.wrappers_pb2").StringValue
    codec: Codec[Any] = ProtobufCodec(text)
    names = Topic("names", codec=codec)
    assert names.decode(Message(data=names.encode(text(value="IBM")))).value == "IBM"
    with pytest.raises(DecodeError, match="'names' cannot be read as protobuf: the body is no Str"):
        names.decode(Message(data=b"\x0a\xff"))


# -- topics ------------------------------------------------------------------------------------


class Careless(Codec[str]):
    """A codec of the application that raises what it likes."""

    name = "careless"

    @override
    def encode(self, value: str) -> bytes:
        return value.encode()

    @override
    def decode(self, data: bytes) -> str:
        return data.decode("ascii")


def test_what_a_codec_of_the_application_raises_is_an_error_of_decoding() -> None:
    with pytest.raises(DecodeError, match=r"on 't' .* careless: the codec raised UnicodeDecodeErr"):
        Topic("t", codec=Careless()).decode(Message(data=b"\xff"))


@pytest.mark.row("CC36")
async def test_a_handler_of_values_gets_each_value_with_its_message() -> None:
    seen: list[tuple[int, str]] = []

    async def handle(order: Order, message: Message) -> None:
        seen.append((order.id, message.topic))

    result = ORDERS.handler(handle)(Message(topic="orders", data=b'{"id":1}'))
    assert result is not None
    await result
    assert seen == [(1, "orders")]


@pytest.mark.row("CC36")
def test_a_message_that_does_not_decode_goes_to_the_error_handler_or_is_raised() -> None:
    failed: list[tuple[Message, str]] = []
    bad = Message(topic="orders", data=b"{}")

    def handle(order: Order, _: Message) -> None:
        raise AssertionError(order)

    def on_decode_error(message: Message, error: DecodeError) -> None:
        failed.append((message, error.topic))

    assert ORDERS.handler(handle, on_decode_error=on_decode_error)(bad) is None
    assert failed == [(bad, "orders")]
    with pytest.raises(DecodeError):
        ORDERS.handler(handle)(bad)


@pytest.mark.row("CC34")
@pytest.mark.parametrize("value", [{"px": "1"}, "ab", 5, [("a",)], [5], ["px"[:1]], None])
def test_a_body_of_fields_that_is_no_list_of_pairs_is_refused(value: Any) -> None:  # noqa: ANN401  # any kind
    for codec in (NvfixCodec(), FixCodec()):
        with pytest.raises(UsageError, match="is a list of pairs of name and value"):
            codec.encode(value)


@pytest.mark.row("CC34")
@pytest.mark.parametrize("value", [10.5, None, bytearray(b"x")])
def test_a_value_that_is_no_text_is_refused_with_its_type(value: Any) -> None:  # noqa: ANN401  # any kind
    with pytest.raises(UsageError, match=f"field px is text or bytes, not {type(value).__name__}"):
        NvfixCodec().encode([("px", value)])
    with pytest.raises(UsageError, match=f"field 44 is text or bytes, not {type(value).__name__}"):
        FixCodec().encode([(44, value)])


@pytest.mark.row("CC33")
def test_the_length_of_a_part_is_in_bytes_whatever_its_items_are() -> None:
    numbers = array("I", [1, 2, 3])
    codec = CompositeCodec()
    parts: Any = [memoryview(numbers), bytearray(b"x")]
    assert codec.decode(codec.encode(parts)) == [numbers.tobytes(), b"x"]

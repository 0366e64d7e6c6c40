"""Laws of codecs: what is written is read again, and garbage raises only `DecodeError`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeVar
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from haclient.protocol.codec import as_bytes
from haclient.protocol.messages import Message

T = TypeVar("T")


class Order(msgspec.Struct):
    id: int
    px: float
    note: str | None
    at: datetime
    legs: list[UUID]
    raw: bytes


@dataclass
class Book:
    name: str
    levels: dict[str, tuple[int, float]] = field(default_factory=dict[str, tuple[int, float]])


INTS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
TIMES = st.datetimes(timezones=st.just(UTC))
ORDERS = st.builds(Order, INTS, FLOATS, st.none() | TEXT, TIMES, st.lists(st.uuids()), st.binary())
BOOKS = st.builds(Book, TEXT, st.dictionaries(TEXT, st.tuples(INTS, FLOATS)))
VALUES = TEXT.filter(lambda text: "\x01" not in text)
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="=\x01"), min_size=1)
TAGS = st.integers(1, 999_999_999)


@pytest.mark.row("CC36")
@given(ORDERS, BOOKS)
def test_structs_and_dataclasses_are_read_as_they_were_written(order: Order, book: Book) -> None:
    for codec in (JsonCodec(Order), MsgpackCodec(Order)):
        assert codec.decode(codec.encode(order)) == order
    for books in (JsonCodec(Book), MsgpackCodec(Book)):
        assert books.decode(books.encode(book)) == book


@pytest.mark.row("CC34")
@given(st.lists(st.tuples(NAMES, VALUES)), st.lists(st.tuples(TAGS, VALUES)))
def test_fields_are_read_as_they_were_written(
    named: list[tuple[str, str]], numbered: list[tuple[int, str]]
) -> None:
    assert NvfixCodec().decode(NvfixCodec().encode(named)) == named
    assert FixCodec().decode(FixCodec().encode(numbered)) == numbered


@pytest.mark.row("CC34")
@given(st.lists(st.tuples(st.sampled_from(sorted(FIX_DATA_FIELDS)), st.binary(max_size=20))))
def test_data_fields_with_any_bytes_are_read_as_they_were_written(
    given: list[tuple[int, bytes]],
) -> None:
    fields = [
        field
        for tag, data in given
        for field in ((tag, str(len(data))), (FIX_DATA_FIELDS[tag], data), (54, "1"))
    ]
    found = FixCodec().decode(FixCodec().encode(fields))
    assert [(tag, as_bytes(value)) for tag, value in found] == [
        (tag, as_bytes(value)) for tag, value in fields
    ]


ANY_NUMBER = st.floats() | st.decimals() | st.decimals(allow_nan=False, allow_infinity=False)
NUMBERS = st.lists(ANY_NUMBER | st.dictionaries(st.floats(), ANY_NUMBER, max_size=2))


@pytest.mark.row("CC36")
@given(NUMBERS)
def test_numbers_are_read_as_they_were_written_or_refused_if_json_has_none(
    value: list[float | Decimal | dict[float, float | Decimal]],
) -> None:
    numbers = [
        number
        for each in value
        for number in ((*each, *each.values()) if isinstance(each, dict) else (each,))
    ]
    if not all(map(is_finite, numbers)):
        with pytest.raises(UsageError, match="is not finite, and JSON has no such number"):
            JsonCodec(object).encode(value)
        return
    decimals = [each for each in value if isinstance(each, Decimal)]
    assert repr(round_trip(list[Decimal], decimals)) == repr(decimals)
    floats = [each for each in value if isinstance(each, float)]
    assert round_trip(list[float], floats) == floats
    mappings = [
        {key: item for key, item in each.items() if isinstance(item, float)}
        for each in value
        if isinstance(each, dict)
    ]
    assert round_trip(list[dict[float, float]], mappings) == mappings


def is_finite(number: float | Decimal) -> bool:
    return number.is_finite() if isinstance(number, Decimal) else math.isfinite(number)


def round_trip(kind: type[T], value: T) -> T:
    codec = JsonCodec(kind)
    return codec.decode(codec.encode(value))


@pytest.mark.row("CC33")
@given(st.lists(st.binary(max_size=300)))
def test_parts_are_read_as_they_were_written(parts: list[bytes]) -> None:
    assert CompositeCodec().decode(CompositeCodec().encode(parts)) == parts


def codecs() -> list[Codec[Any]]:
    text = pytest.importorskip("google.protobuf.wrappers_pb2").StringValue
    json: list[Codec[Any]] = [JsonCodec(Order), JsonCodec(Book), JsonCodec(object)]
    packed: list[Codec[Any]] = [MsgpackCodec(Order), MsgpackCodec(Book), MsgpackCodec(object)]
    return [*json, *packed, NvfixCodec(), FixCodec(), CompositeCodec(), ProtobufCodec(text)]


@pytest.mark.row("CC36", "CC34", "CC33")
@given(st.data(), st.sampled_from(range(10)))
def test_garbage_is_read_or_raises_the_one_error_without_showing_it(
    data: st.DataObject, which: int
) -> None:
    codec = codecs()[which]
    body = data.draw(st.binary() | near_to_a_body(codec))
    try:
        value = Topic("t", codec=codec).decode(Message(topic="t", data=body))
    except DecodeError as error:
        assert (error.topic, error.codec) == ("t", codec.name)
        assert len(str(error)) < 600
        assert len(body) < 20 or body.decode("utf-8", "replace") not in str(error)
    else:
        if not isinstance(codec, JsonCodec | MsgpackCodec):  # those skip unknown fields
            assert codec.decode(codec.encode(value)) == value


def near_to_a_body(codec: Codec[Any]) -> st.SearchStrategy[bytes]:
    """Bodies with some bytes of them changed, or cut."""
    if isinstance(codec, JsonCodec | MsgpackCodec):
        bodies = (ORDERS | BOOKS).map(codec.encode)
    elif isinstance(codec, CompositeCodec):
        bodies = st.lists(st.binary(max_size=20)).map(codec.encode)
    else:
        bodies = st.lists(st.tuples(TAGS, VALUES)).map(FixCodec().encode)
    changed = st.tuples(bodies, st.integers(0, 200), st.binary(max_size=3))
    return changed.map(lambda each: each[0][: each[1]] + each[2] + each[0][each[1] + 1 :])

"""What is said of a body that cannot be read, and what is not."""

from __future__ import annotations

import msgspec
import pytest

from haclient.protocol.decode_errors import decode_error


class Order(msgspec.Struct, forbid_unknown_fields=True):
    ids: list[int]


@pytest.mark.row("CC36")
@pytest.mark.parametrize(
    ("body", "position", "reason"),
    [
        (b'{"ids": [1, "x"]}', "$.ids[1]", "Expected `int`, got `str`"),
        (b'{"ids": [1', "byte 10", "Input data was truncated"),
        (b'{"ids"; []}', "byte 6", "JSON is malformed: expected ':'"),
        (b"{}", "", "Object missing required field `ids`"),
    ],
)
def test_place_and_reason_are_apart(body: bytes, position: str, reason: str) -> None:
    with pytest.raises(msgspec.MsgspecError) as raised:
        msgspec.json.decode(body, type=Order)
    error = decode_error(raised.value, body, codec="json", topic="orders")
    assert (error.position, error.reason, error.topic) == (position, reason, "orders")


def test_a_long_name_in_a_body_is_cut() -> None:
    body = b'{"' + b"n" * 10_000 + b'": 1}'
    with pytest.raises(msgspec.MsgspecError) as raised:
        msgspec.json.decode(body, type=Order)
    assert len(str(decode_error(raised.value, body, codec="json"))) < 300


def test_what_a_type_says_is_not_repeated() -> None:
    error = decode_error(LookupError("secret"), b"", codec="json")
    assert str(error) == "the body cannot be read as json: its type raised LookupError"


class Checked(msgspec.Struct):
    secret: str

    def __post_init__(self) -> None:
        raise ValueError(f"bad {self.secret}")


@pytest.mark.row("CC36")
@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        (Order, b'{"ids": [], "S3cret": 1}', "Object contains unknown field"),
        (Checked, b'{"secret": "S3cret"}', "its type raised ValueError"),
    ],
)
def test_neither_a_name_in_a_body_nor_the_text_of_its_type_is_shown(
    kind: type, body: bytes, reason: str
) -> None:
    with pytest.raises(msgspec.MsgspecError, match="S3cret") as raised:
        msgspec.json.decode(body, type=kind)
    error = decode_error(raised.value, body, codec="json")
    assert error.reason == reason
    assert "S3cret" not in str(error)

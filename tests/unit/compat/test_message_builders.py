"""Bodies of FIX, NVFIX and composite messages with the official names."""

from __future__ import annotations

import pytest

import haclient
from haclient import compat
from haclient.codecs import CompositeCodec, FixCodec, NvfixCodec
from haclient.errors import DecodeError, UsageError

pytestmark = pytest.mark.row("B18")


def test_fix_is_built_and_read_as_the_codec_does() -> None:
    builder = compat.FIXBuilder()
    builder.append(55, "IBM")
    builder.append(44, 10.5)
    builder.append(38, b"7")
    assert builder.get_string() == str(builder) == "55=IBM\x0144=10.5\x0138=7\x01"
    assert FixCodec().decode(builder.get_bytes()) == [(55, "IBM"), (44, "10.5"), (38, "7")]
    shredder = compat.FixShredder()
    assert shredder.to_map(builder.get_string()) == {55: "IBM", 44: "10.5", 38: "7"}
    message = compat.Message(haclient.Message(data=builder.get_bytes()))
    assert shredder.to_map(message) == shredder.to_map(builder.get_bytes())
    builder.clear()
    assert builder.get_string() == ""


def test_nvfix_is_built_and_read_with_a_separator_by_number_or_character() -> None:
    for separator in (124, "|"):
        builder = compat.NVFIXBuilder(separator)
        builder.append("id", 1)
        builder.append("item", "tea")
        assert builder.get_string() == "id=1|item=tea|"
        assert compat.NvfixShredder(separator).to_map("id=1|item=tea|") == {
            "id": "1",
            "item": "tea",
        }
    assert NvfixCodec("|").decode(b"id=1|") == [("id", "1")]


def test_what_cannot_be_written_is_refused_when_it_is_appended() -> None:
    fix, nvfix = compat.FIXBuilder(), compat.NVFIXBuilder()
    for tag, value in ((0, "x"), (55, "a\x01b"), (55, "\ud800"), (55, True), (55, None)):
        with pytest.raises(UsageError):
            fix.append(tag, value)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # on purpose
    with pytest.raises(UsageError):
        nvfix.append("a=b", "x")
    assert (fix.get_string(), nvfix.get_string()) == ("", "")
    for separator in ("", "=", 200, -1):
        with pytest.raises(UsageError, match="separator"):
            compat.FixShredder(separator)
    with pytest.raises(DecodeError):
        compat.FixShredder().to_map("no field")


def test_fields_follow_a_data_field_that_has_separators_in_it() -> None:
    builder = compat.FIXBuilder()
    for tag, value in ((95, 3), (96, b"a\x01b"), (55, "IBM"), (95, 2), (96, "\x01\x01"), (10, 7)):
        builder.append(tag, value)
    assert FixCodec().decode(builder.get_bytes())[1:4] == [(96, "a\x01b"), (55, "IBM"), (95, "2")]
    assert compat.FixShredder().to_map(builder.get_bytes())[10] == "7"


def test_a_composite_message_is_built_and_read_as_the_codec_does() -> None:
    builder, parser = compat.CompositeMessageBuilder(), compat.CompositeMessageParser()
    for part in ('{"id": 1}', b"\xff\x00", ""):
        builder.append(part)
    assert CompositeCodec().decode(builder.get_data()) == [b'{"id": 1}', b"\xff\x00", b""]
    assert parser.parse(compat.Message(haclient.Message(data=builder.get_data()))) == 3
    assert parser.size() == 3
    assert [parser.get_part(index) for index in range(3)] == [b'{"id": 1}', b"\xff\x00", b""]
    for index in (-1, 3):
        with pytest.raises(UsageError, match="3 parts"):
            parser.get_part(index)
    with pytest.raises(DecodeError):
        parser.parse(b"\x00\x00\x00\x09x")
    assert parser.size() == 0
    with pytest.raises(UsageError, match="not int"):
        builder.append(3)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # on purpose
    builder.clear()
    assert builder.get_data() == b""


def test_a_body_that_was_built_is_published_and_read_from_its_message(
    plain: compat.Client,
) -> None:
    builder = compat.NVFIXBuilder()
    builder.append("id", 7)
    with plain.subscribe("orders") as stream:
        plain.publish("orders", builder.get_string())
        message = next(stream)
    assert message is not None
    assert compat.NvfixShredder().to_map(message) == {"id": "7"}

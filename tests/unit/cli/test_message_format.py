"""`--format`: how a message is printed."""

from __future__ import annotations

import pytest

from haclient.cli.message_format import TOKENS, message_form, parse_format
from haclient.errors import UsageError
from haclient.protocol.messages import Message

MESSAGE = Message(
    kind="p", topic="orders", bookmark="7|3|", sow_key="k", timestamp="20261120T093000Z",
    user_id="ann", correlation_id="c1", sequence=3, data=b"\xffbody {topic}",
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{data}", b"\xffbody {topic}\n"),
        (r"{topic}\t{bookmark}", b"orders\t7|3|\n"),
        ("{key},{user},{timestamp}", b"k,ann,20261120T093000Z\n"),
        ("{correlation_id}/{sequence}/{length}/{command}", b"c1/3/13/publish\n"),
        ("{{{topic}}}", b"{orders}\n"),
        ("plain", b"plain\n"),
        ("", b"\n"),
        ("é", "é\n".encode()),
    ],
)
def test_tokens_are_replaced_and_bodies_are_bytes(text: str, line: bytes) -> None:
    assert parse_format(text)(MESSAGE) == line


def test_what_a_message_does_not_have_is_empty() -> None:
    text = "|".join(f"{{{name}}}" for name in TOKENS if name != "length")
    assert parse_format(text)(Message()) == b"|" * (len(TOKENS) - 2) + b"\n"


def test_a_message_that_is_no_dead_letter_has_no_reason() -> None:
    assert parse_format("<{dead_letter}>")(MESSAGE) == b"<>\n"


def test_json_is_indented_for_people_and_other_bodies_are_left_alone() -> None:
    form = message_form(None, as_json=False, pretty=True)
    assert form(Message(data=b'{"id":1,"legs":[1,2]}')) == (
        b'{\n  "id": 1,\n  "legs": [\n    1,\n    2\n  ]\n}\n'
    )
    assert form(MESSAGE) == b"\xffbody {topic}\n"
    assert form(Message()) == b"\n"
    deep = b"[" * 10_000 + b"]" * 10_000
    assert form(Message(data=deep)) == deep + b"\n"
    whole = message_form(None, as_json=True, pretty=True)(MESSAGE)
    assert whole.startswith(b'{\n  "topic": "orders",\n')
    with pytest.raises(UsageError, match="--format and --pretty"):
        message_form("{data}", as_json=False, pretty=True)


@pytest.mark.parametrize("text", ["{nonsense}", "{", "}", "{topic", "{}"])
def test_an_unknown_token_names_the_known_ones(text: str) -> None:
    with pytest.raises(UsageError, match=r"is no token: wanted \{bookmark\}"):
        parse_format(text)


def test_format_and_json_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="--format and --json"):
        message_form("{data}", as_json=True)
    assert message_form(None, as_json=False)(MESSAGE) == b"\xffbody {topic}\n"
    assert message_form(None, as_json=True)(MESSAGE).startswith(b'{"topic":"orders"')


def test_a_header_that_is_not_utf_8_is_printed_as_its_bytes() -> None:
    message = Message(sow_key="B\udcff", data=b"{}")
    assert parse_format("{key} {data}")(message) == b"B\xff {}\n"

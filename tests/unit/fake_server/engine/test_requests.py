"""What a subscribe or query asks for."""

from __future__ import annotations

import pytest

from haclient.protocol.messages import Message
from haclient_fake_server.engine.acks import Refused
from haclient_fake_server.engine.connections import Style
from haclient_fake_server.engine.filters import Document
from haclient_fake_server.engine.requests import Request, read_options, read_request


def read(message: Message) -> Request:
    message.kind = "subscribe"
    return read_request(message, read_options(message))


def test_a_request_knows_topics_filter_and_style() -> None:
    request = read(
        Message(
            topic="^ord", filter="/id = 1", options="timestamp,no_sowkey", bookmark="0", top_n=3
        )
    )
    assert request.matcher.matches("orders")
    assert request.filter is not None
    assert request.filter(Document(b'{"id":1}'))
    assert request.style == Style.BOOKMARK | Style.TIMESTAMP | Style.NO_SOW_KEY
    assert request.top_n == 3


def test_the_option_wins_over_the_header() -> None:
    assert read(Message(topic="a", top_n=3, options="top_n=5")).top_n == 5


@pytest.mark.row("OP17")
@pytest.mark.parametrize("option", ["projection=[/a]", "grouping=[/a]", "hello"])
def test_what_is_not_carried_out_is_refused_by_name(option: str) -> None:
    name = option.partition("=")[0]
    with pytest.raises(Refused, match=name) as caught:
        read_options(Message(kind="subscribe", options=option))
    assert caught.value.reason == "invalid options"


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("subscribe", "live"),
        ("subscribe", "fully_durable"),
        ("subscribe", "none,,send_empties,"),
        ("sow", "send_keys"),
        ("sow_and_subscribe", "send_keys"),
        ("logon", "pretty"),
    ],
)
def test_what_makes_no_difference_here_is_accepted(command: str, options: str) -> None:
    read_options(Message(kind=command, options=options))


@pytest.mark.row("OP17")
@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("subscribe", "send_keys"),
        ("subscribe", "no_empties"),
        ("subscribe", "pretty"),
        ("subscribe", "top_n=0,skip_n=0"),
        ("subscribe", "ack_conflation=0s"),
        ("sow", "oof"),
        ("sow", "bookmark"),
        ("sow", "pause"),
        ("sow_and_subscribe", "live"),
        ("sow_and_subscribe", "fully_durable"),
        ("sow_delete", "timestamp"),
        ("logon", "oof"),
    ],
)
def test_what_would_make_no_difference_with_a_command_is_refused(command: str, option: str) -> None:
    with pytest.raises(Refused, match=f"is not supported with {command} ") as caught:
        read_options(Message(kind=command, options=option))
    assert caught.value.reason == "invalid options"


def test_what_is_missing_or_malformed_is_told_in_the_documented_words() -> None:
    with pytest.raises(Refused, match=r"^invalid topic: no topic$"):
        read(Message())
    with pytest.raises(Refused, match=r"^bad regex topic: "):
        read(Message(topic="("))
    with pytest.raises(Refused, match=r"^bad filter: "):
        read(Message(topic="a", filter="("))

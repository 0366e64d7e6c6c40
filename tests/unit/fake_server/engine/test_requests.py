"""What a subscribe or query asks for."""

from __future__ import annotations

import pytest

from haclient.errors import CommandError, InvalidOptions, InvalidTopic
from haclient.protocol.messages import Message
from haclient_fake_server.engine.filters import Document
from haclient_fake_server.engine.requests import Request, read_options, read_request
from haclient_fake_server.engine.routes import Style


def read(message: Message) -> Request:
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
@pytest.mark.parametrize(
    "option", ["select=[-/]", "conflation=1s", "rate=5X", "max_backlog=3", "grouping=[/a]", "hello"]
)
def test_what_is_not_carried_out_is_refused_by_name(option: str) -> None:
    name = option.partition("=")[0]
    with pytest.raises(InvalidOptions, match=name):
        read_options(Message(options=option))


@pytest.mark.parametrize("option", ["live", "fully_durable", "send_keys", "no_empties", "pretty"])
def test_what_makes_no_difference_here_is_accepted(option: str) -> None:
    read_options(Message(options=option))


def test_what_is_missing_or_malformed_is_told_in_the_documented_words() -> None:
    with pytest.raises(InvalidTopic, match=r"^no topic$"):
        read(Message())
    with pytest.raises(CommandError, match=r"^bad regex topic: "):
        read(Message(topic="("))
    with pytest.raises(CommandError, match=r"^bad filter: "):
        read(Message(topic="a", filter="("))

"""The context of a dead letter."""

from __future__ import annotations

import base64
import json

import pytest
from typing_extensions import override

from haclient.errors import UsageError
from haclient.protocol.codec import check_correlation_id
from haclient.protocol.messages import Message
from haclient.session.dead_letter import DeadLetter
from haclient_fake_server.engine.publishing import MAX_HEADER_BYTES


@pytest.mark.row("QC11")
def test_the_context_survives_the_wire() -> None:
    message = Message(topic="work", bookmark="1|2|", correlation_id="abc=", data=b"{}")
    text = DeadLetter("dead").correlation_id(message, ValueError("no 'é' " + "x" * 999), 3)
    check_correlation_id(text)
    context = DeadLetter.context(Message(topic="dead", correlation_id=text))
    assert context["error_text"] == ("no 'é' " + "x" * 999)[:200]
    del context["error_text"]
    assert context == {
        "queue": "work",
        "reason": "handler_error",
        "bookmark": "1|2|",
        "failures": 3,
        "error": "ValueError",
        "correlation_id": "abc=",
    }


NESTED = base64.b64encode(b"[" * 100_000).decode()


class Unprintable(Exception):
    @override
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.row("QC11")
@pytest.mark.parametrize(
    ("error", "text"),
    [(OSError("no file \udcff.csv"), "no file \\udcff.csv"), (Unprintable(), "")],
)
def test_any_error_has_a_context(error: Exception, text: str) -> None:
    written = DeadLetter("dead").correlation_id(Message(topic="work"), error, 1)
    assert DeadLetter.context(Message(correlation_id=written))["error_text"] == text


@pytest.mark.row("QC11")
def test_a_message_has_a_context_whatever_a_publisher_has_put_into_its_header() -> None:
    message = Message(topic="work\udcff", bookmark="1|2|", correlation_id="\udcff\udcfe")
    text = DeadLetter("dead").correlation_id(message, ValueError(), 1)
    check_correlation_id(text)
    context = DeadLetter.context(Message(topic="dead", correlation_id=text))
    assert (context["queue"], context["correlation_id"]) == ("work\udcff", "\udcff\udcfe")


@pytest.mark.row("QC11")
@pytest.mark.parametrize(("length", "is_kept"), [(12_000, True), (16_000, False)])
def test_a_correlation_id_for_which_a_server_has_no_room_is_left_out(
    length: int, *, is_kept: bool
) -> None:
    message = Message(topic="work", bookmark="1|2|", correlation_id="x" * length)
    text = DeadLetter("dead").correlation_id(message, ValueError(), 1)
    assert len(text) * 4 <= MAX_HEADER_BYTES
    context = DeadLetter.context(Message(topic="dead", correlation_id=text))
    assert context["queue"] == "work"
    assert ("correlation_id" in context) is is_kept


@pytest.mark.row("QC11")
def test_the_context_of_the_broker_is_read_too() -> None:
    written = {"queue": "work", "reason": "max_deliveries", "bookmark": "1|2|", "deliveries": 3}
    text = base64.b64encode(json.dumps(written).encode()).decode()
    assert DeadLetter.context(Message(correlation_id=text)) == written


@pytest.mark.parametrize("text", ["", "abc", "{", "W10=", "/w==", "?", NESTED])
def test_an_ordinary_message_is_no_dead_letter(text: str) -> None:
    with pytest.raises(UsageError, match="no dead letter"):
        DeadLetter.context(Message(topic="t", correlation_id=text))


@pytest.mark.parametrize("text", ["x" * 130_000, "\n" * 130_000, "\udcff" * 130_000])
def test_the_error_of_an_ordinary_message_is_one_short_line(text: str) -> None:
    with pytest.raises(UsageError, match="no dead letter") as raised:
        DeadLetter.context(Message(topic=text, correlation_id=text))
    assert repr(text)[1:20] in str(raised.value)
    assert len(str(raised.value)) < 1000
    assert "\n" not in str(raised.value)


def test_a_dead_letter_needs_a_topic() -> None:
    with pytest.raises(UsageError, match="the topic of a DeadLetter is a text"):
        DeadLetter("")

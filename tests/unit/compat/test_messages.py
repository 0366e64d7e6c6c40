"""Getters and setters of messages and commands."""

from __future__ import annotations

import dataclasses

import pytest

import haclient
from haclient import compat
from haclient.compat.messages import ack_words
from haclient.errors import DecodeError, UsageError
from haclient.protocol.messages import WIRE_NAMES

# The fields of the official client's messages and commands.
FIELDS = """
    ack_type batch_size bookmark client_name command command_id correlation_id data expiration
    filter lease_period matches options order_by query_id reason records_deleted records_inserted
    records_returned records_updated sequence sow_key sow_keys status sub_id sub_ids timeout
    timestamp top_n topic topic_matches user_id version"""
# What only the client has, and what only an answer of the server has.
NO_FIELDS_OF_MESSAGES = {"timeout"}
NO_FIELDS_OF_COMMANDS = {"lease_period", "matches", "reason", "status", "timestamp"} | {
    "topic_matches",
    *(f"records_{what}" for what in ("deleted", "inserted", "returned", "updated")),
}
VALUES = {"command": "sow", "timeout": 1500, "data": "{}"}
NUMBERS = {"batch_size", "expiration", "matches", "sequence", "top_n", "topic_matches"}
pytestmark = pytest.mark.row("B18")


def test_each_getter_gives_the_field_of_its_name() -> None:
    native = haclient.Message(
        kind="p",
        topic="orders",
        sids="s1,s2",
        data=b"{}",
        records_deleted=0,
        number=7,
        bookmark="1|2|",
    )
    message = compat.Message(native)
    assert (message.get_command(), message.get_topic(), message.get_data()) == (
        "publish",
        "orders",
        "{}",
    )
    assert (message.get_sub_id(), message.get_sub_ids()) == ("s1", "s1,s2")
    assert (message.get_records_deleted(), message.get_matches()) == (0, None)
    assert (message.get_bookmark(), message.get_bookmark_seq_no()) == ("1|2|", 7)
    for name in WIRE_NAMES:
        getter = getattr(message, f"get_{name}", None)
        if getter is not None and name not in {"sub_id", "data"}:
            assert getter() == getattr(native, name), name


def test_a_body_that_is_no_text_says_which_getter_gives_it() -> None:
    message = compat.Message(haclient.Message(topic="orders", data=b"\xff"))
    with pytest.raises(DecodeError, match=r"get_data_raw\(\) at byte 0"):
        message.get_data()
    assert message.get_data_raw() == b"\xff"
    assert str(message) == "\ufffd"


def test_an_empty_message_a_copy_and_equality() -> None:
    assert compat.Message().get_topic() == compat.Message().get_sub_id() == ""
    message = compat.Message(haclient.Message(topic="orders"))
    assert message.copy() == message != compat.Message()
    assert message != "orders"
    assert repr(message) == repr(message.native)
    message.discard()
    message.ack("cancel")


@pytest.mark.parametrize(("text", "words"), [(None, ()), ("", ()), (" cancel ", ("cancel",))])
def test_the_options_of_an_acknowledgement(text: str | None, words: tuple[str, ...]) -> None:
    assert ack_words(text) == frozenset(words)


def test_other_options_of_an_acknowledgement_are_refused() -> None:
    with pytest.raises(UsageError, match="cancel or expire"):
        compat.Message().ack("later")


def test_a_command_has_chained_setters_and_getters() -> None:
    command = (
        compat.Command("sow_and_subscribe").set_topic("orders").set_filter("/id > 1").set_top_n(3)
    )
    assert (command.get_command(), command.get_topic()) == ("sow_and_subscribe", "orders")
    assert (command.get_filter(), command.get_top_n()) == ("/id > 1", 3)
    assert command.set_ack_type("stats").add_ack_type("completed").ack_type == "stats,completed"
    assert command.get_timeout() == 0
    assert command.set_timeout(1500).get_timeout() == 1500
    assert command.timeout == 1.5
    assert command.set_timeout(0).get_timeout() == 0
    with pytest.raises(UsageError, match="milliseconds"):
        command.set_timeout(-1)


@pytest.mark.parametrize("field", FIELDS.split())
def test_each_field_has_a_getter_and_a_setter(field: str) -> None:
    is_number = field in NUMBERS or field.startswith("records_")
    value = VALUES.get(field, 7 if is_number else "x")
    for made, absent in (
        (compat.Message(), NO_FIELDS_OF_MESSAGES),
        (compat.Command("subscribe"), NO_FIELDS_OF_COMMANDS),
    ):
        setter, getter = (getattr(made, f"{verb}_{field}", None) for verb in ("set", "get"))
        if field in absent:
            assert setter is getter is None
            continue
        assert setter is not None
        assert getter is not None
        assert setter(value) is made  # it can be chained
        assert getter() == value


def test_each_field_of_a_command_has_a_setter() -> None:
    names = {field.name for field in dataclasses.fields(haclient.Command)}
    assert [name for name in names if not hasattr(compat.Command, f"set_{name}")] == []


def test_what_is_set_is_what_the_message_of_haclient_has() -> None:
    message = compat.Message(haclient.Message(kind="p", sids="s1,s2"))
    message.set_sub_id("s3").set_data("\xe9").set_command("publish")
    assert (message.get_sub_id(), message.native.sub_ids) == ("s3", ["s3"])
    assert (message.native.data, message.native.kind) == ("\xe9".encode(), "p")
    assert message.set_batch_size(None).get_batch_size() is None
    with pytest.raises(UsageError, match="topic cannot be 3"):
        message.set_topic(3)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(UsageError, match="matches cannot be 'x'"):
        message.set_matches("x")  # type: ignore[arg-type]  # on purpose
    for made in (message, compat.Command("sow")):
        with pytest.raises(UsageError, match="no command 'fly'"):
            made.set_command("fly")

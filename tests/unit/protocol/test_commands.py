from __future__ import annotations

import dataclasses

import pytest

from haclient import errors
from haclient.errors import AuthenticationError, CommandError, NameInUse, UsageError
from haclient.protocol.commands import (
    AckType,
    Command,
    CommandName,
    Status,
    command_error,
    format_acks,
    parse_acks,
)
from haclient.protocol.messages import WIRE_NAMES
from haclient.protocol.options import Options
from haclient_stores.bookmark import (
    EPOCH,
    MOST_RECENT,
    NOW,
    Bookmark,
    BookmarkList,
    BookmarkRange,
    Timestamp,
)


def test_both_spellings_of_publish_are_one_command_and_are_written_short() -> None:
    assert CommandName("p") is CommandName("publish") is CommandName.PUBLISH
    assert CommandName.PUBLISH.wire == "p"
    assert CommandName.SOW_AND_SUBSCRIBE.wire == "sow_and_subscribe"


def test_an_unknown_command_is_named() -> None:
    with pytest.raises(UsageError, match="'buy'"):
        Command("buy")
    with pytest.raises(ValueError, match="'buy'"):
        CommandName("buy")


@pytest.mark.row("CC18")
def test_fields_are_written_by_wire_name_with_the_command_first_and_nothing_empty() -> None:
    command = Command(
        "subscribe",
        topic="orders",
        filter="/px > 10",
        ack_type="processed",
        sub_id="1",
        options="oof,",
        top_n=0,
    )
    assert list(command.to_fields().items()) == [
        ("c", "subscribe"),
        ("t", "orders"),
        ("sub_id", "1"),
        ("filter", "/px > 10"),
        ("top_n", 0),
        ("opts", "oof,"),
        ("a", "processed"),
    ]
    assert Command("p").to_fields() == {"c": "p"}


def test_every_field_but_the_clients_own_has_a_wire_name() -> None:
    names = {field.name for field in dataclasses.fields(Command)}
    assert names - set(WIRE_NAMES) == {"command", "data", "timeout"}


def test_the_body_may_be_text() -> None:
    assert Command("publish", data="gr\u00fcn").body == b"gr\xc3\xbcn"
    assert Command("publish", data=b"\xff").body == b"\xff"


@pytest.mark.row("CC14")
def test_a_bookmark_is_all_it_takes_to_make_a_bookmark_subscription() -> None:
    positions = BookmarkList((Bookmark(1, 2), Bookmark(3, 4)))
    for start, wire in ((EPOCH, "0"), (NOW, "0|1|"), (positions, "1|2|,3|4|"), ("1|2|", "1|2|")):
        command = Command("subscribe", topic="t", bookmark=start)
        command.validate()
        assert command.to_fields() == {"c": "subscribe", "t": "t", "bm": wire}


def test_the_most_recent_bookmark_is_never_written() -> None:
    for start in (MOST_RECENT, "recent"):
        command = Command("subscribe", topic="t", bookmark=start)
        with pytest.raises(UsageError, match="never sent"):
            command.to_fields()
        with pytest.raises(UsageError, match="never sent"):
            command.validate()


@pytest.mark.row("CC4")
def test_a_logon_carries_options_and_a_correlation_id() -> None:
    logon = Command(
        "logon",
        client_name="me",
        message_type="json",
        timeout=10,
        options=Options(ack_conflation=0.1),
        correlation_id="Zm8=",
    )
    logon.validate()
    assert logon.to_fields() == {
        "c": "logon",
        "opts": "ack_conflation=100ms",
        "x": "Zm8=",
        "client_name": "me",
        "mt": "json",
    }


@pytest.mark.row("AT12")
def test_repr_shows_what_is_set_but_neither_password_nor_body() -> None:
    command = Command("publish", topic="t", data=b"private", sequence=3, password="secret")  # noqa: S106  # made up
    expected = "Command('publish', topic='t', data=..., sequence=3, password='***')"
    assert repr(command) == expected


@pytest.mark.row("CC18")
@pytest.mark.parametrize("values", [{"topic": b"x"}, {"topic": 5}, {"filter": b"1=1"}])
def test_a_field_of_text_takes_no_other_type(values: dict[str, object]) -> None:
    command = Command("subscribe", **values)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(UsageError, match="has to be a str, found"):
        command.to_fields()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", set()),
        ("none", set()),
        ("processed", {AckType.PROCESSED}),
        ("processed,completed", {AckType.PROCESSED, AckType.COMPLETED}),
        (" processed , none,, stats,", {AckType.PROCESSED, AckType.STATS}),
    ],
)
def test_a_list_of_acks_is_read_with_patience(text: str, expected: set[AckType]) -> None:
    assert parse_acks(text) == expected


def test_an_unknown_ack_type_is_named() -> None:
    with pytest.raises(UsageError, match="'done' is no ack type; there are received, parsed"):
        parse_acks("processed,done")
    with pytest.raises(UsageError, match="'done'"):
        format_acks(["done"])


def test_a_list_is_written_in_one_order_and_each_type_once() -> None:
    assert format_acks(["stats", AckType.PROCESSED, "processed"]) == "processed,stats"
    assert format_acks([]) == ""
    assert parse_acks(format_acks(AckType)) == set(AckType)


def test_the_words_are_those_of_the_wire() -> None:
    assert [str(word) for word in Status] == ["success", "failure", "retry"]
    assert AckType("persisted") is AckType.PERSISTED


@pytest.mark.parametrize(
    "command",
    [
        Command("publish", topic="t"),
        Command("publish", topic="t", sequence=2**64 - 1, expiration=0, correlation_id="aZ09+/="),
        Command("delta_publish", topic="t", data="x"),
        Command("subscribe", topic="t", ack_type="processed, none,"),
        Command("subscribe", topic="t", bookmark=EPOCH, top_n=5),
        Command("subscribe", topic="t", bookmark=BookmarkRange(EPOCH, NOW)),
        Command("subscribe", topic="t", bookmark=EPOCH, options="bookmark_not_found=fail"),
        Command("subscribe", topic="t", options=Options(oof=True)),
        Command("delta_subscribe", topic="t"),
        Command("sow", topic="t", top_n=0, ack_type="stats", batch_size=10_000),
        Command("sow", topic="t", options="top_n=1,skip_n=1", order_by="/id"),
        Command("sow_and_subscribe", topic="t", bookmark=NOW, top_n=3),
        Command("sow_and_delta_subscribe", topic="t", options="oof"),
        Command("sow_delete", topic="t", filter="1=1"),
        Command("sow_delete", topic="t", sow_keys="1,2"),
        Command("sow_delete", topic="t", data=b"{}"),
        Command("sow_delete", topic="t", bookmark=Bookmark(1, 2), options="cancel"),
        Command("sow_delete", topic="t", bookmark="1|2|,1|3|"),
        Command("unsubscribe", sub_id="all"),
        Command("unsubscribe", query_id="1"),
        Command("flush"),
        Command("heartbeat", options="start,5"),
        Command("logon", client_name="me"),
    ],
    ids=repr,
)
def test_what_a_server_could_carry_out_passes(command: Command) -> None:
    command.validate()


@pytest.mark.row("CC21")
@pytest.mark.parametrize(
    ("command", "message"),
    [
        (Command("publish"), "publish needs a topic"),
        (Command("delta_publish"), "delta_publish needs a topic"),
        (Command("subscribe"), "subscribe needs a topic"),
        (Command("sow"), "sow needs a topic"),
        (Command("sow_and_subscribe"), "sow_and_subscribe needs a topic"),
        (Command("sow_delete", filter="1=1"), "sow_delete needs a topic"),
        (Command("subscribe", topic="t", sub_id="a,b"), "has no comma"),
        (Command("sow", topic="t", query_id=" q"), "no blank at its ends"),
        (Command("sow_and_subscribe", topic="t", sub_id="all"), "is not 'all'"),
        (Command("publish", topic="t", bookmark=NOW), "takes no bookmark"),
        (Command("delta_subscribe", topic="t", bookmark=EPOCH), "takes no bookmark"),
        (Command("publish", topic="t", sequence=0), "sequence is a whole number from 1 to"),
        (Command("publish", topic="t", sequence=2**64), "sequence is a whole number from 1 to"),
        (
            Command("publish", topic="t", expiration=-1),
            "expiration is a whole number of at least 0",
        ),
        (Command("sow", topic="t", top_n="3"), "top_n is a whole number of at least 0, not '3'"),  # type: ignore[arg-type]  # what is tested
        (Command("publish", topic="t", correlation_id="a b"), "'a b'"),
        (Command("publish", topic="t", ack_type="done"), "'done'"),
        (Command("subscribe", topic="t", options="speed"), "'speed'"),
        (Command("subscribe", topic="t", bookmark="soon"), "'soon'"),
        (Command("subscribe", topic="t", top_n=1), "top_n of a subscribe needs a bookmark"),
        (Command("subscribe", topic="t", top_n=1, bookmark=NOW), "other than NOW"),
        (Command("subscribe", topic="t", options="bookmark_not_found=now"), "needs a bookmark"),
        (Command("subscribe", topic="t", options="oof", bookmark=EPOCH), "cannot have the option"),
        (Command("sow", topic="t", batch_size=0), "1 to 10000"),
        (Command("sow", topic="t", batch_size=10_001), "1 to 10000"),
        (Command("sow", topic="t", top_n=-1), "top_n is a whole number of at least 0"),
        (Command("sow", topic="t", options="top_n=1,skip_n=1"), "needs order_by"),
        (Command("sow_delete", topic="t"), "found none"),
        (Command("sow_delete", topic="t", filter="1", data="{}"), "found filter and data"),
        (Command("sow_delete", topic="t", bookmark=Timestamp(0)), "acknowledges messages"),
        (Command("sow_delete", topic="t", bookmark=EPOCH), "acknowledges messages"),
        (Command("unsubscribe"), "needs a sub_id"),
        (Command("logon"), "needs a client name"),
    ],
    ids=repr,
)
def test_what_no_server_could_carry_out_is_refused(command: Command, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        command.validate()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", CommandName)
def test_every_command_can_be_validated(name: CommandName) -> None:
    try:
        Command(name).validate()
    except UsageError as error:
        assert "needs" in str(error)


@pytest.mark.row("CC13", "CC14")
@pytest.mark.parametrize(
    ("word", "start"), [("epoch", "0"), ("NOW", "0|1|"), (" Epoch ", "0"), ("7|1|", "7|1|")]
)
def test_a_bookmark_may_be_a_word_that_no_server_knows(word: str, start: str) -> None:
    command = Command("subscribe", topic="t", bookmark=word)
    command.validate()
    assert command.to_fields()["bm"] == start


def test_the_word_recent_is_for_the_client_to_resolve() -> None:
    command = Command("subscribe", topic="t", bookmark="Recent")
    assert command.start == "recent"
    with pytest.raises(UsageError, match="MOST_RECENT is resolved by a bookmark store"):
        command.to_fields()


@pytest.mark.row("CC37", "AK7")
@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("bad filter", errors.BadFilter),
        ("Bad Filter near 'x'", errors.BadFilter),
        ("bad regex", errors.BadRegexTopic),
        ("bad regex topic", errors.BadRegexTopic),
        ("bad sow key", errors.BadSowKey),
        ("invalid topic", errors.InvalidTopic),
        ("not entitled", errors.NotEntitled),
        ("subscription already exists", errors.SubIdInUse),
        ("subid in use", errors.SubIdInUse),
        ("invalid options", errors.InvalidOptions),
        ("invalid orderby", errors.InvalidOrderBy),
        ("bookmark not found", errors.BookmarkNotFound),
        ("invalid bookmark", errors.InvalidBookmark),
        ("the dog ate it", CommandError),
    ],
)
def test_a_reason_becomes_its_class_and_keeps_its_words(reason: str, expected: type) -> None:
    error = command_error("subscribe to orders", reason)
    assert type(error) is expected
    assert isinstance(error, CommandError)
    assert error.reason == reason
    assert str(error) == f"subscribe to orders: {reason}"


def test_a_refused_logon_is_a_connection_that_failed() -> None:
    assert type(command_error("logon", "auth failure")) is AuthenticationError
    assert type(command_error("logon", "name in use")) is NameInUse


def test_a_refusal_without_a_reason_says_so() -> None:
    assert str(command_error("sow", "")) == "sow: refused without a reason"


@pytest.mark.parametrize("command_id", [" c1", "c1 ", "a,b", "all"])
def test_a_command_id_that_becomes_the_id_of_a_subscription_is_one_word(command_id: str) -> None:
    with pytest.raises(UsageError, match="a command_id has no comma and no blank"):
        Command("subscribe", topic="t", command_id=command_id).validate()

from __future__ import annotations

import dataclasses

import pytest

from haclient.errors import UsageError
from haclient.protocol.commands import Command, CommandName
from haclient.protocol.headers import WIRE_NAMES
from haclient.protocol.options import Options
from haclient_stores.bookmark import EPOCH, MOST_RECENT, NOW, Bookmark, BookmarkList


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
def test_keywords_and_chained_setters_make_the_same_command() -> None:
    by_keyword = Command(
        "sow_and_subscribe",
        topic="orders",
        data=b"x",
        filter="/px > 1",
        order_by="/id",
        batch_size=5,
        top_n=9,
        options=Options(oof=True),
        bookmark=NOW,
        sub_id="s",
        query_id="q",
        command_id="1",
        ack_type="processed,stats",
        sow_key="k",
        sow_keys="1,2",
        expiration=3,
        correlation_id="Zm8=",
        sequence=7,
        client_name="me",
        user_id="joe",
        password="pw",  # noqa: S106  made up
        message_type="json",
        version="1",
        timeout=2.5,
    )
    chained = (
        Command("sow_and_subscribe")
        .set_topic("orders")
        .set_data(b"x")
        .set_filter("/px > 1")
        .set_order_by("/id")
        .set_batch_size(5)
        .set_top_n(9)
        .set_options(Options(oof=True))
        .set_bookmark(NOW)
        .set_sub_id("s")
        .set_query_id("q")
        .set_command_id("1")
        .set_ack_type("processed")
        .add_ack_type("stats")
        .set_sow_key("k")
        .set_sow_keys("1,2")
        .set_expiration(3)
        .set_correlation_id("Zm8=")
        .set_sequence(7)
        .set_client_name("me")
        .set_user_id("joe")
        .set_password("pw")
        .set_message_type("json")
        .set_version("1")
        .set_timeout(2.5)
    )
    assert chained == by_keyword
    assert chained.copy() == chained
    assert chained.copy() is not chained
    set_by_hand = {field.name for field in dataclasses.fields(Command)} - {"command"}
    assert all(hasattr(Command, f"set_{name}") for name in set_by_hand)


@pytest.mark.row("CC18")
def test_fields_are_written_by_wire_name_with_the_command_first_and_nothing_empty() -> None:
    command = Command("subscribe", topic="orders", filter="/px > 10").add_ack_type("processed")
    command.set_sub_id("1").set_options("oof,").set_top_n(0)
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
    logon = Command("logon", client_name="me", message_type="json", timeout=10)
    logon.set_options(Options(ack_conflation=0.1)).set_correlation_id("Zm8=")
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
    command = Command("publish", topic="t", data=b"private", sequence=3).set_password("secret")
    expected = "Command('publish', topic='t', data=..., sequence=3, password='***')"
    assert repr(command) == expected


@pytest.mark.row("CC18")
@pytest.mark.parametrize("values", [{"topic": b"x"}, {"topic": 5}, {"filter": b"1=1"}])
def test_a_field_of_text_takes_no_other_type(values: dict[str, object]) -> None:
    command = Command("subscribe", **values)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(UsageError, match="has to be a str, found"):
        command.to_fields()

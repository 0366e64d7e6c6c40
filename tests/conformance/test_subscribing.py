"""Subscriptions to what is published from now on: topics, filters, options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conformance.wire import Wire


def test_a_subscribe_is_acknowledged_before_its_first_message(wire: Wire, plain: str) -> None:
    """`received`, then `processed`, then messages."""
    wire.send("subscribe", t=plain, cid="1", sub_id="s", a="received,processed")
    wire.publish(plain, b"1")
    frames = [wire.next_frame() for _ in range(3)]
    assert [each.get("a") for each in frames] == ["received", "processed", None]
    assert (frames[2]["t"], frames[2].sids) == (plain, {"s"})


def test_a_subscription_without_an_id_has_that_of_its_command(wire: Wire, plain: str) -> None:
    """The command id names it where there is no `sub_id`."""
    wire.do("subscribe", t=plain, cid="c1")
    wire.publish(plain, b"1")
    assert wire.next_message().sids == {"c1"}
    wire.do("unsubscribe", sub_id="c1")


def test_a_filter_selects_by_content(wire: Wire, plain: str) -> None:
    """Only messages for which it is true are delivered (docs/broker.md#filters)."""
    wire.subscribe(plain, filter="/px > 10")
    for price in (5, 12.5, 10):
        wire.publish(plain, {"px": price})
    wire.publish(plain, {"px": 99})
    assert [wire.next_message().json["px"] for _ in range(2)] == [12.5, 99]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"filter": "/a ="}, "bad filter"),
        ({"t": "orders["}, None),
        ({"opts": "no_such_option"}, "invalid options"),
        ({"opts": "oof", "bm": "0"}, None),
        ({"bm": "nonsense"}, None),
    ],
    ids=["filter", "pattern", "option", "contradiction", "bookmark"],
)
def test_a_failed_subscribe_says_why_and_leaves_no_subscription(
    wire: Wire, logged: str, wrong: dict[str, Any], reason: str | None
) -> None:
    """A `processed` ack with a reason; the id is free (docs/protocol.md#decisions)."""
    answer = wire.ask("subscribe", sub_id="s", **({"t": logged} | wrong))
    assert (answer["status"], answer["a"]) == ("failure", "processed")
    assert answer["reason"] == (reason or answer["reason"])
    wire.subscribe(logged, sub_id="s")
    wire.publish(logged, b"1")
    assert wire.next_message().body == b"1"


def test_an_id_in_use_is_refused(wire: Wire, plain: str) -> None:
    """A second subscription of an id needs `replace` (docs/ha.md)."""
    wire.subscribe(plain, sub_id="s")
    assert wire.ask("subscribe", t=plain, sub_id="s")["status"] == "failure"


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("{}", False),
        ("{}-1$", True),
        ("^{}", True),
        ("{}.*", True),
        ("{}.1", True),
        ("{}-[1-3]", True),
        ("{}-(2|3)", False),
    ],
)
def test_a_topic_with_a_special_character_is_a_pattern(
    wire: Wire, plain: str, pattern: str, *, matches: bool
) -> None:
    """A pattern is found anywhere in the name; a text without special characters is the name, and
    a dot is one of them (fake_server/README.md)."""
    wire.subscribe(pattern.format(plain), sub_id="s")
    wire.subscribe(f"{plain}-1", sub_id="all")
    wire.publish(f"{plain}-1", b"1")
    assert wire.next_message().sids == ({"s", "all"} if matches else {"all"})


def test_a_pattern_is_not_anchored(wire: Wire, plain: str) -> None:
    """It matches in the middle of a name."""
    wire.subscribe(plain[3:-1] + ".")
    wire.publish(plain, b"1")
    assert wire.next_message()["t"] == plain


def test_non_regex_topic_takes_a_topic_literally(wire: Wire, plain: str) -> None:
    """Then a dot is a dot."""
    wire.subscribe(f"{plain}.1", sub_id="s", opts="non_regex_topic")
    wire.publish(f"{plain}-1", b"1")
    wire.publish(f"{plain}.1", b"2")
    assert wire.next_message().body == b"2"


@pytest.mark.parametrize("form", ["one", "list", "all", "spaces"])
def test_unsubscribe_takes_one_id_a_list_or_all(wire: Wire, plain: str, form: str) -> None:
    """Subscriptions that it does not name stay."""
    for sub_id in ("a", "b", "c"):
        wire.subscribe(plain, sub_id=sub_id)
    ids, left = {
        "one": ("a", {"b", "c"}),
        "list": ("a,b", {"c"}),
        "spaces": ("a, c", {"b"}),
        "all": ("all", set[str]()),
    }[form]
    wire.do("unsubscribe", sub_id=ids)
    wire.subscribe(plain, sub_id="witness")
    wire.publish(plain, b"1")
    assert wire.next_message().sids == {*left, "witness"}


def test_unsubscribe_needs_an_id(wire: Wire) -> None:
    """One that names neither a subscription nor a query would do nothing."""
    assert wire.ask("unsubscribe")["status"] == "failure"


def test_unsubscribe_has_the_acks_received_and_processed(wire: Wire) -> None:
    """An id that is unknown is no mistake: the subscription may have ended."""
    wire.send("unsubscribe", sub_id="unknown", cid="1", a="received,processed")
    assert [(each["a"], each["status"]) for each in (wire.next_frame(), wire.next_frame())] == [
        ("received", "success"),
        ("processed", "success"),
    ]


def test_bookmarks_come_with_live_messages_only_on_request(wire: Wire, logged: str) -> None:
    """The option `bookmark` adds them; it is no place to start from."""
    wire.subscribe(logged, sub_id="plain")
    wire.subscribe(logged, sub_id="marked", opts="bookmark")
    wire.publish(logged, b"1", s=5)
    found: dict[str, Any] = {}
    while len(found) < 2:
        frame = wire.next_message()
        found |= dict.fromkeys(frame.sids, frame.get("bm"))
    assert found == {"plain": None, "marked": f"{wire.logon['bm'].split('|')[0]}|5|"}


def test_time_stamps_come_on_request(wire: Wire, plain: str) -> None:
    """`ts` is the time of the publish, in UTC with microseconds."""
    wire.subscribe(plain, opts="timestamp")
    wire.publish(plain, b"1")
    text = wire.next_message()["ts"]
    date, _, clock = text.partition("T")
    assert (len(date), len(clock), clock[6], clock[-1]) == (8, 14, ".", "Z")


def test_select_sends_the_fields_that_are_asked_for(wire: Wire, plain: str) -> None:
    """The most specific directive decides, of two for one field the first; the filter sees the
    whole message; what is absent is not made up."""
    wire.subscribe(plain, opts="select=[-/,+/id,-/id/secret,+/gone]", filter="/hidden = 1")
    wire.publish(plain, {"id": {"a": 1, "secret": 2}, "hidden": 1})
    assert wire.next_message().json == {"id": {"a": 1}}
    wire.do("unsubscribe", sub_id="all")
    wire.subscribe(plain, opts="select=[-/b,+/b]")
    wire.publish(plain, {"a": 1, "b": 2})
    assert wire.next_message().json == {"a": 1}


def test_replace_changes_a_subscription_at_once(wire: Wire, plain: str) -> None:
    """From the answer on the new filter counts; nothing in between is lost (docs/ha.md)."""
    wire.subscribe(plain, sub_id="s", filter="/n < 10")
    wire.publish(plain, {"n": 1})
    wire.subscribe(plain, sub_id="s", filter="/n >= 10", opts="replace")
    for number in (2, 11, 12):
        wire.publish(plain, {"n": number})
    assert [wire.next_message().json["n"] for _ in range(3)] == [1, 11, 12]


def test_conflation_sends_the_last_message_of_each_key(wire: Wire, plain: str) -> None:
    """The first one is held back, too, until the interval ends."""
    wire.subscribe(plain, opts="conflation=300ms,conflation_key=[/id]")
    for number in range(50):
        wire.publish(plain, {"id": number % 2, "n": number})
    found = [wire.next_message().json for _ in range(2)]
    assert sorted(each["n"] for each in found) == [48, 49]


def test_conflation_of_a_topic_without_records_needs_a_key(wire: Wire, plain: str) -> None:
    """There is no key of a record that could be taken."""
    assert wire.ask("subscribe", t=plain, opts="conflation=1s")["status"] == "failure"


def test_a_key_of_a_record_comes_with_its_message_unless_it_is_not_wanted(
    connect: Callable[..., Wire], sow: str, run: str
) -> None:
    """`k` on topics with a state of the world; `no_sowkey` leaves it out."""
    one, other = connect(), connect()
    one.subscribe(sow, filter=f"/run = '{run}'")
    other.subscribe(sow, filter=f"/run = '{run}'", opts="no_sowkey")
    one.publish(sow, {"id": run, "run": run})
    assert int(one.next_message()["k"]) < 2**64
    assert "k" not in other.next_message()


@pytest.mark.parametrize("wrong", ["bookmark_not_found=fail", "send_keys", "skip_n=1", "pause"])
def test_an_option_of_another_command_is_refused(wire: Wire, plain: str, wrong: str) -> None:
    """What a subscribe without a bookmark cannot have."""
    assert wire.ask("subscribe", t=plain, sub_id="s", opts=wrong)["status"] == "failure"


def test_top_n_of_a_subscribe_needs_a_bookmark(wire: Wire, logged: str) -> None:
    """It limits a replay; without one, or with the bookmark of now, it is refused."""
    assert wire.ask("subscribe", t=logged, top_n=1)["status"] == "failure"
    assert wire.ask("subscribe", t=logged, top_n=1, bm="0|1|")["status"] == "failure"

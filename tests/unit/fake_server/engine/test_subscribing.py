"""Subscribe, unsubscribe, replace, pause and resume."""

from __future__ import annotations

import pytest

from haclient_fake_server.engine import subscribing
from haclient_fake_server.engine.patterns import MAX_TOPIC_CHARACTERS
from haclient_fake_server.engine.settings import LogTopic, QueueTopic
from haclient_fake_server.engine.subscribing import MAX_IDS, MAX_SUB_ID_CHARACTERS
from support.engine import World

PUBBER = 7094790850998930143  # the publisher id of "pubber"


def test_the_processed_ack_names_the_subscription() -> None:
    peer = World().client()
    peer.subscribe("s", a="received,processed")
    assert [(ack.ack_type, ack.sub_id, ack.status) for ack in peer.take()] == [
        ("received", "s", "success"),
        ("processed", "s", "success"),
    ]


def test_the_command_id_stands_in_for_a_missing_sub_id() -> None:
    peer = World().client()
    peer.send(c="subscribe", cid="7", t="orders")
    peer.publish(1)
    (message,) = peer.take()
    assert message.sids == "7"


def test_a_subscribe_without_any_id_is_refused() -> None:
    peer = World().client()
    peer.send(c="subscribe", t="orders", a="processed")
    (ack,) = peer.take()
    assert ack.reason == "invalid subid"


@pytest.mark.row("AK7")
def test_a_sub_id_in_use_is_refused() -> None:
    peer = World().client()
    peer.subscribe("1")
    peer.take()
    peer.subscribe("1", cid="8")
    (ack,) = peer.take()
    assert (ack.command_id, ack.status) == ("8", "failure")
    assert ack.reason == "subid in use"


def refusal(world: World, fields: dict[str, str | int]) -> str:
    """Why a subscribe of a new connection is refused, which then gets nothing."""
    peer = world.client()
    peer.subscribe(**fields)
    (ack,) = peer.take()
    assert (ack.ack_type, ack.status) == ("processed", "failure")
    peer.publish(1)
    assert peer.take() == []
    return ack.reason


@pytest.mark.row("AK7", "OP17")
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"t": ""}, "invalid topic: no topic"),
        ({"t": "or(ders"}, "bad regex topic"),
        ({"filter": "/px >"}, "bad filter"),
        ({"opts": "fast"}, "invalid options: "),
        ({"opts": "rate=5"}, "invalid options: rate needs a bookmark"),
        ({"opts": "conflation=1s"}, "invalid options: conflation: 'orders' is no topic"),
        ({"opts": "bookmark_not_found=now"}, "invalid options: bookmark_not_found needs"),
        ({"opts": "oof", "bm": "0"}, "invalid options: oof cannot have"),
        ({"top_n": 5}, "invalid options: top_n"),
        ({"top_n": 5, "bm": "0|1|"}, "invalid options: top_n"),
        ({"c": "delta_subscribe", "bm": "0"}, "invalid bookmark: delta_subscribe takes no"),
        ({"c": "delta_subscribe", "opts": "live"}, "invalid options: live is not supported"),
        ({"opts": "no_empties"}, "invalid options: no_empties is not supported"),
    ],
)
def test_a_subscribe_that_cannot_be_carried_out_is_refused(
    fields: dict[str, str | int], reason: str
) -> None:
    world = World()
    assert refusal(world, fields) == reason.partition(":")[0]
    assert reason in world.events[-1]


def test_options_with_a_trailing_comma_are_fine() -> None:
    peer = World().client()
    peer.subscribe(opts="live,timestamp,", bm="0")
    assert peer.take()[0].status == "success"


def test_a_pattern_matches_many_topics_and_a_literal_only_itself() -> None:
    world = World()
    peer = world.client()
    peer.subscribe("pattern", t="^ord")
    peer.subscribe("literal", t="ord.ers", opts="non_regex_topic")
    peer.take()
    for topic in ("orders", "ord.ers", "no-orders"):
        peer.send(c="p", t=topic)
    assert [(message.topic, message.sids) for message in peer.take()] == [
        ("orders", "pattern"),
        ("ord.ers", "pattern,literal"),
    ]


def test_unsubscribe_ends_one_several_or_all() -> None:
    peer = World().client()
    for sub_id in "12345":
        peer.subscribe(sub_id)
    peer.take()
    peer.send(c="unsubscribe", sub_id="1", cid="9", a="received,processed")
    assert [ack.ack_type for ack in peer.take()] == ["received", "processed"]
    peer.send(c="unsubscribe", sub_id="2, 3", query_id="4,unknown")
    peer.publish(1, a="")
    assert [message.sids for message in peer.take()] == ["5"]
    peer.send(c="unsubscribe", sub_id="all")
    peer.publish(2, a="")
    assert peer.take() == []


def test_unsubscribing_the_unknown_is_fine() -> None:
    peer = World().client()
    peer.send(c="unsubscribe", sub_id="nope", cid="1", a="processed")
    (ack,) = peer.take()
    assert ack.status == "success"


@pytest.mark.parametrize("header", ["sub_id", "sids"])
@pytest.mark.parametrize("command", [{"c": "unsubscribe"}, {"c": "subscribe", "opts": "pause"}])
def test_a_command_names_no_more_ids_than_are_handled_in_one_step(
    command: dict[str, str], header: str
) -> None:
    peer = World().client()
    peer.subscribe("1")
    peer.take()
    peer.send(**command, **{header: "1," * MAX_IDS}, cid="2", a="processed")
    (ack,) = peer.take()
    assert (ack.status, ack.reason) == ("failure", "invalid subid")
    assert ack.detail == f"more than {MAX_IDS} ids in a command"
    peer.publish(1, a="")
    assert [message.sids for message in peer.take()] == ["1"]


def test_an_id_is_free_again_after_its_unsubscribe() -> None:
    peer = World().client()
    peer.subscribe("1")
    peer.send(c="unsubscribe", sub_id="1")
    peer.take()
    peer.subscribe("1")
    assert peer.take()[0].status == "success"


def test_replace_changes_the_filter_without_loss() -> None:
    world = World()
    reader, publisher = world.client("reader"), world.client("pubber")
    reader.subscribe(bm="0", filter="/n < 10", a="")
    publisher.publish(1, b'{"n":1}')
    reader.subscribe(opts="replace", filter="/n >= 10")
    publisher.publish(2, b'{"n":2}')
    publisher.publish(3, b'{"n":30}')
    assert [message.data for message in reader.take() if message.kind == "p"] == [
        b'{"n":1}',
        b'{"n":30}',
    ]


def test_replace_with_a_bookmark_starts_there() -> None:
    world = World()
    reader, publisher = world.client("reader"), world.client("pubber")
    publisher.publish(1, b"1")
    reader.subscribe()
    reader.subscribe(bm="0", opts="replace", a="completed")
    publisher.publish(2, b"2")
    assert [message.data for message in reader.take()][1:] == [b"1", b"", b"2"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"t": "unlogged"}, "invalid topic"), ({"opts": "replace,oof"}, "invalid options")],
)
def test_a_replay_takes_no_form_that_would_be_refused_with_a_bookmark(
    changes: dict[str, str], reason: str
) -> None:
    reader = World(log_topics=(LogTopic("orders"),)).client("reader")
    reader.subscribe(bm="0", a="")
    reader.subscribe(**{"cid": "8", "t": "orders", "opts": "replace", **changes})
    (ack,) = reader.take()
    assert (ack.command_id, ack.reason) == ("8", reason)


def test_replace_in_the_middle_of_a_replay_goes_on_where_it_was() -> None:
    world = World()
    reader, publisher = world.client("reader"), world.client("pubber")
    publisher.publish(1, b'{"n":1}')
    reader.stalled = True
    reader.subscribe(bm="0", a="")
    reader.subscribe(opts="replace", t="orders", a="")
    reader.stalled = False
    world.replay_backlog(reader)
    (message,) = reader.take()
    assert message.bookmark


@pytest.mark.parametrize("topic", [".*", "jobs"])
def test_a_replay_that_is_replaced_stays_one_where_its_topic_is_also_a_queue(topic: str) -> None:
    world = World(queues=(QueueTopic(name="jobs", topics=("orders",)),))
    reader, publisher = world.client("reader"), world.client("pubber")
    publisher.publish(1)
    reader.subscribe(t=topic, bm="0", a="")
    reader.subscribe(opts="replace", t=topic, a="")
    publisher.publish(2)
    assert [(each.topic, each.bookmark) for each in reader.take()] == [
        ("orders", f"{PUBBER}|1|"),
        ("orders", f"{PUBBER}|2|"),
    ]


def test_replace_of_an_unknown_id_is_a_plain_subscribe() -> None:
    peer = World().client()
    peer.subscribe(opts="replace", a="")
    peer.publish(1, b"x", a="")
    assert peer.bodies() == [b"x"]


@pytest.mark.parametrize("option", ["pause", "resume"])
def test_only_bookmark_subscriptions_can_be_paused(option: str) -> None:
    peer = World().client()
    peer.subscribe("1", a="")
    for sub_id in ("1", "unknown", ""):
        peer.send(c="subscribe", sub_id=sub_id, cid="9", opts=option, a="processed")
        (ack,) = peer.take()
        assert (ack.status, ack.reason) == ("failure", "invalid subid")


@pytest.mark.row("OP4", "CC23")
@pytest.mark.parametrize("fields", [{}, {"t": "orders"}, {"t": "orders", "bm": "0"}])
def test_several_subscriptions_are_paused_at_once(fields: dict[str, str]) -> None:
    world = World()
    peer = world.client()
    peer.subscribe("1", bm="0", a="")
    peer.subscribe("2", bm="[0:0]", a="")
    peer.send(c="subscribe", sub_id="1,2", opts="pause", **fields)
    peer.publish(1, a="")
    assert peer.take() == []
    peer.send(c="subscribe", sub_id="1,2", opts="resume", **fields)
    assert len(peer.bodies()) == 1
    peer.publish(2, a="")
    assert [message.sids for message in peer.take()] == ["1"]


@pytest.mark.row("OP4", "CC23")
@pytest.mark.parametrize("option", ["pause", "resume"])
def test_of_a_list_with_an_unknown_id_none_is_changed_and_none_is_made(option: str) -> None:
    world = World()
    peer = world.client()
    peer.subscribe("1", bm="0", a="")
    peer.subscribe("2", bm="0", opts="pause", a="")
    peer.send(c="subscribe", cid="9", sub_id="1,2,3", t="orders", opts=option, a="processed")
    (ack,) = peer.take()
    assert (ack.status, ack.reason) == ("failure", "invalid subid")
    peer.publish(1, a="")
    assert [message.sids for message in peer.take()] == ["1"]


@pytest.mark.row("OP4")
def test_a_resume_of_an_unknown_id_makes_no_subscription() -> None:
    peer = World().client()
    peer.subscribe("1", bm="0", opts="resume", a="processed")
    (ack,) = peer.take()
    assert (ack.status, ack.reason) == ("failure", "invalid subid")
    peer.publish(1, a="")
    assert peer.take() == []


def test_an_id_and_a_topic_have_a_longest_length() -> None:
    peer = World().client()
    peer.subscribe("x" * MAX_SUB_ID_CHARACTERS)
    peer.subscribe("x" * (MAX_SUB_ID_CHARACTERS + 1))
    peer.subscribe("2", t="x" * MAX_TOPIC_CHARACTERS)
    peer.subscribe("3", t="x" * (MAX_TOPIC_CHARACTERS + 1))
    assert [ack.reason for ack in peer.acks()] == ["", "invalid subid", "", "invalid topic"]


def test_a_new_sub_id_holds_no_comma() -> None:
    peer = World().client()
    peer.subscribe("x,y")
    (ack,) = peer.take()
    assert (ack.status, ack.reason) == ("failure", "invalid subid")


def test_a_plain_subscription_cannot_begin_paused() -> None:
    peer = World().client()
    peer.subscribe("1", opts="pause")
    (ack,) = peer.take()
    assert (ack.status, ack.reason) == ("failure", "invalid options")


@pytest.mark.row("OP4", "CC22")
def test_a_replacement_may_pause_what_it_replaces() -> None:
    peer = World().client()
    peer.subscribe("1", bm="0", a="")
    peer.subscribe("1", opts="replace,pause", filter="/n > 1", a="processed")
    (ack,) = peer.take()
    assert ack.status == "success"
    peer.publish(1, b'{"n":1}', a="")
    peer.publish(2, b'{"n":2}', a="")
    assert peer.take() == []
    peer.send(c="subscribe", sub_id="1", t="orders", opts="resume")
    assert peer.bodies() == [b'{"n":2}']


@pytest.mark.row("CC22")
@pytest.mark.parametrize("fields", [{"bm": f"[0:{PUBBER}|2|]"}, {"bm": "0", "top_n": 2}])
def test_one_that_is_over_gets_no_more_when_it_is_replaced_without_a_bookmark(
    fields: dict[str, str | int],
) -> None:
    world = World()
    peer, reader = world.client("pubber"), world.client("reader")
    for number in (1, 2, 3):
        peer.publish(number, b"%d" % number, a="")
    reader.subscribe("1", **fields)
    assert reader.bodies() == [b"1", b"2"]
    reader.subscribe("1", opts="replace", filter="/n > 0", a="")
    peer.publish(4, b'{"n": 4}', a="")
    assert reader.take() == []
    reader.subscribe("1", opts="replace", bm=f"{PUBBER}|3|", a="")
    assert reader.bodies() == [b'{"n": 4}']


def test_one_connection_has_a_limit_of_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscribing, "MAX_SUBSCRIPTIONS", 1)
    peer = World().client()
    peer.subscribe("1")
    peer.take()
    peer.subscribe("2")
    (ack,) = peer.take()
    assert ack.reason == "too many subscriptions"


@pytest.mark.row("OP17")
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"t": r"(a|b)\1"}, "bad regex topic"),
        ({"t": "(?=a)b"}, "bad regex topic"),
        ({"filter": r"/a LIKE '(a|b)\\1'"}, "bad filter"),
    ],
)
def test_what_only_a_backtracking_engine_can_match_is_refused(
    fields: dict[str, str | int], reason: str
) -> None:
    world = World()
    assert refusal(world, fields) == reason
    assert "back-references and look-around are not supported" in world.events[-1]


def test_a_hostile_topic_and_filter_do_not_hold_up_the_broker() -> None:
    peer = World().client()
    peer.subscribe("1", t="(a+)+$", a="")
    peer.subscribe("2", t="orders", filter="/a LIKE '(a+)+$'", a="")
    peer.publish(1, b'{"a":"' + b"a" * 2000 + b'b"}', t="orders", a="")
    peer.publish(2, b"{}", t="a" * 2000 + "b", a="")
    assert peer.take() == []


@pytest.mark.parametrize("ids", ["all", "1,2,3,4,5"])
def test_many_subscriptions_are_ended_in_steps(ids: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscribing, "ENDS_PER_STEP", 2)
    queue = QueueTopic(name="jobs", topics=("work",), max_per_subscription_backlog=1)
    world = World(queues=(queue,), log_topics=(LogTopic("work"),))
    client, other = world.client("client"), world.client("other")
    client.stalled = True  # so that each step is a call of this test
    for sub_id in "123":
        client.subscribe(sub_id, t=f"^orders|{sub_id}")
    for sub_id in "45":
        client.subscribe(sub_id, t="jobs", opts="max_backlog=1")
    other.publish(1, b"job", t="work")
    assert client.bodies() == [b"job"]
    client.send(c="unsubscribe", cid="u", sub_id=ids, a="processed")
    client.subscribe("6")
    found: list[list[str]] = []
    while world.engine.is_busy(client.number):
        other.publish(None)
        found.append([each.sids or each.command_id for each in client.take()])
        world.apply(world.engine.pump(client.number, world.now))
    other.publish(None)
    found.append([each.sids or each.command_id for each in client.take()])
    assert found == [["3"], [], ["u", "6", "6"]], "nothing of a queue goes to those that end"

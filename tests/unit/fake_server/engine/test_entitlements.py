from __future__ import annotations

import json
import re

import pytest

from haclient.errors import UsageError
from haclient_fake_server.config import entitlement_argument, parse_entitlement
from haclient_fake_server.engine.entitlements import Rights
from haclient_fake_server.engine.filters import Document
from haclient_fake_server.engine.settings import EngineSettings, Entitlement, QueueTopic, SowTopic
from support.engine import Peer, World

USERS = {"ann": "a", "bob": "b", "eve": "e", "root": "r"}
ENTITLEMENTS = (
    Entitlement("ann", "all", "^orders$"),
    Entitlement("ann", "read", "^trades$", "/desk = 'A'"),
    Entitlement("ann", "read", "^trades$", "/desk = 'B'"),
    Entitlement("ann", "publish", "^trades$", "/desk = 'A'"),
    Entitlement("bob", "read", "^orders$"),
    Entitlement("bob", "read", "jobs.now"),
    Entitlement("eve", "read", "^work$", "/id = 3"),
    Entitlement("ann", "read", "^shared$", "/id = 1"),
    Entitlement("bob", "read", "^shared$", "/id = 2"),
    Entitlement("*", "read", "^/HACLIENT/status$"),
    Entitlement("root", "all", "."),
)


@pytest.fixture
def world() -> World:
    return World(
        users=USERS,
        entitlements=ENTITLEMENTS,
        sow_topics=(SowTopic("trades", ("/id",)), SowTopic("orders", ("/id",))),
        queues=(
            QueueTopic(name="jobs.now", topics=("work",)),
            QueueTopic(name="shared", topics=("lot",), max_per_subscription_backlog=10),
        ),
    )


def user(world: World, name: str) -> Peer:
    return world.client(f"{name}-{world.next_number()}", user_id=name, pw=USERS[name])


def reason(peer: Peer, body: bytes = b"", /, **fields: str | int) -> str:
    """The reason in the first ack; empty for a success."""
    peer.send(body, **{"cid": "c", "a": "processed", **fields})
    answer = peer.acks()[0]
    assert answer.status == ("failure" if answer.reason else "success")
    return answer.reason


REFUSED = "not entitled"


@pytest.mark.row("AD6")
def test_a_user_may_do_what_an_entitlement_allows_and_nothing_else(world: World) -> None:
    ann, bob, eve = (user(world, name) for name in ("ann", "bob", "eve"))
    assert reason(ann, b'{"id":1}', c="publish", t="orders") == ""
    assert reason(bob, b'{"id":2}', c="publish", t="orders") == REFUSED
    assert reason(bob, c="subscribe", t="orders") == ""
    for kind in ("subscribe", "sow", "sow_and_subscribe", "delta_subscribe"):
        assert reason(eve, c=kind, t="orders", sub_id=kind) == REFUSED
    assert reason(bob, c="sow_delete", t="orders", filter="/id = 1") == REFUSED
    assert reason(ann, c="sow_delete", t="orders", filter="/id = 1") == ""
    assert reason(eve, c="sow", t="/HACLIENT/status") == ""
    assert reason(eve, c="sow", t="/HACLIENT/guards") == REFUSED


@pytest.mark.row("AD6")
@pytest.mark.parametrize("own", ["", "/id > 1"])
def test_a_filter_selects_what_may_be_read(world: World, own: str) -> None:
    ann, root = user(world, "ann"), user(world, "root")
    fields = {"filter": own} if own else {}
    expected = [2] if own else [1, 2]
    assert reason(ann, c="subscribe", t="trades", sub_id="live", **fields) == ""
    for number, desk in enumerate("ABC", start=1):
        root.publish(number, b'{"id":%d,"desk":"%s"}' % (number, desk.encode()), t="trades")
    assert numbers(ann) == expected
    assert reason(ann, c="unsubscribe", sub_id="live") == ""
    for command in (
        {"c": "subscribe", "bm": "0", "sub_id": "replay"},
        {"c": "sow"},
        {"c": "sow_and_subscribe", "sub_id": "both"},
    ):
        ann.send(**{"cid": "c", "t": "trades", "a": "processed", **fields, **command})
        assert numbers(ann) == expected, command


@pytest.mark.row("AD6")
@pytest.mark.parametrize("opts", ["", "top_n=9,skip_n=0"])
def test_an_answer_does_not_count_what_may_not_be_read(world: World, opts: str) -> None:
    ann, root = user(world, "ann"), user(world, "root")
    for number, desk in enumerate("ABCCC", start=1):
        root.publish(number, b'{"id":%d,"desk":"%s"}' % (number, desk.encode()), t="trades")
    ann.send(c="sow_and_subscribe", cid="c", sub_id="s", t="trades", opts=opts, a="stats")
    assert [each.topic_matches for each in ann.acks()] == [2]


@pytest.mark.row("AD6")
def test_browsing_a_queue_does_not_count_what_may_not_be_read(world: World) -> None:
    ann, root = user(world, "ann"), user(world, "root")
    for number in range(1, 5):
        root.publish(number, b'{"id":%d}' % number, t="lot")
    ann.send(c="sow", cid="c", t="shared", a="stats")
    assert [each.topic_matches for each in ann.acks()] == [1]


@pytest.mark.row("AD6")
@pytest.mark.parametrize("opts", ["", "conflation=1s"])
def test_a_delta_does_not_refer_to_what_may_not_be_read(world: World, opts: str) -> None:
    ann, root = user(world, "ann"), user(world, "root")
    assert reason(ann, c="delta_subscribe", t="trades", sub_id="d", opts=opts) == ""
    for body in (
        b'{"id":1,"desk":"C","px":1,"secret":5}',
        b'{"id":1,"desk":"A","px":1}',
        b'{"id":1,"desk":"B","px":1}',
    ):
        root.publish(None, body, t="trades")
        world.advance(2.0)
    found = [json.loads(each.data) for each in ann.take() if each.kind == "p"]
    assert found == [{"id": 1, "desk": "A", "px": 1}, {"id": 1, "desk": "B"}]


@pytest.mark.row("AD6")
def test_a_filter_selects_what_may_be_published(world: World) -> None:
    ann = user(world, "ann")
    assert reason(ann, b'{"id":1,"desk":"A"}', c="publish", t="trades") == ""
    assert reason(ann, b'{"id":2,"desk":"B"}', c="publish", t="trades") == REFUSED
    assert reason(ann, b'{"id":1,"desk":"B"}', c="delta_publish", t="trades") == REFUSED
    assert reason(ann, c="sow_delete", t="trades", sow_keys="1") == REFUSED
    assert reason(ann, b'{"id":1}', c="sow_delete", t="trades") == REFUSED
    assert reason(ann, c="sow_delete", t="trades", filter="/id > 0") == ""
    assert reason(ann, c="subscribe", t="trades", opts="oof", sub_id="oof") == REFUSED


@pytest.mark.row("AD6")
def test_the_sequence_of_a_refused_publish_is_acknowledged_as_failed(world: World) -> None:
    bob = user(world, "bob")
    bob.publish(1, b"{}")
    (answer,) = bob.acks()
    assert (answer.status, answer.reason, answer.sequence) == ("failure", REFUSED, 1)
    assert "bob" not in answer.detail
    assert any("not entitled" in line for line in world.events)


@pytest.mark.row("AD6")
def test_a_pattern_delivers_what_may_be_read_without_a_filter(world: World) -> None:
    ann, root = user(world, "ann"), user(world, "root")
    assert reason(ann, c="subscribe", t=".*", sub_id="live") == ""
    for number, topic in enumerate(("orders", "trades", "work", "others"), start=1):
        root.publish(number, b'{"id":%d,"desk":"A"}' % number, t=topic)
    assert numbers(ann) == [1]
    ann.send(c="subscribe", t=".*", sub_id="replay", bm="0", cid="r", a="processed")
    assert numbers(ann) == [1]
    ann.send(c="sow_delete", t=".*", filter="/id > 0", cid="d", a="stats")
    assert [(each.ack_type, each.records_deleted) for each in ann.acks()] == [("stats", 1)]


@pytest.mark.row("QB32")
def test_to_read_a_queue_is_to_consume_and_to_acknowledge(world: World) -> None:
    bob, eve, root = (user(world, name) for name in ("bob", "eve", "root"))
    root.publish(1, b'{"id":1}', t="work")
    assert reason(eve, c="subscribe", t="jobs.now", sub_id="q") == REFUSED
    assert reason(eve, c="sow", t="jobs.now") == REFUSED
    bob.send(c="subscribe", t="jobs.now", sub_id="q", cid="q", a="processed")
    (message,) = [each for each in bob.take() if each.kind == "p"]
    delete = {"c": "sow_delete", "t": "jobs.now"}
    assert reason(eve, **delete, bm=message.bookmark) == REFUSED
    assert reason(eve, **delete, filter="/id = 1") == REFUSED
    assert reason(bob, c="publish", t="work") == REFUSED
    assert reason(bob, **delete, bm=message.bookmark) == ""
    assert reason(root, c="sow", t="jobs.now") == ""


@pytest.mark.row("QB32")
@pytest.mark.parametrize("own", ["", "/id > 0"])
def test_each_consumer_gets_what_its_user_may_read(world: World, own: str) -> None:
    ann, bob, root = (user(world, name) for name in ("ann", "bob", "root"))
    fields = {"filter": own} if own else {}
    for peer in (ann, bob):
        opts = "max_backlog=10"
        assert reason(peer, c="subscribe", t="shared", sub_id="q", opts=opts, **fields) == ""
    for number in (1, 2, 3, 1, 2):
        root.publish(None, b'{"id":%d}' % number, t="lot")
    assert numbers(ann) == [1, 1]
    assert numbers(bob) == [2, 2]


@pytest.mark.row("QB32")
@pytest.mark.parametrize("opts", ["", "cancel", "expire", "lease_extension=1s"])
def test_what_a_user_may_not_read_is_not_acknowledged_either(world: World, opts: str) -> None:
    ann, root = (user(world, name) for name in ("ann", "root"))
    for number in (1, 2, 1):
        root.publish(None, b'{"id":%d}' % number, t="lot")
    root.send(c="sow", t="shared", cid="s")
    bookmarks = ",".join(each.bookmark for each in root.take() if each.kind == "sow")
    ann.send(c="sow_delete", t="shared", bm=bookmarks, cid="c", a="stats", opts=opts)
    (stats,) = ann.acks()
    assert stats.matches == 2
    root.send(c="sow", t="shared", cid="s")
    assert 2 in numbers(root)


def numbers(peer: Peer) -> list[int]:
    """The ids in the messages and records that came since the last look."""
    return [json.loads(each.data)["id"] for each in peer.take() if each.kind in {"p", "sow"}]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ann:read:orders", ""),
        ("*:all:.*:/id = 'a:b'", ""),
        ("ann", "wanted a user and a topic"),
        (":read:orders", "wanted a user and a topic"),
        ("ann:write:orders", "access 'write', wanted one of read, publish, all"),
        ("ann:replicate:orders:/id = 1", "'replicate' takes no filter: all of a log is sent"),
        ("ann:read:(", "is not a valid pattern"),
        ("ann:read:orders:/a =", "bad filter at character 4"),
    ],
)
def test_an_entitlement_has_a_text_form(text: str, why: str) -> None:
    if why:
        with pytest.raises(UsageError, match=re.escape(why)):
            parse_entitlement(text)
    else:
        assert entitlement_argument(parse_entitlement(text)) == text


def test_entitlements_need_users() -> None:
    with pytest.raises(UsageError, match="entitlements need users"):
        EngineSettings(entitlements=ENTITLEMENTS)


@pytest.mark.parametrize("topic", ["trades", "^trades$", "orders"])
def test_a_position_counts_no_messages_that_the_user_may_not_read(topic: str) -> None:
    entitlements = (
        Entitlement("ann", "read", "^trades$", "/desk = 'A'"),
        Entitlement("ann", "read", "^/HACLIENT/position$"),
        Entitlement("root", "all", "."),
    )
    world = World(users=USERS, entitlements=entitlements)
    root, ann = user(world, "root"), user(world, "ann")
    for name in ("trades", "orders"):
        for desk in ("A", "B"):
            assert reason(root, b'{"desk":"%b"}' % desk.encode(), c="publish", t=name) == ""
    body = json.dumps({"topic": topic}).encode()
    if topic == "orders":
        assert reason(ann, body, c="sow", t="/HACLIENT/position") == REFUSED
        return
    ann.send(body, c="sow", t="/HACLIENT/position", cid="q")
    world.replay_backlog(ann)
    (answer,) = [json.loads(each.data) for each in ann.take() if each.kind == "sow"]
    assert answer["messages"] == (1 if topic == "trades" else 0)


def test_facts_of_the_broker_are_not_for_those_who_read_all_topics_with_a_filter() -> None:
    entitlements = (Entitlement("ann", "read", ".*", "/desk = 'A'"),)
    ann = user(World(users=USERS, entitlements=entitlements), "ann")
    for name in ("publisher", "guards", "clients"):
        assert reason(ann, b'{"name": "x"}', c="sow", t=f"/HACLIENT/{name}") == REFUSED
    assert reason(ann, b'{"topic": "a"}', c="sow", t="/HACLIENT/position") == ""


@pytest.mark.parametrize("other", ["/flag", "(" * 40 + "/desk = 'B'" + ")" * 40])
def test_what_several_entitlements_allow_adds_up_whatever_their_filters_are(other: str) -> None:
    entitlements = (
        Entitlement("ann", "publish", "^trades$", other),
        Entitlement("ann", "publish", "^trades$", "/desk = 'A'"),
    )
    ann = user(World(users=USERS, entitlements=entitlements), "ann")
    assert reason(ann, b'{"desk":"A"}', c="publish", t="trades") == ""
    assert reason(ann, b'{"desk":"C"}', c="publish", t="trades") == REFUSED


def test_the_connections_of_a_user_share_what_is_remembered_of_topics(world: World) -> None:
    """Else each would remember it anew, and try the same pattern on each new topic."""
    anns = [user(world, "ann") for _ in range(3)]
    for number, each in enumerate(anns):
        assert reason(each, c="subscribe", t="^nothing$", sub_id=f"{number}") == ""
    rights = {id(world.engine._connections[each.number].reading) for each in anns}
    assert len(rights) == 1
    assert world.engine._routes["json"].pattern_count == 1


def test_filters_are_compiled_once_for_all_topics_of_a_user() -> None:
    """The connections of a user may together have more topics than are remembered."""
    access = Rights("eve", [Entitlement("eve", "all", "^work", "/id = 3")]).publishing
    filters = {access.with_filter(f"work-{each}", "", None)[1] for each in range(5000)}
    assert len(filters) == 1


def test_of_long_topics_nothing_is_remembered(world: World) -> None:
    """A publish asks for its topic before anything looks at its length."""
    ann = user(world, "ann")
    topic = "x" * 1_000_000
    assert reason(ann, b"{}", c="publish", t=topic) == REFUSED
    access = world.engine._connections[ann.number].publishing
    assert access is not None
    assert topic not in access._verdicts
    assert not access.is_granted(topic)


def test_combinations_of_grants_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic may match any of them: twenty grants have a million."""
    monkeypatch.setattr("haclient_fake_server.engine.entitlements.MAX_COMBINATIONS", 50)
    grants = [Entitlement("ann", "all", f"{each}.*", f"/v = '{each}'") for each in "abcdefgh"]
    access = Rights("ann", grants).publishing
    for number in range(1, 256):
        letters = "".join(each for at, each in enumerate("abcdefgh") if number >> at & 1)
        _, allowed = access.with_filter(letters + "x" * 300, "", None)
        assert allowed is not None
        assert allowed(Document(b'{"v":"%s"}' % letters[-1:].encode()))
        assert not allowed(Document(b'{"v":"i"}'))
    assert len(access._by_texts) <= 50

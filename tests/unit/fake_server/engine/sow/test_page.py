"""Pages of a query's result, beside a query of the same page."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.live_records import apply_delta
from haclient.protocol.messages import Message
from haclient_fake_server.engine.filters import Document, compile_filter, parse_order_by
from haclient_fake_server.engine.settings import SowTopic as SowSettings
from haclient_fake_server.engine.sow.page import MAX_PAGE_RECORDS, Page, PageChange
from haclient_fake_server.engine.sow.table import Query, SowTable
from support.engine import Peer, World

pytestmark = pytest.mark.row("CC15")

SOW = (SowSettings("orders", ("/id",)), SowSettings("named"))
ORDERS = ("", "/px", "/px DESC", "/kind, /px DESC")

CHANGES = st.lists(
    st.tuples(
        st.sampled_from("abcdefgh"),
        st.none() | st.integers(0, 3) | st.sampled_from(["x", "y"]),
        st.integers(0, 1),
    )
    | st.frozensets(st.sampled_from("abcdefgh"), min_size=1, max_size=4),
    max_size=30,
)


def built(topic: SowTable, query: Query) -> Page:
    page = Page(topic, query)
    assert list(page.build(2**20)) == []
    return page


def put(topic: SowTable, key: str, px: int, kind: int = 0) -> None:
    topic.apply(Document(b'{"px":%d,"kind":%d}' % (px, kind)), key)


@given(
    changes=CHANGES,
    order=st.sampled_from(ORDERS),
    skip_n=st.integers(0, 4),
    top_n=st.integers(0, 4),
    has_filter=st.booleans(),
)
def test_a_page_is_what_a_query_gives_at_each_moment(
    changes: list[tuple[str, int | str | None, int] | frozenset[str]],
    order: str,
    skip_n: int,
    top_n: int,
    has_filter: bool,  # noqa: FBT001  # Hypothesis calls it
) -> None:
    topic = SowTable("named")
    query = Query(
        compile_filter("/kind = 1 OR /px = 1") if has_filter else None,
        order_by=parse_order_by(order),
        top_n=top_n,
        skip_n=skip_n,
        paged=True,
    )
    for number, key in enumerate("gca"):
        put(topic, key, number % 2)
    page = built(topic, query)
    for change in changes:
        before = page.keys
        if isinstance(change, frozenset):
            keys = {record.key for record in topic.delete_keys(change)}
        else:
            key, px, kind = change
            value = "null" if px is None else f'"{px}"' if isinstance(px, str) else px
            topic.apply(Document(f'{{"px":{value},"kind":{kind}}}'.encode()), key)
            keys = {key}
        told = page.update(keys)
        expected = tuple(record.key for record in topic.query(query).records)
        assert page.keys == expected
        assert told.left == tuple(each for each in before if each not in expected)
        assert told.present == tuple(
            each for each in expected if each not in before or each in keys
        )
        assert told.entered == set(expected) - set(before)


def test_changes_behind_a_full_page_are_not_seen() -> None:
    topic = SowTable("named")
    for number in range(5):
        put(topic, str(number), number)
    page = built(topic, Query(order_by=parse_order_by("/px"), top_n=2, skip_n=1, paged=True))
    put(topic, "4", 9)
    assert page.update(["4"]) == PageChange()
    topic.delete_keys(["3"])
    assert page.update(["3"]) == PageChange()
    topic.delete_keys(["0"])
    assert page.update(["0"]) == PageChange(("1",), ("4",), frozenset("4"))


def paged(world: World, **fields: str | int) -> Peer:
    peer = world.client("pager")
    command: dict[str, str | int] = {
        "c": "sow_and_subscribe",
        "cid": "1",
        "t": "orders",
        "sub_id": "1",
        "bs": 10,
    }
    peer.send(**{**command, "a": "processed", **fields})
    return peer


def shown(messages: list[Message]) -> list[tuple[str, str, str]]:
    return [
        (each.kind, each.reason, each.data.decode())
        for each in messages
        if each.kind in {"sow", "p", "oof"}
    ]


def world_with(*bodies: str) -> tuple[World, Peer]:
    world = World(sow_topics=SOW)
    publisher = world.client()
    for body in bodies:
        publisher.publish(None, body.encode())
    return world, publisher


def order(number: int, px: int) -> str:
    return f'{{"id":{number},"px":{px}}}'


def test_records_enter_and_leave_the_page_of_a_subscription() -> None:
    world, publisher = world_with(*(order(number, number * 10) for number in range(1, 6)))
    peer = paged(world, orderby="/px DESC", opts="top_n=2,skip_n=1,oof")
    assert shown(peer.take()) == [("sow", "", order(4, 40)), ("sow", "", order(3, 30))]
    publisher.publish(None, order(4, 45).encode())  # stays
    assert shown(peer.take()) == [("p", "", order(4, 45))]
    publisher.publish(None, order(9, 99).encode())  # pushes another one in, and one out
    assert shown(peer.take()) == [("oof", "match", order(3, 30)), ("p", "", order(5, 50))]
    publisher.publish(None, order(1, 11).encode())  # beyond the page
    assert shown(peer.take()) == []
    publisher.send(c="sow_delete", t="orders", filter="/id IN (5, 4)")
    assert shown(peer.take()) == [
        ("oof", "deleted", order(5, 50)),
        ("oof", "deleted", order(4, 45)),
        ("p", "", order(3, 30)),
        ("p", "", order(2, 20)),
    ]


def test_without_oof_a_page_says_what_enters_only_and_with_select_only_some_of_it() -> None:
    world, publisher = world_with(order(1, 10), order(2, 20))
    peer = paged(world, orderby="/px", opts="top_n=1,skip_n=0,select=[-/px],timestamp,bookmark")
    assert shown(peer.take()) == [("sow", "", '{"id":1}')]
    world.advance(60)
    publisher.send(c="sow_delete", t="orders", filter="/id = 1")
    (entered,) = peer.take()
    assert (entered.kind, entered.data, entered.sub_ids) == ("p", b'{"id":2}', ["1"])
    assert entered.timestamp == "20231114T221500.000000Z"  # when it was published
    assert entered.bookmark
    assert entered.sow_key
    publisher.publish(None, order(2, 21).encode(), x="c")
    assert [each.correlation_id for each in peer.take()] == ["c"]


def test_a_filter_decides_who_is_in_the_page_and_others_are_not_disturbed() -> None:
    world, publisher = world_with(order(1, 10), order(2, 20), order(3, 30))
    whole = world.client("whole")
    whole.subscribe(a="")
    peer = paged(world, orderby="/px", opts="top_n=1,skip_n=0,oof", filter="/px < 25")
    assert shown(peer.take()) == [("sow", "", order(1, 10))]
    publisher.publish(None, order(1, 99).encode())
    assert shown(peer.take()) == [("oof", "match", order(1, 99)), ("p", "", order(2, 20))]
    peer.send(c="unsubscribe", sub_id="1")
    publisher.publish(None, order(2, 1).encode())
    assert shown(peer.take()) == []
    assert shown(whole.take()) == [("p", "", order(1, 99)), ("p", "", order(2, 1))]


def test_pages_of_a_query_do_not_overlap_and_leave_nothing_out() -> None:
    world, _ = world_with(*(order(number, number % 2) for number in range(7)))
    found = list[str]()
    for skip_n in range(0, 8, 2):
        peer = world.client("reader")
        options = f"top_n=2,skip_n={skip_n}"
        peer.send(c="sow", cid="1", t="orders", orderby="/px", opts=options, bs=10)
        found += [body for _, _, body in shown(peer.take())]
    assert sorted(found) == sorted(order(number, number % 2) for number in range(7))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"t": "^ord", "opts": "top_n=1,skip_n=0"}, "invalid topic"),
        ({"t": "unknown", "opts": "top_n=1,skip_n=0"}, "invalid topic"),
        ({"opts": f"top_n={MAX_PAGE_RECORDS + 1},skip_n=0"}, "invalid options"),
        ({"opts": "skip_n=0"}, "invalid options"),
        ({"opts": "top_n=1,skip_n=0,conflation=1s"}, "invalid options"),
    ],
)
def test_what_can_have_no_page_is_refused(fields: dict[str, str], reason: str) -> None:
    world, _ = world_with(order(1, 10))
    (answer,) = paged(world, **fields).take()
    assert (answer.status, answer.reason) == ("failure", reason)


DELTAS = {"c": "sow_and_delta_subscribe", "orderby": "/px DESC", "opts": "top_n=2,skip_n=1,oof"}


def test_a_page_of_deltas_has_what_enters_whole_and_of_changes_what_they_change() -> None:
    world, publisher = world_with(*(order(number, number * 10) for number in range(1, 6)))
    peer = paged(world, **DELTAS)
    assert shown(peer.take()) == [("sow", "", order(4, 40)), ("sow", "", order(3, 30))]
    publisher.publish(None, b'{"id":4,"px":45}')
    assert shown(peer.take()) == [("p", "", '{"px":45,"id":4}')]
    publisher.publish(None, b'{"id":3,"px":47}')  # it changes places, within the page
    assert shown(peer.take()) == [("p", "", '{"px":47,"id":3}')]
    publisher.publish(None, b'{"id":5,"px":46}')  # in it comes, and out goes another one
    assert shown(peer.take()) == [("oof", "match", order(3, 47)), ("p", "", order(5, 46))]
    publisher.send(b'{"id":5,"q":1}', c="delta_publish", t="orders")
    assert shown(peer.take()) == [("p", "", '{"q":1,"id":5}')]
    publisher.send(c="sow_delete", t="orders", filter="/id = 5")
    assert shown(peer.take()) == [
        ("oof", "deleted", '{"id":5,"px":46,"q":1}'),
        ("p", "", order(2, 20)),
    ]


def test_a_page_of_deltas_may_select_and_leave_out_what_says_nothing() -> None:
    world, publisher = world_with(order(1, 10), order(2, 20))
    options = "top_n=2,skip_n=0,no_empties,select=[-/,+/id,+/px]"
    peer = paged(world, **{**DELTAS, "opts": options})
    assert len(shown(peer.take())) == 2
    publisher.publish(None, b'{"id":1,"px":10,"q":1}')
    assert shown(peer.take()) == []
    publisher.publish(None, b'{"id":1,"q":1}')
    assert shown(peer.take()) == [("p", "", '{"px":null}')]
    publisher.publish(None, b'{"id":3,"px":30,"q":1}')
    assert shown(peer.take()) == [("p", "", order(3, 30))]


@pytest.mark.parametrize("kind", ["sow_and_subscribe", "sow_and_delta_subscribe"])
def test_a_page_is_replaced_by_another_one_of_the_topic(kind: str) -> None:
    world, publisher = world_with(*(order(number, number * 10) for number in range(1, 6)))
    fields: dict[str, str | int] = {"c": kind, "orderby": "/px"}
    peer = paged(world, **fields, opts="top_n=2,skip_n=0,oof")
    peer.take()
    moved = {**fields, "t": "orders", "cid": "2", "sub_id": "1", "bs": 10, "a": "completed"}
    peer.send(**moved, opts="top_n=2,skip_n=1,oof,replace")
    messages = peer.take()
    assert shown(messages) == [
        ("oof", "match", order(1, 10)),
        ("sow", "", order(2, 20)),
        ("sow", "", order(3, 30)),
    ]
    kinds = [each.ack_type or each.kind for each in messages]
    assert kinds == ["oof", "group_begin", "sow", "sow", "group_end", "completed"]
    publisher.publish(None, order(1, 25).encode())
    assert shown(peer.take()) == [("oof", "match", order(2, 20)), ("p", "", order(1, 25))]
    wider = {**moved, "orderby": "/px DESC", "filter": "/px > 20"}
    peer.send(**wider, opts="top_n=3,skip_n=0,replace")
    assert shown(peer.take()) == [
        ("sow", "", order(5, 50)),
        ("sow", "", order(4, 40)),
        ("sow", "", order(3, 30)),
    ]
    publisher.publish(None, order(1, 26).encode())  # in the page before, and not in this one
    assert shown(peer.take()) == []


@pytest.mark.parametrize(
    ("first", "later", "reason"),
    [
        ("top_n=2,skip_n=0", {"opts": "replace"}, "invalid options"),
        ("top_n=2,skip_n=0", {"opts": "replace,top_n=2"}, "invalid options"),
        ("top_n=2,skip_n=0", {"opts": "replace,skip_n=1,top_n=2", "t": "named"}, "invalid topic"),
        ("top_n=2,skip_n=0", {"opts": "top_n=2,skip_n=0"}, "subid in use"),
        ("", {"opts": "replace,top_n=2,skip_n=0"}, "invalid options"),
    ],
)
def test_what_cannot_replace_a_page_leaves_it_as_it_was(
    first: str, later: dict[str, str], reason: str
) -> None:
    world, publisher = world_with(order(1, 10))
    peer = paged(world, orderby="/px", opts=first)
    peer.take()
    command = {"c": "sow_and_subscribe", "cid": "2", "sub_id": "1", "t": "orders", "a": "processed"}
    peer.send(**{**command, **later})
    (answer,) = peer.take()
    assert (answer.status, answer.reason) == ("failure", reason)
    publisher.publish(None, order(1, 11).encode())
    assert shown(peer.take()) == [("p", "", order(1, 11))]


EVENTS = st.lists(
    st.tuples(st.sampled_from(["p", "p", "delta_publish", "sow_delete"]), st.integers(1, 6))
    | st.tuples(st.just("replace"), st.integers(0, 3)),
    max_size=25,
)


@given(
    events=EVENTS,
    values=st.lists(st.integers(0, 5), min_size=25, max_size=25),
    kind=st.sampled_from(["sow_and_subscribe", "sow_and_delta_subscribe"]),
    options=st.sampled_from(["", ",select=[-/extra]"]),
)
def test_who_applies_what_a_page_sends_has_what_a_query_gives(
    events: list[tuple[str, int]], values: list[int], kind: str, options: str
) -> None:
    world, publisher = world_with(*(order(number, number) for number in range(1, 4)))
    world.client("other")
    fields: dict[str, str | int] = {"c": kind, "orderby": "/px DESC"}
    window = f"top_n=2,skip_n=1{options}"
    peer = paged(world, **fields, opts=f"{window},oof")
    page: dict[str, dict[str, object]] = {}
    apply_page(page, peer.take(), has_deltas="delta" in kind)
    for (event, number), px in zip(events, values, strict=False):
        if event == "replace":
            window = f"top_n={number},skip_n={px % 3}{options}"
            command = {**fields, "t": "orders", "cid": "2", "sub_id": "1", "bs": 10}
            peer.send(**command, opts=f"{window},oof,replace")
        else:
            body = {"id": number, "px": px, f"n{px % 2}": number, "extra": px}
            publisher.send(json.dumps(body).encode(), c=event, t="orders")
        apply_page(page, peer.take(), has_deltas="delta" in kind)
        publisher.send(c="sow", cid="q", t="orders", orderby="/px DESC", bs=10, opts=window)
        found = [each for each in publisher.take() if each.kind == "sow"]
        assert page == {each.sow_key: json.loads(each.data) for each in found}


def apply_page(
    page: dict[str, dict[str, object]], messages: list[Message], *, has_deltas: bool
) -> None:
    """What a subscriber with `oof` does, and what it may expect of a delta."""
    for each in messages:
        body: dict[str, object] = json.loads(each.data) if each.data else {}
        match each.kind:
            case "sow":
                page[each.sow_key] = body
            case "p" if has_deltas and each.sow_key in page:
                before = page[each.sow_key]
                page[each.sow_key] = apply_delta(before, body)
                said = {name for name, value in body.items() if before.get(name) != value}
                assert said | {"id"} == set(body)
            case "p":
                page[each.sow_key] = body
            case "oof":
                del page[each.sow_key]
            case _:
                assert each.kind in {"ack", "group_begin", "group_end"}


@pytest.mark.parametrize("part_bytes", [1, 1100, 2**20])
@given(data=st.data())
def test_a_page_that_changes_while_it_is_built_is_what_a_query_gives_then(
    data: st.DataObject, part_bytes: int
) -> None:
    topic, numbers = SowTable("named"), st.integers(0, 7)
    query = Query(
        compile_filter("/px != 3"),
        order_by=parse_order_by("/px DESC"),
        top_n=3,
        skip_n=1,
        paged=True,
    )
    for number in range(6):
        put(topic, str(number), number % 4)
    page = Page(topic, query)
    for _ in page.build(part_bytes):
        if data.draw(st.booleans()):
            key = str(data.draw(numbers))
            if data.draw(st.booleans()):
                topic.delete_keys([key])
            else:
                put(topic, key, data.draw(numbers))
            assert page.update([key]) == PageChange()
    found = topic.query(query)
    assert page.keys == tuple(record.key for record in found.records)
    assert page.matches == found.matches


def stepped(world: World, peer: Peer) -> None:
    """Let the broker take one step for a client."""
    world.apply(world.engine.pump(peer.number, world.now))


def test_others_are_served_while_a_page_is_built_and_replaced() -> None:
    world = World(sow_topics=SOW, query_step_bytes=1)
    publisher, peer = world.client(), world.client("pager")
    for number in range(1, 4):
        publisher.publish(None, order(number, number * 10).encode())
    command: dict[str, str | int] = {"c": "sow_and_subscribe", "t": "orders", "sub_id": "1"}
    command |= {"a": "stats", "bs": 10, "orderby": "/px"}
    peer.send(**command, cid="1", opts="top_n=2,skip_n=0,oof")
    world.replay_backlog(peer)
    assert shown(peer.take()) == [("sow", "", order(1, 10)), ("sow", "", order(2, 20))]
    peer.stalled = True
    for cid in ("2", "3"):  # the second one takes the place of the first, which is not complete
        peer.send(**command, cid=cid, opts="top_n=2,skip_n=1,oof,replace")
        stepped(world, peer)
        assert shown(peer.take()) == []
    publisher.send(c="sow_delete", t="orders", filter="/id = 1", cid="d", a="completed")
    publisher.publish(None, order(4, 25).encode())
    publisher.publish(None, order(3, 5).encode())
    assert publisher.take()[-1].ack_type == "completed"
    peer.stalled = False
    world.replay_backlog(peer)
    messages = peer.take()
    assert shown(messages) == [
        ("oof", "match", order(1, 10)),  # as the subscriber has it
        ("sow", "", order(2, 20)),
        ("sow", "", order(4, 25)),
    ]
    assert [each.query_id for each in messages if each.kind == "group_begin"] == ["1"]
    assert (messages[-1].records_returned, messages[-1].matches) == (2, 3)
    publisher.publish(None, order(3, 30).encode())
    assert shown(peer.take()) == [("oof", "match", order(2, 20)), ("p", "", order(3, 30))]
    peer.stalled = True
    peer.send(**command, cid="4", opts="top_n=2,skip_n=0,oof,replace")
    peer.send(c="unsubscribe", cid="5", sub_id="1")
    peer.stalled = False
    world.replay_backlog(peer)
    assert shown(peer.take()) == []


def test_a_change_does_not_look_at_all_of_a_long_page(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = SowTable("named")
    for number in range(9):
        put(topic, f"k{number}", number)
    page = built(topic, Query(order_by=parse_order_by("/px"), top_n=5, skip_n=2, paged=True))
    monkeypatch.setattr(Page, "keys", property(lambda _: pytest.fail("all of the page")))
    put(topic, "k4", 99)
    assert page.update(["k4"]) == PageChange(("k4",), ("k7",), frozenset({"k7"}))
    put(topic, "k4", -1)
    assert page.update(["k4"]) == PageChange(("k7",), ("k1",), frozenset({"k1"}))

"""Delivery plans."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient_fake_server.engine import routes
from haclient_fake_server.engine.connections import (
    BookmarkSubscription,
    Connection,
    Selection,
    Style,
    Subscription,
)
from haclient_fake_server.engine.filters import Document, compile_filter
from haclient_fake_server.engine.journal import MemoryJournal
from haclient_fake_server.engine.patterns import TopicMatcher
from haclient_fake_server.engine.queues.registry import QueueRegistry
from haclient_fake_server.engine.routes import FanoutGroup, Plan, Route, Routes, RouteTable
from haclient_fake_server.engine.settings import EngineSettings, LogTopic, QueueTopic, SowTopic

ONE, TWO = Connection(1, peer="", now=0), Connection(2, peer="", now=0)


def subscription(
    connection: Connection, sub_id: str, *, style: int = Style.PLAIN, filter_: str = ""
) -> Subscription:
    number = 100 * connection.id + int(sub_id)
    selection = Selection(
        TopicMatcher("orders"), compile_filter(filter_) if filter_ else None, style
    )
    return Subscription(connection, sub_id, number=number, selection=selection)


def plan(*subscriptions: Subscription) -> Plan:
    return Plan(b'"orders"', subscriptions)


def test_connections_with_the_same_ids_share_a_lane() -> None:
    (group,) = plan(subscription(ONE, "1"), subscription(TWO, "1")).everyone
    assert group == FanoutGroup(b'{"c":"p","t":"orders","sids":"1"', Style.PLAIN, (ONE, TWO))


def test_ids_of_one_connection_share_a_frame() -> None:
    (group,) = plan(subscription(ONE, "1"), subscription(ONE, "2")).everyone
    assert group.head == b'{"c":"p","t":"orders","sids":"1,2"'


@pytest.mark.row("RB11")
def test_other_headers_are_another_lane() -> None:
    groups = plan(subscription(ONE, "1"), subscription(ONE, "2", style=Style.BOOKMARK)).everyone
    assert [group.style for group in groups] == [Style.PLAIN, Style.BOOKMARK]


def test_who_matches_is_decided_by_message() -> None:
    it = plan(subscription(ONE, "1", filter_="/n > 5"), subscription(ONE, "2"))
    assert it.filtered
    (low,), (high,) = it.matching(Document(b'{"n":1}')), it.matching(Document(b'{"n":9}'))
    assert low.head.endswith(b'"2"')
    assert high.head.endswith(b'"1,2"')
    assert it.matching(Document(b'{"n":8}')) is it.matching(Document(b'{"n":9}'))


@given(st.lists(st.integers(0, 7), max_size=30))
def test_forgetting_lanes_never_changes_them(values: list[int]) -> None:
    items = [subscription(ONE, str(bit), filter_=f"/b{bit} = 1") for bit in range(3)]
    it = plan(*items)
    for value in values:
        body = ",".join(f'"b{bit}":{value >> bit & 1}' for bit in range(3))
        groups = it.matching(Document(f"{{{body}}}".encode()))
        wanted = ",".join(str(bit) for bit in range(3) if value >> bit & 1)
        assert [group.head[29:].strip(b'"').decode() for group in groups] == [wanted] * bool(wanted)


def test_lanes_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MAX_REMEMBERED_MASKS", 1)
    it = plan(subscription(ONE, "1", filter_="/n > 5"))
    high, low = Document(b'{"n":9}'), Document(b'{"n":1}')
    first = it.matching(high)
    assert it.matching(low) == ()
    assert it.matching(high) == first


def test_who_loses_a_record_must_have_seen_it_and_want_to_know() -> None:
    item = subscription(ONE, "1", filter_="/n > 5")
    it = plan(item, subscription(ONE, "2"))
    assert not it.watched
    item.oof = True
    it = plan(item, subscription(ONE, "2"))
    assert it.watched
    high, low = Document(b'{"n":9}'), Document(b'{"n":1}')
    (group,) = it.losing(high, low)
    assert group.head == b'{"c":"oof","t":"orders","sids":"1"'
    assert it.losing(high, None) == (group,)
    assert it.losing(high, high) == it.losing(low, low) == it.losing(low, None) == ()


def test_a_change_of_subscriptions_drops_the_plans() -> None:
    table = RouteTable("json", lambda topic, kind: Route(topic, kind, logged=False, sow=None))
    route = table.route("orders")
    assert table.route("orders") is route
    item = subscription(ONE, "1")
    selection = Selection(TopicMatcher("orders"))
    from_log = BookmarkSubscription(ONE, "2", number=2, selection=selection)
    assert table.plan(route).subscriptions == ()
    table.enter(item)
    table.enter(from_log)
    assert route.plan is None
    assert table.plan(route).subscriptions == (item,), "the topic is not logged"
    table.leave(item)
    table.leave(item)
    assert table.plan(route).subscriptions == ()


def pattern_of(connection: Connection, number: int, text: str) -> Subscription:
    selection = Selection(TopicMatcher(text))
    return Subscription(connection, f"{number}", number=number, selection=selection)


def test_subscriptions_with_one_pattern_are_found_and_left_one_by_one() -> None:
    table = RouteTable("json", lambda topic, kind: Route(topic, kind, logged=True, sow=None))
    items = [pattern_of(ONE, number, "^o.*" if number % 2 else "^x.*") for number in range(6)]
    for item in items:
        table.enter(item)
    orders = table.route("orders")
    assert table.plan(orders).subscriptions == (items[1], items[3], items[5])
    table.leave(items[3])
    assert orders.plan is None
    assert table.plan(orders).subscriptions == (items[1], items[5])
    for item in items:
        table.leave(item)
    assert table.plan(orders).subscriptions == ()
    assert not table._patterns
    assert not table._pattern_numbers


def test_one_search_serves_all_subscriptions_with_the_same_pattern() -> None:
    table = RouteTable("json", lambda topic, kind: Route(topic, kind, logged=True, sow=None))
    asked: list[str] = []

    def rights(topic: str) -> bool:
        asked.append(topic)
        return True

    for number in range(50):
        matcher = TopicMatcher("^o", allowed=rights)
        selection = Selection(matcher)
        table.enter(Subscription(ONE, f"{number}", number=number, selection=selection))
    assert len(table.plan(table.route("orders")).subscriptions) == 50
    assert asked == ["orders"]


def test_a_new_pattern_is_tried_alone_on_a_topic_that_is_known() -> None:
    table = RouteTable("json", lambda topic, kind: Route(topic, kind, logged=True, sow=None))
    orders = table.route("orders")
    for number in range(100):  # a flood, with a publish after each
        table.enter(pattern_of(ONE, number, f"^o{number}|rs"))
        assert len(table.plan(orders).subscriptions) == number + 1
    assert table.pattern_checks == 100


@given(st.lists(st.tuples(st.sampled_from("elp"), st.integers(0, 3), st.integers(0, 2))))
def test_plans_are_those_of_a_table_that_tries_all_patterns(
    steps: list[tuple[str, int, int]],
) -> None:
    """Entering, leaving and planning in any order, patterns that come back included."""
    table = RouteTable("json", lambda topic, kind: Route(topic, kind, logged=True, sow=None))
    members: list[Subscription] = []
    patterns = ("^a", "b$", "^(a|b)", "c.*")
    for number, (step, pattern, topic) in enumerate(steps):
        if step == "e":
            members.append(pattern_of(ONE, number, patterns[pattern]))
            table.enter(members[-1])
        elif step == "l" and members:
            table.leave(members.pop(pattern % len(members)))
        route = table.route(("a", "ab", "cb")[topic])
        plan = route.plan or table.plan(route)
        wanted = [item for item in members if item.matcher.matches(route.topic)]
        assert plan.subscriptions == tuple(sorted(wanted, key=lambda item: item.number))


def test_plans_of_many_topics_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MAX_PLANNED_MEMBERS", 10)
    table = RouteTable("json", lambda topic, kind: Route(topic, kind, logged=True, sow=None))
    for number in range(3):
        table.enter(pattern_of(ONE, number, "^o"))
    for _ in range(3):
        for number in range(20):
            route = table.route(f"o{number}")
            assert len((route.plan or table.plan(route)).subscriptions) == 3
        planned = [route for route in table.routes.values() if route.plan is not None]
        assert len(planned) * 3 <= 10
        assert table._known_members <= 10
    crowded = RouteTable("json", lambda topic, kind: Route(topic, kind, logged=True, sow=None))
    for number in range(20):  # more than the limit in one plan
        crowded.enter(pattern_of(ONE, number, "^o"))
    assert len(crowded.plan(crowded.route("orders")).subscriptions) == 20


def test_a_publish_to_a_redirected_name_goes_to_the_topic() -> None:
    table = RouteTable("json", lambda topic, kind: Route(topic, kind, logged=True, sow=None))
    table.redirect("work", "jobs")
    assert table.targets == {"work": table.route("jobs"), "jobs": table.route("jobs")}
    own = table.route("work")  # the topic of that name is another one, and gets no publish
    assert own is not table.route("jobs")
    assert table.targets["work"] is table.route("jobs")


def test_a_topic_that_is_known_may_still_be_redirected() -> None:
    table = RouteTable("json", lambda topic, kind: Route(topic, kind, logged=True, sow=None))
    table.route("work")
    table.redirect("work", "jobs")
    assert table.targets["work"] is table.route("jobs")


def test_what_is_not_replay_is_not_in_the_plan_of_a_topic_that_a_queue_has_taken_over() -> None:
    (queue,) = QueueRegistry([QueueTopic(name="orders")], MemoryJournal())
    queues = (queue,)
    table = RouteTable("json", lambda topic, kind: Route(topic, kind, logged=True, queues=queues))
    assert table.route("orders").is_queue
    assert not table.route("elsewhere").is_queue
    from_log = BookmarkSubscription(ONE, "2", number=2, selection=Selection(TopicMatcher("orders")))
    table.enter(subscription(ONE, "1"))
    table.enter(from_log)
    plan = table.plan(table.route("orders"))
    assert (plan.subscriptions, plan.waiting) == ((), (from_log,))


@pytest.mark.row("TL2", "AK5")
def test_what_is_logged_depends_on_topic_and_message_type() -> None:
    settings = EngineSettings(log_topics=(LogTopic("orders"), LogTopic("^fix", "nvfix")))
    it = Routes(settings, MemoryJournal())
    assert it.is_logged("orders", "json")
    assert it.is_logged("fix1", "nvfix")
    assert not it.is_logged("fix1", "json")
    assert not it.is_logged("orders2", "json")


def test_sow_topics_come_in_the_order_of_the_configuration() -> None:
    topics = (SowTopic("b", ("/id",)), SowTopic("x", ("/id",), "bson"), SowTopic("a", ("/id",)))
    it = Routes(EngineSettings(sow_topics=topics), MemoryJournal())
    assert [topic.name for topic in it.sow_tables("json", TopicMatcher(".*"))] == ["b", "a"]
    assert it["json"].route("a").sow is it.sow_tables("json", TopicMatcher(".*"))[1]

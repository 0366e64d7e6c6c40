from __future__ import annotations

import pytest

from haclient.errors import SubIdInUse
from haclient.session.subscriptions import Router, Subscription
from support.requests import request_of
from support.sinks import NoQueue


def subscription(
    sub_id: str, *, query_id: str = "", command_id: str = "", ends: tuple[str, ...] = ()
) -> Subscription:
    request = request_of(sub_id, query_id=query_id, ends=frozenset(ends))
    return Subscription(request, NoQueue(), command_id=command_id)


@pytest.fixture
def router() -> Router:
    return Router()


def test_a_message_for_several_subscriptions_is_routed_to_each_once(router: Router) -> None:
    one, two = subscription("1"), subscription("2")
    router.add(one)
    router.add(two)
    assert router.route("1, 2 ,1") == (one, two)
    assert router.route("2,9") == (two,)
    assert router.route("9") == ()


def test_a_remembered_route_is_forgotten_when_subscriptions_change(router: Router) -> None:
    one, two = subscription("1"), subscription("2")
    router.add(one)
    assert router.route("1,2") == (one,)
    router.add(two)
    assert router.route("1,2") == (one, two)
    router.remove(one)
    assert router.route("1,2") == (two,)


def test_a_peer_that_invents_routes_does_not_grow_the_memory(router: Router) -> None:
    for number in range(5000):
        router.route(str(number))
    assert len(router._routes) <= 1024


@pytest.mark.row("CC17", "CC37")
def test_an_id_that_is_active_is_refused_and_nothing_is_entered(router: Router) -> None:
    router.add(subscription("1"))
    with pytest.raises(SubIdInUse, match="'1' is active"):
        router.add(subscription("2", query_id="1"))
    assert router.get("2") is None
    assert len(router.all()) == 1


def test_a_query_is_found_under_both_ids_and_listed_once(router: Router) -> None:
    query = subscription("s", query_id="q", command_id="7")
    router.add(query)
    assert router.get("s") is router.get("q") is query
    assert router.all() == [query]
    router.remove(query)
    router.remove(query)
    assert router.all() == []
    assert router.of_ack("7", "q", "s") is None


def test_an_ack_is_matched_by_command_then_query_then_subscription(router: Router) -> None:
    one, two, three = (
        subscription("1", command_id="10"),
        subscription("2", query_id="q"),
        subscription("3"),
    )
    for each in (one, two, three):
        router.add(each)
    assert router.of_ack("10", "q", "3") is one
    assert router.of_ack("99", "q", "3") is two
    assert router.of_ack("99", "", "3") is three
    assert router.of_ack("", "", "") is None


def test_removing_a_former_owner_of_an_id_leaves_the_present_one(router: Router) -> None:
    old, new = subscription("1", command_id="7"), subscription("1", command_id="7")
    router.add(old)
    router.remove(old)
    router.add(new)
    router.remove(old)
    assert router.get("1") is new
    assert router.of_ack("7", "", "") is new


def test_a_query_is_complete_with_the_last_thing_it_waits_for() -> None:
    query, complete = subscription("1", ends=("group_end", "completed")), list[bool]()
    for what in ("completed", "processed", "completed", "group_end"):
        query.note(what)
        complete.append(query.is_complete)
    assert complete == [False, False, False, True]


def test_a_lasting_one_is_never_complete() -> None:
    lasting = subscription("1")
    lasting.note("completed")
    assert not lasting.is_complete

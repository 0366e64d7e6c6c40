"""The subscriptions that survive a lost connection, and those that are found by their ids."""

from __future__ import annotations

import pytest

from haclient.session.kept_subscriptions import KeptSubscriptions
from haclient.session.subscriptions import Router, Subscription
from haclient.subscription_manager import MemorySubscriptionManager
from support.requests import request_of
from support.sinks import NoQueue

pytestmark = pytest.mark.row("SM5")


def subscription(sub_id: str, query_id: str = "") -> Subscription:
    return Subscription(request_of(sub_id, query_id=query_id), NoQueue())


def test_a_kept_subscription_is_found_by_both_ids_until_it_is_dropped() -> None:
    manager = MemorySubscriptionManager()
    kept = KeptSubscriptions(manager, Router())
    plain, query = subscription("s"), subscription("t", "q")
    for each in (plain, query):
        kept.keep(each)
    assert [each.sub_id for each in manager.entries()] == ["s", "t"]
    assert (kept.find("s"), kept.find("q")) == (plain, None), "a query id is no subscription's"
    assert kept.named(["s", "q", "t", "", "gone"]) == [plain, query]
    kept.drop(query)
    assert query not in kept
    assert kept.named(["q", "t"]) == []
    assert [each.sub_id for each in manager.entries()] == ["s"]


def test_only_what_is_kept_is_changed() -> None:
    manager = MemorySubscriptionManager()
    kept = KeptSubscriptions(manager, Router())
    one, other = subscription("s"), subscription("s")
    kept.keep(one)
    one.request = one.request.changed({"filter": "/a = 1"})
    kept.changed(one)
    other.request = other.request.changed({"filter": "/a = 2"})
    kept.changed(other)
    kept.drop(other)
    assert [each.fields["filter"] for each in manager.entries()] == ["/a = 1"]
    assert list(kept.to_resubscribe()) == [one]


def test_a_client_that_does_not_reconnect_keeps_none() -> None:
    router = Router()
    kept, one = KeptSubscriptions(None, router), subscription("s")
    router.add(one)
    kept.keep(one)
    kept.drop(one)
    assert one not in kept
    assert (kept.all(), kept.find("s")) == ([one], one), "while it is active"

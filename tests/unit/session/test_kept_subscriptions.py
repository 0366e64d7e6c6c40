"""The subscriptions that survive a lost connection, and those that are found by their ids."""

from __future__ import annotations

import dataclasses

import pytest

from haclient.errors import UsageError
from haclient.protocol.commands import Command
from haclient.session.kept_subscriptions import KeptSubscriptions, changed_fields, replacing_fields
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


def active(*sub_ids: str, bm: str = "") -> KeptSubscriptions:
    """Active subscriptions of a client that does not reconnect."""
    router = Router()
    for sub_id in sub_ids:
        router.add(Subscription(request_of(sub_id, bm=bm), NoQueue()))
    return KeptSubscriptions(None, router)


def test_only_active_bookmark_subscriptions_are_paused() -> None:
    kept = active("s", "t", bm="0")
    assert [one.sub_id for one in kept.with_bookmarks(["t", " s", "t"], "pause")] == ["t", "s"]
    for ids, why in (([], "needs the id"), (["s", "gone"], "'gone' is none")):
        with pytest.raises(UsageError, match=why):
            kept.with_bookmarks(ids, "pause")
    with pytest.raises(UsageError, match="'s' is none"):
        active("s").with_bookmarks(["s"], "pause")


def test_an_active_subscription_is_replaced_by_the_fields_of_a_command() -> None:
    kept = active("s")
    command = Command("subscribe", "orders", sub_id="s", options="replace", filter="/a = 1")
    one = kept.to_replace("s", {})
    assert one is kept.find("s")
    fields = replacing_fields("s", command)
    assert (fields["filter"], fields["orderby"], fields["opts"]) == ("/a = 1", "", "")
    with pytest.raises(UsageError, match="keeps its position"):
        replacing_fields("s", dataclasses.replace(command, bookmark="0"))
    with pytest.raises(UsageError, match="no query that could have an order"):
        kept.to_replace("s", {"orderby": "/a"})
    for options in ("oof", "resume"):  # else no server takes it back after a lost connection
        with pytest.raises(UsageError, match=options):
            active("s", bm="0").to_replace("s", {"opts": options})
    with pytest.raises(UsageError, match="no active subscription 'gone'"):
        kept.to_replace("gone", {})
    with pytest.raises(UsageError, match="not active any more"):
        active("s").check_not_ended([one])


def test_what_is_not_given_stays_as_it_was() -> None:
    changes = {"topic": None, "filter": "/a = 1", "order_by": None, "options": "oof"}
    assert changed_fields(changes) == {"filter": "/a = 1", "opts": "oof"}
    with pytest.raises(UsageError, match="topic"):
        changed_fields({"topic": "a\n"})

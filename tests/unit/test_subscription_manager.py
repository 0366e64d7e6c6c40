"""Which subscriptions to enter again."""

from __future__ import annotations

import pytest

from haclient.subscription_manager import Entry, MemorySubscriptionManager


def ids(manager: MemorySubscriptionManager) -> list[str]:
    return [entry.sub_id for entry in manager.entries()]


def entry(sub_id: str, topic: str = "orders") -> Entry:
    return Entry(sub_id, {"c": "subscribe", "t": topic})


@pytest.mark.row("SM1", "SM11")
def test_entries_keep_their_order_and_a_replaced_one_its_place() -> None:
    manager = MemorySubscriptionManager()
    for sub_id in "bac":
        manager.add(entry(sub_id))
    manager.add(entry("a", "trades"))
    assert ids(manager) == ["b", "a", "c"]
    assert [each.fields["t"] for each in manager.entries()] == ["orders", "trades", "orders"]


@pytest.mark.row("SM7")
def test_what_was_ended_on_purpose_is_not_entered_again() -> None:
    manager = MemorySubscriptionManager()
    for sub_id in "abc":
        manager.add(entry(sub_id))
    manager.remove("b")
    manager.remove("unknown")
    assert ids(manager) == ["a", "c"]
    manager.clear()
    assert ids(manager) == []


def test_entries_may_be_removed_while_they_are_walked() -> None:
    manager = MemorySubscriptionManager()
    for sub_id in "abc":
        manager.add(entry(sub_id))
    for each in manager.entries():
        manager.remove(each.sub_id)
    assert ids(manager) == []

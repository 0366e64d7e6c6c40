"""Subscriptions of an earlier process, sent again with handlers that are bound by id."""

from __future__ import annotations

import pytest

from haclient.errors import UsageError
from haclient.protocol.commands import Command
from haclient.restoring import OnOthers, restorable
from haclient.subscription_manager import Entry, MemorySubscriptionManager
from haclient_stores.bookmark import MOST_RECENT

pytestmark = pytest.mark.row("SM10")


def remembered(*entries: tuple[str, str]) -> MemorySubscriptionManager:
    manager = MemorySubscriptionManager()
    for sub_id, options in entries:
        fields: dict[str, str | int] = {"c": "subscribe", "t": "orders", "sub_id": sub_id}
        fields |= {"bm": "0", "opts": options, "a": "processed,completed", "filter": "/a > 1"}
        manager.add(Entry(sub_id, fields))
    return manager


def commands(
    manager: MemorySubscriptionManager,
    *handlers: str,
    others: OnOthers = "refuse",
    active: tuple[str, ...] = (),
    has_store: bool = True,
) -> list[Command]:
    return restorable(manager, active, handlers, others, has_store=has_store)


def test_a_command_is_as_it_was_and_resumes() -> None:
    manager = remembered(("b", "timestamp"), ("a", ""))
    first, second = commands(manager, "a", "b", "more")
    assert (first.sub_id, second.sub_id) == ("b", "a")
    assert (first.topic, first.filter, str(first.options)) == ("orders", "/a > 1", "timestamp")
    assert first.bookmark == MOST_RECENT
    assert first.ack_type == ""
    (without_store, _) = commands(manager, "a", "b", has_store=False)
    assert without_store.start == "0"


def test_without_a_handler_nothing_is_silently_left_out() -> None:
    manager = remembered(*((f"s{number}", "") for number in range(7)))
    with pytest.raises(UsageError, match=r"no handler for 's1', 's2', 's3', 's4', 's5' and 1 more"):
        commands(manager, "s0")
    assert [each.sub_id for each in commands(manager, "s0", others="keep")] == ["s0"]
    assert len(list(manager.entries())) == 7
    assert commands(manager, "s0", others="drop", active=("s0", "s1")) == []
    assert [each.sub_id for each in manager.entries()] == ["s0", "s1"]
    with pytest.raises(UsageError, match="'refuse', 'keep' or 'drop', not 'Drop'"):
        commands(manager, others="Drop")  # type: ignore[arg-type]  # wrong on purpose


def test_a_consumer_of_a_queue_is_taken_up_by_its_own_method() -> None:
    manager = remembered(("q", "max_backlog=5"))
    with pytest.raises(UsageError, match="queue_subscribe"):
        commands(manager, "q")

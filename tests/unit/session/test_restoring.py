"""Subscriptions of an earlier process, sent again with handlers that are bound by id."""

from __future__ import annotations

import pytest

from haclient.errors import UsageError
from haclient.protocol.commands import Command
from haclient.protocol.options import Options
from haclient.session.kept_subscriptions import OnOthers, restorable
from haclient.subscription_manager import Entry, MemorySubscriptionManager
from haclient_stores.bookmark import MOST_RECENT, NOW
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.interfaces import BookmarkStore
from support.custom import DictBookmarkStore

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
    queues: tuple[str, ...] = (),
    store: BookmarkStore | None = None,
) -> list[Command]:
    found = restorable(manager, active, handlers, others, queues=queues, store=store)
    assert all(each.start == "0" for each in found if each.command.sub_id != "s")
    return [each.command for each in found]


def test_a_command_is_as_it_was_and_resumes() -> None:
    manager = remembered(("b", "timestamp"), ("a", ""))
    store = MemoryBookmarkStore()
    store.discard("b", store.log("b", "7|1|"))
    first, second = commands(manager, "a", "b", "more", store=store)
    assert (first.sub_id, second.sub_id) == ("b", "a")
    assert (first.topic, first.filter, str(first.options)) == ("orders", "/a > 1", "timestamp")
    assert first.start == str(MOST_RECENT)
    assert first.ack_type == ""
    assert second.start == "0", "the store does not know it"
    (without_store, _) = commands(manager, "a", "b")
    assert without_store.start == "0"


@pytest.mark.parametrize("start", [str(NOW), "[7|1|:7|9|)", "20261120T093000Z", "7|3|"])
@pytest.mark.parametrize("known", ["nothing", "its start", "an undiscarded message"])
def test_a_subscription_resumes_only_where_the_store_knows_more_than_its_first_bookmark(
    start: str, known: str
) -> None:
    manager, store = MemorySubscriptionManager(), MemoryBookmarkStore()
    manager.add(Entry("s", {"c": "subscribe", "t": "orders", "sub_id": "s", "bm": start}))
    if known == "its start":
        store.subscription("s").begin(acked=True, start=start, entered_us=1)
    elif known == "an undiscarded message":
        store.log("s", "7|5|")
    (command,) = commands(manager, "s", store=store)
    assert command.start == (start if known == "nothing" else str(MOST_RECENT))


def test_what_was_discarded_before_it_became_a_recovery_point_does_not_come_again() -> None:
    manager, store = MemorySubscriptionManager(), MemoryBookmarkStore()
    manager.add(Entry("s", {"c": "subscribe", "t": "orders", "sub_id": "s", "bm": "0"}))
    store.subscription("s").begin(acked=True, start="0")
    store.discard("s", store.log("s", "7|5|"))
    assert str(store.most_recent("s")) == "0"
    (command,) = commands(manager, "s", store=store)
    assert command.start == str(MOST_RECENT)


def test_a_store_of_the_application_is_trusted_to_know_every_subscription() -> None:
    """It may not have kept that `s` began now: what came meanwhile must not be missed."""
    manager = MemorySubscriptionManager()
    manager.add(Entry("s", {"c": "subscribe", "t": "orders", "sub_id": "s", "bm": str(NOW)}))
    (command,) = commands(manager, "s", store=DictBookmarkStore())
    assert command.start == str(MOST_RECENT)


def test_without_a_handler_nothing_is_silently_left_out() -> None:
    manager = remembered(*((f"s{number}", "") for number in range(7)))
    with pytest.raises(UsageError, match=r"no handler for 's1', 's2', 's3', 's4', 's5' and 1 more"):
        commands(manager, "s0")
    assert [each.sub_id for each in commands(manager, "s0", others="keep")] == ["s0"]
    assert len(list(manager.entries())) == 7
    assert commands(manager, "s0", others="drop", active=("s0", "s1")) == []
    assert [each.sub_id for each in manager.entries()] == ["s0", "s1"]
    with pytest.raises(UsageError, match="others is one of refuse, keep, drop, not 'Drop'"):
        commands(manager, others="Drop")  # type: ignore[arg-type]  # wrong on purpose


def test_a_consumer_of_a_queue_acknowledges_only_where_that_is_asked_for() -> None:
    manager = remembered(("q", "max_backlog=5"), ("plain", ""))
    with pytest.raises(UsageError, match=r"'q' consumes a queue: with queues=\{'q': \{\}\}"):
        commands(manager, "q", "plain", others="drop")
    with pytest.raises(UsageError, match="'plain' of `queues` consumes no queue"):
        commands(manager, "q", "plain", queues=("q", "plain"))
    assert len(list(manager.entries())) == 2
    (found,) = restorable(manager, (), ("q",), "keep", queues=("q",), store=None)
    assert (found.backlog, found.command.options) == (5, Options())


def test_only_acks_of_the_application_are_asked_for() -> None:
    """The client asks for its own ones again by itself, and gives them to nobody."""
    manager = MemorySubscriptionManager()
    fields: dict[str, str | int] = {"c": "subscribe", "t": "orders", "a": "processed,stats"}
    for sub_id, acks in (("without", ""), ("with", "stats")):
        manager.add(Entry(sub_id, {**fields, "sub_id": sub_id, "bm": "0"}, acks=acks))
    assert [each.ack_type for each in commands(manager, "with", "without")] == ["", "stats"]


def test_what_a_stream_has_read_is_not_restored_and_forgotten_unless_it_gets_a_handler() -> None:
    manager = remembered(("b", ""))
    for sub_id in ("4", "audit"):
        fields: dict[str, str | int] = {"c": "subscribe", "t": "orders", "sub_id": sub_id}
        manager.add(Entry(sub_id, fields | {"bm": "0"}, is_stream=True))
    with pytest.raises(UsageError, match="no handler for 'b': "):
        commands(manager)
    assert [each.sub_id for each in manager.entries()] == ["b", "4", "audit"]
    assert [each.sub_id for each in commands(manager, "b", "audit")] == ["b", "audit"]
    assert [each.sub_id for each in manager.entries()] == ["b", "audit"]

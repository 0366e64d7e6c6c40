"""Which part of the bookmark store a subscription has, and what of it is redelivered."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from typing_extensions import override

from haclient.errors import UsageError
from haclient.protocol.commands import Command
from haclient.protocol.messages import Message
from haclient.session.bookmark_logs import (
    BookmarkAdvice,
    BookmarkLogs,
    subscribe_header,
    subscription_log,
)
from haclient.session.custom_stores import StoreSubscription
from haclient.session.kept_subscriptions import KeptSubscriptions
from haclient.session.resume import ResumeContext
from haclient.session.subscriptions import Router, Subscription
from haclient_stores.bookmark import EPOCH, MOST_RECENT
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from support.custom import DictBookmarkStore
from support.requests import request_of
from support.sinks import NoQueue

CHUNK = ("1|1|", "1|2|", "1|3|")


class AtWork(NoQueue):
    """The queue of a slow handler, which has yet to process messages."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    @override
    def unprocessed(self) -> list[Message]:
        return [Message(number=number) for number in self.numbers]


class World:
    """A store, and the subscriptions of one connection."""

    def __init__(self) -> None:
        self.store = MemoryBookmarkStore()
        self.router = Router()
        self.logs = BookmarkLogs(self.store, KeptSubscriptions(None, self.router))

    def enter(self, queue: NoQueue | None = None) -> Subscription:
        """Begin the subscription `s`."""
        request = request_of("s", bm=str(EPOCH))
        one = Subscription(request, queue or NoQueue(), log=self.logs.enter(request))
        self.router.add(one)
        return one

    def deliver(self) -> list[str]:
        """Have messages arrive; those that are not dropped as duplicates."""
        return [each for each in CHUNK if self.store.log("s", each) > 0]


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    made.store.open_for("c")
    yield made
    made.store.close()


def test_what_an_ended_subscription_has_not_discarded_is_redelivered(world: World) -> None:
    one = world.enter()
    assert world.deliver() == list(CHUNK)
    assert world.deliver() == []
    world.store.discard("s", 1)
    world.router.remove(one)
    world.logs.release(one)
    assert world.deliver() == list(CHUNK[1:])


def test_nothing_is_redelivered_while_another_one_has_the_id(world: World) -> None:
    one = world.enter()
    world.deliver()
    world.router.remove(one)
    world.enter()
    world.logs.release(one)
    assert world.deliver() == []


def test_a_slow_handler_keeps_what_it_has_yet_to_process(world: World) -> None:
    one = world.enter(AtWork(2))
    world.logs.serve(one)
    world.deliver()
    world.router.remove(one)
    world.logs.release(one)  # without a number: its handler has the messages
    assert world.logs.is_served(one)
    world.enter()
    assert world.deliver() == [CHUNK[0], CHUNK[2]]
    world.logs.served(one)
    assert not world.logs.is_served(one)


def test_the_messages_of_a_refused_subscribe_are_redelivered_to_the_next(world: World) -> None:
    one = world.enter()
    world.deliver()
    world.router.remove(one)
    world.logs.release_refused(one.request)
    assert world.deliver() == list(CHUNK)


def test_an_id_that_was_forgotten_is_generated_again_unless_it_may_still_get_messages(
    tmp_path: Path,
) -> None:
    store = LoggedBookmarkStore(tmp_path / "log")
    store.open_for("c")
    logs = BookmarkLogs(store, KeptSubscriptions(None, Router()))
    assert logs.generated_id("1-a", ()) == "1-a"
    store.log("1-a", CHUNK[0])
    logs.purge_generated("1-a")
    logs.purge_generated("1-a")  # once: it is nobody's now
    assert logs.generated_id("2-b", {"1-a"}) == "2-b"
    assert logs.generated_id("3-c", ()) == "1-a"
    logs.purge_generated("chosen by the application")
    store.close()


def test_without_a_store_nothing_has_a_part_of_it() -> None:
    logs = BookmarkLogs(None, KeptSubscriptions(None, Router()))
    assert logs.enter(request_of("s", bm=str(EPOCH))) is None
    logs.release(Subscription(request_of("s"), NoQueue()))


def advice(command: Command, *, has_store: bool = False) -> list[str]:
    """What is said about a command that is sent three times, to two topics."""
    told = BookmarkAdvice(has_store=has_store)
    told.queues.add("queue")
    request = request_of("s", bm=str(command.bookmark))
    topics = ("a", "b", "a") if command.topic == "a" else (command.topic,) * 3
    commands = [dataclasses.replace(command, topic=topic) for topic in topics]
    return [each for one in commands for each in told.warnings(one, request)]


def test_each_warning_is_given_once_for_its_topic() -> None:
    recent = Command("subscribe", "a", bookmark=MOST_RECENT)
    assert ["without a bookmark store" in each for each in advice(recent)] == [True] * 2
    assert advice(recent, has_store=True) == []
    (of_queue,) = advice(Command("subscribe", "queue", bookmark=EPOCH))
    assert "has a bookmark, so it replays the log" in of_queue
    assert advice(Command("subscribe", "other", bookmark=EPOCH)) == []


def test_a_query_that_resumes_needs_an_id_of_the_application() -> None:
    told, request = BookmarkAdvice(has_store=True), request_of("s", query_id="s")
    query = Command("sow_and_subscribe", "a", bookmark=MOST_RECENT)
    with pytest.raises(UsageError, match="needs a sub_id"):
        list(told.warnings(query, request))
    assert list(told.warnings(dataclasses.replace(query, sub_id="s"), request)) == []


@pytest.mark.row("BS7")
def test_a_store_of_our_own_gives_its_fast_handle_and_any_other_gets_one() -> None:
    ours = MemoryBookmarkStore()
    assert subscription_log(ours, "s") is ours.subscription("s")
    assert isinstance(subscription_log(DictBookmarkStore(), "s"), StoreSubscription)


def test_a_store_begins_anew_at_an_explicit_bookmark_once_the_server_accepts_it(
    world: World,
) -> None:
    one, resume = world.enter(), ResumeContext(lambda: 10**15)
    world.deliver()
    for resumes, redelivered in ((True, []), (False, list(CHUNK))):
        header = subscribe_header(
            one, str(EPOCH), resume, 1.0, version="5.3", resumes=resumes, is_again=False
        )
        assert header["bm"] == str(EPOCH)
        assert world.deliver() == [], "the server may still refuse it"
        assert one.accepted is not None
        one.accepted()
        assert world.deliver() == redelivered

from __future__ import annotations

import pytest
import trio
from typing_extensions import override

from haclient.errors import DisconnectedError, HAClientError, InvalidBookmark
from haclient.protocol.messages import Message
from haclient.session.subscriptions import Marker, Sink, Subscription
from haclient.transport.reentry import Places, best_first
from haclient_stores.tracker.tracker import SubscriptionTracker
from support.clock import in_virtual_time

pytestmark = [in_virtual_time, pytest.mark.row("BS9")]

NOW_US = 1_700_000_000_000_000


class Nowhere(Sink):
    @override
    def put(self, batch: list[Message], size: int) -> None:
        pass

    @override
    def mark(self, marker: Marker) -> None:
        pass

    @override
    def fail(self, error: HAClientError) -> None:
        pass


def made() -> tuple[Places, Subscription, SubscriptionTracker]:
    log = SubscriptionTracker()
    log.begin(acked=False, start="0")
    places = Places(lambda: NOW_US + int(trio.current_time() * 1_000_000))
    return places, Subscription("s", Nowhere(), log=log), log


def enter(places: Places, subscription: Subscription, server: str) -> None:
    places.server = server
    subscription.accepted = None
    places.entering(subscription)
    assert subscription.accepted is not None
    subscription.accepted()


async def test_the_store_follows_a_server_once_it_has_accepted() -> None:
    places, subscription, log = made()
    said: list[str] = []
    subscription.accepted = lambda: said.append("first")
    places.server = "a"
    places.entering(subscription)
    assert (log.standing.server, said) == ("", [])
    subscription.accepted()
    assert (log.standing.server, said) == ("a", ["first"])


async def test_what_another_server_has_sent_last_says_nothing() -> None:
    places, subscription, _ = made()
    enter(places, subscription, "a")
    subscription.whereabouts.last = "7|1|"
    enter(places, subscription, "a")
    assert subscription.whereabouts.last == "7|1|"
    enter(places, subscription, "b")
    assert subscription.whereabouts.last == ""


async def test_the_time_is_that_of_the_wall_clock_when_the_server_was_heard() -> None:
    places, subscription, log = made()
    enter(places, subscription, "a")
    entered_at = trio.current_time()
    places.heard([subscription], entered_at, last=True)
    assert log.standing.heard_us == 0, "the replay is not complete"
    subscription.whereabouts.complete = True
    await trio.sleep(60)
    places.heard([subscription], trio.current_time(), last=False)
    first_us = log.standing.heard_us
    assert first_us == pytest.approx(NOW_US + entered_at * 1_000_000, abs=2)
    await trio.sleep(500)
    places.heard([subscription], trio.current_time() - 10, last=False)
    assert log.standing.heard_us == first_us, "nothing has come: not worth a note"
    places.heard([subscription], trio.current_time() - 10, last=True)
    now_us = NOW_US + trio.current_time() * 1_000_000
    assert log.standing.heard_us == pytest.approx(now_us - 20_000_000, abs=2)


async def test_subscriptions_without_a_memory_are_left_alone() -> None:
    places, _, _ = made()
    places.server = "a"
    plain = Subscription("p", Nowhere())
    places.entering(plain)
    assert plain.accepted is None
    plain.whereabouts.complete = True
    places.heard([plain], 1.0, last=True)


async def test_the_next_form_is_asked_for_only_where_one_is_not_understood() -> None:
    asked: list[str] = []

    async def enter(bookmark: str) -> None:
        await trio.lowlevel.checkpoint()
        asked.append(bookmark)
        if bookmark == "a,b":
            raise InvalidBookmark("no mixtures")
        if bookmark == "lost":
            raise DisconnectedError("lost")

    await best_first(("a,b", "a"), enter, "there")
    await best_first(("c", "a"), enter, "there")
    with pytest.raises(InvalidBookmark):
        await best_first(("a,b",), enter, "there")
    with pytest.raises(DisconnectedError):
        await best_first(("lost", "a"), enter, "there")
    assert asked == ["a,b", "a", "c", "a,b", "lost"]

"""A subscription that receives nothing, while the connection is alive."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from haclient.errors import SubscriptionStalled
from haclient.session.diagnosis import SilenceWatch
from haclient.session.subscriptions import SubscribeRequest, Subscription
from haclient.transport.message_queue import MessageQueue

pytestmark = pytest.mark.row("SM12")

TIMEOUT_S = 10.0


def watched(sub_id: str = "s", *, bookmark: str = "0", options: str = "") -> Subscription:
    fields = {"c": "subscribe", "t": "orders", "bm": bookmark, "opts": options, "sub_id": sub_id}
    request = SubscribeRequest.complete(fields, b"", command_id="1", has_store=True)
    found = Subscription(request, MessageQueue(cap_bytes=100))
    found.sending(0.0)
    return found


class Bench:
    """Connections that follow each other, and the subscriptions on them."""

    def __init__(self, *subscriptions: Subscription) -> None:
        self.subscriptions = subscriptions
        self.is_reading = True
        self.now = 1000.0
        self.error: SubscriptionStalled | None = None
        self._watch = SilenceWatch(TIMEOUT_S)

    def stalls_after(
        self, at_most_s: float, *, every_check: Callable[[], object] = lambda: None
    ) -> float | None:
        """How many seconds one connection lasts until a subscription stalls, `None` if none did."""
        began = self.now
        self._watch.begin(began)
        while self.now < began + at_most_s:
            self.now += self._watch.check_every_s
            every_check()
            self.error = self._watch.check(self.subscriptions, self.now, is_reading=self.is_reading)
            if self.error is not None:
                return self.now - began
        return None


def test_a_subscription_that_receives_nothing_is_noticed_soon_after_the_time() -> None:
    after_s = Bench(watched("s")).stalls_after(1000)
    assert after_s is not None
    assert TIMEOUT_S <= after_s <= 1.25 * TIMEOUT_S


def test_the_error_names_the_subscription() -> None:
    bench = Bench(watched("a7"))
    bench.stalls_after(1000)
    assert bench.error is not None
    assert "'a7' on 'orders'" in str(bench.error)
    assert "for 10 s" in str(bench.error)
    assert bench.error.sub_id == "a7"


@pytest.mark.parametrize("what", ["last_bookmark", "last_persisted"])
def test_messages_and_persisted_acks_are_progress(what: str) -> None:
    subscription = watched()
    bench = Bench(subscription)

    def arrives() -> None:
        setattr(subscription.position, what, f"7|{bench.now}|")

    assert bench.stalls_after(500, every_check=arrives) is None


def test_one_that_stalls_is_noticed_beside_others_that_progress() -> None:
    busy, quiet = watched("busy"), watched("quiet")
    bench = Bench(busy, quiet)

    def arrives() -> None:
        busy.position.last_bookmark = f"7|{bench.now}|"

    assert bench.stalls_after(500, every_check=arrives) is not None


@pytest.mark.parametrize(
    "subscription", [watched(bookmark=""), watched(options="pause")], ids=["plain", "paused"]
)
def test_what_nothing_can_be_expected_for_is_not_watched(subscription: Subscription) -> None:
    assert Bench(subscription).stalls_after(500) is None


def test_a_replay_with_an_end_is_watched_until_it_is_reached() -> None:
    subscription = watched(bookmark="[7|1|:7|9|]")
    bench = Bench(subscription)
    assert bench.stalls_after(500) is not None
    subscription.position.completed(bench.now)
    assert bench.stalls_after(5000) is None


def test_a_client_that_does_not_read_knows_nothing() -> None:
    bench = Bench(watched())
    bench.is_reading = False
    assert bench.stalls_after(500) is None
    bench.is_reading = True
    after_s = bench.stalls_after(500)
    assert after_s is not None
    assert after_s >= TIMEOUT_S


def test_each_connection_in_vain_is_given_twice_the_time_up_to_a_limit() -> None:
    subscription = watched()
    bench = Bench(subscription)
    after = [round((bench.stalls_after(10_000) or 0.0) / TIMEOUT_S) for _ in range(9)]
    assert after == [1, 1, 2, 4, 8, 16, 32, 64, 64]
    subscription.position.last_bookmark = "7|1|"
    after = [round((bench.stalls_after(10_000) or 0.0) / TIMEOUT_S) for _ in range(3)]
    assert after == [1, 1, 2]


def test_a_new_subscription_with_the_same_id_has_the_whole_time() -> None:
    bench = Bench(watched("s"))
    later, began = (watched("s"),), bench.now

    def subscribe_again() -> None:
        if bench.now >= began + TIMEOUT_S - 1:
            bench.subscriptions = later

    after_s = bench.stalls_after(1000, every_check=subscribe_again)
    assert after_s is not None
    assert after_s >= 2 * TIMEOUT_S - 1

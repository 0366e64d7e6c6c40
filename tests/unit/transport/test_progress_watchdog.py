"""Unit tests of `haclient.transport.progress_watchdog`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from haclient.errors import SubscriptionStalled
from haclient.protocol.messages import Message
from haclient.session.subscriptions import SubscribeRequest, Subscription
from haclient.transport.message_queue import Delivery
from haclient.transport.progress_watchdog import ProgressWatchdog
from support.clock import in_virtual_time

pytestmark = [in_virtual_time, pytest.mark.row("SM12")]

TIMEOUT_S = 10.0


def watched(sub_id: str = "s", *, bookmark: str = "0", options: str = "") -> Subscription:
    fields = {"c": "subscribe", "t": "orders", "bm": bookmark, "opts": options, "sub_id": sub_id}
    request = SubscribeRequest.complete(fields, b"", command_id="1", has_store=True)
    return Subscription(sub_id, Delivery(cap_bytes=100), request=request)


def with_full_queue() -> Subscription:
    """Neither paused nor the reason why nothing is read: the server has refused the pause."""
    subscription = watched()
    assert isinstance(subscription.sink, Delivery)
    subscription.sink.put([Message()], subscription.sink.cap_bytes + 1)
    return subscription


class Bench:
    """A watchdog, and what it watches."""

    def __init__(self, *subscriptions: Subscription) -> None:
        self.subscriptions = list(subscriptions)
        self.is_reading = True
        self._watchdog = ProgressWatchdog(
            TIMEOUT_S, subscriptions=lambda: self.subscriptions, is_reading=lambda: self.is_reading
        )

    async def stalls_after(
        self, at_most_s: float, *, every_second: Callable[[], object] = lambda: None
    ) -> float | None:
        """How many seconds one connection lasts until a subscription stalls, `None` if none did."""
        began = trio.current_time()

        async def progress() -> None:
            while True:
                await trio.sleep(1.0)
                every_second()

        with trio.move_on_after(at_most_s):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(progress)
                try:
                    await self._watchdog.run()
                except SubscriptionStalled:
                    nursery.cancel_scope.cancel()
                    return trio.current_time() - began
        return None


async def test_a_subscription_that_receives_nothing_is_noticed_soon_after_the_time() -> None:
    bench = Bench(watched("s"))
    after_s = await bench.stalls_after(1000)
    assert after_s is not None
    assert TIMEOUT_S <= after_s <= 1.25 * TIMEOUT_S + 0.1


async def test_the_error_names_the_subscription() -> None:
    subscription = watched("a7")
    watchdog = ProgressWatchdog(
        TIMEOUT_S, subscriptions=lambda: [subscription], is_reading=lambda: True
    )
    with pytest.raises(SubscriptionStalled, match=r"'a7' on 'orders'.* for 10 s") as caught:
        await watchdog.run()
    assert caught.value.sub_id == "a7"


@pytest.mark.parametrize("what", ["last_bookmark", "last_persisted"])
async def test_messages_and_persisted_acks_are_progress(what: str) -> None:
    subscription = watched()
    count = 0

    def arrives() -> None:
        nonlocal count
        count += 1
        setattr(subscription.position, what, f"7|{count}|")

    assert await Bench(subscription).stalls_after(500, every_second=arrives) is None


async def test_one_that_stalls_is_noticed_beside_others_that_progress() -> None:
    busy, quiet = watched("busy"), watched("quiet")
    count = 0

    def arrives() -> None:
        nonlocal count
        count += 1
        busy.position.last_bookmark = f"7|{count}|"

    assert await Bench(busy, quiet).stalls_after(500, every_second=arrives) is not None


@pytest.mark.parametrize(
    "subscription",
    [
        watched(bookmark=""),
        watched(options="pause"),
        with_full_queue(),
    ],
    ids=["plain", "paused", "full queue"],
)
async def test_what_nothing_can_be_expected_for_is_not_watched(subscription: Subscription) -> None:
    assert await Bench(subscription).stalls_after(500) is None


async def test_a_replay_with_an_end_is_watched_until_it_is_reached() -> None:
    subscription = watched(bookmark="[7|1|:7|9|]")
    bench = Bench(subscription)
    assert await bench.stalls_after(500) is not None
    subscription.position.completed(trio.current_time())
    assert await bench.stalls_after(5000) is None


async def test_a_client_that_does_not_read_knows_nothing() -> None:
    bench = Bench(watched())
    bench.is_reading = False
    assert await bench.stalls_after(500) is None
    bench.is_reading = True
    after_s = await bench.stalls_after(500)
    assert after_s is not None
    assert after_s >= TIMEOUT_S


async def test_each_connection_in_vain_is_given_twice_the_time_up_to_a_limit() -> None:
    subscription = watched()
    bench = Bench(subscription)
    after = [round((await bench.stalls_after(10_000) or 0.0) / TIMEOUT_S) for _ in range(9)]
    assert after == [1, 1, 2, 4, 8, 16, 32, 64, 64]
    subscription.position.last_bookmark = "7|1|"
    after = [round((await bench.stalls_after(10_000) or 0.0) / TIMEOUT_S) for _ in range(3)]
    assert after == [1, 1, 2]


async def test_a_new_subscription_with_the_same_id_has_the_whole_time() -> None:
    bench, began = Bench(watched("s")), trio.current_time()
    later = [watched("s")]

    def subscribe_again() -> None:
        if trio.current_time() >= began + TIMEOUT_S - 1:
            bench.subscriptions = later

    after_s = await bench.stalls_after(1000, every_second=subscribe_again)
    assert after_s is not None
    assert after_s >= 2 * TIMEOUT_S - 1

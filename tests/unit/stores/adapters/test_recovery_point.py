from __future__ import annotations

from collections.abc import Iterable

import pytest
from typing_extensions import override

from haclient_stores.adapters.recovery_point import (
    PointFeed,
    RecoveryPoint,
    positions,
)
from haclient_stores.bookmark import BookmarkList
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.errors import StoreError
from support.points import BareAdapter

pytestmark = pytest.mark.row("RP1", "RP2")


class Noted(BareAdapter):
    def __init__(self) -> None:
        self.told: list[object] = []
        self.points: list[RecoveryPoint] = []
        self.refuses = False

    @override
    async def recover(self, client_name: str) -> Iterable[RecoveryPoint]:
        return []

    @override
    def update(self, point: RecoveryPoint) -> None:
        if self.refuses:
            raise StoreError("refused")
        self.told.append((point.sub_id, point.bookmark))
        self.points.append(point)

    @override
    def purge(self, sub_id: str | None = None) -> None:
        self.told.append(sub_id)


def test_only_what_has_moved_is_told() -> None:
    store, adapter = MemoryBookmarkStore(), Noted()
    feed = PointFeed(adapter)
    store.log("a", "1|1|")
    store.log("b", "1|1|")
    feed.send_moved(store.moved_points())
    assert adapter.told == []
    store.discard("a", 1)
    feed.send_moved(store.moved_points())
    feed.send_moved(store.moved_points())
    assert adapter.told == [("a", "1|1|")]
    store.log("a", "1|2|")
    store.log("a", "2|5|")
    store.discard_up_to("a", 3)
    store.discard("b", 1)
    feed.send_moved(store.moved_points())
    assert adapter.told[1:] == [("a", "1|2|,2|5|"), ("b", "1|1|")]
    store.purge("a")
    feed.send_moved(store.moved_points())
    assert adapter.told[3:] == ["a"]


def test_a_file_of_an_older_state_deletes_no_point_of_its_own_generation() -> None:
    adapter = Noted()
    feed = PointFeed(adapter)
    feed.mark_sent([RecoveryPoint("a", "1|7|", generation=2)])
    feed.send_moved([RecoveryPoint("a", "", generation=2)])
    assert adapter.told == []
    feed.send_moved([RecoveryPoint("a", "1|8|", generation=2)])
    feed.send_moved([RecoveryPoint("a", "", generation=3)])  # begun anew
    assert adapter.told == [("a", "1|8|"), "a"]


def test_what_the_adapter_has_given_is_not_told_back() -> None:
    store, adapter = MemoryBookmarkStore(), Noted()
    feed = PointFeed(adapter)
    points = [RecoveryPoint("a", "1|7|")]
    store.seed(points)
    feed.mark_sent(points)
    feed.send_moved(store.moved_points())
    assert adapter.told == []


def test_what_the_adapter_did_not_take_is_told_again() -> None:
    store, adapter = MemoryBookmarkStore(), Noted()
    feed = PointFeed(adapter)
    store.discard("a", store.log("a", "1|1|"))
    adapter.refuses = True
    with pytest.raises(StoreError, match="refused"):
        feed.send_moved(store.moved_points())
    adapter.refuses = False
    feed.send_moved(store.moved_points())
    assert adapter.told == [("a", "1|1|")]


@pytest.mark.row("RP6")
def test_a_point_says_whose_order_it_is_and_up_to_when_nothing_is_missing() -> None:
    store, adapter = MemoryBookmarkStore(), Noted()
    feed = PointFeed(adapter)
    log = store.subscription("a")
    log.entered("east:9007")
    log.discard(log.log("1|1|"))
    feed.send_moved(store.moved_points())
    log.completed("")
    log.caught_up(10_000_000)
    log.discard(log.log("1|2|"))
    feed.send_moved(store.moved_points())
    log.entered("west:9007")
    in_hand = log.log("2|1|")
    log.caught_up(12_000_000)
    log.discard(log.log("1|3|"))
    feed.send_moved(store.moved_points())
    log.discard(in_hand)
    feed.send_moved(store.moved_points())
    assert adapter.points == [
        RecoveryPoint("a", "1|1|", "east:9007", generation=1),
        RecoveryPoint("a", "1|2|", "east:9007", 10_000_000, 1),
        RecoveryPoint("a", "1|2|", "", 10_000_000, 1),
        RecoveryPoint("a", "1|3|,2|1|", "west:9007", 12_000_000, 1),
    ]


def test_between_two_servers_a_point_is_in_the_order_of_none() -> None:
    store, adapter = MemoryBookmarkStore(), Noted()
    log = store.subscription("a")
    log.entered("east:9007")
    number = log.log("1|1|")
    log.entered("west:9007")
    log.discard(number)
    PointFeed(adapter).send_moved(store.recovery_points())
    assert adapter.points == [RecoveryPoint("a", "1|1|", generation=1)]


def test_a_time_alone_is_told_every_few_seconds_and_at_the_end() -> None:
    store, adapter = MemoryBookmarkStore(), Noted()
    feed = PointFeed(adapter)
    log = store.subscription("a")
    log.entered("east:9007")
    log.completed("")
    log.discard(log.log("1|1|"))
    for second in range(1, 62):
        log.caught_up(second * 1_000_000)
        feed.send_moved(store.moved_points())
    assert [point.caught_up_us // 1_000_000 for point in adapter.points] == [*range(1, 62, 5)]
    log.caught_up(62_000_000)
    feed.send_moved(store.recovery_points(), last=True)
    feed.send_moved(store.recovery_points(), last=True)
    assert [point.caught_up_us for point in adapter.points[13:]] == [62_000_000]


@pytest.mark.row("BS9")
def test_what_was_told_before_a_start_anew_does_not_count_for_the_same_bookmark() -> None:
    """All of it is owed again, also what servers had at that time."""
    store, adapter = MemoryBookmarkStore(), Noted()
    feed = PointFeed(adapter)
    log = store.subscription("a")
    for server in ("east:9007", "east:9007", "west:9007"):
        log.begin(acked=False, start="0")
        log.entered(server)
        log.discard(log.log("1|1|"))
        if not adapter.points:
            log.caught_up(10_000_000)
        feed.send_moved(store.moved_points())
    assert adapter.points == [
        RecoveryPoint("a", "1|1|", "east:9007", 10_000_000, 2),
        RecoveryPoint("a", "1|1|", "east:9007", generation=3),
        RecoveryPoint("a", "1|1|", "west:9007", generation=4),
    ]


@pytest.mark.row("SM4")
def test_an_entry_at_now_asked_for_nothing_older() -> None:
    store, adapter = MemoryBookmarkStore(), Noted()
    store.subscription("a").begin(acked=False, start="0|1|", entered_us=7_000_000)
    store.discard("a", store.log("a", "1|1|"))
    PointFeed(adapter).send_moved(store.recovery_points())
    assert adapter.points == [RecoveryPoint("a", "1|1|", "", 7_000_000, 2)]


@pytest.mark.parametrize("start", ["0|1|", "20240131T120000Z", "0"])
def test_where_a_subscription_began_is_no_place_that_it_has_got_to(start: str) -> None:
    store, adapter = MemoryBookmarkStore(), Noted()
    store.subscription("a").begin(acked=False, start=start, entered_us=1)
    PointFeed(adapter).send_moved(store.recovery_points())
    assert adapter.told == []


def test_positions_of_a_list() -> None:
    assert positions(BookmarkList.parse("1|2|,3|4|")) == {1: 2, 3: 4}
    assert positions(BookmarkList.parse("1|2|,20240131T120000Z")) == {}
    assert positions(BookmarkList()) == {}

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest
from typing_extensions import override

from haclient_stores.adapters.conflating import ConflatingRecoveryPointAdapter
from haclient_stores.adapters.recovery_point import RecoveryPoint, TimedAdapter
from haclient_stores.errors import StoreError, UsageError

pytestmark = pytest.mark.row("RP7")


class Inner(TimedAdapter):
    def __init__(self) -> None:
        self.told: list[object] = []
        self.refuses = False

    @override
    async def recover(self, client_name: str) -> Iterable[RecoveryPoint]:
        return [RecoveryPoint(client_name, "1|1|")]

    @override
    def update(self, point: RecoveryPoint) -> None:
        if self.refuses:
            raise StoreError("refused")
        self.told.append(f"{point.sub_id} {point.bookmark}")

    @override
    def purge(self, sub_id: str | None = None) -> None:
        self.told.append(("purge", sub_id))

    @override
    async def prune(self) -> None:
        self.told.append("prune")

    @override
    async def close(self) -> None:
        self.told.append("close")

    @override
    def poll(self, now: float) -> None:
        self.told.append(now)


def updated(adapter: ConflatingRecoveryPointAdapter, *points: str) -> None:
    for point in points:
        sub_id, bookmark = point.split()
        adapter.update(RecoveryPoint(sub_id, bookmark))


async def test_after_so_many_updates_the_newest_of_each_subscription_is_passed_on() -> None:
    inner = Inner()
    adapter = ConflatingRecoveryPointAdapter(inner, max_updates=3)
    updated(adapter, "a 1|1|", "a 1|2|")
    assert inner.told == []
    updated(adapter, "b 1|1|")
    assert inner.told == ["a 1|2|", "b 1|1|"]
    updated(adapter, "a 1|3|", "a 1|4|")
    await adapter.close()
    assert inner.told[2:] == ["a 1|4|", "close"]


async def test_and_when_the_oldest_is_old_enough() -> None:
    inner = Inner()
    adapter = ConflatingRecoveryPointAdapter(inner, max_age_s=2.0)
    updated(adapter, "a 1|1|")
    adapter.poll(10.0)
    updated(adapter, "a 1|2|")
    adapter.poll(11.9)
    assert inner.told == [10.0, 11.9]
    adapter.poll(12.0)
    assert inner.told[2:] == ["a 1|2|", 12.0]
    adapter.poll(20.0)
    updated(adapter, "a 1|3|")
    adapter.poll(21.0)
    assert inner.told[4:] == [20.0, 21.0], "its age begins anew"


async def test_a_purged_subscription_is_not_passed_on() -> None:
    inner = Inner()
    adapter = ConflatingRecoveryPointAdapter(inner)
    updated(adapter, "a 1|1|", "b 1|1|")
    adapter.purge("a")
    adapter.purge("unknown")
    await adapter.prune()
    await adapter.close()
    assert inner.told == [("purge", "a"), ("purge", "unknown"), "prune", "b 1|1|", "close"]
    updated(adapter, "a 1|1|")
    adapter.purge()
    await adapter.close()
    assert inner.told[5:] == [("purge", None), "close"]
    assert [point.sub_id for point in await adapter.recover("me")] == ["me"]


async def test_what_the_inner_adapter_refuses_is_kept() -> None:
    inner = Inner()
    adapter = ConflatingRecoveryPointAdapter(inner, max_updates=2)
    inner.refuses = True
    with pytest.raises(StoreError, match="refused"):
        updated(adapter, "a 1|1|", "b 1|1|")
    inner.refuses = False
    await adapter.close()
    assert inner.told == ["a 1|1|", "b 1|1|", "close"]


def seconds_to_pass_on(count: int) -> float:
    adapter = ConflatingRecoveryPointAdapter(Inner(), max_updates=count)
    for index in range(count - 1):
        adapter.update(RecoveryPoint(f"s{index}", "1|1|"))
    start = time.process_time()
    adapter.update(RecoveryPoint("last", "1|1|"))
    return time.process_time() - start


def test_a_point_costs_no_more_when_many_are_passed_on() -> None:
    few = min(sum(seconds_to_pass_on(2_000) for _ in range(10)) for _ in range(3))
    many = min(seconds_to_pass_on(20_000) for _ in range(3))
    assert many < 4 * few


def test_limits_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="max_updates"):
        ConflatingRecoveryPointAdapter(Inner(), max_updates=0)
    with pytest.raises(UsageError, match="max_age_s"):
        ConflatingRecoveryPointAdapter(Inner(), max_age_s=0)


async def test_the_inner_adapter_is_closed_even_when_it_refuses_the_last_point() -> None:
    inner = Inner()
    adapter = ConflatingRecoveryPointAdapter(inner)
    updated(adapter, "a 1|1|")
    inner.refuses = True
    with pytest.raises(StoreError, match="refused"):
        await adapter.close()
    assert inner.told == ["close"]

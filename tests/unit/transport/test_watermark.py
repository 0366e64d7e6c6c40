from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked
from typing_extensions import override

from haclient.errors import SubscriptionFull
from haclient.transport.back_pressure import AckWaits, Watermark
from support.clock import in_virtual_time

pytestmark = in_virtual_time


async def waiters(mark: Watermark, nursery: trio.Nursery, *levels: int) -> list[int]:
    """Start one waiter for each level; the list grows as they wake."""
    woken: list[int] = []

    async def wait(level: int) -> None:
        await mark.wait_for(level, "flush")
        woken.append(level)

    for level in levels:
        nursery.start_soon(wait, level)
    await wait_all_tasks_blocked()
    return woken


@pytest.mark.row("PS5")
async def test_a_rise_wakes_all_up_to_its_level_and_no_more() -> None:
    mark = Watermark(AckWaits())
    async with trio.open_nursery() as nursery:
        woken = await waiters(mark, nursery, 5, 3, 9, 3)
        mark.advance(5)
        await wait_all_tasks_blocked()
        assert sorted(woken) == [3, 3, 5]
        assert mark
        mark.advance(9)
    assert not mark


async def test_release_wakes_everyone() -> None:
    mark = Watermark(AckWaits())
    async with trio.open_nursery() as nursery:
        woken = await waiters(mark, nursery, 5, 9)
        mark.release()
    assert sorted(woken) == [5, 9]


async def test_a_cancelled_waiter_leaves_nothing_behind() -> None:
    mark = Watermark(AckWaits())
    async with trio.open_nursery() as nursery:
        woken = await waiters(mark, nursery, 5)
        with trio.move_on_after(0):
            await mark.wait_for(1, "flush")
        assert len(mark._heap) == 1
        mark.advance(5)
    assert woken == [5]
    assert not mark


async def test_a_wait_that_fails_leaves_nothing_behind() -> None:
    waits = AckWaits()
    mark = Watermark(waits)

    async def fail() -> None:
        await wait_all_tasks_blocked()
        assert waits
        waits.fail(lambda what: SubscriptionFull(f"{what}: the queue is full"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail)
        with pytest.raises(SubscriptionFull, match="flush: the queue is full"):
            await mark.wait_for(1, "flush")
    assert not mark
    assert not waits


async def test_something_else_may_end_the_wait_and_leaves_nothing() -> None:
    mark, other = Watermark(AckWaits()), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mark.wait_for, 5, "flush", other)
        await wait_all_tasks_blocked()
        assert mark
        other.set()
    assert not mark
    async with trio.open_nursery() as nursery:
        again = trio.Event()
        nursery.start_soon(mark.wait_for, 5, "flush", again)
        await wait_all_tasks_blocked()
        mark.advance(5)
    assert again.is_set()


class Counted(int):
    """A sequence that counts how often it is compared."""

    compared = 0

    @override
    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return int(self) == other

    @override
    def __lt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) < int(other)

    __hash__ = int.__hash__


async def test_the_cost_of_a_wait_that_ends_does_not_grow_with_the_others() -> None:
    mark, count = Watermark(AckWaits()), 500
    async with trio.open_nursery() as nursery:
        for each in range(count):
            nursery.start_soon(mark.wait_for, Counted(each), "flush")
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert Counted.compared < 40 * count
    assert not mark
    assert mark._heap == []

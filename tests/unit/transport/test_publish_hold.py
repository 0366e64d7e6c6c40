from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.transport.publish_hold import STALL_SHARE, PublishHold
from support.clock import in_virtual_time

pytestmark = [in_virtual_time, pytest.mark.row("HA29")]


async def test_publishes_wait_until_the_last_of_several_holds_is_released() -> None:
    hold = PublishHold()
    await hold.ended()
    hold.add()
    hold.add()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold.ended)
        await wait_all_tasks_blocked()
        hold.release()
        await wait_all_tasks_blocked()
        assert (hold.is_active, len(nursery.child_tasks)) == (True, 1)
        hold.release()
    assert not hold.is_active


async def test_the_end_takes_back_every_hold_and_a_release_that_comes_later_none() -> None:
    hold = PublishHold()
    hold.add()
    hold.add()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold.ended)
        await wait_all_tasks_blocked()
        hold.end()
    hold.release()
    hold.add()
    assert hold.is_active


async def test_a_task_that_is_exempt_passes_once_it_looks_again_and_is_counted() -> None:
    hold, exempt = PublishHold(), set[trio.lowlevel.Task]()
    hold.is_exempt = lambda: trio.lowlevel.current_task() in exempt
    hold.add()
    tasks = list[trio.lowlevel.Task]()

    async def publish() -> None:
        tasks.append(trio.lowlevel.current_task())
        await hold.ended()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish)
        nursery.start_soon(publish)
        await wait_all_tasks_blocked()
        exempt.add(tasks[0])
        hold.recheck()
        await wait_all_tasks_blocked()
        assert (hold.passed, hold.is_active, set(nursery.child_tasks)) == (1, True, {tasks[1]})
        hold.end()


async def test_nothing_passes_once_the_server_has_confirmed_everything() -> None:
    hold = PublishHold()
    hold.is_exempt = lambda: True
    hold.add()
    await hold.ended()
    hold.confirmed()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold.ended)
        await wait_all_tasks_blocked()
        assert (hold.passed, len(nursery.child_tasks)) == (1, 1)
        hold.end()
    hold.add()
    await hold.ended()
    assert hold.passed == 2


LIMIT_S = 10.0
STALL_S = LIMIT_S * STALL_SHARE


async def test_every_publish_passes_once_a_full_queue_has_not_become_shorter_for_a_while() -> None:
    hold, backlog = PublishHold(), list[int]()
    hold.backlog = lambda: tuple(backlog) or None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold.watch, LIMIT_S)
        await trio.sleep(100.0)
        backlog.append(0)
        hold.add()
        began = trio.current_time()
        for _ in range(20):  # one message after the other is taken
            await trio.sleep(STALL_S / 2)
            backlog[0] += 1
        with trio.move_on_after(0.0) as too_early:
            await hold.ended()
        assert (too_early.cancelled_caught, hold.passed) == (True, 0)
        await hold.ended()
        assert trio.current_time() <= began + 10 * STALL_S + 2 * STALL_S
        await hold.ended()
        assert (hold.passed, hold.is_active) == (2, True)
        backlog.clear()  # the client reads again: what is published now would be lost
        with trio.move_on_after(100.0) as held:
            await hold.ended()
        assert held.cancelled_caught
        backlog.append(7)  # and reading has stopped again: the handler is not waited for twice
        hold.recheck()
        await hold.ended()
        hold.confirmed()
        with trio.move_on_after(100.0) as confirmed:
            await hold.ended()
        assert (confirmed.cancelled_caught, hold.passed) == (True, 3)
        hold.end()
        hold.add()  # of the next move
        with trio.move_on_after(STALL_S / 2) as next_move:
            await hold.ended()
        assert next_move.cancelled_caught
        nursery.cancel_scope.cancel()


async def test_no_publish_passes_for_a_queue_while_the_client_reads() -> None:
    hold = PublishHold()
    hold.add()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold.watch, LIMIT_S)
        with trio.move_on_after(LIMIT_S) as held:
            await hold.ended()
        assert held.cancelled_caught
        nursery.cancel_scope.cancel()

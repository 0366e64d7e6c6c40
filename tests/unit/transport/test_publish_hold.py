from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.transport.publish_hold import PublishHold
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

"""How many messages are with the workers of a pool, and what is dropped."""

from __future__ import annotations

import pytest
import trio
from typing_extensions import override

from haclient.protocol.messages import Message
from haclient.transport.message_queue import MessageQueue
from haclient.transport.tasks import open_nursery
from haclient.workers.message_runner import KeyedPool, MessageRunner
from support.clock import in_virtual_time

pytestmark = in_virtual_time


def pool_of(capacity: int) -> KeyedPool:
    return KeyedPool(capacity, lambda m: m.text, MessageRunner(MessageQueue(), "raise"))


@pytest.mark.row("QC19")
async def test_no_more_wait_for_a_worker_than_the_backlog_has_room_for() -> None:
    pool, seen, most = pool_of(3), list[str](), 0

    async def handle(message: Message) -> None:
        seen.append(message.text)
        await trio.sleep(1)

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, pool.count)
            await trio.sleep(0.1)

    async with open_nursery() as watching:
        watching.start_soon(watch)
        async with open_nursery() as workers:
            for _ in range(2):
                workers.start_soon(pool.work, handle)
            for message in [Message(data=each.encode()) for each in "abcdefgh"]:
                await pool.put(message)
            pool.end()
        watching.cancel_scope.cancel()
    assert seen == list("abcdefgh")
    assert (most, pool.count) == (3, 0)
    assert pool._busy == {}


@pytest.mark.row("MS10")
async def test_what_waits_is_dropped_and_what_comes_late_is_not_taken() -> None:
    pool, seen = pool_of(9), list[str]()

    async def handle(message: Message) -> None:
        seen.append(message.text)
        await trio.sleep(1)

    async with open_nursery() as workers:
        for each in (b"a", b"a", b"b"):
            await pool.put(Message(data=each))
        workers.start_soon(pool.work, handle)
        await trio.sleep(0.5)
        pool.drop_waiting()
        assert pool.count == 1
        await pool.put(Message(data=b"c"))
    assert (seen, pool.count) == (["a"], 0)


class Steps(trio.abc.Instrument):
    """Counts how often one task runs."""

    def __init__(self) -> None:
        self.task = trio.lowlevel.current_task()
        self.count = 0

    @override
    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task is self.task


async def test_who_gives_many_messages_is_woken_for_many_at_a_time() -> None:
    pool, steps, seen = pool_of(100), Steps(), 0

    async def handle(_: Message) -> None:
        nonlocal seen
        seen += 1
        await trio.lowlevel.checkpoint()

    async with open_nursery() as workers:
        for _ in range(4):
            workers.start_soon(pool.work, handle)
        trio.lowlevel.add_instrument(steps)
        for number in range(10_000):
            await pool.put(Message(data=b"%d" % number))
        pool.end()
        trio.lowlevel.remove_instrument(steps)
    assert seen == 10_000
    assert steps.count < 500

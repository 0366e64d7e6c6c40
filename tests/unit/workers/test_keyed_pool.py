"""How many messages are with the workers of a pool, and what is dropped."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import trio

from haclient.protocol.messages import Message
from haclient.transport.tasks import open_nursery
from haclient.workers.keyed_pool import KeyedPool
from haclient.workers.message_runner import FailedMessages
from support.clock import in_virtual_time

pytestmark = in_virtual_time


@pytest.mark.row("QC19")
async def test_no_more_wait_for_a_worker_than_the_backlog_has_room_for() -> None:
    pool, seen, most = KeyedPool(3, lambda m: m.text, FailedMessages("raise")), list[str](), 0

    async def run(messages: Iterable[Message]) -> None:
        seen.extend(message.text for message in messages)
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
                workers.start_soon(pool.work, run)
            for message in [Message(data=each.encode()) for each in "abcdefgh"]:
                await pool.put(message)
            pool.end()
        watching.cancel_scope.cancel()
    assert seen == list("abcdefgh")
    assert (most, pool.count) == (3, 0)
    assert pool._busy == {}


@pytest.mark.row("MS10")
async def test_what_waits_is_dropped_and_what_comes_late_is_not_taken() -> None:
    pool, seen = KeyedPool(9, lambda m: m.text, FailedMessages("raise")), list[str]()

    async def run(messages: Iterable[Message]) -> None:
        seen.extend(message.text for message in messages)
        await trio.sleep(1)

    async with open_nursery() as workers:
        for each in (b"a", b"a", b"b"):
            await pool.put(Message(data=each))
        workers.start_soon(pool.work, run)
        await trio.sleep(0.5)
        pool.drop_waiting()
        assert pool.count == 1
        await pool.put(Message(data=b"c"))
    assert (seen, pool.count) == (["a"], 0)

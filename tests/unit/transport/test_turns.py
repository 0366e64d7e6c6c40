"""Whoever calls application code in a loop lets others run after a few milliseconds."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from haclient.client import Client
from haclient.events import ConnectionMade
from haclient.protocol.messages import Message
from haclient.transport.message_queue import MessageQueue
from haclient.transport.reporter import Reporter
from haclient.transport.tasks import TURN_S, Turn
from haclient.workers.message_runner import MessageRunner
from support.clock import in_virtual_time
from support.peer import Server, answering

pytestmark = [in_virtual_time, pytest.mark.row("MS5", "HB7")]


class Others:
    """A task that wants to run all the time, and the longest time in which it could not.

    That is up to twice a turn, since trio runs the tasks that are ready in any order.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def run(self) -> None:
        last = trio.current_time()
        while True:
            await trio.lowlevel.checkpoint()
            now = trio.current_time()
            self.longest_s = max(self.longest_s, now - last)
            last = now


@asynccontextmanager
async def others() -> AsyncGenerator[Others]:
    async with trio.open_nursery() as nursery:
        found = Others()
        nursery.start_soon(found.run)
        await trio.lowlevel.checkpoint()
        yield found
        nursery.cancel_scope.cancel()


async def test_a_turn_ends_when_its_time_is_over_and_the_next_one_begins(
    autojump_clock: MockClock,
) -> None:
    turn = Turn()
    assert turn.now() < turn.ends_at
    autojump_clock.jump(TURN_S)
    assert turn.now() >= turn.ends_at
    await turn.end()
    assert turn.ends_at == turn.now() + TURN_S


async def test_a_plain_handler_lets_others_run_within_a_batch_and_between_batches(
    autojump_clock: MockClock,
) -> None:
    handled = 0

    def handle(_: Message) -> None:
        nonlocal handled
        handled += 1
        autojump_clock.jump(0.001)

    queue = MessageQueue()
    queue.handler = handle
    for _ in range(5):
        queue.put([Message(kind="p")] * 30, 1)
    for _ in range(150):
        queue.put([Message(kind="p")], 1)
    queue.end()
    async with others() as found:
        await MessageRunner(queue, "raise").serve()
    assert handled == 300
    assert found.longest_s <= 2 * (TURN_S + 0.002)


async def test_two_alternating_subscriptions_let_others_run(
    server: Server, autojump_clock: MockClock
) -> None:
    handled = trio.Event()
    count = 0

    def handle(_: Message) -> None:
        nonlocal count
        autojump_clock.jump(0.001)
        count += 1
        if count == 400:
            handled.set()

    async with Client("c", exit_timeout=0, heartbeat=None) as client:
        peer = await server.log_on(client)
        async with answering(peer):
            for sub_id in "ab":
                await client.subscribe("orders", sub_id=sub_id, handler=handle)
        await wait_all_tasks_blocked()
        async with others() as found:
            for _ in range(200):
                await peer.publish("a", b"x")
                await peer.publish("b", b"x")
            await handled.wait()
        assert found.longest_s <= 4 * (TURN_S + 0.002)


async def test_plain_listeners_let_others_run(autojump_clock: MockClock) -> None:
    reporter = Reporter("c", lambda: 1, lambda _: autojump_clock.jump(0.001))
    for _ in range(300):
        reporter.emit(ConnectionMade)
    async with others() as found:
        await reporter.finish()
    assert found.longest_s <= 2 * (TURN_S + 0.002)


async def test_a_turn_that_ends_by_a_cancellation_is_over(autojump_clock: MockClock) -> None:
    turn = Turn()
    autojump_clock.jump(1.0)
    with trio.move_on_after(0) as limit:  # as a stream that is asked for what has arrived
        await turn.end()
    assert limit.cancelled_caught
    assert turn.now() < turn.ends_at

from __future__ import annotations

from functools import partial
from math import inf

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.errors import CommandError, DisconnectedError, HAClientError, TimedOut
from haclient.protocol.messages import Message
from haclient.session.subscriptions import Subscription
from haclient.transport.draining import drain, drain_acks, release_queues
from haclient.transport.memory_network import MemoryLink, link_pair
from haclient.transport.message_queue import Delivery
from haclient.transport.publisher import Publisher
from haclient.transport.writer import Writer
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.client_threads import bound_thread
from support.clock import in_virtual_time

pytestmark = in_virtual_time


async def flushed(*, timeout: float) -> None:
    """A flush that succeeds at once."""
    assert timeout == inf or 0.0 <= timeout <= 3.0


@pytest.mark.row("HA25")
@pytest.mark.parametrize(
    "error", [TimedOut("too late"), DisconnectedError("hopeless"), CommandError("flush: refused")]
)
async def test_what_is_left_is_told_with_the_reason(error: HAClientError) -> None:
    async def failing(*, timeout: float) -> None:
        await flushed(timeout=timeout)
        raise error

    publisher = Publisher(MemoryPublishStore(), thread=bound_thread())
    assert await drain(publisher, failing, limit_s=3.0) == str(error)
    assert await drain(publisher, flushed, limit_s=inf) == ""
    publisher.publish_nowait("t", b"by a handler that goes on")
    assert await drain(publisher, flushed, limit_s=inf) == "1 were published during the shutdown"


@pytest.mark.row("HA25")
async def test_without_a_store_nothing_is_left_that_a_server_has_confirmed() -> None:
    async def failing(*, timeout: float) -> None:
        await flushed(timeout=timeout)
        raise DisconnectedError("closed")

    publisher = Publisher(None, thread=bound_thread())
    assert await drain(publisher, failing, limit_s=3.0) == ""
    near, _ = link_pair()
    writer = Writer(near, None, publisher.gate)
    publisher.connected(writer)
    publisher.open_log()
    publisher.publish_nowait("t", b"1")
    writer.flush()
    assert await drain(publisher, failing, limit_s=3.0) == "closed"
    publisher.confirmed_unstored = publisher.sent_unstored
    assert await drain(publisher, failing, limit_s=3.0) == ""


def publishing_into_a_full_link() -> tuple[Publisher, Writer, MemoryLink]:
    """A publisher without a store, its writer, and the other end of its link."""
    near, far = link_pair(capacity_bytes=10)
    publisher = Publisher(None, thread=bound_thread())
    writer = Writer(near, None, publisher.gate)
    publisher.connected(writer)
    publisher.open_log()
    publisher.publish_nowait("t", bytes(1000))
    return publisher, writer, far


@pytest.mark.row("HA25")
@pytest.mark.parametrize(("limit_s", "left"), [(3.0, False), (inf, True)])
async def test_without_a_store_the_outbox_leaves_first(limit_s: float, *, left: bool) -> None:
    publisher, writer, far = publishing_into_a_full_link()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        nursery.start_soon(partial(drain, publisher, flushed, limit_s=limit_s))
        await wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 2
        if left:
            buffer = memoryview(bytearray(10))
            while writer.outbox_bytes:
                far.recv_into(buffer)
                await wait_all_tasks_blocked()
        await trio.sleep(3.0)
        await wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 1
        nursery.cancel_scope.cancel()


@pytest.mark.row("HA25")
@pytest.mark.parametrize(("leaves_after_s", "rest_s"), [(0.0, 3.0), (2.0, 1.0), (10.0, 0.0)])
async def test_the_outbox_and_the_flush_have_one_limit_together(
    leaves_after_s: float, rest_s: float
) -> None:
    timeouts: list[float] = []

    async def flush(*, timeout: float) -> None:
        timeouts.append(timeout)

    publisher, writer, _ = publishing_into_a_full_link()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(drain, publisher, flush, limit_s=3.0))
        await trio.sleep(leaves_after_s)
        publisher.lost()  # nothing will leave any more, and nobody waits for that
        writer.release()
    assert timeouts == [rest_s]


@pytest.mark.row("HA25")
async def test_the_queues_of_the_exiting_task_are_dropped_and_others_stay() -> None:
    mine, theirs, nobodys = Delivery(), Delivery(), Delivery()
    batch = [Message(kind="p")]
    for delivery in (mine, theirs, nobodys):
        delivery.put(batch, 10)
    await mine.next_batch()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(theirs.next_batch)
    for delivery in (mine, theirs):
        delivery.put(batch, 10)
    release_queues([Subscription("s", each, command_id="1") for each in (mine, theirs, nobodys)])
    assert (mine.ended, theirs.ended, nobodys.ended) == (True, False, True)
    assert (mine.held_bytes, theirs.held_bytes, nobodys.held_bytes) == (0, 10, 0)


async def test_a_full_queue_whose_last_consumer_has_ended_is_dropped_with_an_error() -> None:
    full, reading = Delivery(10), Delivery(10)
    for delivery in (full, reading):
        delivery.put([Message(kind="p")], 10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(full.next_batch)
        nursery.start_soon(hold, reading)
        await wait_all_tasks_blocked()
        for delivery in (full, reading):
            delivery.put([Message(kind="p")], 11)
            assert delivery.full
        release_queues([Subscription("s", each, command_id="1") for each in (full, reading)])
        assert (full.held_bytes, reading.held_bytes) == (0, 11)
        with pytest.raises(DisconnectedError, match="the client was left"):
            await full.next_batch()
        nursery.cancel_scope.cancel()


async def hold(delivery: Delivery) -> None:
    """Take what is there, and work on it for ever."""
    await delivery.next_batch()
    await trio.sleep_forever()


@pytest.mark.row("QC5")
async def test_acknowledgements_that_may_not_be_processed_are_told_with_the_reason() -> None:
    async def failing(*, timeout: float) -> None:
        raise TimedOut(f"too late after {timeout:g} s")

    assert await drain_acks(failing, limit_s=2.0) == "too late after 2 s"
    assert await drain_acks(flushed, limit_s=2.0) == ""

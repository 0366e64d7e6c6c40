from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.errors import DisconnectedError
from haclient.protocol.messages import Message
from haclient.session.subscriptions import Marker, SubscribeRequest, Subscription
from haclient.transport.message_queue import MessageQueue, release_queues
from support.clock import in_virtual_time
from support.requests import request_of

pytestmark = in_virtual_time


@pytest.mark.row("HA25")
async def test_the_queues_of_the_exiting_task_are_dropped_and_others_stay() -> None:
    mine, theirs, nobodys = MessageQueue(), MessageQueue(), MessageQueue()
    batch = [Message(kind="p")]
    for delivery in (mine, theirs, nobodys):
        delivery.put(batch, 10)
    await mine.next_batch()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(theirs.next_batch)
    for delivery in (mine, theirs):
        delivery.put(batch, 10)
    release_queues(
        [Subscription(request_of("s"), each, command_id="1") for each in (mine, theirs, nobodys)]
    )
    nobodys.put(batch, 10)
    assert (mine.ended, theirs.ended, nobodys.ended) == (True, False, False)
    assert (mine.queued_bytes, theirs.queued_bytes, nobodys.queued_bytes) == (0, 10, 0)


async def test_a_full_queue_whose_last_consumer_has_ended_is_dropped_with_an_error() -> None:
    full, reading = MessageQueue(10), MessageQueue(10)
    for delivery in (full, reading):
        delivery.put([Message(kind="p")], 10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(full.next_batch)
        nursery.start_soon(hold, reading)
        await wait_all_tasks_blocked()
        for delivery in (full, reading):
            delivery.put([Message(kind="p")], 11)
            assert delivery.full
        release_queues(
            [Subscription(request_of("s"), each, command_id="1") for each in (full, reading)]
        )
        assert (full.queued_bytes, reading.queued_bytes) == (0, 11)
        with pytest.raises(DisconnectedError, match="the client was left"):
            await full.next_batch()
        nursery.cancel_scope.cancel()


@pytest.mark.row("HA25")
async def test_a_query_that_nobody_has_read_yet_does_not_end_as_if_it_were_empty() -> None:
    queue = MessageQueue()
    fields = {"c": "sow", "t": "orders"}
    request = SubscribeRequest.complete(fields, b"", command_id="1", has_store=False)
    release_queues([Subscription(request, queue, command_id="1")])
    queue.put([Message(kind="sow")], 10)
    queue.mark(Marker.ENDED)  # its result is complete at the server
    with pytest.raises(DisconnectedError, match="the client was left"):
        await queue.next_batch()


async def hold(delivery: MessageQueue) -> None:
    """Take what is there, and work on it for ever."""
    await delivery.next_batch()
    await trio.sleep_forever()

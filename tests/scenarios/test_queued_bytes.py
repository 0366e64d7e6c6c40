"""What a subscription holds in its queue is counted as it is, whatever else is read with it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import Client
from haclient.protocol.messages import Message
from haclient_stores.bookmark import EPOCH
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from support.clock import in_virtual_time
from support.peer import Peer, Server, answering, delivery

pytestmark = [in_virtual_time, pytest.mark.row("MS5", "OB1")]

CAP = 100_000
LARGE = bytes(20_000)


async def never(_: Message) -> None:
    await trio.sleep_forever()


@asynccontextmanager
async def two_subscriptions(server: Server) -> AsyncGenerator[tuple[Client, Peer]]:
    """A client whose handlers take nothing: `large` and `small`, and `bm` with a bookmark."""
    client = Client(
        "c",
        max_queued_bytes=CAP,
        bookmark_store=MemoryBookmarkStore(),
        heartbeat=None,
        exit_timeout=0,
    )
    async with client:
        peer = await server.log_on(client)
        async with answering(peer):
            await client.subscribe("orders", sub_id="large", handler=never)
            await client.subscribe("orders", sub_id="small", handler=never)
            await client.bookmark_subscribe("orders", sub_id="bm", bookmark=EPOCH, handler=never)
        for sub_id in ("large", "small"):
            await peer.publish(sub_id, b"")  # the one that the handler has
        await wait_all_tasks_blocked()
        yield client, peer


def queued_bytes(client: Client) -> dict[str, int]:
    return {each.sub_id: each.queued_bytes for each in client.metrics.subscriptions}


async def test_large_messages_that_are_read_with_small_ones_count_whole(server: Server) -> None:
    async with two_subscriptions(server) as (client, peer):
        await peer.send(delivery("small", *[b"x"] * 99) + delivery("large", LARGE))
        await wait_all_tasks_blocked()
        found = queued_bytes(client)
        assert len(LARGE) <= found["large"] < len(LARGE) + 1_000
        assert 99 <= found["small"] < 99 * 300


async def test_a_queue_of_large_messages_is_bounded_although_small_ones_are_read_with_them(
    server: Server,
) -> None:
    async with two_subscriptions(server) as (client, peer), trio.open_nursery() as nursery:

        async def send() -> None:  # it waits once nothing is read any more
            for _ in range(50):
                await peer.send(delivery("small", *[b"x"] * 99) + delivery("large", LARGE))
                await wait_all_tasks_blocked()

        nursery.start_soon(send)
        await trio.sleep(1)
        found = queued_bytes(client)
        assert CAP < found["large"] <= CAP + 2 * len(LARGE)
        nursery.cancel_scope.cancel()


async def test_duplicates_that_are_dropped_do_not_count(server: Server) -> None:
    async with two_subscriptions(server) as (client, peer):
        await peer.publish("bm", b"in hand", bm="7|1|")
        await wait_all_tasks_blocked()
        again = delivery("bm", *[LARGE] * 2, bm="7|1|")
        await peer.send(again[: len(again) // 2] + delivery("bm", b"new", bm="7|2|"))
        await wait_all_tasks_blocked()
        assert client.metrics.duplicates == 1
        assert queued_bytes(client)["bm"] < 1_000


async def test_messages_of_one_subscription_count_with_their_headers_although_acks_come_with_them(
    server: Server,
) -> None:
    async with two_subscriptions(server) as (client, peer):
        frames = delivery("large", *[b"x" * 100] * 50)
        beat = b'\x00\x00\x00\x11{"c":"heartbeat"}'
        await peer.send(frames + beat + frames)
        await wait_all_tasks_blocked()
        length = 2 * (len(frames) - 4 * 50)
        assert length - 300 <= queued_bytes(client)["large"] <= length + len(beat)

"""Limits of publishing, and leaving the block with something unsent."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked
from typing_extensions import override

from haclient.client import Client
from haclient.errors import DisconnectedError, StoreError, StoreFull, UsageError, WouldBlock
from haclient.protocol.commands import Command
from haclient.session.connection_state import ConnectionState
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.interfaces import PublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.custom import DictPublishStore
from support.peer import Peer, Server, answering, close_link, listening, together

pytestmark = in_virtual_time


@asynccontextmanager
async def at_its_cap(
    server: Server, made: MemoryPublishStore
) -> AsyncGenerator[tuple[Client, Peer]]:
    """A client with as many unpersisted bytes as it may have."""
    async with Client("pub", publish_store=made, max_unpersisted_bytes=100_000) as client:
        peer = await server.log_on(client)
        await client.publish("orders", bytes(100_000))
        await wait_all_tasks_blocked()
        yield client, peer


# -- limits -------------------------------------------------------------------------------


@pytest.mark.row("CC6")
async def test_at_the_cap_on_unpersisted_bytes_publish_waits_and_the_other_raises(
    server: Server,
) -> None:
    made = MemoryPublishStore()
    async with at_its_cap(server, made) as (client, peer):
        with pytest.raises(WouldBlock, match="too much is unpersisted"):
            client.publish_nowait("orders", bytes(70_000))
        assert made.unpersisted_count == 1

        async def script() -> None:
            (first,) = await peer.sequences(1)
            await wait_all_tasks_blocked()
            assert made.unpersisted_count == 1
            await peer.persisted(first)

        await together(lambda: client.publish("orders", bytes(70_000)), script)
        assert made.unpersisted_count == 1


@pytest.mark.row("CC6")
async def test_a_wait_at_the_cap_ends_when_no_ack_can_come(server: Server) -> None:
    made = MemoryPublishStore()
    async with at_its_cap(server, made) as (client, peer):

        async def script() -> None:
            await wait_all_tasks_blocked()
            peer.link.close()

        with pytest.raises(DisconnectedError, match="publish waits for acks"):
            await together(lambda: client.publish("orders", bytes(70_000)), script)
        assert made.unpersisted_count == 1


async def test_a_socket_that_is_full_makes_publish_wait_and_the_other_raise() -> None:
    async with listening() as server, Client("pub") as client:
        peer = await server.log_on(client)
        sent = 0
        with trio.move_on_after(1) as limit:
            while True:
                await client.publish("orders", bytes(100_000))
                sent += 1
        assert limit.cancelled_caught
        with pytest.raises(WouldBlock, match="the socket is full"):
            client.publish_nowait("orders", bytes(100_000))
        assert [len((await peer.expect("publish")).data) for _ in range(sent)] == [100_000] * sent


async def test_a_full_store_is_an_error_and_nothing_was_stored() -> None:
    made = DictPublishStore(max_count=1)
    async with Client("pub", publish_store=made) as client:
        await client.publish("orders", b"a")
        with pytest.raises(StoreFull):
            await client.publish("orders", b"b")
        assert client.unpersisted_count == 1


@pytest.mark.row("CC6")
async def test_without_a_store_a_lost_link_is_an_error() -> None:
    async with listening() as server, Client("pub") as client:
        with pytest.raises(DisconnectedError, match="not logged on"):
            await client.publish("orders", b"a")
        peer = await server.connect(client)
        with pytest.raises(DisconnectedError, match="not logged on"):
            client.publish_nowait("orders", b"a")
        await close_link(client, peer)


@pytest.mark.parametrize("make", [MemoryPublishStore, DictPublishStore])
async def test_a_body_that_no_server_takes_is_refused(make: Callable[[], PublishStore]) -> None:
    huge = bytes(2**28)  # never touched: the system gives it no memory
    async with Client("pub", publish_store=make()) as client:
        with pytest.raises(UsageError, match="is larger than the"):
            await client.publish("orders", huge)
        with pytest.raises(UsageError, match="is larger than the"):
            client.publish_nowait("orders", huge)
        assert client.unpersisted_count == 0


@pytest.mark.row("CC6")
async def test_a_cancelled_publish_was_not_stored_and_a_returned_one_was() -> None:
    made = MemoryPublishStore()
    async with Client("pub", publish_store=made) as client:
        returned = 0
        with trio.CancelScope() as scope:
            scope.cancel()
            while True:
                await client.publish("orders", bytes(1000))
                returned += 1
        assert made.unpersisted_count == returned


# -- leaving ------------------------------------------------------------------------------


@pytest.mark.row("CC3")
async def test_leaving_the_block_waits_for_what_was_published(store: PublishStore) -> None:
    async with listening() as server:
        client = Client("pub", publish_store=store)

        async def ours() -> None:
            async with client:
                await client.connect(server.uri)
                await client.logon()
                await client.publish("orders", b"a")

        async def theirs() -> None:
            peer = await server.accept()
            await peer.log_on()
            async with answering(peer):
                await trio.sleep(1)
            await peer.expect_end()

        await together(ours, theirs)
        assert store.unpersisted_count == 0
        assert client.state is ConnectionState.SHUTDOWN


@pytest.mark.row("CC3")
async def test_leaving_the_block_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    made = MemoryPublishStore()
    async with listening() as server:
        start = 0.0
        with caplog.at_level(logging.WARNING):
            async with Client("pub", publish_store=made) as client:
                await server.log_on(client)
                await client.publish("orders", b"a")
                start = trio.current_time()
        assert trio.current_time() - start == pytest.approx(5)
    assert "leaves with publishes not persisted" in caplog.text
    assert made.unpersisted_count == 1


@pytest.mark.row("CC3")
async def test_leaving_after_the_link_was_lost_is_at_once() -> None:
    async with listening() as server:
        async with Client("pub") as client:
            peer = await server.log_on(client)
            with trio.move_on_after(1):
                while True:
                    await client.publish("orders", bytes(100_000))
            peer.link.close()
            start = trio.current_time()
        assert trio.current_time() == start


async def test_what_survives_in_the_store_is_sent_by_the_next_client(server: Server) -> None:
    made = MemoryPublishStore()
    async with Client("pub", publish_store=made) as client:
        peer = await server.log_on(client)
        await client.publish("orders", b"a")
        first, *_ = await peer.sequences(1)
        await close_link(client, peer)
    async with Client("pub", publish_store=made) as client:
        peer = await server.log_on(client)
        await peer.expect("publish", sequence=first, data=b"a")


@pytest.mark.row("CC3")
async def test_a_full_stream_that_nobody_takes_any_more_does_not_hold_up_leaving() -> None:
    async with listening() as server, trio.open_nursery() as nursery:
        async with Client("sub", max_queued_bytes=2_000) as client:
            peer = await server.log_on(client)

            async def script() -> None:
                command = await peer.answer("subscribe")
                await peer.publish(command.sub_id, b"first")
                await trio.sleep(1)
                await peer.publish(command.sub_id, *[bytes(500)] * 20)

            nursery.start_soon(script)
            stream = await client.execute(Command("subscribe", topic="orders"))
            assert (await anext(stream)).data == b"first"
            await trio.sleep(2)
            assert stream._queue.full
            start = trio.current_time()
        assert trio.current_time() == start


@pytest.mark.row("HA18")
async def test_at_the_cap_every_publish_waits_however_many_tasks_there_are(
    server: Server,
) -> None:
    made = MemoryPublishStore()
    async with at_its_cap(server, made) as (client, peer), trio.open_nursery() as nursery:
        peer.link.close()
        nursery.cancel_scope.shield = True
        await wait_all_tasks_blocked()
        assert client._core.publisher.gate.takes_slow_path
        client._core.status.reconnects = True  # as in a client that connects again by itself
        for _ in range(10):
            nursery.start_soon(client.publish, "orders", b"later")
        await wait_all_tasks_blocked()
        assert made.unpersisted_count == 1
        nursery.cancel_scope.cancel()


async def test_a_store_that_cannot_be_closed_does_not_keep_the_other_open() -> None:
    class Unwilling(MemoryPublishStore):
        @override
        def close(self) -> None:
            raise StoreError("the disk is gone")

    class Watched(MemoryBookmarkStore):
        closed = False

        @override
        def close(self) -> None:
            self.closed = True

    bookmarks = Watched()
    with pytest.raises(StoreError, match="the disk is gone"):
        async with Client("pub", publish_store=Unwilling(), bookmark_store=bookmarks):
            pass
    assert bookmarks.closed

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import BaseClient, Client, HAClient
from haclient.errors import (
    CommandError,
    DisconnectedError,
    StoreFull,
    TimedOut,
    UsageError,
    WouldBlock,
)
from haclient.options import Settings
from haclient.protocol.messages import Message
from haclient.subscription_manager import MemorySubscriptionManager
from haclient.transport.core import Core
from haclient_stores.publish_stores.memory import MemoryPublishStore
from haclient_stores.publish_stores.publish_log import PublishLog
from haclient_stores.publish_stores.ring import MIN_RING_BYTES, RingPublishStore
from haclient_stores.publish_stores.segment_log import MIN_SEGMENT_BYTES
from support.clock import in_virtual_time
from support.custom import DictPublishStore
from support.peer import Peer, Server, answering, together
from support.recovery import entered, live, lose

pytestmark = in_virtual_time


class Deletion:
    """A delete on its way."""

    def __init__(self, client: BaseClient) -> None:
        self.client = client
        self.stats: list[Message] = []

    async def run(self) -> None:
        self.stats.append(await self.client.sow_delete("orders", filter="1=1", timeout=30))


def client_of(server: Server, store: PublishLog) -> HAClient:
    return HAClient("ha", servers=[server.uri], publish_store=store, heartbeat=None)


@asynccontextmanager
async def deleting(server: Server) -> AsyncGenerator[tuple[Peer, trio.Nursery, Deletion]]:
    """A client that is live, where its delete may run, and that delete."""
    client = client_of(server, MemoryPublishStore())
    async with entered(client, partial(live, server)) as peer, trio.open_nursery() as nursery:
        yield peer, nursery, Deletion(client)


async def answer(peer: Peer, message: Message, count: int) -> None:
    await peer.ack(message)
    await peer.ack(message, "stats", records_deleted=count)
    await peer.persisted(message.sequence or 0)


@pytest.mark.row("PS3", "PS7")
async def test_its_answer_comes_from_the_next_server_and_it_is_stored_once(
    server: Server,
) -> None:
    async with deleting(server) as (peer, nursery, deletion):
        await deletion.client.publish("orders", b"before")
        nursery.start_soon(deletion.run)
        await wait_all_tasks_blocked()
        await deletion.client.publish("orders", b"after")
        await peer.expect("publish")
        first = await peer.expect("sow_delete")
        await lose(peer)
        again = await live(server)
        heard = [await again.hear() for _ in range(3)]
        assert [message.command for message in heard] == ["publish", "sow_delete", "publish"]
        assert heard[1].sequence == first.sequence
        await answer(again, heard[1], 7)
        store = deletion.client.publish_store
        assert store is not None
        await again.persisted(store.last_sequence)
        await wait_all_tasks_blocked()
        assert [message.records_deleted for message in deletion.stats] == [7]
        assert store.unpersisted_count == 0


@pytest.mark.row("PS3")
async def test_what_the_next_server_has_already_is_answered_without_counts(
    server: Server,
) -> None:
    async with deleting(server) as (peer, nursery, deletion):
        nursery.start_soon(deletion.run)
        sequence = (await peer.expect("sow_delete")).sequence or 0
        await lose(peer)
        await live(server, seen=sequence, persisted=sequence)
        await wait_all_tasks_blocked()
        (stats,) = deletion.stats
        assert (stats.ack_type, stats.sequence, stats.records_deleted) == ("stats", sequence, None)


@pytest.mark.row("PS3")
async def test_the_same_when_only_the_counts_were_lost(server: Server) -> None:
    async with deleting(server) as (peer, nursery, deletion):
        nursery.start_soon(deletion.run)
        await peer.persisted((await peer.expect("sow_delete")).sequence or 0)
        await wait_all_tasks_blocked()
        assert deletion.stats == []  # they may still come
        await lose(peer)
        assert [stats.status for stats in deletion.stats] == ["success"]


@pytest.mark.row("PS3")
async def test_its_answer_may_come_from_the_next_server_behind_a_full_queue(server: Server) -> None:
    client = HAClient(
        "ha",
        servers=[server.uri],
        publish_store=MemoryPublishStore(),
        heartbeat=None,
        max_queued_bytes=10_000,
        exit_timeout=0,
    )

    async def take(_: Message) -> None:
        await trio.sleep_forever()

    async with entered(client, partial(live, server)) as peer, trio.open_nursery() as nursery:
        await together(
            lambda: client.subscribe("orders", sub_id="s", handler=take),
            lambda: peer.answer("subscribe"),
        )
        deletion = Deletion(client)
        nursery.start_soon(deletion.run)
        await peer.expect("sow_delete")
        await lose(peer)
        again = await live(server)
        heard = await again.expect("sow_delete")
        await again.answer("subscribe")
        for _ in range(20):
            await again.publish("s", bytes(1_000))
            await wait_all_tasks_blocked()
        await answer(again, heard, 7)
        await wait_all_tasks_blocked()
        assert [message.records_deleted for message in deletion.stats] == [7]


@pytest.mark.row("PS3")
async def test_without_a_connection_it_is_stored_at_once_and_in_order(server: Server) -> None:
    store = MemoryPublishStore()
    client = client_of(server, store)
    async with entered(client, partial(live, server)) as peer:
        await lose(peer)
        with pytest.raises(TimedOut, match="did not answer within 1 s"):
            await client.sow_delete("orders", filter="1=1", timeout=1)
        await client.publish("orders", b"after")
        again = await live(server)
        await again.expect("sow_delete")
        await again.expect("publish")
        await again.persisted(store.last_sequence)


@pytest.mark.row("PS3")
async def test_a_refusal_is_not_repeated(server: Server) -> None:
    client = client_of(server, MemoryPublishStore())
    async with entered(client, partial(live, server)) as peer:

        async def refuse() -> None:
            message = await peer.expect("sow_delete")
            await peer.refuse(message, "not today")
            await peer.persisted(message.sequence or 0)

        with pytest.raises(CommandError, match="not today"):
            await together(lambda: client.sow_delete("orders", filter="1=1"), refuse)


@pytest.mark.row("PS3", "HA18")
async def test_it_waits_for_room_like_a_publish(server: Server) -> None:
    store = MemoryPublishStore()
    async with Client("c", publish_store=store, max_unpersisted_bytes=1000) as client:
        peer = await server.log_on(client)
        await client.publish("orders", bytes(400_000))
        last = store.last_sequence
        deletion = Deletion(client)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deletion.run)
            assert (await peer.expect("publish")).sequence == last
            await wait_all_tasks_blocked()
            assert store.last_sequence == last  # nothing more was stored
            await peer.persisted(last)
            await answer(peer, await peer.expect("sow_delete"), 1)
        assert [message.records_deleted for message in deletion.stats] == [1]


@pytest.mark.row("PS3", "CC16")
async def test_without_a_store_it_is_never_said_twice(server: Server) -> None:
    client = HAClient("ha", servers=[server.uri], heartbeat=None)
    async with entered(client, partial(live, server)) as peer:

        async def cut() -> None:
            await peer.expect("sow_delete")
            await lose(peer)

        with pytest.raises(DisconnectedError, match=r"sow_delete: publish \d+ was lost"):
            await together(lambda: client.sow_delete("orders", filter="1=1"), cut)
        with pytest.raises(DisconnectedError, match="there is no publish store"):
            await client.sow_delete("orders", filter="1=1", timeout=1)
        again = await live(server)
        async with answering(again):
            with pytest.raises(DisconnectedError, match="flush: 1 publishes were not persisted"):
                await client.flush(timeout=1)
            await client.flush(timeout=1)
        assert [message.command for message in again.heard] == ["logon", "flush", "flush"]


@pytest.mark.row("CC16")
@pytest.mark.parametrize("key", ["a,b", " a", ""])
async def test_a_key_that_would_be_another_one_or_several_is_refused(key: str) -> None:
    async with Client("c") as client:
        with pytest.raises(UsageError, match="delete the record by filter or by data"):
            await client.sow_delete("orders", keys=["1", key])


@pytest.mark.row("PS3", "PS20")
async def test_durability_fsync_holds_for_it_too() -> None:
    class Synced(DictPublishStore):
        durability = "fsync"

    store = Synced()
    core = Core(Settings(name="c", publish_store=store), MemorySubscriptionManager())
    core.thread.bind()
    with pytest.raises(TimedOut):
        await core.flusher.sow_delete({"c": "sow_delete", "t": "t"}, b"", timeout=1)
    assert store.synced == 1
    assert len(core.session.pending) == 0


def refusing_growth() -> MemoryPublishStore:
    return MemoryPublishStore(
        segment_bytes=MIN_SEGMENT_BYTES, resize_handler=lambda size: size <= MIN_SEGMENT_BYTES
    )


FULL: dict[str, Callable[[], PublishLog]] = {
    "ring": lambda: RingPublishStore(None, MIN_RING_BYTES),
    "refused growth": refusing_growth,
}


def publish_for_ever(client: BaseClient, body: bytes) -> None:
    while True:
        client.publish_nowait("orders", body)


@pytest.mark.row("PS3", "PS17", "PS18")
@pytest.mark.parametrize("kind", FULL)
async def test_in_a_full_store_it_waits_for_acks_like_a_publish(server: Server, kind: str) -> None:
    store = FULL[kind]()
    client = client_of(server, store)
    async with entered(client, partial(live, server)) as peer, trio.open_nursery() as nursery:
        with pytest.raises(WouldBlock):
            publish_for_ever(client, bytes(1000))
        with pytest.raises(WouldBlock):  # nor is there room for anything small
            publish_for_ever(client, b"")
        last = store.last_sequence
        deletion = Deletion(client)
        nursery.start_soon(deletion.run)
        while (await peer.expect("publish")).sequence != last:
            pass
        await wait_all_tasks_blocked()
        assert (store.last_sequence, deletion.stats) == (last, [])
        await peer.persisted(last)
        await answer(peer, await peer.expect("sow_delete"), 3)
        await wait_all_tasks_blocked()
        assert [message.records_deleted for message in deletion.stats] == [3]


@pytest.mark.row("PS3", "PS18")
async def test_a_full_store_that_raises_does_so_for_it_too(server: Server) -> None:
    store = RingPublishStore(None, MIN_RING_BYTES, "raise")
    client = client_of(server, store)
    async with entered(client, partial(live, server)) as peer:
        with pytest.raises(StoreFull):
            publish_for_ever(client, bytes(1000))
        last = store.last_sequence
        with pytest.raises(StoreFull):
            await client.sow_delete("orders", filter="/id = " + "1" * 1500, timeout=30)
        assert store.last_sequence == last
        await peer.persisted(last)

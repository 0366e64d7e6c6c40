"""What must not grow with the idle subscriptions and messages: lines and calls are counted."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import HAClient
from haclient.protocol.messages import Message
from haclient.session.resume import ResumeContext
from haclient.transport.writer import Writer
from haclient_stores.bookmark import EPOCH
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.peer import Peer, Server, answering
from support.recovery import entered, live, lose
from support.work import counted_calls, counted_steps, way_to

pytestmark = in_virtual_time
FEW, MANY = 10, 300
COUNT = 2000
MORE = 1.02  # tasks that wake at the same time run in any order


def client_of(server: Server, publish_store: MemoryPublishStore | None = None) -> HAClient:
    return HAClient(
        "ha",
        servers=[server.uri],
        bookmark_store=MemoryBookmarkStore(),
        publish_store=publish_store,
        heartbeat=None,
    )


async def subscribe_idle(client: HAClient, count: int) -> None:
    for number in range(count):
        await client.bookmark_subscribe(
            "orders", sub_id=f"idle-{number}", bookmark=EPOCH, handler=Message.discard
        )
    await wait_all_tasks_blocked()


async def steps_of_opening_and_ending(server: Server, idle: int) -> tuple[int, int]:
    async with entered(client := client_of(server), partial(live, server)) as peer, answering(peer):
        await subscribe_idle(client, idle)
        with counted_steps() as opening:
            await client.bookmark_subscribe("orders", sub_id="one", bookmark=EPOCH, handler=print)
            await wait_all_tasks_blocked()
        with counted_steps() as ending:
            await client.unsubscribe("one")
            await wait_all_tasks_blocked()
        await client.disconnect()
    return opening.count, ending.count


@pytest.mark.row("CC13", "CC17")
async def test_a_subscription_opens_and_ends_beside_many_at_the_cost_beside_few(
    server: Server,
) -> None:
    opening, ending = await steps_of_opening_and_ending(server, FEW)
    opening_beside_many, ending_beside_many = await steps_of_opening_and_ending(server, MANY)
    assert opening_beside_many < opening * MORE
    assert ending_beside_many < ending * MORE


async def steps_of_noting_what_is_received(server: Server, idle: int) -> int:
    """The steps of three messages of one subscription, with a second and so a note after each."""
    async with entered(client := client_of(server), partial(live, server)) as peer, answering(peer):
        await subscribe_idle(client, idle)
        with counted_steps() as noting:
            for number in range(3):
                await trio.sleep(1.1)
                await peer.publish("idle-0", b"1", bm=f"7|{number + 1}|")
                await wait_all_tasks_blocked()
        await client.disconnect()
    return noting.count


@pytest.mark.row("CC13")
async def test_noting_what_is_received_costs_nothing_for_those_that_received_nothing(
    server: Server,
) -> None:
    beside_few = await steps_of_noting_what_is_received(server, FEW)
    assert await steps_of_noting_what_is_received(server, MANY) < beside_few * MORE


async def calls_of_publishing(server: Server, store: MemoryPublishStore | None) -> int:
    async with entered(client := client_of(server, store), partial(live, server)) as peer:
        with counted_calls() as publishing:
            for _ in range(COUNT):
                await client.publish("orders", b"1")
        *_, last = await peer.sequences(COUNT)
        with counted_calls() as acknowledging:
            await peer.persisted(last)
            await wait_all_tasks_blocked()
        await client.disconnect()
    return publishing.count + acknowledging.count


@pytest.mark.row("CC6")
async def test_publishing_without_a_store_costs_no_more_than_with_one_in_memory(
    server: Server,
) -> None:
    with_store = await calls_of_publishing(server, MemoryPublishStore())
    assert await calls_of_publishing(server, None) < with_store * MORE


async def steps_of_a_discard(server: Server, count: int) -> float:
    """The steps of one discard, where all messages of a conflated subscription came again."""
    got: list[Message] = []
    bodies = [b"1"] * count

    async def publish(peer: Peer) -> None:
        await peer.publish("s", *bodies, bm="7|1|")
        await wait_all_tasks_blocked()

    async with entered(client := client_of(server), partial(live, server)) as peer:
        async with answering(peer):
            await client.bookmark_subscribe(
                "orders", sub_id="s", bookmark=EPOCH, handler=got.append, options="conflation=3s"
            )
            await publish(peer)
            await lose(peer)
        again = await live(server)
        await again.answer("subscribe")
        async with answering(again):
            await publish(again)
            assert len(got) == 2 * count
            with counted_steps() as discarding:
                for message in reversed(got):
                    message.discard()
            await client.disconnect()
    return discarding.count / len(got)


@pytest.mark.row("OP10")
async def test_a_discard_of_what_came_again_costs_the_same_among_many(server: Server) -> None:
    among_few = await steps_of_a_discard(server, FEW)
    assert await steps_of_a_discard(server, MANY) < among_few * MORE


@pytest.mark.row("CC11", "CC13")
async def test_the_way_of_a_subscribe_to_the_outbox_stays_short(server: Server) -> None:
    """Ceilings: a longer way has to be worth it, a shorter one lowers them."""
    async with entered(client := client_of(server), partial(live, server)) as peer, answering(peer):
        await client.subscribe("orders", handler=print)  # what is parsed once
        with way_to(Writer.send) as subscribing:
            await client.subscribe("orders", handler=print)
        async with client.stream("orders"):
            pass
        with way_to(Writer.send) as streaming:
            await client.stream("orders").open()
        with way_to(Writer.send) as resumable:
            await client.bookmark_subscribe("orders", sub_id="s", bookmark=EPOCH, handler=print)
        await client.disconnect()
    assert subscribing.count <= 120
    assert streaming.count <= 130
    assert resumable.count <= 240
    assert max(subscribing.depth, streaming.depth, resumable.depth) <= 6


@pytest.mark.row("HA4")
async def test_the_way_from_a_new_link_to_the_bookmarks_stays_short(server: Server) -> None:
    async with entered(client := client_of(server), partial(live, server)) as peer:
        async with answering(peer):
            await client.bookmark_subscribe("orders", sub_id="s", handler=print)
        await lose(peer)
        with way_to(ResumeContext.bookmarks) as choosing:
            again = await live(server)
            await again.answer("subscribe")
        await client.disconnect()
    assert 0 < choosing.depth <= 6

"""A subscription is sent again as it was, on each way to another connection."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import HAClient
from haclient.errors import HAClientError
from haclient.protocol.commands import Command
from haclient.protocol.messages import Message
from haclient.servers.chooser import PriorityServerChooser
from haclient.servers.delay import FixedDelayStrategy
from haclient.session.connection_state import ConnectionState
from haclient.subscription_manager import MemorySubscriptionManager
from haclient.transport.reconnector import MAX_RESUBSCRIBING
from haclient.transport.tasks import open_nursery
from haclient_stores.bookmark import EPOCH, MOST_RECENT, NOW
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.peer import Peer, Server, answering
from support.recovery import drop, entered, live, lose

pytestmark = in_virtual_time

TOPIC, FILTER = "^orders/(eu|us)/.*$", '/px > 10 AND /side = "buy, or /sell"'
Subscribing = Callable[[HAClient, AsyncExitStack], Awaitable[object]]
MoveTo = Callable[[str], None]  # begins a move of the client
Leaving = Callable[[MoveTo, Peer, Server, Server], Awaitable[Peer]]


def ignore(message: Message) -> None:
    """Handle a message."""
    message.discard()


async def plain(client: HAClient, _: AsyncExitStack) -> None:
    await client.subscribe(TOPIC, handler=ignore, filter=FILTER, options="oof,send_keys")


async def named(client: HAClient, _: AsyncExitStack) -> None:
    await client.subscribe(TOPIC, handler=ignore, filter=FILTER, sub_id="mine")


async def plain_stream(client: HAClient, stack: AsyncExitStack) -> None:
    stream = client.stream(TOPIC, filter=FILTER, options="no_empties", resumes=True)
    await stack.enter_async_context(stream)


async def query_and_follow(client: HAClient, _: AsyncExitStack) -> None:
    await client.sow_and_subscribe(
        TOPIC, handler=ignore, filter=FILTER, batch_size=7, options="oof,timestamp"
    )


async def query_and_follow_as_a_stream(client: HAClient, stack: AsyncExitStack) -> None:
    stream = client.sow_and_stream(TOPIC, filter=FILTER, batch_size=3, resumes=True)
    await stack.enter_async_context(stream)


async def a_page_as_a_stream(client: HAClient, stack: AsyncExitStack) -> None:
    stream = client.sow_and_stream(
        TOPIC,
        filter=FILTER,
        order_by="/px DESC",
        options="oof,select=[-/x],top_n=3,skip_n=6",
        resumes=True,
    )
    await stack.enter_async_context(stream)


async def a_page(client: HAClient, _: AsyncExitStack) -> None:
    await client.sow_and_subscribe(
        TOPIC, handler=ignore, order_by="/px", options="top_n=3,skip_n=0"
    )


async def deltas(client: HAClient, _: AsyncExitStack) -> None:
    await client.subscribe(
        TOPIC, delta=True, handler=ignore, filter=FILTER, options="no_empties,oof"
    )


async def deltas_as_a_stream(client: HAClient, stack: AsyncExitStack) -> None:
    stream = client.stream(TOPIC, delta=True, filter=FILTER, options="send_keys", resumes=True)
    await stack.enter_async_context(stream)


async def query_and_follow_deltas(client: HAClient, _: AsyncExitStack) -> None:
    await client.sow_and_subscribe(
        TOPIC, delta=True, handler=ignore, filter=FILTER, batch_size=4, options="oof"
    )


async def query_and_follow_deltas_as_a_stream(client: HAClient, stack: AsyncExitStack) -> None:
    stream = client.sow_and_stream(TOPIC, delta=True, filter=FILTER, batch_size=2, resumes=True)
    await stack.enter_async_context(stream)


async def bookmark(client: HAClient, _: AsyncExitStack) -> None:
    await client.bookmark_subscribe(
        TOPIC, sub_id="b", handler=ignore, bookmark=EPOCH, filter=FILTER, options="rate=1000"
    )


async def bookmark_from_now(client: HAClient, _: AsyncExitStack) -> None:
    await client.bookmark_subscribe(
        TOPIC, sub_id="b", handler=ignore, bookmark=NOW, filter=FILTER, options="timestamp"
    )


async def bookmark_stream(client: HAClient, stack: AsyncExitStack) -> None:
    stream = client.bookmark_stream(
        TOPIC, sub_id="b", bookmark=MOST_RECENT, filter=FILTER, options="fully_durable"
    )
    await stack.enter_async_context(stream)


async def command(client: HAClient, _: AsyncExitStack) -> None:
    made = Command(
        "sow_and_subscribe",
        topic=TOPIC,
        filter=FILTER,
        order_by="/px DESC",
        top_n=5,
        batch_size=2,
        options="oof",
        sub_id="c",
    )
    await client.execute_async(made, ignore)


async def replaced(client: HAClient, _: AsyncExitStack) -> None:
    sub_id = await client.subscribe("other", handler=ignore, filter="/old = 1", options="oof")
    await client.replace(sub_id, topic=TOPIC, filter=FILTER, options="send_keys")


async def paused(client: HAClient, _: AsyncExitStack) -> None:
    await client.bookmark_subscribe(
        TOPIC, sub_id="b", handler=ignore, filter=FILTER, options="timestamp"
    )
    await client.pause("b")


ALL = [
    plain,
    named,
    plain_stream,
    query_and_follow,
    query_and_follow_as_a_stream,
    a_page,
    a_page_as_a_stream,
    deltas,
    deltas_as_a_stream,
    query_and_follow_deltas,
    query_and_follow_deltas_as_a_stream,
    bookmark,
    bookmark_from_now,
    bookmark_stream,
    command,
    replaced,
    paused,
]


async def loss(_move_to: MoveTo, peer: Peer, _: Server, second: Server) -> Peer:
    """A lasting connection is lost, and made again to the same server."""
    await lose(peer)
    return await live(second)


async def fail_over(_move_to: MoveTo, peer: Peer, first: Server, _: Server) -> Peer:
    """A server fails at once, and another one is used."""
    await drop(peer)
    return await live(first)


async def accepted_at(first: Server) -> Peer:
    """The connection of a client that moves, after those that have checked its new server."""
    for _ in range(10):
        checked = await first.accept()
        logon = await checked.log_on()
        if logon.client_name == "ha":
            return checked
        await checked.expect_end()
    pytest.fail("it did not move")


async def move(_: MoveTo, peer: Peer, first: Server, _second: Server) -> Peer:
    """The client moves to a better server."""
    async with answering(peer):
        return await accepted_at(first)


async def move_to(begin: MoveTo, peer: Peer, first: Server, _second: Server) -> Peer:
    """The application has it move."""
    begin(first.uri)
    async with answering(peer):
        return await accepted_at(first)


async def refusal(_: MoveTo, peer: Peer, first: Server, second: Server) -> Peer:
    """The next server does not take the subscription, and one after it does."""
    await lose(peer)
    refusing = await live(second)
    await refusing.refuse(await refusing.hear(), "not entitled")
    await refusing.expect_end()
    return await live(first)


@asynccontextmanager
async def at_the_second(
    first: Server, second: Server, *, check_every: float
) -> AsyncGenerator[tuple[HAClient, Peer]]:
    """A client that is live with its second server."""
    chooser = PriorityServerChooser(
        [first.uri, second.uri], healthy_for=2.0, check_every=check_every
    )
    client = HAClient(
        "ha",
        server_chooser=chooser,
        publish_store=MemoryPublishStore(),
        bookmark_store=MemoryBookmarkStore(),
        delay_strategy=FixedDelayStrategy(0.5),
        heartbeat=None,
        exit_timeout=0,
    )

    async def serve() -> Peer:
        refusing = await first.accept()
        await refusing.refuse(await refusing.expect("logon"), "recovering")
        return await live(second)

    async with entered(client, serve) as peer:
        yield client, peer


NOT_COMPARED = {"command_id", "query_id", "bookmark", "data"}
NAMES = [each for each in Message.__struct_fields__ if each not in NOT_COMPARED]
CHANGED: dict[Subscribing, dict[str, str]] = {
    replaced: {"topic": TOPIC, "filter": FILTER, "options": "send_keys"},
    paused: {"options": "pause,timestamp"},
}
"""What is different from the first command, because the client has changed it since."""


def parts(request: Message) -> dict[str, object]:
    """What a command asks for, without what belongs to one exchange."""
    return {name: getattr(request, name) for name in NAMES}


@pytest.mark.row("SM11")
async def test_many_subscriptions_are_sent_again_in_their_order_without_a_round_trip_for_each(
    server: Server, other: Server
) -> None:
    ids = [f"s{number}" for number in range(3 * MAX_RESUBSCRIBING)]
    async with at_the_second(server, other, check_every=1e6) as (client, peer):
        async with answering(peer):
            for sub_id in ids:
                await client.subscribe("orders", handler=ignore, sub_id=sub_id)
        await lose(peer)
        again = await live(other)
        heard = [await again.expect("subscribe") for _ in range(MAX_RESUBSCRIBING)]
        with trio.move_on_after(0.1):
            await again.hear()
            pytest.fail("too many at one time")
        for place in range(len(ids)):  # each answer makes room for one
            await again.ack(heard[place])
            if len(heard) < len(ids):
                heard.append(await again.expect("subscribe"))
        assert [each.sub_id for each in heard] == ids
        async with answering(again):
            await client.flush()
    assert client.state is ConnectionState.SHUTDOWN


@pytest.mark.row("SM8", "SM11")
async def test_one_that_is_refused_among_many_is_dropped_and_the_others_go_on(
    server: Server,
) -> None:
    ids = [f"s{number}" for number in range(5)]
    asked: list[str] = []

    def decide(sub_id: str, _: HAClientError) -> str:
        asked.append(sub_id)
        return "drop"

    async def send_again(peer: Peer) -> list[str]:
        heard = [await peer.expect("subscribe") for _ in range(len(ids) - len(asked))]
        for each in heard:
            if each.sub_id == "s2":
                await peer.refuse(each, "not entitled")
            else:
                await peer.ack(each)
        return [each.sub_id for each in heard]

    client = HAClient(
        "ha",
        servers=[server.uri],
        delay_strategy=FixedDelayStrategy(0.5),
        heartbeat=None,
        on_resubscribe_failure=decide,
    )
    async with entered(client, lambda: live(server)) as peer:
        async with answering(peer):
            for sub_id in ids:
                await client.subscribe("orders", handler=ignore, sub_id=sub_id)
        await lose(peer)
        with contextlib.suppress(EOFError, OSError):  # refused once: another server may take it
            assert await send_again(await live(server)) == ids
        again = await live(server)
        assert await send_again(again) == ids
        async with answering(again):
            await client.flush()
        assert asked == ["s2"]


@pytest.mark.row("SM2", "SM5")
async def test_the_command_that_the_subscription_manager_keeps_is_the_one_that_is_sent_again(
    server: Server,
) -> None:
    manager = MemorySubscriptionManager()
    client = HAClient(
        "ha", servers=[server.uri], subscription_manager=manager, heartbeat=None, exit_timeout=0
    )
    async with entered(client, lambda: live(server)) as peer:
        async with answering(peer):
            await client.subscribe("orders", handler=ignore, filter="/old = 1", sub_id="s")
        (entry,) = manager.entries()
        manager.add(dataclasses.replace(entry, fields={**entry.fields, "filter": FILTER}))
        await lose(peer)
        again = await live(server)
        assert (await again.answer("subscribe")).filter == FILTER


@pytest.mark.row("SM1", "SM2", "SM5", "SM6", "HA12")
@pytest.mark.parametrize("leave", [loss, fail_over, move, move_to, refusal])
@pytest.mark.parametrize("subscribe", ALL)
async def test_a_subscription_is_sent_again_with_its_topic_filter_and_options(
    server: Server, other: Server, subscribe: Subscribing, leave: Leaving
) -> None:
    check_every = 1.0 if leave is move else 1e6
    async with (
        at_the_second(server, other, check_every=check_every) as (client, peer),
        open_nursery() as nursery,
        AsyncExitStack() as stack,
    ):

        def begin_move(uri: str) -> None:
            nursery.start_soon(partial(client.move_to, uri))

        async with answering(peer):
            await subscribe(client, stack)
            await wait_all_tasks_blocked()
        first = next(each for each in peer.heard if each.sub_id and "subscribe" in each.command)
        at = peer
        for _ in range(2):  # and what was sent again once is sent again as it was
            at = await leave(begin_move, at, server, other)
            again = await at.hear()
            wanted = parts(first) | CHANGED.get(subscribe, {})
            if again.bookmark:  # a server that no longer has this place begins where its log does
                wanted["options"] = f"bookmark_not_found=epoch,{wanted['options']}"
            assert parts(again) == wanted
            assert bool(again.bookmark) == bool(first.bookmark)
            await at.ack(again)
            await wait_all_tasks_blocked()
            if leave is not loss:
                break
        await client.disconnect()

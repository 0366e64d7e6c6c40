"""A subscription id that is used again: nothing of the earlier use is lost or taken for the new."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import Client
from haclient.errors import BadFilter, SubIdInUse, SubscriptionFull, TimedOut
from haclient.protocol.messages import Message
from haclient.session import back_pressure
from haclient.streams import MessageStream
from haclient_stores.bookmark import EPOCH
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from support.clock import in_virtual_time
from support.peer import Peer, Server, together

pytestmark = [in_virtual_time, pytest.mark.row("BS11"), pytest.mark.row("CC17")]


@pytest.fixture
async def client() -> AsyncGenerator[Client]:
    async with Client("sub", bookmark_store=MemoryBookmarkStore()) as found:
        yield found


@pytest.fixture
async def peer(server: Server, client: Client) -> Peer:
    return await server.log_on(client)


def resumed(client: Client) -> MessageStream:
    return client.bookmark_stream("orders", sub_id="s")


async def opened(client: Client, peer: Peer) -> MessageStream:
    stream, _ = await together(resumed(client).open, lambda: peer.answer("subscribe"))
    return stream


async def close_without_waiting(stream: MessageStream) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await stream.aclose()


async def taken(stream: MessageStream, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        message = await anext(stream)
        found.append(message.data)
        message.discard()
    return found


async def test_what_was_on_its_way_for_an_earlier_subscription_is_not_taken_for_the_new_one(
    client: Client, peer: Peer
) -> None:
    await close_without_waiting(await opened(client, peer))
    leaving = await peer.expect("unsubscribe", sub_id="s")

    async def server() -> None:
        await wait_all_tasks_blocked()
        await peer.publish("s", b"3", bm="7|3|")  # behind it "1" and "2" would count as seen
        await wait_all_tasks_blocked()
        await peer.ack(leaving)
        await peer.answer("subscribe")
        await peer.publish("s", b"1", b"2", b"3", bm="7|1|")

    stream, _ = await together(resumed(client).open, server)
    assert await taken(stream, 3) == [b"1", b"2", b"3"]
    await close_without_waiting(stream)


async def test_an_id_whose_end_is_never_confirmed_is_not_used_again(
    client: Client, peer: Peer
) -> None:
    await close_without_waiting(await opened(client, peer))
    await peer.expect("unsubscribe", sub_id="s")
    with pytest.raises(TimedOut, match="not confirmed within 10 s that the earlier"):
        await resumed(client).open()
    with trio.move_on_after(1) as silence:
        await peer.hear()
    assert silence.cancelled_caught


async def test_a_new_connection_has_nothing_on_its_way(
    server: Server, client: Client, peer: Peer
) -> None:
    await close_without_waiting(await opened(client, peer))
    await client.disconnect()
    peer = await server.log_on(client)
    await close_without_waiting(await opened(client, peer))


async def test_messages_that_unsubscribing_drops_come_again(client: Client, peer: Peer) -> None:
    busy, got = trio.Event(), list[bytes]()

    async def handler(message: Message) -> None:
        await busy.wait()
        got.append(message.data)
        message.discard()

    async def subscribe() -> str:
        return await client.bookmark_subscribe("orders", sub_id="s", handler=handler)

    await together(subscribe, lambda: peer.answer("subscribe"))
    for body in (b"1", b"2", b"3"):
        await peer.publish("s", body, bm=f"7|{body.decode()}|")
        await wait_all_tasks_blocked()
    await together(lambda: client.unsubscribe("s"), lambda: peer.answer("unsubscribe"))
    await together(subscribe, lambda: peer.answer("subscribe"))
    await peer.publish("s", b"1", b"2", b"3", bm="7|1|")
    await wait_all_tasks_blocked()
    busy.set()
    await wait_all_tasks_blocked()
    assert sorted(got) == [b"1", b"2", b"3"]


async def test_what_a_slow_handler_has_in_hand_comes_to_no_later_stream(
    client: Client, peer: Peer
) -> None:
    got: list[bytes] = []
    first, busy = trio.Event(), trio.Event()

    async def handle(message: Message) -> None:
        first.set()
        await busy.wait()
        got.append(message.data)
        message.discard()

    async def subscribe() -> None:
        await client.bookmark_subscribe("orders", sub_id="s", handler=handle)

    await together(subscribe, lambda: peer.answer("subscribe"))
    await peer.publish("s", b"1", b"2", bm="7|1|")
    await first.wait()
    await together(lambda: client.unsubscribe("s"), lambda: peer.answer("unsubscribe"))
    closed = await opened(client, peer)
    await peer.publish("s", b"1", b"2", b"3", bm="7|1|")
    assert (await anext(closed)).data == b"3"  # and it is not discarded
    await together(closed.aclose, lambda: peer.answer("unsubscribe"))
    stream = await opened(client, peer)
    await peer.publish("s", b"1", b"2", b"3", bm="7|1|")
    assert await taken(stream, 1) == [b"3"]
    busy.set()
    await wait_all_tasks_blocked()
    assert got == [b"1", b"2"]
    await close_without_waiting(stream)


async def test_what_an_earlier_handler_has_kept_comes_again_while_it_is_still_at_work(
    client: Client, peer: Peer
) -> None:
    at_fourth, busy = trio.Event(), trio.Event()
    kept: list[Message] = []

    async def handle(message: Message) -> None:
        kept.append(message)
        if message.data == b"2":
            message.discard()
        if message.data == b"4":
            at_fourth.set()
            await busy.wait()

    async def subscribe() -> None:
        await client.bookmark_subscribe("orders", sub_id="s", handler=handle)

    await together(subscribe, lambda: peer.answer("subscribe"))
    await peer.publish("s", b"1", b"2", bm="7|1|")
    await wait_all_tasks_blocked()
    await peer.publish("s", b"3", b"4", b"5", bm="7|3|")  # it has finished with 3
    await at_fourth.wait()
    await together(lambda: client.unsubscribe("s"), lambda: peer.answer("unsubscribe"))
    stream = await opened(client, peer)
    bodies = [b"1", b"2", b"3", b"4", b"5", b"6"]
    await peer.publish("s", *bodies, bm="7|1|")
    assert await taken(stream, 3) == [b"1", b"3", b"6"]
    busy.set()
    await wait_all_tasks_blocked()
    assert [each.data for each in kept] == bodies[:5]
    kept[3].discard()
    await together(stream.aclose, lambda: peer.answer("unsubscribe"))
    stream = await opened(client, peer)
    await peer.publish("s", *bodies, bm="7|1|")
    assert await taken(stream, 1) == [b"5"]  # which the handler has left undiscarded
    await close_without_waiting(stream)


@pytest.mark.parametrize("meanwhile", ["plain", "refused"])
async def test_undiscarded_messages_come_again_whatever_used_the_id_when_their_handler_ended(
    client: Client, peer: Peer, meanwhile: str
) -> None:
    first, busy = trio.Event(), trio.Event()

    async def handle(_: Message) -> None:
        first.set()
        await busy.wait()

    async def subscribe() -> None:
        await client.bookmark_subscribe("orders", sub_id="s", handler=handle)

    async def refused() -> None:
        with pytest.raises(BadFilter):
            await client.bookmark_subscribe("orders", sub_id="s", handler=handle, filter="((")

    async def refuse() -> None:
        command = await peer.expect("subscribe")
        busy.set()
        await wait_all_tasks_blocked()
        await peer.refuse(command, "bad filter")

    await together(subscribe, lambda: peer.answer("subscribe"))
    await peer.publish("s", b"1", b"2", bm="7|1|")
    await first.wait()
    await together(lambda: client.unsubscribe("s"), lambda: peer.answer("unsubscribe"))
    if meanwhile == "plain":
        plain = client.stream("other", sub_id="s")
        await together(plain.open, lambda: peer.answer("subscribe"))
        busy.set()
        await wait_all_tasks_blocked()
        await together(plain.aclose, lambda: peer.answer("unsubscribe"))
    else:
        await together(refused, refuse)
    stream = await opened(client, peer)
    await peer.publish("s", b"1", b"2", b"3", bm="7|1|")
    assert await taken(stream, 3) == [b"1", b"2", b"3"]
    await close_without_waiting(stream)


async def test_messages_of_a_subscribe_that_was_given_up_come_again(
    client: Client, peer: Peer
) -> None:
    async def server() -> None:
        await peer.expect("subscribe")
        await peer.publish("s", b"1", b"2", bm="7|1|")
        await peer.ack(await peer.expect("unsubscribe", sub_id="s"))

    async def give_up() -> None:
        with trio.move_on_after(1):
            await resumed(client).open()

    await together(give_up, server)
    stream = await opened(client, peer)
    await peer.publish("s", b"1", b"2", bm="7|1|")
    assert await taken(stream, 2) == [b"1", b"2"]
    await close_without_waiting(stream)


async def test_an_id_in_use_is_refused_before_the_store_forgets_anything(
    client: Client, peer: Peer
) -> None:
    stream = await opened(client, peer)
    await peer.publish("s", b"1", bm="7|1|")
    message = await anext(stream)
    with pytest.raises(SubIdInUse):
        await client.bookmark_stream("orders", sub_id="s", bookmark=EPOCH).open()
    message.discard()
    assert client.bookmark_store is not None
    assert client.bookmark_store.is_discarded("s", "7|1|")
    await close_without_waiting(stream)


async def test_a_subscribe_whose_wait_has_failed_is_ended_at_the_server(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a later subscription takes for its own what the server still sends for that one."""
    monkeypatch.setattr(back_pressure, "IN_FLIGHT_BYTES", 2_000)
    failed: list[SubscriptionFull] = []

    async def handle(message: Message) -> None:
        if message.data == b"go":
            with pytest.raises(SubscriptionFull) as caught:
                await sub.subscribe("other", sub_id="x", handler=print, timeout=None)
            failed.append(caught.value)

    async with Client("sub", max_queued_bytes=2_000, exit_timeout=0) as sub:
        peer = await server.log_on(sub)
        await together(
            lambda: sub.subscribe("orders", sub_id="s", handler=handle),
            lambda: peer.answer("subscribe"),
        )
        await peer.publish("s", b"go")
        command = await peer.expect("subscribe", sub_id="x")
        for _ in range(10):
            await peer.publish("s", *[bytes(1_000)] * 10)
            await wait_all_tasks_blocked()
        await peer.ack(command)
        await peer.answer("unsubscribe", sub_id="x")
    (error,) = failed
    assert str(error).startswith("subscribe on 'other': the ack comes after")

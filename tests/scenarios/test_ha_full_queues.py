"""A fail-over while the task that has to take the messages waits for the connection."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import HAClient
from haclient.protocol.messages import Message
from haclient.session.connection_state import ConnectionState
from haclient.transport import reporter
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from support.clock import in_virtual_time
from support.listening import on_states
from support.peer import Server, answering
from support.recovery import drop, entered, live

pytestmark = [in_virtual_time, pytest.mark.row("HA17")]

CAP = 10_000
RECORDS = [bytes(1_000)] * 40


@pytest.mark.parametrize("call", ["flush"])
async def test_a_handler_that_uses_its_client_does_not_keep_it_from_becoming_live(
    server: Server, call: str
) -> None:
    """The next subscription is answered behind the records, for which its queue has no room."""
    client = HAClient(
        "ha",
        servers=[server.uri],
        max_queued_bytes=CAP,
        heartbeat=None,
        exit_timeout=0,
    )
    may_go_on = trio.Event()
    all_handled = trio.Event()
    handled = 0

    async def handle(message: Message) -> None:
        nonlocal handled
        await may_go_on.wait()
        await (client.publish("copy", message.data) if call == "publish" else client.flush())
        handled += 1
        if handled == len(RECORDS) + 3:  # the frames around the records, and the one in hand
            all_handled.set()

    async with entered(client, partial(live, server)) as peer, trio.open_nursery() as nursery:
        nursery.start_soon(partial(client.sow_and_subscribe, "records", sub_id="a", handler=handle))
        await peer.answer("sow_and_subscribe")
        await wait_all_tasks_blocked()
        nursery.start_soon(partial(client.subscribe, "others", sub_id="b", handler=print))
        await peer.answer("subscribe")
        await peer.publish("a", b"in hand", topic="records")
        await drop(peer)
        may_go_on.set()
        again = await live(server)
        if call == "publish":  # it waits for no subscription
            assert (await again.expect("publish")).data == b"in hand"
        await again.records(await again.answer("sow_and_subscribe"), *RECORDS)
        async with answering(again):
            with trio.move_on_after(60):  # a client that reads tiny pieces pauses now and then
                await all_handled.wait()
        assert client.state is ConnectionState.RESUBSCRIBED
        assert (handled, len(server.peers)) == (43, 2)
        await client.disconnect()


async def test_a_listener_that_waits_for_the_connection_does_not_keep_it_from_becoming_live(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "_CAP_BYTES", 8 * 256)
    flushed = trio.Event()

    async def flush(state: ConnectionState) -> None:
        if state is ConnectionState.RECONNECTING:
            await client.flush(timeout=1e5)
            flushed.set()

    client = HAClient(
        "ha",
        servers=[server.uri],
        bookmark_store=MemoryBookmarkStore(),
        heartbeat=None,
        exit_timeout=0,
        on_event=on_states(flush),
    )
    async with entered(client, partial(live, server)) as peer, trio.open_nursery() as nursery:
        async with answering(peer):
            await client.bookmark_subscribe("orders", sub_id="a", handler=Message.discard)
            await client.subscribe("others", sub_id="b", handler=print)
        await peer.publish("a", *[b"x"] * 20, bm="7|1|")
        await wait_all_tasks_blocked()
        await drop(peer)
        again = await live(server)
        await again.answer("subscribe")
        for _ in range(20):  # the duplicates of one read are one event
            await again.publish("a", b"x", bm="7|1|")
            await wait_all_tasks_blocked()
        await again.answer("subscribe", sub_id="b")
        await wait_all_tasks_blocked()
        assert client.state is ConnectionState.RESUBSCRIBED
        await again.answer("flush")
        await flushed.wait()
        nursery.cancel_scope.cancel()
        await client.disconnect()

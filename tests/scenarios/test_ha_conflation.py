"""A conflated subscription across lost connections: the last value of each key arrives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import Client, HAClient
from haclient.protocol.messages import Message
from haclient.session.connection_state import ConnectionState
from haclient_fake_server.testing.cluster import Cluster
from haclient_fake_server.testing.faults import Cut, Kill
from haclient_stores.audit_log import AuditLog
from haclient_stores.bookmark import EPOCH
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from support.clock import in_virtual_time
from support.listening import on_duplicates
from support.peer import Peer, Server, answering
from support.recovery import entered, live, lose

LIMIT_S = 300.0


@in_virtual_time
@pytest.mark.row("OP10", "BS11")
@pytest.mark.parametrize(
    ("options", "is_merged"),
    [
        ("conflation=3s", True),
        ("conflation =3s, timestamp", True),
        ("conflation=auto", True),
        ("conflation=none", False),
        ("", False),
    ],
)
async def test_what_is_merged_under_a_bookmark_that_was_seen_is_delivered(
    server: Server,
    options: str,
    is_merged: bool,  # noqa: FBT001  # a parameter
) -> None:
    """The bookmark is that of the first message of an interval, and a replay has others."""
    got: list[bytes] = []
    dropped: list[bytes] = []
    store = MemoryBookmarkStore()

    def handle(message: Message) -> None:
        got.append(message.data)
        message.discard()

    client = HAClient(
        "ha",
        servers=[server.uri],
        bookmark_store=store,
        heartbeat=None,
        on_event=on_duplicates(lambda message: dropped.append(message.data)),
    )
    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            await client.bookmark_subscribe(
                "orders", sub_id="s", bookmark=EPOCH, handler=handle, options=options
            )
            await peer.publish("s", b"a1", b"b1", bm="7|1|")
            await wait_all_tasks_blocked()
        await lose(peer)
        again = await live(server)
        await again.answer("subscribe")
        async with answering(again):
            await again.publish(
                "s", b"a3", b"b1", b"c1", bm="7|1|"
            )  # of a replay that began before
            await wait_all_tasks_blocked()
            merged = [b"a3", b"b1"] if is_merged else []
            assert got == [b"a1", b"b1", *merged, b"c1"]
            assert dropped == ([] if is_merged else [b"a3", b"b1"])
            assert store.subscription("s").undiscarded_count == 0
            await client.disconnect()


async def resumed(
    client: HAClient, peer: Peer, server: Server, handler: Callable[[Message], None]
) -> Peer:
    """A connection after one on which the message `7|1|` was discarded."""
    async with answering(peer):
        await client.bookmark_subscribe(
            "orders",
            sub_id="s",
            bookmark=EPOCH,
            handler=handler,
            options="conflation=3s",
        )
        await peer.publish("s", b"a1", bm="7|1|")
        await wait_all_tasks_blocked()
    await lose(peer)
    again = await live(server)
    await again.answer("subscribe")
    return again


@in_virtual_time
@pytest.mark.row("OP10", "BS3")
async def test_what_came_again_and_is_not_discarded_holds_the_recovery_point(
    server: Server,
) -> None:
    store = MemoryBookmarkStore()
    kept: list[Message] = []

    def discard_all_but_one(message: Message) -> None:
        if message.data == b"a3":
            kept.append(message)
        else:
            message.discard()

    client = HAClient("ha", servers=[server.uri], bookmark_store=store, heartbeat=None)
    async with entered(client, partial(live, server)) as peer:
        again = await resumed(client, peer, server, discard_all_but_one)
        await again.publish("s", b"a3", bm="7|1|")
        await again.publish("s", b"b4", b"b5", bm="7|4|")
        await wait_all_tasks_blocked()
        await again.ack(None, "persisted", sub_id="s", bm="7|5|")
        await wait_all_tasks_blocked()
        assert str(store.most_recent("s")) == "0", "what b4 and b5 are discarded behind"
        await lose(again)
        third = await live(server)
        heard = await third.answer("subscribe")
        assert heard.bookmark == "0"
        await third.publish("s", b"a3 again", bm="7|2|")
        await wait_all_tasks_blocked()
        await trio.to_thread.run_sync(kept[0].discard)
        await wait_all_tasks_blocked()
        assert store.subscription("s").undiscarded_count == 0
        await client.disconnect()


@in_virtual_time
@pytest.mark.row("OP10")
async def test_what_came_again_and_was_dropped_with_its_link_holds_nothing(server: Server) -> None:
    gate = trio.Event()
    got: list[bytes] = []
    store = MemoryBookmarkStore()

    async def slow(message: Message) -> None:
        if message.data == b"b2":
            await gate.wait()
        got.append(message.data)
        message.discard()

    client = HAClient("ha", servers=[server.uri], bookmark_store=store, heartbeat=None)
    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            await client.bookmark_subscribe(
                "orders", sub_id="s", bookmark=EPOCH, handler=slow, options="conflation=3s"
            )
            await peer.publish("s", b"a1", bm="7|1|")
            await wait_all_tasks_blocked()
        await lose(peer)
        again = await live(server)
        await again.answer("subscribe")
        await again.publish("s", b"b2", bm="7|2|")
        await wait_all_tasks_blocked()
        await again.publish("s", b"a3", bm="7|1|")  # it waits behind b2
        await wait_all_tasks_blocked()
        await lose(again)
        third = await live(server)
        await third.answer("subscribe")
        gate.set()
        await third.publish("s", b"a3", bm="7|3|")
        await wait_all_tasks_blocked()
        assert got == [b"a1", b"b2", b"a3"]
        assert store.subscription("s").undiscarded_count == 0
        await client.disconnect()


@pytest.mark.row("OP10")
@in_virtual_time
async def test_an_audit_log_has_nothing_of_what_came_again(server: Server, tmp_path: Path) -> None:
    client = HAClient(
        "ha",
        servers=[server.uri],
        bookmark_store=MemoryBookmarkStore(),
        heartbeat=None,
        audit_log=AuditLog(tmp_path / "audit"),
    )
    async with entered(client, partial(live, server)) as peer:
        again = await resumed(client, peer, server, Message.discard)
        await again.publish("s", b"a2", bm="7|1|")
        await again.publish("s", b"no bookmark")
        await again.publish("s", b"b4", bm="7|4|")
        await wait_all_tasks_blocked()
        assert client.state is ConnectionState.RESUBSCRIBED
        await client.disconnect()


@pytest.mark.row("OP10", "RE8")
async def test_the_last_value_of_a_key_survives_a_fail_over_however_it_is_merged() -> None:
    got: list[str | int] = []
    third, first = trio.Event(), trio.Event()

    def handle(message: Message) -> None:
        value = message.json(dict[str, str | int])["v"]
        got.append(value)
        message.discard()
        (third if value == 3 else first).set()

    with trio.fail_after(LIMIT_S):
        async with (
            Cluster("east", "west") as cluster,
            HAClient.memory_backed("sub", servers=cluster.uris, exit_timeout=0) as client,
            Client("pub") as publisher,
        ):
            await publisher.connect(cluster.uris[1])
            await publisher.logon()
            await client.bookmark_subscribe(
                "t",
                handler=handle,
                sub_id="s",
                bookmark=EPOCH,
                options="conflation=300ms,conflation_key=[/id]",
            )
            await publisher.publish("t", '{"id":"A","v":1}')
            await first.wait()
            for value in (2, 3):
                await publisher.publish("t", f'{{"id":"A","v":{value}}}')
            await publisher.flush(ack="persisted")
            await cluster.apply(Kill("east"))
            await third.wait()
    assert got[0] == 1
    assert got[-1] == 3


@in_virtual_time
async def test_a_lost_link_repeats_nothing_that_a_conflated_stream_processes() -> None:
    got: list[bytes] = []
    async with (
        Cluster("east", on="memory") as cluster,
        HAClient("c", servers=cluster.uris, bookmark_store=MemoryBookmarkStore()) as client,
    ):
        await client.publish_many("orders", [b"a1", b"b1", b"a2"])
        await client.publish_flush()
        stream = client.bookmark_stream("orders", sub_id="s", bookmark=EPOCH)
        async with stream.conflate(lambda message: message.data[:1]) as messages:
            await trio.sleep(1)  # all has arrived
            taken = await anext(messages)  # before b1, in the place of a1
            await cluster.apply(Cut())
            await trio.sleep(5)  # the link is back
            taken.discard()
            with trio.move_on_after(5):
                async for message in messages:
                    got.append(message.data)
                    message.discard()
    assert (taken.data, got) == (b"a2", [b"b1"])

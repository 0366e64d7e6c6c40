"""A subscription that was entered at NOW, after a loss and after a restart: no gap, no history."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import HAClient
from haclient.protocol.commands import Command
from haclient.protocol.messages import Message
from haclient_fake_server.config import BrokerConfig, SowTopic
from haclient_fake_server.pytest_plugin import ClusterFactory
from haclient_fake_server.testing.faults import Cut
from haclient_stores.bookmark import MOST_RECENT, NOW, Timestamp, parse_bookmark
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.interfaces import BookmarkStore
from support.clock import in_virtual_time
from support.custom import DictBookmarkStore
from support.peer import Peer, Server, answering
from support.recovery import entered, live, lose

pytestmark = in_virtual_time


def client_of(*servers: Server, store: BookmarkStore | None = None) -> HAClient:
    return HAClient(
        "ha",
        servers=[each.uri for each in servers],
        bookmark_store=store or MemoryBookmarkStore(),
        heartbeat=None,
    )


async def reentered(server: Server, *, options: str = "bookmark_not_found=epoch") -> list[str]:
    """What the client asks a server for when it comes back; the server fails before it answers."""
    peer = await live(server)
    command = await peer.expect("subscribe")
    assert command.options == options
    await lose(peer)
    return command.bookmark.split(",")


async def subscribe(client: HAClient, peer: Peer, *, end: str = "") -> list[Message]:
    """Enter at NOW; `end` is where the server says that its log ends."""
    got: list[Message] = []
    async with answering(peer):
        await client.bookmark_subscribe("orders", sub_id="s", bookmark=NOW, handler=got.append)
        if end:
            await peer.ack(None, "completed", cid=peer.heard[-1].command_id, bm=end)
        await wait_all_tasks_blocked()
    return got


@pytest.mark.row("BS9", "SM4")
@pytest.mark.parametrize("make", [MemoryBookmarkStore, DictBookmarkStore])
async def test_what_has_seen_nothing_resumes_where_the_log_ended(
    server: Server, other: Server, make: type[MemoryBookmarkStore | DictBookmarkStore]
) -> None:
    client = client_of(server, other, store=make())
    async with entered(client, partial(live, server)) as peer:
        await subscribe(client, peer, end="7|9|")
        await lose(peer)
        assert await reentered(server) == ["7|9|"]
        position, time = await reentered(other)
        assert position == "7|9|"
        assert isinstance(parse_bookmark(time), Timestamp)
        assert await reentered(server) == ["7|9|"]
        assert await reentered(other) == ["7|9|", time]  # that of the first entry, each time
        await client.disconnect()


@pytest.mark.row("BS9")
async def test_a_server_that_takes_no_mixture_gets_the_time_alone(
    server: Server, other: Server
) -> None:
    """It may not have the position, and would then begin with its whole log."""
    client = client_of(server, other)
    async with entered(client, partial(live, server)) as peer:
        await subscribe(client, peer, end="7|9|")
        await lose(peer)
        await reentered(server)
        moved = await live(other)
        mixture = await moved.expect("subscribe")
        await moved.refuse(mixture, "invalid bookmark")
        assert (await moved.answer("subscribe")).bookmark == mixture.bookmark.split(",")[1]
        await client.disconnect()


@pytest.mark.row("BS9")
async def test_without_a_position_it_is_the_time_of_the_entry(
    server: Server, other: Server
) -> None:
    client = client_of(server, other)
    async with entered(client, partial(live, server)) as peer:
        await subscribe(client, peer)
        await lose(peer)
        (time,) = await reentered(server)
        assert isinstance(parse_bookmark(time), Timestamp)
        assert await reentered(other) == [time]
        await client.disconnect()


@pytest.mark.row("BS9", "BS11")
async def test_what_came_since_the_entry_is_owed_and_nothing_older(
    server: Server, other: Server
) -> None:
    client = client_of(server, other)
    async with entered(client, partial(live, server)) as peer:
        got = await subscribe(client, peer, end="7|9|")
        async with answering(peer):
            await peer.publish("s", b"10", bm="7|10|")  # in hand, so nothing is finished
            await wait_all_tasks_blocked()
        await lose(peer)
        await reentered(server)
        position, entered_at = await reentered(other)
        assert position == "7|9|"
        again = await live(server)
        async with answering(again):
            await wait_all_tasks_blocked()
            await again.publish("s", b"10", b"11", bm="7|10|")
            await again.ack(None, "persisted", sub_id="s", bm="7|11|")
            await wait_all_tasks_blocked()
            assert [message.data for message in got] == [b"10", b"11"]
            for message in got:
                message.discard()
        await lose(again)
        await reentered(server)
        position, heard_at = await reentered(other)
        assert position == "7|11|"
        assert Timestamp.parse(heard_at).microseconds >= Timestamp.parse(entered_at).microseconds
        await client.disconnect()


@pytest.mark.row("BS9", "BS14")
@pytest.mark.parametrize("end", ["7|9|", ""])
async def test_a_restart_keeps_what_was_entered_at_now(
    server: Server, tmp_path: Path, end: str
) -> None:
    path = tmp_path / "s.bm"
    client = client_of(server, store=LoggedBookmarkStore(path))
    async with entered(client, partial(live, server)) as peer:
        await subscribe(client, peer, end=end)
        await lose(peer)
        (before,) = await reentered(server)
        await client.disconnect()
    assert before == end or isinstance(parse_bookmark(before), Timestamp)
    client = client_of(server, store=LoggedBookmarkStore(path))
    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            await client.bookmark_subscribe(
                "orders", sub_id="s", bookmark=MOST_RECENT, handler=lambda _: None
            )
        assert peer.heard[-1].bookmark == before
        # A server that lacks the position is not to begin behind it.
        assert peer.heard[-1].options == ("bookmark_not_found=epoch" if end else "")
        await client.disconnect()


@pytest.mark.row("BS9")
async def test_the_applications_own_word_on_unknown_bookmarks_stays(
    server: Server, tmp_path: Path
) -> None:
    path, option = tmp_path / "s.bm", "bookmark_not_found=fail"
    store = LoggedBookmarkStore(path)
    store.discard("s", store.log("s", "7|1|"))
    client = client_of(server, store=store)
    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            await client.bookmark_subscribe(
                "orders", sub_id="s", options=option, handler=lambda _: None
            )
        assert (peer.heard[-1].bookmark, peer.heard[-1].options) == ("7|1|", option)
        await lose(peer)
        assert await reentered(server, options=option) == ["7|1|"]
        await client.disconnect()


@pytest.mark.row("BS9")
async def test_an_option_that_a_server_does_not_know_is_not_sent_to_it(server: Server) -> None:
    client = client_of(server)
    async with entered(client, partial(live, server)) as peer:
        await subscribe(client, peer, end="7|9|")
        await lose(peer)
        old = await server.accept()
        await old.log_on(version="5.3.0.0")
        command = await old.answer("subscribe")
        assert (command.bookmark, command.options) == ("7|9|", "")
        await client.disconnect()


@pytest.mark.row("BS9", "SM4")
async def test_a_query_with_what_follows_it_begins_at_now_again(
    server: Server, other: Server
) -> None:
    """Its records are the present: a position in the log would be one of the past."""
    client = client_of(server, other)
    async with entered(client, partial(live, server)) as peer:
        got: list[bytes] = []
        async with answering(peer):
            await client.execute_async(
                Command("sow_and_subscribe", topic="orders", sub_id="s", bookmark=NOW),
                lambda message: got.append(message.data),
            )
            await peer.ack(None, "completed", sub_id="s", bm="7|9|")
            await peer.publish("s", b"x", bm="7|10|")
            await wait_all_tasks_blocked()
        first = peer.heard[-1]
        await lose(peer)
        for at in (server, other):
            again = await live(at)
            heard = await again.answer("sow_and_subscribe")
            assert (heard.bookmark, heard.options) == (str(NOW), first.options) == ("0|1|", "")
            await lose(again)
        assert got == [b"x"]
        await client.disconnect()


@pytest.mark.row("BS9")
async def test_the_reference_broker_answers_such_a_query_again(
    amps_cluster: ClusterFactory,
) -> None:
    records = SowTopic("orders", ("/id",))
    cluster = await amps_cluster("a", on="memory", config=BrokerConfig(sow_topics=(records,)))
    got: list[bytes] = []

    async def handle(message: Message) -> None:
        if message.data:
            got.append(message.data[-2:-1])

    async with (
        HAClient.memory_backed("sub", servers=cluster.uris) as client,
        HAClient.memory_backed("pub", servers=cluster.uris) as publisher,
    ):
        command = Command("sow_and_subscribe", topic="orders", sub_id="s", bookmark=NOW)
        await client.execute_async(command, handle)
        await publisher.publish("orders", '{"id":1,"v":1}')
        await publisher.publish_flush()
        await cluster.apply(Cut())
        await trio.sleep(1.0)
        await client.flush()
        await publisher.publish("orders", '{"id":1,"v":2}')
        await publisher.publish_flush()
        await client.flush()
        await wait_all_tasks_blocked()
    assert got == [b"1", b"1", b"2"]

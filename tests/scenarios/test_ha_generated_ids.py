"""Bookmark subscriptions whose ids the application has not chosen leave nothing in the store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio

from haclient.client import Client, HAClient
from haclient.errors import CommandError, DisconnectedError, TimedOut
from haclient.protocol.commands import Command
from haclient.protocol.messages import Message
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.interfaces import BookmarkStore
from support.clock import in_virtual_time
from support.instances import instances
from support.peer import Server, together

pytestmark = [in_virtual_time, pytest.mark.row("CC15")]


def replay(sub_id: str = "") -> Command:
    return Command("subscribe", topic="t", bookmark="0", sub_id=sub_id)


async def use(store: BookmarkStore) -> None:
    """End unnamed subscriptions in each way, with a message in hand, and one that has a name."""
    async with (
        instances("east") as (east,),
        HAClient.memory_backed("pub", servers=[east.uri]) as publisher,
        HAClient("sub", servers=[east.uri], bookmark_store=store) as client,
    ):
        for number in range(3):
            await publisher.publish("t", b"%d" % number)
        await publisher.publish_flush(timeout=60)
        with trio.fail_after(60):
            for sub_id in ("", "named"):
                async with await client.execute(replay(sub_id)) as messages:
                    first = await anext(messages)
                    await anext(messages)
                    first.discard()
                    await trio.sleep(1)  # until an ack covers it
            async with await client.execute(replay()) as messages:
                kept = await anext(messages)
            kept.discard()  # after the end: it changes nothing
            with pytest.raises(CommandError):
                await client.execute(replace(replay(), filter="/id ="))
            handled = await client.execute_async(replay(), print)
            await trio.sleep(1)
            await client.unsubscribe(handled)
            await trio.sleep(1)


async def test_memory_keeps_nothing_of_a_subscription_without_a_name() -> None:
    store = MemoryBookmarkStore()
    await use(store)
    assert [(each.sub_id, bool(each.bookmark)) for each in store.recovery_points()] == [
        ("named", True)
    ]


async def test_a_file_keeps_no_recovery_point_and_no_message_of_it(tmp_path: Path) -> None:
    await use(LoggedBookmarkStore(tmp_path / "b"))
    store = LoggedBookmarkStore(tmp_path / "b")
    points = {each.sub_id: each.bookmark for each in store.recovery_points()}
    assert [name for name, bookmark in points.items() if bookmark] == ["named"]
    assert [name for name in points if store.oldest_undiscarded(name)] == ["named"]
    store.close()


@pytest.mark.parametrize("end", ["too late", "cancelled", "lost"])
async def test_nothing_is_kept_of_a_subscription_that_was_never_opened(
    server: Server, end: str
) -> None:
    store = MemoryBookmarkStore()
    client = Client("sub", bookmark_store=store, exit_timeout=0)
    async with client:
        peer = await server.log_on(client)

        async def subscribe() -> None:
            with trio.move_on_after(1 if end == "cancelled" else 60):
                with pytest.raises((TimedOut, DisconnectedError)):
                    await client.execute(replace(replay(), timeout=2))

        async def serve() -> None:
            command = await peer.expect("subscribe")
            await peer.publish(command.sub_id, b"1", bm="7|1|")
            if end == "lost":
                peer.link.close()
            else:
                await peer.answer("unsubscribe", sub_id=command.sub_id)

        await together(subscribe, serve)
        assert not store.subscriptions


async def test_a_store_in_a_file_does_not_grow_with_each_subscription(
    server: Server, tmp_path: Path
) -> None:
    store = LoggedBookmarkStore(tmp_path / "b")
    client = Client("sub", bookmark_store=store, exit_timeout=0)
    got: list[tuple[bytes, bool]] = []
    async with client:
        peer = await server.log_on(client)

        async def use() -> None:
            kept: list[Message] = []
            for _ in range(20):
                async with await client.execute(replay()) as messages:
                    message = await anext(messages)
                    got.append((message.data, message.sub_id == messages.sub_id))
                    for each in kept:  # of earlier subscriptions with the same id, maybe
                        each.discard()
                    assert store.oldest_undiscarded(messages.sub_id) == message.number
                    kept.append(message)
                await client.flush()

        async def serve() -> None:
            for _ in range(20):
                command = await peer.answer("subscribe")
                await peer.publish(command.sub_id, b"1", bm="7|1|")
                await peer.answer("unsubscribe")
                await peer.answer("flush")

        await together(use, serve)
        assert got == [(b"1", True)] * 20
        assert len(store.subscriptions) == 1

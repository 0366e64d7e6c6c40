"""A client beside or after another one, in one process, with the same store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from haclient.client import BaseClient, Client, HAClient
from haclient.errors import UsageError
from haclient.protocol.messages import Message
from haclient.subscription_manager import FileSubscriptionManager
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.instances import instances

pytestmark = in_virtual_time


@pytest.mark.row("BS5", "BS13")
@pytest.mark.parametrize("kind", [Client, HAClient])
async def test_what_the_first_did_not_discard_the_next_gets_again(
    kind: type[Client | HAClient],
) -> None:
    store = MemoryBookmarkStore()
    taken: list[bytes] = []

    async def hang(message: Message) -> None:
        taken.append(message.data)
        if message.data == b"1":
            message.discard()
        else:
            await trio.sleep_forever()

    async with instances("east") as (east,):

        def client() -> BaseClient:
            if kind is HAClient:
                return HAClient("c", servers=[east.uri], bookmark_store=store)
            return Client("c", bookmark_store=store)

        async def begin(client: BaseClient) -> None:
            if isinstance(client, Client):
                await client.connect(east.uri)
                await client.logon()

        async with HAClient.memory_backed("p", servers=[east.uri]) as publisher:
            for number in (1, 2, 3):
                await publisher.publish("orders", b"%d" % number)
        async with client() as first:
            await begin(first)
            await first.bookmark_subscribe("orders", sub_id="s", handler=hang)
            await trio.sleep(1)
            assert taken == [b"1", b"2"]
        async with client() as second:
            await begin(second)
            async with second.bookmark_stream("orders", sub_id="s") as messages:
                with trio.fail_after(10):
                    assert [(await anext(messages)).data for _ in range(2)] == [b"2", b"3"]


STORES: dict[str, Callable[[Path], object]] = {
    "publish_store in memory": lambda _: MemoryPublishStore(),
    "publish_store in files": FilePublishStore,
    "bookmark_store in memory": lambda _: MemoryBookmarkStore(),
    "bookmark_store in a file": LoggedBookmarkStore,
    "subscription_manager in a file": FileSubscriptionManager,
}


@pytest.mark.row("PS12")
@pytest.mark.parametrize("kind", STORES)
async def test_a_store_belongs_to_one_running_client_at_a_time(kind: str, tmp_path: Path) -> None:
    store = STORES[kind](tmp_path / "store")
    async with instances("east") as (east,):

        def client() -> HAClient:
            return HAClient("c", servers=[east.uri], **{kind.partition(" ")[0]: store})  # type: ignore[arg-type]  # any of them

        async with client() as first:
            second = client()
            with pytest.raises(UsageError, match="another client of this process") as refused:
                await second.__aenter__()
            assert "\n" not in str(refused.value)
            del second, refused
            await first.publish("orders", b"1")
            await first.publish_flush(timeout=10)
            async with first.bookmark_stream("orders", bookmark="0", sub_id="s") as messages:
                with trio.fail_after(10):
                    message = await anext(messages)
                    message.discard()
            assert message.data == b"1"
        if "memory" not in kind:
            store = STORES[kind](tmp_path / "store")
        async with client() as third:
            await third.publish("orders", b"3")
            await third.publish_flush(timeout=10)


@pytest.mark.row("PS12")
async def test_a_client_that_was_refused_a_store_may_run_after_the_other_one() -> None:
    store = MemoryPublishStore()
    async with instances("east") as (east,):
        unused, first, second = (
            HAClient("c", servers=[east.uri], publish_store=store) for _ in range(3)
        )
        async with first:
            with pytest.raises(UsageError, match="another client of this process"):
                await second.__aenter__()
            assert await first.publish("orders", b"1")
        async with second:
            with pytest.raises(UsageError, match="another client of this process"):
                await unused.__aenter__()
            assert await second.publish("orders", b"2")
            await second.publish_flush(timeout=10)

"""A client after the client, in one process, with the same store in memory."""

from __future__ import annotations

import pytest
import trio

from haclient.client import Client
from haclient.ha import HAClient
from haclient.protocol.messages import Message
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
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

        def client() -> Client:
            if kind is HAClient:
                return HAClient("c", servers=[east.uri], bookmark_store=store)
            return Client("c", bookmark_store=store)

        async def begin(client: Client) -> None:
            if kind is Client:
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

"""Handlers that use the client whose message they handle."""

from __future__ import annotations

import pytest
import trio

from haclient.client import BaseClient, Client, HAClient
from haclient.protocol.messages import Message
from haclient.stores import MemoryPublishStore
from haclient_fake_server.config import BrokerConfig, SowTopic
from support.clock import in_virtual_time
from support.inbox import Inbox, until
from support.instances import Instance, instances

pytestmark = in_virtual_time

CONFIG = BrokerConfig(ack_interval_s=0.05, sow_topics=(SowTopic("prices", ("/id",)),))


def client_of(kind: str, broker: Instance) -> BaseClient:
    if kind == "HAClient":
        return HAClient("c", servers=[broker.uri], publish_store=MemoryPublishStore())
    return Client("c", publish_store=MemoryPublishStore(), heartbeat=10.0)


@pytest.mark.row("CC25")
@pytest.mark.parametrize("kind", ["Client", "HAClient"])
async def test_a_handler_awaits_commands_of_its_own_client_without_a_deadlock(kind: str) -> None:
    steps: list[object] = []
    replies = Inbox()

    async def handle(message: Message) -> None:
        number = int(message.data)
        await client.flush(timeout=5)
        steps.append(("flush", number))
        await client.subscribe(f"reply{number}", handler=replies, timeout=5)
        steps.append(("subscribe", number))
        await client.publish(f"reply{number}", b"to %d" % number)
        await client.publish_flush(timeout=5)
        assert client.unpersisted_count == 0
        steps.append(("publish_flush", number))
        async with client.sow("prices") as records:
            steps.append(("sow", number, [each.data async for each in records]))

    async with instances("east", config=CONFIG) as (east,):
        client = client_of(kind, east)
        async with client:
            if isinstance(client, Client):
                await client.connect(east.uri)
                await client.logon()
            await client.publish("prices", b'{"id":1}')
            await client.subscribe("orders", handler=handle)
            # The second message waits for the handler, and acks have to come past it.
            await client.publish("orders", b"1")
            await client.publish("orders", b"2")
            with trio.fail_after(60):
                await replies.until(b"to 1", b"to 2")
                await until(lambda: len(steps) == 8)
    assert steps == [
        ("flush", 1), ("subscribe", 1), ("publish_flush", 1), ("sow", 1, [b'{"id":1}']),
        ("flush", 2), ("subscribe", 2), ("publish_flush", 2), ("sow", 2, [b'{"id":1}']),
    ]  # fmt: skip

"""Publishing as the server sees it: connect, logon, publish, ack, lose the link, replay."""

from __future__ import annotations

import pytest

from haclient.client import Client
from haclient_stores.memory_publish import MemoryPublishStore
from support.peer import listening

pytestmark = pytest.mark.usefixtures("autojump_clock")


@pytest.mark.row("CC2", "CC6", "PS4", "PS5", "PS14")
async def test_connect_log_on_publish_and_ack() -> None:
    async with listening() as server, Client("pub", publish_store=MemoryPublishStore()) as client:
        peer = await server.log_on(client, seen=7)
        assert await client.publish("orders", b"a") == 8
        first = await peer.expect("publish", topic="orders", data=b"a", ack_type="persisted")
        assert client.unpersisted_count == 1
        await peer.persisted(first.sequence or 0)
        await client.wait_empty(timeout=1)
        assert client.unpersisted_count == 0

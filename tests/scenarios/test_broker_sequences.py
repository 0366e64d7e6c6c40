"""Publishing under sequences that the caller chooses, with the reference broker."""

from __future__ import annotations

import pytest

from haclient.client import Client, HAClient
from haclient.errors import UsageError
from haclient_fake_server.config import BrokerConfig, SowTopic
from haclient_fake_server.server import BrokerServer
from support.broker import running_broker
from support.process import LIMIT_S


def address(broker: BrokerServer) -> str:
    return f"{broker.uris[0]}/amps/json"


@pytest.mark.row("SK4")
async def test_a_client_that_reconnects_by_itself_takes_no_sequence() -> None:
    async with running_broker() as broker, HAClient("c", servers=[address(broker)]) as client:
        with pytest.raises(UsageError, match="an HAClient takes no sequence, found 7"):
            await client.publish("orders", b"a", sequence=7)


@pytest.mark.row("SK4")
async def test_a_broker_drops_what_is_published_again_after_a_crash() -> None:
    bodies = [b"%d" % number for number in range(5000)]
    async with running_broker(BrokerConfig(ack_interval_s=0.05)) as broker:
        uri = address(broker)
        async with Client("sink") as client:
            await client.connect(uri)
            await client.logon()
            assert (client.connection_info["seen_sequence"], client.persisted_sequence) == ("0", 0)
            await client.publish_many("orders", bodies[:3000], first_sequence=1)
            await client.flush(ack="persisted")
            assert client.persisted_sequence == 3000
        async with Client("sink") as client:
            await client.connect(uri)
            await client.logon()
            persisted = client.persisted_sequence or 0
            assert (client.connection_info["seen_sequence"], persisted) == ("3000", 3000)
            with pytest.raises(UsageError, match="persisted this publisher up to 3000"):
                await client.publish_many("orders", bodies, first_sequence=1)
            await client.publish_many("orders", bodies[persisted:], first_sequence=persisted + 1)
            await client.wait_persisted(5000, timeout=LIMIT_S)
        async with Client("reader") as reader:
            await reader.connect(uri)
            await reader.logon()
            got = []
            async with reader.bookmark_stream("orders", sub_id="s", bookmark="0") as messages:
                async for message in messages:
                    got.append(message.data)
                    if len(got) == len(bodies):
                        break
        assert got == bodies


@pytest.mark.row("SK1")
async def test_a_batch_of_deletes_removes_the_records_that_the_bodies_would_update() -> None:
    config = BrokerConfig(ack_interval_s=0.05, sow_topics=(SowTopic("orders", ("/id",)),))
    async with running_broker(config) as broker, Client("sink") as client:
        await client.connect(address(broker))
        await client.logon()
        bodies = [b'{"id": %d}' % number for number in range(4)]
        await client.publish_many("orders", bodies, first_sequence=1)
        await client.publish_many("orders", bodies[1:3], first_sequence=5, command="sow_delete")
        await client.flush(ack="persisted")
        assert client.persisted_sequence == 6
        async with client.sow("orders") as records:
            assert sorted([each.data async for each in records]) == [bodies[0], bodies[3]]

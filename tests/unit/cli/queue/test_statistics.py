"""What a server tells about its queues, and what it does not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from haclient import Client
from haclient.cli.queue.statistics import ServerQueues, find_queue, query_queues
from haclient.errors import HAClientError
from haclient_fake_server.config import BrokerConfig, QueueTopic
from haclient_fake_server.server import BrokerServer
from support.peer import listening, together


@asynccontextmanager
async def connected(*queues: QueueTopic) -> AsyncIterator[Client]:
    async with BrokerServer(BrokerConfig(queues=queues)) as server, Client("asks") as client:
        await client.connect(f"{server.uris[0]}/amps/json")
        await client.logon()
        yield client


async def test_a_queue_is_found_by_its_name() -> None:
    async with connected(
        QueueTopic(name="a"), QueueTopic(name="b", topics=("t",), lease_s=5.0)
    ) as client:
        queues = await query_queues(client)
        assert queues is not None
        assert len(queues) == 2
        found = await find_queue(client, "b")
        assert found is not None
        assert (found.topics, found.lease_s, found.depth) == (("t",), 5.0, 0)
        assert queues.find("c") is None
        with pytest.raises(HAClientError, match=r"'c' is no queue: the server has 'a', 'b'$"):
            await find_queue(client, "c")


async def test_a_server_without_queues_is_told_from_one_that_does_not_tell() -> None:
    async with connected() as client:
        queues = await query_queues(client)
        assert queues is not None
        assert len(queues) == 0
        with pytest.raises(
            HAClientError, match="none of this message type; queues are configured where"
        ):
            await find_queue(client, "a")


@pytest.mark.parametrize("reason", ["invalid topic", "not entitled", "bad regex topic"])
async def test_a_server_that_refuses_the_query_does_not_tell(reason: str) -> None:
    async with listening() as server, Client("asks") as client:
        peer = await server.log_on(client)

        async def refuse() -> None:
            await peer.refuse(await peer.expect("sow", topic="/HACLIENT/queues"), reason)

        found, _ = await together(lambda: find_queue(client, "work"), refuse)
    assert found is None


async def test_a_server_that_has_no_record_there_does_not_tell() -> None:
    async with listening() as server, Client("asks") as client:
        peer = await server.log_on(client)

        async def answer() -> None:
            query = await peer.answer("sow")
            await peer.records(query)
            await peer.ack(query, "completed", query_id=query.query_id)

        found, _ = await together(lambda: query_queues(client), answer)
    assert found is None


def test_an_error_names_a_few_queues() -> None:
    empty: dict[str, object] = {
        "topics": [],
        "semantics": "",
        "oldest_bookmark": "",
        "expired": {},
        "lease_s": None,
    }
    numbers = dict.fromkeys(
        ("depth", "available", "leased", "consumers", "oldest_us", "delivered", "redelivered"), 0
    )
    more = dict.fromkeys(("acknowledged", "cancelled", "max_per_subscription_backlog"), 0)
    queues = ServerQueues(
        [json.dumps({"name": str(n), **empty, **numbers, **more}).encode() for n in range(12)]
    )
    with pytest.raises(HAClientError, match=r"'0', '1', .*'9' and 2 more$"):
        queues.select("x")
    selected = queues.select("7").find("7")
    assert selected is not None
    assert selected.name == "7"

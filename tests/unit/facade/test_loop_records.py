"""Live records in asyncio: reading in the loop, iterating, cancellation, and every end."""

from __future__ import annotations

import asyncio  # noqa: TID251  # what is tested
from collections.abc import Awaitable, Callable, Generator

import pytest

from haclient import RecordChange, Topic
from haclient.aio import Client, HAClient, LiveRecords
from haclient.errors import DisconnectedError, UsageError
from support.broker_thread import PRICES, BrokerThread, broker_thread
from support.process import LIMIT_S

Record = dict[str, object]


@pytest.fixture(scope="module")
def broker() -> Generator[BrokerThread]:
    with broker_thread(PRICES) as running:
        yield running


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await main()

    asyncio.run(limited())


def by_id(record: Record) -> object:
    return record["id"]


@pytest.mark.row("CC12", "CC35")
def test_a_program_reads_the_records_and_follows_each_change(broker: BrokerThread) -> None:
    async def main() -> None:
        async with HAClient.memory_backed("orders-7", servers=[broker.uri]) as client:
            await client.publish_persisted("prices", b'{"id":1,"px":1}', timeout=LIMIT_S)
            async with client.records("prices", key=by_id, deltas=True) as prices:
                assert isinstance(prices, LiveRecords)
                assert dict(prices) == {1: {"id": 1, "px": 1}}
                assert prices.caught_up
                await client.publish("prices", b'{"id":1,"px":2}')
                change = await anext(prices)
                assert change == RecordChange("changed", 1, {"id": 1, "px": 1}, {"id": 1, "px": 2})
                waiting = asyncio.create_task(anext(prices.changes()))
                await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                await client.publish("prices", b'{"id":2}')
                assert (await anext(prices)).key == 2
                await client.sow_delete("prices", filter="/id > 0")
                assert {(await anext(prices)).kind for _ in range(2)} == {"removed"}
            assert prices.ended
            with pytest.raises(StopAsyncIteration):
                await anext(prices)
        assert [change async for change in prices] == []
        await prices.aclose()

    run(main)


@pytest.mark.row("CC35")
def test_a_client_that_does_not_reconnect_raises_and_the_last_records_stay() -> None:
    async def main() -> None:
        with broker_thread(PRICES) as broker:
            async with Client("orders-7") as client:
                await client.connect(broker.uri)
                await client.logon()
                await client.publish("prices", b'{"id":1}')
                await client.flush()
                async with client.records(Topic("prices", Record), key=by_id) as prices:
                    await asyncio.to_thread(broker.stop)
                    with pytest.raises(DisconnectedError):
                        await anext(prices)
                    assert prices[1] == {"id": 1}

    run(main)


def test_an_open_that_is_refused_leaves_nothing_behind(broker: BrokerThread) -> None:
    async def main() -> None:
        async with HAClient.memory_backed("orders-7", servers=[broker.uri]) as client:
            await client.publish_persisted("prices", b'{"id":1}', timeout=LIMIT_S)
            with pytest.raises(UsageError, match="key function"):
                await client.records("prices", key=lambda record: record["no"]).open()
            assert client.metrics.subscriptions == ()

    run(main)

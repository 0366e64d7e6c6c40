"""Leaving the block: wait until all is persisted, for a while, or not at all (HA25, PS16)."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import trio

from haclient.client import Client, HAClient
from haclient.errors import ReconnectGaveUp, UsageError
from haclient.servers.delay import FixedDelayStrategy
from haclient.transport.open_clients import OpenClients, open_clients
from haclient.transport.tasks import open_nursery
from haclient_fake_server.testing.cluster import Cluster
from haclient_fake_server.testing.faults import Slow
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.instances import Instance, address, instances

pytestmark = in_virtual_time

TEN = [b"%d" % number for number in range(10)]


def client_of(*brokers: Instance, exit_timeout: float | None) -> HAClient:
    """A client with a store that reconnects every 0.1 s."""
    return HAClient(
        "c",
        servers=[each.uri for each in brokers],
        publish_store=MemoryPublishStore(),
        delay_strategy=FixedDelayStrategy(0.1),
        exit_timeout=exit_timeout,
    )


async def leave(client: HAClient) -> float:
    """Publish and leave; how long that took."""
    async with client:
        for body in TEN:
            await client.publish("orders", body)
        began = trio.current_time()
    return trio.current_time() - began


@pytest.mark.row("HA25")
@pytest.mark.parametrize("exit_timeout", [None, 60.0])
async def test_leaving_ends_as_soon_as_everything_is_persisted(exit_timeout: float | None) -> None:
    async with instances("east") as (east,):
        client = client_of(east, exit_timeout=exit_timeout)
        assert await leave(client) < 1.0
        assert client.unpersisted_count == 0


@pytest.mark.row("HA25")
@pytest.mark.parametrize(("exit_timeout", "took"), [(0, 0.0), (3.0, 3.0)])
async def test_leaving_while_disconnected_with_a_limit(
    exit_timeout: float, took: float, caplog: pytest.LogCaptureFixture
) -> None:
    async with instances("east") as (east,):
        client = client_of(east, exit_timeout=exit_timeout)
        async with client:
            await east.stop()
            await client.publish("orders", b"x")
            began = trio.current_time()
        assert trio.current_time() - began == pytest.approx(took)
        assert client.unpersisted_count == 1
        assert ("1 publishes are not persisted" in caplog.text) == bool(took)


@pytest.mark.row("HA25", "HA24")
async def test_an_orderly_end_waits_no_longer_than_the_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clients = OpenClients()
    token = open_clients.set(clients)
    try:
        async with (
            instances("east") as (east,),
            Cluster("west", on="memory") as west,
            client_of(east, exit_timeout=3.0) as client,
            HAClient.memory_backed("busy", servers=west.uris) as busy,
            open_nursery() as nursery,
        ):

            async def publish_for_ever() -> None:
                while True:
                    await busy.publish("orders", b"x")
                    await trio.sleep(0.01)

            await west.apply(Slow(latency_s=0.1))  # some are always on their way
            nursery.start_soon(publish_for_ever)
            await east.stop()
            await client.publish("orders", b"x")
            began = trio.current_time()
            await clients.drain()
            assert trio.current_time() - began == pytest.approx(3.0, abs=0.5)
            assert caplog.text.count("1 publishes are not persisted") == 1
            assert busy.unpersisted_count == 0, "it was flushed again after the wait for the other"
            nursery.cancel_scope.cancel()
            await client.disconnect()
    finally:
        open_clients.reset(token)


@pytest.mark.row("HA25")
async def test_leaving_while_disconnected_waits_for_the_next_connection() -> None:
    async with instances("east") as (east,), open_nursery() as nursery:
        client = client_of(east, exit_timeout=None)
        async with client:
            await east.stop()
            await client.publish("orders", b"x")

            async def come_back() -> None:
                await trio.sleep(100)
                await east.start()

            nursery.start_soon(come_back)
            began = trio.current_time()
        assert 100 < trio.current_time() - began < 101
        assert client.unpersisted_count == 0


@pytest.mark.row("HA25")
async def test_leaving_does_not_wait_for_a_connection_that_nobody_tries_to_get(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with instances("east") as (east,):
        client = client_of(east, exit_timeout=None)
        async with client:
            await client.disconnect()
            await client.publish("orders", b"x")
        assert "leaves with publishes not persisted" in caplog.text
        caplog.clear()
        async with Client("d", publish_store=MemoryPublishStore(), exit_timeout=None) as plain:
            await plain.connect(east.uri)
            await plain.logon()
            await plain.disconnect()
            await plain.publish("orders", b"x")
        assert "leaves with publishes not persisted" in caplog.text
        caplog.clear()
        async with Client("e", exit_timeout=None):
            pass
        assert not caplog.text


@pytest.mark.row("HA25")
async def test_leaving_ends_with_the_attempts() -> None:
    async with instances("east") as (east,):
        client = HAClient.memory_backed(
            "c",
            servers=[east.uri],
            delay_strategy=FixedDelayStrategy(1.0, give_up_after=10.0),
            exit_timeout=None,
        )
        with pytest.raises(ReconnectGaveUp):  # noqa: PT012  # the block is what is tested
            async with client:
                await east.stop()
                await client.publish("orders", b"x")
        assert client.unpersisted_count == 1


@pytest.mark.row("HA25", "CC3")
async def test_an_error_or_a_cancellation_does_not_wait() -> None:
    async with instances("east") as (east,):
        client = client_of(east, exit_timeout=None)
        with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the block is what is tested
            async with client:
                await east.stop()
                await client.publish("orders", b"x")
                began = trio.current_time()
                raise ZeroDivisionError
        await east.start()
        with trio.move_on_after(2.0) as scope:
            async with client_of(east, exit_timeout=None) as client:
                await east.stop()
                await client.publish("orders", b"x")
                began = trio.current_time()
        assert scope.cancelled_caught
        assert trio.current_time() - began <= 2.0


@pytest.mark.row("HA25", "HA11")
async def test_what_was_left_to_the_file_is_sent_by_the_next_client(tmp_path: Path) -> None:
    async with instances("east") as (east,):

        def client() -> HAClient:
            return HAClient(
                "c",
                servers=[east.uri],
                publish_store=FilePublishStore(tmp_path / "orders.pub"),
                exit_timeout=0,
            )

        async with client() as first:
            await east.stop()
            for body in TEN:
                await first.publish("orders", body)
        await east.start()
        async with client() as second:
            assert second.unpersisted_count == len(TEN)
            await second.publish_flush(timeout=10)
            async with second.bookmark_stream("orders", sub_id="s") as messages:
                assert [(await anext(messages)).data for _ in TEN] == TEN


@pytest.mark.row("PS14", "PS16", "HA25", "AK6")
@pytest.mark.parametrize("how", ["returns", "is downgraded"])
async def test_nothing_is_persisted_until_a_sync_replica_returns_or_is_downgraded(
    how: str,
) -> None:
    async with (
        instances("east", "west", replicate=True) as (east, west),
        open_nursery() as nursery,
    ):
        await west.stop()
        client = client_of(east, exit_timeout=None)
        async with client:
            await client.publish("orders", b"x")
            with pytest.raises(TimeoutError, match="1 publishes are not persisted"):
                await client.publish_flush(timeout=30)
            with pytest.raises(TimeoutError):
                await client.publish_flush(timeout=30)
            assert client.unpersisted_count == 1, "it is persisted at the first broker only"

            async def resolve() -> None:
                await trio.sleep(1000)
                if how == "returns":
                    await west.start()
                else:
                    east.running.downgrade(address("west"))

            nursery.start_soon(resolve)
            began = trio.current_time()
        assert 1000 <= trio.current_time() - began < 1005
        assert client.unpersisted_count == 0


@pytest.mark.row("PS16", "HA25")
async def test_leaving_with_a_limit_while_a_sync_replica_is_down(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with instances("east", "west", replicate=True) as (east, west):
        await west.stop()
        client = client_of(east, exit_timeout=3.0)
        assert await leave(client) == pytest.approx(3.0)
        assert client.unpersisted_count == len(TEN)
        assert "10 publishes are not persisted" in caplog.text


@pytest.mark.parametrize("exit_timeout", [-1.0, math.nan])
def test_a_limit_that_cannot_be(exit_timeout: float) -> None:
    with pytest.raises(UsageError, match="exit_timeout is a number of seconds"):
        Client("c", exit_timeout=exit_timeout)

"""Replicas that do not reach each other, in one direction or in both (row FI4)."""

from __future__ import annotations

import pytest
import trio

from haclient_fake_server.pytest_plugin import ClusterFactory
from haclient_fake_server.testing.cluster import Cluster, On
from haclient_fake_server.testing.faults import Cut, Heal, Partition
from support.broker import RawClient

QUICK = "ack_conflation=1ms"


async def publish(client: RawClient, first: int, last: int) -> None:
    for number in range(first, last + 1):
        await client.send(b"%d" % number, c="p", t="orders", s=number, a="persisted")


async def read(uri: str, count: int) -> list[int]:
    """The next messages from the beginning of a broker's log."""
    async with RawClient.connect(uri) as client:
        await client.logon("reader")
        await client.send(c="subscribe", cid="r", t="orders", bm="0")
        return [int(message.data) for message in await client.publishes(count)]


async def logged(uri: str) -> int:
    """How many messages a broker has."""
    async with RawClient.connect(uri) as client:
        await client.logon("counter")
        await client.send(c="subscribe", cid="r", t="orders", bm="0", a="completed")
        count = 0
        while True:
            message = await client.receive()
            assert message is not None
            if message.kind == "ack" and message.ack_type == "completed":
                return count
            count += message.kind == "p"


@pytest.mark.row("FI4", "RE4", "RE3")
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("heartbeat_s", [0.1, 60.0])
async def test_a_partition_holds_acks_delivery_goes_on_and_healing_catches_up(
    heartbeat_s: float, *, dropped: bool
) -> None:
    async with Cluster("east", "west", heartbeat_s=heartbeat_s) as cluster:
        east, west = cluster.uris
        async with RawClient.connect(east) as client:
            await client.logon("p", opts=QUICK)
            await publish(client, 1, 100)
            await client.persisted(100)
            await cluster.apply(Partition("east", "west", dropped=dropped))
            await publish(client, 101, 200)
            assert await read(east, 200) == list(range(1, 201))  # delivered before persisted
            with trio.move_on_after(0.3) as waiting:
                await client.ack("persisted")
            assert waiting.cancelled_caught
            assert await logged(west) == 100
            assert cluster.destination("east", "west").behind == 100
            await cluster.apply(Heal("east", "west"))
            await client.persisted(200)
            assert await read(west, 200) == list(range(1, 201))


@pytest.mark.row("FI4", "RE3")
@pytest.mark.parametrize("on", ["tcp", "process"])
async def test_a_partition_in_one_direction_holds_the_acks_of_both(
    amps_cluster: ClusterFactory, on: On
) -> None:
    cluster = await amps_cluster("east", "west", on=on)
    east, west = cluster.uris
    async with RawClient.connect(east) as at_east, RawClient.connect(west) as at_west:
        await at_east.logon("e", opts=QUICK)
        await at_west.logon("w", opts=QUICK)
        for client in (at_east, at_west):
            await publish(client, 1, 50)
        for client in (at_east, at_west):
            await client.persisted(50)
        await cluster.apply(Partition("east", "west", one_way=True))
        for client in (at_east, at_west):
            await publish(client, 51, 100)
        # What west sends arrives; that it has arrived, west does not hear.
        assert len(await read(east, 200)) == 200
        assert await logged(west) == 150
        for client in (at_east, at_west):
            with trio.move_on_after(0.2) as waiting:
                await client.ack("persisted")
            assert waiting.cancelled_caught
        await cluster.apply(Heal())
        for client in (at_east, at_west):
            await client.persisted(100)
        for uri in cluster.uris:
            assert sorted(await read(uri, 200)) == sorted([*range(1, 101), *range(1, 101)])


@pytest.mark.row("FI4")
async def test_a_chain_is_cut_at_every_place_and_catches_up() -> None:
    links = {"a": ["b"], "b": ["c"]}
    async with (
        Cluster("a", "b", "c", links=links) as cluster,
        RawClient.connect(cluster.uri) as client,
    ):
        await client.logon("p", opts=QUICK)
        for round_, source in enumerate(("a", "b", "a", "b")):
            await cluster.apply(Cut(source=source, at_byte=37 + 500 * round_, direction="up"))
            await publish(client, 100 * round_ + 1, 100 * round_ + 100)
        await client.persisted(400)
        assert await read(cluster.uris[2], 400) == list(range(1, 401))

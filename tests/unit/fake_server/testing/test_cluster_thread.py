"""A cluster in a thread, used as plain and asyncio tests use it."""

from __future__ import annotations

import asyncio  # noqa: TID251 - what its users run
import socket
from collections.abc import Iterator

import pytest

from haclient import aio, blocking
from haclient.errors import UsageError
from haclient_fake_server.config import BrokerConfig
from haclient_fake_server.testing.cluster_thread import ClusterThread
from haclient_fake_server.testing.faults import Cut, Heal, Kill, Partition, Restart


@pytest.fixture(scope="module")
def broker() -> Iterator[ClusterThread]:
    with ClusterThread("broker") as cluster:
        yield cluster


@pytest.mark.row("FI1")
def test_a_plain_test_cuts_the_connection_of_its_client(broker: ClusterThread) -> None:
    with blocking.HAClient.memory_backed("plain", servers=[broker.uri]) as client:
        broker.apply(Cut(before_ack="persisted"))
        client.publish("orders", b"{}")
        client.publish_flush(timeout=60)


@pytest.mark.row("FI1")
def test_an_asyncio_test_cuts_the_connection_of_its_client(broker: ClusterThread) -> None:
    async def main() -> None:
        async with aio.HAClient.memory_backed("async", servers=[broker.uri]) as client:
            broker.apply(Cut())
            await client.publish("orders", b"{}")
            await client.publish_flush(timeout=60)

    asyncio.run(main())


@pytest.mark.row("FI2", "FI4")
def test_brokers_are_parted_killed_and_started_again() -> None:
    with ClusterThread("east", "west", mode="async") as cluster:
        first = cluster.uris
        cluster.apply(Partition("east", "west"), Kill("east"))
        assert not cluster.is_running("east")
        assert cluster.is_running("west")
        cluster.apply(Restart("east"), Heal())
        assert cluster.is_running("east")
        assert cluster.uris == first


def test_a_fault_that_cannot_be_is_raised_where_it_is_applied(broker: ClusterThread) -> None:
    with pytest.raises(UsageError, match="no broker 'north' runs here"):
        broker.apply(Kill("north"))
    with pytest.raises(UsageError, match="takes a broker that is a process"):
        broker.apply(Kill("broker", at="after_write"))


async def test_a_test_that_runs_on_trio_is_not_blocked(broker: ClusterThread) -> None:
    with pytest.raises(UsageError, match="for tests without trio: use a Cluster here"):
        broker.apply(Cut())


def test_outside_of_its_block_there_is_nothing_to_disturb() -> None:
    cluster = ClusterThread("broker")
    with pytest.raises(UsageError, match="inside their `with` block"):
        cluster.apply(Cut())
    with cluster:
        pass
    with pytest.raises(UsageError, match="inside their `with` block"):
        cluster.is_running("broker")


def test_a_broker_that_cannot_start_raises_in_the_thread_of_the_test() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = BrokerConfig(admin=f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(OSError, match="in use"), ClusterThread("broker", config=config):
            raise AssertionError

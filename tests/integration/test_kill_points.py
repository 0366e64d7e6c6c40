"""Brokers that are killed at named points, in the middle of what they do (FI2)."""

from __future__ import annotations

import signal

import pytest
import trio

from haclient_fake_server.config import BrokerConfig, FsyncPolicy
from haclient_fake_server.kill_points import KillPoint
from haclient_fake_server.pytest_plugin import ClusterFactory
from haclient_fake_server.testing.cluster import Cluster
from haclient_fake_server.testing.faults import Kill, Restart
from support.journey import Journey

pytestmark = pytest.mark.in_parts

SMALL = 16 * 1024  # bytes of a segment: a journey of some hundred messages fills several


async def dies(cluster: Cluster, journey: Journey, name: str) -> None:
    """Publish until the broker has killed itself."""
    async with trio.open_nursery() as nursery:

        async def publish() -> None:
            while True:
                await journey.publish(10, padding=100)
                await trio.sleep(0.01)

        nursery.start_soon(publish)
        code = await trio.to_thread.run_sync(cluster.process(name).wait)
        nursery.cancel_scope.cancel()
    assert code == -signal.SIGKILL
    assert not cluster.is_running(name)


@pytest.mark.row("FI2", "TL1", "TL7")
@pytest.mark.parametrize(
    ("point", "fsync"),
    [
        *((each, FsyncPolicy.NONE) for each in KillPoint if each != KillPoint.AFTER_CONFIRMED),
        (KillPoint.IN_WRITE, FsyncPolicy.BATCH),
        (KillPoint.BEFORE_MANIFEST, FsyncPolicy.BATCH),
    ],
)
async def test_nothing_is_lost_or_repeated_when_a_broker_is_killed_at_a_named_point(
    amps_cluster: ClusterFactory, point: KillPoint, fsync: FsyncPolicy
) -> None:
    config = BrokerConfig(segment_bytes=SMALL, fsync=fsync)
    cluster = await amps_cluster("broker", on="process", config=config)
    async with Journey(cluster.uris) as journey:
        await journey.publish(20, padding=100)
        await journey.arrive()
        await cluster.apply(Kill("broker", at=point, passes=1))
        await dies(cluster, journey, "broker")
        await cluster.apply(Restart("broker"))
        await journey.publish(200, padding=100)
        await journey.arrive()


@pytest.mark.row("FI2", "RE4")
@pytest.mark.parametrize("point", [KillPoint.AFTER_CONFIRMED, KillPoint.AFTER_WRITE])
async def test_a_pair_goes_on_when_one_of_it_is_killed_at_a_named_point(
    amps_cluster: ClusterFactory, point: KillPoint
) -> None:
    cluster = await amps_cluster("east", "west", on="process")
    async with Journey(cluster.uris) as journey:
        await journey.publish(20)
        await journey.arrive()
        await cluster.apply(Kill("east", at=point, passes=3))
        await dies(cluster, journey, "east")
        await journey.publish(50)
        await cluster.apply(Restart("east"))
        await journey.arrive()

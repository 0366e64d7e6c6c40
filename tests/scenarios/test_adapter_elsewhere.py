"""A process that has nothing but what an adapter kept, on a server with another order (RP6).

Until the servers hear of each other, one has the message of P first and the other that of Q. The
subscriber has finished P's on the one when it ends; the list of its recovery point does not name Q.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio
from typing_extensions import override

from haclient.client import HAClient
from haclient.recovery_points.sow import SOWRecoveryPointAdapter
from haclient_fake_server.config import BrokerConfig, SowTopic
from haclient_fake_server.testing.cluster import Cluster
from haclient_fake_server.testing.faults import Heal, Partition
from haclient_stores.adapters.conflating import ConflatingRecoveryPointAdapter
from haclient_stores.adapters.recovery_point import RecoveryPoint, RecoveryPointAdapter
from haclient_stores.bookmark import EPOCH, MOST_RECENT, NOW, StartPoint
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.points import KeptPoints

pytestmark = [in_virtual_time, pytest.mark.row("RP6", "BS9", "HA17")]

CONFIG = BrokerConfig(
    ack_interval_s=0.05,
    sow_topics=(SowTopic("/ADMIN/bookmark_store", ("/clientName", "/subId")),),
)


class Bare(KeptPoints):
    """Keeps of each point what an older one would: the list alone."""

    @override
    def update(self, point: RecoveryPoint) -> None:
        super().update(RecoveryPoint(point.sub_id, point.bookmark))


@asynccontextmanager
async def adapter_of(kind: str, uri: str, kept: KeptPoints) -> AsyncGenerator[RecoveryPointAdapter]:
    if kind != "sow":
        yield kept
        return
    points = HAClient("points", servers=[uri], publish_store=MemoryPublishStore())
    async with points:
        yield ConflatingRecoveryPointAdapter(SOWRecoveryPointAdapter(points), max_age_s=0.5)


async def publish(uri: str, name: str, *bodies: str) -> None:
    async with HAClient(name, servers=[uri], publish_store=MemoryPublishStore()) as client:
        for body in bodies:
            await client.publish("orders", body)
        await client.publish_flush(timeout=10)


async def consume(
    uri: str,
    adapter: RecoveryPointAdapter,
    count: int,
    *,
    bookmark: StartPoint = MOST_RECENT,
    and_for_s: float = 3.0,
) -> list[str]:
    """A process without a file: what it gets while it discards everything."""
    got: list[str] = []
    enough = trio.Event()
    store = MemoryBookmarkStore(adapter)

    async def read(client: HAClient) -> None:
        async with client.bookmark_stream("orders", sub_id="s", bookmark=bookmark) as messages:
            async for message in messages:
                got.append(message.text)
                message.discard()
                if len(got) == count:
                    enough.set()

    async with (
        HAClient("tracked", servers=[uri], bookmark_store=store) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(read, client)
        with trio.move_on_after(20):
            await enough.wait()
        await trio.sleep(and_for_s)
        nursery.cancel_scope.cancel()
    return got


@pytest.mark.parametrize("start", [EPOCH, NOW])
@pytest.mark.parametrize("kind", ["kept", "bare", "sow"])
async def test_a_process_with_nothing_but_the_points_misses_nothing_elsewhere(
    kind: str, start: StartPoint
) -> None:
    kept = Bare() if kind == "bare" else KeptPoints()
    async with (
        Cluster("points", on="memory", config=CONFIG) as third,
        Cluster("east", "west", on="memory", mode="async", config=CONFIG) as cluster,
    ):
        east, west = cluster.uris
        await trio.sleep(60)
        await cluster.apply(Partition("east", "west"))
        await publish(west, "q", "q1")
        first: list[str] = []

        async def run_first(adapter: RecoveryPointAdapter) -> None:
            first.extend(await consume(east, adapter, 1, bookmark=start))

        async with (
            adapter_of(kind, third.uri, kept) as adapter,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(run_first, adapter)
            await trio.sleep(2)
            await publish(east, "p", "p1")
            await trio.sleep(2)
            assert kind != "kept" or kept.points["s"].caught_up_us
        assert first == ["p1"]
        await cluster.apply(Heal())
        await trio.sleep(1)
        async with adapter_of(kind, third.uri, kept) as adapter:
            second = await consume(west, adapter, 1)
        assert second == ["q1"]

"""Brokers in memory that tests stop and start, for whole clients in virtual time.

::

    async with instances("east") as (east,), HAClient("c", servers=[east.uri]) as client:
        await east.stop()
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import trio
from trio.testing import wait_all_tasks_blocked

from haclient.transport.links.memory_network import network
from haclient.transport.tasks import open_nursery
from haclient_fake_server.config import BrokerConfig, ReplicateTo, SowTopic
from haclient_fake_server.server import BrokerServer
from haclient_fake_server.testing.cluster import LocalBroker

__all__ = ["NOWHERE", "Instance", "address", "durable", "instances", "restart"]

_ACK_INTERVAL_S = 0.05
_NEVER_S = 1e6


def address(name: str) -> str:
    """Where the instance of this name listens."""
    return f"mem://{name}:1"


NOWHERE = f"{address('nowhere')}/amps/json"
"""A server that never accepts."""


def durable(path: Path) -> BrokerConfig:
    """A broker whose log outlives it, with records of `prices` and of recovery points."""
    sow = (
        SowTopic("prices", ("/id",)),
        SowTopic("/ADMIN/bookmark_store", ("/clientName", "/subId")),
    )
    return BrokerConfig(
        data_dir=path, segment_bytes=1 << 20, ack_interval_s=_ACK_INTERVAL_S, sow_topics=sow
    )


class Instance:
    """One broker; its journal is in memory and ends with it, unless it has a directory."""

    def __init__(self, name: str, config: BrokerConfig, nursery: trio.Nursery) -> None:
        self.uri = f"{address(name)}/amps/json"
        self._name = name
        self._broker = LocalBroker(replace(config, name=name, listen=(address(name),)), nursery)

    @property
    def running(self) -> BrokerServer:
        """The broker, while it runs."""
        assert self._broker.server is not None, "the instance does not run"
        return self._broker.server

    async def start(self) -> None:
        """Run; it listens when this returns."""
        await self._broker.start()

    async def stop(self) -> None:
        """Stop, and have its clients notice."""
        await self._broker.kill()
        await wait_all_tasks_blocked()

    async def cut(self) -> None:
        """Reset every connection to it; it goes on listening."""
        for connection in network().connections:
            if connection.target == address(self._name).removeprefix("mem://"):
                connection.reset()
        await wait_all_tasks_blocked()


async def restart(broker: Instance) -> None:
    """A server that is away for a while."""
    await broker.stop()
    await trio.sleep(2)
    await broker.start()


@asynccontextmanager
async def instances(
    *names: str, config: BrokerConfig | None = None, replicate: bool = False
) -> AsyncGenerator[tuple[Instance, ...]]:
    """Running brokers; with `replicate` each is synchronous to all others."""
    base = config or BrokerConfig(ack_interval_s=_ACK_INTERVAL_S)
    async with open_nursery() as nursery:
        found: list[Instance] = []
        for name in names:
            to = tuple(ReplicateTo(address(each)) for each in names if replicate and each != name)
            own = replace(base, replicate_to=to or base.replicate_to)
            if base.data_dir is not None and len(names) > 1:
                own = replace(own, data_dir=base.data_dir / name)
            found.append(Instance(name, own, nursery))
        for each in found:
            await each.start()
        with trio.fail_after(_NEVER_S):  # what hangs under the autojump clock fails at once
            yield tuple(found)
        nursery.cancel_scope.cancel()

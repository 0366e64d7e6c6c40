"""Brokers in memory that tests stop and start, for whole clients in virtual time.

::

    async with instances("east") as (east,), HAClient("c", servers=[east.uri]) as client:
        await east.stop()
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import trio
from trio.testing import wait_all_tasks_blocked

from haclient.transport.exceptions import open_nursery
from haclient.transport.memory import network
from haclient_fake_server.config import BrokerConfig, ReplicateTo
from haclient_fake_server.server import BrokerServer

__all__ = ["Instance", "address", "instances"]

_ACK_INTERVAL_S = 0.05
_NEVER_S = 1e6


def address(name: str) -> str:
    """Where the instance of this name listens."""
    return f"mem://{name}:1"


class Instance:
    """One broker; its journal is in memory and ends with it, unless it has a directory."""

    def __init__(self, name: str, config: BrokerConfig, nursery: trio.Nursery) -> None:
        self.uri = f"{address(name)}/amps/json"
        self.server: BrokerServer | None = None
        self._config = replace(config, name=name, listen=(address(name),))
        self._nursery = nursery
        self._stopped = trio.Event()
        self._scope = trio.CancelScope()

    @property
    def running(self) -> BrokerServer:
        """The broker, while it runs."""
        assert self.server is not None, "the instance does not run"
        return self.server

    async def start(self) -> None:
        """Run; it listens when this returns."""
        self._stopped, self._scope = trio.Event(), trio.CancelScope()
        await self._nursery.start(self._run)

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        with self._scope:
            async with BrokerServer(self._config) as self.server:
                task_status.started()
                await trio.sleep_forever()
        self.server = None
        self._stopped.set()

    async def stop(self) -> None:
        """Stop, and have its clients notice."""
        self._scope.cancel()
        await self._stopped.wait()
        await wait_all_tasks_blocked()

    async def cut(self) -> None:
        """Reset every connection to it; it goes on listening."""
        for connection in network().connections:
            if connection.target == address(self._config.name).removeprefix("mem://"):
                connection.reset()
        await wait_all_tasks_blocked()


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
            found.append(Instance(name, replace(base, replicate_to=to), nursery))
        for each in found:
            await each.start()
        with trio.fail_after(_NEVER_S):  # what hangs under the autojump clock fails at once
            yield tuple(found)
        nursery.cancel_scope.cancel()

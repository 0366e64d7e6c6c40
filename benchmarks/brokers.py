"""The reference broker in a process of its own: publish, journal, persist, deliver; and replay.

Here the broker is what is measured: publisher and subscriber together cost less than it does.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from benchmarks.blast import TOPIC, payload
from benchmarks.machine import SERVER_CORE
from benchmarks.scenario import Scenario, Setting, module_process
from haclient import EPOCH, Client
from haclient.stores import MemoryBookmarkStore, MemoryPublishStore

__all__ = ["SCENARIOS", "RunningBroker", "broker_process", "connected", "deliver", "running_broker"]

_COUNT = 100_000
_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """A broker in a process of its own: its URI and its process id."""

    uri: str
    pid: int


@contextmanager
def broker_process(setting: Setting, *options: str) -> Generator[str]:
    """A broker with a fresh log on core 1, with further options of the command; its URI."""
    with running_broker(tempfile.mkdtemp(dir=setting.scratch), *options) as broker:
        yield broker.uri


@contextmanager
def running_broker(data: str, *options: str) -> Generator[RunningBroker]:
    """The same with the log in a directory, which may have one already."""
    process = module_process(
        "haclient", "broker", "run", "--listen", "tcp://127.0.0.1:0", "--data", data, *options
    )
    assert process.stdout is not None
    try:
        if hasattr(os, "sched_setaffinity") and SERVER_CORE in range(os.cpu_count() or 0):
            os.sched_setaffinity(process.pid, {SERVER_CORE})
        uri = process.stdout.readline().split()[1]
        yield RunningBroker(f"{uri}/amps/json", process.pid)
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


async def connected(client: Client, uri: str) -> None:
    """Connect and log on."""
    await client.connect(uri)
    await client.logon()


async def _take(client: Client, count: int, ready: trio.Event | None) -> None:
    left = count
    async with client.bookmark_stream(TOPIC, sub_id="bench", bookmark=EPOCH) as messages:
        if ready is not None:
            ready.set()
        async for message in messages:
            message.discard()
            left -= 1
            if not left:
                return


async def deliver(publisher: Client, subscriber: Client, count: int) -> float:
    """Publish to a subscriber to the log; messages per second, until all is persisted and there."""
    body, ready = payload(100), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_take, subscriber, count, ready)
        await ready.wait()
        start = time.perf_counter()
        for _ in range(count):
            await publisher.publish(TOPIC, body)
        await publisher.publish_flush(timeout=_LIMIT_S)
    return count / (time.perf_counter() - start)


async def _measure(uri: str, count: int) -> dict[str, float]:
    async with (
        Client("bench-pub", publish_store=MemoryPublishStore()) as publisher,
        Client("bench-sub", bookmark_store=MemoryBookmarkStore()) as subscriber,
        Client("bench-replay", bookmark_store=MemoryBookmarkStore()) as replayer,
    ):
        for client in (publisher, subscriber, replayer):
            await connected(client, uri)
        delivered = await deliver(publisher, subscriber, count)
        start = time.perf_counter()
        await _take(replayer, count, None)
        return {
            "broker publish and deliver": delivered,
            "broker replay": count / (time.perf_counter() - start),
        }


def _rows(setting: Setting) -> dict[str, float]:
    with broker_process(setting) as uri:
        return trio.run(_measure, uri, max(1000, int(_COUNT * setting.scale)))


SCENARIOS = [Scenario("broker", "messages/s", _rows)]

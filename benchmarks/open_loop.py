"""The open loop: 100 000 messages a second in bursts of 1 ms, publisher and subscriber in here.

The broker runs in a process of its own. A message carries the time of its publishing; delivery is
what has passed when the subscriber's loop sees it. Acks are sampled: every 10 ms one task publishes
nothing and waits until all before is persisted.
"""

from __future__ import annotations

import time

import trio

from benchmarks.blast import TOPIC, payload
from benchmarks.brokers import broker_process, connected
from benchmarks.latency import percentiles
from benchmarks.scenario import Scenario, Setting
from haclient import Client
from haclient.stores import MemoryPublishStore

__all__ = ["SCENARIOS"]

_RATE = 100_000
_SECONDS = 2.0
_BURST_S = 0.001
_SAMPLE_S = 0.01
_STAMP_BYTES = 20
_LIMIT_S = 30.0


async def _publish(client: Client, count: int) -> None:
    filler, burst = payload(100 - _STAMP_BYTES), int(_RATE * _BURST_S)
    due = trio.current_time()
    for _ in range(0, count, burst):
        await trio.sleep_until(due)
        due += _BURST_S
        stamp = b"%020d" % time.perf_counter_ns()
        for _ in range(burst):
            await client.publish(TOPIC, stamp + filler)


async def _sample_acks(client: Client, samples: list[float]) -> None:
    while True:
        await trio.sleep(_SAMPLE_S)
        start = time.perf_counter()
        await client.publish_flush(timeout=_LIMIT_S)
        samples.append(time.perf_counter() - start)


async def _deliveries(client: Client, count: int, ready: trio.Event) -> list[float]:
    samples: list[float] = []
    async with client.stream(TOPIC) as messages:
        ready.set()
        async for message in messages:
            stamp = int(message.data[:_STAMP_BYTES])
            samples.append((time.perf_counter_ns() - stamp) / 1e9)
            if len(samples) >= count:
                break
    return samples


async def _measure(uri: str, count: int) -> dict[str, float]:
    acks, ready = list[float](), trio.Event()
    async with (
        Client("bench-pub", publish_store=MemoryPublishStore()) as publisher,
        Client("bench-sub") as subscriber,
        trio.open_nursery() as nursery,
    ):
        for client in (publisher, subscriber):
            await connected(client, uri)

        async def publish() -> None:
            await ready.wait()
            nursery.start_soon(_sample_acks, publisher, acks)
            await _publish(publisher, count)

        nursery.start_soon(publish)
        delivered = await _deliveries(subscriber, count, ready)
        nursery.cancel_scope.cancel()
    return percentiles("open loop delivery", delivered) | percentiles("open loop ack", acks)


def _rows(setting: Setting) -> dict[str, float]:
    burst = int(_RATE * _BURST_S)
    count = max(20 * burst, int(_RATE * _SECONDS * setting.scale) // burst * burst)
    with broker_process(setting) as uri:
        return trio.run(_measure, uri, count)


SCENARIOS = [Scenario("open-loop", "us", _rows)]

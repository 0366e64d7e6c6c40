"""nats-py with a real nats-server and JetStream on files. Only where both are installed."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import shutil
import tempfile
import time
from functools import partial
from typing import Protocol, cast

from benchmarks.blast import payload
from benchmarks.latency import percentiles
from benchmarks.outgoing import SIZES
from benchmarks.peer_redis import free_port, server
from benchmarks.scenario import Scenario, Setting

__all__ = ["SCENARIOS"]

_COUNT = 20_000
_BATCH = 500
_TURNS = 1000
_SUBJECT = "orders"


class _Received(Protocol):
    async def ack(self) -> None: ...


class _Subscription(Protocol):
    async def fetch(self, batch: int, timeout: float) -> list[_Received]: ...


class _JetStream(Protocol):
    async def add_stream(self, *, name: str, subjects: list[str]) -> object: ...
    async def publish_async(self, subject: str, payload: bytes) -> object: ...
    async def publish_async_completed(self) -> None: ...
    async def publish(self, subject: str, payload: bytes) -> object: ...
    async def pull_subscribe(self, subject: str, durable: str) -> _Subscription: ...


class _Connection(Protocol):
    def jetstream(self) -> _JetStream: ...
    async def close(self) -> None: ...


class _NatsModule(Protocol):
    async def connect(self, servers: str) -> _Connection: ...


def _missing() -> str:
    if importlib.util.find_spec("nats") is None:
        return "nats-py is not installed"
    return "" if shutil.which("nats-server") else "nats-server is not installed"


async def _publish(stream: _JetStream, count: int, body: bytes) -> float:
    start = time.perf_counter()
    for _ in range(count):
        await stream.publish_async(_SUBJECT, body)
    await stream.publish_async_completed()
    return count / (time.perf_counter() - start)


async def _consume(stream: _JetStream, count: int) -> float:
    subscription = await stream.pull_subscribe(_SUBJECT, "bench")
    left, start = count, time.perf_counter()
    while left > 0:
        messages = await subscription.fetch(min(_BATCH, left), 5)
        for message in messages:
            await message.ack()
        left -= len(messages)
    return count / (time.perf_counter() - start)


async def _acks(stream: _JetStream, body: bytes) -> list[float]:
    samples: list[float] = []
    for _ in range(_TURNS):
        start = time.perf_counter()
        await stream.publish(_SUBJECT, body)
        samples.append(time.perf_counter() - start)
    return samples


async def _measure(label: str, port: int, count: int) -> dict[str, float]:
    module = cast("_NatsModule", importlib.import_module("nats"))
    connection = await module.connect(f"nats://127.0.0.1:{port}")
    stream = connection.jetstream()
    await stream.add_stream(name="BENCH", subjects=[_SUBJECT])
    body = payload(SIZES[label])
    rows = {
        f"nats publish {label}": await _publish(stream, count, body),
        f"nats consume {label}": await _consume(stream, count),
    }
    if label == "100 B":
        rows |= percentiles("nats ack", await _acks(stream, body))
    await connection.close()
    return rows


def _rows(label: str, setting: Setting) -> dict[str, float]:
    port, count = free_port(), max(_BATCH, int(_COUNT * setting.scale))
    data = tempfile.mkdtemp(dir=setting.scratch)
    with server(["nats-server", "-js", "-sd", data, "-a", "127.0.0.1", "-p", str(port)], port):
        return asyncio.run(_measure(label, port, count))


SCENARIOS = [Scenario("nats", "messages/s", partial(_rows, label), _missing) for label in SIZES]

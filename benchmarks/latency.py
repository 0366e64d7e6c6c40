"""The closed loop: one publish outstanding until its persisted ack, beside a raw ping-pong."""

from __future__ import annotations

import time
from collections.abc import Sequence

import trio

from benchmarks.blast import TOPIC, Blast, outgoing, payload
from benchmarks.scenario import Scenario, Setting
from haclient import Client
from haclient.stores import MemoryPublishStore

__all__ = ["SCENARIOS", "percentile", "percentiles"]

_TURNS = 5000
_SIZE = 100


def percentile(samples: Sequence[float], percent: int) -> float:
    """The sample that so many percent of all are not above."""
    return sorted(samples)[len(samples) * percent // 100]


def percentiles(name: str, samples_s: list[float]) -> dict[str, float]:
    """The p50 and p99 of samples in seconds, as rows in microseconds."""
    return {
        f"{name} p{percent}": round(percentile(samples_s, percent) * 1e6, 2) for percent in (50, 99)
    }


async def _acks(setting: Setting) -> list[float]:
    body, samples = payload(_SIZE), list[float]()
    async with Client("bench", publish_store=MemoryPublishStore()) as client:
        await client.connect(setting.uri)
        await client.logon()
        for _ in range(max(200, int(_TURNS * setting.scale))):
            start = time.perf_counter()
            sequence = await client.publish(TOPIC, body)
            assert sequence is not None
            await client.wait_persisted(sequence, timeout=10)
            samples.append(time.perf_counter() - start)
    return samples


async def _ping_pong(setting: Setting) -> list[float]:
    block, samples = outgoing(Blast(1, _SIZE)), list[float]()
    async with await trio.open_tcp_stream("127.0.0.1", setting.port) as stream:
        await stream.send_all(b"ECHO\n")
        await stream.receive_some(1)
        for _ in range(max(200, int(_TURNS * setting.scale))):
            start = time.perf_counter()
            await stream.send_all(block)
            await stream.receive_some(4096)
            samples.append(time.perf_counter() - start)
    return samples


def _ack_rows(setting: Setting) -> dict[str, float]:
    return percentiles("ack", trio.run(_acks, setting))


def _ping_pong_rows(setting: Setting) -> dict[str, float]:
    return percentiles("raw ping-pong", trio.run(_ping_pong, setting))


SCENARIOS = [Scenario("latency", "us", measure) for measure in (_ping_pong_rows, _ack_rows)]

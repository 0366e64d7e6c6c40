"""The clients for programs without trio beside the trio client: publishing in batches and singly.

Each of the three publishes the same messages to the far end with a memory store, in lists of 1 000
(`publish_many`) and one call for each message (`publish`), until all is persisted.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

import trio

import haclient
from benchmarks.blast import TOPIC, Blast, payload
from benchmarks.scenario import Scenario, Setting
from haclient import aio, blocking
from haclient.stores import MemoryPublishStore

__all__ = ["BATCH", "SCENARIOS"]

BATCH = 1000
_SIZE = 100
_SINGLE_SHARE = 50  # a single call of a facade takes some hundred times as long as one of trio
_LIMIT_S = 120.0


async def _trio(uri: str, blast: Blast, batch: int) -> float:
    body = payload(blast.size)
    bodies = [body] * batch
    async with haclient.Client("bench", publish_store=MemoryPublishStore()) as client:
        await client.connect(uri)
        await client.logon()
        start = time.perf_counter()
        if batch == 1:
            for _ in range(blast.count):
                await client.publish(TOPIC, body)
        else:
            for _ in range(blast.count // batch):
                await client.publish_many(TOPIC, bodies)
        await client.publish_flush(timeout=_LIMIT_S)
        return blast.count // batch * batch / (time.perf_counter() - start)


async def _aio(uri: str, blast: Blast, batch: int) -> float:
    body = payload(blast.size)
    bodies = [body] * batch
    async with aio.Client("bench", publish_store=MemoryPublishStore()) as client:
        await client.connect(uri)
        await client.logon()
        start = time.perf_counter()
        if batch == 1:
            for _ in range(blast.count):
                await client.publish(TOPIC, body)
        else:
            for _ in range(blast.count // batch):
                await client.publish_many(TOPIC, bodies)
        await client.publish_flush(timeout=_LIMIT_S)
        return blast.count // batch * batch / (time.perf_counter() - start)


def _blocking(uri: str, blast: Blast, batch: int) -> float:
    body = payload(blast.size)
    bodies = [body] * batch
    with blocking.Client("bench", publish_store=MemoryPublishStore()) as client:
        client.connect(uri)
        client.logon()
        start = time.perf_counter()
        if batch == 1:
            for _ in range(blast.count):
                client.publish(TOPIC, body)
        else:
            for _ in range(blast.count // batch):
                client.publish_many(TOPIC, bodies)
        client.publish_flush(timeout=_LIMIT_S)
        return blast.count // batch * batch / (time.perf_counter() - start)


def _row(name: str, batch: int, setting: Setting) -> dict[str, float]:
    blast = setting.blast(_SIZE)
    if batch == 1 and name != "trio":
        blast = Blast(max(batch, blast.count // _SINGLE_SHARE), _SIZE)
    match name:
        case "trio":
            rate = trio.run(_trio, setting.uri, blast, batch)
        case "aio":
            rate = asyncio.run(_aio(setting.uri, blast, batch))
        case _:
            rate = _blocking(setting.uri, blast, batch)
    what = "publish" if batch == 1 else "publish_many"
    return {f"{name} {what}": rate}


SCENARIOS = [
    Scenario("facades", "messages/s", partial(_row, name, batch))
    for batch in (BATCH, 1)
    for name in ("trio", "blocking", "aio")
]

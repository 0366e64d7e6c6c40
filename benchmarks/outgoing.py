"""Publishing: from the first `publish` until all is persisted, and the raw socket beside."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import trio

from benchmarks.blast import TOPIC, Blast, outgoing, payload
from benchmarks.scenario import Scenario, Setting
from haclient import Client
from haclient.stores import FilePublishStore, MemoryPublishStore

__all__ = ["SCENARIOS", "SIZES"]

SIZES = {"100 B": 100, "1 KiB": 1024}
_BLOCK_BYTES = 1 << 16
_LIMIT_S = 120.0

_Store: TypeAlias = FilePublishStore | MemoryPublishStore


async def _publish(setting: Setting, blast: Blast, store: _Store) -> float:
    body = payload(blast.size)
    async with Client("bench", publish_store=store) as client:
        await client.connect(setting.uri)
        await client.logon()
        publish = client.publish
        start = time.perf_counter()
        for _ in range(blast.count):
            await publish(TOPIC, body)
        await client.publish_flush(timeout=_LIMIT_S)
        return blast.count / (time.perf_counter() - start)


def _publish_row(
    name: str, store_of: Callable[[Setting], _Store], label: str, setting: Setting
) -> dict[str, float]:
    store = store_of(setting)
    try:
        rate = trio.run(_publish, setting, setting.blast(SIZES[label]), store)
    finally:
        store.close()
    return {f"publish {name} {label}": rate}


async def _send_raw(setting: Setting, blast: Blast) -> float:
    data = memoryview(outgoing(blast))
    stream = await trio.open_tcp_stream("127.0.0.1", setting.port)
    async with stream:
        await stream.send_all(b"SEND %d\n" % len(data))
        await stream.receive_some(1)
        start = time.perf_counter()
        for offset in range(0, len(data), _BLOCK_BYTES):
            await stream.send_all(data[offset : offset + _BLOCK_BYTES])
        await stream.receive_some(1)
        return blast.count / (time.perf_counter() - start)


def _raw_row(label: str, setting: Setting) -> dict[str, float]:
    return {f"raw send {label}": trio.run(_send_raw, setting, setting.blast(SIZES[label]))}


def _memory(_setting: Setting) -> _Store:
    return MemoryPublishStore()


def _file(setting: Setting) -> _Store:
    return FilePublishStore(setting.fresh_path())


def _scenarios() -> list[Scenario]:
    found: list[Scenario] = []
    for label in SIZES:
        measures = (
            partial(_raw_row, label),
            partial(_publish_row, "memory", _memory, label),
            partial(_publish_row, "file", _file, label),
        )
        found += [Scenario("publish", "messages/s", measure) for measure in measures]
    return found


SCENARIOS = _scenarios()

"""Receiving: from the subscribe until the last message was handed out and discarded."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TypeAlias

import trio

from benchmarks.blast import SUB_ID, Blast
from benchmarks.outgoing import SIZES
from benchmarks.scenario import Scenario, Setting
from haclient import EPOCH, Client, Message
from haclient.stores import LoggedBookmarkStore, MemoryBookmarkStore

__all__ = ["SCENARIOS", "prepare"]

_BLOCK_BYTES = 1 << 16
_Store: TypeAlias = LoggedBookmarkStore | MemoryBookmarkStore | None


async def prepare(setting: Setting, blast: Blast) -> None:
    """Have the far end encode the blast before any clock runs."""
    async with await trio.open_tcp_stream("127.0.0.1", setting.port) as stream:
        await stream.send_all(b"PREPARE %b\n" % str(blast).encode())
        await stream.receive_some(1)


def _messages(
    client: Client, blast: Blast, store: _Store
) -> AbstractAsyncContextManager[AsyncIterator[Message]]:
    if store is None:
        return client.stream(str(blast), sub_id=SUB_ID)
    return client.bookmark_stream(str(blast), sub_id=SUB_ID, bookmark=EPOCH)


async def _receive(setting: Setting, blast: Blast, store: _Store) -> float:
    await prepare(setting, blast)
    async with Client("bench", bookmark_store=store) as client:
        await client.connect(setting.uri)
        await client.logon()
        left = blast.count
        start = time.perf_counter()
        async with _messages(client, blast, store) as messages:
            async for message in messages:
                message.discard()
                left -= 1
                if not left:
                    return blast.count / (time.perf_counter() - start)
    raise RuntimeError(f"{left} of {blast} never came")


def _receive_row(
    name: str, store_of: Callable[[Setting], _Store], label: str, setting: Setting
) -> dict[str, float]:
    store = store_of(setting)
    try:
        rate = trio.run(_receive, setting, setting.blast(SIZES[label]), store)
    finally:
        if store is not None:
            store.close()
    return {f"receive {name} {label}": rate}


async def _receive_raw(setting: Setting, blast: Blast) -> float:
    await prepare(setting, blast)
    async with await trio.open_tcp_stream("127.0.0.1", setting.port) as stream:
        start = time.perf_counter()
        await stream.send_all(b"RECEIVE %b\n" % str(blast).encode())
        while await stream.receive_some(_BLOCK_BYTES):
            pass
        return blast.count / (time.perf_counter() - start)


def _raw_row(label: str, setting: Setting) -> dict[str, float]:
    return {f"raw receive {label}": trio.run(_receive_raw, setting, setting.blast(SIZES[label]))}


def _logged(setting: Setting) -> _Store:
    return LoggedBookmarkStore(setting.fresh_path())


def _memory(_setting: Setting) -> _Store:
    return MemoryBookmarkStore()


def _none(_setting: Setting) -> _Store:
    return None


def _scenarios() -> list[Scenario]:
    found: list[Scenario] = []
    for label in SIZES:
        measures = (
            partial(_raw_row, label),
            partial(_receive_row, "plain", _none, label),
            partial(_receive_row, "memory", _memory, label),
            partial(_receive_row, "logged", _logged, label),
        )
        found += [Scenario("receive", "messages/s", measure) for measure in measures]
    return found


SCENARIOS = _scenarios()

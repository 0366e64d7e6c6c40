from __future__ import annotations

from pathlib import Path

import pytest
import trio
from typing_extensions import override

from haclient.errors import StoreError
from haclient.transport.presence import alive_since_us, note_alive_until
from haclient_stores.logged_bookmark import LoggedBookmarkStore
from haclient_stores.memory_bookmark import MemoryBookmarkStore
from support.clock import in_virtual_time

pytestmark = in_virtual_time


@pytest.mark.row("BS9")
async def test_every_second_of_a_connection_is_noted_and_outlives_the_process(
    tmp_path: Path,
) -> None:
    store = LoggedBookmarkStore(tmp_path / "bookmarks")
    assert alive_since_us(store, 5.0) == 0
    lost = trio.Event()
    started = trio.current_time()

    def clock_us() -> int:
        return 10_000_000 + int((trio.current_time() - started) * 1_000_000)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(note_alive_until, lost, store, clock_us)
        await trio.sleep(2.5)
        lost.set()
    assert store.alive_us == 12_000_000
    store.prune()
    store.close()
    with_history = LoggedBookmarkStore(tmp_path / "bookmarks")
    assert alive_since_us(with_history, 5.0) == 7_000_000
    assert alive_since_us(with_history, 60.0) == 1  # never 0, which is "unknown"
    with_history.close()


async def test_a_store_that_keeps_no_time_is_left_alone() -> None:
    lost = trio.Event()
    store = MemoryBookmarkStore()
    assert alive_since_us(store, 5.0) == alive_since_us(None, 5.0) == 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(note_alive_until, lost, store, lambda: 1)
        await trio.sleep(5)
        lost.set()


async def test_a_note_that_fails_costs_no_connection(tmp_path: Path) -> None:
    class Failing(LoggedBookmarkStore):
        @override
        def note_alive(self, now_us: int) -> None:
            raise StoreError("no space left")

    store, lost = Failing(tmp_path / "bookmarks"), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(note_alive_until, lost, store, lambda: 1)
        await trio.sleep(3)
        lost.set()
    store.close()

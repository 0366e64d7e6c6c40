from __future__ import annotations

from pathlib import Path

import pytest
import trio

from haclient.errors import StoreError, UsageError
from haclient.transport.publisher import on_disk, sync_accepted
from haclient.transport.store_maintenance import group_sync
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.custom import DictPublishStore
from support.frames import put
from support.recording import Event, RecordingDisk

pytestmark = pytest.mark.row("PS20")

PATH = Path("/stores/p")
LIMIT_S = 300.0


def stored(events: list[Event] | None = None) -> tuple[RecordingDisk, FilePublishStore]:
    disk = RecordingDisk(events)
    store = FilePublishStore(PATH, durability="group", group_interval_s=0.001, disk=disk)
    put(store)
    return disk, store


async def test_an_accepted_publish_is_synced_even_if_its_caller_is_cancelled() -> None:
    _, store = stored()
    with trio.move_on_after(0):
        await sync_accepted(store)
    assert not store.needs_sync
    await sync_accepted(None)
    store.close()


async def test_a_store_of_the_users_own_is_asked_to_sync() -> None:
    custom = DictPublishStore()
    await on_disk(custom)
    assert custom.synced == 1
    for store in (None, MemoryPublishStore()):
        with pytest.raises(UsageError, match="needs a publish store with files"):
            await on_disk(store)


def test_groups_are_for_stores_that_ask_for_them() -> None:
    for store in (DictPublishStore(), MemoryPublishStore(), MemoryBookmarkStore()):
        assert group_sync(store) is None


async def test_a_disk_that_fails_ends_the_groups() -> None:
    disk, store = stored([])

    def fails(_event: Event) -> None:
        raise StoreError("the disk is broken")

    disk.before = fails
    task = group_sync(store)
    assert task is not None
    with trio.fail_after(LIMIT_S), pytest.raises(StoreError, match="broken"):
        await task()
    disk.before = None
    store.close()

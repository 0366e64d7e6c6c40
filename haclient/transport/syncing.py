"""Having a store on disk: in a thread, since only `sync` may be slow (rows PS15, PS20)."""

from __future__ import annotations

from typing import Final

import trio

from haclient.errors import StoreError, StoreFull, UsageError
from haclient_stores.interfaces import BookmarkStore, PublishStore
from haclient_stores.null_publish import NullPublishStore
from haclient_stores.publish_log import PublishLog
from haclient_stores.tracked_store import TrackedBookmarkStore

__all__ = ["on_disk", "sync_accepted", "sync_in_groups"]

_BOOKMARKS_EVERY_S: Final = 0.005


async def sync_accepted(store: PublishStore | None) -> None:
    """Have a publish on disk that is accepted already: shielded, it cannot be taken back.

    Raises:
        StoreError: It is not on the disk. It stays stored, so this is never a `StoreFull`, after
            which an application may publish it again.
    """
    if store is not None:
        with trio.CancelScope(shield=True):
            try:
                await trio.to_thread.run_sync(store.sync)
            except StoreFull as error:
                raise StoreError(f"stored, but not on the disk: {error}") from error


async def on_disk(store: PublishStore | None) -> None:
    """Wait until what was published so far would survive a loss of power.

    Raises:
        UsageError: There is no store, or nothing of it is on a disk.
    """
    in_memory = isinstance(store, PublishLog) and store.path is None
    if store is None or in_memory or isinstance(store, NullPublishStore):
        raise UsageError("publish_flush(durable=True) needs a publish store with files")
    await trio.to_thread.run_sync(store.sync, abandon_on_cancel=True)


async def sync_in_groups(store: PublishStore | BookmarkStore) -> None:
    """Durability `group`: write through whatever was stored since the last time.

    A discard is a call that returns at once, so `fsync` is for bookmark stores the same.

    Raises:
        StoreError: The disk reports an error; nothing that follows would be durable.
    """
    if isinstance(store, PublishLog):
        interval_s = store.group_interval_s if store.durability == "group" else None
    elif isinstance(store, TrackedBookmarkStore):
        interval_s = _BOOKMARKS_EVERY_S if store.durability != "process" else None
    else:
        return
    while interval_s is not None:
        await trio.sleep(interval_s)
        if store.needs_sync:
            await trio.to_thread.run_sync(store.sync)

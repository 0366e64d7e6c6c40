"""Having a store on disk: in a thread, since only `sync` may be slow (rows PS15, PS20)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio

from haclient.errors import StoreError, StoreFull, UsageError
from haclient_stores.bookmark_stores.tracked_store import TrackedBookmarkStore
from haclient_stores.interfaces import BookmarkStore, PublishStore
from haclient_stores.publish_stores.null import NullPublishStore
from haclient_stores.publish_stores.publish_log import PublishLog

__all__ = ["group_sync", "on_disk", "sync_accepted"]

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


def group_sync(store: PublishStore | BookmarkStore) -> Callable[[], Awaitable[None]] | None:
    """The task that syncs a store again and again, if its durability asks for one.

    A discard is a call that returns at once, so `fsync` is for bookmark stores the same as `group`.
    """
    if isinstance(store, PublishLog) and store.durability == "group":
        return partial(_sync_in_groups, store, store.group_interval_s)
    if isinstance(store, TrackedBookmarkStore) and store.durability != "process":
        return partial(_sync_in_groups, store, _BOOKMARKS_EVERY_S)
    return None


async def _sync_in_groups(store: PublishLog | TrackedBookmarkStore, interval_s: float) -> None:
    """Write through what was stored since the last time; an error of the disk ends the client."""
    while True:
        await trio.sleep(interval_s)
        if store.needs_sync:
            await trio.to_thread.run_sync(store.sync)

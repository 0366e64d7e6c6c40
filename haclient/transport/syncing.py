"""Having a publish store on disk: in a thread, since only `sync` may be slow (rows PS15, PS20)."""

from __future__ import annotations

import trio

from haclient.errors import StoreError, StoreFull, UsageError
from haclient_stores.interfaces import PublishStore
from haclient_stores.null_publish import NullPublishStore
from haclient_stores.publish_log import PublishLog

__all__ = ["on_disk", "sync_accepted", "sync_in_groups"]


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


async def sync_in_groups(store: PublishStore | None) -> None:
    """Durability `group`: write through whatever was published since the last time.

    Raises:
        StoreError: The disk reports an error; nothing that follows would be durable.
    """
    if isinstance(store, PublishLog) and store.durability == "group":
        while True:
            await trio.sleep(store.group_interval_s)
            if store.needs_sync:
                await trio.to_thread.run_sync(store.sync)

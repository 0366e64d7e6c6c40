"""A bookmark store of a fixed size (BS15): two vectors for each subscription, in a small file.

`resume` is the recovery point. `applied` is how far everything was discarded: with persisted acks
it runs ahead of the recovery point, and what lies between comes again and is filtered. What was
discarded out of order behind `applied` is known in this process only, so after a restart it comes
again: the store is right for programs that discard in order, and safe for all.

**Slots.** Each subscription has two slots of a page, written in turn, whenever a vector moves. A
slot carries a generation and a checksum over everything in it. So a process that is killed in the
middle of a write leaves the slot of the move before, and the newest whole slot is the state. A
slot of up to 512 bytes (about 15 publishers) lies in one sector.

Slot, little-endian, 4096 bytes:

======  =====  ==============================================================
offset  bytes  meaning
======  =====  ==============================================================
0       4      crc32 of the bytes from 4 to the end of the text
4       4      bytes of the slot in use, up to the end of the text
8       8      generation; the higher of the two is the newer
16      8      when the subscription was entered, microseconds since 1970; or 0
24      8      up to when servers were heard, microseconds since 1970; or 0
32      2      bytes of the subscription id
34      2      bytes of the start: where it began, in wire form
36      2      bytes of the server's address
38      2      1: the resume vector is a place in the order of this server; else 0
40      4      count of publishers
44      4      0
48      24 n   for each publisher: its id, resume and applied
...            subscription id, start and server, UTF-8
======  =====  ==============================================================
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from haclient_stores import framing
from haclient_stores.bookmark_stores.bookmark_file import BookmarkFileStore
from haclient_stores.bookmark_stores.ring_subscription import ZEROS_AT, RingSubscription, Slot
from haclient_stores.checks import check_count
from haclient_stores.disk.files import PAGE_BYTES
from haclient_stores.disk.rewriting import write_again
from haclient_stores.errors import StoreCorrupt, StoreFull
from haclient_stores.tools.explain import Survival

if TYPE_CHECKING:
    from pathlib import Path

    from haclient_stores.adapters.recovery_point import RecoveryPointAdapter
    from haclient_stores.bookmark_stores.watching import UndiscardedWatch
    from haclient_stores.disk.durable_file import Durability
    from haclient_stores.disk.files import Disk
    from haclient_stores.tracker.tracker import SubscriptionTracker

__all__ = ["RING_MAGIC", "RingBookmarkStore", "newest_slot"]

RING_MAGIC: Final = b"HABMKRNG"
_MOST_SUBSCRIPTIONS: Final = 65_536
_log = logging.getLogger(__name__)


def newest_slot(pair: bytes, *, path: Path, offset: int) -> Slot | None:
    """The newer whole one of two slots; None when neither was ever written.

    Raises:
        StoreCorrupt: Something was written, and none of it is whole.
    """
    pages = pair[:PAGE_BYTES], pair[PAGE_BYTES:]
    slots = [Slot.unpack(page) for page in pages]
    if slots == [None, None] and all(map(any, pages)):
        raise StoreCorrupt(path, offset, "neither slot of the subscription matches its checksum")
    for index, (page, slot) in enumerate(zip(pages, slots, strict=True)):
        if slot is None and any(page):
            at = offset + index * PAGE_BYTES
            _log.warning("%s: byte %d: a slot that was written in part does not count", path, at)
    return max(filter(None, slots), key=lambda slot: slot.generation, default=None)


class RingBookmarkStore(BookmarkFileStore[RingSubscription]):
    """Remembers the recovery point of each subscription in a file that never grows (BS15).

    Args:
        path: The file; created when it is missing.
        subscriptions: So many it has room for; the file takes 8 KiB for each.
        adapter: Keeps a copy of the recovery points somewhere else (RP2).
        watch: Warns of messages that stay undiscarded (BS5).
        durability: What the client waits for, as in `FilePublishStore`.
        disk: Where files are; another one in simulations.

    Raises:
        StoreLocked: Another process has the store open.
        StoreCorrupt: The file does not match its checksums.
        UsageError: There is no such durability, or so many subscriptions cannot be.
    """

    _survival = Survival.VECTORS

    def __init__(  # what may be told to a store, all by keyword
        self,
        path: str | Path,
        *,
        subscriptions: int = 16,
        adapter: RecoveryPointAdapter | None = None,
        watch: UndiscardedWatch | None = None,
        durability: Durability = "process",
        disk: Disk | None = None,
    ) -> None:
        check_count("subscriptions", subscriptions, 1, _MOST_SUBSCRIPTIONS)
        super().__init__(path, adapter=adapter, watch=watch, durability=durability, disk=disk)
        self._synced = 0
        self._used: set[int] = set()  # a loss of power may have taken one in between
        self._name_synced = False  # a killed process may have made it, and not have come so far
        self._doubtful = True  # and may have failed in a sync: see rewriting
        try:
            self._open(subscriptions)
        except BaseException:
            self._file.close()
            raise
        self._disk.on_fork(self, RingBookmarkStore._forked)

    def _forked(self) -> None:
        """We are a forked child, and the file is the parent's."""
        self._let_go("the store is used by its fork")

    def _let_go(self, why: str) -> None:
        for handle in self._subscriptions.values():
            handle.let_go(f"{self._path}: {why}; open it again")

    def _open(self, subscriptions: int) -> None:
        header = self._file.pread(PAGE_BYTES, 0)
        identity = framing.read_identity(header, magic=RING_MAGIC, path=str(self._path))
        if identity is None:
            size = PAGE_BYTES * (1 + 2 * subscriptions)
        else:
            size = identity.file_bytes
            self._client_name = framing.read_owner(header, path=str(self._path))
            if self._file.size() < size:
                raise StoreCorrupt(self._path, self._file.size(), "the file was cut off")
        self._file.allocate(size)
        self._region = self._file.map(0, size)
        self._pages = self._region.view
        self.capacity = (size - PAGE_BYTES) // (2 * PAGE_BYTES)
        if identity is None:  # slots that a loss of power has left without one mean nothing
            self._pages[:] = bytes(size)
            made = framing.Identity(RING_MAGIC, PAGE_BYTES, size)
            framing.write_identity(self._pages[:PAGE_BYTES], made, self._disk.boot_id())
            return
        for index in range(self.capacity):
            at = PAGE_BYTES * (1 + 2 * index)
            pair = bytes(self._pages[at : at + 2 * PAGE_BYTES])
            slot = newest_slot(pair, path=self._path, offset=at)
            if slot is not None:
                handle = self._handle(slot.sub_id, index)
                handle.restore(slot)

    def _handle(self, sub_id: str, index: int) -> RingSubscription:
        at = PAGE_BYTES * (1 + 2 * index)
        slots = self._pages[at : at + PAGE_BYTES], self._pages[at + PAGE_BYTES :][:PAGE_BYTES]
        found = RingSubscription(self._publishers, sub_id, slots)
        self._subscriptions[sub_id] = found
        self._used.add(index)
        return found

    @override
    def _write_owner(self, client_name: str) -> None:
        framing.write_owner(self._pages[:PAGE_BYTES], client_name)

    @override
    def _new_subscription(self, sub_id: str) -> RingSubscription:
        self._check_usable()
        index = next((at for at in range(self.capacity) if at not in self._used), None)
        if index is None:
            raise StoreFull(
                f"{self._path}: made for {self.capacity} subscriptions, and {sub_id!r} is one "
                "more: make a new store with subscriptions="
            )
        found = self._handle(sub_id, index)
        try:
            found.save()
            found.save()  # now one of the two slots is whole at any time
        except StoreFull:
            del self._subscriptions[sub_id]
            self._used.remove(index)
            raise
        return found

    @override
    def _tracker(self, handle: RingSubscription) -> SubscriptionTracker:
        return handle

    @property
    @override
    def needs_sync(self) -> bool:
        return self._written() != self._synced

    def _written(self) -> int:
        # A copy: `sync` counts in its thread while the client may enter a subscription.
        return sum(handle.generation for handle in list(self._subscriptions.values()))

    @override
    def sync(self) -> None:
        """Write everything through to the disk; may run in a thread of its own.

        Raises:
            StoreError: The disk reports an error.
        """
        self._check_usable()
        written = self._written()
        if self._doubtful:
            write_again(self._file, framing.IDENTITY_BYTES - 1, framing.IDENTITY_BYTES)
            for slot in range(PAGE_BYTES, self._file.size(), PAGE_BYTES):
                zero = slot + ZEROS_AT  # which never changes
                write_again(self._file, zero, zero + 1)
        self._doubtful = True
        self._file.fsync()
        self._doubtful = False
        if not self._name_synced:
            self._disk.fsync_dir(self._path.parent)
            self._name_synced = True
        self._synced = written

    @override
    def prune(self) -> None:
        """The file never grows."""

    @override
    def close(self) -> None:
        """Sync, unmap and unlock; twice is the same as once."""
        if self._closed:
            return
        try:
            self.sync()
        finally:  # whoever has to mend the disk opens the store in another process
            self._closed = True
            self._let_go("the store is closed")
            self._region.close()
            self._file.close()

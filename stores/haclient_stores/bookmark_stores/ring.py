"""A bookmark store of a fixed size: two vectors for each subscription, in a small file.

`resume` is the recovery point. `applied` is the position up to which everything was discarded: with
persisted acks it runs ahead of the recovery point, and the messages in between are redelivered and
filtered. Out-of-order discards after `applied` are known in this process only, so those messages
are redelivered after a restart: the store suits programs that discard in order, and is safe for
all.

**Slots.** Each subscription has two slots of one page each, written alternately whenever a vector
changes. A slot carries a count of writes and a checksum over everything in it. So a process that is
killed in the middle of a write leaves the previous slot intact, and the newest whole slot is the
state. A slot of up to 512 bytes (about 15 publishers) lies in one sector.

Slot, little-endian, 4096 bytes:

======  =====  ==============================================================
offset  bytes  meaning
======  =====  ==============================================================
0       4      crc32 of the bytes from 4 to the end of the text
4       4      bytes of the slot in use, up to the end of the text
8       8      how often a slot was written; the higher of the two is the newer
16      8      when the subscription was entered, microseconds since 1970; or 0
24      8      caught-up time, microseconds since 1970; or 0
32      8      generation: how often the subscription was started over
40      2      bytes of the subscription id
42      2      bytes of the start: where it began, in wire form
44      2      bytes of the server's address
46      2      1: the resume vector is a place in the order of this server; else 0
48      4      count of publishers
52      4      0
56      24 n   for each publisher: its id, resume and applied
...            subscription id, start and server, UTF-8
======  =====  ==============================================================
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from threading import get_ident
from typing import Final, cast

from typing_extensions import override

from haclient_stores import framing
from haclient_stores.adapters.recovery_point import RecoveryPointAdapter
from haclient_stores.bookmark_stores.records import RecordKind
from haclient_stores.bookmark_stores.subscription import StoreNotes, SubscriptionHandle
from haclient_stores.bookmark_stores.tracked_store import BookmarkFileStore
from haclient_stores.bookmark_stores.undiscarded_watch import UndiscardedWatch
from haclient_stores.checks import check_count
from haclient_stores.disk.durable_file import Durability, DurableFile
from haclient_stores.disk.files import PAGE_BYTES, Disk
from haclient_stores.disk.threads import ThreadBinding
from haclient_stores.errors import StoreCorrupt, StoreFull, UsageError
from haclient_stores.interfaces import Discard
from haclient_stores.logs import logger_of
from haclient_stores.tools.explain import Survival
from haclient_stores.tracker.entries import MIXED, Chunk, Publishers
from haclient_stores.tracker.server_order import ServerOrder
from haclient_stores.tracker.tracker import SubscriptionTracker

__all__ = [
    "RING_MAGIC",
    "RingBookmarkStore",
    "RingJournal",
    "Slot",
    "WriteCount",
    "newest_slot",
]

RING_MAGIC: Final = b"HABMKRNG"
_HEAD: Final = struct.Struct("<IIQQQQHHHHI4x")
_CAUGHT_UP_AT: Final = 24
_IN_ORDER_AT: Final = 46
_ZEROS_AT: Final = _HEAD.size - 4  # the last four bytes of the head say nothing
_VECTORS: Final = struct.Struct("<QQQ")
_PAIR: Final = struct.Struct("<QQ")
_WORD: Final = struct.Struct("<Q")
_MOST_SUBSCRIPTIONS: Final = 65_536
_HEADER_BYTE: Final = (framing.IDENTITY_BYTES - 1, framing.IDENTITY_BYTES)  # for its page
_log = logger_of("haclient.bookmark_store")


@dataclass(frozen=True, slots=True)
class Slot:
    """The contents of a slot.

    Attributes:
        writes: Rises with each write.
        sub_id: The subscription.
        start: Where it began, in wire form; empty for the start of the log.
        entered_us: When it was entered; 0 when unknown.
        vectors: Publisher id, resume and applied of each publisher.
        server: The address of the server that it was entered at last.
        caught_up_us: The caught-up time with everything until then discarded.
        in_order: Whether the resume vector is a place in the order of that server.
        generation: How often it was started over.
    """

    writes: int
    sub_id: str
    start: str = ""
    entered_us: int = 0
    vectors: tuple[tuple[int, int, int], ...] = ()
    server: str = ""
    caught_up_us: int = 0
    in_order: bool = False
    generation: int = 1

    def pack(self) -> bytes:
        """The bytes of the slot.

        Raises:
            StoreFull: They are more than a slot has.
        """
        texts = tuple(
            text.encode("utf-8", "surrogateescape")
            for text in (self.sub_id, self.start, self.server)
        )
        length = _HEAD.size + _VECTORS.size * len(self.vectors) + sum(map(len, texts))
        if length > PAGE_BYTES:
            raise StoreFull(
                f"a ring bookmark store has {PAGE_BYTES} bytes for a subscription, and this sub "
                f"id with {len(self.vectors)} publishers takes {length}: use LoggedBookmarkStore"
            )
        head = _HEAD.pack(
            0,
            length,
            self.writes,
            self.entered_us,
            self.caught_up_us,
            self.generation,
            *map(len, texts),
            self.in_order,
            len(self.vectors),
        )
        rest = b"".join((head[4:], *(_VECTORS.pack(*each) for each in self.vectors), *texts))
        return zlib.crc32(rest).to_bytes(4, "little") + rest

    @classmethod
    def unpack(cls, page: bytes) -> Slot | None:
        """Read a slot back; None when it was never written, or not wholly."""
        head = _HEAD.unpack_from(page)
        crc, length, writes, entered_us, caught_up_us, generation, *lengths, in_order, count = head
        texts = _HEAD.size + _VECTORS.size * count
        if length > len(page) or texts + sum(lengths) != length or not writes:
            return None
        if zlib.crc32(page[4:length]) != crc:
            return None
        ends = accumulate(lengths, initial=texts)
        sub_id, start, server = (
            page[begin:end].decode("utf-8", "surrogateescape") for begin, end in pairwise(ends)
        )
        return cls(
            writes,
            sub_id,
            start,
            entered_us,
            tuple(_VECTORS.iter_unpack(page[_HEAD.size : texts])),
            server,
            caught_up_us,
            bool(in_order),
            generation,
        )


class WriteCount:
    """Counts the slot writes of a store."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0


class RingJournal(StoreNotes):
    """Stores a tracker's two vectors whenever one of them changes.

    Args:
        tracker: The tracker of the subscription.
        thread: The thread that the store belongs to.
        sub_id: The subscription.
        publishers: Those of the store.
        slots: Where the slots are; written in turn.
        count: Counts the writes of the whole store.

    Attributes:
        writes: How often a slot of this subscription was written.
    """

    def __init__(
        self,
        tracker: SubscriptionTracker,
        thread: ThreadBinding,
        sub_id: str,
        publishers: Publishers,
        slots: tuple[memoryview, memoryview],
        count: WriteCount,
    ) -> None:
        super().__init__(tracker, thread)
        self._write_count = count
        self._sub_id = sub_id
        self._publishers = publishers
        self._slots = slots
        self._unusable = ""
        self._has_moved = False
        self.writes = 0
        self._chunk: Chunk | None = None  # what `_applied` was computed from, and how much of it
        self._count = 0
        self._applied: dict[int, int] = {}
        self._image = bytearray()  # the last slot
        self._places: dict[int, int] = {}  # where a publisher's vectors are in it

    @override
    def discard_function(self, elsewhere: Discard) -> Discard:
        tracker, thread = self.tracker, self.thread
        try_discard, save_moved = tracker.try_discard, self._save_moved

        def discard(number: int) -> None:
            if get_ident() != thread.ident:
                elsewhere(number)
                return
            low = tracker.low_watermark
            if try_discard(number) and tracker.low_watermark != low:
                save_moved()

        return discard

    @contextlib.contextmanager
    def _saving(self) -> Generator[None]:
        self._has_moved = False
        yield
        if self._has_moved:
            self.save()

    @override
    def moving(self) -> AbstractContextManager[object]:
        return self._saving()

    @override
    def note(self, kind: RecordKind, value: int = 1, publisher: int = 0) -> None:
        # A caught-up time means something to the next process only if nothing before it is open.
        self._has_moved = self._has_moved or kind is not RecordKind.CAUGHT_UP

    @override
    def note_server(self, server: str, *, is_progress: bool) -> None:
        self._has_moved = True

    def release_slots(self, why: str) -> None:
        """Unmap the slots: the store is closed, or used by a fork.

        Args:
            why: The message of the `UsageError` that any later call raises.
        """
        self._unusable = why
        for slot in self._slots:
            slot.release()

    def restore(self, slot: Slot) -> None:
        """Continue from the state of an earlier process.

        Args:
            slot: The newest state that it has written.
        """
        self.writes = slot.writes
        tracker = self.tracker
        tracker.generation = slot.generation
        if slot.start:
            tracker.start.set(slot.start)
        tracker.start.entered_us = slot.entered_us
        finished, waiting = tracker.finished, dict[int, int]()
        for publisher_id, resume, applied in slot.vectors:
            publisher = self._publishers.index(publisher_id)
            tracker.seen[publisher] = applied
            if resume:
                finished.recover({publisher: resume})
            if applied > resume:
                waiting[publisher] = applied
        if waiting:  # in any order: all before each of them is discarded
            numbers = range(tracker.next_number, tracker.next_number + len(waiting))
            tracker.low_watermark = tracker.next_number = numbers[-1] + 1
            finished.acked = True
            finished.take(Chunk(numbers, MIXED, [*waiting.values()], [*waiting]))
        before = {} if slot.in_order else {each: applied for each, _, applied in slot.vectors}
        tracker.set_server_order(
            ServerOrder(slot.server, before, slot.caught_up_us, slot.caught_up_us)
        )
        self._image = bytearray(slot.pack())

    def save(self) -> None:
        """Write the next slot from scratch.

        Raises:
            StoreFull: There are too many publishers for one slot.
        """
        self.tracker.apply_pending_ack()
        self._advance()
        applied, resume, ids = self._applied, self._resume(), self._publishers.ids
        tracker = self.tracker
        slot = Slot(
            self.writes,
            self._sub_id,
            ",".join(map(str, tracker.start.items)),
            tracker.start.entered_us,
            tuple((ids[p], resume.get(p, 0), sequence) for p, sequence in applied.items()),
            tracker.server_order.server,
            tracker.server_order.discarded_until_us,
            not tracker.server_order.before,
            tracker.generation,
        )
        self._image = bytearray(slot.pack())
        self._places = {p: _HEAD.size + _VECTORS.size * at + 8 for at, p in enumerate(applied)}
        self._write()

    def _save_moved(self) -> None:
        """The same where only vectors have moved: change the image of the last slot."""
        tracker, finished = self.tracker, self.tracker.finished
        if finished.pending_ack and tracker.apply_pending_ack():
            self._chunk = None  # its position may be of any publisher: start from scratch
            self.save()
            return
        moved = self._advance()
        applied, image = self._applied, self._image
        resume, front = applied, None
        if finished.acked or finished.waiting:  # what this discard has finished is in the chunk
            resume = finished.recovered
            front = finished.advance_front(self._chunk, self._count)
        for publisher in moved:
            at = self._places.get(publisher)
            if at is None:
                self.save()
                return
            reached = resume.get(publisher, 0)
            if front:
                reached = max(reached, front.get(publisher, 0))
            _PAIR.pack_into(image, at, reached, applied[publisher])
        self._write()

    def _write(self) -> None:
        if self._unusable:
            raise UsageError(self._unusable)
        image = self._image
        server_order = self.tracker.server_order
        _WORD.pack_into(image, _CAUGHT_UP_AT, self.tracker.update_discarded_until())
        if server_order.before and server_order.orders(self._named()):
            server_order.before = {}  # and it stays valid until it is subscribed on another server
            image[_IN_ORDER_AT] = True
        self.writes = writes = self.writes + 1
        _WORD.pack_into(image, 8, writes)
        image[:4] = zlib.crc32(memoryview(image)[4:]).to_bytes(4, "little")
        self._slots[writes & 1][: len(image)] = image
        self._write_count.total += 1

    def _resume(self) -> dict[int, int]:
        finished = self.tracker.finished
        if finished.acked or finished.waiting:
            return finished.with_part(*self.tracker.front())  # as adapters are told
        return self._applied

    def _named(self) -> dict[int, int]:
        return {self._publishers.ids[each]: at for each, at in self._resume().items()}

    def _advance(self) -> Iterable[int]:
        """Bring `_applied` up to the low watermark; the publishers for which it may have moved."""
        chunk, count = self.tracker.front()
        known = self._count
        if chunk is not self._chunk or chunk is None or count < known:
            self._chunk, known = chunk, 0
            self._applied = dict(self.tracker.finished.applied)
        self._count = count
        if chunk is None or count == known:
            return self._applied
        if chunk.publisher >= 0:
            self._applied[chunk.publisher] = chunk.sequences[count - 1]
            return (chunk.publisher,) if known else self._applied
        part = chunk.publishers[known:count]
        self._applied.update(zip(part, chunk.sequences[known:count], strict=True))
        return part if known else self._applied


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
    return max(filter(None, slots), key=lambda slot: slot.writes, default=None)


class RingBookmarkStore(BookmarkFileStore):
    """Keeps the recovery point of each subscription in a file that never grows.

    Args:
        path: The file; created with its directory when it is missing.
        subscriptions: How many subscriptions it has room for; the file takes 8 KiB for each.
        adapter: Keeps a copy of the recovery points somewhere else.
        watch: Warns of messages that stay undiscarded.
        durability: What the client waits for, as in `FilePublishStore`.
        disk: The file system; simulations pass their own.

    Raises:
        StoreLocked: Another process has the store open.
        StoreCorrupt: The file does not match its checksums.
        UsageError: There is no such durability, or the number of subscriptions is invalid.
    """

    _survival = Survival.VECTORS

    def __init__(  # keyword-only settings, each with a default
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
        self._writes = WriteCount()
        self._synced = 0
        self._used: set[int] = set()  # a loss of power may have taken one in between
        self._name_synced = False  # a killed process may have made it, and not have come so far
        # An earlier process may have failed in a sync, too.
        self._durable = DurableFile(self._owner.file, rewrite_before_fsync=True)
        try:
            self._open(subscriptions)
        except BaseException:  # no store is made, so nothing else would release the lock
            self._owner.close()
            raise
        self._disk.on_fork(self, RingBookmarkStore._forked)

    def _forked(self) -> None:
        """We are a forked child, and the file is the parent's."""
        self._release_slots("the store is used by its fork")

    def _release_slots(self, why: str) -> None:
        for handle in self._subscriptions.values():
            cast("RingJournal", handle.journal).release_slots(f"{self._path}: {why}; open it again")

    def _open(self, subscriptions: int) -> None:
        file = self._owner.file
        header = file.pread(PAGE_BYTES, 0)
        identity = framing.read_identity(header, magic=RING_MAGIC, path=str(self._path))
        if identity is None:
            size = PAGE_BYTES * (1 + 2 * subscriptions)
        else:
            size = identity.file_bytes
            self._owner.client_name = framing.read_owner(header, path=str(self._path))
            if file.size() < size:
                raise StoreCorrupt(self._path, file.size(), "the file was cut off")
        file.allocate(size)
        self._region = file.map(0, size)
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
                self._journal(slot.sub_id, index).restore(slot)

    def _journal(self, sub_id: str, index: int) -> RingJournal:
        at = PAGE_BYTES * (1 + 2 * index)
        slots = self._pages[at : at + PAGE_BYTES], self._pages[at + PAGE_BYTES :][:PAGE_BYTES]
        tracker = SubscriptionTracker(self._publishers)
        journal = RingJournal(tracker, self._thread, sub_id, self._publishers, slots, self._writes)
        self._subscriptions[sub_id] = SubscriptionHandle(journal)
        self._used.add(index)
        return journal

    @override
    def _write_owner(self, client_name: str) -> None:
        framing.write_owner(self._pages[:PAGE_BYTES], client_name)

    @override
    def _new_subscription(self, sub_id: str) -> SubscriptionHandle:
        self._owner.check_usable()
        index = next((at for at in range(self.capacity) if at not in self._used), None)
        if index is None:
            raise StoreFull(
                f"{self._path}: made for {self.capacity} subscriptions, and {sub_id!r} is one "
                "more: make a new store with subscriptions="
            )
        journal = self._journal(sub_id, index)
        try:
            journal.save()
            journal.save()  # now one of the two slots is whole at any time
        except StoreFull:  # the subscription was not entered: its slots may be used again
            del self._subscriptions[sub_id]
            self._used.remove(index)
            raise
        return self._subscriptions[sub_id]

    @property
    @override
    def needs_sync(self) -> bool:
        return self._writes.total != self._synced

    @override
    def sync(self) -> None:
        """Write everything through to the disk; may run in a thread of its own.

        Raises:
            StoreError: The disk reports an error.
        """
        self._owner.check_usable()
        written = self._writes.total  # what is written meanwhile waits for the next sync
        zeros = range(PAGE_BYTES + _ZEROS_AT, self._owner.file.size(), PAGE_BYTES)
        self._durable.sync(_HEADER_BYTE, *((at, at + 1) for at in zeros))
        if not self._name_synced:
            self._disk.fsync_dir(self._file_path.parent)
            self._name_synced = True
        self._synced = written

    @override
    def prune(self) -> None:
        """The file never grows."""

    @override
    def close(self) -> None:
        """Sync, unmap and unlock; twice is the same as once."""
        if self._owner.is_closed:
            return
        try:
            self.sync()
        finally:  # after a disk failure another process has to be able to open the store
            self._release_slots("the store is closed")
            self._region.close()
            self._owner.close()

"""A bookmark store of a fixed size: two vectors for each publisher, in a small file.

`resume` is the recovery point. `applied` is the position up to which everything was discarded: with
persisted acks it runs ahead of the recovery point, and the messages in between are redelivered and
filtered. Out-of-order discards after `applied` are known in this process only, so those messages
are redelivered after a restart: the store suits programs that discard in order, and is safe for
all.

**Slots.** Each subscription has two slots of one page each, written alternately whenever a vector
changes. A slot carries a count of writes and a checksum over everything in it. So a process that is
killed in the middle of a write leaves the previous slot intact, and the newest whole slot is the
state. A slot of up to 512 bytes (about 15 publishers) lies in one sector.

A subscription of more than 128 publishers gets further pairs of slots behind the others, one for
each 128, and the file grows. Each pair is written for itself, and each slot is whole: it has the
head of the subscription as it was then, and the vectors of its own publishers. Any mixture of older
and newer slots is a safe state, as every position in it was a recovery point. The newest slot says
the rest. The list is a place in a server's order only if all slots say so. See `ring_slots`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from threading import get_ident
from typing import Final, cast

from typing_extensions import override

from haclient_stores import header_page
from haclient_stores.adapters.recovery_point import RecoveryPointAdapter
from haclient_stores.bookmark_stores.records import RecordKind
from haclient_stores.bookmark_stores.ring_slots import (
    CAUGHT_UP_AT,
    IN_ORDER_AT,
    PAIR,
    PAIR_BYTES,
    VECTORS,
    WORD,
    ZEROS_AT,
    Page,
    Slot,
    Slots,
    check_length,
    merged,
    pair_at,
    slots_in,
)
from haclient_stores.bookmark_stores.subscription import StoreNotes, SubscriptionHandle
from haclient_stores.bookmark_stores.tracked_store import BookmarkFileStore
from haclient_stores.bookmark_stores.undiscarded_watch import UndiscardedWatch
from haclient_stores.checks import check_count
from haclient_stores.disk.durable_file import Durability, DurableFile
from haclient_stores.disk.files import PAGE_BYTES, Disk, File, Region
from haclient_stores.disk.threads import ThreadBinding
from haclient_stores.errors import StoreCorrupt, StoreError, StoreFull, UsageError
from haclient_stores.interfaces import Discard
from haclient_stores.tools.explain import Survival
from haclient_stores.tracker.entries import MIXED, Chunk
from haclient_stores.tracker.finished import Finished
from haclient_stores.tracker.server_order import ServerOrder
from haclient_stores.tracker.tracker import SubscriptionTracker

__all__ = ["MOST_PUBLISHERS", "RING_MAGIC", "RingBookmarkStore", "RingNotes", "WriteCount"]

MOST_PUBLISHERS: Final = 16_384
"""The most publishers of a subscription in a ring store, which take 1 MiB."""

RING_MAGIC: Final = b"HABMKRNG"
_VERSION: Final = 2
_ONE_PAIR_VERSION: Final = 1  # each subscription had one pair of slots
_MOST_SUBSCRIPTIONS: Final = 65_536
_TOGETHER: Final = 128  # publishers in one slot, which leaves 968 bytes for the texts
_HEADER_BYTE: Final = (header_page.IDENTITY_BYTES - 1, header_page.IDENTITY_BYTES)  # for its page


class WriteCount:
    """Counts the slot writes of a store."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0


class RingNotes(StoreNotes):
    """Stores a tracker's two vectors whenever one of them changes.

    Args:
        tracker: The tracker of the subscription.
        thread: The thread that the store belongs to.
        sub_id: The subscription.
        count: Counts the writes of the whole store.
        take_slots: Returns an unused pair of slots for the subscription, the so manieth that it
            has; from 0 on.

    Attributes:
        writes: Rises with each slot of this subscription that is written.
    """

    def __init__(
        self,
        tracker: SubscriptionTracker,
        thread: ThreadBinding,
        sub_id: str,
        count: WriteCount,
        take_slots: Callable[[str, int], Slots],
    ) -> None:
        super().__init__(tracker, thread)
        self._write_count = count
        self._sub_id = sub_id
        self._publishers = tracker.publishers
        self._pages: list[Page] = []
        self._take_slots = take_slots
        self._unusable = ""
        self._has_moved = self._has_acks = False
        self._is_purged = False
        self._is_unsaved = False  # the last discard or ack could not be written
        self.writes = 0
        self._finished: Finished | None = None  # what `_applied` was computed from
        self._chunk: Chunk | None = None  # the oldest one, and how much of it
        self._count = 0
        self._applied: dict[int, int] = {}
        self._head = b""  # a slot without publishers
        self._places: dict[int, tuple[Page, int]] = {}  # where a publisher's vectors are
        self._filled = 0  # so many pages are full

    @override
    def discard_function(self, elsewhere: Discard) -> Discard:
        tracker, thread = self.tracker, self.thread
        try_discard, save_moved = tracker.try_discard, self._save_moved
        save_next = self._save_next

        def discard(number: int) -> None:
            if get_ident() != thread.ident:
                elsewhere(number)
                return
            low = tracker.low_watermark
            if number == low != tracker.slow_path_at and not self._is_unsaved:
                tracker.low_watermark = number + 1  # `tracker.discard`, written out
                if not save_next():
                    save_moved()
            elif (try_discard(number) and tracker.low_watermark != low) or self._is_unsaved:
                save_moved()

        return discard

    @contextlib.contextmanager
    def _saving(self) -> Generator[None]:
        self._has_moved = self._has_acks = False
        yield
        if self._has_moved:
            self.save()
        elif self._has_acks and not self._is_purged:
            self._save_moved(has_acks=True)

    @override
    def moving(self) -> AbstractContextManager[object]:
        return self._saving()

    @override
    def note(self, kind: RecordKind, value: int = 1, publisher: int = 0) -> None:
        if kind in {RecordKind.PERSISTED, RecordKind.PERSISTED_WHILE_PAUSED}:
            self._has_acks = True
        # A caught-up time means something to the next process only if nothing before it is open.
        elif kind is not RecordKind.CAUGHT_UP:
            self._has_moved = True
            self._is_purged = kind is RecordKind.PURGED

    @override
    def note_server(self, server: str, *, is_progress: bool) -> None:
        self._has_moved = True

    def release_slots(self, why: str) -> None:
        """Unmap the slots: the store is closed, or used by a fork.

        Args:
            why: The message of the `UsageError` that any later call raises.
        """
        self._unusable = why
        for page in self._pages:
            for slot in page.slots:
                slot.release()

    @property
    def needs_no_slots(self) -> bool:
        """Whether it was purged, and is not in use: it takes others if it is used again."""
        return self._is_purged and self.tracker.is_unknown and bool(self._pages)

    @property
    def has_more_slots(self) -> bool:
        """Whether it has more than one pair."""
        return len(self._pages) > 1

    def give_slots(self) -> list[Slots]:
        """Do without slots; return those that it had."""
        pages, self._pages = self._pages, []
        return [page.slots for page in pages]

    def restore(self, slot: Slot, *pairs: tuple[Slot, Slots]) -> None:
        """Continue from the state of an earlier process.

        Args:
            slot: That state.
            pairs: The newest whole slot of each pair, and the pair; none where others are to be
                written.
        """
        self.writes = slot.writes
        for each, slots in pairs:
            page = Page(slots, each.writes)
            self._pages.append(page)
            if each.generation == slot.generation:
                indexes = (self._publishers.index(publisher) for publisher, _, _ in each.vectors)
                self._places |= dict.fromkeys(indexes, (page, 0))  # `save` finds the offset
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

    def save(self) -> None:
        """Write the next slots from scratch.

        Raises:
            StoreFull: There are too many publishers, or the texts are too long for a slot.
        """
        pages = () if self._is_unsaved else self._pages[1:]  # not the first
        before = {page: bytes(page.used[CAUGHT_UP_AT:]) for page in pages}
        self._is_unsaved = True  # until it is written: there may be no room
        self._build()
        self._write(
            [each for each in self._pages if bytes(each.used[CAUGHT_UP_AT:]) != before.get(each)]
        )
        self._is_unsaved = False

    def _build(self) -> None:
        self.tracker.apply_pending_ack()
        self._advance()
        applied, resume, ids = self._applied, self._resume(), self._publishers.ids
        tracker = self.tracker
        slot = Slot(
            self.writes,
            self._sub_id,
            ",".join(map(str, tracker.start.items)),
            tracker.start.entered_us,
            (),
            tracker.server_order.server,
            tracker.server_order.discarded_until_us,
            not tracker.server_order.before,
            0 if self._is_purged and tracker.is_unknown else tracker.generation,
        )
        self._check_room(len(applied))
        head = slot.pack()
        check_length(len(head) + VECTORS.size * min(len(applied), _TOGETHER))
        self._head = head
        if not self._pages:
            self._pages.append(Page(self._take_slots(self._sub_id, 0)))
        for page in self._pages:
            page.start(head)
        # Each stays on its page: on a disk that has only some of them it would be on none.
        homes = {each: page for each, (page, _) in self._places.items() if each in applied}
        self._places = {}
        self._filled = 0
        for each in homes | dict.fromkeys(applied.keys() - homes.keys()):
            self._add(each, (ids[each], resume.get(each, 0), applied[each]), homes.get(each))

    def _check_room(self, publishers: int) -> None:
        if publishers > MOST_PUBLISHERS:
            raise StoreFull(
                f"a ring bookmark store takes {MOST_PUBLISHERS} publishers of a subscription, and "
                f"{self._sub_id!r} has one more: use a LoggedBookmarkStore, which goes on where "
                "this one is by seed(store.recovery_points())"
            )

    def _add(self, publisher: int, vectors: tuple[int, int, int], page: Page | None = None) -> Page:
        self._check_room(len(self._places) + 1)
        if page is None or page.count >= _TOGETHER:
            page = self._page_with_room()
        self._places[publisher] = page, page.add(vectors)
        return page

    def _page_with_room(self) -> Page:
        while self._filled < len(self._pages):
            if self._pages[self._filled].count < _TOGETHER:
                return self._pages[self._filled]
            self._filled += 1
        page = Page(self._take_slots(self._sub_id, len(self._pages)))
        page.start(self._head)
        self._pages.append(page)
        return page

    def _save_moved(self, *, has_acks: bool = False) -> None:
        """The same where only vectors have moved: change the images of the last slots."""
        finished = self.tracker.finished
        if finished.pending_ack:
            self.tracker.apply_pending_ack()
        if self._is_unsaved or self._is_purged or not self._pages or not self._pages[0].used:
            self._is_purged = False
            self.save()
            return
        self._is_unsaved = True  # see `save`
        moved = self._advance(has_acks=has_acks)
        applied = self._applied
        resume, front = applied, None
        if finished.acked or finished.waiting:  # what this discard has finished is in the chunk
            resume = finished.recovered
            front = finished.advance_front(self._chunk, self._count)
        changed: dict[Page, None] = {}
        for publisher in moved:
            done = applied[publisher]
            reached = done if resume is applied else resume.get(publisher, 0)
            if front:
                reached = max(reached, front.get(publisher, 0))
            place = self._places.get(publisher)
            if place is None:
                page = self._add(publisher, (self._publishers.ids[publisher], reached, done))
            else:
                page, at = place
                PAIR.pack_into(page.image, at, reached, done)
            changed[page] = None
        self._write(changed)
        self._is_unsaved = False

    def _save_next(self) -> bool:
        """The same where the message after the last saved one was discarded, as most are.

        Returns:
            Whether this was so; if not, nothing has changed.
        """
        tracker, chunk, count = self.tracker, self._chunk, self._count
        finished = tracker.finished
        if (
            chunk is None
            or chunk is not tracker.chunks[0]
            or chunk.numbers[count] != tracker.low_watermark - 1
            or finished is not self._finished
            or finished.changed
            or finished.taken
            or finished.pending_ack
            or self._is_purged
        ):
            return False
        publisher = chunk.publisher if chunk.publisher >= 0 else chunk.publishers[count]
        self._is_unsaved = True  # see `save`
        reached = self._applied[publisher] = sequence = chunk.sequences[count]
        self._count = count + 1
        if finished.waiting:  # it waits for its ack behind those
            reached = finished.recovered.get(publisher, 0)
        elif finished.acked:
            front = finished.advance_front(chunk, count + 1)
            reached = max(finished.recovered.get(publisher, 0), front.get(publisher, 0))
        place = self._places.get(publisher)
        if place is None:
            page = self._add(publisher, (self._publishers.ids[publisher], reached, sequence))
        else:
            page, at = place
            PAIR.pack_into(page.image, at, reached, sequence)
        self._write((page,))
        self._is_unsaved = False
        return True

    def _write(self, pages: Iterable[Page]) -> None:
        if self._unusable:
            raise UsageError(self._unusable)
        server_order = self.tracker.server_order
        if server_order.caught_up_us != server_order.discarded_until_us:
            self.tracker.update_discarded_until()
        until_us = server_order.discarded_until_us
        if server_order.before and server_order.orders(self._named()):
            server_order.before = {}  # and it stays valid until it is subscribed on another server
            pages = self._pages
            for page in pages:
                page.image[IN_ORDER_AT] = True
        for page in pages:
            WORD.pack_into(page.image, CAUGHT_UP_AT, until_us)
            self.writes = page.write(self.writes)
            self._write_count.total += 1

    def _resume(self) -> dict[int, int]:
        finished = self.tracker.finished
        if finished.acked or finished.waiting:
            return finished.with_part(*self.tracker.front())  # as adapters are told
        return self._applied

    def _named(self) -> dict[int, int]:
        return {self._publishers.ids[each]: at for each, at in self._resume().items()}

    def _advance(self, *, has_acks: bool = False) -> Iterable[int]:
        """Bring `_applied` up to the low watermark.

        Args:
            has_acks: Of what was discarded of the oldest chunk more may be finished.

        Returns:
            The publishers of which a vector may have moved.
        """
        finished, applied = self.tracker.finished, self._applied
        chunk, count = self.tracker.front()
        known = 0 if has_acks or chunk is not self._chunk else self._count
        moved: Iterable[int] = ()
        if finished is not self._finished:
            moved = self._applied = applied = dict(finished.applied)
            self._finished, known = finished, 0
            finished.changed, finished.taken = set(), []
        elif finished.changed or finished.taken:
            moved = changed = finished.changed or set()
            for taken in finished.taken or ():  # of the oldest chunk only the rest is new
                changed.update(taken.publishers_from(self._count if taken is self._chunk else 0))
            for each in changed:
                applied[each] = max(applied.get(each, 0), finished.applied.get(each, 0))
            finished.changed, finished.taken = set(), []
        self._chunk, self._count = chunk, count
        if chunk is None or count <= known:
            return moved
        part: Iterable[int] = (chunk.publisher,)
        if chunk.publisher >= 0:
            applied[chunk.publisher] = chunk.sequences[count - 1]
        else:
            part = chunk.publishers[known:count]
            applied.update(zip(part, chunk.sequences[known:count], strict=True))
        return {*moved, *part} if moved else part


class RingBookmarkStore(BookmarkFileStore):
    """Keeps the recovery point of each subscription in a file that hardly ever grows.

    A subscription takes 8 KiB, and for each 128 publishers more the file grows by as much. The most
    are `MOST_PUBLISHERS`, then discards raise `StoreFull`: `seed(ring.recovery_points())` lets a
    `LoggedBookmarkStore` go on in its place.

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
        self._free: list[Slots] = []
        self._spare: list[Slots] = []  # behind those in the header's size, for more publishers
        self._name_synced = False  # a killed process may have made it, and not have come so far
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
        for each in self._all_notes:
            each.release_slots(f"{self._path}: {why}; open it again")
        for slots in (*self._free, *self._spare):
            for slot in slots:
                slot.release()

    def _open(self, subscriptions: int) -> None:
        file = self._owner.file
        header = file.pread(PAGE_BYTES, 0)
        is_old = int.from_bytes(header[8:12], "little") == _ONE_PAIR_VERSION
        identity = header_page.read_identity(
            header,
            magic=RING_MAGIC,
            path=str(self._path),
            version=_ONE_PAIR_VERSION if is_old else _VERSION,
        )
        if identity is None:
            self._create(file, PAGE_BYTES + PAIR_BYTES * subscriptions)
            return
        self._owner.client_name = header_page.read_owner(header, path=str(self._path))
        if file.size() < identity.file_bytes:
            raise StoreCorrupt(self._path, file.size(), "the file was cut off")
        if is_old:
            self._convert(file, identity.file_bytes)
            return
        growth = (file.size() - identity.file_bytes) // PAIR_BYTES * PAIR_BYTES
        self._map(file, identity.file_bytes, identity.file_bytes + growth)
        self._read()

    def _map(self, file: File, size: int, grown_size: int) -> None:
        file.allocate(grown_size)
        self._file = file
        self._regions: list[Region] = [file.map(0, grown_size)]
        self._header = self._regions[0].view
        self.capacity = (size - PAGE_BYTES) // PAIR_BYTES
        # An earlier process may have failed in a sync, too.
        self._durable = DurableFile(file, rewrite_before_fsync=True)

    def _create(self, file: File, size: int) -> None:
        """Make it a new store; slots that a loss of power has left without a header go."""
        self._map(file, size, max(size, file.size()))
        view = self._header
        view[:] = bytes(len(view))
        self._free = [pair_at(view, at) for at in range(PAGE_BYTES, size, PAIR_BYTES)]
        made = header_page.Identity(RING_MAGIC, PAGE_BYTES, size, version=_VERSION)
        header_page.write_identity(view[:PAGE_BYTES], made, self._disk.boot_id())

    def _read(self) -> None:
        view = self._header
        more_at = PAGE_BYTES + PAIR_BYTES * self.capacity
        found: dict[str, dict[int, Slot]] = {}
        unused: list[int] = []
        for at, slot in slots_in(view, self._path):
            if slot is None:
                unused.append(at)
            else:
                found.setdefault(slot.sub_id, {})[at] = slot
        for sub_id, parts in found.items():
            state = merged(list(parts.values()))
            # A loss of power may leave further pairs of a subscription that was never synced.
            if not state.generation or min(parts) >= more_at:
                unused += parts
            else:
                pairs = [(slot, pair_at(view, at)) for at, slot in parts.items()]
                self._new_notes(sub_id).restore(state, *pairs)
        for at in sorted(unused):
            (self._free if at < more_at else self._spare).append(pair_at(view, at))

    def _convert(self, old: File, size: int) -> None:
        """Write a file of version 1 anew, and let it take the place of the old one."""
        slots = [slot for _, slot in slots_in(memoryview(old.pread(size, 0)), self._path) if slot]
        target = self._file_path.with_name(self._file_path.name + ".new")
        file = self._disk.create_new(target, locked=True)  # a process may have been killed here
        try:
            access = old.access()
            if access is not None:
                file.set_access(access)
            self._create(file, size)
            if self._owner.client_name:
                self._write_owner(self._owner.client_name)
            for slot in slots:
                notes = self._new_notes(slot.sub_id)
                notes.restore(slot)
                notes.save()
                notes.save()
            file.fsync()
            self._disk.rename(target, self._file_path)
            self._disk.fsync_dir(self._file_path.parent)
        except StoreError:
            file.close()
            raise
        self._owner.replace_file(file).close()

    def _take_slots(self, sub_id: str, number: int) -> Slots:
        """An unused pair for a subscription that has so many.

        Raises:
            StoreFull: The store, or the disk, is full.
        """
        if not number and not self._free:
            self._reclaim()
        if not number and not self._free:
            raise StoreFull(
                f"{self._path}: made for {self.capacity} subscriptions, and {sub_id!r} is one "
                "more: purge one, or make a new store with subscriptions="
            )
        if number and not self._spare:
            at = self._file.size()
            self._file.allocate(at + PAIR_BYTES)
            region = self._file.map(at, PAIR_BYTES)
            self._regions.append(region)
            self._spare.append(pair_at(region.view, 0))
        slots = (self._spare if number else self._free).pop(0)
        for slot in slots:
            slot[:] = bytes(PAGE_BYTES)  # one that was torn is not to be the second torn one
        return slots

    def _reclaim(self) -> None:
        """Take back the slots of purged subscriptions."""
        purged = [each for each in self._all_notes if each.needs_no_slots]
        if purged:
            self.sync()  # else a loss of power may leave what they were
        for each in purged:
            first, *others = each.give_slots()
            self._free.append(first)
            self._spare += others

    @property
    def _all_notes(self) -> list[RingNotes]:
        return [cast("RingNotes", each.notes) for each in self._subscriptions.values()]

    def _new_notes(self, sub_id: str) -> RingNotes:
        tracker = SubscriptionTracker(self._publishers)
        notes = RingNotes(tracker, self._thread, sub_id, self._writes, self._take_slots)
        self._subscriptions[sub_id] = SubscriptionHandle(notes)
        return notes

    @override
    def purge(self, sub_id: str | None = None) -> None:
        super().purge(sub_id)
        if any(each.needs_no_slots and each.has_more_slots for each in self._all_notes):
            self.sync()  # else a loss of power may leave half of it

    @override
    def _write_owner(self, client_name: str) -> None:
        header_page.write_owner(self._header[:PAGE_BYTES], client_name)

    @override
    def _new_subscription(self, sub_id: str) -> SubscriptionHandle:
        self._owner.check_usable()
        notes = self._new_notes(sub_id)
        try:
            notes.save()
            notes.save()  # now one of the two slots is whole at any time
        except StoreFull:  # the subscription was not entered
            del self._subscriptions[sub_id]
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
        zeros = range(PAGE_BYTES + ZEROS_AT, self._owner.file.size(), PAGE_BYTES)
        self._durable.sync(_HEADER_BYTE, *((at, at + 1) for at in zeros))
        if not self._name_synced:
            self._disk.fsync_dir(self._file_path.parent)
            self._name_synced = True
        self._synced = written

    @override
    def prune(self) -> None:
        """Nothing in the file is ever dead."""

    @override
    def close(self) -> None:
        """Sync, unmap and unlock; twice is the same as once."""
        if self._owner.is_closed:
            return
        try:
            self.sync()
        finally:  # after a disk failure another process has to be able to open the store
            self._release_slots("the store is closed")
            for region in self._regions:
                region.close()
            self._owner.close()

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
the rest. The list is a place in a server's order only if all slots say so.

Slot, little-endian, 4096 bytes:

======  =====  ==============================================================
offset  bytes  meaning
======  =====  ==============================================================
0       4      crc32 of the bytes from 4 to the end of the text
4       4      bytes of the slot in use, up to the end of the text
8       8      how often the subscription was written; the highest is the newest
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
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from threading import get_ident
from typing import Final, TypeAlias, cast

from typing_extensions import override

from haclient_stores import framing
from haclient_stores.adapters.recovery_point import RecoveryPointAdapter
from haclient_stores.bookmark_stores.records import RecordKind
from haclient_stores.bookmark_stores.subscription import StoreNotes, SubscriptionHandle
from haclient_stores.bookmark_stores.tracked_store import BookmarkFileStore
from haclient_stores.bookmark_stores.undiscarded_watch import UndiscardedWatch
from haclient_stores.checks import check_count
from haclient_stores.disk.durable_file import Durability, DurableFile
from haclient_stores.disk.files import PAGE_BYTES, Disk, File, Region
from haclient_stores.disk.threads import ThreadBinding
from haclient_stores.errors import StoreCorrupt, StoreError, StoreFull, UsageError
from haclient_stores.interfaces import Discard
from haclient_stores.logs import logger_of
from haclient_stores.tools.explain import Survival
from haclient_stores.tracker.entries import MIXED, Chunk
from haclient_stores.tracker.server_order import ServerOrder, log_name
from haclient_stores.tracker.tracker import SubscriptionTracker

__all__ = [
    "MOST_PUBLISHERS",
    "RING_MAGIC",
    "RingBookmarkStore",
    "RingJournal",
    "Slot",
    "WriteCount",
    "newest_slot",
]

MOST_PUBLISHERS: Final = 16_384
"""The most publishers of a subscription in a ring store, which take 1 MiB."""

RING_MAGIC: Final = b"HABMKRNG"
_VERSION: Final = 2
_ONE_PAIR_VERSION: Final = 1  # each subscription had one pair of slots
_HEAD: Final = struct.Struct("<IIQQQQHHHHI4x")
_LENGTH_AT: Final = 4
_WRITES_AT: Final = 8
_CAUGHT_UP_AT: Final = 24
_IN_ORDER_AT: Final = 46
_COUNT_AT: Final = 48
_ZEROS_AT: Final = _HEAD.size - 4  # the last four bytes of the head say nothing
_VECTORS: Final = struct.Struct("<QQQ")
_PAIR: Final = struct.Struct("<QQ")
_WORD: Final = struct.Struct("<Q")
_HALF: Final = struct.Struct("<I")
_MOST_SUBSCRIPTIONS: Final = 65_536
_TOGETHER: Final = 128  # publishers in one slot, which leaves 968 bytes for the texts
_PAIR_BYTES: Final = 2 * PAGE_BYTES
_HEADER_BYTE: Final = (framing.IDENTITY_BYTES - 1, framing.IDENTITY_BYTES)  # for its page
_log = logger_of("haclient.bookmark_store")

Slots: TypeAlias = tuple[memoryview, memoryview]


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
        _check_length(length)
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


def _check_length(length: int) -> None:
    if length > PAGE_BYTES:
        raise StoreFull(
            f"a ring bookmark store has {PAGE_BYTES} bytes for a slot, and the sub id, the start "
            f"and the server of this subscription make it {length}: use LoggedBookmarkStore"
        )


class WriteCount:
    """Counts the slot writes of a store."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0


class _Page:
    """The vectors of up to 128 publishers: a pair of slots, and what the next one holds."""

    __slots__ = ("count", "image", "slots", "writes")

    def __init__(self, slots: Slots, writes: int = 0) -> None:
        self.slots = slots
        self.writes = writes  # of the newer slot, which is the second one when it is odd
        self.image = bytearray()
        self.count = 0

    def start(self, head: bytes) -> None:
        """Begin the next slot without publishers."""
        self.image = bytearray(head)
        self.count = 0

    def add(self, vectors: tuple[int, int, int]) -> int:
        """Add a publisher; return the offset of its resume and applied."""
        image = self.image
        at = _HEAD.size + _VECTORS.size * self.count
        _check_length(len(image) + _VECTORS.size)
        image[at:at] = _VECTORS.pack(*vectors)
        self.count += 1
        _HALF.pack_into(image, _COUNT_AT, self.count)
        _HALF.pack_into(image, _LENGTH_AT, len(image))
        return at + _WORD.size

    def write(self, above: int) -> int:
        """Write the older slot; return its count of writes, which is above this one."""
        writes = above + 1 + (above + self.writes) % 2  # the other slot's turn
        image = self.image
        _WORD.pack_into(image, _WRITES_AT, writes)
        image[:4] = zlib.crc32(memoryview(image)[4:]).to_bytes(4, "little")
        self.slots[writes & 1][: len(image)] = image
        self.writes = writes
        return writes


class RingJournal(StoreNotes):
    """Stores a tracker's two vectors whenever one of them changes.

    Args:
        tracker: The tracker of the subscription.
        thread: The thread that the store belongs to.
        sub_id: The subscription.
        slots: Where the slots are; written in turn.
        count: Counts the writes of the whole store.
        more_slots: Returns an unused pair of slots, for publishers that the others cannot hold.

    Attributes:
        writes: Rises with each slot of this subscription that is written.
    """

    def __init__(
        self,
        tracker: SubscriptionTracker,
        thread: ThreadBinding,
        sub_id: str,
        slots: Slots,
        count: WriteCount,
        more_slots: Callable[[], Slots],
    ) -> None:
        super().__init__(tracker, thread)
        self._write_count = count
        self._sub_id = sub_id
        self._publishers = tracker.publishers
        self._pages = [_Page(slots)]
        self._more_slots = more_slots
        self._unusable = ""
        self._has_moved = False
        self.writes = 0
        self._chunk: Chunk | None = None  # what `_applied` was computed from, and how much of it
        self._count = 0
        self._applied: dict[int, int] = {}
        self._head = b""  # a slot without publishers
        self._places: dict[int, tuple[_Page, int]] = {}  # where a publisher's vectors are
        self._filled = 0  # so many pages are full

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
        for page in self._pages:
            for slot in page.slots:
                slot.release()

    def restore(self, slot: Slot, *others: tuple[Slot, Slots]) -> None:
        """Continue from the state of an earlier process.

        Args:
            slot: The newest whole one of the first pair.
            others: Those of the other pairs, and where these are.
        """
        self._pages[0].writes = slot.writes
        self._pages += [_Page(slots, other.writes) for other, slots in others]
        found = [slot, *(other for other, _ in others)]
        slot = _merged(found)
        self.writes = slot.writes
        for page, each in zip(self._pages, found, strict=True):
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
        before = {page: page.image[_CAUGHT_UP_AT:] for page in self._pages[1:]}  # not the first
        self._build()
        self._write(
            [each for each in self._pages if each.image[_CAUGHT_UP_AT:] != before.get(each)]
        )

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
            tracker.generation,
        )
        self._check_room(len(applied))
        head = slot.pack()
        _check_length(len(head) + _VECTORS.size * min(len(applied), _TOGETHER))
        self._head = head
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

    def _add(
        self, publisher: int, vectors: tuple[int, int, int], page: _Page | None = None
    ) -> _Page:
        self._check_room(len(self._places) + 1)
        if page is None or page.count >= _TOGETHER:
            page = self._page_with_room()
        self._places[publisher] = page, page.add(vectors)
        return page

    def _page_with_room(self) -> _Page:
        while self._filled < len(self._pages):
            if self._pages[self._filled].count < _TOGETHER:
                return self._pages[self._filled]
            self._filled += 1
        page = _Page(self._more_slots())
        page.start(self._head)
        self._pages.append(page)
        return page

    def _save_moved(self) -> None:
        """The same where only vectors have moved: change the image of the last slot."""
        tracker, finished = self.tracker, self.tracker.finished
        if finished.pending_ack and tracker.apply_pending_ack():
            self._chunk = None  # its position may be of any publisher: start from scratch
            self.save()
            return
        if not self._pages[0].image:
            self.save()
            return
        moved = self._advance()
        applied = self._applied
        resume, front = applied, None
        if finished.acked or finished.waiting:  # what this discard has finished is in the chunk
            resume = finished.recovered
            front = finished.advance_front(self._chunk, self._count)
        changed: dict[_Page, None] = {}
        for publisher in moved:
            reached = resume.get(publisher, 0)
            if front:
                reached = max(reached, front.get(publisher, 0))
            place = self._places.get(publisher)
            if place is None:
                vectors = self._publishers.ids[publisher], reached, applied[publisher]
                changed[self._add(publisher, vectors)] = None
                continue
            page, at = place
            _PAIR.pack_into(page.image, at, reached, applied[publisher])
            changed[page] = None
        self._write(changed)

    def _write(self, pages: Iterable[_Page]) -> None:
        if self._unusable:
            raise UsageError(self._unusable)
        server_order, until_us = self.tracker.server_order, self.tracker.update_discarded_until()
        if server_order.before and server_order.orders(self._named()):
            server_order.before = {}  # and it stays valid until it is subscribed on another server
            pages = self._pages
            for page in pages:
                page.image[_IN_ORDER_AT] = True
        for page in pages:
            _WORD.pack_into(page.image, _CAUGHT_UP_AT, until_us)
            self.writes = page.write(self.writes)
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


def _pair(view: memoryview, at: int) -> Slots:
    return view[at : at + PAGE_BYTES], view[at + PAGE_BYTES : at + _PAIR_BYTES]


def _slots_in(view: memoryview, path: Path) -> Iterator[tuple[int, Slot | None]]:
    """The offset of each pair of slots of a file, and the newer whole one of it."""
    for at in range(PAGE_BYTES, len(view), _PAIR_BYTES):
        yield at, newest_slot(bytes(view[at : at + _PAIR_BYTES]), path=path, offset=at)


def _merged(slots: list[Slot]) -> Slot:
    """The state that the newest slots of all pairs of a subscription make up."""
    newest = max(slots, key=lambda slot: slot.writes)
    vectors: dict[int, tuple[int, int, int]] = {}
    in_order = True
    for slot in slots:
        if slot.generation == newest.generation:  # else it was begun anew since
            vectors |= {each[0]: each for each in slot.vectors}
        same_log = log_name(slot.server) == log_name(newest.server)
        in_order = in_order and slot.in_order and same_log
    return replace(newest, vectors=tuple(vectors.values()), in_order=in_order)


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
        self._free: list[tuple[memoryview, int]] = []  # pairs of slots, each as region and offset
        self._spare: list[tuple[memoryview, int]] = []  # the same behind them, for more publishers
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
        for handle in self._subscriptions.values():
            cast("RingJournal", handle.journal).release_slots(f"{self._path}: {why}; open it again")

    def _open(self, subscriptions: int) -> None:
        file = self._owner.file
        header = file.pread(PAGE_BYTES, 0)
        is_old = header[8:12] == _HALF.pack(_ONE_PAIR_VERSION)
        identity = framing.read_identity(
            header,
            magic=RING_MAGIC,
            path=str(self._path),
            version=_ONE_PAIR_VERSION if is_old else _VERSION,
        )
        if identity is None:
            self._create(file, PAGE_BYTES + _PAIR_BYTES * subscriptions)
            return
        self._owner.client_name = framing.read_owner(header, path=str(self._path))
        if file.size() < identity.file_bytes:
            raise StoreCorrupt(self._path, file.size(), "the file was cut off")
        if is_old:
            self._convert(file, identity.file_bytes)
            return
        growth = (file.size() - identity.file_bytes) // _PAIR_BYTES * _PAIR_BYTES
        self._map(file, identity.file_bytes, identity.file_bytes + growth)
        self._read()

    def _map(self, file: File, size: int, grown_size: int) -> None:
        file.allocate(grown_size)
        self._file = file
        self._regions: list[Region] = [file.map(0, grown_size)]
        self._header = self._regions[0].view
        self.capacity = (size - PAGE_BYTES) // _PAIR_BYTES
        # An earlier process may have failed in a sync, too.
        self._durable = DurableFile(file, rewrite_before_fsync=True)

    def _create(self, file: File, size: int) -> None:
        """Make it a new store; slots that a loss of power has left without a header go."""
        self._map(file, size, max(size, file.size()))
        view = self._header
        view[:] = bytes(len(view))
        self._free = [(view, at) for at in range(PAGE_BYTES, size, _PAIR_BYTES)]
        made = framing.Identity(RING_MAGIC, PAGE_BYTES, size, version=_VERSION)
        framing.write_identity(view[:PAGE_BYTES], made, self._disk.boot_id())

    def _read(self) -> None:
        view = self._header
        found: dict[str, list[tuple[Slot, int]]] = {}
        for at, slot in _slots_in(view, self._path):
            if slot is None:
                (self._free if at < self._more_at else self._spare).append((view, at))
            else:
                found.setdefault(slot.sub_id, []).append((slot, at))
        for sub_id, ((first, first_at), *others) in found.items():
            if first_at >= self._more_at:  # a loss of power has left them of one never synced
                self._spare += [(view, first_at), *((view, at) for _, at in others)]
                continue
            more = [(slot, _pair(view, at)) for slot, at in others]
            self._journal(sub_id, _pair(view, first_at)).restore(first, *more)

    @property
    def _more_at(self) -> int:
        """Where the pairs begin that the file has grown by."""
        return PAGE_BYTES + _PAIR_BYTES * self.capacity

    def _convert(self, old: File, size: int) -> None:
        """Write a file of version 1 anew, and let it take the place of the old one."""
        slots = [slot for _, slot in _slots_in(memoryview(old.pread(size, 0)), self._path) if slot]
        target = self._file_path.with_name(self._file_path.name + ".new")
        self._disk.remove(target)  # of a process that was killed here
        file = self._disk.open_locked(target)
        try:
            access = old.access()
            if access is not None:
                file.set_access(access)
            self._create(file, size)
            if self._owner.client_name:
                self._write_owner(self._owner.client_name)
            for slot in slots:
                journal = self._journal(slot.sub_id, self._taken_from(self._free))
                journal.restore(slot)
                journal.save()
                journal.save()
            file.fsync()
            self._disk.rename(target, self._file_path)
            self._disk.fsync_dir(self._file_path.parent)
        except StoreError:
            file.close()
            raise
        self._owner.replace_file(file).close()

    @staticmethod
    def _taken_from(pairs: list[tuple[memoryview, int]]) -> Slots:
        view, at = pairs.pop(0)
        view[at : at + _PAIR_BYTES] = bytes(_PAIR_BYTES)  # a slot that was torn is not the second
        return _pair(view, at)

    def _more_slots(self) -> Slots:
        """A pair of slots behind the others, for publishers that those have no room for.

        Raises:
            StoreFull: The disk is full.
        """
        if not self._spare:
            at = self._file.size()
            self._file.allocate(at + _PAIR_BYTES)
            region = self._file.map(at, _PAIR_BYTES)
            self._regions.append(region)
            self._spare.append((region.view, 0))
        return self._taken_from(self._spare)

    def _journal(self, sub_id: str, slots: Slots) -> RingJournal:
        journal = RingJournal(
            SubscriptionTracker(self._publishers),
            self._thread,
            sub_id,
            slots,
            self._writes,
            self._more_slots,
        )
        self._subscriptions[sub_id] = SubscriptionHandle(journal)
        return journal

    @override
    def _write_owner(self, client_name: str) -> None:
        framing.write_owner(self._header[:PAGE_BYTES], client_name)

    @override
    def _new_subscription(self, sub_id: str) -> SubscriptionHandle:
        self._owner.check_usable()
        if not self._free:
            raise StoreFull(
                f"{self._path}: made for {self.capacity} subscriptions, and {sub_id!r} is one "
                "more: make a new store with subscriptions="
            )
        pair = self._free[0]
        journal = self._journal(sub_id, self._taken_from(self._free))
        try:
            journal.save()
            journal.save()  # now one of the two slots is whole at any time
        except StoreFull:  # the subscription was not entered: its slots may be used again
            del self._subscriptions[sub_id]
            journal.release_slots("never entered")
            self._free.insert(0, pair)
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

"""The slots of a ring store: what one holds, and where they are in the file.

Slot, little-endian, 4096 bytes:

======  =====  ==============================================================
offset  bytes  meaning
======  =====  ==============================================================
0       4      crc32 of the bytes from 4 to the end of the text
4       4      bytes of the slot in use, up to the end of the text
8       8      how often the subscription was written; the highest is the newest
16      8      when the subscription was entered, microseconds since 1970; or 0
24      8      caught-up time, microseconds since 1970; or 0
32      8      generation: how often the subscription was started over; 0: it was purged
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

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final, TypeAlias

from haclient_stores.disk.files import PAGE_BYTES
from haclient_stores.errors import StoreCorrupt, StoreFull
from haclient_stores.logs import logger_of
from haclient_stores.tracker.server_order import log_name

_HEAD: Final = struct.Struct("<IIQQQQHHHHI4x")
_LENGTH_AT: Final = 4
_WRITES_AT: Final = 8
CAUGHT_UP_AT: Final = 24
IN_ORDER_AT: Final = 46
_COUNT_AT: Final = 48
ZEROS_AT: Final = _HEAD.size - 4  # the last four bytes of the head say nothing
VECTORS: Final = struct.Struct("<QQQ")
PAIR: Final = struct.Struct("<QQ")
WORD: Final = struct.Struct("<Q")
_HALF: Final = struct.Struct("<I")
PAIR_BYTES: Final = 2 * PAGE_BYTES
_log = logger_of("haclient.bookmark_store")

Slots: TypeAlias = tuple[memoryview, memoryview]
"""The two slots of a pair."""


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
        generation: How often it was started over; 0 where it was purged, and its slots are free.
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
        length = _HEAD.size + VECTORS.size * len(self.vectors) + sum(map(len, texts))
        check_length(length)
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
        rest = b"".join((head[4:], *(VECTORS.pack(*each) for each in self.vectors), *texts))
        return zlib.crc32(rest).to_bytes(4, "little") + rest

    @classmethod
    def unpack(cls, page: bytes) -> Slot | None:
        """Read a slot back; None when it was never written, or not wholly."""
        head = _HEAD.unpack_from(page)
        crc, length, writes, entered_us, caught_up_us, generation, *lengths, in_order, count = head
        texts = _HEAD.size + VECTORS.size * count
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
            tuple(VECTORS.iter_unpack(page[_HEAD.size : texts])),
            server,
            caught_up_us,
            bool(in_order),
            generation,
        )


def check_length(length: int) -> None:
    """Check that so many bytes have room in a slot.

    Raises:
        StoreFull: They do not.
    """
    if length > PAGE_BYTES:
        raise StoreFull(
            f"a ring bookmark store has {PAGE_BYTES} bytes for a slot, and the sub id, the start "
            f"and the server of this subscription make it {length}: use LoggedBookmarkStore"
        )


class Page:
    """The vectors of up to 128 publishers: a pair of slots, and what the next one holds.

    Attributes:
        slots: The pair.
        writes: The count of writes in the newer slot, which is the second one when it is odd.
        count: The number of publishers.
        image: A page with the next slot at its front.
        used: That slot, a view of the image; empty before `start`.
    """

    __slots__ = ("_summed", "count", "image", "slots", "used", "writes")

    def __init__(self, slots: Slots, writes: int = 0) -> None:
        self.slots = slots
        self.writes = writes
        self.image = bytearray(PAGE_BYTES)
        self.count = 0
        self._use(0)

    def _use(self, length: int) -> None:
        # Views of what is in use: to slice at each write takes longer than a short checksum.
        self.used = memoryview(self.image)[:length]
        self._summed = self.used[_LENGTH_AT:]

    def start(self, head: bytes) -> None:
        """Begin the next slot without publishers."""
        self.image[: len(head)] = head
        self.count = 0
        self._use(len(head))

    def add(self, vectors: tuple[int, int, int]) -> int:
        """Add a publisher; return the offset of its resume and applied."""
        image, texts = self.image, self.used[_HEAD.size + VECTORS.size * self.count :]
        length = len(self.used) + VECTORS.size
        check_length(length)
        at = length - VECTORS.size - len(texts)
        image[at + VECTORS.size : length] = bytes(texts)
        VECTORS.pack_into(image, at, *vectors)
        self.count += 1
        _HALF.pack_into(image, _COUNT_AT, self.count)
        _HALF.pack_into(image, _LENGTH_AT, length)
        self._use(length)
        return at + WORD.size

    def write(self, above: int) -> int:
        """Write the older slot; return its count of writes, which is above this one."""
        writes = above + 1 + (above + self.writes) % 2  # the other slot's turn
        image = self.image
        WORD.pack_into(image, _WRITES_AT, writes)
        _HALF.pack_into(image, 0, zlib.crc32(self._summed))
        used = self.used
        self.slots[writes & 1][: len(used)] = used
        self.writes = writes
        return writes


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


def pair_at(view: memoryview, at: int) -> Slots:
    """The two slots that begin at an offset."""
    return view[at : at + PAGE_BYTES], view[at + PAGE_BYTES : at + PAIR_BYTES]


def slots_in(view: memoryview, path: Path) -> Iterator[tuple[int, Slot | None]]:
    """The offset of each pair of slots of a file, and the newer whole one of it."""
    for at in range(PAGE_BYTES, len(view), PAIR_BYTES):
        yield at, newest_slot(bytes(view[at : at + PAIR_BYTES]), path=path, offset=at)


def merged(slots: list[Slot]) -> Slot:
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

"""One subscription of a ring store: its tracker, and its vectors written down (`ring_bookmark`)."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from haclient_stores.disk.files import PAGE_BYTES
from haclient_stores.errors import StoreFull, UsageError
from haclient_stores.tracker.entries import MIXED, Chunk
from haclient_stores.tracker.server_order import Standing
from haclient_stores.tracker.tracker import SubscriptionTracker

if TYPE_CHECKING:
    from collections.abc import Iterable

    from haclient_stores.tracker.entries import Publishers

__all__ = ["ZEROS_AT", "RingSubscription", "Slot"]

_HEAD: Final = struct.Struct("<IIQQQHHHHI4x")
_HEARD_AT: Final = 24
_IN_ORDER_AT: Final = 38
ZEROS_AT: Final = _HEAD.size - 4  # the last four bytes of the head say nothing
_VECTORS: Final = struct.Struct("<QQQ")
_PAIR: Final = struct.Struct("<QQ")
_WORD: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Slot:
    """What a slot says.

    Attributes:
        generation: Rises with each write.
        sub_id: The subscription.
        start: Where it began, in wire form; empty for the start of the log.
        entered_us: When it was entered; 0 when nobody knows.
        vectors: Publisher id, resume and applied of each publisher.
        server: The address of the server that it was entered at last.
        heard_us: Up to when servers were heard, with everything until then discarded.
        in_order: Whether the resume vector is a place in the order of that server.
    """

    generation: int
    sub_id: str
    start: str = ""
    entered_us: int = 0
    vectors: tuple[tuple[int, int, int], ...] = ()
    server: str = ""
    heard_us: int = 0
    in_order: bool = False

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
            self.generation,
            self.entered_us,
            self.heard_us,
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
        crc, length, generation, entered_us, heard_us, *lengths, in_order, count = head
        texts = _HEAD.size + _VECTORS.size * count
        if length > len(page) or texts + sum(lengths) != length or not generation:
            return None
        if zlib.crc32(page[4:length]) != crc:
            return None
        ends = accumulate(lengths, initial=texts)
        sub_id, start, server = (
            page[begin:end].decode("utf-8", "surrogateescape") for begin, end in pairwise(ends)
        )
        return cls(
            generation,
            sub_id,
            start,
            entered_us,
            tuple(_VECTORS.iter_unpack(page[_HEAD.size : texts])),
            server,
            heard_us,
            bool(in_order),
        )


class RingSubscription(SubscriptionTracker):
    """A tracker that writes its two vectors down whenever one of them moves.

    Args:
        publishers: Those of the store.
        sub_id: The subscription.
        slots: Where the slots are; written in turn.

    Attributes:
        generation: That of the last slot.
    """

    def __init__(
        self, publishers: Publishers, sub_id: str, slots: tuple[memoryview, memoryview]
    ) -> None:
        super().__init__(publishers)
        self._sub_id = sub_id
        self._slots = slots
        self._unusable = ""
        self.generation = 0
        self._chunk: Chunk | None = None  # what `_applied` was computed from, and how much of it
        self._count = 0
        self._applied: dict[int, int] = {}
        self._image = bytearray()  # the last slot
        self._places: dict[int, int] = {}  # where a publisher's vectors are in it

    def let_go(self, why: str) -> None:
        """Write nothing any more: the store is closed, or used by a fork."""
        self._unusable = why
        for slot in self._slots:
            slot.release()

    def restore(self, slot: Slot) -> None:
        """Continue where an earlier process has got to."""
        self.generation = slot.generation
        if slot.start:
            self.start.set(slot.start)
        self.start.entered_us = slot.entered_us
        finished, waiting = self.finished, dict[int, int]()
        for publisher_id, resume, applied in slot.vectors:
            publisher = self._publishers.index(publisher_id)
            self.seen[publisher] = applied
            if resume:
                finished.recover({publisher: resume})
            if applied > resume:
                waiting[publisher] = applied
        if waiting:  # in any order: all before each of them is discarded
            numbers = range(self.next_number, self.next_number + len(waiting))
            self.head = self.next_number = numbers[-1] + 1
            finished.acked = True
            finished.take(Chunk(numbers, MIXED, [*waiting.values()], [*waiting]))
        before = {} if slot.in_order else {each: applied for each, _, applied in slot.vectors}
        self._standing = Standing(slot.server, before, slot.heard_us, slot.heard_us)
        self._image = bytearray(slot.pack())

    def save(self) -> None:
        """Write the next slot from scratch.

        Raises:
            StoreFull: There are too many publishers for one slot.
        """
        self._advance()
        applied, resume, ids = self._applied, self._resume(), self._publishers.ids
        slot = Slot(
            self.generation,
            self._sub_id,
            ",".join(map(str, self.start.items)),
            self.start.entered_us,
            tuple((ids[p], resume.get(p, 0), sequence) for p, sequence in applied.items()),
            self._standing.server,
            self._standing.settled_us,
            not self._standing.before,
        )
        self._image = bytearray(slot.pack())
        self._places = {p: _HEAD.size + _VECTORS.size * at + 8 for at, p in enumerate(applied)}
        self._write()

    def _save_moved(self) -> None:
        """The same where only vectors have moved: change the image of the last slot."""
        moved = self._advance()
        applied, resume, image = self._applied, self._resume(), self._image
        for publisher in moved:
            at = self._places.get(publisher)
            if at is None:
                self.save()
                return
            _PAIR.pack_into(image, at, resume.get(publisher, 0), applied[publisher])
        self._write()

    def _write(self) -> None:
        if self._unusable:
            raise UsageError(self._unusable)
        image = self._image
        standing = self._standing
        standing.settle(self.oldest_undiscarded, self.next_number)
        _WORD.pack_into(image, _HEARD_AT, standing.settled_us)
        if standing.before and standing.orders(self._named()):
            standing.before = {}  # and so it stays until it is entered at another server
            image[_IN_ORDER_AT] = True
        self.generation = generation = self.generation + 1
        _WORD.pack_into(image, 8, generation)
        image[:4] = zlib.crc32(memoryview(image)[4:]).to_bytes(4, "little")
        self._slots[generation & 1][: len(image)] = image

    def _resume(self) -> dict[int, int]:
        finished = self.finished
        return finished.recovered if finished.acked or finished.waiting else self._applied

    def _named(self) -> dict[int, int]:
        return {self._publishers.ids[each]: at for each, at in self._resume().items()}

    def _advance(self) -> Iterable[int]:
        """Bring `_applied` up to the head; the publishers for which it may have moved."""
        chunk, count = self.front()
        known = self._count
        if chunk is not self._chunk or chunk is None or count < known:
            self._chunk, known = chunk, 0
            self._applied = dict(self.finished.applied)
        self._count = count
        if chunk is None or count == known:
            return self._applied
        if chunk.publisher >= 0:
            self._applied[chunk.publisher] = chunk.sequences[count - 1]
            return (chunk.publisher,) if known else self._applied
        part = chunk.publishers[known:count]
        self._applied.update(zip(part, chunk.sequences[known:count], strict=True))
        return part if known else self._applied

    # -- moves ------------------------------------------------------------------------------------

    @override
    def begin(
        self, *, acked: bool, start: str | None, conflated: bool = False, entered_us: int = 0
    ) -> None:
        super().begin(acked=acked, start=start, conflated=conflated, entered_us=entered_us)
        self.save()

    @override
    def discard(self, number: int) -> None:
        head = self.head
        if self.try_discard(number) and self.head != head:
            self._save_moved()

    @override
    def discard_up_to(self, number: int) -> None:
        super().discard_up_to(number)
        self.save()

    @override
    def persisted(self, bookmark: str) -> None:
        super().persisted(bookmark)
        self.save()

    @override
    def completed(self, bookmark: str) -> None:
        super().completed(bookmark)
        self.save()

    @override
    def entered(self, server: str) -> None:
        super().entered(server)
        self.save()

    @override
    def heard(self, until_us: int) -> None:
        """The next process has to fetch again what is not discarded; only behind it counts this."""
        super().heard(until_us)
        standing = self._standing
        known_us = standing.settled_us
        standing.settle(self.oldest_undiscarded, self.next_number)
        if standing.settled_us != known_us:
            self._write()

    @override
    def seed(self, newest: dict[int, int], standing: Standing) -> None:
        super().seed(newest, standing)
        self.save()

    @override
    def forget(self) -> None:
        super().forget()
        self.save()

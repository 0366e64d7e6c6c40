"""How far a subscription has got: discarded entries, the acks that cover them, the recovery point.

The tracker decides what is discarded. It passes on whole chunks in arrival order, once everything
before them is discarded. Here they become *finished*: at once or, if the subscription requested
persisted acks, when an ack covers them.

An ack `b` covers, by its place, all entries of this link up to the last one of b's publisher with a
sequence up to b's; and on any link all entries of that publisher up to b's sequence. Waiting
entries are kept exactly at first. When many have accumulated (a sync destination is down for
hours), `condense` keeps only the last entry of each publisher in each group. An ack that covers
that entry also covers those before it, so only precision is lost, never safety, and memory stays
bounded. No group has entries of this link and of an earlier one, since different rules hold for the
two.

An ack may become a recovery point of its own; the tracker decides when it may. It is *pending*
until everything that arrived before it is discarded. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable
from copy import copy
from itertools import chain
from typing import Final

from haclient_stores.tracker.entries import Chunk, condensed_groups

_NOTHING: Final[dict[int, int]] = {}
_EXACT: Final = 16_384  # up to this many waiting entries are kept exactly
_GROUPS: Final = 64  # of about equal length, where there are more


class _AckIndex:
    """Finds the place of an ack: the last entry of its publisher up to its sequence, on this link.

    A chunk is indexed once, by the first ack after its arrival, and leaves when an ack of its
    publisher passes it. So an ack costs the same however many chunks are open. Chunks of publishers
    that no ack names stay until `clear`.
    """

    __slots__ = ("_chunks", "_end")

    def __init__(self, link_first: int) -> None:
        self.clear(link_first)

    def clear(self, link_first: int) -> None:
        """Forget all chunks; `link_first` is the first number of this link."""
        # By publisher, oldest first: the publisher's first sequence in a chunk, and the chunk.
        self._chunks = defaultdict[int, deque[tuple[int, Chunk]]](deque)
        self._end = link_first  # chunks that end below it are indexed, or of an earlier link

    def extend(self, newest_first: Iterable[Chunk]) -> None:
        """Index the chunks that arrived since the last call, of all chunks."""
        arrived: list[Chunk] = []
        for chunk in newest_first:
            if chunk.numbers[-1] < self._end:
                break
            arrived.append(chunk)
        for chunk in reversed(arrived):
            for publisher, sequence in chunk.oldest().items():
                self._chunks[publisher].append((sequence, chunk))
        if arrived:
            self._end = arrived[0].numbers[-1] + 1

    def place(self, publisher: int, sequence: int) -> int:
        """The number of that entry; 0 when there is none. Sequences of one publisher rise."""
        chunks = self._chunks.get(publisher)
        if not chunks or chunks[0][0] > sequence:
            return 0
        while len(chunks) > 1 and chunks[1][0] <= sequence:
            chunks.popleft()
        return chunks[0][1].last_of(publisher, sequence)


class Finished:
    """The finished entries, and those that wait for an ack.

    Attributes:
        acked: Whether entries need an ack to be finished.
        recovered: The highest finished sequence of each publisher (by index).
        applied: The highest of those that are finished or only wait for an ack.
        taken: The chunks that were taken, for notes that know the front of the oldest one already;
            None where nobody asks. Whoever does exchanges the list.
        changed: The publishers whose `recovered` or `applied` may have changed otherwise; likewise.
        cover: The highest acknowledged sequence of each publisher.
        waiting: Discarded chunks that no ack covers yet, in arrival order.
        link_first: The first number of this link.
        pending_ack: Publisher and sequence of the pending ack, and the number that everything
            received before it is below; None when there is none.
    """

    __slots__ = (
        "_ack_index",
        "_covered_to",
        "_front",
        "_front_count",
        "_front_limit",
        "_front_newest",
        "acked",
        "applied",
        "changed",
        "cover",
        "link_first",
        "pending_ack",
        "recovered",
        "taken",
        "waiting",
    )

    def __init__(self, link_first: int, *, acked: bool) -> None:
        self.acked = acked
        self.recovered: dict[int, int] = {}
        self.applied: dict[int, int] = {}
        self.changed: set[int] | None = None
        self.taken: list[Chunk] | None = None
        self.cover: dict[int, int] = {}
        self.waiting: deque[Chunk] = deque()
        self.link_first = link_first
        self._covered_to = 0  # by place, on this link
        self._ack_index = _AckIndex(link_first)
        # The oldest open chunk as `advance_front` saw it last: how many of its entries are
        # finished, how many acks cover (-1 after another ack), and the highest finished sequences.
        self._front: Chunk | None = None
        self._front_count = 0
        self._front_limit = -1
        self._front_newest: dict[int, int] = {}
        self.pending_ack: tuple[int, int, int] | None = None

    def begin(self, link_first: int, *, acked: bool) -> None:
        """A new link begins; acks cover by place only entries of their own link.

        Args:
            link_first: The first number of the link.
            acked: Whether entries need an ack to be finished.
        """
        self.acked = acked
        self.link_first = link_first
        self._covered_to = 0
        self._ack_index.clear(link_first)
        self._front = None
        self._release()

    @property
    def is_used(self) -> bool:
        """Whether acks are asked for, or anything was finished or acknowledged."""
        return bool(self.acked or self.applied or self.cover or self.pending_ack)

    def drop_ack_index(self) -> None:
        """Release chunks that only the index of acks still holds; the next ack rebuilds it."""
        self._ack_index.clear(self.link_first)

    def take(self, chunk: Chunk) -> None:
        """Take over a chunk whose entries are discarded, as is everything before it.

        Args:
            chunk: The chunk that follows all those taken so far.
        """
        newest = chunk.newest()
        if self.taken is not None:
            self.taken.append(chunk)
        if not self.acked and not self.waiting:
            self._raise(newest)
            return
        self.applied.update(newest)
        self.waiting.append(chunk)
        self._release()

    def condense(self) -> None:
        """Join waiting entries to groups, where there are many; never depends on their chunks."""
        if sum(len(chunk.numbers) for chunk in self.waiting) <= _EXACT:
            return
        first, end = self.waiting[0].numbers[0], self.waiting[-1].numbers[-1] + 1
        edges = {*range(first, end, -(-(end - first) // _GROUPS)), end}
        if first < self.link_first < end:
            edges.add(self.link_first)
        self.waiting = condensed_groups(self.waiting, sorted(edges))

    def covered(self, publisher: int, sequence: int, *, open_chunks: Iterable[Chunk]) -> None:
        """Apply a persisted ack.

        Args:
            publisher: The index of its publisher.
            sequence: Its sequence.
            open_chunks: The chunks that were not taken yet, newest first.
        """
        self.cover[publisher] = max(sequence, self.cover.get(publisher, 0))
        # Discarded chunks are older than all open ones.
        self._ack_index.extend(chain(open_chunks, reversed(self.waiting)))
        place = self._ack_index.place(publisher, sequence)
        self._covered_to = max(self._covered_to, place)
        self._front_limit = -1
        self._release()

    def set_pending_ack(self, publisher: int, sequence: int, *, before: int) -> None:
        """Hold an ack that becomes a recovery point once everything before it is discarded.

        It replaces an earlier one.

        Args:
            publisher: The index of the publisher.
            sequence: The sequence of the message.
            before: The number that all entries received before the ack are below.
        """
        self.pending_ack = (publisher, sequence, before)

    def reached(self) -> dict[int, int]:
        """The highest sequence of each publisher that is finished or in the pending ack."""
        reached = dict(self.recovered)
        if self.pending_ack is not None:
            publisher, sequence, _ = self.pending_ack
            reached[publisher] = max(sequence, reached.get(publisher, 0))
        return reached

    @property
    def covered_to(self) -> int:
        """The highest number of this link that an ack covers by place; 0 when there is none."""
        return self._covered_to

    def reach(self, publisher: int, sequence: int, before: int) -> None:
        """Make a pending ack a recovery point.

        Args:
            publisher: The index of its publisher.
            sequence: Its sequence.
            before: All entries with a lower number were discarded, and taken.
        """
        self.pending_ack = None
        self.recover({publisher: sequence})
        # The list now holds a position that is persisted everywhere and has nothing open before it,
        # so entries of earlier links before it need no ack of their own any more. Those of the same
        # publisher above the ack do: they would take its place in the list. How entries are cut
        # into chunks must not matter: the next process reads them in other chunks.
        before = min(before, self.link_first)
        while self.waiting:
            chunk = self.waiting[0]
            count = min(chunk.count_up_to(publisher, sequence), bisect_left(chunk.numbers, before))
            if not self._finish(count):
                break
        self._release()

    def _release(self) -> None:
        while self.waiting:
            if not self._finish(self._covered_count(self.waiting[0])):
                return

    def _finish(self, count: int) -> bool:
        """Finish the first entries of the oldest waiting chunk; whether that is all of it."""
        chunk = self.waiting[0]
        if count:
            self.recover(chunk.part(0, count).newest())
        if count < len(chunk.numbers):
            self.waiting[0] = chunk.part(count, len(chunk.numbers))
            return False
        self.waiting.popleft()
        return True

    def _covered_count(self, chunk: Chunk, begin: int = 0) -> int:
        """How many entries at the front of a discarded chunk are finished, at least `begin`."""
        if not self.acked:
            return len(chunk.numbers)
        this_link = chunk.numbers[0] >= self.link_first
        by_place = bisect_right(chunk.numbers, self._covered_to) if this_link else 0
        if chunk.publisher >= 0:
            cover = self.cover.get(chunk.publisher, 0)
            return max(by_place, bisect_right(chunk.sequences, cover))
        for index in range(max(begin, by_place), len(chunk.numbers)):
            if chunk.sequences[index] > self.cover.get(chunk.publishers[index], 0):
                return index
        return len(chunk.numbers)

    def recover(self, newest: dict[int, int]) -> None:
        """Note that everything up to some sequences is finished.

        Args:
            newest: The sequences by publisher index.
        """
        if self.changed is not None:
            self.changed.update(newest)
        self._raise(newest)

    def _raise(self, newest: dict[int, int]) -> None:
        recovered, applied = self.recovered, self.applied
        for publisher, sequence in newest.items():
            if sequence > recovered.get(publisher, 0):
                recovered[publisher] = sequence
                if sequence > applied.get(publisher, 0):
                    applied[publisher] = sequence

    def frozen(self) -> Finished:
        """A copy to be written down; later changes do not reach it."""
        twin = copy(self)
        twin.recovered, twin.cover = dict(self.recovered), dict(self.cover)
        twin.applied, twin.waiting = dict(self.applied), self.waiting.copy()
        twin._front = None  # noqa: SLF001  # its own: `advance_front` changes what belongs to it
        return twin

    def with_part(self, chunk: Chunk | None, count: int) -> dict[int, int]:
        """`recovered`, with the first `count` entries of the oldest open chunk discarded.

        Args:
            chunk: The oldest chunk with an undiscarded entry; None when there is none.
            count: How many entries at its front are discarded.
        """
        newest = dict(self.recovered)
        for publisher, sequence in self.advance_front(chunk, count).items():
            newest[publisher] = max(sequence, newest.get(publisher, 0))
        return newest

    def advance_front(self, chunk: Chunk | None, count: int) -> dict[int, int]:
        """Return the finished part of the oldest open chunk; a ring calls this at each discard.

        Args:
            chunk: The oldest chunk with an undiscarded entry; None when there is none.
            count: How many entries at its front are discarded.

        Returns:
            The highest finished sequences in the chunk by publisher index; not a copy.
        """
        if chunk is None or self.waiting or not count:
            return _NOTHING
        if chunk is self._front and self._front_count == self._front_limit:
            return self._front_newest  # no ack covers more of it
        if chunk is not self._front:
            self._front, self._front_count, self._front_limit = chunk, 0, -1
            self._front_newest = {}
        known = self._front_count
        if self._front_limit < 0:
            self._front_limit = self._covered_count(chunk, known)
        finished = min(count, self._front_limit)
        if finished > known:
            if chunk.publisher >= 0:
                self._front_newest[chunk.publisher] = chunk.sequences[finished - 1]
            else:
                publishers = chunk.publishers[known:finished]
                sequences = chunk.sequences[known:finished]
                self._front_newest.update(zip(publishers, sequences, strict=True))
            self._front_count = finished
        return self._front_newest

"""What a subscription has received and finished, and where it may safely resume.

Terms. An *entry* is one delivered message: a number that rises with each entry, and the bookmark,
which is a publisher and that publisher's sequence. Entries stand in *arrival order*, which is the
order of the server's log; per publisher their sequences rise. An entry is *discarded* when the
application is done with it, and *finished* when, where the subscription asked for persisted acks,
one of them also *covers* it.

**Recovery point.** For each publisher the highest sequence in the longest prefix of finished
entries. A server starts after the earliest of the list that it knows, so everything behind the
prefix comes again: an undiscarded entry is never skipped, whatever was discarded after it.

**Duplicates.** A message is new when its sequence is above the highest seen of its publisher. What
is not above was delivered before and is dropped, with one exception: it is *expected*. Expected are
entries that nobody holds any more: those queued but not handed out when a link was lost, and all
undiscarded ones after a restart. They keep their place in the arrival order, so they hold the
recovery point until they came again and were discarded. When such a message comes it gets a new
number, an *alias* of the old entry, since numbers have to rise in the order of delivery.
Undiscarded entries that somebody holds are *in hand*: their redelivery is dropped.

**Numbers.** `head` is the low watermark: it is always an open entry or the next number. A number
from there on is open, discarded (`ahead`), or stands for no entry (`holes`: aliases, and numbers
that were skipped). The tests assert it after every step (`tests/support/tracker_invariants.py`).

**Persisted acks** (`finished`) are recovery points of their own only after `completed` and while
the subscription is neither paused nor conflated, which is decided here.

**Memory** is bounded by what is undiscarded, whatever is discarded behind it (`condensing`).

Pure: no clock, no file. The logged store is this class and a record of its moves.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left
from collections import deque
from itertools import repeat
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from haclient_stores.bookmark import Bookmark, BookmarkList
from haclient_stores.tracker.entries import LARGEST, MIXED, Alias, Chunk, Publishers, condensed
from haclient_stores.tracker.finished import Finished
from haclient_stores.tracker.redelivery import Redelivery
from haclient_stores.tracker.resumption import Resumption
from haclient_stores.tracker.runs import Runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from haclient_stores.tracker.server_order import Standing

__all__ = ["DUPLICATE", "UNTRACKED", "SubscriptionTracker"]

DUPLICATE: Final = 0
UNTRACKED: Final = -1
_MANY: Final = 16_384  # so many more messages make it worth a look what can be forgotten

_log = logging.getLogger(__name__)


class SubscriptionTracker(Resumption):
    """The rules of one subscription.

    Attributes, which only this class changes:
        head: All numbers below it are discarded.
        chunks: The entries that are not wholly discarded, in arrival order.
        slow_path_at: The number whose discard is more than a step of the head.
        ahead: The discarded numbers above the head.
        holes: Numbers above the head that stand for no entry, such as those of aliases.
        conflated: Whether messages are held back, so that acks are no recovery points.
        paused: Set while the server holds the subscription: its acks are then no recovery points.
        finished: How far it has got.
        seen: The highest sequence seen of each publisher.
        again: Entries that are expected or were delivered a second time.
        generation: How often it was begun anew, at an explicit start or after a purge; from 1 on.
        first_number, next_number: The numbers given away since the start, if they differ.
        at_end: Whether the replay of this link is over.
        fresh: What the last `log_batch` has added, for whoever writes it down.
    """

    def __init__(self, publishers: Publishers | None = None) -> None:
        self.publishers = publishers or Publishers()
        self.next_number = 1
        self.generation = 1
        self.paused = False
        self.fresh: list[Chunk | Alias] = []
        self.conflated = False
        super().__init__()
        self.purge()

    def purge(self) -> None:
        """Know nothing but the next number: an old one must never mean a new entry."""
        self.head = self.next_number
        self.slow_path_at = self.next_number  # the number whose discard takes the slow way
        self.chunks: deque[Chunk] = deque()
        self.ahead, self.holes = Runs(), Runs()
        self.again = Redelivery()
        self.seen: dict[int, int] = {}
        self.finished = Finished(self.next_number, acked=False)
        self.at_end = False
        self._searched_to = self.next_number  # see `held_up_to`
        self._look_at = self.next_number + _MANY
        self.begin_anew()
        self.first_number = self.next_number

    # -- entering and leaving -----------------------------------------------------------------

    @override
    def begin(
        self, *, acked: bool, start: str | None, conflated: bool = False, entered_us: int = 0
    ) -> None:
        """See `SubscriptionLog.begin`."""
        if start is not None:
            self.forget()
            self.start.set(start)
            self.start.entered_us = entered_us
        self.conflated = conflated
        self.at_end = False
        # By its place an ack covers entries of its own link only. What it has finished so far stays
        # finished: rows and records that the recovery point has passed are deleted already.
        self.finished.recover(self.finished_sequences())
        self.finished.begin(self.next_number, acked=acked)

    @override
    def link_lost(self, first_queued: int) -> None:
        self.again.lose(first_queued, self.chunks, is_open=self._is_open)
        self._set_turn()

    @override
    def ended(self) -> None:
        self.link_lost(0)

    def _is_open(self, number: int) -> bool:
        return number >= self.head and number not in self.ahead

    # -- arrival ------------------------------------------------------------------------------

    @override
    def log_batch(self, bookmarks: list[str]) -> list[int] | range:
        parsed = self.publishers.parse_batch(bookmarks)
        if parsed is None:
            return self._log_each(bookmarks)
        publisher, sequences, publishers = parsed
        new = Publishers.all_new(self.seen, publisher, sequences, publishers)
        if not new or max(sequences) > LARGEST:
            known = Publishers.all_known(self.seen, publisher, sequences, publishers)
            if known and not self.again.expects_any(publishers or repeat(publisher), sequences):
                self.fresh = []
                return [DUPLICATE] * len(bookmarks)
            return self._log_each(bookmarks)
        chunk = self.append(publisher, sequences, publishers)
        self.fresh = [chunk]
        return chunk.numbers  # type: ignore[return-value]  # a range, made by append

    def append(
        self, publisher: int, sequences: Sequence[int], publishers: Sequence[int] = ()
    ) -> Chunk:
        """Add entries that are known to be new, in one piece."""
        first = self.next_number
        self.next_number = following = first + len(sequences)
        chunk = Chunk(range(first, following), publisher, sequences, publishers)
        if publisher >= 0:
            self.seen[publisher] = sequences[-1]
        else:
            self.seen.update(zip(publishers, sequences, strict=True))
        self.chunks.append(chunk)
        if len(self.chunks) == 1:
            self._set_turn()
        if following > self._look_at:
            self.condense()
        return chunk

    def _log_each(self, bookmarks: list[str]) -> list[int]:
        """Any mixture of publishers, duplicates, expected ones and text that is no bookmark."""
        self.fresh = []
        numbers: list[int] = []
        publishers: list[int] = []
        sequences: list[int] = []
        seen = self.seen
        for bookmark in bookmarks:
            publisher, sequence = self.publishers.parse(bookmark)
            if seen.get(publisher, 0) < sequence <= LARGEST:
                seen[publisher] = sequence
                numbers.append(self.next_number + len(sequences))
                publishers.append(publisher)
                sequences.append(sequence)
            elif not 0 < sequence <= LARGEST:
                numbers.append(UNTRACKED)
                if bookmark:
                    _log.warning("cannot track a message with the bookmark %r", bookmark)
            elif self.again.expects(publisher, sequence):
                self._add(publishers, sequences)
                publishers, sequences = [], []
                numbers.append(self.redeliver(publisher, sequence))
            else:
                numbers.append(DUPLICATE)
        self._add(publishers, sequences)
        return numbers

    def _add(self, publishers: list[int], sequences: list[int]) -> None:
        if not sequences:
            return
        only = publishers[0]
        if publishers.count(only) == len(publishers):
            self.fresh.append(self.append(only, sequences))
        else:
            self.fresh.append(self.append(MIXED, sequences, publishers))

    def redeliver(self, publisher: int, sequence: int) -> int:
        """An expected entry came again: its new number."""
        number = self.next_number
        self.next_number = number + 1
        self.holes.append(number, number + 1)  # the old entry is the one that counts
        self.fresh.append(self.again.give(number, publisher, sequence))
        self._set_turn()
        return number

    @override
    def log(self, bookmark: str) -> int:
        return self.log_batch([bookmark])[0]

    @override
    def is_discarded(self, bookmark: str) -> bool:
        publisher, sequence = self.publishers.parse(bookmark)
        seen = 0 < sequence <= self.seen.get(publisher, 0)
        return seen and not self.again.expects(publisher, sequence)

    # -- discarding ---------------------------------------------------------------------------

    @override
    def discard(self, number: int) -> None:
        if number == self.head != self.slow_path_at:
            self.head = number + 1
        else:
            self.discard_slowly(number)

    def try_discard(self, number: int) -> bool:
        """`discard`, and whether it changed anything."""
        if number == self.head != self.slow_path_at:
            self.head = number + 1
            return True
        return self.discard_slowly(number)

    def discard_slowly(self, number: int) -> bool:
        """Discard out of order, at the end of a chunk, or of an entry that was delivered twice."""
        ahead, holes = self.ahead, self.holes
        if number == ahead.end < self.next_number and not (
            holes.count or ahead.scattered or self.again.places
        ):  # in order behind an undiscarded one; no number here has another meaning
            ahead.grow()
            return True
        number = self.again.resolve_alias(number)
        if not self.head <= number < self.next_number or number in ahead or number in holes:
            return False
        self.again.forget(number)
        if number == self.head:
            self._move_head()
        else:
            ahead.add(number)
        self._set_turn()
        return True

    @override
    def discard_up_to(self, number: int) -> None:
        if self.again:
            for current in self.held_up_to(number):
                self.discard_slowly(current)
        else:
            self.discard_all_up_to(number)

    def held_up_to(self, number: int) -> list[int]:
        """The current numbers, up to this one, of all delivered entries that are not discarded.

        The caller discards all of them. So the next call begins behind `number`: an entry below it
        that is still open is redelivered or awaits that, and never gets its own number back.
        Without this, each call would visit all open entries again.
        """
        begin = max(self.head, self._searched_to)
        self._searched_to = max(begin, min(number + 1, self.next_number))
        held = [
            each
            for each in self._open_numbers(begin, self._searched_to)
            if not self.again.is_elsewhere(each)
        ]
        return [*held, *self.again.aliases_up_to(number)]

    def _open_numbers(self, begin: int, end: int) -> Iterator[int]:
        number = begin
        while number < end:
            following = self.holes.end_of(self.ahead.end_of(number))
            if following == number:
                yield number
                following += 1
            number = following

    def discard_all_up_to(self, number: int) -> None:
        """Discard every entry up to this one, whoever holds it."""
        while self.head <= number and self.head < self.next_number:
            self.discard_slowly(self.head)

    def discard_run(self, numbers: array[int]) -> bool:
        """Discard at once what comes next in order; False, and nothing done, if it is not that."""
        begin, end = numbers[0], numbers[-1] + 1
        ahead = self.ahead
        if begin != (ahead.end if ahead.count else self.head) or end > self.next_number:
            return False
        if self.again.places or self.holes.count or ahead.scattered:
            return False
        if numbers != array("Q", range(begin, end)):
            return False
        if ahead.count:
            ahead.append(begin, end)
        else:
            self.head = end - 1
            self._move_head()
            self._set_turn()
        return True

    def _move_head(self) -> None:
        head, after = self.head, self.head + 1
        ahead = self.ahead
        while head != after:
            head = after
            after = self.holes.skip(ahead.skip(head))
        self.head = head
        chunks = self.chunks
        while chunks and chunks[0].numbers[-1] < head:
            self.finished.take(chunks.popleft())

    def _set_turn(self) -> None:
        if self.ahead.count or self.again.places or not self.chunks:
            self.slow_path_at = self.head
        else:  # a chunk of condensed entries spans numbers that stand for none
            self.slow_path_at = min(self.chunks[0].numbers[-1], self.holes.first - 1)

    def condense(self) -> None:
        """Forget what nobody asks for (see `condensing`)."""
        if self.ahead.count:
            chunk, count = self.front()
            if chunk is not None and count:
                self.finished.take(chunk.part(0, count))
                self.chunks[0] = chunk.part(count, len(chunk.numbers))
            self.chunks = condensed(self.chunks, self.ahead.ranges(), self.finished.link_first)
        self.finished.drop_ack_index()
        kept = sum(len(chunk.numbers) for chunk in self.chunks)
        self._look_at = self.next_number + max(_MANY, kept)

    # -- persisted acks -----------------------------------------------------------------------

    def position(self, bookmark: str) -> tuple[int, int] | None:
        """Publisher index and sequence of a bookmark that names a message; else None."""
        return self.publishers.position(bookmark)

    @override
    def persisted(self, bookmark: str) -> None:
        for item in bookmark.split(","):
            place = self.publishers.position(item)
            if place is not None:
                self.persisted_at(*place)

    def persisted_at(self, publisher: int, sequence: int) -> None:
        """A persisted ack, parsed."""
        self.finished.settle(self.head)
        if self.at_end and not self.conflated and not self.paused:
            self.finished.offer(publisher, sequence, before=self.next_number)
        self.finished.covered(publisher, sequence, open_chunks=reversed(self.chunks))
        self.finished.settle(self.head)

    @override
    def completed(self, bookmark: str) -> None:
        place = self.publishers.position(bookmark)
        self.at_end = True
        if place is not None:
            self.completed_at(*place)

    def completed_at(self, publisher: int, sequence: int) -> None:
        """The replay is over, at a position that is known."""
        self.at_end = True
        finished = self.finished
        nothing_came = self.next_number == finished.link_first
        if nothing_came and self.start.is_now and not finished.recovered:
            self.start.items = (Bookmark(self.publishers.ids[publisher], sequence),)
        elif not finished.acked and not self.conflated:
            finished.offer(publisher, sequence, before=self.next_number)
            finished.settle(self.head)

    # -- asking -------------------------------------------------------------------------------

    @property
    @override
    def oldest_undiscarded(self) -> int:
        return self.head if self.head < self.next_number else 0

    @property
    @override
    def undiscarded_count(self) -> int:
        return self.next_number - self.head - self.ahead.count - self.holes.count

    @override
    def finished_point(self) -> BookmarkList:
        return self.publishers.bookmarks(self.finished_sequences())

    def finished_sequences(self) -> dict[int, int]:
        """The recovery point: the highest finished sequence of each publisher, by its index."""
        self.finished.settle(self.head)
        return self.finished.with_part(*self.front())

    def front(self) -> tuple[Chunk | None, int]:
        """The oldest chunk, and how many entries at its front are discarded."""
        if not self.chunks:
            return None, 0
        chunk = self.chunks[0]
        numbers, head = chunk.numbers, self.head
        if isinstance(numbers, range):  # as most are, and a ring asks at each discard
            return chunk, max(0, head - numbers.start)
        return chunk, bisect_left(numbers, head)

    def applied(self) -> dict[int, int]:
        """The highest sequence of each publisher below which everything is discarded."""
        chunk, count = self.front()
        front = chunk.part(0, count).newest() if chunk is not None and count else {}
        return {**self.finished.applied, **front}

    def settle(self) -> int:
        """Move the time on up to which nothing is open; that time (see `Standing.settle`)."""
        self.standing.settle(self.oldest_undiscarded, self.next_number)
        return self.standing.settled_us

    @property
    @override
    def nothing_came(self) -> bool:
        return self.next_number == self.first_number

    @override
    def arrived(self) -> dict[int, int]:
        found = dict(self.seen)
        for publisher, sequence in self.finished.reached().items():
            found[publisher] = max(sequence, found.get(publisher, 0))
        ids = self.publishers.ids
        return {ids[publisher]: sequence for publisher, sequence in found.items()}

    @override
    def expected(self) -> Iterator[int]:
        return (self.publishers.ids[publisher] for publisher, _ in self.again.places.values())

    # -- being written down and read back -----------------------------------------------------

    def entries(self) -> Iterator[tuple[int, int, int, bool]]:
        """Number, publisher, sequence and whether discarded, of all that is not finished."""
        for chunk in self.finished.waiting:
            for entry in chunk.entries():
                yield *entry, True
        for chunk in self.chunks:
            for number, publisher, sequence in chunk.entries():
                discarded = number < self.head or number in self.ahead
                yield number, publisher, sequence, discarded

    def seed(self, newest: dict[int, int], standing: Standing, generation: int) -> None:
        """Begin where another process has got to: up to here everything is finished."""
        self.purge()
        self.generation = generation
        self.take_order(standing)
        self.seen.update(newest)
        self.finished.recover(newest)

    def forget(self) -> None:
        """`purge`, and what was known before counts no longer, wherever it is kept."""
        self.purge()
        self.generation += 1

    def skip_numbers(self, following: int) -> None:
        """The numbers before `following` are not used."""
        if following <= self.next_number:
            return
        if self.head == self.next_number:
            self.head = following
        else:
            self.holes.append(self.next_number, following)
        self.next_number = following
        self._set_turn()

    def add_alias(self, number: int, old: int) -> None:
        """A number that is in use already stands for an expected entry."""
        if old in self.again.places:
            self.again.give(number, *self.again.places[old])
            self._set_turn()

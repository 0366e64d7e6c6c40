"""Tracks what a subscription has received and finished, and where it may safely resume.

Terms. An *entry* is one delivered message: a number that rises with each entry, and the bookmark,
which is a publisher and that publisher's sequence. Entries are in *arrival order*, which is the
order of the server's log; per publisher their sequences rise. An entry is *discarded* when the
application has discarded its message. It is *finished* when it is discarded and, if the
subscription requested persisted acks, one of them *covers* it.

**Recovery point.** For each publisher the highest sequence in the longest prefix of finished
entries. A server starts after the earliest of the list that it knows, so everything after the
prefix is sent again: an undiscarded entry is never skipped, whatever was discarded after it.

**Duplicates.** A message is new when its sequence is above the highest seen of its publisher. Any
other message was delivered before and is dropped, unless its entry *awaits redelivery*
(`redelivery`). That is an entry that no consumer holds any more: it was queued and undelivered when
a link was lost, or it was undiscarded at a restart. It keeps its place in the arrival order, so it
holds the recovery point until it was redelivered and discarded. The redelivered message gets a new
number, an *alias* of the old entry, since numbers have to rise in the order of delivery. The
redelivery of an entry that is delivered and undiscarded is dropped.

**Numbers.** `low_watermark` is always an open entry or the next number. A number from there on is
open, discarded (`discarded_above`), or stands for no entry (`unused`: aliases, and numbers that
were skipped). The tests assert it after every step (`tests/support/tracker_invariants.py`).

**Persisted acks** (`finished`) are recovery points of their own only after `completed` and while
the subscription is neither paused nor conflated, which is decided here.

**Memory** is bounded by the undiscarded entries, however many are discarded after them (`entries`).

Pure: no clock, no file. The logged store is this class plus a record of its state changes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Container, Iterator, Sequence
from itertools import repeat
from typing import Final

from typing_extensions import override

from haclient_stores.bookmark import Bookmark, BookmarkList
from haclient_stores.logs import logger_of
from haclient_stores.tracker.entries import LARGEST, MIXED, Alias, Chunk, Publishers, condensed
from haclient_stores.tracker.finished import Finished
from haclient_stores.tracker.redelivery import Redelivery
from haclient_stores.tracker.resumption import Resumption
from haclient_stores.tracker.runs import Runs
from haclient_stores.tracker.server_order import ServerOrder

DUPLICATE: Final = 0
UNTRACKED: Final = -1
_CONDENSE_EVERY: Final = 16_384  # messages from one attempt to condense to the next, at least

_log = logger_of("haclient.bookmark_store")


class SubscriptionTracker(Resumption):
    """The state and rules of one subscription.

    Attributes, which only this class changes:
        low_watermark: All numbers below it are discarded.
        chunks: The entries that are not wholly discarded, in arrival order.
        slow_path_at: The number whose discard is more than a step of the low
            watermark.
        discarded_above: The discarded numbers above the low watermark.
        unused: Numbers above the low watermark that stand for no entry, such as those of aliases.
        conflated: Whether messages are held back, so that acks are no recovery points.
        paused: Set while the server has paused the subscription: its acks are then no recovery
            points.
        finished: The finished entries, and those that wait for an ack.
        seen: The highest sequence seen of each publisher.
        redelivery: Entries that await redelivery or were redelivered.
        generation: How often it was started over, at an explicit start or after a purge; from 1 on.
        first_number, next_number: The range of the numbers used since the start.
        at_end: Whether the replay of this link is over.
        redeliveries: How many messages were redelivered.
        fresh: What the last `log_batch` has added, for the notes; None if it has condensed.
    """

    def __init__(self, publishers: Publishers | None = None) -> None:
        self.publishers = publishers or Publishers()
        self.next_number = 1
        self.paused = False
        self.redeliveries = 0
        self.fresh: list[Chunk | Alias | None] = []
        self.conflated = False
        self._has_warned = False
        super().__init__()
        self.purge(1)

    def purge(self, generation: int) -> None:
        """Forget everything but the next number: an old one must never mean a new entry.

        Args:
            generation: Which one begins.
        """
        self.generation = generation
        self.low_watermark = self.next_number
        self.slow_path_at = self.next_number
        self.chunks: deque[Chunk] = deque()
        self.discarded_above, self.unused = Runs(), Runs()
        self.redelivery = Redelivery()
        self.seen: dict[int, int] = {}
        self.finished = Finished(self.next_number, acked=False)
        self.at_end = False
        self._searched_to = self.next_number  # see `held_up_to`
        self._condense_at = self.next_number + _CONDENSE_EVERY
        self.reset()
        self.first_number = self.next_number

    # -- entering and leaving -----------------------------------------------------------------

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
        self.apply_pending_ack()
        self._take_front()
        self.finished.begin(self.next_number, acked=acked)

    def link_lost(self, first_queued: int, exempt: Container[int] = ()) -> None:
        """See `SubscriptionLog.link_lost`; `exempt` are messages that a handler still processes."""
        redelivery = self.redelivery
        redelivery.link_lost(first_queued, self.chunks, is_open=self._is_open, exempt=exempt)
        self._set_slow_path()

    def _is_open(self, number: int) -> bool:
        return number >= self.low_watermark and number not in self.discarded_above

    # -- arrival ------------------------------------------------------------------------------

    def log_batch(self, bookmarks: list[str]) -> list[int] | range:
        """See `SubscriptionLog.log_batch`."""
        parsed = self.publishers.parse_batch(bookmarks)
        if parsed is None:
            return self._log_each(bookmarks)
        publisher, sequences, publishers = parsed
        new = Publishers.all_new(self.seen, publisher, sequences, publishers)
        if not new or max(sequences) > LARGEST:
            known = Publishers.all_known(self.seen, publisher, sequences, publishers)
            if known and not self.redelivery.awaits_any(publishers or repeat(publisher), sequences):
                self.fresh = []
                return [DUPLICATE] * len(bookmarks)
            return self._log_each(bookmarks)
        chunk = self.append(publisher, sequences, publishers)
        self.fresh = [chunk]
        if self.next_number > self._condense_at:
            self.condense()
        return chunk.numbers  # type: ignore[return-value]  # a range, made by append

    def append(
        self, publisher: int, sequences: Sequence[int], publishers: Sequence[int] = ()
    ) -> Chunk:
        """Add entries that are known to be new.

        Args:
            publisher: The index of their publisher, or `MIXED`.
            sequences: The sequence of each; of one publisher they rise.
            publishers: The publisher of each if they differ.

        Returns:
            The new chunk.
        """
        first = self.next_number
        self.next_number = following = first + len(sequences)
        chunk = Chunk(range(first, following), publisher, sequences, publishers)
        if publisher >= 0:
            self.seen[publisher] = sequences[-1]
        else:
            self.seen.update(zip(publishers, sequences, strict=True))
        self.chunks.append(chunk)
        if len(self.chunks) == 1:
            self._set_slow_path()
        return chunk

    def _log_each(self, bookmarks: list[str]) -> list[int]:
        """Any mixture of publishers, duplicates, redeliveries and text that is not a bookmark."""
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
                if bookmark and not self._has_warned:
                    self._has_warned = True
                    _log.warning(
                        "cannot track a message with the bookmark %r, so it may come again after "
                        "its discard; further ones of this subscription are not logged",
                        bookmark,
                    )
            elif self.redelivery.awaits(publisher, sequence):
                self._add(publishers, sequences)
                publishers, sequences = [], []
                numbers.append(self.redeliver(publisher, sequence))
            else:
                numbers.append(DUPLICATE)
        self._add(publishers, sequences)
        if self.next_number > self._condense_at:
            self.condense()
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
        """Number the redelivered message of an entry that awaits it.

        Args:
            publisher: The index of the publisher.
            sequence: The sequence of the message.

        Returns:
            The new number, an alias of the entry.
        """
        number = self.next_number
        self.next_number = number + 1
        self.redeliveries += 1
        self.unused.append(number, number + 1)  # the old entry is the one that counts
        self.fresh.append(self.redelivery.redeliver(number, publisher, sequence))
        self._set_slow_path()
        return number

    def is_discarded(self, bookmark: str) -> bool:
        """See `SubscriptionLog.is_discarded`."""
        publisher, sequence = self.publishers.parse(bookmark)
        seen = 0 < sequence <= self.seen.get(publisher, 0)
        return seen and not self.redelivery.awaits(publisher, sequence)

    # -- discarding ---------------------------------------------------------------------------

    def discard(self, number: int) -> None:
        """See `SubscriptionLog.discard`."""
        if number == self.low_watermark != self.slow_path_at:
            self.low_watermark = number + 1
        else:
            self.discard_slowly(number)

    def try_discard(self, number: int) -> bool:
        """`discard`, for a caller that notes only what changed something.

        Args:
            number: The number of the message.

        Returns:
            Whether it was open until now.
        """
        if number == self.low_watermark != self.slow_path_at:
            self.low_watermark = number + 1
            return True
        return self.discard_slowly(number)

    def discard_slowly(self, number: int) -> bool:
        """Discard out of order, at the end of a chunk, or of an entry that was delivered twice.

        Args:
            number: The number of the message.

        Returns:
            Whether it was open until now.
        """
        above, unused = self.discarded_above, self.unused
        if number == above.end < self.next_number and not (
            unused.count or above.scattered or self.redelivery.awaiting
        ):  # in order after an undiscarded one; no number here has another meaning
            above.grow()
            return True
        number = self.redelivery.resolve_alias(number)
        if (
            not self.low_watermark <= number < self.next_number
            or number in above
            or number in unused
        ):
            return False
        self.redelivery.forget(number)
        if number == self.low_watermark:
            self._advance_low_watermark()
        else:
            above.add(number)
        self._set_slow_path()
        return True

    def held_up_to(self, number: int) -> list[int]:
        """The current numbers of all delivered, undiscarded entries up to a number.

        The caller discards all of them. So the next call begins after `number`: an entry below it
        that is still open is redelivered or awaits that, and never gets its own number back.
        Without this, each call would visit all open entries again.

        Args:
            number: The highest number.

        Returns:
            The numbers: own ones first, then aliases.
        """
        begin = max(self.low_watermark, self._searched_to)
        self._searched_to = max(begin, min(number + 1, self.next_number))
        held = [
            each
            for each in self._open_numbers(begin, self._searched_to)
            if not self.redelivery.is_elsewhere(each)
        ]
        return [*held, *self.redelivery.aliases_up_to(number)]

    def _open_numbers(self, begin: int, end: int) -> Iterator[int]:
        number = begin
        while number < end:
            following = self.unused.end_of(self.discarded_above.end_of(number))
            if following == number:
                yield number
                following += 1
            number = following

    def discard_all_up_to(self, number: int) -> None:
        """Discard every entry up to this one, also those that await redelivery.

        Args:
            number: The highest number to discard.
        """
        while self.low_watermark <= number and self.low_watermark < self.next_number:
            self.discard_slowly(self.low_watermark)

    def discard_run(self, numbers: array[int]) -> bool:
        """Discard a run of numbers at once, if it comes next in order.

        Args:
            numbers: The numbers; not empty.

        Returns:
            Whether it does; if not, nothing is changed.
        """
        begin, end = numbers[0], numbers[-1] + 1
        above = self.discarded_above
        if begin != (above.end if above.count else self.low_watermark) or end > self.next_number:
            return False
        if self.redelivery.awaiting or self.unused.count or above.scattered:
            return False
        if numbers != array("Q", range(begin, end)):
            return False
        if above.count:
            above.append(begin, end)
        else:
            self.low_watermark = end - 1
            self._advance_low_watermark()
            self._set_slow_path()
        return True

    def _advance_low_watermark(self) -> None:
        low, after = self.low_watermark, self.low_watermark + 1
        above = self.discarded_above
        while low != after:
            low = after
            after = self.unused.skip(above.skip(low))
        self.low_watermark = low
        chunks = self.chunks
        while chunks and chunks[0].numbers[-1] < low:
            self.finished.take(chunks.popleft())

    def _set_slow_path(self) -> None:
        if self.discarded_above.count or self.redelivery.awaiting or not self.chunks:
            self.slow_path_at = self.low_watermark
        else:  # a chunk of condensed entries spans numbers that stand for none
            self.slow_path_at = min(self.chunks[0].numbers[-1], self.unused.first - 1)

    def _take_front(self) -> None:
        chunk, count = self.front()
        if chunk is not None and count:
            self.finished.take(chunk.part(0, count))
            self.chunks[0] = chunk.part(count, len(chunk.numbers))

    def condense(self) -> None:
        """Drop discarded entries that no answer depends on (see `entries`).

        With acks the answers depend on what was dropped when, so the notes have to have it.
        """
        self.fresh.append(None)
        self.apply_pending_ack()  # before what it must not pass is dropped
        self._take_front()
        self.finished.condense()
        if self.discarded_above.count:
            self.chunks = condensed(
                self.chunks, self.discarded_above.ranges(), self.finished.link_first
            )
        self.finished.drop_ack_index()
        kept = sum(len(chunk.numbers) for chunk in self.chunks)
        self._condense_at = self.next_number + max(_CONDENSE_EVERY, kept)

    # -- persisted acks -----------------------------------------------------------------------

    def position(self, bookmark: str) -> tuple[int, int] | None:
        """The position of a bookmark that names a message.

        Args:
            bookmark: The bookmark in wire form.

        Returns:
            Publisher index and sequence; None for any other bookmark or text.
        """
        return self.publishers.position(bookmark)

    def persisted_at(self, publisher: int, sequence: int) -> None:
        """Apply a persisted ack.

        Args:
            publisher: The index of its publisher.
            sequence: Its sequence.
        """
        self.apply_pending_ack()
        if self.at_end and not self.conflated and not self.paused:
            self.finished.set_pending_ack(publisher, sequence, before=self.next_number)
        self.finished.covered(publisher, sequence, open_chunks=reversed(self.chunks))
        self.apply_pending_ack()

    def hold_pending_ack(self, publisher: int, sequence: int, *, before: int) -> None:
        """Make an ack a recovery point once all before it is discarded, which it may be now."""
        self.finished.set_pending_ack(publisher, sequence, before=before)
        self.apply_pending_ack()

    def apply_pending_ack(self) -> bool:
        """Make the pending ack a recovery point if all that came before it is discarded.

        Returns:
            Whether it is one now.
        """
        pending = self.finished.pending_ack
        if pending is None or self.low_watermark < pending[2]:
            return False
        self._take_front()
        self.finished.reach(*pending)
        return True

    def completed(self, publisher: int = 0, sequence: int = 0) -> None:
        """The replay is over.

        Args:
            publisher: The index of the publisher of its position.
            sequence: The sequence of that; 0 where the position is unknown.
        """
        self.at_end = True
        if not sequence:
            return
        finished = self.finished
        # Of this link alone it would not do: what an earlier one brought may be undiscarded, and is
        # a duplicate when the server repeats it.
        if self.nothing_arrived and self.start.is_now and not finished.recovered:
            self.start.items = (Bookmark(self.publishers.ids[publisher], sequence),)
        elif not finished.acked and not self.conflated:
            self.hold_pending_ack(publisher, sequence, before=self.next_number)

    # -- asking -------------------------------------------------------------------------------

    @property
    def oldest_undiscarded(self) -> int:
        """See `SubscriptionLog.oldest_undiscarded`."""
        return self.low_watermark if self.low_watermark < self.next_number else 0

    @property
    def undiscarded_count(self) -> int:
        """See `SubscriptionLog.undiscarded_count`."""
        return (
            self.next_number - self.low_watermark - self.discarded_above.count - self.unused.count
        )

    @override
    def finished_point(self) -> BookmarkList:
        return self.publishers.bookmarks(self.finished_sequences())

    def finished_sequences(self) -> dict[int, int]:
        """The recovery point: the highest finished sequence of each publisher, by its index."""
        self.apply_pending_ack()
        return self.finished.with_part(*self.front())

    def front(self) -> tuple[Chunk | None, int]:
        """The oldest chunk, and how many entries at its front are discarded."""
        if not self.chunks:
            return None, 0
        chunk = self.chunks[0]
        numbers, low = chunk.numbers, self.low_watermark
        if isinstance(numbers, range):  # as most are, and a ring asks at each discard
            return chunk, max(0, low - numbers.start)
        return chunk, bisect_left(numbers, low)

    def applied(self) -> dict[int, int]:
        """The highest sequence of each publisher below which everything is discarded."""
        chunk, count = self.front()
        front = chunk.part(0, count).newest() if chunk is not None and count else {}
        return {**self.finished.applied, **front}

    def update_discarded_until(self) -> int:
        """Move the time on up to which all that was received is discarded.

        Returns:
            That time in microseconds since 1970; see `ServerOrder.update_discarded_until`.
        """
        self.server_order.update_discarded_until(self.oldest_undiscarded, self.next_number)
        return self.server_order.discarded_until_us

    @property
    @override
    def nothing_arrived(self) -> bool:
        return self.next_number == self.first_number

    @override
    def arrived(self) -> dict[int, int]:
        found = dict(self.seen)
        for publisher, sequence in self.finished.reached().items():
            found[publisher] = max(sequence, found.get(publisher, 0))
        ids = self.publishers.ids
        return {ids[publisher]: sequence for publisher, sequence in found.items()}

    @override
    def awaiting_redelivery(self) -> Iterator[int]:
        return (
            self.publishers.ids[publisher] for publisher, _ in self.redelivery.awaiting.values()
        )

    # -- being written down and read back -----------------------------------------------------

    def entries(self) -> Iterator[tuple[int, int, int, bool]]:
        """Number, publisher, sequence and whether discarded, of all that is not finished."""
        for chunk in self.finished.waiting:
            for entry in chunk.entries():
                yield *entry, True
        for chunk in self.chunks:
            for number, publisher, sequence in chunk.entries():
                discarded = number < self.low_watermark or number in self.discarded_above
                yield number, publisher, sequence, discarded

    def seed(self, newest: dict[int, int], server_order: ServerOrder, generation: int) -> None:
        """Start from the recovery point of another process.

        Args:
            newest: By publisher index, the sequence up to which everything is finished.
            server_order: In which server's order that is.
            generation: How often the subscription was started over, here or elsewhere.
        """
        self.purge(generation)
        self.set_server_order(server_order)
        self.seen.update(newest)
        self.finished.recover(newest)

    def forget(self) -> None:
        """`purge`, and invalidate the copies of it that adapters keep: a new generation."""
        self.purge(self.generation + 1)

    @property
    def is_unknown(self) -> bool:
        """Whether it is as one that was never seen, apart from its numbers."""
        is_used = self.seen or self.finished.is_used or self.at_end or self.conflated
        is_new = self.generation == 1 and not (self.start.known or self.start.entered_us)
        return is_new and not is_used and self.server_order == ServerOrder()

    def skip_numbers(self, following: int) -> None:
        """Leave numbers unused.

        Args:
            following: The next number to be used; a lower one than now changes nothing.
        """
        if following <= self.next_number:
            return
        if self.low_watermark == self.next_number:
            self.low_watermark = following
        else:
            self.unused.append(self.next_number, following)
        self.next_number = following
        self._set_slow_path()

    def add_alias(self, number: int, old: int) -> None:
        """Make a number that is used already the alias of an entry that awaits redelivery.

        Args:
            number: The alias.
            old: The own number of the entry; nothing happens if it awaits no redelivery.
        """
        if old in self.redelivery.awaiting:
            self.redelivery.redeliver(number, *self.redelivery.awaiting[old])
            self._set_slow_path()

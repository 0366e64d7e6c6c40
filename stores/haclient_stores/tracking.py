"""What a subscription has received and finished, and where it may safely resume (design 5).

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

**Persisted acks.** An ack `b` covers the entries of this link up to the last one with b's publisher
and a sequence up to b's, and all of that publisher up to that sequence. It is a recovery point of
its own only after `completed`, while the subscription is neither paused nor conflated, and once all
that had arrived before the ack is discarded.
Finished entries that wait for an ack are kept exactly at first; when many have gathered, only the
last of each publisher in each group stays, which loses precision and never safety.

**Start.** An explicit start forgets everything known before. Until something is finished the
recovery point is the start itself; a subscription entered at NOW replaces that by the position of
its `completed`, provided that nothing was delivered before.

Cost. A batch of one publisher is parsed and appended as one chunk; a discard in order moves one
counter. Everything else is allowed to be slower.

Pure: no clock, no file. The logged store is this class and a record of its moves.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from itertools import islice, repeat
from operator import lt
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from haclient_stores.bookmarks import (
    NOW,
    Bookmark,
    BookmarkList,
    BookmarkRange,
    Timestamp,
    parse_bookmark,
)
from haclient_stores.interfaces import SubscriptionLog

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["DUPLICATE", "UNTRACKED", "Alias", "Chunk", "Publishers", "SubscriptionTracker"]

DUPLICATE: Final = 0
UNTRACKED: Final = -1
_MIXED: Final = -1
_WAITING_CHUNKS: Final = 64  # finished chunks that wait for an ack and are kept exactly
_LARGEST: Final = 2**64 - 1
_NOW: Final = Bookmark(0, 1)  # how NOW is written

_log = logging.getLogger(__name__)


class Publishers:
    """Publisher ids as small numbers, shared by all subscriptions of a store."""

    __slots__ = ("_by_id", "by_text", "ids")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.by_text: dict[str, int] = {}
        self._by_id: dict[int, int] = {}

    def index(self, publisher_id: int) -> int:
        """The small number of a publisher id."""
        found = self._by_id.get(publisher_id)
        if found is None:
            found = self._by_id[publisher_id] = len(self.ids)
            self.ids.append(publisher_id)
        return found

    def index_of_text(self, text: str) -> int:
        """The same for the id as it stands in a bookmark; -1 for text that is no id."""
        if not (text.isascii() and text.isdigit() and int(text) <= _LARGEST):
            return -1
        found = self.by_text[text] = self.index(int(text))
        return found

    def parse(self, bookmark: str) -> tuple[int, int]:
        """Publisher index and sequence of a message bookmark; the sequence is 0 when it is none."""
        publisher, _, rest = bookmark.partition("|")
        sequence = rest.partition("|")[0]
        if not (sequence.isascii() and sequence.isdigit()):
            return -1, 0
        index = self.by_text.get(publisher, -1)
        if index < 0:
            index = self.index_of_text(publisher)
        return (index, int(sequence)) if index >= 0 else (-1, 0)


@dataclass(slots=True)
class Chunk:
    """Entries that arrived together, in arrival order.

    Attributes:
        numbers: The number of each; rising.
        publisher: The publisher of all of them, or -1 when they differ.
        sequences: The sequence of each.
        publishers: The publisher of each when they differ; else empty.
    """

    numbers: Sequence[int]
    publisher: int
    sequences: Sequence[int]
    publishers: Sequence[int] = ()

    def entries(self) -> Iterator[tuple[int, int, int]]:
        """Number, publisher and sequence of each."""
        publishers = self.publishers or repeat(self.publisher)
        return zip(self.numbers, publishers, self.sequences, strict=False)

    def part(self, begin: int, end: int) -> Chunk:
        """The entries between two indexes."""
        return Chunk(
            self.numbers[begin:end],
            self.publisher,
            self.sequences[begin:end],
            self.publishers[begin:end],
        )

    def newest(self) -> dict[int, int]:
        """The highest sequence of each publisher: the last one, since they rise."""
        if self.publisher >= 0:
            return {self.publisher: self.sequences[-1]}
        return dict(zip(self.publishers, self.sequences, strict=True))

    def last_of(self, publisher: int, sequence: int) -> int:
        """The number of the last entry of a publisher up to a sequence; 0 when there is none."""
        if self.publisher == publisher:
            index = bisect_right(self.sequences, sequence)
            return self.numbers[index - 1] if index else 0
        found = 0
        if self.publisher < 0:
            for number, other, value in self.entries():
                if other == publisher and value <= sequence:
                    found = number
        return found

    @staticmethod
    def condensed(chunks: Iterable[Chunk]) -> Chunk:
        """Only the last entry of each publisher.

        What is dropped has a later entry of its publisher here, so whenever an ack covers that one
        it covers the dropped one too.
        """
        last: dict[int, tuple[int, int, int]] = {}
        for chunk in chunks:
            if chunk.publisher >= 0:
                last[chunk.publisher] = (chunk.numbers[-1], chunk.publisher, chunk.sequences[-1])
            else:
                last.update(zip(chunk.publishers, chunk.entries(), strict=True))
        kept = sorted(last.values())
        if len(kept) == 1:
            return Chunk([kept[0][0]], kept[0][1], [kept[0][2]])
        numbers, publishers, sequences = zip(*kept, strict=True)
        return Chunk(numbers, _MIXED, sequences, publishers)


@dataclass(frozen=True, slots=True)
class Alias:
    """A redelivered entry: its new number stands for the old one."""

    number: int
    old: int
    publisher: int
    sequence: int


class SubscriptionTracker(SubscriptionLog):
    """The rules of one subscription (BS2-BS11, BS19).

    Attributes:
        paused: Set while the server holds the subscription: its acks are then no recovery points.
        fresh: What the last `log_batch` has added, for whoever writes it down.
    """

    __slots__ = (
        "_acked",
        "_ahead",
        "_aliases",
        "_base",
        "_chunks",
        "_completed",
        "_conflated",
        "_cover",
        "_covered_to",
        "_entered_us",
        "_expected",
        "_expected_numbers",
        "_first",
        "_head",
        "_link_first",
        "_next",
        "_pending",
        "_publishers",
        "_range",
        "_recovered",
        "_seen",
        "_turn",
        "_waiting",
        "fresh",
        "paused",
    )

    def __init__(self, publishers: Publishers | None = None) -> None:
        self._publishers = publishers or Publishers()
        self._next = 1
        self.paused = False
        self.fresh: list[Chunk | Alias] = []
        self._acked = False
        self._conflated = False
        self._forget()

    def _forget(self) -> None:
        """Know nothing but the next number: an old one must never mean a new entry."""
        self._head = self._next  # the oldest undiscarded number
        self._turn = self._next  # the number whose discard takes the slow way
        self._chunks: deque[Chunk] = deque()  # not wholly discarded yet
        self._waiting: deque[Chunk] = deque()  # discarded, in front, not finished yet
        self._ahead: set[int] = set()  # discarded numbers above the head, and those of aliases
        self._aliases: dict[int, Alias] = {}
        self._expected: dict[tuple[int, int], int] = {}
        self._expected_numbers: dict[int, tuple[int, int]] = {}
        self._seen: dict[int, int] = {}
        self._recovered: dict[int, int] = {}
        self._cover: dict[int, int] = {}
        self._covered_to = 0  # position of the acks of this link
        self._link_first = self._next
        self._completed = False
        self._pending: tuple[int, int, int] | None = None  # an ack, and what had arrived before it
        self._base: tuple[Bookmark | Timestamp, ...] = ()
        self._range: BookmarkRange | None = None
        self._entered_us = 0
        self._first = self._next

    def purge(self) -> None:
        """Forget everything; numbers go on."""
        self._forget()

    # -- entering and leaving -----------------------------------------------------------------

    @property
    def known(self) -> bool:
        """Whether anything is remembered that an explicit start would forget."""
        return bool(self._seen or self._recovered or self._base)

    @override
    def begin(
        self, *, acked: bool, start: str | None, conflated: bool = False, entered_us: int = 0
    ) -> None:
        """The subscription is about to be (re)entered; see `SubscriptionLog.begin`.

        Args:
            acked: The subscribe asks for persisted acks.
            start: An explicit wire bookmark, or None to resume.
            conflated: Persisted acks are then no recovery points of their own.
            entered_us: The time in microseconds since 1970: with a start of NOW and no other
                knowledge the subscription resumes from that moment.
        """
        if start is not None:
            self._forget()
            self._set_start(start)
            self._entered_us = entered_us
        self._acked = acked
        self._conflated = conflated
        self._completed = False
        self._covered_to = 0
        self._link_first = self._next
        self._release()

    def _set_start(self, start: str) -> None:
        match parse_bookmark(start):
            case Bookmark() | Timestamp() as item:
                self._base = (item,)
            case BookmarkList(items=items):
                self._base = items
            case BookmarkRange() as whole:
                self._range = whole
            case point if point == NOW:
                self._base = (_NOW,)
            case _:
                self._base = ()

    @override
    def link_lost(self, first_queued: int) -> None:
        for alias in [alias for alias in self._aliases.values() if alias.number >= first_queued]:
            del self._aliases[alias.number]
            self._expect(alias.old, alias.publisher, alias.sequence)
        held = {alias.old for alias in self._aliases.values()}
        for chunk in self._chunks:
            if chunk.numbers[-1] < first_queued:
                continue
            for number, publisher, sequence in chunk.entries():
                if number >= max(first_queued, self._head) and number not in held:
                    self._expect(number, publisher, sequence)
        self._set_turn()

    @override
    def ended(self) -> None:
        self.link_lost(0)

    def _expect(self, number: int, publisher: int, sequence: int) -> None:
        if number >= self._head and number not in self._ahead:
            self._expected[publisher, sequence] = number
            self._expected_numbers[number] = (publisher, sequence)

    # -- arrival ------------------------------------------------------------------------------

    @override
    def log_batch(self, bookmarks: list[str]) -> list[int] | range:
        count = len(bookmarks)
        parts = "\n".join(bookmarks).split("|")
        text = parts[0]
        publisher = self._publishers.by_text.get(text, -1)
        if (
            publisher < 0
            or len(parts) != 2 * count + 1
            or parts[2:-1:2].count("\n" + text) != count - 1
        ):
            return self._log_each(bookmarks)
        try:
            sequences = list(map(int, parts[1::2]))
        except ValueError:  # text where a sequence should be
            return self._log_each(bookmarks)
        if (
            sequences[0] <= self._seen.get(publisher, 0)
            or sequences[-1] > _LARGEST
            or not all(map(lt, sequences, islice(sequences, 1, None)))
        ):
            return self._log_each(bookmarks)
        chunk = self.append(publisher, sequences)
        self.fresh = [chunk]
        return chunk.numbers  # type: ignore[return-value]  # a range, made by append

    def append(self, publisher: int, sequences: list[int], publishers: Sequence[int] = ()) -> Chunk:
        """Add entries that are known to be new, in one piece."""
        first = self._next
        self._next = following = first + len(sequences)
        chunk = Chunk(range(first, following), publisher, sequences, publishers)
        if publisher >= 0:
            self._seen[publisher] = sequences[-1]
        else:
            self._seen.update(zip(publishers, sequences, strict=True))
        self._chunks.append(chunk)
        if len(self._chunks) == 1:
            self._set_turn()
        return chunk

    def _log_each(self, bookmarks: list[str]) -> list[int]:
        """Any mixture of publishers, duplicates, expected ones and text that is no bookmark."""
        self.fresh = []
        numbers: list[int] = []
        publishers: list[int] = []
        sequences: list[int] = []
        seen = self._seen
        known = self._publishers.by_text
        for bookmark in bookmarks:
            text, _, rest = bookmark.partition("|")
            publisher = known.get(text, -1)
            digits = rest[:-1]
            if publisher >= 0 and rest[-1:] == "|" and digits.isdigit() and digits.isascii():
                sequence = int(digits)
            else:
                publisher, sequence = self._publishers.parse(bookmark)
            if seen.get(publisher, 0) < sequence <= _LARGEST:
                seen[publisher] = sequence
                numbers.append(self._next + len(sequences))
                publishers.append(publisher)
                sequences.append(sequence)
            elif not 0 < sequence <= _LARGEST:
                numbers.append(_untracked(bookmark))
            elif (publisher, sequence) in self._expected:
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
            self.fresh.append(self.append(_MIXED, sequences, publishers))

    def redeliver(self, publisher: int, sequence: int) -> int:
        """An expected entry came again: its new number."""
        old = self._expected.pop((publisher, sequence))
        del self._expected_numbers[old]
        number = self._next
        self._next = number + 1
        self._aliases[number] = alias = Alias(number, old, publisher, sequence)
        self._ahead.add(number)  # the old entry is the one that counts
        self.fresh.append(alias)
        self._set_turn()
        return number

    @override
    def log(self, bookmark: str) -> int:
        return self.log_batch([bookmark])[0]

    @override
    def is_discarded(self, bookmark: str) -> bool:
        publisher, sequence = self._publishers.parse(bookmark)
        return (
            0 < sequence <= self._seen.get(publisher, 0)
            and (publisher, sequence) not in self._expected
        )

    # -- discarding ---------------------------------------------------------------------------

    @override
    def discard(self, number: int) -> None:
        if number == self._head != self._turn:
            self._head = number + 1
        else:
            self.discard_slowly(number)

    def try_discard(self, number: int) -> bool:
        """`discard`, and whether it changed anything."""
        if number == self._head != self._turn:
            self._head = number + 1
            return True
        return self.discard_slowly(number)

    def discard_slowly(self, number: int) -> bool:
        """Discard out of order, at the end of a chunk, or of an entry that was delivered twice."""
        alias = self._aliases.pop(number, None)
        if alias is not None:
            number = alias.old
        if not self._head <= number < self._next or number in self._ahead:
            return False
        if number in self._expected_numbers:  # the holder of the first delivery is back
            del self._expected[self._expected_numbers.pop(number)]
        if number == self._head:
            self._move_head()
        else:
            self._ahead.add(number)
        self._set_turn()
        return True

    @override
    def discard_up_to(self, number: int) -> None:
        for alias in [alias for alias in self._aliases.values() if alias.number <= number]:
            self.discard_slowly(alias.number)
        while self._head <= number and self._head < self._next:
            self.discard_slowly(self._head)

    def _move_head(self) -> None:
        head = self._head + 1
        ahead = self._ahead
        while head in ahead:
            ahead.remove(head)
            head += 1
        self._head = head
        chunks = self._chunks
        while chunks and chunks[0].numbers[-1] < head:
            self._finish(chunks.popleft())

    def _set_turn(self) -> None:
        if self._ahead or self._expected or not self._chunks:
            self._turn = self._head
        else:
            self._turn = self._chunks[0].numbers[-1]

    def _finish(self, chunk: Chunk) -> None:
        """All entries of the chunk are discarded, and all before it."""
        if not self._acked and not self._waiting:
            self._recover(chunk.newest())
            return
        self._waiting.append(chunk)
        if len(self._waiting) > _WAITING_CHUNKS:
            self._release()
        if len(self._waiting) > _WAITING_CHUNKS:
            waiting = list(self._waiting)
            self._waiting = deque(
                Chunk.condensed(waiting[at : at + 2]) for at in range(0, len(waiting), 2)
            )

    # -- persisted acks -----------------------------------------------------------------------

    @override
    def persisted(self, bookmark: str) -> None:
        self._settle()
        for item in bookmark.split(","):
            publisher, sequence = self._publishers.parse(item)
            if 0 < sequence <= _LARGEST and self._publishers.ids[publisher]:
                self.persisted_at(publisher, sequence)

    def persisted_at(self, publisher: int, sequence: int) -> None:
        """A persisted ack, parsed."""
        self._cover[publisher] = max(sequence, self._cover.get(publisher, 0))
        self._covered_to = max(self._covered_to, self._position(publisher, sequence))
        if self._completed and not self._conflated and not self.paused:
            self._pending = (publisher, sequence, self._next - 1)
        self._release()
        self._settle()

    def _position(self, publisher: int, sequence: int) -> int:
        """The last entry of this link that an ack covers by its place; 0 when none is known."""
        for chunks in (self._chunks, self._waiting):
            for chunk in reversed(chunks):
                if chunk.numbers[-1] < self._link_first:
                    return 0
                found = chunk.last_of(publisher, sequence)
                if found:
                    return found
        return 0

    @override
    def completed(self, bookmark: str) -> None:
        publisher, sequence = self._publishers.parse(bookmark)
        if not 0 < sequence <= _LARGEST or not self._publishers.ids[publisher]:
            self._completed = True
        else:
            self.completed_at(publisher, sequence)

    def completed_at(self, publisher: int, sequence: int) -> None:
        """The replay is over, at a position that is known."""
        self._completed = True
        if self._next == self._link_first and self._base == (_NOW,) and not self._recovered:
            self._base = (Bookmark(self._publishers.ids[publisher], sequence),)
        elif not self._acked and not self._conflated:
            self._pending = (publisher, sequence, self._next - 1)
            self._settle()

    def _settle(self) -> None:
        """Take an ack as a recovery point once all that had arrived before it is discarded."""
        if self._pending is None or self._head <= self._pending[2]:
            return
        publisher, sequence, _ = self._pending
        self._pending = None
        self._recover({publisher: sequence})
        # The list now holds a position that is persisted everywhere and behind which nothing is
        # open, so entries of earlier links need no ack of their own any more. Those of the same
        # publisher above the ack do: they would take its place in the list.
        while self._waiting and self._waiting[0].numbers[0] < self._link_first:
            newest = self._waiting[0].newest()
            if newest.get(publisher, 0) > sequence:
                break
            self._recover(newest)
            self._waiting.popleft()
        self._release()

    def _release(self) -> None:
        """Move the recovery point over what is finished."""
        while self._waiting:
            chunk = self._waiting[0]
            count = self._covered(chunk)
            if count:
                self._recover(chunk.part(0, count).newest())
            if count < len(chunk.numbers):
                self._waiting[0] = chunk.part(count, len(chunk.numbers))
                return
            self._waiting.popleft()

    def _covered(self, chunk: Chunk) -> int:
        """How many entries at the front of a discarded chunk are finished."""
        if not self._acked:
            return len(chunk.numbers)
        this_link = chunk.numbers[0] >= self._link_first
        by_place = bisect_right(chunk.numbers, self._covered_to) if this_link else 0
        if chunk.publisher >= 0:
            cover = self._cover.get(chunk.publisher, 0)
            return max(by_place, bisect_right(chunk.sequences, cover))
        for index, (_, publisher, sequence) in enumerate(chunk.entries()):
            if index >= by_place and sequence > self._cover.get(publisher, 0):
                return index
        return len(chunk.numbers)

    def _recover(self, newest: dict[int, int]) -> None:
        recovered = self._recovered
        for publisher, sequence in newest.items():
            if sequence > recovered.get(publisher, 0):
                recovered[publisher] = sequence

    # -- asking -------------------------------------------------------------------------------

    @property
    @override
    def oldest_undiscarded(self) -> int:
        return self._head if self._head < self._next else 0

    @property
    @override
    def undiscarded_count(self) -> int:
        return self._next - self._head - len(self._ahead)

    @override
    def recovery_point(self) -> BookmarkList:
        self._settle()
        newest = dict(self._recovered)
        if not self._waiting and self._chunks:
            chunk = self._chunks[0]
            done = chunk.part(0, max(0, self._head - chunk.numbers[0]))
            count = self._covered(done) if done.numbers else 0
            if count:
                newest.update(chunk.part(0, count).newest())
        if newest:
            ids = self._publishers.ids
            return BookmarkList(
                tuple(Bookmark(ids[publisher], newest[publisher]) for publisher in newest)
            )
        return BookmarkList(self._start())

    def _start(self) -> tuple[Bookmark | Timestamp, ...]:
        """Where to begin while nothing is finished."""
        if self._base != (_NOW,) or (self._next == self._first and not self._entered_us):
            return self._base
        return (Timestamp(self._entered_us),) if self._entered_us else ()

    @override
    def resume(self) -> str:
        point = self.recovery_point()
        if self._range is None:
            return str(point)
        if not point.items:
            return str(self._range)
        return str(BookmarkRange(point, self._range.end, "(" + self._range.brackets[1]))


def _untracked(bookmark: str) -> int:
    if bookmark:
        _log.warning("cannot track a message with the bookmark %r", bookmark)
    return UNTRACKED

"""The parts of a subscription's record: publishers, chunks of entries, aliases.

**Condensing.** Which entries a tracker may drop that were discarded after an undiscarded one.

A message that stays open holds the recovery point, and a hundred thousand others may be discarded
after it in each second. Their numbers are kept as runs, so that a second discard of one still has
no effect. Of the entries only the last of each publisher in each *stretch* is kept: a stretch is a
part of the arrival order, on one link, without an undiscarded entry. So memory is bounded by the
undiscarded entries, the stretches between them, and the publishers.

No result changes. Let `d` be a dropped entry; then a later entry `k` of its publisher in the same
stretch is kept, and k's sequence is higher. Entries are used to answer only these questions:

- *What is open, what awaits redelivery?* Only undiscarded entries can be either.
- *Was it delivered before?* The highest sequence seen answers that, not the entries.
- *The recovery point, without acks:* the last of each publisher in front of the oldest undiscarded
  entry. The stretch has no such entry, so it lies in front of it as a whole, with k, or not at all.
- *The place of an ack:* the last entry of its publisher up to its sequence. Without d that is an
  earlier one, or none: the ack covers less by place, and by sequence what it would.
- *The recovery point, with acks:* as above, up to the first entry that no ack covers. Whatever
  covers k covers d, by sequence because k's is higher, by place because k came later. So if d is
  the first that is not covered, k is not covered either, and d's publisher is named once an ack
  covers k. Others may be named that came between the two: they are covered themselves, d was
  discarded, and so was all that is in front of them.

So without acks the answers are identical. With acks the list may name other positions, which are as
safe, and a publisher's position may lag by the entries that arrived since the last ack. Pure.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice, pairwise, repeat
from operator import le, lt
from typing import TYPE_CHECKING, Final

from haclient_stores.bookmark import Bookmark, BookmarkList

LARGEST: Final = 2**64 - 1
_DIGITS: Final = 64  # more than a sequence can have, zeros in front included
MIXED: Final = -1  # in place of a publisher: they differ


class Publishers:
    """Publisher ids as small numbers, shared by all subscriptions of a store."""

    __slots__ = ("_by_id", "_by_line", "by_text", "ids")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.by_text: dict[str, int] = {}
        self._by_id: dict[int, int] = {}
        self._by_line: dict[str, int] = {}  # for texts after a line break, as batches are split

    def index(self, publisher_id: int) -> int:
        """The index of a publisher id, a new one for an id that was never seen.

        Args:
            publisher_id: The id.
        """
        found = self._by_id.get(publisher_id)
        if found is None:
            found = self._by_id[publisher_id] = len(self.ids)
            self.ids.append(publisher_id)
        return found

    def index_of_text(self, text: str) -> int:
        """The index of a publisher id in its bookmark text form.

        Args:
            text: The id in decimal digits.

        Returns:
            The index; -1 for text that is not an id.
        """
        publisher_id = int(text) if _is_number(text) else -1
        if not 0 <= publisher_id <= LARGEST:
            return -1
        found = self.by_text[text] = self._by_line["\n" + text] = self.index(publisher_id)
        return found

    def bookmarks(self, newest: dict[int, int]) -> BookmarkList:
        """The list of bookmarks for one sequence of each publisher.

        Args:
            newest: The sequences by publisher index.
        """
        return BookmarkList(tuple(Bookmark(self.ids[p], newest[p]) for p in newest))

    def parse_batch(self, bookmarks: list[str]) -> tuple[int, list[int], list[int]] | None:
        """Parse many bookmarks at once, which takes a third of the time of parsing each.

        Args:
            bookmarks: Bookmarks in wire form; not empty.

        Returns:
            The publisher index of all or `MIXED`, the sequences, and the publishers if they differ.
            None when a bookmark is not in the usual form.
        """
        count = len(bookmarks)
        parts = "\n".join(bookmarks).split("|")
        text = parts[0]
        if len(parts) != 2 * count + 1:
            return None
        try:
            sequences = list(map(int, parts[1::2]))
        except ValueError:  # text where a sequence should be
            return None
        others = parts[2:-1:2]
        publisher = self.by_text.get(text, -1)
        if publisher < 0:
            publisher = self.index_of_text(text)
        if others.count("\n" + text) == count - 1:
            return (publisher, sequences, []) if publisher >= 0 else None
        publishers = [publisher, *map(self._by_line.get, others)]
        if None in publishers:  # new ones
            publishers[1:] = [self._index_of_line(line) for line in others]
        if -1 in publishers:
            return None
        return MIXED, sequences, publishers  # type: ignore[return-value]  # no None is left

    def _index_of_line(self, line: str) -> int:
        found = self._by_line.get(line, -1)
        return self.index_of_text(line[1:]) if found < 0 and line[:1] == "\n" else found

    def parse(self, bookmark: str) -> tuple[int, int]:
        """Publisher index and sequence of a message bookmark.

        Args:
            bookmark: The bookmark in wire form.

        Returns:
            Both; the sequence is 0 when the text is no message bookmark.
        """
        publisher, _, rest = bookmark.partition("|")
        sequence = rest.partition("|")[0]
        if not _is_number(sequence):
            return -1, 0
        index = self.by_text.get(publisher, -1)
        if index < 0:
            index = self.index_of_text(publisher)
        return (index, int(sequence)) if index >= 0 else (-1, 0)

    def position(self, bookmark: str) -> tuple[int, int] | None:
        """Publisher index and sequence of a bookmark that names a message.

        Args:
            bookmark: The bookmark in wire form.

        Returns:
            Both; None for NOW and for text that is no message bookmark.
        """
        publisher, sequence = self.parse(bookmark)
        if not 0 < sequence <= LARGEST or not self.ids[publisher]:
            return None
        return publisher, sequence

    @staticmethod
    def all_new(
        seen: dict[int, int], publisher: int, sequences: Sequence[int], publishers: Sequence[int]
    ) -> bool:
        """Whether each message is above the highest seen of its publisher, and those before it.

        Args:
            seen: The highest sequence seen of each publisher, by index.
            publisher: The publisher of all, or `MIXED`.
            sequences: The sequence of each.
            publishers: The publisher of each if they differ; else empty.
        """
        if not publishers:
            rising = all(map(lt, sequences, islice(sequences, 1, None)))
            return rising and sequences[0] > seen.get(publisher, 0)
        newest: dict[int, int] = {}
        for each, sequence in zip(publishers, sequences, strict=True):
            if sequence <= (newest.get(each) or seen.get(each, 0)):
                return False
            newest[each] = sequence
        return True

    @staticmethod
    def all_known(
        seen: dict[int, int], publisher: int, sequences: list[int], publishers: list[int]
    ) -> bool:
        """Whether all messages were seen before.

        After a fail-over the first few seconds are of this kind, and the application waits for what
        comes after them.

        Args:
            seen: The highest sequence seen of each publisher, by index.
            publisher: The publisher of all, or `MIXED`.
            sequences: The sequence of each.
            publishers: The publisher of each if they differ; else empty.
        """
        if min(sequences) <= 0:
            return False
        if not publishers:
            return max(sequences) <= seen.get(publisher, 0)
        return all(map(le, sequences, map(seen.get, publishers, repeat(0))))


def _is_number(text: str) -> bool:
    """Whether it is a number of a size that may occur; `int` refuses endless ones."""
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS


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
        """The entries between two indexes.

        Args:
            begin: The index of the first entry.
            end: The index after the last one.
        """
        return Chunk(
            self.numbers[begin:end],
            self.publisher,
            self.sequences[begin:end],
            self.publishers[begin:end],
        )

    def publishers_from(self, begin: int) -> Sequence[int]:
        """The publishers of the entries from an index on.

        Args:
            begin: The index of the first entry.
        """
        return self.publishers[begin:] if self.publisher < 0 else (self.publisher,)

    def newest(self) -> dict[int, int]:
        """The highest sequence of each publisher: the last one, since they rise."""
        if self.publisher >= 0:
            return {self.publisher: self.sequences[-1]}
        return dict(zip(self.publishers, self.sequences, strict=True))

    def oldest(self) -> dict[int, int]:
        """The lowest sequence of each publisher: the first one, since they rise."""
        if self.publisher >= 0:
            return {self.publisher: self.sequences[0]}
        return dict(zip(reversed(self.publishers), reversed(self.sequences), strict=True))

    def last_of(self, publisher: int, sequence: int) -> int:
        """The last entry of a publisher up to a sequence.

        Args:
            publisher: The index of the publisher.
            sequence: The sequence of the message.

        Returns:
            Its number; 0 when there is none.
        """
        if self.publisher == publisher:
            index = bisect_right(self.sequences, sequence)
            return self.numbers[index - 1] if index else 0
        found = 0
        if self.publisher < 0:
            for number, other, value in self.entries():
                if other == publisher and value <= sequence:
                    found = number
        return found

    def count_up_to(self, publisher: int, sequence: int) -> int:
        """How many entries come before the first one of a publisher above a sequence.

        Args:
            publisher: The index of the publisher.
            sequence: The highest sequence.
        """
        if self.publisher == publisher:
            return bisect_right(self.sequences, sequence)
        pairs = zip(self.publishers, self.sequences, strict=True) if self.publishers else ()
        above = (
            at for at, (each, value) in enumerate(pairs) if each == publisher and value > sequence
        )
        return next(above, len(self.numbers))

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
        return Chunk(numbers, MIXED, sequences, publishers)


@dataclass(frozen=True, slots=True)
class Alias:
    """A redelivered entry: its new number stands for the old one."""

    number: int
    old: int
    publisher: int
    sequence: int


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_NEVER: Final = 1 << 64  # above every number
_TOGETHER: Final = 4096  # entries in a new chunk, which is taken only when all are discarded


def condensed(
    chunks: Iterable[Chunk], discarded: list[tuple[int, int]], link_first: int
) -> deque[Chunk]:
    """The entries that an answer may depend on, in new chunks.

    Args:
        chunks: Entries in arrival order.
        discarded: Runs of numbers, rising.
        link_first: The first number of this link; no chunk lies on both sides of it.
    """
    kept = _Kept()
    stretch: list[Chunk] = []
    for piece, is_discarded in _pieces(chunks, discarded):
        if kept.ends_before(link_first, piece.numbers[0], stretch):
            kept.add_all(stretch)
            kept.cut()
        if is_discarded:
            stretch.append(piece)
        else:
            kept.add_all(stretch)
            kept.add(piece)
    kept.add_all(stretch)
    kept.cut()
    return kept.chunks


def condensed_groups(chunks: Iterable[Chunk], edges: list[int]) -> deque[Chunk]:
    """The last entry of each publisher in each group of discarded entries.

    Args:
        chunks: Entries in arrival order.
        edges: The first number of each group, rising, and at last a number above all.
    """
    pieces = (piece for piece, _ in _pieces(chunks, list(pairwise(edges))))
    groups = groupby(pieces, key=lambda piece: bisect_right(edges, piece.numbers[0]))
    return deque(Chunk.condensed(group) for _, group in groups)


def _pieces(
    chunks: Iterable[Chunk], discarded: list[tuple[int, int]]
) -> Iterator[tuple[Chunk, bool]]:
    """Parts of chunks that are wholly discarded or wholly undiscarded, and which of the two."""
    runs = iter([*discarded, (_NEVER, _NEVER)])
    begin, end = next(runs)
    for chunk in chunks:
        numbers = chunk.numbers
        at = 0
        while at < len(numbers):
            while end <= numbers[at]:
                begin, end = next(runs)
            is_discarded = begin <= numbers[at]
            to = bisect_left(numbers, end if is_discarded else begin, at)
            yield chunk if to - at == len(numbers) else chunk.part(at, to), is_discarded
            at = to


class _Kept:
    """Kept entries, combined into chunks of a suitable size."""

    def __init__(self) -> None:
        self.chunks: deque[Chunk] = deque()
        self._clear()

    def _clear(self) -> None:
        self._numbers = array("Q")
        self._publishers = array("q")
        self._sequences = array("Q")

    def ends_before(self, link_first: int, number: int, stretch: list[Chunk]) -> bool:
        """Whether what is here came on an earlier link, and `number` on this one."""
        if number < link_first:
            return False
        last = (
            stretch[-1].numbers[-1] if stretch else self._numbers[-1] if self._numbers else number
        )
        return last < link_first

    def add_all(self, stretch: list[Chunk]) -> None:
        """Add what is kept of a stretch, and begin another."""
        if stretch:
            self.add(Chunk.condensed(stretch))
            stretch.clear()

    def add(self, piece: Chunk) -> None:
        """Add entries."""
        self._numbers.extend(piece.numbers)
        self._sequences.extend(piece.sequences)
        same = array("q", [piece.publisher]) * len(piece.numbers)
        self._publishers.extend(piece.publishers or same)
        if len(self._numbers) >= _TOGETHER:
            self.cut()

    def cut(self) -> None:
        """Make a chunk of what is here."""
        numbers, publishers = self._numbers, self._publishers
        if not numbers:
            return
        only = publishers[0]
        if publishers.count(only) == len(publishers):
            self.chunks.append(Chunk(numbers, only, self._sequences))
        else:
            self.chunks.append(Chunk(numbers, MIXED, self._sequences, publishers))
        self._clear()

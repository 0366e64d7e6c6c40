"""What a tracker may forget of entries that were discarded behind an undiscarded one.

A message that stays open holds the recovery point, and a hundred thousand others may be discarded
behind it in each second. Their numbers are kept as runs, so that a second discard is still none.
Of the entries only the last of each publisher in each *stretch* are kept: a stretch is a part of
the arrival order with nothing undiscarded in it, on one link. So memory is bounded by the
undiscarded entries, the stretches between them, and the publishers.

Why nobody can tell. Let `d` be an entry that is dropped; then a later entry `k` of its publisher in
the same stretch is kept, and k's sequence is higher. All that is ever asked of entries is this:

- *What is open, what is expected again?* Only undiscarded entries can be either.
- *Was it delivered before?* That is told by the highest sequence seen, not by entries.
- *The recovery point, without acks:* the last of each publisher in front of the oldest undiscarded
  entry. The stretch has no such entry, so it lies in front of it as a whole, with k, or not at all.
- *The place of an ack:* the last entry of its publisher up to its sequence. Without d that is an
  earlier one, or none: the ack covers less by place, and by sequence what it would.
- *The recovery point, with acks:* as above, up to the first entry that no ack covers. Whatever
  covers k covers d, by sequence because k's is higher, by place because k came later. So if d is
  the first that is not covered, k is not covered either, and d's publisher is named once an ack
  covers k. Others may be named that came between the two: they are covered themselves, d was
  discarded, and so was all that is in front of them.

So without acks the answers are the same ones. With acks the list may name other places, which are
as safe, and a publisher's may lag by what has come since the last ack. Pure.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING, Final

from haclient_stores.tracker.entries import MIXED, Chunk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["condensed"]

_NEVER: Final = 1 << 64  # above every number
_TOGETHER: Final = 4096  # entries in a new chunk: the head leaves it behind as a whole


def condensed(
    chunks: Iterable[Chunk], discarded: list[tuple[int, int]], link_first: int
) -> deque[Chunk]:
    """The same entries but for those that nobody asks for, in new chunks.

    Args:
        chunks: Entries in arrival order.
        discarded: Runs of numbers, rising.
        link_first: The first number of this link; no chunk lies on both sides of it.
    """
    kept = _Kept()
    stretch: list[Chunk] = []
    for piece, gone in _pieces(chunks, discarded):
        if kept.ends_before(link_first, piece.numbers[0], stretch):
            kept.add_all(stretch)
            kept.cut()
        if gone:
            stretch.append(piece)
        else:
            kept.add_all(stretch)
            kept.add(piece)
    kept.add_all(stretch)
    kept.cut()
    return kept.chunks


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
            gone = begin <= numbers[at]
            to = bisect_left(numbers, end if gone else begin, at)
            yield chunk if to - at == len(numbers) else chunk.part(at, to), gone
            at = to


class _Kept:
    """Entries that are kept, put together to chunks of a handy size."""

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

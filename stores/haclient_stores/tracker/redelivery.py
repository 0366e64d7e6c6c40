"""Entries that come a second time (see `tracking`).

An entry is *expected* when nobody holds it any more and it is not discarded. When it comes again it
gets a new number, its *alias*, and somebody holds it under that. If that holder's link is lost too,
the entry is expected again and its last alias has *lapsed*: a discard under it still counts. Pure.
"""

from __future__ import annotations

from copy import copy
from itertools import takewhile
from typing import TYPE_CHECKING

from haclient_stores.tracker.entries import Alias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from haclient_stores.tracker.entries import Chunk

__all__ = ["Redelivery"]


class Redelivery:
    """Expected entries and aliases.

    Attributes:
        aliases: Entries that were delivered a second time and are not discarded, by new number.
        lapsed: The last alias of each entry that is expected again: its holder may still discard.
        places: Publisher and sequence of the expected entries, by number.
    """

    __slots__ = ("_current", "_numbers", "aliases", "lapsed", "places")

    def __init__(self) -> None:
        self.aliases: dict[int, Alias] = {}
        self.lapsed: dict[int, Alias] = {}
        self.places: dict[int, tuple[int, int]] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        self._current: dict[int, int] = {}  # the alias of an entry, by its own number

    def __bool__(self) -> bool:
        """Whether some old numbers are not what anybody holds now."""
        return bool(self.aliases or self.places)

    def frozen(self) -> Redelivery:
        """A copy that stays as it is, to be written down."""
        twin = copy(self)
        twin.aliases, twin.lapsed = dict(self.aliases), dict(self.lapsed)
        twin.places = dict(self.places)
        return twin

    def expects(self, publisher: int, sequence: int) -> bool:
        """Whether this message is to be delivered though it was seen before."""
        return (publisher, sequence) in self._numbers

    def expects_any(self, publishers: Iterable[int], sequences: Iterable[int]) -> bool:
        """The same for any of several."""
        return bool(self._numbers) and not self._numbers.keys().isdisjoint(
            zip(publishers, sequences, strict=False)
        )

    def expect(self, number: int, publisher: int, sequence: int) -> None:
        """Nobody holds the entry any more."""
        self._numbers[publisher, sequence] = number
        self.places[number] = (publisher, sequence)

    def lose(
        self, first_queued: int, chunks: Iterable[Chunk], *, is_open: Callable[[int], bool]
    ) -> None:
        """Entries and aliases from this number on are held by nobody.

        Args:
            first_queued: The first number that was never handed out.
            chunks: The entries that are not wholly discarded.
            is_open: Whether an old number stands for an entry that is not discarded.
        """
        lost = [each for each in self.aliases.values() if each.number >= first_queued]
        # A discard under an entry's own number, in order, does not look for its alias.
        stale = [each for each in self.aliases.values() if not is_open(each.old)]
        for alias in {each.number: each for each in (*lost, *stale)}.values():
            del self.aliases[alias.number], self._current[alias.old]
            if is_open(alias.old):
                self.expect(alias.old, alias.publisher, alias.sequence)
        latest = {alias.old: alias for alias in (*self.lapsed.values(), *lost)}
        self.lapsed = {each.number: each for each in latest.values() if is_open(each.old)}
        held = self._current
        for chunk in chunks:
            if chunk.numbers[-1] < first_queued:
                continue
            for number, publisher, sequence in chunk.entries():
                if number >= first_queued and number not in held and is_open(number):
                    self.expect(number, publisher, sequence)

    def give(self, number: int, publisher: int, sequence: int) -> Alias:
        """An expected entry came again under a new number."""
        old = self._numbers.pop((publisher, sequence))
        del self.places[old]
        alias = self.aliases[number] = Alias(number, old, publisher, sequence)
        self._current[old] = number
        return alias

    def resolve_alias(self, number: int) -> int:
        """The own number of the entry that somebody discards under this number."""
        alias = self.aliases.get(number) or self.lapsed.pop(number, None)
        return number if alias is None else alias.old

    def forget(self, number: int) -> None:
        """The entry of this own number was discarded, under whichever number."""
        if (place := self.places.pop(number, None)) is not None:
            del self._numbers[place]
        if (alias := self._current.pop(number, None)) is not None:
            del self.aliases[alias]

    def is_elsewhere(self, number: int) -> bool:
        """Whether an open entry is not held under its own number."""
        return number in self.places or number in self._current

    def aliases_up_to(self, number: int) -> list[int]:
        """The aliases up to this number, rising."""
        return list(takewhile(number.__ge__, self.aliases))

"""Entries that are delivered a second time.

An undiscarded entry *awaits redelivery* when no consumer holds it any more: its link was lost while
it was queued, or its process has died. Its redelivery gets a new number, its *alias*, under which
the consumer holds it. If that link is lost too, the entry awaits redelivery again and its last
alias is *superseded*: a discard under it still counts, one under an earlier alias does not. Keeping
all aliases would take memory for every queued message at every lost link. Pure.

A log is read back without `exempt`: then more awaits redelivery than in the process that wrote it.
A discard counts under the same numbers all the same, and a process that has ended holds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from copy import copy
from itertools import takewhile

from typing_extensions import override

from haclient_stores.tracker.entries import Alias, Chunk


class AllBut(Container[int]):
    """All numbers but these."""

    __slots__ = ("_others",)

    def __init__(self, others: Container[object]) -> None:
        self._others = others

    @override
    def __contains__(self, number: object) -> bool:
        return number not in self._others


class Redelivery:
    """Entries that await redelivery, and aliases of those that were redelivered.

    Publishers are indexes of `Publishers`.

    Attributes:
        aliases: The current alias of each redelivered, undiscarded entry, by new number; rising.
        superseded: The last alias of each entry that awaits redelivery again, by that number.
        awaiting: Publisher and sequence of the entries that await redelivery, by number.
    """

    __slots__ = ("_current", "_numbers", "aliases", "awaiting", "superseded")

    def __init__(self) -> None:
        self.aliases: dict[int, Alias] = {}
        self.superseded: dict[int, Alias] = {}
        self.awaiting: dict[int, tuple[int, int]] = {}
        self._numbers: dict[tuple[int, int], int] = {}  # the inverse of `awaiting`
        self._current: dict[int, int] = {}  # the alias of an entry, by its own number

    def __bool__(self) -> bool:
        """Whether some entry is not held under its own number."""
        return bool(self.aliases or self.awaiting)

    def frozen(self) -> Redelivery:
        """A copy to be written down; later changes do not reach it."""
        twin = copy(self)
        twin.aliases, twin.superseded = dict(self.aliases), dict(self.superseded)
        twin.awaiting = dict(self.awaiting)
        return twin

    def awaits(self, publisher: int, sequence: int) -> bool:
        """Whether a message that was seen before must be delivered again.

        Args:
            publisher: The index of the publisher.
            sequence: The sequence of the message.
        """
        return (publisher, sequence) in self._numbers

    def awaits_any(self, publishers: Iterable[int], sequences: Iterable[int]) -> bool:
        """Whether any of several messages that were seen before must be delivered again.

        Args:
            publishers: The index of the publisher of each.
            sequences: The sequence of each.
        """
        return bool(self._numbers) and not self._numbers.keys().isdisjoint(
            zip(publishers, sequences, strict=False)
        )

    def await_redelivery(self, number: int, publisher: int, sequence: int) -> None:
        """Mark an undiscarded entry that no consumer holds any more.

        Args:
            number: Its own number.
            publisher: The index of the publisher.
            sequence: The sequence of the message.
        """
        self._numbers[publisher, sequence] = number
        self.awaiting[number] = (publisher, sequence)

    def link_lost(
        self,
        first_queued: int,
        chunks: Iterable[Chunk],
        *,
        is_open: Callable[[int], bool],
        exempt: Container[int] = (),
    ) -> None:
        """Mark all undiscarded entries and aliases from a number on as awaiting redelivery.

        Args:
            first_queued: The first number that was never delivered.
            chunks: The entries that are not wholly discarded.
            is_open: Whether an own number stands for an entry that is not discarded.
            exempt: The numbers of messages that a handler still processes.
        """
        lost = [each for each in self.aliases.values() if each.number >= first_queued]
        # An in-order discard under an entry's own number does not look for the entry's alias.
        stale = [each for each in self.aliases.values() if not is_open(each.old)]
        released = (each for each in lost if each.number not in exempt)
        for alias in {each.number: each for each in (*released, *stale)}.values():
            del self.aliases[alias.number], self._current[alias.old]
            if is_open(alias.old):
                self.await_redelivery(alias.old, alias.publisher, alias.sequence)
        latest = {alias.old: alias for alias in (*self.superseded.values(), *lost)}
        self.superseded = {each.number: each for each in latest.values() if is_open(each.old)}
        held = self._current
        for chunk in chunks:
            if chunk.numbers[-1] < first_queued:
                continue
            for number, publisher, sequence in chunk.entries():
                if number < first_queued or number in held or number in exempt:
                    continue
                if is_open(number):
                    self.await_redelivery(number, publisher, sequence)

    def redeliver(self, number: int, publisher: int, sequence: int) -> Alias:
        """Make `number` the alias of the entry that awaits redelivery of this message.

        Args:
            number: A new number.
            publisher: The index of the publisher.
            sequence: The sequence of the message.

        Returns:
            The alias.

        Raises:
            KeyError: No entry awaits it.
        """
        old = self._numbers.pop((publisher, sequence))
        del self.awaiting[old]
        alias = self.aliases[number] = Alias(number, old, publisher, sequence)
        self._current[old] = number
        return alias

    def resolve_alias(self, number: int) -> int:
        """The own number of the entry that is discarded under a number.

        Args:
            number: A number that a consumer holds: an own one, or an alias, superseded or not.
        """
        alias = self.aliases.get(number) or self.superseded.pop(number, None)
        return number if alias is None else alias.old

    def forget(self, number: int) -> None:
        """Drop what is known of an entry that was discarded.

        Args:
            number: Its own number.
        """
        if (place := self.awaiting.pop(number, None)) is not None:
            del self._numbers[place]
        if (alias := self._current.pop(number, None)) is not None:
            del self.aliases[alias]

    def is_elsewhere(self, number: int) -> bool:
        """Whether an open entry is not held under its own number.

        Args:
            number: Its own number.
        """
        return number in self.awaiting or number in self._current

    def aliases_up_to(self, number: int) -> list[int]:
        """The current aliases up to a number, rising.

        Args:
            number: The highest alias.
        """
        return list(takewhile(number.__ge__, self.aliases))

"""Messages of a conflated subscription whose bookmarks were seen before.

A server merges the messages of an interval under the bookmark of the first one. A replay has other
intervals, so a message under a discarded bookmark may hold newer values: it is delivered. The
bookmark store cannot track it, since its entry for that bookmark is finished. So the order is kept
here: until the application has discarded such a message, the discards of later messages are held
back. The recovery point stays before it, and a resume delivers its content again.

Held discards are lost with the process: those messages are redelivered, as conflated ones may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import TypeAlias

from haclient.protocol.messages import Message, MessageOwner
from haclient_stores.tracker.tracker import UNTRACKED

DiscardCall: TypeAlias = Callable[[Callable[[int], None], int], None]
"""Calls a function with a number on the client's thread, whichever thread asks for it."""


def call_directly(function: Callable[[int], None], number: int) -> None:
    """A `DiscardCall` for programs of one thread."""
    function(number)


class ReseenDiscards:
    """Discards the messages of one conflated subscription in order, once some were redelivered.

    Args:
        owner: The bookmark log of the subscription, which has numbered the messages.
        call: Brings a discard to the client's thread.
    """

    __slots__ = ("_call", "_held", "_last", "_next", "_open", "_owner")

    def __init__(self, owner: MessageOwner, call: DiscardCall) -> None:
        self._owner = owner
        self._call = call
        self._open: dict[int, int] = {}  # to the number of the last tracked message before it
        self._held: list[int] = []
        self._last = 0
        self._next = UNTRACKED - 1

    def take(self, messages: Sequence[Message]) -> None:
        """Own the messages of a run; those with the number 0 get one below `UNTRACKED`."""
        for message in messages:
            message.owner = self
            if message.number == 0:
                message.number = self._next
                self._open[self._next] = self._last
                self._next -= 1
            elif message.number > 0:
                self._last = message.number

    def discard(self, number: int, /) -> None:
        """Discard a message, and then the held discards that waited for it.

        Args:
            number: The message's number.
        """
        self._call(self._discard, number)

    def _discard(self, number: int) -> None:
        if number < 0:
            self._finish([number])
        elif number <= self._limit:
            self._owner.discard(number)
        else:
            self._held.append(number)

    def dropped(self, numbers: Iterable[int]) -> None:
        """Note messages that were dropped before they were delivered: they are redelivered.

        Args:
            numbers: Their numbers.
        """
        self._finish(numbers)

    @property
    def _limit(self) -> float:
        """The highest number whose discard is not held back; infinity if none is."""
        return next(iter(self._open.values()), inf)  # they rise

    def _finish(self, numbers: Iterable[int]) -> None:
        """Forget messages that nobody has to discard any more, and discard what waited for them."""
        before = self._limit
        for number in numbers:
            self._open.pop(number, None)
        limit = self._limit
        if limit == before:
            return
        ready = [number for number in self._held if number <= limit]
        self._held = [number for number in self._held if number > limit]
        for number in ready:
            self._owner.discard(number)

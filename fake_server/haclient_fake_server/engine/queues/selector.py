"""Which message the consumers of one filter get next.

The messages of a queue are examined once, in the order of the log, as far as consumers need them:
`_examined` is the position up to which that was done. What became available again behind it
is in a heap. An entry of the heap may be out of date: it counts only while its message is
available.

A queue with priorities needs all messages examined before the highest one is known. So there
every match enters the heap. Without filter and priorities nothing is to be examined: the table
knows its first available message.
"""

from __future__ import annotations

import heapq
from typing import Final, Protocol, TypeAlias

from haclient_fake_server.engine.connections import QueueSubscription
from haclient_fake_server.engine.filters import Document, Filter
from haclient_fake_server.engine.queues.message_table import AVAILABLE, MessageTable
from haclient_fake_server.engine.queues.roster import Roster
from haclient_stores.errors import StoreError

Key: TypeAlias = tuple[float, int]
"""The order of delivery: the negative priority, 0 without priorities; then the position."""

UNREAD_COST: Final = 0.1
"""The cost of sorting a message by its priority; reading one costs 1."""

_SLACK: Final = 1024
"""So many obsolete entries of the heap are never worth a sweep."""


class Bodies(Protocol):
    """Gives the selector the messages that its filter examines."""

    def document(self, position: int) -> Document | None:
        """A message, `None` when its record is no longer in the journal."""


class Rereading(Protocol):
    """What may read the journal again."""

    @property
    def has_read_enough(self) -> bool:
        """Whether others have their turn."""
        ...


class ScanBudget:
    """How many messages may still be read for filters in this batch.

    Args:
        messages: So many.
        queue: Whose messages, if it may have to read the journal again for them.
    """

    def __init__(self, messages: int, queue: Rereading | None = None) -> None:
        self.left: float = messages
        self._queue = queue

    @property
    def is_spent(self) -> bool:
        """Whether the rest has to wait for a later batch."""
        return self.left <= 0 or (self._queue is not None and self._queue.has_read_enough)


class Selector:
    """The messages for the consumers of one filter.

    Args:
        table: The messages of the queue.
        matches: The filter, `None` for all messages.
        by_priority: Whether the queue has priorities.
        roster: Its consumers that have room.

    Attributes:
        is_plain: Whether the next message is the first available one.
        roster: Its consumers that have room.
        consumers: All its consumers by number.
    """

    def __init__(
        self, table: MessageTable, matches: Filter | None, *, by_priority: bool, roster: Roster
    ) -> None:
        self._table = table
        self._matches = matches
        self._by_priority = by_priority
        self.is_plain = matches is None and not by_priority
        self._examined = 0
        self._matched = 0  # the position that was found to match, and was not taken yet
        self._heap: list[Key] = []
        self.roster = roster
        self.consumers: dict[int, QueueSubscription] = {}

    @property
    def wants_all(self) -> bool:
        """Whether it has no filter."""
        return self._matches is None

    def accepts(self, document: Document | None) -> bool:
        """Whether its consumers want a message; all want a removed one, so that it is reported."""
        if self._matches is None or document is None:
            return True
        try:
            return self._matches(document)
        except Exception as error:  # of this filter; the queue serves others, too
            for each in tuple(self.consumers.values()):
                each.connection.failed(each.connection, error)
            return False

    def returned(self, position: int, bodies: Bodies) -> None:
        """A message that was leased is available again."""
        if position >= self._examined or self.is_plain:
            return
        try:
            is_wanted = self._matches is None or self.accepts(bodies.document(position))
        except StoreError:  # it cannot be read now: it is examined again, with what follows it
            self._examined = position
            self._heap = [key for key in self._heap if key[1] < position]
            heapq.heapify(self._heap)
            return
        if is_wanted:
            heapq.heappush(self._heap, self._key(position))
            if len(self._heap) > 2 * self._table.available + _SLACK:
                self._heap = [key for key in set(self._heap) if self._is_available(key[1])]
                heapq.heapify(self._heap)

    def next(self, before: int | None, bodies: Bodies, budget: ScanBudget) -> Key | None:
        """The message that comes next, which stays until it is leased or removed.

        Args:
            before: Only messages before this position; `None` for all.
            bodies: The messages.
            budget: When it is spent, the answer is `None`, and the next call goes on.
        """
        if self.is_plain:
            position = self._table.first_available()
            return None if position is None or position == before else (0.0, position)
        heap = self._heap
        if self._by_priority and not self._examine_all(bodies, budget):
            return None
        while heap and not self._is_available(heap[0][1]):
            heapq.heappop(heap)
        if heap:
            return heap[0]  # before all that was not examined
        return None if self._by_priority else self._examine(before, bodies, budget)

    def _examine(self, before: int | None, bodies: Bodies, budget: ScanBudget) -> Key | None:
        """The first match that was not examined before."""
        table = self._table
        while (position := table.next_available(self._examined)) is not None:
            if before is not None and position >= before:
                return None
            self._examined = position
            if position == self._matched:
                return (0.0, position)
            if budget.is_spent:
                return None
            budget.left -= 1
            if self.accepts(bodies.document(position)):
                self._matched = position
                return (0.0, position)
            self._examined = position + 1
        return None

    def _examine_all(self, bodies: Bodies, budget: ScanBudget) -> bool:
        """Put every match into the heap; whether all messages were examined."""
        cost = UNREAD_COST if self._matches is None else 1
        while (position := self._table.next_available(self._examined)) is not None:
            if budget.is_spent:
                return False
            budget.left -= cost
            if self._matches is None or self.accepts(bodies.document(position)):
                heapq.heappush(self._heap, self._key(position))
            self._examined = position + 1
        return True

    def _key(self, position: int) -> Key:
        return (-self._table.priority(position) if self._by_priority else 0.0, position)

    def _is_available(self, position: int) -> bool:
        return self._table.state(position) == AVAILABLE

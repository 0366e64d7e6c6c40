"""One message queue: which messages it holds, who has them, and what becomes of them.

A queue is a view over the log: it knows where each message is, and not what it says. A message is
*available*, or *leased* to one consumer, or gone for a reason (`RemovalReason`).

=================  =========================================================================
at-least-once      a delivery is a lease; a lease that ends without an acknowledgement returns
                   the message to its place
at-most-once       a delivery removes the message; until it is acknowledged it only counts
                   against the backlog of its consumer
=================  =========================================================================

What is removed is collected in `removals` and has to be recorded in the journal before anything
that depends on it is sent. Leases and the counts of deliveries and cancels live in memory only:
after a restart all that was not removed is available again.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from haclient_fake_server.engine.connections import Connection, QueueSubscription
from haclient_fake_server.engine.filters import Document, compile_expression, compile_filter
from haclient_fake_server.engine.queues.deadlines import NEVER_US, Deadlines
from haclient_fake_server.engine.queues.message_reader import MessageReader
from haclient_fake_server.engine.queues.message_table import (
    AVAILABLE,
    LEASED,
    REMOVED,
    MessageTable,
    Place,
    Row,
)
from haclient_fake_server.engine.queues.roster import ROSTERS
from haclient_fake_server.engine.queues.selector import Key, ScanBudget, Selector
from haclient_fake_server.engine.queues.snapshot import QueueColumns
from haclient_fake_server.engine.settings import QueueTopic
from haclient_fake_server.journal.format import Record, Removal, RemovalReason

MICROSECONDS: Final = 1_000_000

_NAMES: Final[dict[int, str]] = {reason: reason.name.lower() for reason in RemovalReason}

_LOWEST_PRIORITY: Final = float("-inf")
"""That of a message without a number where the priority should be."""


class Lease:
    """A message that a consumer has.

    Attributes:
        position: Its position in the log.
        bookmark: Its bookmark.
        consumer: Who has it.
        publisher_id: The id of its publisher.
        sequence: Its sequence.
        place: Where its record is in the journal.
        due_us: When the lease ends; `None` for never.
        deliveries: How often the message was delivered, with this time.
        cancels: How often it was returned with `cancel`.
    """

    __slots__ = (
        "bookmark",
        "cancels",
        "consumer",
        "deliveries",
        "due_us",
        "place",
        "position",
        "publisher_id",
        "sequence",
    )

    def __init__(self, row: Row, consumer: QueueSubscription, due_us: int | None) -> None:
        self.position, self.publisher_id, self.sequence, self.place = row
        self.bookmark = f"{self.publisher_id}|{self.sequence}|"
        self.consumer = consumer
        self.due_us = due_us
        self.deliveries = 1
        self.cancels = 0


class Delivery(NamedTuple):
    """A message and who gets it: one consumer, or all that want it if it is a barrier."""

    position: int
    consumers: tuple[QueueSubscription, ...]
    is_barrier: bool = False


class Expired(NamedTuple):
    """A message that is about to be removed unprocessed."""

    position: int
    bookmark: str
    reason: RemovalReason
    deliveries: int
    cancels: int


class Queue:
    """One queue.

    Args:
        settings: Its configuration.
        reader: Reads the messages that filters examine.
        dirty: Where it enters itself when there may be something to deliver or to record.
        expiring: Called with each message that is removed unprocessed, while it is still there.

    Attributes:
        settings: Its configuration.
        is_at_most_once: Whether a delivery removes the message.
        table: The messages that it holds.
        consumers: Its consumers by number.
        removals: What was removed and is not in the journal yet.
        counts: How many messages were delivered, redelivered, cancelled, and removed for which
            reason, since the broker was started.

    Raises:
        FilterError: The barrier or the priority is malformed.
    """

    def __init__(
        self,
        settings: QueueTopic,
        reader: MessageReader,
        *,
        dirty: dict[Queue, None],
        expiring: Callable[[Queue, Expired], None],
    ) -> None:
        self.settings = settings
        self._reader = reader
        self._dirty = dirty
        self._expiring = expiring
        self.is_at_most_once = settings.semantics == "at-most-once"
        lease_s = None if self.is_at_most_once else settings.lease_s
        self._lease_us = None if lease_s is None else round(lease_s * MICROSECONDS)
        self._priority = compile_expression(settings.priority) if settings.priority else None
        self._barrier = compile_filter(settings.barrier) if settings.barrier else None
        self.table = MessageTable(has_priorities=self._priority is not None)
        self.consumers: dict[int, QueueSubscription] = {}
        self._selectors: dict[str, Selector] = {}  # by the text of the filter
        self._filter_texts: dict[int, str] = {}  # by consumer
        self._open: dict[str, Selector] = {}  # those of which a consumer has room
        self._last_document: tuple[int, Document] | None = None
        self._served = 0
        self._changed: dict[int, QueueSubscription] = {}  # those whose room has changed
        # The only one with room, who gets all messages until that changes: mostly the one that has
        # just acknowledged some.
        self._sole: QueueSubscription | None = None
        self._by_bookmark: dict[str, Lease] = {}
        self._by_position: dict[int, Lease] = {}
        self._held: dict[int, dict[int, Lease]] = {}  # by consumer, then by position
        self._attempts: dict[int, tuple[int, int]] = {}  # of returned messages
        self._lease_ends = Deadlines()
        self._expirations = Deadlines()
        self._expired_meanwhile: set[int] = set()  # leased messages
        self._barriers: deque[int] = deque()
        self.removals: list[Removal] = []
        self.counts: Counter[str] = Counter()

    @property
    def unacknowledged(self) -> int:
        """How many messages consumers have."""
        return len(self._by_position)

    @property
    def next_due_us(self) -> int | None:
        """When `tick` has something to do, in microseconds since 1970; `None` for never."""
        due_us = min(self._lease_ends.next_us, self._expirations.next_us)
        return None if due_us == NEVER_US else due_us

    def touch(self) -> None:
        """Have the queue looked at in this batch."""
        self._dirty[self] = None

    # --- messages --------------------------------------------------------------------------------

    def enter(self, record: Record, document: Document, place: Place = 0) -> None:
        """Add a message of an underlying topic, behind all others.

        Args:
            record: Its record, whose time is when this instance received it.
            document: Its body.
            place: Where the record is in the journal.
        """
        position, publisher_id, sequence = record[:3]
        if self._priority is None:
            self.table.add(position, publisher_id, sequence, place=place)
        else:
            priority = _number(self._priority(document))
            self.table.add(position, publisher_id, sequence, priority=priority, place=place)
        lifetime_s = self._lifetime_s(record.expiration_s)
        if lifetime_s is not None:
            due_us = record.timestamp_us + round(lifetime_s * MICROSECONDS)
            self._expirations.add(due_us, position)
        if self._barrier is not None and self._barrier(document):
            self._barriers.append(position)
            self._sole = None
        self._dirty[self] = None

    def _lifetime_s(self, own_s: int | None) -> float | None:
        """How long a message may wait, `None` for ever; what is not set does not count."""
        queue_s, model = self.settings.expiration_s, self.settings.expiration_model
        message_s = math.inf if own_s == 0 else own_s  # 0 is for ever
        both = [each for each in (queue_s, message_s) if each is not None]
        if model == "queue" or not both:
            chosen = queue_s
        elif model == "latest":
            chosen = max(both)
        elif model == "earliest":
            chosen = min(both)
        else:
            chosen = both[-1]
        return None if chosen == math.inf else chosen

    def restore_removal(self, publisher_id: int, sequence: int) -> None:
        """Remove a message as the journal says; nothing for one that the queue does not hold."""
        position = self.table.find(publisher_id, sequence)
        if position is not None:
            self.table.remove(position)

    def remove_elsewhere(self, publisher_id: int, sequence: int, reason: int) -> None:
        """Remove a message that has left the queue on another instance, leased here or not."""
        position = self.table.find(publisher_id, sequence)
        if position is not None:
            self._remove(position, reason)

    def lost(self, position: int) -> None:
        """Remove a message that was handed out, whose record is no longer in the journal."""
        lease = self._by_position.get(position)
        if self.is_at_most_once and lease is not None:
            self._forget(lease)  # it was removed when it was handed out
        else:
            self._remove(position, RemovalReason.LOST)

    # --- consumers -------------------------------------------------------------------------------

    def subscribe(self, consumer: QueueSubscription) -> None:
        """Add a consumer; one that is known has another filter or backlog and keeps its leases."""
        number, text = consumer.number, consumer.filter_text
        self._leave_selector(number)
        self._filter_texts[number] = text
        selector = self._selectors.get(text)
        if selector is None:
            selector = self._selectors[text] = Selector(
                self.table,
                consumer.filter,
                by_priority=self._priority is not None,
                roster=ROSTERS[self.settings.chosen_delivery](),
            )
        selector.consumers[number] = consumer
        self.consumers[number] = consumer
        self._held.setdefault(number, {})
        consumer.queues[self.settings.name] = self
        self.room_changed(consumer)
        self._dirty[self] = None

    def unsubscribe(self, consumer: QueueSubscription) -> None:
        """Remove a consumer; its messages return to the queue."""
        del consumer.queues[self.settings.name]  # it is not told of its room any more
        self._leave_selector(consumer.number)
        for lease in list(self._held[consumer.number].values()):
            self._end_lease(lease)
        del self._held[consumer.number], self.consumers[consumer.number]
        self._dirty[self] = None

    def _leave_selector(self, number: int) -> None:
        self._sole = None
        text = self._filter_texts.pop(number, None)
        if text is None:
            return
        selector = self._selectors[text]
        del selector.consumers[number]
        selector.roster.discard(number)
        if not selector.roster:
            self._open.pop(text, None)
        if not selector.consumers:
            del self._selectors[text]

    def room_changed(self, consumer: QueueSubscription) -> None:
        """A consumer has room, or more or less of it; its roster learns it when it is asked."""
        self._changed[consumer.number] = consumer
        self._sole = None
        self._dirty[self] = None

    def room_taken(self, consumer: QueueSubscription) -> None:
        """A consumer has less room; nothing is to be done for that but at the next delivery."""
        self._changed[consumer.number] = consumer

    def _update_rosters(self) -> None:
        for number, consumer in self._changed.items():
            text = self._filter_texts.get(number)
            if text is None:
                continue  # it has left
            selector = self._selectors[text]
            if consumer.has_room:
                selector.roster.put(number, consumer.used)
                self._open[text] = selector
            else:
                selector.roster.discard(number)
                if not selector.roster:
                    self._open.pop(text, None)
        self._changed.clear()

    # --- delivery --------------------------------------------------------------------------------

    def next_delivery(self, budget: ScanBudget) -> Delivery | None:
        """Who gets which message next; `hand_out` has to follow.

        Args:
            budget: How many messages may be read for filters; when it is spent, there may be more
                to deliver although the answer is `None`.
        """
        if not self.table.available:
            return None
        sole = self._sole
        if sole is not None and sole.has_room:
            position = self.table.first_available()
            return None if position is None else Delivery(position, (sole,))
        before = self._next_barrier()
        if before is not None and before == self.table.first and not self._by_position:
            return self._delivery_of_barrier(before)
        limit = self.settings.max_backlog
        if limit is not None and self.unacknowledged >= limit:
            return None
        if self._changed:
            self._update_rosters()
        delivery = self._match(before, budget)
        if delivery is not None and before is None and limit is None:
            self._note_sole(delivery.consumers[0])
        return delivery

    def _match(self, before: int | None, budget: ScanBudget) -> Delivery | None:
        """The next message that a consumer with room wants, and who gets it."""
        found: Key | None = None
        candidates: list[Selector] = []
        for selector in self._open.values():
            key = selector.next(before, self, budget)
            if key is None or (found is not None and key > found):
                continue
            if key != found:
                found, candidates = key, []
            candidates.append(selector)
        if found is None:
            return None
        ranked = [best for each in candidates if (best := each.roster.best(self._served))]
        return Delivery(found[1], (self.consumers[min(ranked).number],))

    def _note_sole(self, consumer: QueueSubscription) -> None:
        """Whether a consumer is the only one with room, and wants all messages."""
        if len(self._open) == 1:
            (selector,) = self._open.values()
            if selector.is_plain and len(selector.roster) == 1:
                self._sole = consumer

    def _next_barrier(self) -> int | None:
        barriers = self._barriers
        while barriers and self.table.state(barriers[0]) == REMOVED:
            barriers.popleft()
        return barriers[0] if barriers else None

    def _delivery_of_barrier(self, position: int) -> Delivery | None:
        """A barrier goes to every consumer that wants it, and waits for the first one."""
        selectors = self._selectors.values()
        filtered = any(not each.wants_all for each in selectors)
        document = self.document(position) if filtered else None
        consumers = [
            consumer
            for selector in selectors
            if selector.accepts(document)
            for consumer in selector.consumers.values()
            if not consumer.connection.closing
        ]
        consumers.sort(key=lambda consumer: consumer.number)
        return Delivery(position, tuple(consumers), is_barrier=True) if consumers else None

    def hand_out(self, delivery: Delivery, now_us: int) -> Lease:
        """Carry out a delivery: it counts as sent from now on.

        Args:
            delivery: What `next_delivery` has returned.
            now_us: The running wall clock in microseconds.

        Returns:
            The lease; that of a barrier, which needs no acknowledgement, has ended already.
        """
        self.counts["delivered"] += 1
        position, consumer = delivery.position, delivery.consumers[0]
        row = self.table.lease(position)
        if delivery.is_barrier:
            self._remove(position, RemovalReason.DELIVERED)
            return Lease(row, consumer, None)
        due_us = None if self._lease_us is None else now_us + self._lease_us
        lease = Lease(row, consumer, due_us)
        attempts = self._attempts.pop(position, None) if self._attempts else None
        if attempts is not None:
            lease.deliveries, lease.cancels = attempts[0] + 1, attempts[1]
            self.counts["redelivered"] += 1
        if self.is_at_most_once:
            self._remove(position, RemovalReason.DELIVERED)
        if due_us is not None:
            self._lease_ends.add(due_us, position)
        self._by_bookmark[lease.bookmark] = self._by_position[position] = lease
        self._held[consumer.number][position] = lease
        self._served = consumer.number
        consumer.leased += 1
        for queue in consumer.queues.values():
            queue.room_taken(consumer)
        return lease

    # --- acknowledgement -------------------------------------------------------------------------

    def lease_of(self, bookmark: str) -> Lease | None:
        """The lease of a message, `None` if nobody has it."""
        return self._by_bookmark.get(bookmark)

    def lease_at(self, position: int) -> Lease | None:
        """The lease of the message at a position, `None` if nobody has it."""
        return self._by_position.get(position)

    def may_end(self, position: int, connection: Connection) -> bool:
        """Whether a connection may acknowledge, cancel or expire a message."""
        lease = self._by_position.get(position)
        return (
            lease is None
            or self.settings.leasing == "sublet"
            or lease.consumer.connection is connection
        )

    def acknowledge(self, position: int) -> None:
        """A message was processed: it leaves the queue, or the backlog of its consumer."""
        lease = self._by_position.get(position)
        if self.is_at_most_once and lease is not None:
            self.counts["acknowledged"] += 1
            self._forget(lease)
            self._dirty[self] = None  # a barrier may wait for it
        else:
            self._remove(position, RemovalReason.ACKNOWLEDGED)

    def cancel(self, position: int) -> None:
        """A consumer returns a message, to be delivered again."""
        if self.is_at_most_once:
            self.acknowledge(position)
            return
        lease = self._by_position.get(position)
        if lease is not None:
            lease.cancels += 1
            self.counts["cancelled"] += 1
            self._end_lease(lease)

    def expire(self, position: int) -> None:
        """A consumer has found that a message cannot be processed: it is removed as expired."""
        if self.is_at_most_once:
            self.acknowledge(position)
        else:
            self._expire(position, RemovalReason.FORCED_EXPIRE)

    def extend(self, lease: Lease, until_us: int) -> None:
        """A lease ends later, never earlier."""
        if lease.due_us is not None and until_us > lease.due_us:
            lease.due_us = until_us
            self._lease_ends.add(until_us, lease.position)

    # --- time ------------------------------------------------------------------------------------

    def tick(self, now_us: int, limit: int) -> None:
        """End the leases and the messages whose time is over, at most `limit` of each."""
        for _, position in self._expirations.take_due(now_us, limit):
            state = self.table.state(position)
            if state == AVAILABLE:
                self._expire(position, RemovalReason.TIME_LIMIT)
            elif state == LEASED:
                self._expired_meanwhile.add(position)
        for due_us, position in self._lease_ends.take_due(now_us, limit):
            lease = self._by_position.get(position)
            if lease is not None and lease.due_us == due_us:
                self._end_lease(lease)

    # --- internals -------------------------------------------------------------------------------

    def _end_lease(self, lease: Lease) -> None:
        """A consumer has a message no more: it returns to the queue, or expires."""
        if self.is_at_most_once:
            self._forget(lease)
            return
        position, settings = lease.position, self.settings
        self._attempts[position] = (lease.deliveries, lease.cancels)
        reason = None
        limit = settings.max_cancels + (settings.max_cancels_rule == "above")
        if position in self._expired_meanwhile:
            reason = RemovalReason.TIME_LIMIT
        elif settings.max_cancels and lease.cancels >= limit:
            reason = RemovalReason.MAX_CANCELS
        elif settings.max_deliveries and lease.deliveries >= settings.max_deliveries:
            reason = RemovalReason.MAX_DELIVERIES
        if reason is not None:
            self._expire(position, reason)
            return
        self._forget(lease)
        self.table.release(position)
        for selector in self._selectors.values():
            selector.returned(position, self)
        self._dirty[self] = None

    def _expire(self, position: int, reason: RemovalReason) -> None:
        row = self.table.row(position)
        if row is None:
            return
        lease = self._by_position.get(position)
        deliveries, cancels = self._attempts.get(position, (0, 0))
        if lease is not None:
            deliveries, cancels = lease.deliveries, lease.cancels
        bookmark = f"{row.publisher_id}|{row.sequence}|"
        self._expiring(self, Expired(position, bookmark, reason, deliveries, cancels))
        self._remove(position, reason)

    def _remove(self, position: int, reason: int) -> None:
        """Remove a message that the queue holds, for the journal too."""
        lease = self._by_position.get(position)
        if lease is not None:
            self._forget(lease)
            publisher_id, sequence = lease.publisher_id, lease.sequence
        else:
            row = self.table.row(position)
            if row is None:
                return
            _, publisher_id, sequence, _ = row
        self.table.remove(position)
        self._attempts.pop(position, None)
        self._expired_meanwhile.discard(position)
        if reason is not RemovalReason.DELIVERED:  # counted as a delivery, as every other one is
            self.counts[_NAMES.get(reason, "other")] += 1
        self.removals.append(Removal(publisher_id, sequence, reason))
        self._dirty[self] = None

    def _forget(self, lease: Lease) -> None:
        """A consumer has a message no more; its backlog has room again."""
        consumer = lease.consumer
        del self._by_position[lease.position], self._by_bookmark[lease.bookmark]
        del self._held[consumer.number][lease.position]
        consumer.leased -= 1
        consumer.room_changed()

    def drop_stale_deadlines(self) -> None:
        """Free the memory of deadlines that no longer count."""
        leases, table = self._by_position, self.table
        if self._lease_ends.is_mostly_stale(len(leases)):
            self._lease_ends.keep(
                lambda due_us, position: position in leases and leases[position].due_us == due_us
            )
        if self._expirations.is_mostly_stale(len(table)):
            self._expirations.keep(lambda _, position: table.state(position) != REMOVED)

    # --- snapshots -------------------------------------------------------------------------------

    def columns(self) -> QueueColumns:
        """What the queue holds; what consumers have is among it."""
        due_us, due_positions = array("Q"), array("Q")
        for moment_us, position in self._expirations:
            if self.table.state(position) != REMOVED:
                due_us.append(moment_us)
                due_positions.append(position)
        for position in sorted(self._expired_meanwhile):  # they are due since their leases began
            due_us.append(0)
            due_positions.append(position)
        barriers = array("Q", [each for each in self._barriers if self._holds(each)])
        return QueueColumns(self.table.columns(), due_us, due_positions, barriers)

    def fill(self, columns: QueueColumns) -> None:
        """Fill a new queue with what another one held: all of it is available."""
        self.table.fill(columns.messages)
        for moment_us, position in zip(columns.due_us, columns.due_positions, strict=True):
            self._expirations.add(moment_us, position)
        self._barriers.extend(columns.barriers)
        self._dirty[self] = None

    def _holds(self, position: int) -> bool:
        return self.table.state(position) != REMOVED

    # --- reading ---------------------------------------------------------------------------------

    def record(self, position: int) -> Record | None:
        """The record of a message that the queue holds or that a consumer has.

        Returns:
            `None` if the journal has it no more.
        """
        row = self.table.row(position)
        if row is not None:
            return self._reader.record(position, row.place)
        lease = self._by_position.get(position)
        return None if lease is None else self.leased_record(lease)

    def leased_record(self, lease: Lease) -> Record | None:
        """The record of a message that was handed out, `None` if the journal has it no more."""
        return self._reader.record(lease.position, lease.place)

    def document(self, position: int) -> Document | None:
        """The body of a message that the queue holds, `None` if the journal has it no more."""
        if self._last_document is not None and self._last_document[0] == position:
            return self._last_document[1]  # one filter after the other asks for it
        record = self.record(position)
        if record is None:
            return None
        document = Document(record.payload, self.settings.message_type)
        self._last_document = (position, document)
        return document

    def set_place(self, position: int, place: Place) -> None:
        """Note where the record of a message is, once its block is written."""
        self.table.set_place(position, place)
        if self.is_at_most_once and (lease := self._by_position.get(position)) is not None:
            lease.place = place  # the table has it no more

    def unfinished(self) -> Iterator[int]:
        """The positions of all messages that can be acknowledged, lazily."""
        if self.is_at_most_once:  # what was handed out is removed, and counts as backlog
            yield from sorted(self._by_position)
        yield from self.table.positions()

    def available(self) -> Iterator[int]:
        """The positions of the available messages, in the order of the log, lazily."""
        position = self.table.next_available(0)
        while position is not None:
            yield position
            position = self.table.next_available(position + 1)


def _number(value: object) -> float:
    """A priority as a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _LOWEST_PRIORITY
    try:
        number = float(value)
    except OverflowError:
        return float("inf") if value > 0 else _LOWEST_PRIORITY
    return number if number == number else _LOWEST_PRIORITY  # noqa: PLR0124  # NaN has no order

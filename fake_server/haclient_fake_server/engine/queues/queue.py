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
import sys
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from typing_extensions import override

from haclient_fake_server.engine.connections import Connection, QueueSubscription
from haclient_fake_server.engine.filters import Document, compile_expression, compile_filter
from haclient_fake_server.engine.queues.deadlines import NEVER_US, Deadlines, with_highest_bit
from haclient_fake_server.engine.queues.leases import Delivery, Expired, Lease
from haclient_fake_server.engine.queues.message_reader import Content, MessageReader
from haclient_fake_server.engine.queues.message_table import (
    AVAILABLE,
    LEASED,
    REMOVED,
    MessageRow,
    MessageTable,
    Place,
    priority_of,
)
from haclient_fake_server.engine.queues.roster import ROSTERS
from haclient_fake_server.engine.queues.selector import Key, ScanBudget, Selector
from haclient_fake_server.engine.queues.snapshot import QueueColumns
from haclient_fake_server.engine.settings import QueueTopic
from haclient_fake_server.journal.format import RemovalReason
from haclient_stores.errors import StoreError

MICROSECONDS: Final = 1_000_000

_NAMES: Final[dict[int, str]] = {reason: reason.name.lower() for reason in RemovalReason}

MAX_RUN: Final = 100
"""Messages of one delivery."""

MAX_REREADS: Final = 2
"""Chunks that are read again in one step of what may meet messages in any order."""

_REPLICATED: Final = 1 << 63
"""In a snapshot, the bit of a moment at which another instance expires it; alone if it has."""


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
        examines_bodies: Whether `enter` looks at what a message contains.
        table: The messages that it holds.
        consumers: Its consumers by number.
        removals: Publisher, sequence and reason of what was removed and is not in the journal yet.
        expires_replicated: Whether messages that another instance has received from their
            publishers expire here, too: it is not there to do it.
        expires_own: Whether the others expire here: not for a while after the start of an instance
            that is replicated.
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
        self.examines_bodies = bool(settings.priority or settings.barrier)
        self._default_lifetime_s = self._lifetime_s(None)
        self.table = MessageTable(
            has_priorities=self._priority is not None,
            reread=reader.reread if settings.file_backed else None,
        )
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
        # Those of messages of this batch that the table has no more.
        self._fresh_leases: list[Lease] = []
        self._attempts: dict[int, tuple[int, int]] = {}  # of returned messages
        self._lease_ends = Deadlines()
        self._expirations = Deadlines()
        self._replicated_expirations = Deadlines()
        self.expires_replicated = False
        self.expires_own = True
        self._expired_meanwhile: set[int] = set()  # leased messages
        self._expired_elsewhere: set[int] = set()  # leased messages, too
        self._put_off: dict[int, tuple[RemovalReason, Exception]] = {}  # expired, and unread
        self._barriers: deque[int] = deque()
        self.removals: list[tuple[int, int, int]] = []
        self.counts: Counter[str] = Counter()

    @override
    def __str__(self) -> str:
        return repr(self.settings.name)

    @property
    def unacknowledged(self) -> int:
        """How many messages consumers have."""
        return len(self._by_position)

    @property
    def oldest_lease_us(self) -> int | None:
        """When the oldest lease began, in microseconds since 1970; `None` without any."""
        oldest = next(iter(self._by_position.values()), None)
        return None if oldest is None else oldest.since_us

    @property
    def next_due_us(self) -> int | None:
        """When `tick` has something to do, in microseconds since 1970; `None` for never."""
        due_us = min(each.next_us for each in (self._lease_ends, *self._due_here()))
        return None if due_us == NEVER_US else due_us

    @property
    def has_read_enough(self) -> bool:
        """Whether this step has read so much of the journal again that others have their turn."""
        return self.table.rereads >= MAX_REREADS

    def touch(self) -> None:
        """Have the queue looked at in this batch."""
        self._dirty[self] = None

    # --- messages --------------------------------------------------------------------------------

    def enter(
        self,
        row: MessageRow,
        content: Content,
        *,
        expiration_s: int | None = None,
        document: Document | None = None,
        clock_us: int = sys.maxsize,
        is_replicated: bool = False,
    ) -> None:
        """Add a message of an underlying topic, behind all others.

        Args:
            row: The message.
            content: What it contains, with the time at which this instance received it.
            expiration_s: Its own lifetime in seconds, `None` if it has none.
            document: Its body, if it was parsed already.
            clock_us: The running wall clock in microseconds, which the log may be ahead of: then
                its lifetime begins now.
            is_replicated: Whether another instance has received it from its publisher: that one
                expires it.
        """
        if self.examines_bodies:
            self._examine(row, document or Document(content.body, self.settings.message_type))
        else:
            self.table.add(row)
        lifetime_s = self._default_lifetime_s
        if expiration_s is not None:
            lifetime_s = self._lifetime_s(expiration_s)
        if lifetime_s is not None:
            begin_us = min(content.timestamp_us, clock_us)
            due_us = begin_us + round(lifetime_s * MICROSECONDS)
            expirations = self._replicated_expirations if is_replicated else self._expirations
            expirations.add(due_us, row.position)
        self._dirty[self] = None

    def _examine(self, row: MessageRow, document: Document) -> None:
        """Add a message with its priority, and note whether it is a barrier."""
        if self._priority is None:
            self.table.add(row)
        else:
            self.table.add(row, priority_of(self._priority(document)))
        if self._barrier is not None and self._barrier(document):
            self._barriers.append(row.position)
            self._sole = None

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
            self.table.remove((position,))

    def remove_elsewhere(self, publisher_id: int, sequence: int, reason: int) -> None:
        """Remove a message that has left the queue on another instance, leased here or not.

        One that has expired there, and is leased here, stays until its lease ends. Its removal is
        recorded at once: after a restart nobody has it, and no instance would expire it any more.
        """
        if (position := self.table.find(publisher_id, sequence)) is None:
            return
        if reason == RemovalReason.TIME_LIMIT and position in self._by_position:
            if position not in self._expired_elsewhere:  # others record it, too, and send it here
                self._expired_elsewhere.add(position)
                self.removals.append((publisher_id, sequence, reason))
                self._dirty[self] = None
        else:
            self._remove(position, reason)

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
        self._changed.pop(consumer.number, None)  # an idle queue never asks for them
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

    def next_delivery(self, limit: int, budget: ScanBudget) -> Delivery | None:
        """Who gets which messages next; `hand_out` has to follow.

        Args:
            limit: How many messages at most.
            budget: How many messages may be read for filters; when it is spent, there may be more
                to deliver although the answer is `None`.
        """
        if not self.table.available:
            return None
        sole = self._sole
        if sole is not None and sole.has_room:
            rows = self.table.lease_first(min(sole.backlog - sole.leased, limit, MAX_RUN))
            return Delivery(rows, (sole,))
        before = self._next_barrier()
        if before is not None and before == self.table.first and not self._by_position:
            return self._delivery_of_barrier(before)
        most = self.settings.max_backlog
        if most is not None and self.unacknowledged >= most:
            return None
        if self._changed:
            self._update_rosters()
        delivery = self._match(before, budget)
        if delivery is not None and before is None and most is None:
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
        return self._delivery(found[1], (self.consumers[min(ranked).number],))

    def _delivery(
        self, position: int, consumers: tuple[QueueSubscription, ...], *, is_barrier: bool = False
    ) -> Delivery:
        return Delivery((self.table.lease(position),), consumers, is_barrier)

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
        return self._delivery(position, tuple(consumers), is_barrier=True) if consumers else None

    def hand_out(
        self, delivery: Delivery, *, now_us: int, max_bytes: int
    ) -> list[tuple[Lease, Content]]:
        """Carry out a delivery: its messages count as sent from now on.

        Args:
            delivery: What `next_delivery` has returned.
            now_us: The running wall clock in microseconds.
            max_bytes: What the bodies may come to before the last message of the delivery; those
                that follow return to the queue.

        Returns:
            The leases and their messages; that of a barrier, which needs no acknowledgement, has
            ended already. Nothing if the journal has the first message no more: it is removed.
        """
        rows, consumer = delivery.rows, delivery.consumers[0]
        try:
            contents = self._reader.contents(rows, max_bytes)
        except Exception:  # such as a damaged block: they stay in the queue
            for row in rows:
                self.table.release(row.position)
            raise
        if not contents:
            contents, rows = [], rows[1:]
            self._remove(delivery.rows[0].position, RemovalReason.LOST)
        for row in rows[len(contents) :]:
            self.table.release(row.position)
        rows = rows[: len(contents)]
        self.counts["delivered"] += len(rows)
        if delivery.is_barrier:
            leases = [Lease(row, consumer, None, since_us=now_us) for row in rows]
        else:
            due_us = None if self._lease_us is None else now_us + self._lease_us
            leases = self._lease(rows, consumer, due_us, now_us=now_us)
        if delivery.is_barrier or self.is_at_most_once:
            self._leave(rows, RemovalReason.DELIVERED)
            fresh_from = self._reader.fresh_from
            self._fresh_leases += [each for each in leases if each.row.position >= fresh_from]
        return list(zip(leases, contents, strict=True))

    def _lease(
        self,
        rows: Iterable[MessageRow],
        consumer: QueueSubscription,
        due_us: int | None,
        *,
        now_us: int,
    ) -> list[Lease]:
        held, attempts = self._held[consumer.number], self._attempts
        leases = [Lease(row, consumer, due_us, since_us=now_us) for row in rows]
        for lease in leases:
            position = lease.row.position
            if attempts and (before := attempts.pop(position, None)) is not None:
                lease.deliveries, lease.cancels = before[0] + 1, before[1]
                self.counts["redelivered"] += 1
            self._by_bookmark[lease.bookmark] = self._by_position[position] = lease
            held[position] = lease
            if due_us is not None:
                self._lease_ends.add(due_us, position)
        self._served = consumer.number
        consumer.leased += len(leases)
        for queue in consumer.queues.values():
            queue.room_taken(consumer)
        return leases

    # --- acknowledgement -------------------------------------------------------------------------

    def lease_of(self, bookmark: str) -> Lease | None:
        """The lease of a message, `None` if nobody has it."""
        return self._by_bookmark.get(bookmark)

    def _may_end(self, lease: Lease, connection: Connection) -> bool:
        return lease.consumer.connection is connection or self.settings.leasing == "sublet"

    def acknowledge(self, positions: Iterable[int], connection: Connection) -> None:
        """Messages were processed: they leave the queue, or the backlogs of their consumers.

        Args:
            positions: The messages; those that only another connection may acknowledge stay.
            connection: Who has processed them.
        """
        ended: list[Lease] = []
        by_position = self._by_position
        for position in positions:
            lease = by_position.get(position)
            if lease is None:
                self._remove(position, RemovalReason.ACKNOWLEDGED)
            elif self._may_end(lease, connection):
                ended.append(lease)
        if not ended:
            return
        self._forget(ended)
        if self.is_at_most_once:
            self.counts["acknowledged"] += len(ended)
            self._dirty[self] = None  # a barrier may wait for them
        else:
            self._leave([lease.row for lease in ended], RemovalReason.ACKNOWLEDGED)

    def cancel(self, positions: Iterable[int], connection: Connection) -> None:
        """A consumer returns messages, to be delivered again."""
        if self.is_at_most_once:
            self.acknowledge(positions, connection)
            return
        for position in positions:
            lease = self._by_position.get(position)
            if lease is not None and self._may_end(lease, connection):
                lease.cancels += 1
                self.counts["cancelled"] += 1
                self._end_lease(lease)

    def expire(self, positions: Iterable[int], connection: Connection) -> None:
        """A consumer finds that messages cannot be processed: they are removed as expired."""
        if self.is_at_most_once:
            self.acknowledge(positions, connection)
            return
        for position in positions:
            lease = self._by_position.get(position)
            if lease is None or self._may_end(lease, connection):
                self._expire(position, RemovalReason.FORCED_EXPIRE)

    def extend(self, positions: Iterable[int], connection: Connection, until_us: int) -> None:
        """The leases that a connection has of messages end later, never earlier.

        Args:
            positions: The messages; those that it does not have stay as they are.
            connection: Who has them.
            until_us: The new end, in microseconds since 1970.
        """
        for position in positions:
            lease = self._by_position.get(position)
            if lease is None or lease.consumer.connection is not connection:
                continue
            if lease.due_us is not None and until_us > lease.due_us:
                lease.due_us = until_us
                self._lease_ends.add(until_us, position)

    # --- time ------------------------------------------------------------------------------------

    def tick(self, now_us: int, limit: int) -> None:
        """End the leases and the messages whose time is over, at most `limit` of each."""
        for _, position in chain(*(each.take_due(now_us, limit) for each in self._due_here())):
            state = self.table.state(position)
            if state == AVAILABLE:
                self._expire(position, RemovalReason.TIME_LIMIT)
                if self.has_read_enough or self._put_off:
                    break  # the next batch goes on, as after `limit` of them
            elif state == LEASED:
                self._expired_meanwhile.add(position)
        for due_us, position in self._lease_ends.take_due(now_us, limit):
            lease = self._by_position.get(position)
            if lease is not None and lease.due_us == due_us:
                self.counts["expired_leases"] += 1
                self._end_lease(lease)

    def _due_here(self) -> list[Deadlines]:
        """The expirations that this broker carries out: none while earlier ones wait to be read."""
        if self._put_off:
            return []
        expired = [self._expirations] if self.expires_own else []
        return [*expired, self._replicated_expirations] if self.expires_replicated else expired

    def expire_put_off(self) -> None:
        """Expire the messages that could not be read when they expired; call it before a delivery.

        Raises:
            StoreError: Some of it can still not be read.
        """
        put_off, self._put_off = self._put_off, {}
        for position, (reason, _) in put_off.items():
            self._expire(position, reason)
        for _, error in self._put_off.values():
            raise error

    # --- internals -------------------------------------------------------------------------------

    def _end_lease(self, lease: Lease) -> None:
        """End a lease: its message returns to the queue, or expires."""
        if self.is_at_most_once:
            self._forget((lease,))
            return
        position, settings = lease.row.position, self.settings
        if position in self._expired_elsewhere:
            self._remove(position, RemovalReason.TIME_LIMIT)
            return
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
        self._return(lease)

    def _return(self, lease: Lease) -> None:
        """End a lease; its message stays in the queue."""
        position = lease.row.position
        self._attempts[position] = (lease.deliveries, lease.cancels)
        self._forget((lease,))
        self.table.release(position)
        for selector in self._selectors.values():
            selector.returned(position, self)
        self._dirty[self] = None

    def _expire(self, position: int, reason: RemovalReason) -> None:
        lease = self._by_position.get(position)
        deliveries, cancels = self._attempts.get(position, (0, 0))
        if lease is not None:
            deliveries, cancels = lease.deliveries, lease.cancels
        try:
            row = self.table.row(position) if lease is None else lease.row
            if row is None:
                return
            self._expiring(self, Expired(position, row.bookmark, reason, deliveries, cancels))
        except StoreError as error:  # it cannot be read now: without a copy it would be lost
            self._put_off[position] = (reason, error)
            self._dirty[self] = None
            if lease is not None:
                self._return(lease)
            return
        self._remove(position, reason)

    def _remove(self, position: int, reason: int) -> None:
        """Remove a message that the queue holds, for the journal too."""
        lease = self._by_position.get(position)
        if lease is not None:
            self._forget((lease,))
        row = self.table.row(position) if lease is None else lease.row
        if row is not None:
            self._leave((row,), reason)

    def _leave(self, rows: Sequence[MessageRow], reason: int) -> None:
        """Remove messages that nobody has, for the journal too."""
        self.table.remove(row.position for row in rows)
        for row in rows:
            self.removals.append((row.publisher_id, row.sequence, reason))
            if self._attempts:
                self._attempts.pop(row.position, None)
            if self._expired_meanwhile:
                self._expired_meanwhile.discard(row.position)
            if self._expired_elsewhere:
                self._expired_elsewhere.discard(row.position)
            if self._put_off:
                self._put_off.pop(row.position, None)
        if reason is not RemovalReason.DELIVERED:  # counted as a delivery, as every other one is
            self.counts[_NAMES.get(reason, "other")] += len(rows)
        self._dirty[self] = None

    def _forget(self, leases: Iterable[Lease]) -> None:
        """Consumers have some messages no more; their backlogs have room again."""
        consumers: dict[QueueSubscription, None] = {}
        for lease in leases:
            position, consumer = lease.row.position, lease.consumer
            del self._by_position[position], self._by_bookmark[lease.bookmark]
            del self._held[consumer.number][position]
            consumer.leased -= 1
            consumers[consumer] = None
        for consumer in consumers:
            consumer.room_changed()

    def drop_stale_deadlines(self) -> None:
        """Free the memory of deadlines that no longer count."""
        leases, table = self._by_position, self.table
        if self._lease_ends.is_mostly_stale(len(leases)):
            self._lease_ends.keep(
                lambda due_us, position: position in leases and leases[position].due_us == due_us
            )
        for each in (self._expirations, self._replicated_expirations):
            if each.is_mostly_stale(len(table)):
                each.keep(lambda _, position: table.state(position) != REMOVED)

    # --- snapshots -------------------------------------------------------------------------------

    def columns(self) -> QueueColumns:
        """What the queue holds; what consumers have is among it."""
        due_us, due_positions = self._expirations.columns()
        moments, positions = self._replicated_expirations.columns()
        due_us.extend(with_highest_bit(moments))
        due_positions.extend(positions)
        put_off = {
            position
            for position, (reason, _) in self._put_off.items()
            if reason is RemovalReason.TIME_LIMIT
        }
        for position in sorted(put_off | self._expired_meanwhile | self._expired_elsewhere):
            due_us.append(_REPLICATED if position in self._expired_elsewhere else 0)
            due_positions.append(position)
        barriers = array("Q", [each for each in self._barriers if self._holds(each)])
        return QueueColumns(self.table.columns(), due_us, due_positions, barriers)

    def fill(self, columns: QueueColumns) -> None:
        """Fill a new queue with what another one held: all of it is available."""
        self.table.fill(columns.messages)
        for moment_us, position in zip(columns.due_us, columns.due_positions, strict=True):
            if moment_us == _REPLICATED:
                self.table.remove((position,))
            elif moment_us & _REPLICATED:
                self._replicated_expirations.add(moment_us ^ _REPLICATED, position)
            else:
                self._expirations.add(moment_us, position)
        self._barriers.extend(columns.barriers)
        self._dirty[self] = None

    def _holds(self, position: int) -> bool:
        return self.table.state(position) != REMOVED

    # --- reading ---------------------------------------------------------------------------------

    def row(self, position: int) -> MessageRow | None:
        """A message that the queue holds or that a consumer has, `None` if it is neither."""
        row = self.table.row(position)
        if row is None and (lease := self._by_position.get(position)) is not None:
            row = lease.row
        return row

    def content(self, position: int) -> Content | None:
        """What a message contains that the queue holds or that a consumer has.

        Returns:
            `None` if the journal has it no more.
        """
        row = self.row(position)
        return None if row is None else self._reader.content(position, row.place)

    def document(self, position: int) -> Document | None:
        """The body of a message that the queue holds, `None` if the journal has it no more.

        Raises:
            StoreError: It cannot be read now.
        """
        if self._last_document is not None and self._last_document[0] == position:
            return self._last_document[1]  # one filter after the other asks for it
        content = self.content(position)
        if content is None:
            return None
        document = Document(content.body, self.settings.message_type)
        self._last_document = (position, document)
        return document

    def add_to_places(self, position: int, start: Place) -> None:
        """Note where the messages of a block are, once it is written.

        Args:
            position: The first position of the block.
            start: Where its records begin.
        """
        self.table.add_to_places(position, start)
        for lease in self._fresh_leases:  # the table has it no more
            lease.row = lease.row._replace(place=start + lease.row.place)
        self._fresh_leases.clear()

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

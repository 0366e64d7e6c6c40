"""Carries out what queues decide: subscriptions, deliveries, acknowledgements, removals, time.

Everything that a batch has changed is delivered and recorded at its end, in this order: messages
are matched with consumers, and what was removed goes into the batch's block. So the journal has a
removal before the consumer of an at-most-once queue has the message, and a message and the copy
that replaces it are written together.

Only queues that something has happened to are looked at, and only the consumers that have room. A
connection that has enough to send gets no more messages until it has sent them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final, cast

from haclient.errors import HAClientError
from haclient.protocol.codec import encode_string
from haclient.protocol.framing import LENGTH
from haclient_fake_server.engine.apply import Applier
from haclient_fake_server.engine.connections import Connection, QueueSubscription
from haclient_fake_server.engine.filters import Document
from haclient_fake_server.engine.log_writer import LogWriter
from haclient_fake_server.engine.outbox import Outbox, Severity
from haclient_fake_server.engine.patterns import to_text
from haclient_fake_server.engine.publishing import MAX_HEADER_BYTES
from haclient_fake_server.engine.queues.leases import Expired, Lease
from haclient_fake_server.engine.queues.message_reader import Content
from haclient_fake_server.engine.queues.points import QueuePoint
from haclient_fake_server.engine.queues.queue import Queue
from haclient_fake_server.engine.queues.selector import ScanBudget
from haclient_fake_server.engine.requests import Request
from haclient_fake_server.engine.retries import Retries
from haclient_fake_server.engine.routes import Routes, frame_head
from haclient_fake_server.engine.statistics import Row
from haclient_fake_server.engine.timers import NEVER, Clock, timestamp_text
from haclient_fake_server.journal.format import Record, RecordFlag
from haclient_stores.errors import StoreCorrupt, StoreError

MAX_DELIVERED: Final = 5_000
"""Messages of one queue that are delivered at a time; a batch does that twice at most, and the next
one goes on."""
MAX_SCANNED: Final = 2_000
"""Messages of one queue that are read for filters at a time."""
MAX_ENDED: Final = 1_000
"""Leases and expirations of one queue that one batch ends."""
MAX_GIVEN_BYTES: Final = 2**20
"""What one batch sends to a connection before it has to be sent: a large backlog of large messages
must not fill the memory."""

POINTS_INTERVAL_S: Final = 1.0
"""How often the places at which recovery may begin are written."""

_MAX_CORRELATION_ID: Final = MAX_HEADER_BYTES // 4
"""Bytes of a correlation id with which a client may publish a copy."""


class QueueDispatcher:
    """The queues of a broker, as the rest of the engine uses them."""

    def __init__(
        self,
        log: LogWriter,
        routes: Routes,
        clock: Clock,
        outbox: Outbox,
        retries: Retries,
        applier: Applier,
    ) -> None:
        self._log = log
        self._routes = routes
        self._clock = clock
        self._outbox = outbox
        self._retries = retries
        self._applier = applier
        self._registry = routes.queues
        self._given: dict[int, int] = {}  # bytes of this batch by connection
        self._origin = log.publishers.of_origin("")
        self._registry.expiring = self._copy_expired
        self._stopped: set[Queue] = set()  # whose delivery has failed, and is tried again
        self.points_due = self._points_planned = False
        self.written_points = self.points

    # --- consumers -------------------------------------------------------------------------------

    def matching(self, connection: Connection, request: Request) -> list[Queue]:
        """The queues that a request of a connection is about."""
        if not len(self._registry):
            return []
        return self._registry.matching(request.matcher, connection.message_type)

    def enter(self, consumer: QueueSubscription, request: Request, queues: list[Queue]) -> None:
        """Make a subscription a consumer of exactly these queues.

        One that is a consumer already keeps its leases of the queues that it goes on to consume.
        """
        for name in [*consumer.queues]:
            queue = self._queue(name, consumer.connection)
            if queue is not None and queue not in queues:
                queue.unsubscribe(consumer)
        limits = [queue.settings.max_per_subscription_backlog for queue in queues]
        consumer.backlog = min(request.options.max_backlog or 1, *limits)
        consumer.filter_text = request.filter_text
        consumer.connection.consumers[consumer.number] = consumer
        for queue in queues:
            consumer.heads[queue.settings.name] = _head(queue, consumer)
            queue.subscribe(consumer)
        consumer.room_changed()

    def terms(self, queues: list[Queue], wanted: int | None) -> dict[str, str]:
        """What the ack of a subscribe says of its backlog and its lease."""
        limits = [queue.settings.max_per_subscription_backlog for queue in queues]
        text = f"max_backlog={min(wanted or 1, *limits)}"
        if all(queue.is_at_most_once for queue in queues):
            text += ",semantics=at-most-once"
        leases = [queue.settings.lease_s for queue in queues if not queue.is_at_most_once]
        # With several leases only the end of each message's own one says which it has.
        known = {lease_s for lease_s in leases if lease_s is not None}
        return {"opts": f"{text},lease={known.pop()!r}" if len(known) == 1 else text}

    def leave(self, consumer: QueueSubscription) -> None:
        """A consumer has ended: what it has returns to the queues."""
        consumer.connection.consumers.pop(consumer.number, None)
        consumer.connection.choked.pop(consumer.number, None)
        for name in [*consumer.queues]:
            queue = self._queue(name, consumer.connection)
            if queue is not None:
                queue.unsubscribe(consumer)

    def choke(self, connection: Connection) -> None:
        """A connection has enough to send: its consumers get nothing until `pump`."""
        for consumer in connection.consumers.values():
            self._choke(consumer)

    def pump(self, connection: Connection) -> None:
        """A connection has room again."""
        choked, connection.choked = connection.choked, {}
        for consumer in choked.values():
            consumer.is_choked = False
            consumer.room_changed()

    def _choke(self, consumer: QueueSubscription) -> None:
        if not consumer.is_choked:
            consumer.is_choked = True
            consumer.connection.choked[consumer.number] = consumer
            self._outbox.wake(consumer.connection)
            consumer.room_changed()

    def _queue(self, name: str, connection: Connection) -> Queue | None:
        return self._registry.get(name, connection.message_type)

    # --- batches ---------------------------------------------------------------------------------

    def end_batch(self) -> None:
        """Deliver and record what this batch has changed."""
        dirty = self._registry.dirty
        if not dirty:
            return
        while dirty:
            queue = next(iter(dirty))
            del dirty[queue]
            if queue not in self._stopped:
                try:
                    self._deliver(queue)
                except Exception as error:  # a fault of one queue, or of its part of the disk
                    self._stopped.add(queue)
                    key = ("delivery of queue", queue)
                    self._retries.try_again(key, partial(self._go_on, queue), error)
            self._record_removals(queue)
            dirty.pop(queue, None)  # what it has delivered leaves nothing more to do
            queue.drop_stale_deadlines()
            self._set_timer(queue)
        self._given.clear()

    def _go_on(self, queue: Queue) -> None:
        """Deliver messages of a queue again, after a fault."""
        queue.touch()  # what it removes is recorded with this batch, whatever happens
        self._deliver(queue)
        self._stopped.discard(queue)

    def _deliver(self, queue: Queue) -> None:
        queue.expire_put_off()
        budget, clock_us = ScanBudget(MAX_SCANNED, queue), self._clock.wall_us
        left = MAX_DELIVERED
        while left > 0 and not queue.has_read_enough:
            delivery = queue.next_delivery(left, budget)
            if delivery is None:
                break
            left -= len(delivery.rows)
            given = self._given.get(delivery.consumers[0].connection.id, 0)
            handed_out = queue.hand_out(
                delivery, now_us=clock_us, max_bytes=MAX_GIVEN_BYTES - given
            )
            for consumer in delivery.consumers:
                try:
                    self._send(queue, consumer, handed_out)
                except Exception as error:  # a fault of what this consumer has asked for
                    self._outbox.fail(consumer.connection, error)
            if not handed_out:
                self._outbox.report(
                    Severity.ERROR,
                    f"queue {queue.settings.name!r}: the message "
                    f"{delivery.rows[0].bookmark} was removed from the journal before it was "
                    "delivered",
                )
        if left <= 0 or budget.is_spent or queue.has_read_enough:
            self._clock.timers.set(("queue more", queue), self._clock.now, queue.touch)

    def _send(
        self, queue: Queue, consumer: QueueSubscription, handed_out: list[tuple[Lease, Content]]
    ) -> None:
        """Send messages to a consumer; all of them have the same lease end."""
        if not handed_out:
            return
        connection, head = consumer.connection, consumer.heads[queue.settings.name]
        due_us = handed_out[0][0].due_us
        lease_end = b'"' if due_us is None else b'","lp":"%b"' % timestamp_text(due_us)
        given, frames = self._given.get(connection.id, 0), self._outbox.touch(connection)
        fields, message_type = consumer.fields, queue.settings.message_type
        for lease, (whole, correlation_id, timestamp_us) in handed_out:
            body = whole if fields is None else fields.apply(whole, message_type)
            more = lease_end
            if consumer.wants_timestamp:
                more += b',"ts":"%b"' % timestamp_text(timestamp_us)
            if correlation_id:
                more += b',"x":' + encode_string(to_text(correlation_id))
            header = b"%b%b%b}" % (head, lease.bookmark.encode("ascii"), more)
            size = len(header) + len(body)
            frames.append(b"%b%b%b" % (LENGTH.pack(size), header, body))
            given += size
        self._given[connection.id] = given
        if given > MAX_GIVEN_BYTES:
            self._choke(consumer)

    def _record_removals(self, queue: Queue) -> None:
        if queue.removals:
            settings = queue.settings
            removals, queue.removals = queue.removals, []
            self._log.remove_from_queue(settings.name, settings.message_type, removals)
            self._plan_points()

    def _set_timer(self, queue: Queue) -> None:
        due_us = queue.next_due_us
        due = NEVER if due_us is None else self._clock.due_at_us(due_us)
        self._clock.timers.set(("queue", queue), due, lambda: self._tick(queue))

    def _tick(self, queue: Queue) -> None:
        queue.tick(self._clock.wall_us, MAX_ENDED)
        queue.touch()  # so that the batch sets the next timer

    # --- recovery points -------------------------------------------------------------------------

    def _plan_points(self) -> None:
        """Write the points soon: a message has left a queue, or the log has gone on.

        The point of an empty queue is the end of the log. If it stayed behind, a broker that starts
        would read all that follows, and none of it could be removed.
        """
        if not (self.points_due or self._points_planned):
            self._points_planned = True
            due = self._clock.now + POINTS_INTERVAL_S
            self._clock.timers.set("queue points", due, self._on_points_due)

    def _on_points_due(self) -> None:
        self.points_due, self._points_planned = True, False

    @property
    def points(self) -> tuple[QueuePoint, ...]:
        """For each queue: all messages before this position have left it."""
        end = self._log.position
        return tuple(
            QueuePoint(
                queue.settings.name,
                queue.settings.message_type,
                queue.settings.underlying,
                queue.settings.recovery_point,
                end if (first := queue.table.first) is None else first,
            )
            for queue in self._registry
        )

    def take_points(self) -> tuple[QueuePoint, ...] | None:
        """The points if they are to be written with this batch and have changed."""
        if not self.points_due:
            if self._log.has_data and len(self._registry):
                self._plan_points()
            return None
        self.points_due = False
        points = self.points
        if points == self.written_points:
            return None
        self.written_points = points
        return points

    # --- dead letters ----------------------------------------------------------------------------

    def _copy_expired(self, queue: Queue, expired: Expired) -> None:
        """Publish a copy of a message that expires to the dead-letter topic of its queue.

        Raises:
            StoreError: It cannot be read now.
        """
        settings = queue.settings
        if not settings.dead_letter:
            return
        lost = f"queue {settings.name!r}: {expired.bookmark} has expired without a dead letter"
        try:
            original = queue.content(expired.position)
        except Exception as error:
            if isinstance(error, StoreError) and not isinstance(error, StoreCorrupt):
                raise
            self._outbox.report_fault(lost, error)  # damaged: it cannot be delivered either
            return
        if original is None:
            self._outbox.report(Severity.ERROR, f"{lost}: it was removed from the journal")
            return
        table = self._routes[settings.message_type]
        # The name of a queue stands for the topic that publishes to it go to.
        route = table.targets.get(settings.dead_letter) or table.route(settings.dead_letter)
        document = Document(original.body, settings.message_type)
        record = Record(
            position=0,
            publisher_id=self._origin.id,
            sequence=self._log.publishers.assign(),
            timestamp_us=self._log.now_us,
            topic_id=0,
            flags=RecordFlag.ASSIGNED,
            correlation_id=_context(queue, expired, to_text(original.correlation_id)),
            payload=original.body,
        )
        self._applier.apply(route, self._origin, record, document)

    # --- statistics ------------------------------------------------------------------------------

    def statistics(self, queue: Queue) -> Mapping[str, object]:
        """What is known of a queue, for people and programs that watch it."""
        settings, counts = queue.settings, queue.counts
        first = queue.table.first
        row = oldest = None
        if first is not None:
            with suppress(HAClientError, OSError):  # a damaged block, which its delivery reports
                row, oldest = queue.row(first), queue.content(first)
        leased_us, clock_us = queue.oldest_lease_us, self._clock.wall_us
        return {
            "name": settings.name,
            "topics": list(settings.underlying),
            "message_type": settings.message_type,
            "semantics": settings.semantics,
            "delivery": settings.chosen_delivery,
            "lease_s": settings.lease_s,
            "max_backlog": settings.max_backlog,
            "max_per_subscription_backlog": settings.max_per_subscription_backlog,
            "depth": len(queue.table),
            "available": queue.table.available,
            "leased": queue.unacknowledged,
            "consumers": len(queue.consumers),
            "is_stopped": queue in self._stopped,
            "oldest_bookmark": "" if row is None else row.bookmark,
            "oldest_us": 0 if oldest is None else oldest.timestamp_us,
            "age_of_oldest_lease": 0.0 if leased_us is None else (clock_us - leased_us) / 1e6,
            "expired_leases": counts["expired_leases"],
            "delivered": counts["delivered"],
            "redelivered": counts["redelivered"],
            "acknowledged": counts["acknowledged"],
            "cancelled": counts["cancelled"],
            "expired": {
                reason: counts[reason]
                for reason in ("time_limit", "forced_expire", "max_cancels", "max_deliveries")
            },
            "lost": counts["lost"],
        }

    def rows(self, after: int = 0) -> list[Row]:
        """The statistics of the queues as a table."""
        return [_flat(self.statistics(each)) for each in islice(self._registry, after, None)]


def _flat(fields: Mapping[str, object]) -> Row:
    """Fields of which each is one value."""
    row: dict[str, str | int | float] = {}
    for name, value in fields.items():
        match value:
            case Mapping():
                more = cast("Mapping[str, int]", value)
                row.update({f"{name}_{each}": count for each, count in more.items()})
            case list():
                row[name] = ",".join(cast("list[str]", value))
            case str() | int() | float():
                row[name] = value
            case _:
                row[name] = ""
    return row


def _head(queue: Queue, consumer: QueueSubscription) -> bytes:
    """The constant beginning of the frames to a consumer."""
    head = frame_head(b"p", encode_string(queue.settings.name), consumer.id)
    return head + b',"bm":"'


def _context(queue: Queue, expired: Expired, correlation_id: str) -> bytes:
    """The correlation id of a dead letter: why it is one, as JSON in Base64."""
    context: dict[str, object] = {
        "queue": queue.settings.name,
        "reason": expired.reason.name.lower(),
        "bookmark": expired.bookmark,
        "deliveries": expired.deliveries,
        "cancels": expired.cancels,
    }
    whole = _encoded({**context, "correlation_id": correlation_id})
    # One that was as long as may be does not fit any more.
    return whole if len(whole) <= _MAX_CORRELATION_ID else _encoded(context)


def _encoded(context: Mapping[str, object]) -> bytes:
    # A client may publish a copy only if the correlation id has the characters of Base64 alone.
    return base64.b64encode(json.dumps(context).encode("ascii"))

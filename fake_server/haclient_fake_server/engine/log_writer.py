"""The log writer: records are packed into the block of a batch as they arrive, and joined once.

The shell writes the block. Between batches only counters are kept: the next position, the next
topic id, the last message.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from haclient_fake_server.engine.journal import Block, JournalReader
from haclient_fake_server.engine.patterns import to_bytes
from haclient_fake_server.engine.publishers import KnownPublisher, KnownPublishers
from haclient_fake_server.engine.routes import Route
from haclient_fake_server.journal.format import (
    MAX_QUEUE_ENTRIES,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    Record,
    RecordCommand,
    RecordFlag,
    encode_record,
    encode_removals,
    read_records,
)


class Extras(NamedTuple):
    """The optional parts of a record between header and payload."""

    key: bytes = b""
    correlation_id: bytes = b""
    expiration: bytes = b""
    flags: int = 0
    command: int = RecordCommand.PUBLISH


NO_EXTRAS: Final = Extras()
ASSIGNED: Final = Extras(flags=RecordFlag.ASSIGNED)
"""The extras of a plain publish that has no sequence of its own."""


class LogWriter:
    """Collects the records of one batch after another.

    Args:
        journal: The log, already recovered.
        publishers: Those of its records.
        now_us: The wall clock in microseconds.
        is_logging: Whether there is a transaction log.

    Attributes:
        journal: What is written; the batch is not yet.
        publishers: All publishers and their highest sequences.
        is_logging: Whether there is a transaction log.
        position: The position of the next message, delete or mark.
        now_us: Time of the records; never falls.
        last: Publisher and sequence of the last data record.
        unnoted: Publishers whose highest sequence may have no record yet.
        source: The instance that this batch came from; empty for clients.
        source_is_confirmed: Whether every synchronous destination had its records before this log.
        source_flags: The flags of its records that say so.
        has_removals: Whether this batch removes messages from queues.
    """

    def __init__(
        self,
        journal: JournalReader,
        publishers: KnownPublishers,
        *,
        now_us: int,
        is_logging: bool = True,
    ) -> None:
        self.journal = journal
        self.publishers = publishers
        self.is_logging = is_logging
        self.position = self._first_position = journal.next_position
        self.now_us = now_us
        self.last: tuple[int, int] | None = None
        self.unnoted: dict[int, KnownPublisher] = {}
        self.source, self.source_is_confirmed, self.source_flags = "", False, 0
        self.has_removals = False
        self._next_topic_id = 1
        self._parts: list[bytes] = []
        self._bytes = 0  # of all parts
        self._records = 0
        self._touched: list[KnownPublisher] = []
        self._routes: list[Route] = []
        self._assigned: set[int] = set()
        self._definitions: list[tuple[int, str, str]] = []
        self._messages_end = self._marks_end = 0

    def begin(self, now_us: int) -> None:
        """Begin a batch, which comes from clients, at this time of the wall clock."""
        self.now_us = max(self.now_us, now_us)
        self.source, self.source_is_confirmed, self.source_flags = "", False, 0
        self.has_removals = False

    def set_source(self, source: str, *, is_confirmed: bool) -> None:
        """The batch comes from another instance.

        Args:
            source: Its name.
            is_confirmed: Whether every synchronous destination had the records before this log.
        """
        self.source, self.source_is_confirmed = source, is_confirmed
        self.source_flags = RecordFlag.REPLICATED | (RecordFlag.CONFIRMED if is_confirmed else 0)

    def note_seen(self, publisher: KnownPublisher, sequence: int) -> None:
        """A publisher has used a sequence for which there may be no message: `build` marks it."""
        if sequence > publisher.seen:
            publisher.seen = sequence
            self.unnoted[publisher.id] = publisher

    @property
    def last_bookmark(self) -> str:
        """The bookmark of the last data record, `0` when there is none."""
        return f"{self.last[0]}|{self.last[1]}|" if self.last else "0"

    def append(
        self, route: Route, publisher: KnownPublisher, sequence: int, *, body: bytes, extras: Extras
    ) -> int:
        """Add a data record; its position is the value that `position` had before the call.

        Returns:
            The offset of the record in the block.
        """
        if not route.topic_id:
            self._define(route)
        if not route.in_batch:
            route.in_batch = True
            self._routes.append(route)
        key, correlation_id, expiration, flags, command = extras
        parts = self._parts
        size = RECORD_HEADER_BYTES + len(body)
        if extras is not NO_EXTRAS:
            size += len(key) + len(correlation_id) + len(expiration)
        parts.append(
            RECORD_HEADER.pack(
                size,
                flags,
                command,
                len(expiration),
                self.position,
                publisher.id,
                sequence,
                self.now_us,
                route.topic_id,
                len(key),
                len(correlation_id),
            )
        )
        if extras is not NO_EXTRAS:
            parts += (key, correlation_id, expiration)
        parts.append(body)
        self.position += 1
        self._records += 1
        if sequence != publisher.logged + 1:
            publisher.begin_run(sequence)
        if not publisher.batch_low:
            self._touch(publisher, sequence)
            if flags & RecordFlag.ASSIGNED:
                self._assigned.add(publisher.id)
        publisher.noted = publisher.logged = sequence
        self.last = (publisher.id, sequence)
        offset = self._bytes
        self._bytes = offset + size
        return offset

    def _mark(self, publisher: KnownPublisher) -> None:
        """Add a mark: the highest sequence seen, where no message of this batch carries it."""
        sequence = publisher.seen
        record = Record(
            self.position,
            publisher.id,
            sequence,
            self.now_us,
            0,
            RecordCommand.MARK,
            self.source_flags,
        )
        self._append(encode_record(record))
        self._messages_end = self.messages_end
        self.position = self._marks_end = self.position + 1
        if not publisher.batch_low:
            self._touch(publisher, sequence)
        publisher.noted = sequence

    def remove_from_queue(
        self, name: str, message_type: str, entries: Sequence[tuple[int, int, int]]
    ) -> None:
        """Add removals from a queue; they follow all that was added before.

        Args:
            name: The queue.
            message_type: Its message type.
            entries: Publisher id, sequence and `RemovalReason` of each message.
        """
        self.has_removals = True
        for start in range(0, len(entries), MAX_QUEUE_ENTRIES):
            some = entries[start : start + MAX_QUEUE_ENTRIES]
            self._append(
                encode_removals(to_bytes(name), to_bytes(message_type), some, now_us=self.now_us)
            )

    @property
    def messages_end(self) -> int:
        """The position after the last message or delete in the log; a mark may have it."""
        return self._messages_end if self._marks_end == self.position else self.position

    def restore_messages_end(self, position: int) -> None:
        """Restore `messages_end` from the journal: only marks follow from `position` on."""
        self._messages_end, self._marks_end = position, self.position

    @property
    def first_position(self) -> int:
        """The position at which this batch began."""
        return self._first_position

    @property
    def has_data(self) -> bool:
        """Whether this batch moves the log's end."""
        return self.position != self._first_position

    def topic_known(self, topic_id: int) -> None:
        """Register a topic of an earlier run, with its number."""
        self._next_topic_id = max(self._next_topic_id, topic_id + 1)

    def find(self, publisher_id: int, sequence: int) -> int | None:
        """The position of a message of this batch, which is not in the journal yet."""
        return next(iter(self.positions_of({(publisher_id, sequence)})), None)

    def positions_of(self, wanted: Collection[tuple[int, int]]) -> list[int]:
        """The positions of those messages that are of this batch, rising.

        Args:
            wanted: Publisher id and sequence of each.
        """
        data = b"".join(self._parts)
        return [
            record.position
            for record in read_records(data, 0, len(data))
            if (record.publisher_id, record.sequence) in wanted and record.is_data
        ]

    def take_routes(self) -> list[Route]:
        """The topics of the data records since the last call."""
        routes, self._routes = self._routes, []
        for route in routes:
            route.in_batch = False
        return routes

    def build(self) -> Block | None:
        """The block of this batch, `None` without records; the next batch begins."""
        for publisher in self.unnoted.values() if self.is_logging else ():
            if publisher.noted < publisher.seen:
                self._mark(publisher)
        self.unnoted.clear()
        if not self._records:
            return None
        block = Block(
            b"".join(self._parts),
            self._records,
            self._first_position,
            self.position,
            self.now_us,
            self.now_us,
            {p.id: (p.batch_low, p.noted) for p in self._touched},
            tuple(self._definitions),
            frozenset(self._assigned),
        )
        for publisher in self._touched:
            publisher.batch_low = 0
        self._parts = []
        self._bytes = 0
        self._touched = []
        self._assigned = set()
        self._definitions = []
        self._records = 0
        self._first_position = self.position
        return block

    def _touch(self, publisher: KnownPublisher, sequence: int) -> None:
        """Note the batch's first record of a publisher."""
        publisher.batch_low, publisher.before_batch = sequence, publisher.noted
        self._touched.append(publisher)

    def _define(self, route: Route) -> None:
        route.topic_id = self._next_topic_id
        self._next_topic_id += 1
        self._definitions.append((route.topic_id, route.message_type, route.topic))
        self._append(topic_definition(route, route.topic_id, timestamp_us=self.now_us))

    def _append(self, record: bytes) -> None:
        self._parts.append(record)
        self._bytes += len(record)
        self._records += 1


def topic_definition(route: Route, topic_id: int, *, timestamp_us: int = 0) -> bytes:
    """The record that gives a topic its number in a log."""
    key, payload = to_bytes(route.message_type), to_bytes(route.topic)
    return encode_record(
        Record(0, 0, 0, timestamp_us, topic_id, RecordCommand.TOPIC, key=key, payload=payload)
    )

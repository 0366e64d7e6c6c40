"""The confirmed position: how far the log is written here and at every synchronous destination.

Three things wait for it: persisted acks; `fully_durable` subscriptions; and the number in a logon
ack to which a publisher trims its store. Up to this position of the log every record is
*confirmed*, that is, acknowledged by each destination that is synchronous at the time; where none
is, the whole log is confirmed as soon as it is written.

The unconfirmed part of the log is a queue of *ranges*, one for each batch (so that it ends where a
block ends). For each publisher in it a range has the highest sequence before it, which a logon ack
names while the range is the first that has the publisher. When a destination is down for long,
adjacent ranges are merged: the queue stays short, and confirmation gets coarser. An ack that has to
wait is held as an encoded frame, with the last position of its batch.

The confirmed position never goes back, and the shell writes it to a file before the acks that
depend on it go out, with what is known of each destination (`ReplicationProgress`). It survives a
restart, so the broker never reports less as safe to a publisher than it did before. For the same
reason the journal marks records that every synchronous destination had before this instance.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from haclient_fake_server.engine.connections import Connection
from haclient_fake_server.engine.publishers import KnownPublisher

MAX_UNCONFIRMED_RANGES: Final = 1024
"""Above this number neighbours are merged."""

MAX_HELD: Final = 16
"""Conflated acks of one connection that may be held; beyond it they are conflated further."""


class DestinationProgress(NamedTuple):
    """The state of a destination that must survive a restart of the broker.

    Attributes:
        address: As configured.
        instance: Its name.
        position: The destination has confirmed the records of the log up to this position.
    """

    address: str
    instance: str
    position: int


class ReplicationProgress(NamedTuple):
    """The state of replication that must survive a restart of the broker.

    Attributes:
        confirmed: The last confirmed position, `None` where no destination is synchronous.
        destinations: Those that have been reached.
    """

    confirmed: int | None
    destinations: tuple[DestinationProgress, ...] = ()


@dataclass(slots=True)
class UnconfirmedRange:
    """Records that are not confirmed yet.

    Attributes:
        first: Position of the first one.
        after: Position that follows the last one.
        before: By id of each publisher with a record among them, the highest sequence that the log
            has of it before them, 0 for none.
        last: Publisher and sequence of the last one.
        since: When the first was written, on the shell's clock.
    """

    first: int
    after: int
    before: dict[int, int]
    last: tuple[int, int] | None
    since: float

    def merge(self, other: UnconfirmedRange) -> None:
        """Merge the range that follows into this one."""
        self.after, self.last = other.after, other.last
        for publisher_id, sequence in other.before.items():
            self.before.setdefault(publisher_id, sequence)


class Durability:
    """The confirmed position and what waits for it.

    Attributes:
        waits: Whether any destination is synchronous now, so that there is something to wait for.
        limit: The first position that is not confirmed, as of the end of the last batch.
        passed: Publisher and sequence of the last record that is confirmed.
    """

    def __init__(self) -> None:
        self.waits = False
        self.limit = 1
        self.passed: tuple[int, int] | None = None
        self._ranges: deque[UnconfirmedRange] = deque()
        self._held: deque[tuple[int, Connection, bytes]] = deque()
        self._new: list[tuple[Connection, bytes]] = []

    @property
    def oldest(self) -> UnconfirmedRange | None:
        """The range that has waited longest."""
        return self._ranges[0] if self._ranges else None

    def restore(
        self, ranges: Iterable[UnconfirmedRange], *, limit: int, passed: tuple[int, int] | None
    ) -> None:
        """Take over the state of an earlier run.

        Args:
            ranges: What is not confirmed, in order.
            limit: The first position that is not confirmed.
            passed: Publisher and sequence of the last confirmed record.
        """
        self.limit, self.passed = limit, passed
        for unconfirmed in ranges:
            self._append(unconfirmed)

    def confirmed_of(self, publisher: KnownPublisher) -> int:
        """The sequence up to which the messages of a publisher are safe everywhere.

        Always that of a record, or 0. Sequences have gaps: a publisher that got a number that no
        message or mark has would find it missing on another server.
        """
        found = (each.before.get(publisher.id) for each in self._ranges)
        return next((each for each in found if each is not None), publisher.seen)

    def end_of_durable(self, log_end: int) -> int:
        """The first position that is not safe on every synchronous destination."""
        return self.limit if self.waits else log_end

    def hold(self, connection: Connection, frame: bytes) -> None:
        """Hold an ack until all records up to the end of this batch are confirmed."""
        connection.held += 1
        self._new.append((connection, frame))

    def forget(self, connection: Connection) -> None:
        """A connection has ended: drop its acks."""
        if connection.held:
            self._held = deque(item for item in self._held if item[1] is not connection)

    def written(
        self,
        first: int,
        after: int,
        publishers: Iterable[KnownPublisher],
        *,
        last: tuple[int, int] | None,
        now: float,
    ) -> None:
        """The batch is over; its records are `first` up to but not including `after`.

        Args:
            first: Their first position.
            after: The position that follows them.
            publishers: Those of the records. None where every destination had the records before
                this instance: they may have to wait for those before them in the log, but a
                publisher may rely on them.
            last: Publisher and sequence of the last message in the log.
            now: The time of the shell's clock in seconds.
        """
        self._held += ((after, connection, frame) for connection, frame in self._new)
        self._new.clear()
        if self.waits and after > first:
            before = {each.id: each.before_batch for each in publishers}
            self._append(UnconfirmedRange(first, after, before, last, now))

    def advance_confirmed(self, reached: int, *, end: int, last: tuple[int, int] | None) -> bool:
        """Every synchronous destination has everything up to a position.

        Args:
            reached: The position; ignored where no destination is synchronous.
            end: The next position of the log.
            last: Publisher and sequence of its last record.

        Returns:
            Whether more is confirmed than before.
        """
        before, ranges = self.limit, self._ranges
        while ranges and (not self.waits or ranges[0].after <= reached + 1):
            self.passed = ranges.popleft().last
        if ranges:
            self.limit = ranges[0].first
        else:
            self.limit, self.passed = end, last
        return self.limit > before

    def released(self) -> Iterator[tuple[Connection, bytes]]:
        """Remove and return the acks that are no longer held back, in order."""
        held = self._held
        while held and held[0][0] <= self.limit:
            _, connection, frame = held.popleft()
            connection.held -= 1
            yield connection, frame

    def _append(self, unconfirmed: UnconfirmedRange) -> None:
        ranges = self._ranges
        if len(ranges) >= MAX_UNCONFIRMED_RANGES:
            merged: deque[UnconfirmedRange] = deque()
            for number, each in enumerate(ranges):
                if number % 2:
                    merged[-1].merge(each)
                else:
                    merged.append(each)
            self._ranges = ranges = merged
        ranges.append(unconfirmed)

"""Which publishes of an audit log an ack covers.

An ack names a sequence and covers everything up to it that its session can have sent: what the
session has published, and what its publish store has kept of earlier ones. What an earlier session
has published and no store has kept was lost with its process, and numbers only have to rise: so of
this an ack covers only what it names before a later session has published, and after that nothing
with a number of the later session. Without a store, what is lost with a connection counts likewise:
after a loss it is as if another session had begun.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import NamedTuple


class PublishRecord(NamedTuple):
    """One publish.

    Attributes:
        client: The client's name.
        publisher_id: The hash of the name, unsigned.
        sequence: Its number.
        topic: Its topic.
        published_us: When it was published, in microseconds since 1970.
        acked_us: When the server's ack that covers it came, `None` while there is none.
        refused_us: When the server refused it, `None` if it did not.
        is_delete: It is a `sow_delete`.
    """

    client: str
    publisher_id: int
    sequence: int
    topic: str
    published_us: int
    acked_us: int | None
    refused_us: int | None
    is_delete: bool = False


class _Orphans:
    """Publishes of an earlier session of which no later one is known to have sent any.

    Attributes:
        records: By sequence, which rise.
        below: The first sequence that a later session has published, if any: an ack that reaches it
            may be for that session alone.
    """

    def __init__(self, records: dict[int, PublishRecord]) -> None:
        self.records = records
        self.below: int | None = None


class OpenPublishes:
    """The publishes of one client that are neither acknowledged nor refused."""

    def __init__(self) -> None:
        self._session = "", 0
        self._has_published = False
        # Of this session, and what its store has kept. The numbers rise.
        self._own: dict[int, PublishRecord] = {}
        self._orphans: list[_Orphans] = []

    def in_session(self, session: str, losses: int) -> None:
        """What follows is of this session, after so many losses."""
        if (session, losses) != self._session:
            self._session = session, losses
            self._begin()

    def _begin(self) -> None:
        self._has_published = False
        self._orphans = [each for each in self._orphans if each.records]
        if self._own:
            self._orphans.append(_Orphans(self._own))
            self._own = {}

    def adopt(self, lowest: int, last: int) -> None:
        """The session sends these again: its acks are for them too."""
        for orphans in self._orphans:
            for sequence in [each for each in orphans.records if lowest <= each <= last]:
                self._own[sequence] = orphans.records.pop(sequence)
        self._own = dict(sorted(self._own.items()))

    def add(self, record: PublishRecord) -> None:
        """A publish; published again under its number, the first one counts and has its place."""
        sequence = record.sequence
        if sequence in self._own:
            return
        if self._own and sequence < next(reversed(self._own)):
            self._begin()  # on another connection, in a log that does not record losses
        if not self._has_published:
            self._has_published = True
            for orphans in self._orphans:
                if orphans.below is None:
                    orphans.below = sequence
        for orphans in self._orphans:
            record = orphans.records.pop(sequence, record)
        self._own[sequence] = record

    def take(self, sequence: int) -> PublishRecord | None:
        """Remove one."""
        for records in (self._own, *(each.records for each in self._orphans)):
            if sequence in records:
                return records.pop(sequence)
        return None

    def take_acknowledged(self, sequence: int) -> Iterator[PublishRecord]:
        """Remove what an ack covers."""
        for orphans in self._orphans:
            if orphans.below is None or sequence < orphans.below:
                yield from _take_up_to(orphans.records, sequence)
        yield from _take_up_to(self._own, sequence)

    def records(self) -> Iterator[PublishRecord]:
        """Those that are left."""
        for orphans in self._orphans:
            yield from orphans.records.values()
        yield from self._own.values()


def _take_up_to(records: dict[int, PublishRecord], sequence: int) -> Iterator[PublishRecord]:
    for each in list(takewhile(lambda number: number <= sequence, records)):  # they rise
        yield records.pop(each)

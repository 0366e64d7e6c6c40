"""Which publishes of an audit log an ack covers.

An ack names a sequence and covers everything up to it that its session can have sent: what the
session has published, and what its publish store has kept of earlier ones. What an earlier session
has published and no store has kept was lost with its process, and numbers only have to rise: so of
this an ack covers only what it names before a later session has published, and after that nothing
with a number of the later session. Without a store, what is lost with a connection counts likewise:
after a loss it is as if another session had begun.
"""

from __future__ import annotations

from bisect import bisect_right, insort
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


class _Orphans(NamedTuple):
    """Publishes of an earlier session, after the first publish of a later one.

    Attributes:
        below: The number of that publish: an ack that reaches it may be for that session alone.
        records: By sequence, which rise.
    """

    below: int
    records: dict[int, PublishRecord]


class OpenPublishes:
    """The publishes of one client that are neither acknowledged nor refused.

    What was lost costs nothing later: of what earlier sessions have left, an ack looks only at what
    it may cover, and a publish only at its own number.
    """

    def __init__(self) -> None:
        self._session = "", 0
        self._has_published = False
        # Of this session, and what its store has kept. The numbers rise.
        self._own: dict[int, PublishRecord] = {}
        # Of earlier sessions: since when no other has published, and those before, by `below`.
        self._latest: list[dict[int, PublishRecord]] = []
        self._orphans: list[_Orphans] = []
        self._group_of: dict[int, dict[int, PublishRecord]] = {}  # where each of them is

    def in_session(self, session: str, losses: int) -> None:
        """What follows is of this session, after so many losses."""
        if (session, losses) != self._session:
            self._session = session, losses
            self._begin()

    def _begin(self) -> None:
        self._has_published = False
        if self._own:
            self._latest.append(self._own)
            self._group_of |= dict.fromkeys(self._own, self._own)
            self._own = {}

    def adopt(self, lowest: int, last: int) -> None:
        """The session sends these again: its acks are for them too."""
        for sequence in [each for each in self._group_of if lowest <= each <= last]:
            self._own[sequence] = self._group_of.pop(sequence).pop(sequence)
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
            for records in filter(None, self._latest):
                insort(self._orphans, _Orphans(sequence, records), key=_below)
            self._latest = []
        if sequence in self._group_of:
            record = self._group_of.pop(sequence).pop(sequence)
        self._own[sequence] = record

    def take(self, sequence: int) -> PublishRecord | None:
        """Remove one."""
        if sequence in self._own:
            return self._own.pop(sequence)
        group = self._group_of.pop(sequence, None)
        return None if group is None else group.pop(sequence)

    def take_acknowledged(self, sequence: int) -> Iterator[PublishRecord]:
        """Remove what an ack covers."""
        reached = bisect_right(self._orphans, sequence, key=_below)
        for records in (*self._latest, *(each.records for each in self._orphans[reached:])):
            for record in _take_up_to(records, sequence):
                del self._group_of[record.sequence]
                yield record
        yield from _take_up_to(self._own, sequence)

    def records(self) -> Iterator[PublishRecord]:
        """Those that are left."""
        for records in (*(each.records for each in self._orphans), *self._latest, self._own):
            yield from records.values()


def _below(orphans: _Orphans) -> int:
    return orphans.below


def _take_up_to(records: dict[int, PublishRecord], sequence: int) -> Iterator[PublishRecord]:
    for each in list(takewhile(lambda number: number <= sequence, records)):  # they rise
        yield records.pop(each)

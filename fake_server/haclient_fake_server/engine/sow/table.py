"""One State-of-the-World topic: the last record of each key.

A topic with key fields derives the key of a record from its body; the key is the decimal text
of a CRC-64 over the topic and the values, so it is the same on each server and after each restart.
A value counts by its text: `1` and `"1"` are one key, `1` and `1.0` are two. A number that neither
a 64-bit integer nor a float holds counts as it is written. Each value is preceded by its length, so
that no two lists of values run together. A key that a publisher sends as well is ignored.

A topic without key fields takes the publisher's own key, and any body: only then may a body be
damaged, or of a type without fields.

Where the topic lets records expire, they do so at a moment of this instance's clock, whatever else
happens to the topic. The log has when each was published and how long it lives, so an expired
record is not recorded as deleted, and a restart or a replica comes to the same records.

The table is a dict in order of first insertion, and everything here happens at one instant: a query
and the subscription that follows it see the same state. Bodies are kept as bytes and parsed again
when queried, since parsed they would take several times the memory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, merge
from operator import itemgetter
from typing import Final, NamedTuple

from haclient.errors import HAClientError
from haclient.protocol.identity import crc64
from haclient_fake_server.engine.field_selection import FieldSelection
from haclient_fake_server.engine.filters.bodies import TOO_LARGE, is_too_large
from haclient_fake_server.engine.filters.compiler import Filter
from haclient_fake_server.engine.filters.document import Document, Path
from haclient_fake_server.engine.filters.ordering import OrderBy, Rank
from haclient_fake_server.engine.filters.parser import parse_path
from haclient_fake_server.engine.patterns import to_bytes
from haclient_fake_server.engine.sow.delta import Delta

RECORD_BYTES: Final = 512
"""The cost of examining a record, besides its body: about that of reading so many bytes."""

NEVER_US: Final = sys.maxsize
"""The deadline of a record that never expires."""

_SLACK: Final = 1024
"""So many deadlines of removed records are never worth a sweep."""

FILTER_CHARACTERS: Final = 128
"""Characters of a filter whose evaluation costs about as much as examining the record."""


class SowError(HAClientError):
    """A publish or delete does not fit its SOW topic; nothing has changed.

    Attributes:
        reason: The reason in the failure ack.
    """

    reason: str = "bad sow key"


class SowKeyError(SowError):
    """The key is missing, or cannot be derived from the body."""


class SowBodyError(SowError):
    """The body is damaged, in a topic whose keys are fields."""

    reason = "bad message"


@dataclass(frozen=True, slots=True)
class SowRecord:
    """The last message of one key.

    Attributes:
        key: Decimal text when generated, else the publisher's own text.
        body: The message as published, or as merged by a delta.
        timestamp: When the server accepted it, as wire text; empty when unknown.
        correlation_id: The publisher's correlation id; empty for none.
        bookmark: Its position in the log; empty when the topic is not logged.
        expires_us: When it expires, in microseconds since 1970.
        lifetime_s: How long it lives as its publisher says, `None` for nothing.
    """

    key: str
    body: bytes
    timestamp: str = ""
    correlation_id: str = ""
    bookmark: str = ""
    expires_us: int = NEVER_US
    lifetime_s: int | None = None


class Changes(NamedTuple):
    """The changes made by a record.

    Attributes:
        document: The message; `None` for a delete.
        key: Its key; empty where it has none.
        previous: The record of the same key that it has replaced.
        deleted: The records that a delete has removed, or that have expired.
        reason: Why they are out of focus.
    """

    document: Document | None
    key: str = ""
    previous: SowRecord | None = None
    deleted: tuple[SowRecord, ...] = ()
    reason: str = "deleted"


_AS_THEY_ARE: Final = OrderBy()


class Applied(NamedTuple):
    """The effect of a publish: it replaced the record `previous` under `key`, if there was one."""

    key: str
    previous: SowRecord | None


@dataclass(frozen=True, slots=True)
class Query:
    """Which records are wanted; the default is all of them.

    Attributes:
        matches: A compiled filter; None takes every record.
        keys: Only these keys; None takes every key.
        order_by: The order; without one, that of first insertion, or by key when paging.
        top_n: At most this many records; None for no limit, 0 to only count.
        skip_n: Leave out this many of the first.
        paged: Whether it asks for a page, so that records which the order does not tell apart have
            that of their keys.
    """

    matches: Filter | None = None
    keys: Sequence[str] | None = None
    order_by: OrderBy = _AS_THEY_ARE
    top_n: int | None = None
    skip_n: int = 0
    paged: bool = False
    weight: int = 1

    @property
    def is_sorted(self) -> bool:
        """Whether all that is found has to be known before the first record is sent."""
        return bool(self.order_by or self.paged or self.skip_n)


class QueryResult(NamedTuple):
    """The records to send and the numbers of the stats ack.

    Attributes:
        records: What is left of the matches after `skip_n` and `top_n`.
        topic_matches: How many records the topic holds.
        matches: How many of them fit filter and keys.
    """

    records: tuple[SowRecord, ...]
    topic_matches: int
    matches: int


class SowTable:
    """The records of one topic.

    Args:
        name: The topic.
        keys: Paths of the key fields, such as `/id`; none when publishers name the key.
        message_type: Of all bodies; see `bodies` for those that have fields.
        history: Whether the log has its records of earlier moments.
        file_backed: Whether a file keeps its records, so that it takes note of what changes.
        expiration_s: How long a record lives whose publisher does not say it, 0 for ever; with
            `None` all records live for ever.

    Raises:
        FilterError: A key is not a path.
    """

    __slots__ = (
        "_deadlines",
        "_paths",
        "_queued",
        "_records",
        "_snapshot",
        "changed",
        "expiration_s",
        "file_backed",
        "history",
        "message_type",
        "name",
    )

    def __init__(
        self,
        name: str,
        keys: Iterable[str] = (),
        *,
        message_type: str = "json",
        history: bool = False,
        file_backed: bool = False,
        expiration_s: float | None = None,
    ) -> None:
        self.file_backed: Final = file_backed
        # The keys of what has changed since it was written; a dict, to keep their order.
        self.changed: Final[dict[str, None]] = {}
        self.name: Final = name
        self.history: Final = history
        self.expiration_s: Final = expiration_s
        # A later deadline of a record changes nothing here: the entry comes up too early, and is
        # put back. So a record that changes constantly has one entry, and idle ones cost nothing.
        self._deadlines: list[tuple[int, str]] = []  # a heap
        self._queued: dict[str, int] = {}
        self._paths: Final[tuple[Path, ...]] = tuple(parse_path(key) for key in keys)
        self.message_type: Final = message_type
        self._records: Final[dict[str, SowRecord]] = {}
        self._snapshot: tuple[SowRecord, ...] | None = None  # shared by queries between changes

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[SowRecord]:
        return iter(self._records.values())

    @property
    def key_paths(self) -> tuple[str, ...]:
        """The paths of the key fields; none when publishers name the key."""
        return tuple(path.text for path in self._paths)

    @property
    def has_user_keys(self) -> bool:
        """Whether publishers must name the key of each record."""
        return not self._paths

    def blank(self) -> SowTable:
        """The same topic without records."""
        return SowTable(
            self.name,
            self.key_paths,
            message_type=self.message_type,
            expiration_s=self.expiration_s,
        )

    def get(self, key: str) -> SowRecord | None:
        """The record under `key`, if any."""
        return self._records.get(key)

    def delta(self, before: SowRecord, after: bytes, fields: FieldSelection | None = None) -> Delta:
        """What a message changes in a record, or in some fields of it."""
        if fields is None:
            return Delta(before.body, after, self._paths, self.message_type)
        old = fields.apply(before.body, self.message_type)
        new = fields.apply(after, self.message_type)
        return Delta(old, new, self._paths, self.message_type)

    def document(self, record: SowRecord) -> Document:
        """The record's body for filters, not yet parsed."""
        return Document(record.body, self.message_type)

    def key_of(self, document: Document, key: str = "") -> str:
        """The key under which this body belongs; `key` is the publisher's own, if any.

        Raises:
            SowKeyError: The key is missing or malformed.
            SowBodyError: The body is damaged.
        """
        if not self._paths:
            return self._checked(key)
        if not document.has_fields:
            kind = self.message_type.upper()
            if is_too_large(document.body, self.message_type):
                raise SowBodyError(f"no key is looked for in {TOO_LARGE}")
            raise SowBodyError(f"topic {self.name!r} takes {kind} bodies only, to find their keys")
        return generated_key(self.name, [self._key_field(document, path) for path in self._paths])

    def _checked(self, key: str) -> str:
        if not key or "," in key:
            raise SowKeyError(
                f"topic {self.name!r} needs a sow_key without commas from the publisher,"
                f" found {key[:40]!r}"
            )
        return key

    def _key_field(self, document: Document, path: Path) -> str:
        value = document.key_text(path)
        if value is None:
            raise SowKeyError(f"topic {self.name!r} needs key field {path.text}, found no value")
        return value

    def apply(
        self,
        document: Document,
        key: str = "",
        *,
        timestamp: str = "",
        correlation_id: str = "",
        bookmark: str = "",
    ) -> Applied:
        """Make the body the record of its key.

        Raises:
            SowKeyError: The key is missing or malformed.
            SowBodyError: The body is damaged.
        """
        key = self.key_of(document, key)
        record = SowRecord(key, document.body, timestamp, correlation_id, bookmark)
        return Applied(key, self.restore(record))

    def restore(self, record: SowRecord) -> SowRecord | None:
        """Put back a record of an earlier run as it was; the previous one under its key, if any."""
        previous = self._records.get(record.key)
        self._records[record.key] = record
        self._snapshot = None
        if self.file_backed:
            self.changed[record.key] = None
        if record.expires_us != NEVER_US:
            self._set_deadline(record.key, record.expires_us)
        return previous

    def records(self, keys: Iterable[str] | None = None) -> tuple[SowRecord, ...]:
        """The records as of now, or those of some keys, each once."""
        if keys is not None:
            found = map(self._records.get, dict.fromkeys(keys))
            return tuple(record for record in found if record is not None)
        if self._snapshot is None:
            self._snapshot = tuple(self._records.values())
        return self._snapshot

    def query(self, query: Query) -> QueryResult:
        """The records that `query` asks for, all as of now."""
        search = Search(self, query)
        found = [record for part in search.parts(sys.maxsize) for record in part.records]
        return QueryResult(tuple(found), search.topic_matches, search.matches)

    def delete_keys(self, keys: Iterable[str]) -> tuple[SowRecord, ...]:
        """Remove the records under these keys; unknown keys are passed over."""
        records = self.records(keys)
        self._snapshot = None
        for record in records:
            del self._records[record.key]
        self._note(records)
        if len(self._deadlines) > 2 * len(self._records) + _SLACK:
            self._drop_stale_deadlines()
        return records

    def lifetime_s(self, expiration_s: float | None) -> float:
        """How long a record lives, 0 for ever.

        Args:
            expiration_s: What its publisher says, `None` for nothing.
        """
        if self.expiration_s is None:
            return 0
        return self.expiration_s if expiration_s is None else expiration_s

    def expires_us(self, begin_us: int, expiration_s: float | None) -> int:
        """When a record expires whose life began at a moment; see `lifetime_s`."""
        lifetime_s = self.lifetime_s(expiration_s)
        return begin_us + int(lifetime_s * 1e6) if lifetime_s else NEVER_US

    @property
    def next_expiry_us(self) -> int:
        """When the next record may expire."""
        return self._deadlines[0][0] if self._deadlines else NEVER_US

    def take_expired(self, now_us: int, limit: int) -> tuple[SowRecord, ...]:
        """Remove records that have expired, the oldest first.

        Args:
            now_us: The present moment.
            limit: How many deadlines to look at.
        """
        heap, expired = self._deadlines, list[SowRecord]()
        while limit and heap and heap[0][0] <= now_us:
            limit -= 1
            due_us, key = heappop(heap)
            if self._queued.get(key) != due_us:
                continue  # an earlier entry has taken its place
            del self._queued[key]
            record = self._records.get(key)
            if record is None or record.expires_us == NEVER_US:
                continue
            if record.expires_us > now_us:
                self._set_deadline(key, record.expires_us)
                continue
            del self._records[key]
            expired.append(record)
        if expired:
            self._snapshot = None
            self._note(expired)
        return tuple(expired)

    def _note(self, removed: Iterable[SowRecord]) -> None:
        if self.file_backed:
            self.changed.update((record.key, None) for record in removed)

    def take_changed(self) -> list[str]:
        """The keys of what has changed since the last call."""
        keys = [*self.changed]
        self.changed.clear()
        return keys

    def restore_changed(self, keys: Iterable[str]) -> None:
        """These keys of the last call are among those of the next one, before all others."""
        later = self.take_changed()
        self.changed.update(dict.fromkeys(keys))
        self.changed.update(dict.fromkeys(later))

    def _set_deadline(self, key: str, due_us: int) -> None:
        if due_us < self._queued.get(key, NEVER_US):
            self._queued[key] = due_us
            heappush(self._deadlines, (due_us, key))
            if len(self._deadlines) > 2 * len(self._records) + _SLACK:
                self._drop_stale_deadlines()

    def _drop_stale_deadlines(self) -> None:
        """Free the memory of deadlines of records that are gone: they may be due in years."""
        self._queued = {
            each.key: each.expires_us
            for each in self._records.values()
            if each.expires_us != NEVER_US
        }
        self._deadlines = [(due_us, key) for key, due_us in self._queued.items()]
        heapify(self._deadlines)


class Part(NamedTuple):
    """A part of a search.

    Attributes:
        records: What it has found, in the order of the result.
        cost_bytes: What it has cost, as bytes of bodies.
    """

    records: list[SowRecord]
    cost_bytes: int


class Search:
    """Finds the records of one topic that a query asks for, a part at a time.

    The records are those of the moment at which it is made, whatever happens to the topic between
    two parts.

    Attributes:
        topic: The topic.
        query: What is asked for.
        topic_matches: How many records it has.
        matches: How many of them fit filter and keys, as far as it has come.
    """

    __slots__ = ("_records", "matches", "query", "topic", "topic_matches")

    def __init__(self, topic: SowTable, query: Query) -> None:
        self.topic = topic
        self.topic_matches = len(topic)
        self.matches = 0
        self.query = query
        self._records = topic.records(query.keys)

    def parts(self, part_bytes: int) -> Iterator[Part]:
        """Take the parts of the search in turn, once.

        Args:
            part_bytes: Where a part ends: bytes of bodies, with `RECORD_BYTES` more for each.
        """
        query = self.query
        if query.is_sorted:
            yield from self._sorted(part_bytes)
            return
        room = sys.maxsize if query.top_n is None else query.top_n
        for part in self.all_parts(part_bytes):
            found = self._matching(part.records)
            self.matches += len(found)
            yield Part(found[:room], part.cost_bytes)
            room -= min(room, len(found))

    def all_parts(self, part_bytes: int) -> Iterator[Part]:
        """Take all records in parts, whether they fit or not."""
        yield from _parts(self._records, part_bytes, self.query.weight)

    def _matching(self, records: list[SowRecord]) -> list[SowRecord]:
        matches, kind = self.query.matches, self.topic.message_type
        if matches is None:
            return records
        return [record for record in records if matches(Document(record.body, kind))]

    def _sorted(self, part_bytes: int) -> Iterator[Part]:
        for records, cost_bytes in sorted_parts([self], part_bytes):
            yield Part([record for _, record in records], cost_bytes)

    def run(self, part: Part) -> list[tuple[tuple[Rank, str], SowTable, SowRecord]]:
        """What a part has found, with the place of each record, sorted by that."""
        query, found = self.query, self._matching(part.records)
        self.matches += len(found)
        by_key = query.paged or query.skip_n
        rank, document, topic = query.order_by.rank, self.topic.document, self.topic
        run = [((rank(document(each)), each.key if by_key else ""), topic, each) for each in found]
        run.sort(key=_place)
        return run


def sorted_parts(
    searches: Sequence[Search], part_bytes: int
) -> Iterator[tuple[list[tuple[SowTable, SowRecord]], int]]:
    """Sort what each part of some searches has found, then merge it: as many parts again.

    Args:
        searches: Those of one query, one for each topic.
        part_bytes: Where a part ends: see `Search.parts`.

    Returns:
        The records that each part adds to the sorted result of all topics, and its cost.
    """
    runs: list[list[tuple[tuple[Rank, str], SowTable, SowRecord]]] = []
    for search in searches:
        for part in search.all_parts(part_bytes):
            runs.append(search.run(part))
            yield [], part.cost_bytes
    if not searches:
        return
    query = searches[0].query
    first = query.skip_n
    end = sys.maxsize if query.top_n is None else first + query.top_n
    records: list[tuple[SowTable, SowRecord]] = []
    cost_bytes = 0
    for at, (_, topic, record) in enumerate(merge(*runs, key=_place)):
        if at >= end:
            break
        if at >= first:
            records.append((topic, record))
        cost_bytes += RECORD_BYTES + len(record.body)
        if cost_bytes >= part_bytes:
            yield records, cost_bytes
            records, cost_bytes = [], 0
    yield records, cost_bytes


def weight_of(filter_text: str) -> int:
    """The cost of a filter for each record, as a multiple of that of a short one."""
    return 1 + len(filter_text) // FILTER_CHARACTERS


def _parts(records: Iterable[SowRecord], part_bytes: int, weight: int = 1) -> Iterator[Part]:
    part: list[SowRecord] = []
    cost_bytes = 0
    for record in records:
        part.append(record)
        cost_bytes += (RECORD_BYTES + len(record.body)) * weight
        if cost_bytes >= part_bytes:
            yield Part(part, cost_bytes)
            part, cost_bytes = [], 0
    if part:
        yield Part(part, cost_bytes)


_place = itemgetter(0)


def generated_key(topic: str, values: Iterable[str]) -> str:
    """The decimal key of these key values in `topic`."""
    parts = [to_bytes(value) for value in (topic, *values)]
    return str(crc64(b"".join(b"%d:%b" % (len(part), part) for part in parts)))


def recorded_keys(text: str) -> tuple[str, ...]:
    """The keys of a delete in the journal, exactly: blanks are part of a key that has some."""
    return tuple(text.split(",")) if text else ()


def parse_sow_keys(text: str) -> tuple[str, ...]:
    """The keys of a `sow_keys` header: a comma list; blanks around and between are nothing."""
    return tuple(key for part in text.split(",") if (key := part.strip()))

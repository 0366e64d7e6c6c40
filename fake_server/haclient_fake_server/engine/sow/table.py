"""One State-of-the-World topic: the last record of each key.

A topic with key fields derives the key of a record from its JSON body; the key is the decimal text
of a CRC-64 over the topic and the values, so it is the same on each server and after each restart.
A value counts by its text: `1` and `"1"` are one key, `1` and `1.0` are two. A number that neither
a 64-bit integer nor a float holds counts as it is written. Each value is preceded by its length, so
that no two lists of values run together. A key that a publisher sends as well is ignored.

A topic without key fields takes the publisher's own key, and any body: only then may a body be
something other than JSON.

The table is a dict in order of first insertion, and everything here happens at one instant: a query
and the subscription that follows it see the same state. Bodies are kept as bytes and parsed again
when queried, since parsed they would take several times the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from haclient.errors import HAClientError
from haclient.protocol.identity import crc64
from haclient_fake_server.engine.field_selection import FieldSelection
from haclient_fake_server.engine.filters.compiler import Filter
from haclient_fake_server.engine.filters.document import Document, Path
from haclient_fake_server.engine.filters.ordering import OrderBy
from haclient_fake_server.engine.filters.parser import parse_path
from haclient_fake_server.engine.patterns import to_bytes
from haclient_fake_server.engine.sow.delta import Delta


class SowError(HAClientError):
    """A publish or delete does not fit its SOW topic; nothing has changed.

    Attributes:
        reason: The reason in the failure ack.
    """

    reason: str = "bad sow key"


class SowKeyError(SowError):
    """The key is missing, or cannot be derived from the body."""


class SowBodyError(SowError):
    """The body is not JSON, in a topic whose keys are JSON fields."""

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
    """

    key: str
    body: bytes
    timestamp: str = ""
    correlation_id: str = ""
    bookmark: str = ""


class Changes(NamedTuple):
    """The changes made by a record.

    Attributes:
        document: The message; `None` for a delete.
        key: Its key; empty where it has none.
        previous: The record of the same key that it has replaced.
        deleted: The records that a delete has removed.
    """

    document: Document | None
    key: str = ""
    previous: SowRecord | None = None
    deleted: tuple[SowRecord, ...] = ()


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


class SowTopic:
    """The records of one topic.

    Args:
        name: The topic.
        keys: Paths of the key fields, such as `/id`; none when publishers name the key.
        message_type: Of all bodies; only `json` has fields.

    Raises:
        FilterError: A key is no path.
    """

    __slots__ = ("_paths", "_records", "message_type", "name")

    def __init__(self, name: str, keys: Iterable[str] = (), *, message_type: str = "json") -> None:
        self.name: Final = name
        self._paths: Final[tuple[Path, ...]] = tuple(parse_path(key) for key in keys)
        self.message_type: Final = message_type
        self._records: Final[dict[str, SowRecord]] = {}

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

    def blank(self) -> SowTopic:
        """The same topic without records."""
        return SowTopic(self.name, self.key_paths, message_type=self.message_type)

    def get(self, key: str) -> SowRecord | None:
        """The record under `key`, if any."""
        return self._records.get(key)

    def delta(self, before: SowRecord, after: bytes, fields: FieldSelection | None = None) -> Delta:
        """What a message changes in a record, or in some fields of it."""
        if fields is None:
            return Delta(before.body, after, self._paths)
        old = fields.apply(before.body, self.message_type)
        return Delta(old, fields.apply(after, self.message_type), self._paths)

    def document(self, record: SowRecord) -> Document:
        """The record's body for filters, not yet parsed."""
        return Document(record.body, self.message_type)

    def key_of(self, document: Document, key: str = "") -> str:
        """The key under which this body belongs; `key` is the publisher's own, if any.

        Raises:
            SowKeyError: The key is missing or malformed.
            SowBodyError: The body is not JSON.
        """
        if not self._paths:
            return self._checked(key)
        if not document.has_fields:
            raise SowBodyError(f"topic {self.name!r} takes JSON bodies only, to find their keys")
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
            SowBodyError: The body is not JSON.
        """
        key = self.key_of(document, key)
        record = SowRecord(key, document.body, timestamp, correlation_id, bookmark)
        return Applied(key, self.restore(record))

    def restore(self, record: SowRecord) -> SowRecord | None:
        """Put back a record of an earlier run as it was; the previous one under its key, if any."""
        previous = self._records.get(record.key)
        self._records[record.key] = record
        return previous

    def query(self, query: Query) -> QueryResult:
        """The records that `query` asks for, all as of now."""
        found = self._found(query.matches, query.keys)
        if query.paged or query.skip_n:
            found.sort(key=_key_of_record)
        if query.order_by:
            found = query.order_by.sort(found, document=self.document)
        end = None if query.top_n is None else query.skip_n + query.top_n
        return QueryResult(tuple(found[query.skip_n : end]), len(self._records), len(found))

    def delete_keys(self, keys: Iterable[str]) -> tuple[SowRecord, ...]:
        """Remove the records under these keys; unknown keys are passed over."""
        records = self._found(None, keys)
        for record in records:
            del self._records[record.key]
        return tuple(records)

    def _found(self, matches: Filter | None, keys: Iterable[str] | None) -> list[SowRecord]:
        records: Iterable[SowRecord] = self._records.values()
        if keys is not None:
            wanted = dict.fromkeys(keys)
            records = [self._records[key] for key in wanted if key in self._records]
        if matches is None:
            return list(records)
        return [record for record in records if matches(self.document(record))]


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


def _key_of_record(record: SowRecord) -> str:
    return record.key

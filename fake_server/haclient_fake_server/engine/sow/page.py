"""Pages: a subscriber sees a window of a query's result, and how it changes.

The records that match are kept in order: the order that was asked for, and records that it does not
tell apart by their keys. A page is the part from `skip_n` on, of `top_n` records. A change of one
record may move others into the page and out of it:

* a record that enters the page, or changes in it, is published,
* one that leaves it, because it has changed or because others come before it now, is out of focus
  (`match`); one that was deleted is, too (`deleted`).

What leaves comes first, so that the subscriber never has more than `top_n` records.

A page of deltas sends of a record that changes within it what has changed, and a record that enters
it whole.

A page is built in steps, between which other clients are served. It shows the records as they are
when it is complete: earlier changes are applied to it, and not sent.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Generator, Iterable, Iterator, Mapping
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from haclient.protocol.codec import encode_string
from haclient_fake_server.engine.connections import Connection, Selection, Subscription
from haclient_fake_server.engine.filters.ordering import Rank
from haclient_fake_server.engine.sow.table import RECORD_BYTES, Query, Search, SowRecord, SowTable

MAX_PAGE_RECORDS: Final = 10_000
"""The longest page: all of it is sent in one step."""

_CHANGES: Final = 100
"""How many changes a page follows in the first of the steps that complete it."""

Place: TypeAlias = tuple[Rank, str]


class PageChange(NamedTuple):
    """What one update does to a page, as keys in the order of the page.

    Attributes:
        left: Those that were in it and are not any more.
        present: Those that have entered it, or have changed in it.
        entered: Those of `present` that were not in it.
    """

    left: tuple[str, ...] = ()
    present: tuple[str, ...] = ()
    entered: frozenset[str] = frozenset()


class Page:
    """The window of a query's result that a subscriber sees; empty until it was built.

    Args:
        topic: The topic; its records are read when they change.
        query: Its filter, keys, order, `top_n` and `skip_n`.
    """

    __slots__ = ("_changed", "_end", "_order", "_places", "_query", "_start", "_wanted", "topic")

    def __init__(self, topic: SowTable, query: Query) -> None:
        self.topic = topic
        self._query = query
        self._wanted = None if query.keys is None else frozenset(query.keys)
        self._start = query.skip_n
        self._end = query.skip_n + (query.top_n or 0)
        self._places: dict[str, Place] = {}
        self._order: list[Place] = []
        self._changed: set[str] | None = set()  # while it is built

    def build(self, part_bytes: int) -> Generator[None, None, None]:
        """Build the page, once, with the changes of which `update` takes note meanwhile.

        Args:
            part_bytes: Where a step ends: see `Search.parts`.
        """
        runs: list[list[Place]] = []
        for part in Search(self.topic, self._query).all_parts(part_bytes):
            places = map(self._place_of, part.records)
            runs.append(sorted(place for place in places if place is not None))
            self._places.update((place[1], place) for place in runs[-1])
            if part.cost_bytes >= part_bytes:
                yield
        merged, count = merge(*runs), max(part_bytes // RECORD_BYTES, 1)
        while chunk := list(islice(merged, count)):
            self._order += chunk
            if len(chunk) == count:
                yield
        count = _CHANGES
        while self._changed:
            keys = [self._changed.pop() for _ in range(min(count, len(self._changed)))]
            self._move({key: self._new_place(key) for key in keys})
            if len(keys) == count:
                count *= 2  # it must end, however fast the records change
                yield
        self._changed = None

    @property
    def matches(self) -> int:
        """How many records are in the result of which the page is a part."""
        return len(self._order)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the records in the page, in its order."""
        if self._changed is not None:
            return ()
        return tuple(key for _, key in self._order[self._start : self._end])

    def update(self, keys: Iterable[str]) -> PageChange:
        """Take note that the records of some keys were published or deleted."""
        if self._changed is not None:
            self._changed.update(keys)
            return PageChange()
        changed = frozenset(keys)
        places = {key: self._new_place(key) for key in changed}
        if self._is_beyond(places):
            self._move(places)
            return PageChange()
        # What else enters or leaves is next to an end: the page may be long, and is not compared.
        near = {*changed, *self._near_ends(len(changed))}
        was = self._in_page(near)
        self._move(places)
        now = self._in_page(near)
        return PageChange(
            tuple(sorted(was.keys() - now.keys(), key=was.__getitem__)),
            tuple(sorted((now.keys() - was.keys()) | (now.keys() & changed), key=now.__getitem__)),
            frozenset(now.keys() - was.keys()),
        )

    def _near_ends(self, count: int) -> Iterator[str]:
        """The keys of the records that so many changes of the order may move over an end."""
        for end in (self._start, self._end):
            for _, key in self._order[max(end - count, 0) : end + count]:
                yield key

    def _in_page(self, keys: Iterable[str]) -> dict[str, int]:
        """Where in the order those of some keys are that are in the page."""
        found: dict[str, int] = {}
        for key in keys:
            place = self._places.get(key)
            if place is not None:
                at = bisect_left(self._order, place)
                if self._start <= at < self._end:
                    found[key] = at
        return found

    def _new_place(self, key: str) -> Place | None:
        record = self.topic.get(key)
        return None if record is None else self._place_of(record)

    def _place_of(self, record: SowRecord) -> Place | None:
        """Where a record belongs; `None` if it is not in the result."""
        if self._wanted is not None and record.key not in self._wanted:
            return None
        document, query = self.topic.document(record), self._query
        if query.matches is not None and not query.matches(document):
            return None
        return query.order_by.rank(document), record.key

    def _is_beyond(self, places: Mapping[str, Place | None]) -> bool:
        """Whether changes are all after the end of a full page, so that they cannot be seen."""
        if not self._query.top_n:
            return True
        if len(self._order) < self._end:
            return False
        last = self._order[self._end - 1]
        known = (self._places.get(key) for key in places)
        return all(place is None or place > last for place in (*known, *places.values()))

    def _move(self, places: Mapping[str, Place | None]) -> None:
        for key, place in places.items():
            old = self._places.pop(key, None)
            if old is not None:
                del self._order[bisect_left(self._order, old)]
            if place is not None:
                self._places[key] = place
                insort(self._order, place)


class PageSubscription(Subscription):
    """A subscription to a page of one topic.

    Attributes:
        page: The page.
        had: The records of the page that it has replaced, until its own are sent.
    """

    __slots__ = ("had", "page")

    def __init__(
        self, connection: Connection, sub_id: str, *, number: int, selection: Selection, page: Page
    ) -> None:
        super().__init__(connection, sub_id, number=number, selection=selection)
        self.page = page
        self.had: tuple[SowRecord, ...] = ()

    @property
    def records(self) -> tuple[SowRecord, ...]:
        """The records that the subscriber has."""
        return self.had or self.page.topic.records(self.page.keys)


def page_headers(record: SowRecord, *, dated: bool, reason: str = "") -> bytes:
    """The headers of a message of a page that depend on its record."""
    more = b',"x":' + encode_string(record.correlation_id) if record.correlation_id else b""
    if dated and record.timestamp:
        more += b',"ts":' + encode_string(record.timestamp)
    if reason:
        more += b',"reason":' + encode_string(reason)
    return more

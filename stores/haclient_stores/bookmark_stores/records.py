"""The records of a bookmark log: two 64-bit words for each state change of a subscription tracker.

The first word says what happened and to whom: kind (8 bits), subscription (24 bits), publisher (32
bits); it is never 0, and a 0 is the end of the log. The second word is the value, which may be 0.
The value is written first, so a record is complete once its first word is there.

Reading a log repeats the same state changes. Almost all records are arrivals and discards, and
those two commute (a discard always comes after its arrival), so they are collected for each
subscription and applied in bulk before any other record.

A prune writes the fewest records that give the same tracker again (`snapshot`). The tracker of a
running client is copied first (`frozen`). That is fast even with a million open entries, since
entries never change and only containers are copied. Pure.
"""

from __future__ import annotations

import enum
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from itertools import compress, islice, pairwise
from operator import ne
from typing import Final, TypeAlias

from typing_extensions import override

from haclient_stores.bookmark import LAST_MICROSECOND, Bookmark, Timestamp
from haclient_stores.tracker.entries import MIXED, Publishers
from haclient_stores.tracker.tracker import SubscriptionTracker

_KIND_SHIFT: Final = 56
_SUBSCRIPTION_SHIFT: Final = 32
_SUBSCRIPTION_MASK: Final = 2**24 - 1
_PUBLISHER_MASK: Final = 2**32 - 1
_TEXT_PART: Final = 7  # bytes of a text in one record
_FIRST_PART: Final = 0x80  # beside the count of bytes: what was read of a text before is void
_FLAG_ACKED: Final = 2
_FLAG_CONFLATED: Final = 4
_SHORT_RUN: Final = 8  # below so many equal first words a run is not worth its overhead


class RecordKind(enum.IntEnum):
    """The kinds of records. The values are part of the file format."""

    LOGGED = 1  # publisher, sequence
    DISCARDED = 2  # number
    DISCARDED_UP_TO = 3  # number
    ALIAS = 4  # number of the entry that came again
    PERSISTED = 5  # publisher, sequence
    PERSISTED_WHILE_PAUSED = 6  # publisher, sequence
    COMPLETED = 7  # publisher, sequence
    COMPLETED_SOMEWHERE = 8  # 1, which says nothing
    LOST = 9  # first number that was not delivered
    BEGUN = 10  # 1, plus flags
    PURGED = 11  # generation
    START_BOOKMARK = 12  # publisher, sequence
    START_TIME = 13  # microseconds
    ENTERED = 14  # microseconds
    PUBLISHER = 15  # publisher, its id
    NAME = 17  # part of a subscription id: count of bytes, and 128 in the first part, then up to 7
    NAME_END = 18  # the last part
    NEXT = 19  # next number
    SEEN = 20  # publisher, sequence
    RECOVERED = 21  # publisher, sequence
    COVERED = 22  # publisher, sequence
    ALIAS_NUMBER = 23  # the number of the next ALIAS_OF
    ALIAS_OF = 24  # number of the entry that it stands for
    SERVER = 25  # part of a server's address, in parts like a name
    SERVER_END = 26  # the last part
    BEFORE = 27  # publisher, sequence
    CAUGHT_UP = 28  # microseconds
    DISCARDED_UNTIL = 29  # microseconds
    PENDING_BEFORE = 30  # the number that everything before the next PENDING_ACK is below
    PENDING_ACK = 31  # publisher, sequence
    CONDENSED = 32  # 1, which says nothing
    PARTIAL_SEAL = 254  # see record_file
    SEAL = 255


_NAMING_A_PUBLISHER: Final = {
    RecordKind.PERSISTED,
    RecordKind.PERSISTED_WHILE_PAUSED,
    RecordKind.COMPLETED,
    RecordKind.START_BOOKMARK,
    RecordKind.SEEN,
    RecordKind.RECOVERED,
    RecordKind.COVERED,
    RecordKind.BEFORE,
    RecordKind.PENDING_ACK,
}
_HIGHEST_NUMBER: Final = 2**62  # they are counted from 1, and what follows has 64 bits
_NAMING_A_TIME: Final = {
    RecordKind.START_TIME,
    RecordKind.ENTERED,
    RecordKind.CAUGHT_UP,
    RecordKind.DISCARDED_UNTIL,
}
_TEXTS: Final[dict[int, int]] = {  # the kind of the last part
    RecordKind.NAME: RecordKind.NAME_END,
    RecordKind.NAME_END: RecordKind.NAME_END,
    RecordKind.SERVER: RecordKind.SERVER_END,
    RecordKind.SERVER_END: RecordKind.SERVER_END,
}


def word(kind: RecordKind, subscription: int = 0, publisher: int = 0) -> int:
    """The first word of a record."""
    return kind << _KIND_SHIFT | subscription << _SUBSCRIPTION_SHIFT | publisher


def begun_flags(*, acked: bool, conflated: bool) -> int:
    """The value of a `BEGUN` record."""
    return 1 + _FLAG_ACKED * acked + _FLAG_CONFLATED * conflated


def name_records(subscription: int, sub_id: str) -> Iterator[tuple[int, int]]:
    """The records that begin a subscription."""
    return _text_records(subscription, sub_id, RecordKind.NAME, RecordKind.NAME_END)


def server_records(subscription: int, server: str) -> Iterator[tuple[int, int]]:
    """The records of an entry at a server."""
    return _text_records(subscription, server, RecordKind.SERVER, RecordKind.SERVER_END)


def _text_records(
    subscription: int, text: str, part_kind: RecordKind, last_kind: RecordKind
) -> Iterator[tuple[int, int]]:
    data = text.encode("utf-8", "surrogateescape")
    parts = [data[at : at + _TEXT_PART] for at in range(0, len(data), _TEXT_PART)] or [b""]
    for index, part in enumerate(parts):
        kind = last_kind if index == len(parts) - 1 else part_kind
        count = len(part) | (0 if index else _FIRST_PART)
        yield word(kind, subscription), int.from_bytes(bytes([count]) + part, "little")


def server_order_records(
    subscription: int, tracker: SubscriptionTracker, publishers: Publishers
) -> Iterator[tuple[int, int]]:
    """The records of a server order; they come before those of entries.

    Args:
        subscription: The number of the subscription in the log.
        tracker: Its tracker.
        publishers: The publishers of the store.
    """
    server_order = tracker.server_order
    if server_order.server:
        yield from server_records(subscription, server_order.server)
    for publisher_id, sequence in server_order.before.items():
        yield word(RecordKind.BEFORE, subscription, publishers.index(publisher_id)), sequence
    if server_order.caught_up_us:
        yield word(RecordKind.CAUGHT_UP, subscription), server_order.caught_up_us
    if server_order.discarded_until_us:
        yield word(RecordKind.DISCARDED_UNTIL, subscription), server_order.discarded_until_us


def publisher_record(index: int, publisher_id: int) -> tuple[int, int]:
    """The record that introduces a publisher."""
    return word(RecordKind.PUBLISHER, publisher=index), publisher_id


def start_records(
    subscription: int, tracker: SubscriptionTracker, publishers: Publishers
) -> Iterator[tuple[int, int]]:
    """The records of a start; a range is kept by the application, not by the log."""
    for item in tracker.start.items:
        match item:
            case Bookmark(publisher_id, sequence):
                index = publishers.index(publisher_id)
                yield word(RecordKind.START_BOOKMARK, subscription, index), sequence
            case Timestamp(microseconds):
                yield word(RecordKind.START_TIME, subscription), microseconds
    if tracker.start.entered_us:
        yield word(RecordKind.ENTERED, subscription), tracker.start.entered_us


def frozen(tracker: SubscriptionTracker) -> SubscriptionTracker:
    """A copy that stays as it is, to be written down."""
    twin = copy(tracker)
    twin.chunks = tracker.chunks.copy()
    twin.discarded_above = tracker.discarded_above.copy()
    twin.seen = tracker.seen.copy()
    twin.redelivery = tracker.redelivery.frozen()
    twin.finished = tracker.finished.frozen()
    twin.copy_start(tracker)
    return twin


def snapshot(
    subscription: int, tracker: SubscriptionTracker, publishers: Publishers
) -> Iterator[tuple[int, int]]:
    """The fewest records that give the same tracker again.

    Of discarded entries between two undiscarded ones only the last of each publisher is kept, where
    no acks are asked for. With acks, an entry that was left out could lower the recovery point of
    the next process below the one that adapters were told. So all are kept that the tracker keeps.
    """

    def record(kind: RecordKind, value: int, publisher: int = 0) -> tuple[int, int]:
        return word(kind, subscription, publisher), value

    if tracker.is_unknown:
        yield record(RecordKind.NEXT, tracker.next_number)
        yield record(RecordKind.PURGED, 1)
        return
    finished = tracker.finished
    begun = record(RecordKind.BEGUN, begun_flags(acked=finished.acked, conflated=tracker.conflated))
    yield record(RecordKind.NEXT, tracker.first_number)
    yield record(RecordKind.PURGED, tracker.generation)
    yield from start_records(subscription, tracker, publishers)
    yield from server_order_records(subscription, tracker, publishers)
    for kind, vector in (
        (RecordKind.RECOVERED, tracker.finished_sequences()),
        (RecordKind.COVERED, finished.cover),
    ):
        for publisher, sequence in vector.items():
            yield record(kind, sequence, publisher)
    yield begun
    yield from _entry_records(subscription, tracker, begun)
    yield record(RecordKind.NEXT, tracker.next_number)
    for publisher, sequence in tracker.seen.items():
        yield record(RecordKind.SEEN, sequence, publisher)
    for aliases in (tracker.redelivery.superseded, tracker.redelivery.aliases):
        yield record(RecordKind.LOST, 1)  # the reader awaits redelivery of all that is open
        for alias in aliases.values():
            yield record(RecordKind.ALIAS_NUMBER, alias.number)
            yield record(RecordKind.ALIAS_OF, alias.old)
    if tracker.at_end:
        yield record(RecordKind.COMPLETED_SOMEWHERE, 1)
    if finished.pending_ack is not None:
        publisher, sequence, before = finished.pending_ack
        yield record(RecordKind.PENDING_BEFORE, before)
        yield record(RecordKind.PENDING_ACK, sequence, publisher)


def _entry_records(
    subscription: int, tracker: SubscriptionTracker, begun: tuple[int, int]
) -> Iterator[tuple[int, int]]:
    following, link_first = tracker.first_number, tracker.finished.link_first
    next_word = word(RecordKind.NEXT, subscription)
    covered: tuple[int, int] | None = None  # the last entry that an ack covers by place
    entries = tracker.entries() if tracker.finished.acked else _condensed(tracker)
    for number, publisher, sequence, discarded in entries:
        if link_first <= number <= tracker.finished.covered_to:
            covered = publisher, sequence
        if following <= link_first <= number:
            yield next_word, link_first
            yield begun
            following = link_first
        if number > following:
            yield next_word, number
        yield word(RecordKind.LOGGED, subscription, publisher), sequence
        if discarded:
            yield word(RecordKind.DISCARDED, subscription), number
        following = number + 1
    if following <= link_first:  # nothing of this link is left, or has come
        yield next_word, link_first
        yield begun
    if covered is not None:  # an ack that names this entry itself covers the same ones
        yield word(RecordKind.PERSISTED, subscription, covered[0]), covered[1]


def _condensed(tracker: SubscriptionTracker) -> Iterator[tuple[int, int, int, bool]]:
    last: dict[int, tuple[int, int, int, bool]] = {}
    for entry in tracker.entries():
        if entry[3]:
            last[entry[1]] = entry
        else:
            yield from sorted(last.values())
            last.clear()
            yield entry
    yield from sorted(last.values())


class _Gathered:
    """Arrivals and discards of one subscription that are not applied yet."""

    __slots__ = ("_reader", "discarded", "logged", "tracker")

    def __init__(self, tracker: SubscriptionTracker, reader: BookmarkLogReader) -> None:
        self.tracker = tracker
        self._reader = reader
        self.logged: list[tuple[int, int]] = []
        self.discarded: list[tuple[int, int]] = []

    def apply(self) -> None:
        if self.logged:
            words, sequences = zip(*self.logged, strict=True)
            first = words[0]
            if words.count(first) == len(words):
                self._reader.append(self.tracker, first & _PUBLISHER_MASK, sequences)
            else:
                publishers = [each & _PUBLISHER_MASK for each in words]
                self._reader.append(self.tracker, MIXED, sequences, publishers)
            self.logged.clear()
        if self.discarded:
            discard = self.tracker.discard
            for _, number in self.discarded:
                discard(number)
            self.discarded.clear()


class _Barrier:
    """Stands in for a list: a record of any other kind is applied at once."""

    __slots__ = ("append",)

    def __init__(self, apply: Callable[[tuple[int, int]], None]) -> None:
        self.append = apply


class _Targets(defaultdict[int, "list[tuple[int, int]] | _Barrier"]):
    """The target of a record, by its first word."""

    def __init__(self, find: Callable[[int], list[tuple[int, int]] | _Barrier]) -> None:
        super().__init__()
        self._find = find

    @override
    def __missing__(self, key: int) -> list[tuple[int, int]] | _Barrier:
        found = self[key] = self._find(key)
        return found


class BadRecord(Exception):
    """A record is invalid: it is damaged, or of a kind that this version does not know."""


class BookmarkLogReader:
    """Replays the records of a log.

    Whole blocks are checked against their seal before they come here. Records after the last seal
    of a killed process have none, so each number that is used for a lookup is checked.

    Attributes:
        names: The subscription ids by number; "" for one whose name was cut off.
        trackers: Their trackers, by number.
        publishers: What publisher numbers mean.
        number: The number of the next `ALIAS_OF` or `PENDING_ACK`.
    """

    def __init__(self, publishers: Publishers) -> None:
        self.publishers = publishers
        self.names: dict[int, str] = {}
        self.trackers: dict[int, SubscriptionTracker] = {}
        self._parts: dict[tuple[int, int], bytes] = {}
        self._gathered: dict[int, _Gathered] = {}
        self._purged: dict[int, int] = {}  # the next number of each that nothing is known of
        self.number = 0
        self._is_sealed = True
        self._barrier = _Barrier(self._apply)
        self._targets = _Targets(self._target)

    def read(self, words: array[int], *, is_sealed: bool) -> None:
        """Make the moves of some records.

        Args:
            words: The records in the order of the log: first word, value, first word, value ...
            is_sealed: Whether a checksum protects all of them.

        Raises:
            BadRecord: One of them means nothing.
        """
        self._is_sealed = is_sealed
        firsts, values = words[0::2], words[1::2]
        count = len(firsts)
        cuts = list(compress(range(1, count), map(ne, firsts, islice(firsts, 1, None))))
        if len(cuts) * _SHORT_RUN > count:
            targets = self._targets
            for pair in zip(firsts, values, strict=True):
                targets[pair[0]].append(pair)
            self.finish()  # what is gathered takes far more memory than what it leads to
        else:
            for begin, end in pairwise([0, *cuts, count]):
                self._read_run(firsts[begin], values[begin:end])

    def _read_run(self, first: int, values: array[int]) -> None:
        """Records with the same first word: arrivals of one publisher, or discards in order."""
        kind = first >> _KIND_SHIFT
        if kind not in {RecordKind.LOGGED, RecordKind.DISCARDED}:
            for value in values:
                self._apply((first, value))
            return
        subscription = first >> _SUBSCRIPTION_SHIFT & _SUBSCRIPTION_MASK
        tracker = self.tracker(subscription)
        self._gathered[subscription].apply()
        if kind == RecordKind.LOGGED:
            self.append(tracker, self._known_publisher(first), values)
        elif len(values) < _SHORT_RUN or not tracker.discard_run(values):
            for number in values:
                tracker.discard(number)

    def append(
        self,
        tracker: SubscriptionTracker,
        publisher: int,
        sequences: Sequence[int],
        publishers: Sequence[int] = (),
    ) -> None:
        """Add arrivals. Only new ones are written down, so without a seal others mean damage.

        Raises:
            BadRecord: One of them is not new.
        """
        seen = tracker.seen
        if not (self._is_sealed or Publishers.all_new(seen, publisher, sequences, publishers)):
            raise BadRecord(f"arrivals from sequence {sequences[0]} on that are not new")
        tracker.append(publisher, sequences, publishers)

    def finish(self) -> None:
        """Apply what is gathered."""
        for gathered in self._gathered.values():
            gathered.apply()

    def tracker(self, subscription: int) -> SubscriptionTracker:
        """The tracker of a subscription number."""
        found = self.trackers.get(subscription)
        if found is None:
            found = self.trackers[subscription] = SubscriptionTracker(self.publishers)
            if subscription in self._purged:
                found.next_number = self._purged.pop(subscription)
                found.purge(1)
            self._gathered[subscription] = _Gathered(found, self)
        return found

    def _target(self, first: int) -> list[tuple[int, int]] | _Barrier:
        kind = first >> _KIND_SHIFT
        if kind not in {RecordKind.LOGGED, RecordKind.DISCARDED}:
            return self._barrier
        subscription = first >> _SUBSCRIPTION_SHIFT & _SUBSCRIPTION_MASK
        self.tracker(subscription)
        gathered = self._gathered[subscription]
        if kind == RecordKind.DISCARDED:
            return gathered.discarded
        self._known_publisher(first)  # once for each first word, not for each record
        return gathered.logged

    def _known_publisher(self, first: int) -> int:
        """The publisher's index in the first word of a record, which an earlier one has defined."""
        publisher = first & _PUBLISHER_MASK
        if publisher >= len(self.publishers.ids):
            raise BadRecord(f"a record {first:#018x} of an unknown publisher")
        return publisher

    def _apply(self, pair: tuple[int, int]) -> None:
        first, value = pair
        kind = first >> _KIND_SHIFT
        subscription = first >> _SUBSCRIPTION_SHIFT & _SUBSCRIPTION_MASK
        publisher = first & _PUBLISHER_MASK
        if kind >= RecordKind.PARTIAL_SEAL:
            return
        if kind == RecordKind.PUBLISHER:
            if self.publishers.index(value) != publisher:
                raise BadRecord(f"publisher {value} has another number than {publisher}")
            return
        if kind in _TEXTS:
            self._take_text(subscription, kind, value)
            return
        tracker = self.tracker(subscription)
        self._gathered[subscription].apply()
        if kind in {RecordKind.ALIAS_NUMBER, RecordKind.PENDING_BEFORE}:
            self.number = value
        elif kind in _MOVES:
            self._check(kind, first, value)
            _MOVES[kind](self, tracker, publisher, value)
            if kind == RecordKind.PURGED and value == 1:
                self._drop(subscription)
        else:
            raise BadRecord(f"a record of unknown kind {pair}")

    def _drop(self, subscription: int) -> None:
        """Keep only the next number of one that was purged, as its process may go on with it."""
        self._purged[subscription] = self.trackers.pop(subscription).next_number
        del self._gathered[subscription]
        self._targets.clear()  # which has lists of it

    def _check(self, kind: int, first: int, value: int) -> None:
        if kind in _NAMING_A_PUBLISHER:
            self._known_publisher(first)
        elif kind in _NAMING_A_TIME and value > LAST_MICROSECOND:
            raise BadRecord(f"a time of {value} microseconds")
        elif kind == RecordKind.NEXT and value > _HIGHEST_NUMBER:
            raise BadRecord(f"a message with the number {value}")

    def _take_text(self, subscription: int, kind: int, value: int) -> None:
        """One more part of the name of a subscription, or of its server's.

        A process that is killed between two parts leaves the first ones, and the next process
        begins the same text or another one from its first part.
        """
        last = _TEXTS[kind]
        count, *_ = data = value.to_bytes(8, "little")
        earlier = self._parts.pop((subscription, last), b"")
        part = data[1 : 1 + (count & ~_FIRST_PART)]
        whole = part if count & _FIRST_PART else earlier + part
        if kind != last:
            self._parts[subscription, last] = whole
            return
        text, tracker = whole.decode("utf-8", "surrogateescape"), self.tracker(subscription)
        if last == RecordKind.NAME_END:
            self.names[subscription] = text
        else:
            self._gathered[subscription].apply()
            tracker.entered(text)


def _alias(tracker: SubscriptionTracker, old: int) -> None:
    """An expected entry came again."""
    if old in tracker.redelivery.awaiting:
        tracker.redeliver(*tracker.redelivery.awaiting[old])
    else:  # discarded under its old number meanwhile
        tracker.skip_numbers(tracker.next_number + 1)


def _persisted_while_paused(tracker: SubscriptionTracker, publisher: int, sequence: int) -> None:
    tracker.paused = True
    tracker.persisted_at(publisher, sequence)
    tracker.paused = False


def _begun(tracker: SubscriptionTracker, flags: int) -> None:
    acked, conflated = bool(flags & _FLAG_ACKED), bool(flags & _FLAG_CONFLATED)
    tracker.begin(acked=acked, start=None, conflated=conflated)


def _entered(tracker: SubscriptionTracker, value: int) -> None:
    tracker.start.entered_us = value


def _discarded_until(tracker: SubscriptionTracker, value: int) -> None:
    tracker.server_order.discarded_until_us = value


_Move: TypeAlias = "Callable[[BookmarkLogReader, SubscriptionTracker, int, int], object]"
# What a record does to its tracker: `t`, the index of the publisher `p` and the value `v`.
_MOVES: Final[dict[int, _Move]] = {
    RecordKind.DISCARDED_UP_TO: lambda _, t, __, v: t.discard_all_up_to(v),
    RecordKind.ALIAS: lambda _, t, __, v: _alias(t, v),
    RecordKind.PERSISTED: lambda _, t, p, v: t.persisted_at(p, v),
    RecordKind.PERSISTED_WHILE_PAUSED: lambda _, t, p, v: _persisted_while_paused(t, p, v),
    RecordKind.COMPLETED: lambda _, t, p, v: t.completed(p, v),
    RecordKind.COMPLETED_SOMEWHERE: lambda _, t, __, ___: t.completed(),
    RecordKind.CONDENSED: lambda _, t, __, ___: t.condense(),
    RecordKind.LOST: lambda _, t, __, v: t.link_lost(v),
    RecordKind.BEGUN: lambda _, t, __, v: _begun(t, v),
    RecordKind.PURGED: lambda _, t, __, v: t.purge(v),
    RecordKind.START_BOOKMARK: lambda r, t, p, v: t.start.add(Bookmark(r.publishers.ids[p], v)),
    RecordKind.START_TIME: lambda _, t, __, v: t.start.add(Timestamp(v)),
    RecordKind.ENTERED: lambda _, t, __, v: _entered(t, v),
    RecordKind.NEXT: lambda _, t, __, v: t.skip_numbers(v),
    RecordKind.SEEN: lambda _, t, p, v: t.seen.update({p: v}),
    RecordKind.RECOVERED: lambda _, t, p, v: t.finished.recover({p: v}),
    RecordKind.COVERED: lambda _, t, p, v: t.finished.cover.update({p: v}),
    RecordKind.ALIAS_OF: lambda r, t, _, v: t.add_alias(r.number, v),
    RecordKind.BEFORE: lambda r, t, p, v: t.server_order.before.update({r.publishers.ids[p]: v}),
    RecordKind.PENDING_ACK: lambda r, t, p, v: t.hold_pending_ack(p, v, before=r.number),
    RecordKind.CAUGHT_UP: lambda _, t, __, v: t.caught_up(v),
    RecordKind.DISCARDED_UNTIL: lambda _, t, __, v: _discarded_until(t, v),
}

"""The fewest records that give a subscription's tracker again: what `prune` writes (BS16).

The tracker of a client that works is copied first (`frozen`): that takes a moment even with a
million open entries, since entries never change and only containers are copied. The records are
then made at leisure, one after the other, while the client goes on. Pure.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from haclient_stores.bookmark_stores.records import (
    Kind,
    begun_flags,
    standing_records,
    start_records,
    word,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from haclient_stores.tracker.entries import Publishers
    from haclient_stores.tracker.tracker import SubscriptionTracker

__all__ = ["frozen", "snapshot"]


def frozen(tracker: SubscriptionTracker) -> SubscriptionTracker:
    """A copy that stays as it is, to be written down."""
    twin = copy(tracker)
    twin.chunks = tracker.chunks.copy()
    twin.ahead = tracker.ahead.copy()
    twin.seen = tracker.seen.copy()
    twin.again = tracker.again.frozen()
    twin.finished = tracker.finished.frozen()
    twin.begin_like(tracker)
    return twin


def snapshot(
    subscription: int, tracker: SubscriptionTracker, publishers: Publishers
) -> Iterator[tuple[int, int]]:
    """The fewest records that give the same tracker again (BS16).

    Of discarded entries between two undiscarded ones only the last of each publisher is kept.
    """

    def record(kind: Kind, value: int, publisher: int = 0) -> tuple[int, int]:
        return word(kind, subscription, publisher), value

    finished = tracker.finished
    begun = record(Kind.BEGUN, begun_flags(acked=finished.acked, conflated=tracker.conflated))
    yield record(Kind.NEXT, tracker.first_number)
    yield record(Kind.PURGED, 1)
    yield from start_records(subscription, tracker, publishers)
    yield from standing_records(subscription, tracker, publishers)
    for kind, vector in (
        (Kind.RECOVERED, tracker.finished_sequences()),
        (Kind.COVERED, finished.cover),
    ):
        for publisher, sequence in vector.items():
            yield record(kind, sequence, publisher)
    yield begun
    yield from _entry_records(subscription, tracker, begun)
    yield record(Kind.NEXT, tracker.next_number)
    for publisher, sequence in tracker.seen.items():
        yield record(Kind.SEEN, sequence, publisher)
    for aliases in (tracker.again.lapsed, tracker.again.aliases):
        yield record(Kind.LOST, 1)  # what is in hand now is expected by whoever reads this
        for alias in aliases.values():
            yield record(Kind.ALIAS_NUMBER, alias.number)
            yield record(Kind.ALIAS_OF, alias.old)
    if tracker.at_end:
        yield record(Kind.COMPLETED_SOMEWHERE, 1)


def _entry_records(
    subscription: int, tracker: SubscriptionTracker, begun: tuple[int, int]
) -> Iterator[tuple[int, int]]:
    following, link_first = tracker.first_number, tracker.finished.link_first
    next_word = word(Kind.NEXT, subscription)
    for number, publisher, sequence, discarded in _condensed(tracker):
        if following <= link_first <= number:
            yield next_word, link_first
            yield begun
            following = link_first
        if number > following:
            yield next_word, number
        yield word(Kind.LOGGED, subscription, publisher), sequence
        if discarded:
            yield word(Kind.DISCARDED, subscription), number
        following = number + 1


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

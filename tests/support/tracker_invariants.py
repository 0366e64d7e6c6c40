"""The invariants of a tracker's numbers, checked by visiting every entry."""

from __future__ import annotations

from haclient_stores.tracker.redelivery import Redelivery
from haclient_stores.tracker.tracker import SubscriptionTracker

__all__ = ["assert_consistent"]


def assert_consistent(tracker: SubscriptionTracker) -> None:
    """The low watermark is an open entry or the next number; the rest follows from the entries."""
    low, following, slow_at = tracker.low_watermark, tracker.next_number, tracker.slow_path_at
    numbers = [number for chunk in tracker.chunks for number, _, _ in chunk.entries()]
    opened = [
        number for number in numbers if number >= low and number not in tracker.discarded_above
    ]
    assert numbers == sorted(set(numbers)), "entries in order"
    assert [*opened, following][0] == low, "an open entry or the next number"
    assert len(opened) == tracker.undiscarded_count, "a number is open, discarded or unused"
    runs = sorted(tracker.discarded_above.copy().ranges() + tracker.unused.copy().ranges())
    ends = [low + 1, *(end for _, end in runs)]
    assert all(end <= begin for end, (begin, _) in zip(ends, runs, strict=False)), "disjoint"
    assert following >= max(ends[1:], default=0), "no number that is still to come"
    if slow_at != low:  # the numbers up to there are discarded without a look
        assert not tracker.discarded_above.count
        assert not tracker.redelivery.awaiting
        assert opened[: slow_at + 1 - low] == [*range(low, slow_at + 1)]
        assert slow_at <= tracker.chunks[0].numbers[-1]
    _assert_redelivery(tracker.redelivery, set(opened))


def _assert_redelivery(again: Redelivery, opened: set[int]) -> None:
    assert opened >= again.awaiting.keys()
    assert again.awaiting.keys().isdisjoint(again._current)
    assert again._numbers == {place: number for number, place in again.awaiting.items()}
    assert again._current == {alias.old: number for number, alias in again.aliases.items()}
    assert list(again.aliases) == sorted(again.aliases)

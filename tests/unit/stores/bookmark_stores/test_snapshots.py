from __future__ import annotations

from array import array

import pytest

from haclient_stores.bookmark_stores.records import Kind, LogReader, publisher_record, word
from haclient_stores.bookmark_stores.snapshots import frozen, snapshot
from haclient_stores.tracker.entries import Publishers
from haclient_stores.tracker.tracker import SubscriptionTracker


def written(tracker: SubscriptionTracker, publishers: Publishers) -> list[tuple[int, int]]:
    return list(snapshot(0, tracker, publishers))


@pytest.mark.row("BS16")
def test_a_frozen_tracker_is_written_down_as_it_was_when_the_client_goes_on() -> None:
    publishers = Publishers()
    tracker = SubscriptionTracker(publishers)
    tracker.begin(acked=True, start=None)
    tracker.log_batch([f"{1 + n % 2}|{n}|" for n in range(1, 41)])
    tracker.discard(7)
    tracker.link_lost(20)
    tracker.log("1|20|")
    before = written(tracker, publishers)
    twin = frozen(tracker)
    tracker.log_batch(["1|60|", "3|1|"])
    tracker.discard_up_to(100)
    tracker.persisted("1|60|")
    tracker.link_lost(1)
    tracker.start.entered_us = 5
    assert written(twin, publishers) == before
    assert written(tracker, publishers) != before


@pytest.mark.row("BS16")
def test_of_discarded_entries_in_a_row_only_the_last_of_each_publisher_is_written() -> None:
    publishers = Publishers()
    tracker = SubscriptionTracker(publishers)
    tracker.log_batch([f"7|{n}|" for n in range(1, 1001)])
    for number in range(2, 1001):
        tracker.discard(number)
    records = written(tracker, publishers)
    assert len(records) < 20
    reader = LogReader(Publishers())
    for first, value in [publisher_record(0, 7), *records]:
        reader.read(words(first, value))
    reader.finish()
    again = reader.trackers[0]
    assert again.oldest_undiscarded == 1
    assert again.undiscarded_count == 1
    assert again.is_discarded("7|1000|")


def words(first: int, value: int) -> array[int]:
    return array("Q", [first, value])


@pytest.mark.row("BS16")
def test_who_reads_a_log_keeps_in_memory_what_is_live_and_little_else() -> None:
    reader = LogReader(Publishers())
    for index in (0, 1):
        reader.read(words(*publisher_record(index, 7 + index)))
    most = number = 0
    for _ in range(60):
        block = array("Q")
        for _ in range(5000):
            number += 1
            block.extend((word(Kind.LOGGED, 0, number % 2), number))
            if number % 10_000:  # one in so many is never discarded
                block.extend((word(Kind.DISCARDED), number))
        reader.read(block)
        most = max(most, sum(len(chunk.numbers) for chunk in reader.trackers[0].chunks))
    assert most < 25_000
    assert len(reader.trackers[0].ahead.ranges()) == 29

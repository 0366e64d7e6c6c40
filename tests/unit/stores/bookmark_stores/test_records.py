from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient_stores.bookmark_stores.records import (
    BadRecord,
    BookmarkLogReader,
    RecordKind,
    frozen,
    name_records,
    publisher_record,
    server_records,
    snapshot,
    start_records,
    word,
)
from haclient_stores.bookmark_stores.tracked_store import point_of
from haclient_stores.tracker.entries import Publishers
from haclient_stores.tracker.tracker import SubscriptionTracker


def read(records: list[tuple[int, int]], publishers: Publishers | None = None) -> BookmarkLogReader:
    reader = BookmarkLogReader(publishers or Publishers())
    reader.read(array("Q", [value for record in records for value in record]), is_sealed=True)
    reader.finish()
    return reader


@given(st.text(max_size=40))
def test_a_subscription_id_of_any_letters_reads_back(sub_id: str) -> None:
    records = list(name_records(5, sub_id))
    assert all(first and value for first, value in records)
    assert read(records).names == {5: sub_id}


def test_a_name_whose_end_was_cut_is_no_name() -> None:
    assert read(list(name_records(0, "a long name"))[:1]).names == {}


def test_publishers_read_back_with_their_numbers_and_an_id_of_zero_too() -> None:
    reader = read([publisher_record(0, 77), publisher_record(1, 0), publisher_record(2, 2**64 - 1)])
    assert reader.publishers.ids == [77, 0, 2**64 - 1]


def test_a_record_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(BadRecord, match=f"unknown kind .{99 << 56}, 1."):
        read([(99 << 56, 1), (98 << 56, 1)])
    assert read([(word(RecordKind.SEAL), 1), (word(RecordKind.PARTIAL_SEAL), 1)]).trackers == {}


@pytest.mark.parametrize("number", [2**62 + 1, 2**64 - 1])
def test_a_number_that_no_message_has_is_refused(number: int) -> None:
    with pytest.raises(BadRecord, match=f"the number {number}"):
        read([(word(RecordKind.NEXT), number)])


def records_of_every_kind() -> list[tuple[int, int]]:
    """What a killed process may leave behind the last seal."""
    records = [publisher_record(0, 7), publisher_record(1, 9)]
    tracker = SubscriptionTracker(Publishers())
    tracker.begin(acked=True, start="7|4|,20200101T000000", entered_us=5)
    records += [*name_records(0, "subscription-1"), (word(RecordKind.PURGED), 1)]
    records += [*start_records(0, tracker, tracker.publishers), (word(RecordKind.BEGUN), 3)]
    records += [*server_records(0, "tcp://a:1 7"), (word(RecordKind.BEFORE, publisher=1), 1)]
    records += [(word(RecordKind.LOGGED, publisher=n % 2), n) for n in range(1, 6)]
    records += [(word(RecordKind.LOGGED, publisher=1), n) for n in range(6, 10)]
    records += [(word(RecordKind.DISCARDED), n) for n in (1, 2, 4)]
    records += [(word(RecordKind.PERSISTED, publisher=1), 3), (word(RecordKind.COMPLETED), 4)]
    records += [(word(RecordKind.CAUGHT_UP), 10**15), (word(RecordKind.DISCARDED_UNTIL), 10**14)]
    records += [
        (word(RecordKind.LOST), 6),
        (word(RecordKind.ALIAS), 6),
        (word(RecordKind.ALIAS), 8),
    ]
    records += [
        (word(RecordKind.PERSISTED_WHILE_PAUSED), 4),
        (word(RecordKind.COMPLETED_SOMEWHERE), 1),
    ]
    records += [(word(RecordKind.CONDENSED), 1)]
    records += [
        (word(RecordKind.LOST), 1),
        (word(RecordKind.ALIAS_NUMBER), 11),
        (word(RecordKind.ALIAS_OF), 3),
    ]
    records += [(word(RecordKind.NEXT), 20), (word(RecordKind.SEEN, publisher=1), 12)]
    records += [(word(RecordKind.RECOVERED), 1), (word(RecordKind.COVERED, publisher=1), 5)]
    records += [(word(RecordKind.PENDING_BEFORE), 22), (word(RecordKind.PENDING_ACK), 9)]
    return [*records, (word(RecordKind.DISCARDED_UP_TO), 3)]


def test_a_damaged_record_is_refused_or_leads_to_a_subscription_that_works() -> None:
    """Behind the last seal no checksum protects them: each third bit of all records is flipped."""
    whole = array("Q", [each for record in records_of_every_kind() for each in record])
    assert {first >> 56 for first in whole[0::2]} == {*RecordKind} - {
        RecordKind.SEAL,
        RecordKind.PARTIAL_SEAL,
    }
    refused = 0
    for index in range(len(whole)):
        for bit in range(index % 3, 64, 3):
            damaged = whole[:]
            damaged[index] ^= 1 << bit
            reader = BookmarkLogReader(Publishers())
            try:
                reader.read(damaged, is_sealed=False)
                reader.finish()
            except BadRecord:
                refused += 1
                continue
            for subscription, tracker in reader.trackers.items():
                assert tracker.resume()
                assert tracker.resume_elsewhere(10**15)
                assert point_of("s", tracker).sub_id == "s"
                tracker.link_lost(1)
                tracker.log_batch(["9|100|", "8|1|"])
                assert tracker.recovery_point() is not None
                assert list(snapshot(subscription, tracker, reader.publishers))
    assert refused > len(whole) // 3


@pytest.mark.parametrize("run", [1, 7, 8, 500])
def test_long_and_short_runs_lead_to_the_same(run: int) -> None:
    records = [publisher_record(0, 7)]
    for start in range(1, 2001, run):
        numbers = range(start, min(start + run, 2001))
        records += [(word(RecordKind.LOGGED, 3, 0), number) for number in numbers]
        records += [(word(RecordKind.DISCARDED, 3), number) for number in numbers if number != 1999]
    tracker = read(records).trackers[3]
    assert tracker.oldest_undiscarded == 1999
    assert tracker.undiscarded_count == 1
    assert str(tracker.recovery_point()) == "7|1998|"


def test_runs_of_discards_out_of_order_are_taken_one_by_one() -> None:
    records = [publisher_record(0, 7)]
    records += [(word(RecordKind.LOGGED), number) for number in range(1, 101)]
    records += [(word(RecordKind.DISCARDED), number) for number in range(100, 1, -1)]
    assert read(records).trackers[0].undiscarded_count == 1


def written(tracker: SubscriptionTracker, publishers: Publishers) -> SubscriptionTracker:
    records = list(snapshot(0, tracker, publishers))
    introduced = [publisher_record(index, each) for index, each in enumerate(publishers.ids)]
    return read([*introduced, *records]).trackers[0]


@pytest.mark.row("BS16")
def test_a_snapshot_keeps_every_part_of_a_subscription() -> None:
    publishers = Publishers()
    tracker = SubscriptionTracker(publishers)
    tracker.begin(acked=True, start="5|5|,20240131T120000Z", entered_us=17)
    tracker.log_batch(["1|1|", "2|1|", "1|2|", "2|2|"])
    tracker.discard(1)
    tracker.persisted_at(publishers.index(1), 1)
    tracker.discard(3)
    tracker.completed()
    tracker.begin(acked=True, start=None, conflated=True)
    tracker.log_batch(["1|3|", "2|3|"])
    tracker.discard(6)
    again = written(tracker, publishers)
    assert str(again.recovery_point()) == str(tracker.recovery_point()) == "1|1|"
    assert again.start.items == tracker.start.items
    assert again.start.entered_us == 17
    assert again.next_number == tracker.next_number
    assert again.finished.link_first == tracker.finished.link_first == 5
    assert (again.finished.acked, again.conflated) == (True, True)
    assert again.undiscarded_count == tracker.undiscarded_count == 3
    assert again.oldest_undiscarded == 2
    for bookmark in ("1|2|", "2|3|", "1|1|"):
        assert again.is_discarded(bookmark)
    assert again.log_batch(["2|1|", "1|2|", "2|2|", "1|3|"]) == [7, 0, 8, 9]


@pytest.mark.row("BS16")
def test_a_snapshot_is_as_short_as_what_is_open() -> None:
    publishers = Publishers()
    tracker = SubscriptionTracker(publishers)
    tracker.log_batch([f"{1 + n % 3}|{n}|" for n in range(1, 10_001)])
    for number in range(1, 10_001):
        if number != 5000:
            tracker.discard(number)
    assert len(list(snapshot(0, tracker, publishers))) < 40
    again = written(tracker, publishers)
    assert again.oldest_undiscarded == 5000
    again.discard(5000)
    assert set(str(again.recovery_point()).split(",")) == {"2|10000|", "3|9998|", "1|9999|"}


def test_a_second_delivery_that_is_in_hand_is_in_the_snapshot() -> None:
    publishers = Publishers()
    tracker = SubscriptionTracker(publishers)
    tracker.log_batch(["1|1|", "1|2|"])
    tracker.link_lost(0)
    tracker.log_batch(["1|1|"])
    again = written(tracker, publishers)
    again.discard(3)
    assert str(again.recovery_point()) == "1|1|"


def test_a_subscription_at_now_that_saw_nothing_stays_at_now() -> None:
    publishers = Publishers()
    tracker = SubscriptionTracker(publishers)
    tracker.log_batch(["1|1|"])
    tracker.begin(acked=True, start="0|1|")
    tracker.completed()
    again = written(tracker, publishers)
    assert again.resume() == "0|1|"
    assert again.at_end


def test_records_are_applied_block_by_block_and_not_kept() -> None:
    reader = BookmarkLogReader(Publishers())
    words = array("Q", [])
    for number in range(1, 1001):
        words.extend([word(RecordKind.LOGGED), number, word(RecordKind.DISCARDED), number])
    reader.read(array("Q", publisher_record(0, 7)), is_sealed=True)
    reader.read(words, is_sealed=True)
    tracker = reader.trackers[0]
    assert (tracker.next_number, tracker.undiscarded_count) == (1001, 0)


def snapshot_of(tracker: SubscriptionTracker, publishers: Publishers) -> list[tuple[int, int]]:
    return list(snapshot(0, tracker, publishers))


@pytest.mark.row("BS16")
def test_a_frozen_tracker_is_written_down_as_it_was_when_the_client_goes_on() -> None:
    publishers = Publishers()
    tracker = SubscriptionTracker(publishers)
    tracker.begin(acked=True, start=None)
    tracker.log_batch([f"{1 + n % 2}|{n}|" for n in range(1, 41)])
    tracker.discard(7)
    tracker.link_lost(20)
    tracker.log_batch(["1|20|"])
    before = snapshot_of(tracker, publishers)
    twin = frozen(tracker)
    tracker.log_batch(["1|60|", "3|1|"])
    tracker.discard_all_up_to(100)
    tracker.persisted_at(publishers.index(1), 60)
    tracker.link_lost(1)
    tracker.start.entered_us = 5
    assert snapshot_of(twin, publishers) == before
    assert snapshot_of(tracker, publishers) != before


@pytest.mark.row("BS16")
def test_of_discarded_entries_in_a_row_only_the_last_of_each_publisher_is_written() -> None:
    publishers = Publishers()
    tracker = SubscriptionTracker(publishers)
    tracker.log_batch([f"7|{n}|" for n in range(1, 1001)])
    for number in range(2, 1001):
        tracker.discard(number)
    records = snapshot_of(tracker, publishers)
    assert len(records) < 20
    reader = BookmarkLogReader(Publishers())
    for first, value in [publisher_record(0, 7), *records]:
        reader.read(words(first, value), is_sealed=True)
    reader.finish()
    again = reader.trackers[0]
    assert again.oldest_undiscarded == 1
    assert again.undiscarded_count == 1
    assert again.is_discarded("7|1000|")


def words(first: int, value: int) -> array[int]:
    return array("Q", [first, value])


@pytest.mark.row("BS16")
def test_who_reads_a_log_keeps_in_memory_what_is_live_and_little_else() -> None:
    reader = BookmarkLogReader(Publishers())
    for index in (0, 1):
        reader.read(words(*publisher_record(index, 7 + index)), is_sealed=True)
    most = number = 0
    for _ in range(60):
        block = array("Q")
        for _ in range(5000):
            number += 1
            block.extend((word(RecordKind.LOGGED, 0, number % 2), number))
            if number % 10_000:  # one in so many is never discarded
                block.extend((word(RecordKind.DISCARDED), number))
            if not number % 15_000:  # as the store that wrote it has
                block.extend((word(RecordKind.CONDENSED), 1))
        reader.read(block, is_sealed=True)
        most = max(most, sum(len(chunk.numbers) for chunk in reader.trackers[0].chunks))
    assert most < 25_000
    assert len(reader.trackers[0].discarded_above.ranges()) == 29

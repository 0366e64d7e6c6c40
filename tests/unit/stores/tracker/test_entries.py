from __future__ import annotations

import pytest

from haclient_stores.tracker.entries import MIXED, Chunk, Publishers, condensed
from support.tracked_log import TrackedLog


def test_publishers_are_numbered_in_the_order_of_their_coming() -> None:
    publishers = Publishers()
    assert publishers.parse("77|5|") == (0, 5)
    assert publishers.parse("0078|6|text") == (1, 6)
    assert publishers.parse("77|7") == (0, 7)
    assert publishers.index(78) == 1
    assert publishers.ids == [77, 78]


def test_what_is_no_bookmark_has_no_sequence() -> None:
    publishers = Publishers()
    for text in ("", "|", "1|", "1|x|", "x|1|", "\u0661|1|", "1|\u0661|", f"{2**64}|1|"):
        assert publishers.parse(text) == (-1, 0)
    assert publishers.ids == []


def test_a_condensed_chunk_keeps_the_last_entry_of_each_publisher_in_their_order() -> None:
    first = Chunk(range(1, 5), MIXED, [1, 1, 2, 3], [7, 8, 7, 8])
    second = Chunk(range(5, 7), 9, [10, 11])
    found = Chunk.condensed([first, second])
    assert list(found.entries()) == [(3, 7, 2), (4, 8, 3), (6, 9, 11)]
    assert list(Chunk.condensed([second]).entries()) == [(6, 9, 11)]


def test_a_chunk_knows_the_last_entry_up_to_a_sequence() -> None:
    same = Chunk(range(1, 4), 7, [10, 20, 30])
    assert [same.last_of(7, sequence) for sequence in (9, 10, 29, 99)] == [0, 1, 2, 3]
    assert same.last_of(8, 99) == 0
    mixed = Chunk(range(1, 5), MIXED, [1, 1, 2, 3], [7, 8, 7, 8])
    assert [mixed.last_of(7, 2), mixed.last_of(8, 2), mixed.last_of(9, 2)] == [3, 2, 0]
    assert mixed.newest() == {7: 2, 8: 3}
    assert mixed.part(1, 3).newest() == {8: 1, 7: 2}


def test_a_number_without_end_is_no_bookmark() -> None:
    publishers = Publishers()
    assert publishers.parse("7|" + "9" * 10_000 + "|") == (-1, 0)
    assert publishers.parse("9" * 10_000 + "|7|") == (-1, 0)


pytestmark = pytest.mark.row("BS3", "BS5")


def test_of_a_stretch_the_last_of_each_publisher_is_kept() -> None:
    chunks = [
        Chunk(range(1, 5), MIXED, [1, 1, 2, 2], [7, 8, 7, 8]),
        Chunk(range(5, 7), 7, [3, 4]),
        Chunk(range(7, 8), 9, [1]),
    ]
    (found,) = condensed(chunks, [(2, 6), (7, 8)], link_first=1)
    assert list(found.entries()) == [(1, 7, 1), (4, 8, 2), (5, 7, 3), (6, 7, 4), (7, 9, 1)]


def test_a_stretch_ends_where_a_link_does() -> None:
    chunks = [Chunk(range(1, 4), 7, [1, 2, 3]), Chunk(range(4, 6), 7, [4, 5])]
    first, second = condensed(chunks, [(2, 6)], link_first=4)
    assert list(first.entries()) == [(1, 7, 1), (3, 7, 3)]
    assert list(second.entries()) == [(5, 7, 5)]


def test_what_is_condensed_again_stays_the_same() -> None:
    chunks = [Chunk(range(1, 10), 7, list(range(1, 10)))]
    runs = [(2, 4), (5, 9)]
    once = condensed(chunks, runs, link_first=1)
    assert condensed(once, runs, link_first=1) == once
    assert [number for number, _, _ in once[0].entries()] == [1, 3, 4, 8, 9]


def kept(tracker: TrackedLog) -> int:
    return sum(len(chunk.numbers) for chunk in tracker.chunks)


@pytest.mark.parametrize("publishers", [1, 3])
def test_memory_is_bounded_while_one_message_stays_open(publishers: int) -> None:
    tracker = TrackedLog(Publishers())
    tracker.begin(acked=False, start=None)
    most = 0
    for first in range(0, 500_000, 500):
        numbers = [n // publishers + 1 for n in range(first, first + 500)]
        batch = [f"{10 + n % publishers}|{q}|" for n, q in enumerate(numbers, first)]
        for number in tracker.log_batch(batch):
            if number != 1:
                tracker.discard(number)
        most = max(most, kept(tracker))
    assert most <= 17_000
    assert tracker.discarded_above.ranges() == [(2, 500_001)]
    assert not tracker.discarded_above.scattered
    assert tracker.undiscarded_count == 1
    assert str(tracker.recovery_point()) == "0"
    tracker.discard(1)
    last = dict.fromkeys(range(10, 10 + publishers), 0)
    for n in range(500_000):
        last[10 + n % publishers] = n // publishers + 1
    point = tracker.recovery_point()
    assert {b.publisher_id: b.sequence for b in point} == last  # type: ignore[union-attr]  # bookmarks
    assert not tracker.chunks


def test_a_message_open_in_each_thousand_costs_no_more_than_itself() -> None:
    tracker = TrackedLog(Publishers())
    for first in range(1, 400_001, 500):
        for number in tracker.log_batch([f"7|{n}|" for n in range(first, first + 500)]):
            if number % 1000:
                tracker.discard(number)
    tracker.condense()
    assert tracker.undiscarded_count == 400
    assert kept(tracker) <= 2 * 400
    assert len(tracker.chunks) == 1
    for number in range(1000, 400_001, 1000):
        tracker.discard(number)
    assert str(tracker.recovery_point()) == "7|400000|"


def test_a_number_that_was_forgotten_is_still_discarded() -> None:
    tracker = TrackedLog(Publishers())
    tracker.log_batch([f"7|{n}|" for n in range(1, 101)])
    for number in range(2, 101):
        tracker.discard(number)
    tracker.condense()
    assert not tracker.try_discard(50)
    assert tracker.is_discarded("7|50|")
    assert tracker.log("7|50|") == 0
    assert tracker.undiscarded_count == 1


def test_the_front_that_is_discarded_is_finished_when_the_rest_is_condensed() -> None:
    tracker = TrackedLog(Publishers())
    tracker.log_batch([f"7|{n}|" for n in range(1, 11)])
    for number in (1, 2, 3, 7, 8):
        tracker.discard(number)
    tracker.condense()
    assert str(tracker.recovery_point()) == "7|3|"
    assert [number for number, *_ in tracker.entries()] == [4, 5, 6, 8, 9, 10]
    tracker.link_lost(1)
    assert list(tracker.log_batch([f"7|{n}|" for n in range(4, 11)])) == [11, 12, 13, 0, 0, 14, 15]

from __future__ import annotations

import itertools
from collections.abc import Iterator
from itertools import pairwise

import pytest
from typing_extensions import override

from haclient_stores.tracker.entries import MIXED, Chunk
from haclient_stores.tracker.finished import Finished
from support.tracked_log import TrackedLog


@pytest.mark.row("BS10")
def test_memory_stays_bounded_while_no_ack_comes() -> None:
    finished = Finished(1, acked=True)
    for number in range(1, 100_001, 10):
        finished.take(Chunk(range(number, number + 10), 0, list(range(number, number + 10))))
        if number % 5_000 == 1:
            finished.condense()
            assert sum(len(chunk.numbers) for chunk in finished.waiting) <= 16_384
    finished.take(Chunk(range(100_001, 120_001), 0, list(range(100_001, 120_001))))
    finished.condense()
    assert sum(len(chunk.numbers) for chunk in finished.waiting) <= 65
    finished.covered(0, 50_000, open_chunks=())
    assert 45_000 < finished.recovered[0] <= 50_000
    finished.covered(0, 120_000, open_chunks=())
    assert finished.recovered == {0: 120_000}
    assert not finished.waiting


def test_an_ack_covers_by_place_on_this_link_only() -> None:
    finished = Finished(1, acked=True)
    finished.take(Chunk([1], 0, [5]))
    finished.begin(2, acked=True)
    finished.take(Chunk([2, 3], MIXED, [7, 1], [1, 0]))
    finished.covered(0, 1, open_chunks=())
    assert finished.recovered == {}  # entry 1 came on another link
    finished.covered(0, 5, open_chunks=())
    assert finished.recovered == {0: 5, 1: 7}


@pytest.mark.parametrize("publishers", [1, 3])
def test_an_ack_costs_the_same_however_many_chunks_are_open(publishers: int) -> None:
    visited = searched = 0

    class Counted(Chunk):
        @override
        def last_of(self, publisher: int, sequence: int) -> int:
            nonlocal searched
            searched += 1
            return super().last_of(publisher, sequence)

    def newest_first(chunks: list[Chunk]) -> Iterator[Chunk]:
        nonlocal visited
        for chunk in reversed(chunks):
            visited += 1
            yield chunk

    chunks: list[Chunk] = [
        Counted(range(10 * n + 1, 10 * n + 11), n % publishers, range(10 * n + 1, 10 * n + 11))
        for n in range(1000)
    ]
    finished = Finished(1, acked=True)
    for n in range(1000):  # first those that lag behind, then one at the end, by turns
        publisher = n % publishers
        finished.covered(publisher, 10 * n + 5, open_chunks=newest_first(chunks))
    finished.covered(7, 1, open_chunks=newest_first(chunks))  # of which nothing has arrived
    for chunk in chunks:
        finished.take(chunk)
    assert visited <= len(chunks) + 1001
    assert searched == 1000
    assert finished.recovered[(len(chunks) - 1) % publishers] == 9995


def test_an_ack_is_placed_among_chunks_that_were_condensed_and_reused() -> None:
    tracker = TrackedLog()
    tracker.begin(acked=True, start=None)
    tracker.log("7|1|")
    for sequence in range(1, 40_001):
        number = tracker.log(f"{8 + sequence % 2}|{sequence}|")
        tracker.discard(number)
        if sequence % 1000 == 0:
            tracker.persisted(f"{8 + sequence % 2}|{sequence}|")
    assert tracker.undiscarded_count == 1
    tracker.discard(1)
    assert str(tracker.recovery_point()) == "7|1|,9|39999|,8|40000|"
    held = sum(len(chunks) for chunks in tracker.finished._ack_index._chunks.values())
    assert held < 20_000  # publisher 9 is never acknowledged by name


def test_without_acks_everything_is_finished_at_once() -> None:
    finished = Finished(1, acked=True)
    finished.take(Chunk([1, 2], 0, [5, 6]))
    assert finished.recovered == {}
    finished.begin(3, acked=False)
    assert finished.recovered == {0: 6}
    finished.take(Chunk([3], 0, [7]))
    assert finished.recovered == {0: 7}


def test_a_position_frees_what_waited_since_an_earlier_link() -> None:
    finished = Finished(1, acked=True)
    finished.take(Chunk([1], 0, [5]))
    finished.take(Chunk([2], 1, [9]))
    finished.begin(3, acked=True)
    finished.reach(1, 8, before=3)
    # B9 lies above the position of its publisher and has to wait for an ack of its own.
    assert finished.recovered == {1: 8, 0: 5}
    assert [list(chunk.numbers) for chunk in finished.waiting] == [[2]]


def test_a_position_frees_the_same_however_entries_were_cut_into_chunks() -> None:
    entries = [(1, 0, 5), (2, 1, 7), (3, 2, 1), (4, 1, 9), (5, 0, 6)]
    for cuts in itertools.product((False, True), repeat=4):
        finished = Finished(1, acked=True)
        for begin, end in pairwise([0, *(at for at, cut in enumerate(cuts, 1) if cut), 5]):
            numbers, publishers, sequences = zip(*entries[begin:end], strict=True)
            finished.take(Chunk(numbers, MIXED, sequences, publishers))
        finished.begin(6, acked=True)
        finished.reach(1, 8, before=6)
        assert finished.recovered == {1: 8, 0: 5, 2: 1}, cuts
        assert [each for chunk in finished.waiting for each in chunk.numbers] == [4, 5]


def test_a_position_frees_nothing_that_came_after_its_ack() -> None:
    finished = Finished(1, acked=True)
    finished.take(Chunk([1, 2, 3], 0, [5, 6, 7]))
    finished.begin(4, acked=True)
    finished.reach(1, 8, before=3)
    assert finished.recovered == {1: 8, 0: 6}


def test_the_front_of_an_open_chunk_counts_too() -> None:
    finished = Finished(1, acked=False)
    chunk = Chunk(range(1, 4), 0, [5, 6, 7])
    assert finished.with_part(None, 0) == {}
    assert finished.with_part(chunk, 0) == {}
    assert finished.with_part(chunk, 2) == {0: 6}
    finished.begin(1, acked=True)
    assert finished.with_part(chunk, 2) == {}
    finished.covered(0, 5, open_chunks=[chunk])
    assert finished.with_part(chunk, 2) == {0: 5}


def test_what_came_on_this_link_waits_for_its_own_ack_however_much_is_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("haclient_stores.tracker.finished._EXACT", 10)
    finished = Finished(1, acked=True)
    finished.take(Chunk([1], 0, [1]))
    finished.begin(2, acked=True)
    for number in range(2, 200):
        finished.take(Chunk([number], 1, [number]))
    finished.condense()
    assert len(finished.waiting) <= 65
    finished.reach(0, 5, before=200)
    assert finished.recovered == {0: 5}  # publisher 1 was not acknowledged

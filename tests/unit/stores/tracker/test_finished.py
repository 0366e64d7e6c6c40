from __future__ import annotations

import pytest

from haclient_stores.tracker.entries import MIXED, Chunk
from haclient_stores.tracker.finished import Finished


@pytest.mark.row("BS10")
def test_memory_stays_bounded_while_no_ack_comes() -> None:
    finished = Finished(1, acked=True)
    for number in range(1, 100_001, 10):
        finished.take(Chunk(range(number, number + 10), 0, list(range(number, number + 10))))
    assert len(finished.waiting) <= 65
    assert sum(len(chunk.numbers) for chunk in finished.waiting) <= 700
    finished.covered(0, 50_000, open_chunks=())
    assert 45_000 < finished.recovered[0] <= 50_000
    finished.covered(0, 100_000, open_chunks=())
    assert finished.recovered == {0: 100_000}
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
    finished.offer(1, 8, before=3)
    finished.settle(2)
    assert finished.recovered == {}
    finished.settle(3)
    # B9 lies above the position of its publisher and has to wait for an ack of its own.
    assert finished.recovered == {1: 8, 0: 5}
    assert [list(chunk.numbers) for chunk in finished.waiting] == [[2]]


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


def test_what_came_on_this_link_waits_for_its_own_ack_however_much_is_joined() -> None:
    finished = Finished(1, acked=True)
    finished.take(Chunk([1], 0, [1]))
    finished.begin(2, acked=True)
    for number in range(2, 200):
        finished.take(Chunk([number], 1, [number]))
    finished.offer(0, 5, before=200)
    finished.settle(200)
    assert finished.recovered == {0: 5}  # publisher 1 was not acknowledged

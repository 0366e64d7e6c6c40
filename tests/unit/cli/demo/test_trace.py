"""Traces outlive their writer, and a reader follows them while they grow."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.cli.demo.trace import (
    MAX_NUMBER,
    Mark,
    Measures,
    Step,
    TraceReader,
    TraceWriter,
    Verdict,
    judge,
)
from support.process import Child

WRITE_AND_DIE = """
import os, signal, sys
from pathlib import Path
from haclient.cli.demo.trace import TraceWriter
with TraceWriter.create(Path(sys.argv[1]), 100_000) as trace:
    for number in range(30_000):
        trace.delivered(number)
        trace.discarding(number)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_reader_sees_each_mark_once_and_in_order(tmp_path: Path) -> None:
    reader = TraceReader(tmp_path / "trace")
    assert reader.read_new() == []
    with TraceWriter.create(tmp_path / "trace", 10) as trace:
        assert reader.read_new() == []
        trace.delivered(0)
        trace.delivered(MAX_NUMBER)
        assert reader.read_new() == [(Mark.DELIVERED, 0), (Mark.DELIVERED, MAX_NUMBER)]
        trace.discarding(MAX_NUMBER)
        trace.discarded(MAX_NUMBER)
    marks = [(Mark.DISCARDING, MAX_NUMBER), (Mark.DISCARDED, MAX_NUMBER)]
    assert reader.read_new() == marks
    assert reader.read_new() == []


def test_every_mark_survives_a_sigkill(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    with Child([sys.executable, "-c", WRITE_AND_DIE, str(path)]) as child:
        assert child.wait() == -signal.SIGKILL
    expected: list[Step] = []
    for number in range(30_000):
        expected += [(Mark.DELIVERED, number), (Mark.DISCARDING, number)]
    assert TraceReader(path).read_new() == expected


def test_a_full_trace_is_an_error_and_not_a_silence(tmp_path: Path) -> None:
    with TraceWriter.create(tmp_path / "trace", 1) as trace:
        trace.delivered(1)
        with pytest.raises(IndexError):
            trace.delivered(2)


def test_a_trace_is_never_continued(tmp_path: Path) -> None:
    with TraceWriter.create(tmp_path / "trace", 1):
        pass
    with pytest.raises(FileExistsError), TraceWriter.create(tmp_path / "trace", 1):
        pass
    assert [each.name for each in tmp_path.iterdir()] == ["trace"]


# -- the verdict ---------------------------------------------------------------------------------


MEASURES = Measures(failover_ms=[30.0, 10.0, 20.0], restarts=1, seconds=2.5)
KEYS = [
    "published",
    "delivered",
    "lost",
    "duplicated",
    "redelivered_undiscarded",
    "out_of_order",
    "failovers",
    "restarts",
    "failover_ms_p50",
    "seconds",
]
HELD = 4


def finished(*numbers: int) -> list[Step]:
    """Each delivered, then discarded."""
    return [(mark, number) for number in numbers for mark in Mark]


def held(*numbers: int) -> list[Step]:
    """Delivered, and nothing else."""
    return [(Mark.DELIVERED, number) for number in numbers]


def verdict(published: int, *lives: Iterable[Step]) -> Verdict:
    return judge(published, lives, MEASURES)


def faults(found: Verdict) -> tuple[int, int, int]:
    return found.lost, found.duplicated, found.out_of_order


def test_a_run_without_fault() -> None:
    found = verdict(4, finished(0, 1), finished(2, 3))
    assert found.is_good
    assert (found.published, found.delivered, *faults(found)) == (4, 4, 0, 0, 0)
    assert (found.failovers, found.restarts, found.failover_ms_p50, found.seconds) == (
        3,
        1,
        20,
        2.5,
    )


def test_the_object_has_the_keys_of_the_contract_in_their_order() -> None:
    assert list(msgspec.to_builtins(verdict(0))) == KEYS


def test_a_message_that_never_came_is_lost() -> None:
    found = verdict(4, finished(0, 1, 3))
    assert (found.delivered, *faults(found)) == (3, 1, 0, 0)
    assert not found.is_good


def test_a_message_that_came_again_after_its_discard_is_a_duplicate() -> None:
    assert faults(verdict(3, finished(0, 1), finished(1, 2))) == (0, 1, 0)
    assert faults(verdict(2, finished(0), finished(1), held(1))) == (0, 1, 0)
    assert faults(verdict(2, finished(0, 1, 1))) == (0, 1, 0)


def test_a_message_that_came_again_to_who_still_held_it_is_a_duplicate() -> None:
    assert faults(verdict(1, held(0, 0))) == (0, 1, 0)


def test_what_a_killed_process_held_comes_again_and_is_counted_apart() -> None:
    found = verdict(3, [*finished(0), *held(1, 2)], finished(1, 2))
    assert faults(found) == (0, 0, 0)
    assert found.redelivered_undiscarded == 2


def test_what_a_killed_process_held_and_nobody_was_given_again_is_lost() -> None:
    found = verdict(4, [*finished(0), *held(1, 2)], finished(2, 3))
    assert (found.delivered, *faults(found)) == (4, 1, 0, 0)


def test_the_last_process_may_keep_what_it_held() -> None:
    assert verdict(2, finished(0), held(1)).is_good


@pytest.mark.parametrize("comes_again", [True, False])
def test_a_discard_that_did_not_return_may_have_been_done_or_not(
    comes_again: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    cut = [*finished(0), (Mark.DELIVERED, 1), (Mark.DISCARDING, 1)]
    found = verdict(3, cut, finished(1, 2) if comes_again else finished(2))
    assert faults(found) == (0, 0, 0)
    assert found.redelivered_undiscarded == comes_again


def test_a_later_message_before_an_earlier_one_is_disorder() -> None:
    assert faults(verdict(3, finished(0, 2, 1))) == (0, 0, 1)
    assert faults(verdict(3, finished(0, 2), finished(1))) == (0, 0, 1)
    assert faults(verdict(4, held(0, 1), finished(1, 0, 2, 3))) == (0, 0, 1)


def test_a_message_that_nobody_published_is_no_delivery() -> None:
    found = verdict(1, finished(0, 1))
    assert (found.delivered, *faults(found)) == (1, 0, 0, 1)


def test_a_run_without_a_fail_over_has_no_median() -> None:
    nothing = Measures(failover_ms=[], restarts=0, seconds=0.0)
    assert judge(0, [], nothing).failover_ms_p50 == 0.0


def test_the_words_name_what_is_wrong_and_only_that() -> None:
    assert verdict(1, finished(0)).as_text().endswith("nothing lost, duplicated or out of order")
    assert verdict(2, finished(1)).as_text().endswith("NOT GOOD: 1 lost")
    bad = verdict(4, finished(2, 1, 1))
    assert bad.as_text().endswith("NOT GOOD: 2 lost, 1 duplicated, 2 out of order")


def lives_of(messages: int, kills: list[int], source: random.Random) -> list[list[Step]]:
    """The traces of a subscriber that keeps the promise and is killed after so many marks.

    It holds up to `HELD` messages and discards them in any order; a discard that was begun by a
    killed process counts as done or as not done by chance.
    """
    lives: list[list[Step]] = []
    done: set[int] = set()
    for marks in [*kills, None]:
        life: list[Step] = []
        waiting: list[int] = []
        for number in range(messages):
            if number in done:
                continue
            life.append((Mark.DELIVERED, number))
            waiting.append(number)
            if len(waiting) == HELD or number == messages - 1:
                source.shuffle(waiting)
                for each in waiting:
                    life += [(Mark.DISCARDING, each), (Mark.DISCARDED, each)]
                waiting.clear()
        del life[len(life) if marks is None else marks :]
        done |= {number for mark, number in life if mark is Mark.DISCARDED}
        if marks and life and life[-1][0] is Mark.DISCARDING and source.random() < 0.5:
            done.add(life[-1][1])
        lives.append(life)
    return lives


def has_discarded(lives: list[list[Step]]) -> bool:
    return any(mark is Mark.DISCARDED for life in lives for mark, _ in life)


RUNS = st.builds(
    lives_of,
    st.integers(1, 30),
    st.lists(st.integers(0, 60), max_size=4),
    st.integers(0, 2**32).map(random.Random),
)


@given(RUNS)
def test_whoever_keeps_the_promise_is_never_accused(lives: list[list[Step]]) -> None:
    published = len({number for life in lives for _, number in life})
    found = verdict(published, *lives)
    assert faults(found) == (0, 0, 0)
    assert found.delivered == published


@given(RUNS, st.data())
def test_any_message_taken_out_is_missed(lives: list[list[Step]], data: st.DataObject) -> None:
    numbers = sorted({number for life in lives for _, number in life})
    gone = data.draw(st.sampled_from(numbers))
    found = verdict(len(numbers), *([step for step in life if step[1] != gone] for life in lives))
    assert found.lost == 1


@given(RUNS.filter(has_discarded), st.data())
def test_any_discarded_message_that_comes_again_is_noticed(
    lives: list[list[Step]], data: st.DataObject
) -> None:
    numbers = {number for life in lives for _, number in life}
    places = [
        (index, place)
        for index, life in enumerate(lives)
        for place, (mark, _) in enumerate(life)
        if mark is Mark.DISCARDED
    ]
    index, place = data.draw(st.sampled_from(places))
    again = lives[index][place][1]
    later, after = data.draw(
        st.sampled_from(
            [
                (life, at)
                for life in range(index, len(lives))
                for at in range(place + 1 if life == index else 0, len(lives[life]) + 1)
            ]
        )
    )
    lives[later].insert(after, (Mark.DELIVERED, again))
    assert verdict(len(numbers), *lives).duplicated >= 1


def test_a_trace_that_was_tampered_with_on_disk_is_found_out(tmp_path: Path) -> None:
    def read() -> Verdict:
        return verdict(100, TraceReader(tmp_path / "trace").read_new())

    with TraceWriter.create(tmp_path / "trace", 400) as trace:
        for number in range(100):
            trace.delivered(number)
            trace.discarding(number)
            trace.discarded(number)
    assert read().is_good
    data = bytearray((tmp_path / "trace").read_bytes())
    data[12 * 40 : 12 * 41] = data[12 * 10 : 12 * 11]  # message 10 in the place of message 40
    (tmp_path / "trace").write_bytes(data)
    assert faults(read()) == (1, 1, 1)

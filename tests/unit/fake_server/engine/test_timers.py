"""The heap of deadlines."""

from __future__ import annotations

import math
import weakref

import pytest

from haclient_fake_server.engine.timers import FEW, Clock, Timers, timestamp_text
from haclient_stores.bookmark import Timestamp


def actions() -> tuple[Timers, list[str]]:
    return Timers(), []


def run(timers: Timers, now: float) -> None:
    for each in timers.take_due(now):
        each.action()


def test_what_is_due_is_done_once_the_earliest_first() -> None:
    timers, done = actions()
    timers.set("b", 2.0, lambda: done.append("b"))
    timers.set("a", 1.0, lambda: done.append("a"))
    timers.set("c", 3.0, lambda: done.append("c"))
    assert timers.next_due == 1.0
    run(timers, 2.0)
    run(timers, 2.0)
    assert done == ["a", "b"]
    assert timers.next_due == 3.0


def test_a_deadline_that_was_moved_back_comes_up_early_and_is_put_back() -> None:
    timers, done = actions()
    timers.set("a", 1.0, lambda: done.append("old"))
    timers.set("a", 5.0, lambda: done.append("new"))
    run(timers, 1.0)
    assert (done, timers.next_due) == ([], 5.0)
    run(timers, 5.0)
    assert (done, timers.next_due) == (["new"], math.inf)


def test_a_deadline_that_was_moved_forward_is_done_once() -> None:
    timers, done = actions()
    timers.set("a", 5.0, lambda: done.append("late"))
    timers.set("a", 1.0, lambda: done.append("early"))
    run(timers, 9.0)
    assert (done, timers.next_due) == (["early"], math.inf)


def test_what_was_cancelled_or_is_never_due_is_not_done() -> None:
    timers, done = actions()
    timers.set("a", 1.0, lambda: done.append("a"))
    timers.set("b", 1.0, lambda: done.append("b"))
    timers.cancel("a")
    timers.set("b", math.inf, lambda: done.append("never"))
    timers.cancel("unknown")
    run(timers, 9.0)
    assert (done, timers.next_due) == ([], math.inf)


def test_what_an_action_sets_for_now_waits_for_the_next_call() -> None:
    timers, done = actions()

    def again() -> None:
        done.append("again")
        timers.set("a", 1.0, again)

    timers.set("a", 1.0, again)
    run(timers, 1.0)
    assert (done, timers.next_due) == (["again"], 1.0)


class _Key:
    """Something whose end can be seen."""


def test_cancelled_deadlines_of_a_distant_time_are_not_kept_until_then() -> None:
    timers, done = actions()
    timers.set("kept", 2.0, lambda: done.append("kept"))
    timers.set("moved", 3.0, lambda: done.append("early"))
    timers.set("moved", 4.0, lambda: done.append("moved"))
    keys = weakref.WeakSet[_Key]()

    def set_and_cancel(key: _Key) -> None:
        keys.add(key)
        timers.set(key, 1e9, lambda: done.append("cancelled"))
        timers.cancel(key)

    for _ in range(1000):
        set_and_cancel(_Key())
    assert len(keys) <= FEW + 8
    run(timers, 3.0)
    run(timers, 2e9)
    assert done == ["kept", "moved"]


@pytest.mark.row("TL17", "RB17")
@pytest.mark.parametrize(
    ("timestamp_us", "text"),
    [
        (0, b"19700101T000000.000000Z"),
        (1_711_058_535_075_075, b"20240321T220215.075075Z"),
    ],
)
def test_every_microsecond_is_written(timestamp_us: int, text: bytes) -> None:
    assert timestamp_text(timestamp_us) == text
    assert Timestamp.parse(text.decode()).microseconds == timestamp_us


def test_the_wall_clock_runs_with_that_of_the_shell() -> None:
    it = Clock(10.0, 50_000_000)
    it.now = 11.5
    assert it.wall_us == 51_500_000
    assert it.due_at_us(52_000_000) == 12.0

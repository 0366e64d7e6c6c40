from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.errors import UsageError
from haclient.session.heartbeat import Due, Heartbeat


def started(interval_s: float = 3.0, idle_limit_s: float | None = None) -> Heartbeat:
    heartbeat = Heartbeat(interval_s, idle_limit_s)
    heartbeat.start(100.0)
    return heartbeat


@pytest.mark.row("HB1")
@pytest.mark.parametrize(("interval", "options"), [(5, "start,5"), (0.5, "start,0.5")])
def test_the_server_is_told_the_interval(interval: float, options: str) -> None:
    assert Heartbeat(interval).options == options


@pytest.mark.row("HB2")
def test_two_silent_intervals_are_the_end_and_not_a_moment_earlier() -> None:
    heartbeat = started(3.0)
    heartbeat.beat(105.5)
    assert heartbeat.due(105.999) is Due.NOTHING
    assert heartbeat.due(106.0) is Due.LOST


@pytest.mark.row("HB2")
def test_anything_heard_starts_the_idle_limit_again() -> None:
    heartbeat = started(3.0)
    heartbeat.received(105.9)
    heartbeat.beat(109.0)
    assert heartbeat.due(111.89) is Due.NOTHING
    assert heartbeat.due(111.9) is Due.LOST


@pytest.mark.row("HB3")
def test_another_idle_limit_can_be_given() -> None:
    heartbeat = started(3.0, 4.5)
    heartbeat.beat(104.0)
    assert heartbeat.due(104.4) is Due.NOTHING
    assert heartbeat.due(104.5) is Due.LOST


def test_a_beat_is_due_every_interval() -> None:
    heartbeat = started(3.0)
    assert heartbeat.due(102.9) is Due.NOTHING
    assert heartbeat.due(103.0) is Due.BEAT
    heartbeat.beat(103.0)
    assert heartbeat.due(103.1) is Due.NOTHING


def test_silence_proves_nothing_while_we_do_not_read_and_our_beats_go_on() -> None:
    heartbeat = started(3.0)
    heartbeat.reading(101.0, active=False)
    assert heartbeat.next_at() == 103.0
    assert heartbeat.due(1000.0) is Due.BEAT
    heartbeat.beat(1000.0)
    heartbeat.reading(1001.0, active=True)
    assert heartbeat.due(1002.0) is Due.NOTHING
    heartbeat.beat(1006.0)
    assert heartbeat.due(1007.0) is Due.LOST


@pytest.mark.parametrize("interval", [0, -1, float("nan")])
def test_an_interval_that_is_not_positive_is_refused(interval: float) -> None:
    with pytest.raises(UsageError, match="must be positive"):
        Heartbeat(interval)


@pytest.mark.row("HB3")
def test_an_idle_limit_below_one_interval_is_refused() -> None:
    with pytest.raises(UsageError, match="shorter than the interval"):
        Heartbeat(3.0, 2.9)


@given(
    interval=st.floats(0.001, 100),
    heard=st.lists(st.floats(0, 1000), max_size=20),
    limit=st.floats(1, 5),
)
def test_next_at_is_exactly_when_something_becomes_due(
    interval: float, heard: list[float], limit: float
) -> None:
    heartbeat = Heartbeat(interval, interval * limit)
    heartbeat.start(0.0)
    for now in sorted(heard):
        heartbeat.received(now)
        moment = heartbeat.next_at()
        assert heartbeat.due(moment) is not Due.NOTHING
        if now < moment:
            assert heartbeat.due(now) is Due.NOTHING
        heartbeat.beat(now)

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.errors import DisconnectedError, UsageError
from haclient.session.connection_state import (
    ConnectionState,
    ConnectionStatus,
    Due,
    Heartbeat,
    HeartbeatTimers,
    LoggedOn,
)


def test_states_read_as_words() -> None:
    assert [str(state) for state in ConnectionState] == [
        "disconnected",
        "reconnecting",
        "connected",
        "logged_on",
        "heartbeat_initiated",
        "publish_replayed",
        "resubscribed",
        "shutdown",
    ]


def test_a_lost_connection_is_neither_logged_on_nor_live_and_remembers_its_server() -> None:
    status = ConnectionStatus()
    assert status.server_version == ""
    status.connected("a:9007")
    status.logged_on(LoggedOn(seen=0, persisted=0, server_version="5.3", reason=""))
    status.live()
    assert (status.connection > 0, status.is_logged_on, status.is_live) == (True, True, True)
    reason = DisconnectedError("gone")
    status.lost(reason)
    assert (status.connection > 0, status.is_logged_on, status.is_live) == (False, False, False)
    assert (status.address, status.server_version) == ("a:9007", "5.3")
    assert status.why_not_connected() is reason
    status.connected("b:9007")
    assert (status.lost_reason, status.connection) == (None, 2)


def test_a_client_that_was_never_connected_says_what_to_do() -> None:
    assert "call connect first" in str(ConnectionStatus().why_not_connected())


def test_another_connection_is_expected_until_the_client_is_stopped() -> None:
    assert not ConnectionStatus().expects_connection
    status = ConnectionStatus(reconnects=True)
    assert status.expects_connection
    first = DisconnectedError("first")
    status.stop(first)
    status.stop(DisconnectedError("second"))
    assert not status.expects_connection
    assert status.stop_reason is first


def test_a_wait_outlives_a_lost_connection_only_where_another_one_follows() -> None:
    lost = DisconnectedError("lost")
    with pytest.raises(DisconnectedError, match="lost"):
        ConnectionStatus().check_expects_connection("delete", lost)
    status = ConnectionStatus(reconnects=True)
    status.check_expects_connection("delete", lost)
    status.stop(DisconnectedError("no more"))
    with pytest.raises(DisconnectedError, match="delete: not confirmed: no more"):
        status.check_expects_connection("delete", lost)


# -- heartbeats ----------------------------------------------------------------------------------


def started(interval_s: float = 3.0, idle_limit_s: float | None = None) -> HeartbeatTimers:
    heartbeat = HeartbeatTimers(Heartbeat(interval_s, idle_limit=idle_limit_s))
    heartbeat.start(100.0)
    return heartbeat


@pytest.mark.row("HB1")
@pytest.mark.parametrize(("interval", "options"), [(5, "start,5"), (0.5, "start,0.5")])
def test_the_server_is_told_the_interval(interval: float, options: str) -> None:
    assert HeartbeatTimers(interval).options == options


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
    with pytest.raises(
        UsageError, match=r"heartbeat is a finite number of seconds, .* or above, not"
    ):
        Heartbeat(interval)


@pytest.mark.row("HB3")
def test_an_idle_limit_below_one_interval_is_refused() -> None:
    with pytest.raises(UsageError, match="shorter than the interval"):
        Heartbeat(3.0, idle_limit=2.9)


@given(
    interval=st.floats(0.001, 100),
    heard=st.lists(st.floats(0, 1000), max_size=20),
    limit=st.floats(1, 5),
)
def test_next_at_is_exactly_when_something_becomes_due(
    interval: float, heard: list[float], limit: float
) -> None:
    heartbeat = HeartbeatTimers(Heartbeat(interval, idle_limit=interval * limit))
    heartbeat.start(0.0)
    for now in sorted(heard):
        heartbeat.received(now)
        moment = heartbeat.next_at()
        assert heartbeat.due(moment) is not Due.NOTHING
        if now < moment:
            assert heartbeat.due(now) is Due.NOTHING
        heartbeat.beat(now)


def test_a_silence_begins_with_the_last_bytes_and_is_never_below_zero() -> None:
    heartbeat = HeartbeatTimers(3.0)
    heartbeat.start(10.0)
    heartbeat.received(12.0)
    assert [heartbeat.silence_s(now) for now in (12.0, 15.5, 11.0)] == [0.0, 3.5, 0.0]

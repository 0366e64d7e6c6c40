from __future__ import annotations

import pytest

from haclient.errors import DisconnectedError
from haclient.session.connection_state import ConnectionState, ConnectionStatus
from haclient.session.logon import LoggedOn


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
    assert (status.is_connected, status.is_logged_on, status.is_live) == (True, True, True)
    status.check_logged_on()
    reason = DisconnectedError("gone")
    status.lost(reason)
    assert (status.is_connected, status.is_logged_on, status.is_live) == (False, False, False)
    assert (status.address, status.server_version) == ("a:9007", "5.3")
    assert status.why_not_connected() is reason
    status.connected("b:9007")
    assert status.lost_reason is None
    with pytest.raises(DisconnectedError, match="not logged on"):
        status.check_logged_on()


def test_without_a_connection_commands_are_refused_with_what_to_do() -> None:
    status = ConnectionStatus()
    with pytest.raises(DisconnectedError, match="call connect and logon first"):
        status.check_logged_on()
    assert "call connect first" in str(status.why_not_connected())


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

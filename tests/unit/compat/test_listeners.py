"""The listeners of the application."""

from __future__ import annotations

import logging

import pytest

import haclient
from haclient import compat
from haclient.compat.listeners import Listeners
from haclient.errors import DisconnectedError, UsageError
from haclient.events import ConnectionLost, DuplicatesDropped, MessagesUnrouted
from haclient.session.connection_state import ClosedByClient, ConnectionState
from support.listening import reached

pytestmark = pytest.mark.row("B18")


def test_states_have_their_numbers_and_reconnecting_has_none() -> None:
    listeners, got = Listeners(), list[int]()
    listeners.add_state(got.append)
    for state in ConnectionState:
        listeners.on_event(reached(state))
    states = compat.ConnectionStateListener
    assert sorted(got) == [
        states.Disconnected,
        states.Shutdown,
        states.Connected,
        states.LoggedOn,
        states.PublishReplayed,
        states.HeartbeatInitiated,
        states.Resubscribed,
    ]


def test_a_state_listener_is_added_once_and_removed_once() -> None:
    listeners, got = Listeners(), list[int]()
    listeners.add_state(got.append)
    with pytest.raises(UsageError, match="already"):
        listeners.add_state(got.append)
    listeners.remove_state(got.append)
    with pytest.raises(UsageError, match="no such"):
        listeners.remove_state(got.append)
    listeners.add_state(got.append)
    listeners.clear_states()
    listeners.on_event(reached(ConnectionState.CONNECTED))
    assert got == []


def test_what_a_listener_raises_goes_to_the_exception_listener(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listeners, errors = Listeners(), list[Exception]()

    def fails(*_: object) -> None:
        raise ValueError("broken listener")

    listeners.disconnect = listeners.duplicate = listeners.last_chance = fails
    listeners.failed_write = fails
    listeners.add_state(fails)
    for _ in range(2):
        listeners.on_event(reached(ConnectionState.CONNECTED))
        listeners.on_event(ConnectionLost("c", 0, "", DisconnectedError("lost")))
        listeners.on_event(DuplicatesDropped("c", 0, "", (haclient.Message(),)))
        listeners.on_event(MessagesUnrouted("c", 0, "", (haclient.Message(),)))
        listeners.on_failed_write(haclient.Message(), "bad")
        listeners.exception = errors.append
    assert len(errors) == 5
    assert caplog.text.count("broken listener") >= 5
    listeners.exception = fails
    listeners.on_exception(KeyError("first"))
    assert "the exception listener raised" in caplog.text


def test_without_listeners_nothing_is_lost_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    listeners = Listeners()
    caplog.set_level(logging.WARNING)
    listeners.on_event(ConnectionLost("c", 0, "", DisconnectedError("lost")))
    listeners.on_event(DuplicatesDropped("c", 0, "", (haclient.Message(),)))
    listeners.on_event(MessagesUnrouted("c", 0, "", (haclient.Message(),)))
    listeners.on_failed_write(haclient.Message(topic="orders"), "bad filter")
    listeners.on_exception(ValueError("from a handler"))
    assert "'orders': bad filter" in caplog.text
    assert "from a handler" in caplog.text


def test_the_disconnect_handler_is_not_for_what_the_client_has_closed() -> None:
    listeners, got = Listeners(), list[bool]()
    listeners.disconnect = lambda: got.append(True)
    listeners.on_event(ConnectionLost("c", 0, "", ClosedByClient("closed")))
    assert got == []
    listeners.on_event(ConnectionLost("c", 0, "", DisconnectedError("lost")))
    assert got == [True]

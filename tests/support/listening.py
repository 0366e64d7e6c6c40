"""Listeners of events that pass on the one fact that a test is about."""

from __future__ import annotations

from collections.abc import Callable

from haclient.errors import HAClientError
from haclient.events import (
    ConnectionLost,
    DuplicatesDropped,
    Event,
    EventListener,
    ExceptionRaised,
    MessagesUnrouted,
    StateChanged,
)
from haclient.protocol.messages import Message
from haclient.session.connection_state import ConnectionState


def on_states(call: Callable[[ConnectionState], object]) -> EventListener:
    """Pass on each state."""
    return lambda event: call(event.state) if isinstance(event, StateChanged) else None


def on_losses(call: Callable[[HAClientError], object]) -> EventListener:
    """Pass on why each connection has ended."""
    return lambda event: call(event.error) if isinstance(event, ConnectionLost) else None


def on_exceptions(call: Callable[[Exception], object]) -> EventListener:
    """Pass on each exception of a handler, a listener or a background task."""
    return lambda event: call(event.error) if isinstance(event, ExceptionRaised) else None


def on_duplicates(call: Callable[[Message], object]) -> EventListener:
    """Pass on each message that a bookmark store has filtered out."""

    def listener(event: Event) -> None:
        if isinstance(event, DuplicatesDropped):
            for message in event.messages:
                call(message)

    return listener


def on_unrouted(call: Callable[[Message], object]) -> EventListener:
    """Pass on each message that no subscription takes."""

    def listener(event: Event) -> None:
        if isinstance(event, MessagesUnrouted):
            for message in event.messages:
                call(message)

    return listener


def both(one: EventListener, other: EventListener) -> EventListener:
    """Call two plain listeners."""

    def listener(event: Event) -> None:
        one(event)
        other(event)

    return listener


def reached(state: ConnectionState) -> Event:
    """The event of a state."""
    return StateChanged("c", 0, "", state)

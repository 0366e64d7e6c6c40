"""What happens to a client, as values: the events that `on_event` and event listeners receive.

Each kind is a class, so that a listener says by `match` what it is interested in::

    def note(event: Event) -> None:
        match event:
            case ConnectionLost(error=error):
                print("lost:", error)
            case StateChanged(state=state):
                print("now", state)

Later versions may add kinds, and fields to a kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from haclient.errors import HAClientError, PublishFailed
from haclient.protocol.messages import Message
from haclient.session.connection_state import ConnectionState

__all__ = [
    "AttemptFailed",
    "ConnectionLost",
    "ConnectionMade",
    "DuplicatesDropped",
    "Event",
    "EventListener",
    "ExceptionRaised",
    "LogonAccepted",
    "MessagesReceived",
    "MessagesUnrouted",
    "PublishRefused",
    "PublishesPersisted",
    "PublishesReplayed",
    "RecoveryPointMoved",
    "Resubscribed",
    "StateChanged",
    "StorePruned",
    "SubscriptionEnded",
    "SubscriptionGap",
    "SubscriptionPaused",
    "SubscriptionResumed",
    "SubscriptionSilent",
]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that has happened to a client: the base of all kinds.

    Attributes:
        client: The name of the client.
        at_us: When, in microseconds since 1970.
        uri: The server in use or tried last, without its password; empty before the first one.
    """

    client: str
    at_us: int
    uri: str


EventListener: TypeAlias = Callable[[Event], object]
"""Called with each event of a client; a plain function or a coroutine function."""


# -- connections ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StateChanged(Event):
    """The connection has reached a state; `SHUTDOWN` comes last."""

    state: ConnectionState


@dataclass(frozen=True, slots=True)
class ConnectionMade(Event):
    """The client has connected to a server."""


@dataclass(frozen=True, slots=True)
class LogonAccepted(Event):
    """The server has accepted the logon."""


@dataclass(frozen=True, slots=True)
class ConnectionLost(Event):
    """A connection has ended, even if the program has closed it; `error` says why."""

    error: HAClientError


@dataclass(frozen=True, slots=True)
class AttemptFailed(Event):
    """An `HAClient` could not use a server: no connection, a refused logon, a gap, ...

    Attributes:
        attempt: The number of the attempt, from 1 on.
        error: Why.
    """

    attempt: int
    error: HAClientError


# -- publishes -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PublishesReplayed(Event):
    """After a logon, the client sends publishes from its store again.

    Attributes:
        count: How many.
        sequence: The sequence number of the last one.
    """

    count: int
    sequence: int


@dataclass(frozen=True, slots=True)
class PublishesPersisted(Event):
    """The server has persisted the publishes up to `sequence`."""

    sequence: int


@dataclass(frozen=True, slots=True)
class PublishRefused(Event):
    """The server has refused a publish.

    Attributes:
        error: Why; it has the sequence number.
        message: The publish; without a store, the ack that refused it.
    """

    error: PublishFailed
    message: Message


# -- subscriptions -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Resubscribed(Event):
    """A server has accepted the subscription `sub_id` again."""

    sub_id: str


@dataclass(frozen=True, slots=True)
class SubscriptionEnded(Event):
    """The server has ended a subscription, or no server accepts it again.

    Or a query with a handler has ended before its result was complete: its connection was lost, or
    the server was silent for too long.
    """

    sub_id: str
    error: HAClientError


@dataclass(frozen=True, slots=True)
class SubscriptionSilent(Event):
    """A subscription has received nothing for longer than `progress_timeout`: a new connection."""

    sub_id: str
    error: HAClientError


@dataclass(frozen=True, slots=True)
class SubscriptionPaused(Event):
    """The queue of a subscription is full, and the client pauses it at the server."""

    sub_id: str


@dataclass(frozen=True, slots=True)
class SubscriptionResumed(Event):
    """Half of that queue is free again, and the client resumes the subscription."""

    sub_id: str


@dataclass(frozen=True, slots=True)
class SubscriptionGap(Event):
    """A plain subscription has lost its connection: until it is back, messages are missing."""

    sub_id: str


@dataclass(frozen=True, slots=True)
class RecoveryPointMoved(Event):
    """Discards have moved the recovery point of a subscription to `bookmark`."""

    sub_id: str
    bookmark: str


# -- messages: those of one read together --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DuplicatesDropped(Event):
    """The bookmark store has filtered these messages out."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class MessagesUnrouted(Event):
    """These messages belong to no subscription: nobody has handled them."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class MessagesReceived(Event):
    """These messages of any command have arrived, whoever else gets them.

    They are copies, which cannot be discarded or acknowledged. Making them takes time, so only a
    listener that was added for this kind gets it: `add_event_listener(listener, MessagesReceived)`.
    """

    messages: tuple[Message, ...]


# -- the program and its stores ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExceptionRaised(Event):
    """A handler or listener has raised `error`, or a background task, whose error ends the client.

    It decides nothing: `on_handler_error` does.
    """

    error: Exception


@dataclass(frozen=True, slots=True)
class StorePruned(Event):
    """The bookmark store was pruned while it was in use."""

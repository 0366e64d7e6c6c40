"""The states of a connection that applications can see (HA20)."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TypeAlias

__all__ = ["ConnectionState", "StateListener"]


class ConnectionState(enum.StrEnum):
    """How far the connection is."""

    DISCONNECTED = "disconnected"
    """There is no connection."""
    RECONNECTING = "reconnecting"
    """There is none, and an `HAClient` is trying to get one."""
    CONNECTED = "connected"
    """A server has accepted the connection, and nothing was said yet."""
    LOGGED_ON = "logged_on"
    """The server knows who we are. A `Client` gets no further: its logon includes what follows."""
    HEARTBEAT_INITIATED = "heartbeat_initiated"
    """Both sides watch each other; left out without a heartbeat."""
    PUBLISH_REPLAYED = "publish_replayed"
    """What was not persisted is on its way again, and whatever is published follows it."""
    RESUBSCRIBED = "resubscribed"
    """Every subscription was entered again; commands are sent."""
    SHUTDOWN = "shutdown"
    """The client was left; nothing follows."""


StateListener: TypeAlias = Callable[[ConnectionState], object]
"""Called with each state that is reached; a plain function or a coroutine function."""

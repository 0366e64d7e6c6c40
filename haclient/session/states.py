"""The states of a connection that applications can see (HA20)."""

from __future__ import annotations

import enum

__all__ = ["ConnectionState"]


class ConnectionState(enum.StrEnum):
    """How far the connection is."""

    DISCONNECTED = "disconnected"
    CONNECTED = "connected"
    LOGGED_ON = "logged_on"
    HEARTBEAT_INITIATED = "heartbeat_initiated"
    PUBLISH_REPLAYED = "publish_replayed"
    RESUBSCRIBED = "resubscribed"
    SHUTDOWN = "shutdown"

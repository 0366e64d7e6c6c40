"""The state of a client's connection, in one place.

`ConnectionState` is what applications see. `ConnectionStatus` is the single owner of the
connection's state. Every module that needs to know whether the client is connected, logged on, live
or stopping asks it; only `Core` and `Reconnector` change it. It has no clock and never waits.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TypeAlias

from haclient.errors import DisconnectedError, HAClientError
from haclient.session.logon import LoggedOn

__all__ = ["ConnectionState", "ConnectionStatus", "StateListener"]


class ConnectionState(enum.StrEnum):
    """The states of a connection, as reported to the application."""

    DISCONNECTED = "disconnected"
    """There is no connection."""
    RECONNECTING = "reconnecting"
    """There is none, and an `HAClient` is trying to get one."""
    CONNECTED = "connected"
    """A server has accepted the connection; nothing was sent yet."""
    LOGGED_ON = "logged_on"
    """The server has accepted the logon. The last state of a `Client`: its logon does the rest."""
    HEARTBEAT_INITIATED = "heartbeat_initiated"
    """Both sides send heartbeats; left out where none are configured."""
    PUBLISH_REPLAYED = "publish_replayed"
    """What was not persisted is being sent again; new publishes follow it."""
    RESUBSCRIBED = "resubscribed"
    """Every subscription was sent again; commands are sent from here on."""
    SHUTDOWN = "shutdown"
    """The client was left; nothing follows."""


StateListener: TypeAlias = Callable[[ConnectionState], object]
"""Called with each state that is reached; a plain function or a coroutine function."""


class ConnectionStatus:
    """The state of one client's connection.

    Args:
        reconnects: Whether the client reconnects automatically.

    Attributes:
        reconnects: As above. It stays true after the client has stopped; see `expects_connection`.
        state: The state last reported to the application.
        address: Host and port of the current server, or of the last one; empty before the first.
        is_connected: Whether there is a link to a server.
        is_logged_on: Whether the server has accepted the logon: commands may be sent.
        is_live: Whether the recovery is complete, so that calls waiting for a connection continue.
        server: The server's answer to the last logon; `None` before the first.
        lost_reason: Why the last connection ended; `None` while there is one.
        stop_reason: Why the client will not connect again; `None` while it may.
    """

    __slots__ = (
        "address",
        "is_connected",
        "is_live",
        "is_logged_on",
        "lost_reason",
        "reconnects",
        "server",
        "state",
        "stop_reason",
    )

    def __init__(self, *, reconnects: bool = False) -> None:
        self.reconnects = reconnects
        self.state = ConnectionState.DISCONNECTED
        self.address = ""
        self.is_connected = False
        self.is_logged_on = False
        self.is_live = False
        self.server: LoggedOn | None = None
        self.lost_reason: HAClientError | None = None
        self.stop_reason: HAClientError | None = None

    @property
    def server_version(self) -> str:
        """The server's version as it writes it; empty before the first logon."""
        return "" if self.server is None else self.server.server_version

    @property
    def expects_connection(self) -> bool:
        """Whether the client will connect again when there is no connection."""
        return self.reconnects and self.stop_reason is None

    def connected(self, address: str) -> None:
        """There is a link to the server at this address."""
        self.address = address
        self.is_connected = True
        self.lost_reason = None

    def logged_on(self, server: LoggedOn) -> None:
        """The server has accepted the logon."""
        self.server = server
        self.is_logged_on = True

    def live(self) -> None:
        """Nothing is left to recover."""
        self.is_live = True

    def lost(self, reason: HAClientError) -> None:
        """The link has ended."""
        self.is_connected = self.is_logged_on = self.is_live = False
        self.lost_reason = reason

    def stop(self, reason: HAClientError) -> None:
        """No other connection follows; the first reason counts."""
        self.stop_reason = self.stop_reason or reason

    def check_expects_connection(self, what: str, lost_reason: HAClientError) -> None:
        """Check that another connection follows, after one was lost.

        Args:
            what: What is waited for, for the error message.
            lost_reason: Why the connection was lost.

        Raises:
            HAClientError: No other connection follows.
        """
        if self.stop_reason is not None:
            raise DisconnectedError(f"{what}: not confirmed: {self.stop_reason}") from (
                self.stop_reason
            )
        if not self.reconnects:
            raise lost_reason

    def why_not_connected(self) -> HAClientError:
        """The error to raise where a connection is needed and there is none."""
        return self.lost_reason or DisconnectedError("not connected: call connect first")

    def check_logged_on(self) -> None:
        """Check that commands may be sent.

        Raises:
            DisconnectedError: There is no connection, or it has not logged on.
        """
        if not self.is_connected:
            raise DisconnectedError("not connected: call connect and logon first")
        if not self.is_logged_on:
            raise DisconnectedError("not logged on: call logon first")

"""Why a server has cut the connection, where it says so (HA26). Pure.

A failure ack that belongs to no command is a server's last word before it closes. Its reason is
free text; the known ones have a class of their own, so that an application can tell a second client
of the same name from a slow one without reading text.
"""

from __future__ import annotations

from typing import Final

from haclient.errors import (
    AuthenticationError,
    DisconnectedError,
    HAClientError,
    HeartbeatLost,
    NameInUse,
    SlowClient,
)

__all__ = ["cut"]

_KINDS: Final[tuple[tuple[str, type[HAClientError], str], ...]] = (
    ("name in use", NameInUse, "another connection has taken this client name"),
    ("slow client", SlowClient, "it had more to send than this client has read"),
    ("heartbeat", HeartbeatLost, "it heard nothing of this client for too long"),
    ("auth", AuthenticationError, "the user may not be connected any more"),
    ("entitlement", AuthenticationError, "the user's rights have changed"),
)


def cut(peer: str, reason: str) -> HAClientError:
    """The error for a connection that `peer` has closed with these words."""
    text = f"{peer} closed the connection: {reason}"
    lowered = reason.lower()
    for key, kind, meaning in _KINDS:
        if key in lowered:
            return kind(f"{text}: {meaning}")
    return DisconnectedError(text)

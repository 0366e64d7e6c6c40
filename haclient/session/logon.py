"""The logon exchange (protocol 5).

One `logon` frame, answered by a `processed` ack. `success` says what the server knows of this
publisher; `retry` asks for other credentials on the same connection, at most `MAX_ROUNDS` times;
anything else is a refusal. The exchange is pure: the shell asks the authenticator and the wire.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from haclient.errors import (
    AuthenticationError,
    DisconnectedError,
    HAClientError,
    NameInUse,
    NotEntitled,
    UsageError,
    command_error,
)
from haclient.protocol.messages import Message
from haclient_stores.bookmark import Bookmark, parse_bookmark

__all__ = ["MAX_ROUNDS", "LoggedOn", "logon_fields", "read_logon_ack", "refusal"]

MAX_ROUNDS: Final = 4
"""Logon frames on one connection: the first and three retries."""

CLIENT_VERSION: Final = "haclient:python"


@dataclass(frozen=True, slots=True)
class LoggedOn:
    """What the server says at logon (CC5, ID8).

    Attributes:
        seen: The highest sequence of this publisher that the server has seen: number above it.
        persisted: The highest that is persisted here and on all sync destinations: trim to it.
        server_version: As the server writes it.
        reason: Informative text of a success.
    """

    seen: int
    persisted: int
    server_version: str
    reason: str


def logon_fields(  # noqa: PLR0913  # the parts of one wire frame
    command_id: str,
    client_name: str,
    *,
    message_type: str = "",
    user: str = "",
    password: str = "",
    options: str = "",
    correlation_id: str = "",
    version: str = CLIENT_VERSION,
) -> dict[str, str | int]:
    """The header of a logon frame, by wire name and without what is empty."""
    fields: dict[str, str | int] = {
        "c": "logon",
        "cid": command_id,
        "client_name": client_name,
        "mt": message_type,
        "user_id": user,
        "pw": password,
        "opts": options,
        "x": correlation_id,
        "a": "processed",
        "version": version,
    }
    return {name: value for name, value in fields.items() if value != ""}


def read_logon_ack(ack: Message) -> LoggedOn:
    """Read a successful ack; without `bm`, what was seen counts as persisted (design 5).

    Raises:
        DisconnectedError: The status is not `success`; see `refusal`.
    """
    if ack.status != "success":
        raise refusal(ack.reason)
    seen = ack.sequence or 0
    return LoggedOn(
        seen=seen,
        persisted=_persisted(ack.bookmark, seen),
        server_version=ack.version,
        reason=ack.reason,
    )


def refusal(reason: str) -> HAClientError:
    """The error for a refused logon, by the server's words (protocol 3.15, 5.3)."""
    error = command_error("the server refused the logon", reason)
    match error:
        case AuthenticationError() | NameInUse():
            return error
        case NotEntitled():
            return AuthenticationError(str(error))
        case _:
            return DisconnectedError(str(error))


def _persisted(bookmark: str, seen: int) -> int:
    if not bookmark:
        return seen
    try:
        position = parse_bookmark(bookmark)
    except UsageError:
        return 0  # unreadable: trim nothing, a duplicate is dropped by the server, a loss is final
    return position.sequence if isinstance(position, Bookmark) else 0

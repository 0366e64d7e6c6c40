"""The logon exchange.

The client sends one `logon` frame and gets a `processed` ack. Status `success` carries what the
server has seen from this publisher; `retry` asks for other credentials on the same connection, at
most `MAX_ROUNDS` times; anything else is a refusal. The exchange is pure: the caller talks to the
authenticator and the wire.
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
    ProtocolError,
    UsageError,
    command_error,
)
from haclient.protocol.messages import Message
from haclient_stores.bookmark import EPOCH, Bookmark, parse_bookmark
from haclient_stores.checks import check_utf8

MAX_ROUNDS: Final = 4
"""Logon frames on one connection: the first and three retries."""

MAX_SEQUENCE: Final = 2**63 - 1
"""Highest sequence that a publish can have, and that a server may acknowledge."""

MAX_SEEN_SEQUENCE: Final = 2**62 - 1
"""Highest sequence that a logon ack may name: there has to be room to number above it."""

CLIENT_VERSION: Final = "haclient:python"


@dataclass(frozen=True, slots=True)
class LogStart:
    """One start of the server's transaction log.

    Attributes:
        id: Random number that the server generated for this start.
        first_position: The first log position that was written after it.
    """

    id: int
    first_position: int


@dataclass(frozen=True, slots=True)
class LoggedOn:
    """The server's answer to a logon.

    Attributes:
        seen: The highest sequence of this publisher that the server has seen; new publishes are
            numbered above it. `None` when the server does not report it.
        persisted: The highest sequence persisted on the server and on all sync destinations; the
            store is trimmed to it. `None` when the server does not report it: then nothing is
            trimmed and no gap is assumed.
        server_version: The version as the server writes it.
        reason: The informative text of a successful ack.
        log_starts: The recent starts of the server's transaction log, oldest first; empty for a
            server that does not name them.
    """

    seen: int | None
    persisted: int | None
    server_version: str
    reason: str
    log_starts: tuple[LogStart, ...] = ()

    def has_of(self, acknowledged: int) -> int:
        """How much the server has of what was acknowledged to this publisher.

        What another server has acknowledged, this one may have in its log without having been told
        yet that the replicas have it too. It is not `persisted` here then, but nothing is lost.

        Args:
            acknowledged: The highest sequence that any server has acknowledged.

        Returns:
            The highest sequence that is persisted or was acknowledged before; below `acknowledged`
            the server lacks messages. A server that names no sequence is trusted.
        """
        if self.persisted is None:
            return acknowledged
        return max(self.persisted, min(self.seen or 0, acknowledged))


def logon_fields(  # noqa: PLR0913  # the parts of one wire frame
    command_id: str,
    client_name: str,
    *,
    message_type: str = "",
    user: str = "",
    password: str = "",
    options: str = "",
    correlation_id: str = "",
) -> dict[str, str | int]:
    """The header of a logon frame, by wire name and without empty fields."""
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
        "version": CLIENT_VERSION,
    }
    return {name: value for name, value in fields.items() if value != ""}


def read_logon_ack(ack: Message) -> LoggedOn:
    """Read a successful ack; without `bm`, what was seen counts as persisted.

    Raises:
        DisconnectedError: The status is not `success`; see `refusal`.
        ProtocolError: A number or the list of log starts is invalid.
    """
    if ack.status != "success":
        raise refusal(ack.reason, ack.detail)
    seen = ack.sequence
    persisted = None if seen is None else _persisted(ack.bookmark, seen)
    for number in (seen, persisted):
        if number is not None and number > MAX_SEEN_SEQUENCE:
            raise ProtocolError(
                f"the server's logon ack names sequence {number}, which leaves no room to number "
                f"above it: at most {MAX_SEEN_SEQUENCE} can be meant"
            )
    return LoggedOn(
        seen=seen,
        persisted=persisted,
        server_version=ack.version,
        reason=ack.reason,
        log_starts=_log_starts(ack.log_starts),
    )


def refusal(reason: str, detail: str = "") -> HAClientError:
    """The error for a refused logon.

    Args:
        reason: The server's reason.
        detail: What exactly it refused, if the server sends that.
    """
    error = command_error("the server refused the logon", reason, detail)
    match error:
        case AuthenticationError() | NameInUse():
            return error
        case NotEntitled():
            return AuthenticationError(str(error))
        case _:
            return DisconnectedError(str(error))


def _persisted(bookmark: str, seen: int) -> int | None:
    if not bookmark:
        return seen
    try:
        position = parse_bookmark(bookmark)
    except UsageError:
        # Unreadable, so unknown: the server drops a duplicate, while a trimmed message is lost.
        return None
    if isinstance(position, Bookmark):
        return position.sequence
    return 0 if position == EPOCH else None


def _log_starts(text: str) -> tuple[LogStart, ...]:
    """Read `<id in hex>@<position>,...`.

    Raises:
        ProtocolError: It is not of that form.
    """
    try:
        pairs = [each.split("@") for each in text.split(",") if each]
        return tuple(LogStart(int(start, 16), int(position)) for start, position in pairs)
    except ValueError as error:
        raise ProtocolError(f"the server's logon ack has malformed log_starts: {text!r}") from error


def check_client_name(name: str) -> str:
    """Refuse a client name that is empty or unsafe to log; names are the identity of publishers.

    Raises:
        UsageError: It is empty, or has control characters, newlines or square brackets.
    """
    check_utf8("the client name", name)
    if not name:
        raise UsageError("a client needs a name that is the same in every run, not an empty one")
    if any(ch < " " or ch in "[]\x7f" for ch in name):
        raise UsageError(
            f"the client name {name!r} has control characters or square brackets: "
            "choose printable characters"
        )
    return name

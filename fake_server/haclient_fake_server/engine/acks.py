"""Acks as frames: built only when requested; a failure is reported if any ack was requested.

There is one frame per ack type. The fields are in the order of published samples. A failure is
reported in the `processed` ack, or in the first requested type when that is not one of them.

The `reason` of a failure is one of the protocol's texts. `detail` describes the mistake. Only this
broker sends that field; clients that do not know it skip it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from haclient.errors import printable
from haclient.protocol.codec import encode_frame
from haclient.protocol.messages import Message

MAX_DETAIL_CHARACTERS: Final = 200
"""The longest `detail` of a failure ack: people read it in one line, and it may quote input."""

MAX_QUOTED_CHARACTERS: Final = 80
"""How much of a client's text the log quotes: a client must not fill the disk."""

BEAT: Final = encode_frame({"c": "heartbeat"})
"""The heartbeat that the server sends once per interval."""


class Reason(enum.StrEnum):
    """The reason for refusing a command, exactly as sent on the wire."""

    AUTH_FAILURE = "auth failure"
    BAD_FILTER = "bad filter"
    BAD_MESSAGE = "bad message"
    BAD_REGEX_TOPIC = "bad regex topic"
    BAD_SOW_KEY = "bad sow key"
    BOOKMARK_NOT_FOUND = "bookmark not found"
    DUPLICATE_LOGON = "duplicate logon attempt"
    INVALID_BATCH_SIZE = "invalid batch size"
    INVALID_BOOKMARK = "invalid bookmark"
    INVALID_CORRELATION_ID = "invalid correlation id"
    INVALID_EXPIRATION = "invalid expiration"
    INVALID_MESSAGE_TYPE = "invalid message type"
    INVALID_OPTIONS = "invalid options"
    INVALID_ORDERBY = "invalid orderby"
    INVALID_SUBID = "invalid subid"
    INVALID_TOPIC = "invalid topic"
    LOGON_REQUIRED = "logon required"
    NAME_IN_USE = "name in use"
    NOT_ENTITLED = "not entitled"
    SUBID_IN_USE = "subid in use"
    TOO_MANY_GUARDS = "too many guards"
    TOO_MANY_QUERIES = "too many queries"
    TOO_MANY_SUBSCRIPTIONS = "too many subscriptions"
    UNKNOWN_COMMAND = "unknown command"


class Refused(Exception):  # not a fault of this program: a command that it declines
    """A command is refused and has changed nothing.

    Attributes:
        reason: The reason in the failure ack: one of `Reason`.
        detail: What was found and what was expected, for the ack and the broker's log.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


_NOTHING: Final[frozenset[str]] = frozenset()
_COMMON: Final = {
    "persisted": frozenset({"persisted"}),
    "processed": frozenset({"processed"}),
    "": _NOTHING,
}

_KINDS: Final = ("completed", "persisted", "processed", "received", "stats")

_MAX_TOKENS: Final = 100
"""Ack types that are read one by one; a text of millions of them would take seconds."""


def requested(ack_type: str) -> frozenset[str]:
    """The ack types in a command's `a`: spaces, empty tokens and `none` are tolerated."""
    known = _COMMON.get(ack_type)
    if known is not None:
        return known
    *tokens, rest = ack_type.lower().split(",", _MAX_TOKENS)
    tokens += [kind for kind in _KINDS if kind in rest] if "," in rest else [rest]
    return frozenset(map(str.strip, tokens)) - {"", "none"}


def ack(
    kind: str,
    cid: str = "",
    *,
    status: str = "success",
    reason: str = "",
    detail: str = "",
    more: Mapping[str, str | int] | None = None,
) -> bytes:
    """An ack frame; `more` holds the fields that only some commands have."""
    fields: dict[str, str | int] = {"c": "ack"}
    if cid:
        fields["cid"] = cid
    if more:
        fields.update(more)
    fields["a"] = kind
    fields["status"] = status
    if reason:
        fields["reason"] = reason
    if detail:
        fields["detail"] = printable(detail)[:MAX_DETAIL_CHARACTERS]
    return encode_frame(fields)


def failure_ack(
    message: Message, reason: str, *, detail: str = "", more: Mapping[str, str | int] | None = None
) -> bytes | None:
    """The ack that reports a command's failure; `None` if the command requested no ack."""
    wanted = requested(message.ack_type)
    if not wanted:
        return None
    kind = next((name for name in ("processed", "persisted") if name in wanted), min(wanted))
    return ack(kind, message.command_id, status="failure", reason=reason, detail=detail, more=more)


def end_ack(reason: str, *, detail: str = "") -> bytes:
    """The last frame to a connection that is about to be closed: it belongs to no command."""
    return ack("processed", status="failure", reason=reason, detail=detail)


def name_in_use_ack(client_name: str) -> bytes:
    """The ack that tells a connection that a newer one of the same name displaces it."""
    more = {"client_name": client_name}
    return ack("processed", status="failure", reason="name in use", more=more)


def quoted(text: str) -> str:
    """A client's text for the log: one line, and not long."""
    return repr(
        text if len(text) <= MAX_QUOTED_CHARACTERS else text[:MAX_QUOTED_CHARACTERS] + "..."
    )


SLOW_CLIENT_ACK: Final = end_ack("slow client")
"""The last frame to a connection that does not read what it is sent."""

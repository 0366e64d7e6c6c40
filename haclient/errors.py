"""Every error that `haclient` raises, in one tree.

::

    HAClientError
    |-- UsageError                    the caller did something that can never work
    |-- ProtocolError                 the peer sent bytes that are not AMPS
    |-- DisconnectedError             there is no connection, or it was lost
    |   |-- ConnectionRefused         no server listens there, or the network refuses
    |   |-- AuthenticationError       the server refused user or password
    |   |-- NameInUse                 the client name belongs to another connection
    |   |-- HeartbeatLost             the peer was silent for longer than agreed
    |   |-- SubscriptionStalled       a subscription received nothing for too long
    |   |-- SlowClient                the server had more to send than was read
    |   `-- ReconnectGaveUp           no server could be reached within the limits
    |-- CommandError(reason)          the server refused a command
    |   |-- BadFilter  BadRegexTopic  InvalidTopic  NotEntitled  SubIdInUse
    |   |-- InvalidBookmark  BookmarkNotFound  InvalidOptions  InvalidOrderBy  BadSowKey
    |   `-- PublishFailed             the server refused one publish
    |-- DecodeError(topic, codec)     a body is not what its codec reads
    |-- TimedOut                      also a TimeoutError
    |   |-- GraceExpired              a signal has ended the program before its work was done
    |   `-- SubscriptionFull          an ack comes after more messages than the client reads ahead
    |-- WorkerError                   a worker process died, or could not be started
    |-- WouldBlock                    publish_nowait over the high-water mark
    `-- StoreError                    see `haclient_stores.errors`

Local misuse (`UsageError`), a fault of the peer (`ProtocolError`) and a refusal by the server
(`CommandError`) are different branches on purpose: only the last can succeed when it is repeated.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

from haclient_stores.errors import (
    HAClientError,
    PublishGap,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreLocked,
    UsageError,
)

__all__ = [
    "AuthenticationError",
    "BadFilter",
    "BadRegexTopic",
    "BadSowKey",
    "BookmarkNotFound",
    "CommandError",
    "ConnectionRefused",
    "DecodeError",
    "DisconnectedError",
    "GraceExpired",
    "HAClientError",
    "HeartbeatLost",
    "InvalidBookmark",
    "InvalidOptions",
    "InvalidOrderBy",
    "InvalidTopic",
    "NameInUse",
    "NotEntitled",
    "ProtocolError",
    "PublishFailed",
    "PublishGap",
    "ReconnectGaveUp",
    "SlowClient",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "SubIdInUse",
    "SubscriptionFull",
    "SubscriptionStalled",
    "TimedOut",
    "UsageError",
    "WorkerError",
    "WouldBlock",
]


class WorkerError(HAClientError):
    """A worker process died or could not be started, or what it raised could not be pickled."""


class ProtocolError(HAClientError):
    """The peer sent bytes that are not AMPS; the connection cannot continue."""


class DisconnectedError(HAClientError):
    """There is no connection, or it was lost before the command was confirmed."""


class ConnectionRefused(DisconnectedError):
    """No server listens at that address, or the network refused the connection."""


class AuthenticationError(DisconnectedError):
    """The server refused user or password."""


class NameInUse(DisconnectedError):
    """The client name belongs to another user's connection, or a newer one took it."""


class HeartbeatLost(DisconnectedError):
    """The peer was silent for longer than the agreed idle limit."""


class SubscriptionStalled(DisconnectedError):
    """A subscription has received nothing for longer than `progress_timeout` allows.

    Attributes:
        sub_id: Its id.
    """

    def __init__(self, message: str, *, sub_id: str = "") -> None:
        super().__init__(message)
        self.sub_id = sub_id


class SlowClient(DisconnectedError):
    """The server cut the connection because this client did not read fast enough."""


class ReconnectGaveUp(DisconnectedError):
    """No server could be reached within the limits of the chooser and the delay strategy.

    Attributes:
        attempts: How many connections were tried.
        chooser_error: The reason given by the server chooser.
    """

    def __init__(self, attempts: int, chooser_error: str) -> None:
        super().__init__(f"gave up after {attempts} attempts: {chooser_error}")
        self.attempts = attempts
        self.chooser_error = chooser_error


class CommandError(HAClientError):
    """The server refused a command.

    Attributes:
        reason: The server's own words.
        detail: What exactly it refused, such as the character of a filter. Only the reference
            broker sends it; otherwise it is empty.
    """

    def __init__(self, message: str, *, reason: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message
        self.detail = detail


class BadFilter(CommandError):
    """The content filter could not be understood."""


class BadRegexTopic(CommandError):
    """The topic is a malformed regular expression."""


class InvalidTopic(CommandError):
    """The topic does not exist, or cannot do what was asked (no SOW, not in the log)."""


class NotEntitled(CommandError):
    """The user may not do this on that topic."""


class SubIdInUse(CommandError):
    """The subscription id is already active on this connection."""


class InvalidBookmark(CommandError):
    """The bookmark is malformed."""


class BookmarkNotFound(CommandError):
    """None of the bookmarks is in the server's log, and the client wanted an error."""


class InvalidOptions(CommandError):
    """The server does not support an option, or not in this combination."""


class InvalidOrderBy(CommandError):
    """The `order_by` of a query could not be understood."""


class BadSowKey(CommandError):
    """A SOW key is missing or malformed."""


class PublishFailed(CommandError):
    """The server refused one publish, or closed three connections on it.

    Attributes:
        reason: The server's own words.
        detail: What exactly it refused; see `CommandError`.
        sequence: The sequence of the refused publish; 0 without a store.
    """

    def __init__(
        self, message: str, *, reason: str = "", detail: str = "", sequence: int = 0
    ) -> None:
        super().__init__(message, reason=reason, detail=detail)
        self.sequence = sequence


class DecodeError(HAClientError):
    """The body of a message cannot be read as what its topic has.

    Its text has no part of the body, which may be secret or long: the message has the body.

    Attributes:
        topic: The topic of the message; empty where a codec was used alone.
        codec: The name of the codec.
        position: Where in the body, such as `byte 12` or `$.id`; empty where that is not known.
        reason: What is wrong there.
    """

    def __init__(self, reason: str, *, codec: str, position: str = "", topic: str = "") -> None:
        where = f" on {topic!r}" if topic else ""
        at = f" at {position}" if position else ""
        super().__init__(f"the body{where} cannot be read as {codec}: {reason}{at}")
        self.topic = topic
        self.codec = codec
        self.position = position
        self.reason = reason


class TimedOut(HAClientError, TimeoutError):
    """A wait took longer than its limit; anything accepted before stays accepted."""


class GraceExpired(TimedOut):
    """The grace period of `haclient.run` ended before the work was done."""


class SubscriptionFull(TimedOut):
    """A wait for an ack ended: it comes after more messages than the client reads ahead.

    Attributes:
        sub_id: The subscription whose queue is full; empty for the queue of the listeners.
        topic: Its topic.
    """

    def __init__(self, message: str, *, sub_id: str = "", topic: str = "") -> None:
        super().__init__(message)
        self.sub_id = sub_id
        self.topic = topic


class WouldBlock(HAClientError):
    """`publish_nowait` would have to wait for room; nothing was stored."""


_SHOWN_CHARACTERS: Final = 200  # of an exception of the application


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown name: a similar name that is known.

    Args:
        name: What was given.
        known: The known names.

    Returns:
        Such as `: did you mean 'servers'?`; empty if no name is similar.
    """
    found = get_close_matches(name, list(known), n=1)
    return f": did you mean {found[0]!r}?" if found else ""


def printable(text: str) -> str:
    """Text of a peer as one line without control characters, safe to print to a terminal.

    Args:
        text: Anything, such as the reason of a server.

    Returns:
        The same, with control characters written as escapes and line breaks as blanks.
    """
    if text.isprintable():
        return text
    line = " ".join(text.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def failure_text(error: BaseException) -> str:
    """An exception of the application for one line of a log: its class and the start of its text.

    Args:
        error: Any exception.

    Returns:
        Such as `ValueError: invalid literal for int()`; at most some 200 characters.
    """
    try:
        text = printable(str(error))
    except Exception:  # raised by its `__str__`: the class must do
        text = ""
    shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__

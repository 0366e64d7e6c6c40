"""One connection: its logon, its state and its heartbeats. Pure.

The client sends one `logon` frame and gets a `processed` ack. Status `success` carries what the
server has seen from this publisher; `retry` asks for other credentials on the same connection, at
most `MAX_ROUNDS` times; anything else is a refusal. The exchange is pure: the caller talks to the
authenticator and the wire.

`ConnectionState` is what applications see. `ConnectionStatus` is the single owner of the
connection's state. Every module that needs to know whether the client is connected, logged on, live
or stopping asks it; only `Core` and `Reconnector` change it. It has no clock and never waits.
`Counters` are what the client has done so far.

`HeartbeatTimers` decides when to send a heartbeat, and when to consider the peer dead. Both ends
promise to send *something* at least once per interval, and any traffic counts. We send a heartbeat
every interval, even if other data was sent: it is only 35 bytes, and needs no bookkeeping on the
hot path. The peer's heartbeats are not answered, because two ends that did would answer each other
forever. The peer is considered dead when it was silent for the idle limit, two intervals by
default. While we do not read the socket ourselves (a subscription is full), silence proves nothing:
the idle timer is paused, while our own heartbeats continue.
"""

from __future__ import annotations

import enum
import math
from dataclasses import KW_ONLY, dataclass
from typing import Final, cast

from haclient.errors import (
    AuthenticationError,
    DisconnectedError,
    HAClientError,
    NameInUse,
    NotEntitled,
    ProtocolError,
    TimedOut,
    UsageError,
)
from haclient.protocol.commands import command_error
from haclient.protocol.messages import Message
from haclient_stores.bookmark import EPOCH, Bookmark, parse_bookmark
from haclient_stores.checks import check_seconds, check_utf8, is_number

__all__ = ["ConnectionState", "ConnectionStatus", "Heartbeat"]

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
    """The header of a logon frame, by wire name and without empty fields.

    Raises:
        UsageError: The password, of an application's authenticator, is no text.
    """
    text = cast("object", password)
    if not isinstance(text, str):
        found = type(text).__name__
        raise UsageError(f"an authenticator gives a password or token as text, not {found}")
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


# -- the state -------------------------------------------------------------------------------------


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

    @property
    def is_logged_on(self) -> bool:
        """Whether there is a connection on which a server has accepted the logon."""
        S = ConnectionState  # noqa: N806  # a class
        return self in {S.LOGGED_ON, S.HEARTBEAT_INITIATED, S.PUBLISH_REPLAYED, S.RESUBSCRIBED}


class ClosedByClient(DisconnectedError):
    """This client has closed the connection."""


class ClosedByOwnError(DisconnectedError):
    """The connection ended with an error of this client, which is raised from its block."""


class ConnectionStatus:
    """The state of one client's connection.

    Args:
        reconnects: Whether the client reconnects automatically.

    Attributes:
        reconnects: As above. It stays true after the client has stopped; see `expects_connection`.
        state: The state last reported to the application.
        address: Host and port of the current server, or of the last one; empty before the first.
        connection: The number of the current connection, from 1 on; 0 while there is none.
        is_logged_on: Whether the server has accepted the logon: commands may be sent.
        is_live: Whether the recovery is complete, so that calls waiting for a connection continue.
        server: The server's answer to the last logon; `None` before the first.
        lost_reason: Why the last connection ended; `None` while there is one.
        failure: Why the last attempt to be live failed, or the last live connection ended; `None`
            while the client is live, and in a client that does not reconnect.
        stop_reason: Why the client will not connect again; `None` while it may.
    """

    __slots__ = (
        "_connections",
        "address",
        "connection",
        "failure",
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
        self._connections = 0  # how many there were
        self.connection = 0
        self.is_logged_on = False
        self.is_live = False
        self.server: LoggedOn | None = None
        self.lost_reason: HAClientError | None = None
        self.failure: HAClientError | None = None
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
        self._connections += 1
        self.connection = self._connections
        self.lost_reason = None

    def logged_on(self, server: LoggedOn) -> None:
        """The server has accepted the logon."""
        self.server = server
        self.is_logged_on = True

    def live(self) -> None:
        """Nothing is left to recover."""
        self.is_live = True
        self.failure = None

    def lost(self, reason: HAClientError) -> None:
        """The link has ended."""
        self.connection = 0
        self.is_logged_on = self.is_live = False
        self.lost_reason = reason

    def stop(self, reason: HAClientError) -> None:
        """No other connection follows; the first reason counts."""
        self.stop_reason = self.stop_reason or reason

    def timed_out(self, text: str) -> TimedOut:
        """The error of a wait that took too long, with the reason why there is no connection.

        Args:
            text: What was waited for, and for how long.
        """
        reason = self.failure or self.lost_reason
        if reason is None:
            return TimedOut(text)
        error = TimedOut(f"{text}; there is no connection: {reason}")
        error.__cause__ = reason
        return error

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


# -- counters ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Counters:
    """What one client has done so far, over all its connections, in numbers that only rise.

    They are raised where the work is done: once for each chunk that is read or written and once for
    each event, never once for each message.

    Attributes:
        connections: Connections that were made.
        logons: Logons that a server accepted.
        disconnections: Connections that ended.
        failed_attempts: Attempts of an `HAClient` that led to no connection, or to a server that it
            could not use.
        bytes_received: Bytes that were read.
        bytes_sent: Bytes that were written.
        frames_received: Frames that were read: messages, acks and heartbeats.
        messages_delivered: Messages that were put into the queue of a subscription.
        duplicates: Messages that a bookmark store filtered out.
        failed_writes: Publishes that the server refused.
    """

    connections: int = 0
    logons: int = 0
    disconnections: int = 0
    failed_attempts: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    frames_received: int = 0
    messages_delivered: int = 0
    duplicates: int = 0
    failed_writes: int = 0


# -- heartbeats ----------------------------------------------------------------------------------


class Due(enum.Enum):
    """Which heartbeat action is due."""

    NOTHING = enum.auto()
    BEAT = enum.auto()
    LOST = enum.auto()


MIN_HEARTBEAT_S: Final = 0.001
"""The shortest heartbeat interval, in seconds: servers count it in milliseconds."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """How often both ends send something, and how long a silence may be; times are seconds.

    Args:
        interval: The longest time between two frames of one end.
        idle_limit: Silence after which the peer is considered dead; two intervals by default.

    Raises:
        UsageError: The interval is below `MIN_HEARTBEAT_S` or without an end, or the limit is
            shorter than one interval.
    """

    interval: float
    _: KW_ONLY
    idle_limit: float | None = None

    def __post_init__(self) -> None:
        check_seconds("idle_limit", self.idle_limit, optional=True)
        if not (is_number(self.interval) and MIN_HEARTBEAT_S <= self.interval < math.inf):
            raise UsageError(
                f"heartbeat is a finite number of seconds, {MIN_HEARTBEAT_S:g} or above, not "
                f"{self.interval!r}"
            )
        if self.idle_limit is not None and not self.idle_limit >= self.interval:
            raise UsageError(
                f"the idle limit of {self.idle_limit} s is shorter than the interval of "
                f"{self.interval} s: every connection would be given up"
            )


class HeartbeatTimers:
    """The two timers of one connection; times are seconds on the caller's clock.

    Args:
        heartbeat: What was agreed on; a number is the interval.
    """

    __slots__ = ("_beat_at", "_reading", "_received_at", "idle_limit_s", "interval_s")

    def __init__(self, heartbeat: Heartbeat | float) -> None:
        agreed = heartbeat if isinstance(heartbeat, Heartbeat) else Heartbeat(heartbeat)
        self.interval_s = agreed.interval
        self.idle_limit_s = agreed.idle_limit or 2 * agreed.interval
        self._received_at = 0.0
        self._beat_at = 0.0
        self._reading = True

    @property
    def options(self) -> str:
        """The `opts` of the command that starts the server's heartbeat."""
        return f"start,{f'{self.interval_s:.6f}'.rstrip('0').rstrip('.')}"

    def start(self, now: float) -> None:
        """Start the timers of a new connection.

        Args:
            now: The current time, in seconds on the caller's clock.
        """
        self._received_at = self._beat_at = now
        self._reading = True

    def received(self, now: float) -> None:
        """Note that bytes have arrived from the peer."""
        self._received_at = now

    def beat(self, now: float) -> None:
        """Note that a heartbeat was sent."""
        self._beat_at = now

    def reading(self, now: float, *, active: bool) -> None:
        """Note that reading stops or resumes; on resuming the idle limit starts over."""
        self._reading = active
        self._received_at = now

    def silence_s(self, now: float) -> float:
        """Seconds since bytes arrived from the peer, or since reading has resumed."""
        return max(0.0, now - self._received_at)

    def next_at(self) -> float:
        """The next time at which `due` may return something other than `NOTHING`."""
        beat_at = self._beat_at + self.interval_s
        return min(beat_at, self._received_at + self.idle_limit_s) if self._reading else beat_at

    def due(self, now: float) -> Due:
        """What to do at `now`; after `BEAT` the caller sends a heartbeat and calls `beat`."""
        if self._reading and now >= self._received_at + self.idle_limit_s:
            return Due.LOST
        return Due.BEAT if now >= self._beat_at + self.interval_s else Due.NOTHING

"""The options of a client: their names, defaults and meaning, in one place.

`Client` and `HAClient` make `Settings` or `HASettings` from what they are given, and everything
below asks them. `ClientOptions` and `HAOptions` repeat the names and types for type checkers, which
cannot read keyword arguments from a dataclass; a test compares the two.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Final, Literal, TypeAlias, TypedDict

from typing_extensions import override

from haclient.errors import HAClientError, UsageError, did_you_mean
from haclient.events import EventListener
from haclient.protocol.http_upgrade import check_preflight_headers
from haclient.protocol.messages import Message
from haclient.protocol.options import Options
from haclient.servers.auth import Authenticator
from haclient.servers.chooser import AsyncServerChooser, ServerChooser, check_uris
from haclient.servers.delay import DelayStrategy
from haclient.session.connection_state import Heartbeat, HeartbeatTimers
from haclient.session.leases import DEFAULT_ACK_TIMEOUT_S
from haclient.session.recovery import policy_word
from haclient.session.resume import OVERLAP_S
from haclient.subscription_manager import SubscriptionManager
from haclient.transport.links.dial import DialOptions
from haclient.transport.message_queue import DEFAULT_CAP_BYTES, HandlerErrorPolicy, check_policy
from haclient.transport.publisher import DEFAULT_MAX_UNPERSISTED_BYTES
from haclient_stores.audit_log import AuditLog
from haclient_stores.checks import (
    check_callable,
    check_count,
    check_seconds,
    check_utf8,
    check_word,
)
from haclient_stores.interfaces import BookmarkStore, PublishStore
from haclient_stores.publish_stores.publish_log import PublishLog

__all__ = [
    "DEFAULT_LOGON_OPTIONS",
    "TIMEOUT_S",
    "ClientOptions",
    "HAOptions",
    "HASettings",
    "OnPublishGap",
    "OnRejectedFrame",
    "OnResubscribeFailure",
    "Settings",
    "seconds",
    "wall_clock",
]

DEFAULT_LOGON_OPTIONS: Final = "ack_conflation=100ms"
"""What an `HAClient` asks for at each logon: one ack for the publishes of up to 100 ms."""

TIMEOUT_S: Final = 10.0
"""How long a command may take unless the call says otherwise, in seconds."""

OnPublishGap: TypeAlias = Literal["refuse", "continue", "raise"]
"""What to do with a server that lacks what was acknowledged: try the next, continue, or give up."""

_CALLBACKS: Final = ("on_failed_write", "wire_tap", "on_event")

OnRejectedFrame: TypeAlias = Literal["raise", "park"]
"""What becomes of a publish that no server takes: end the client, or move it to a file."""

OnResubscribeFailure: TypeAlias = (
    Literal["fail", "retry", "drop"] | Callable[[str, HAClientError], str]
)
"""What becomes of a subscription that no server takes back; a callable gets its id and the error
and answers with one of the words."""


wall_clock: Final[ContextVar[Callable[[], int]]] = ContextVar(
    "wall_clock", default=lambda: time.time_ns() // 1000
)
"""Microseconds since 1970 for the tasks of this context: in a simulation each node has its own."""


def _clock_us() -> int:
    return wall_clock.get()()


def seconds(timeout: float | None) -> float:
    """A timeout of the public API as a number: `None`, no timeout, is infinite.

    Raises:
        UsageError: It is negative or no number.
    """
    check_seconds("timeout", timeout, zero=True, optional=True)
    return math.inf if timeout is None else timeout


def check_names(kind: str, options: Iterable[str], known: Collection[str]) -> None:
    """Refuse unknown keyword arguments, as Python does.

    Args:
        kind: The class that was called.
        options: The names that were given.
        known: The names of the arguments.

    Raises:
        TypeError: One is unknown.
    """
    for name in options:
        if name not in known:
            raise TypeError(f"{kind}() has no argument {name!r}{did_you_mean(name, known)}")


class ClientOptions(TypedDict, total=False):
    """The keyword arguments that both kinds of clients share, for type checkers: see `Settings`."""

    heartbeat: float | Heartbeat | None
    logon_options: str | Options
    logon_correlation_id: str
    on_failed_write: Callable[[Message, str], object] | None
    wire_tap: Callable[[str, str], object] | None
    on_event: EventListener | None
    on_handler_error: HandlerErrorPolicy
    max_queued_bytes: int
    max_unpersisted_bytes: int
    exit_timeout: float | None
    audit_log: AuditLog | None
    ack_batch_size: int | None
    ack_timeout: float
    ssl_context: SSLContext | None
    preflight_headers: Mapping[str, str] | None


class HAOptions(ClientOptions, total=False):
    """The keyword arguments of `HAClient`, for type checkers: see `HASettings`."""

    servers: Sequence[str]
    server_chooser: ServerChooser | AsyncServerChooser | None
    delay_strategy: DelayStrategy | None
    subscription_manager: SubscriptionManager | None
    connect_timeout: float
    on_publish_gap: OnPublishGap
    on_resubscribe_failure: OnResubscribeFailure
    on_rejected_frame: OnRejectedFrame
    failover_overlap: float
    progress_timeout: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of every client, which are keyword arguments, and what it is made with.

    Attributes:
        name: The client name.
        publish_store: Keeps publishes until they are persisted.
        bookmark_store: Remembers what subscriptions have finished with.
        authenticator: Of a `Client`: provides the credentials for each logon.
        clock_us: Microseconds since 1970; no option.
        heartbeat: Seconds between heartbeats, 10 for an `HAClient`; `None`, the default of a
            `Client`, for none. The server is considered dead after two of them without a sign of
            life; `Heartbeat(10, idle_limit=30)` gives another limit.
        logon_options: Options of each logon; `ack_conflation=100ms` by default for an `HAClient`.
        logon_correlation_id: Shown by the server's administration.
        on_failed_write: Called with the message and the reason when the server refuses a publish.
        wire_tap: Called with `>` (sent) or `<` (received) and the header of each frame as text, the
            password masked and without the body, where frames are read and written: it has to be
            quick. When it raises, that is logged and reported, and it is called no more.
        on_event: The first event listener, for states, lost connections, exceptions and all other
            kinds of `haclient.events`; see `add_event_listener`.
        on_handler_error: What happens when a handler raises: `"raise"` leaves the block,
            `"continue"` ignores it, `"discard"` also discards the message; a callable decides
            itself.
        max_queued_bytes: Bytes that the queue of a subscription may hold. Beyond that, the client
            pauses a bookmark subscription at the server; for any other it stops reading.
        max_unpersisted_bytes: Unpersisted bytes at which `publish` begins to wait for acks,
            connected or not.
        exit_timeout: Seconds that leaving the block waits for publishes to be persisted, before it
            warns and leaves them to the store; `None` waits for as long as it takes, 0 not at all.
        audit_log: Records each publish, ack, delivery and discard with its time, for an audit. The
            client owns it and closes it.
        ack_batch_size: How many acknowledgements of queue messages are sent together; a third of
            the backlog by default, never more than the server has granted.
        ack_timeout: Seconds that an acknowledgement waits for others, at most a tenth of a lease
            that the server names; 0 sends each at once.
        ssl_context: Certificates and trust for `tcps` servers, instead of what their URIs say
            (`ca`, `cert`, `key`, `verify`).
        preflight_headers: More headers for the HTTP upgrade that passes a proxy. Any make each
            connection begin with one, as `http_preflight=true` in a URI does.
    """

    name: str
    publish_store: PublishStore | None = None
    bookmark_store: BookmarkStore | None = None
    authenticator: Authenticator | None = None
    clock_us: Callable[[], int] = _clock_us
    heartbeat: float | Heartbeat | None = None
    logon_options: str | Options = ""
    logon_correlation_id: str = ""
    on_failed_write: Callable[[Message, str], object] | None = None
    wire_tap: Callable[[str, str], object] | None = None
    on_event: EventListener | None = None
    on_handler_error: HandlerErrorPolicy = "raise"
    max_queued_bytes: int = DEFAULT_CAP_BYTES
    max_unpersisted_bytes: int = DEFAULT_MAX_UNPERSISTED_BYTES
    exit_timeout: float | None = 5.0
    audit_log: AuditLog | None = None
    ack_batch_size: int | None = None
    ack_timeout: float = DEFAULT_ACK_TIMEOUT_S
    ssl_context: SSLContext | None = None
    preflight_headers: Mapping[str, str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Refuse what can never work, before any store is taken.

        Raises:
            UsageError: A value cannot be.
        """
        for name in _CALLBACKS:
            check_callable(name, getattr(self, name))
        self.new_heartbeat()
        if not isinstance(self.logon_options, Options):
            check_utf8("logon_options", self.logon_options)
        check_utf8("logon_correlation_id", self.logon_correlation_id)
        check_preflight_headers(self.preflight_headers)
        check_policy(self.on_handler_error)
        check_seconds("exit_timeout", self.exit_timeout, zero=True, optional=True)
        check_count("max_queued_bytes", self.max_queued_bytes)
        check_count("max_unpersisted_bytes", self.max_unpersisted_bytes, 1)
        check_count("ack_batch_size", self.ack_batch_size, 1, optional=True)
        check_seconds("ack_timeout", self.ack_timeout, zero=True, endless=False)

    @property
    def overlap_s(self) -> float:
        """How long before the last data received the replay on another server starts."""
        return OVERLAP_S

    def drops(self, sub_id: str, error: HAClientError) -> bool:  # noqa: ARG002  # see `HASettings`
        """Whether a subscription that the server has ended with an error ends without raising."""
        return False

    @property
    def dial_options(self) -> DialOptions:
        """What every connection of the client begins with."""
        return DialOptions(
            ssl_context=self.ssl_context, preflight_headers=dict(self.preflight_headers or {})
        )

    def new_heartbeat(self) -> HeartbeatTimers | None:
        """The timers of one connection, if heartbeats are wanted."""
        return None if self.heartbeat is None else HeartbeatTimers(self.heartbeat)


@dataclass(frozen=True, slots=True, kw_only=True)
class HASettings(Settings):
    """The options of `HAClient`: those of every client, and these.

    Attributes:
        servers: Connection strings, best first; or give a `server_chooser`.
        server_chooser: Chooses the server of each attempt.
        delay_strategy: Decides the waits between attempts; exponential by default.
        subscription_manager: Remembers which subscriptions to send again after a lost connection,
            or in the next process (`FileSubscriptionManager`).
        connect_timeout: Seconds for each step of an attempt: connecting, the logon, the heartbeat,
            the answer to each subscription that is sent again. For that the time does not run while
            the server still takes or persists the publishes before it.
        on_publish_gap: What to do with a server that lacks acknowledged messages: try the
            next one (`"refuse"`), continue (`"continue"`), or end the client (`"raise"`).
        on_resubscribe_failure: What happens to a subscription that no server accepts again. Each
            server is asked once; when one refuses it again, `"fail"` ends the block with the error,
            `"drop"` ends this subscription with it, `"retry"` tries again for as long as the delay
            strategy allows. A callable gets id and error and answers with one of these.
        on_rejected_frame: What happens to a publish with which three connections in a row were
            closed, since it is above the limit of the server: `"raise"` ends the block with
            `PublishFailed`, and the publish stays in the store; `"park"` moves it to a file beside
            the store, which `haclient store` shows and drops. `on_failed_write` is called either
            way.
        failover_overlap: After a fail-over, replay starts this many seconds before the last data
            received. Must exceed clock skew plus replication lag.
        progress_timeout: Reconnect when a bookmark subscription has received neither a message nor
            a persisted ack for this many seconds, although the connection is alive and the
            subscription is not held back. Choose more than the longest silence of its topics;
            `None`, the default, for no limit.
    """

    heartbeat: float | Heartbeat | None = 10.0
    logon_options: str | Options = DEFAULT_LOGON_OPTIONS
    servers: Sequence[str] = ()
    server_chooser: ServerChooser | AsyncServerChooser | None = None
    delay_strategy: DelayStrategy | None = None
    subscription_manager: SubscriptionManager | None = None
    connect_timeout: float = TIMEOUT_S
    on_publish_gap: OnPublishGap = "refuse"
    on_resubscribe_failure: OnResubscribeFailure = "fail"
    on_rejected_frame: OnRejectedFrame = "raise"
    failover_overlap: float = OVERLAP_S
    progress_timeout: float | None = None

    @override
    def __post_init__(self) -> None:
        """Refuse what can never work, before any store is taken.

        Raises:
            UsageError: A value cannot be, or two contradict each other.
        """
        Settings.__post_init__(self)  # `super()` does not work in a dataclass with slots
        check_uris("servers", self.servers)
        if bool(self.servers) == (self.server_chooser is not None):
            raise UsageError("give either servers=[...] or a server_chooser")
        check_word("on_publish_gap", self.on_publish_gap, ("refuse", "continue", "raise"))
        words = "fail", "retry", "drop"
        check_word("on_resubscribe_failure", self.on_resubscribe_failure, words, function=True)
        check_seconds("connect_timeout", self.connect_timeout)
        check_seconds("failover_overlap", self.failover_overlap, zero=True, endless=False)
        check_seconds("progress_timeout", self.progress_timeout, endless=False, optional=True)
        check_word("on_rejected_frame", self.on_rejected_frame, ("raise", "park"))
        store = self.publish_store
        has_files = isinstance(store, PublishLog) and store.path is not None
        if self.on_rejected_frame == "park" and not has_files:
            raise UsageError(
                "on_rejected_frame='park' moves a publish to a file beside its store: give a "
                "publish_store with a path, such as FilePublishStore"
            )
        if isinstance(store, PublishLog) and store.error_on_publish_gap and not self.refuses_gaps:
            raise UsageError(
                "on_publish_gap='continue' goes on where error_on_publish_gap=True of the publish "
                "store says stop: give one of the two"
            )

    @property
    @override
    def overlap_s(self) -> float:
        return self.failover_overlap

    @override
    def drops(self, sub_id: str, error: HAClientError) -> bool:
        return policy_word(self.on_resubscribe_failure, sub_id, error) == "drop"

    @property
    def refuses_gaps(self) -> bool:
        """Whether a server that lacks what was acknowledged is left."""
        return self.on_publish_gap != "continue"

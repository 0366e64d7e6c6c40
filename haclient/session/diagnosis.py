"""What lost connections and silence mean, where no server says it. Pure.

**Another client with the same name.** Of two connections with one name, a server keeps the newer
one. Some servers send `name in use` to the older one; others only close it. Then both clients
reconnect again and again, each displacing the other, and a publisher loses messages: sequence
numbers are counted by name, so the server drops as duplicates what one client publishes with lower
numbers than the other has used.

A publisher has proof. Its numbers are above every number that a server has seen from it, so a later
logon ack with a higher one proves that another client has published meanwhile. A subscriber only
sees a pattern, live connections that are closed soon, and that may have another cause.

**A publish that no server takes.** A server that does not take a frame, such as one above its
limit, gives no answer: it closes the connection as soon as it has read the length. A client that
keeps what is not persisted sends the same frame on the next connection, and nothing behind it ever
arrives.

A server that fails for another reason looks the same. So before the last try the client sends
nothing for a while: a server that closes this connection, too, does it for another reason.

**A bookmark subscription that the server has forgotten**, while the connection is alive.
Heartbeats prove that a server is alive, not that it still sends messages. A bookmark subscription
receives messages, or persisted acks where the log grows without any message for it. If neither
arrives for longer than the application expects, the client leaves the connection, and the recovery
resubscribes at the recovery points: received messages are filtered, missed ones are replayed.

Only the application knows how quiet its topics may be. So this is off by default, and the limit of
a subscription doubles each time that a new connection brings no progress either.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from haclient.errors import (
    DisconnectedError,
    HAClientError,
    NameInUse,
    PublishFailed,
    SubscriptionStalled,
)
from haclient.protocol.codec import MessageDecoder
from haclient.protocol.framing import FrameReader
from haclient.protocol.messages import Message
from haclient.session.connection_state import LoggedOn
from haclient.session.publishes import Publishes
from haclient.session.recovery import Recovery
from haclient.session.subscriptions import Subscription

_SHORT_S: Final = 60.0  # a connection lasts less while two clients displace each other
_IN_A_ROW: Final = 3


class NameConflicts:
    """The signs that one client has seen of another client with its name."""

    __slots__ = ("_closed", "_highest", "_servers")

    def __init__(self) -> None:
        self._servers: set[str] = set()  # addresses that it has logged on to
        self._highest = 0  # sequence that any of them has seen; this client numbers above it
        self._closed = 0  # short connections in a row

    def note_logon(self, server: str, *, seen: int | None, highest: int) -> bool:
        """Note a logon; return whether another client has published under the name meanwhile.

        The first logon to a server proves nothing: the server may know numbers of an earlier
        process.

        Args:
            server: The address of the server.
            seen: The highest sequence that the server has seen; `None` if it does not say.
            highest: The highest sequence that this client has used.
        """
        is_known = server in self._servers
        self._servers.add(server)
        before, self._highest = self._highest, max(self._highest, seen or 0)
        return is_known and seen is not None and seen > max(before, highest)

    def check(
        self, name: str, address: str, server: LoggedOn, publishes: Publishes
    ) -> NameInUse | None:
        """Note a logon; the error that ends the client if another one publishes under its name.

        This has to come before the store is reconciled, which would trim it to what the other
        client has published.

        Args:
            name: The client name.
            address: The address of the server.
            server: Its answer to the logon.
            publishes: What this client has published.
        """
        highest = publishes.highest
        if not self.note_logon(address, seen=server.seen, highest=highest) or not highest:
            return None
        return NameInUse(
            f"another client publishes as {name!r}: the server has seen sequence {server.seen}, "
            f"this client has used {highest} at most. Its publishes that are not persisted: "
            f"{publishes.log.unpersisted_count}; under this name the server drops them as "
            "duplicates. Give each client a name of its own"
        )

    def note_closed(self, lived_s: float) -> bool:
        """Note that a connection was closed.

        Args:
            lived_s: How long it was live, in seconds.

        Returns:
            Whether a warning is due: once for each series of short connections.
        """
        self._closed = self._closed + 1 if lived_s < _SHORT_S else 0
        return self._closed == _IN_A_ROW


# -- a publish that no server takes ----------------------------------------------------------------


MAX_LOSSES: Final = 3
"""Connections in a row that are lost with the same publish in flight before it is rejected."""

QUIET_S: Final = 1.0
"""How long the last of these connections has to last before the publish is sent, in seconds."""

_SOON_S: Final = 5.0  # after the publishes begin: one that rejects a frame closes at once
_SMALL_BYTES: Final = 16 * 1024  # no server has so low a limit


class RejectedFrames:
    """Counts the losses of connections with the same publish in flight."""

    __slots__ = ("_losses", "_sequence")

    def __init__(self) -> None:
        self._sequence = 0
        self._losses = 0

    def judge(
        self, state: Recovery, error: HAClientError, publishes: Publishes, *, after_s: float
    ) -> Message | None:
        """Whether a publish that no server takes has ended a connection; return it with the reason.

        Args:
            state: In which state it has ended.
            error: Why.
            publishes: What was sent.
            after_s: How long before that the client began to send publishes, in seconds.
        """
        is_sending = state in {Recovery.RESUBSCRIBING, Recovery.LIVE}
        if not is_sending or type(error) is not DisconnectedError:  # a subclass has another reason
            return None
        sequence, frame = publishes.first_in_flight()
        self.note_loss(sequence, len(frame), after_s=after_s)
        return rejected_publish(frame) if self.is_rejected else None

    def note_loss(self, sequence: int, size: int, *, after_s: float) -> None:
        """Note that a server has closed a connection on which publishes were sent.

        Args:
            sequence: The first that it has not acknowledged; 0 if there is none.
            size: The size of its frame, in bytes.
            after_s: How long before that the client began to send publishes, in seconds.
        """
        is_suspicious = sequence and size >= _SMALL_BYTES and after_s <= _SOON_S
        before = self._losses if sequence == self._sequence else 0
        self._sequence, self._losses = sequence, before + 1 if is_suspicious else 0

    def suspects(self, sequence: int) -> bool:
        """Whether one more loss rejects this publish: wait for `QUIET_S` before it is sent."""
        return sequence == self._sequence and self._losses == MAX_LOSSES - 1

    @property
    def is_rejected(self) -> bool:
        """Whether no server takes the publish."""
        return self._losses >= MAX_LOSSES


def rejected_publish(frame: bytes) -> Message:
    """The publish in a rejected frame, with the reason why it is rejected."""
    (message,) = MessageDecoder(expand_sow=False).decode(*FrameReader().feed(frame))
    message.reason = (
        f"{MAX_LOSSES} connections in a row were closed when it was sent (topic {message.topic!r}, "
        f"{len(frame)} bytes): it is probably above the limit of the server"
    )
    return message


def rejection(message: Message) -> PublishFailed:
    """The error that ends a client whose publish is rejected."""
    return PublishFailed(
        f"publish {message.sequence} is not accepted: {message.reason}; it stays in the store: "
        "raise the limit of the server, or give on_rejected_frame='park'",
        reason=message.reason,
        sequence=message.sequence or 0,
    )


# -- a subscription that the server has forgotten --------------------------------------------------


_CHECKS: Final = 4  # per timeout: a stall is detected a quarter of it late at most
_MAX_FACTOR: Final = 64  # of the longest timeout over the configured one

_Progress: TypeAlias = tuple[str, str, bool]  # last message, last persisted ack, end of the replay


@dataclass(slots=True)
class _Watched:
    """The progress of one subscription.

    Attributes:
        progress: What it has received last.
        since: When that arrived, or when the connection began.
        limit_s: How long it may be without progress.
        received_before_stall: The last message and persisted ack before the last stall.
    """

    progress: _Progress
    since: float
    limit_s: float
    received_before_stall: tuple[str, str] | None = None


class SilenceWatch:
    """The subscriptions of one client, on one connection after the other.

    Args:
        timeout_s: How long a subscription may be without progress, in seconds.

    Attributes:
        check_every_s: How often `check` has to be called.
    """

    def __init__(self, timeout_s: float) -> None:
        self.check_every_s = timeout_s / _CHECKS
        self._timeout_s = timeout_s
        self._watched: dict[Subscription, _Watched] = {}  # an id may be used again

    def begin(self, now: float) -> None:
        """A connection is live from now on."""
        for watched in self._watched.values():
            watched.since = now

    def check(
        self, subscriptions: Iterable[Subscription], now: float, *, is_reading: bool
    ) -> SubscriptionStalled | None:
        """The error of a subscription that has received nothing for too long, if there is one.

        Args:
            subscriptions: Those that are watched.
            now: The current time.
            is_reading: Whether the client reads: else silence proves nothing.
        """
        before, self._watched = self._watched, {}
        stalled: SubscriptionStalled | None = None
        for subscription in subscriptions:
            progress = _progress_of(subscription)
            watched = before.get(subscription) or _Watched(progress, now, self._timeout_s)
            self._watched[subscription] = watched
            if progress != watched.progress or not (is_reading and _is_due(subscription)):
                watched.progress, watched.since = progress, now
                if progress[:2] != watched.received_before_stall:
                    watched.limit_s = self._timeout_s
            elif now - watched.since >= watched.limit_s:
                stalled = _error(subscription, now - watched.since)
                self._note_stalled(watched)
        return stalled

    def _note_stalled(self, watched: _Watched) -> None:
        received = watched.progress[:2]
        if received == watched.received_before_stall:
            watched.limit_s = min(2 * watched.limit_s, _MAX_FACTOR * self._timeout_s)
        watched.received_before_stall = received


def _progress_of(subscription: Subscription) -> _Progress:
    position = subscription.position
    return position.last_bookmark, position.last_persisted, position.is_complete


def _is_due(subscription: Subscription) -> bool:
    """Whether it should receive something: it is not held back, and its replay has not ended."""
    request = subscription.request
    if not request.bookmark or subscription.is_of_queue:
        return False
    if subscription.is_paused or subscription.is_paused_by_client:
        return False
    has_end = request.bookmark.endswith((")", "]"))
    return not (has_end and subscription.position.is_complete)


def _error(subscription: Subscription, for_s: float) -> SubscriptionStalled:
    request = subscription.request
    topic = request.fields.get("t", "")
    return SubscriptionStalled(
        f"subscription {subscription.sub_id!r} on {topic!r} has received neither a message nor a "
        f"persisted ack for {round(for_s, 1):g} s, while the connection is alive",
        sub_id=subscription.sub_id,
    )

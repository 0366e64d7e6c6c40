"""Detects bookmark subscriptions that a server has forgotten, while the connection is alive.

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

from haclient.errors import SubscriptionStalled
from haclient.session.subscriptions import Subscription

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

"""Who gets which message (protocol 2.5).

A *subscription* here is anything that receives messages for one command: a subscribe, a query,
both. The server names the receivers of a publish in `sids`, of a query's records in `query_id`, of
an ack in `cid`. The router keeps one table from those ids to subscriptions and remembers each
`sids` text it has taken apart, since the same few texts come with every message.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Protocol

from haclient.errors import HAClientError, SubIdInUse
from haclient.protocol.messages import Message, MessageOwner
from haclient.session.resuming import Whereabouts
from haclient_stores.interfaces import SubscriptionLog

__all__ = ["Marker", "Phase", "Router", "Sink", "Subscription"]

_REMEMBERED_ROUTES = 1024  # distinct `sids` texts; more than any client has subscriptions


class Marker(enum.Enum):
    """What stands between messages in a subscription's queue."""

    CAUGHT_UP = enum.auto()  # the query or the replay is complete: what follows is live
    GAP = enum.auto()  # the connection was lost here: messages may be missing
    ENDED = enum.auto()  # nothing follows


class Phase(enum.Enum):
    """How far a subscription is."""

    OPENING = enum.auto()  # whoever opens it has yet to hear that the server has accepted it
    OPEN = enum.auto()
    LOST = enum.auto()  # the connection was lost first: it has to be opened anew


class Sink(Protocol):
    """Where a subscription's messages go; it never waits and never refuses."""

    def put(self, batch: list[Message], size: int) -> None:
        """Messages in order, about `size` bytes together."""

    def mark(self, marker: Marker) -> None:
        """A point in the order of messages."""

    def fail(self, error: HAClientError) -> None:
        """The server has ended the subscription by an error, after it had accepted it."""


class Subscription:
    """One command's receiver.

    Attributes:
        sub_id: The id that its messages show, and that `unsubscribe` takes.
        command_id: The id of its command, which some acks carry alone.
        log: The bookmark store's memory of it; `None` when nothing is to be remembered.
        owner: Where `discard` of its messages goes; the log itself unless told otherwise.
        phase: How far it is.
        accepted: Called once, when the server accepts the command and before its first message.
        user_acks: Ack types that the user asked for, delivered like messages.
        ends_after: What has still to arrive before it is over; always empty for those that last
            until `unsubscribe`.
        markers: Whether `group_begin` and `group_end` are delivered like messages.
        whereabouts: How far it has got on the link.
    """

    __slots__ = (
        "accepted",
        "command_id",
        "ends_after",
        "finite",
        "log",
        "markers",
        "owner",
        "phase",
        "query_id",
        "sink",
        "sub_id",
        "user_acks",
        "whereabouts",
    )

    def __init__(  # noqa: PLR0913  # the parts of one entry, all by keyword
        self,
        sub_id: str,
        sink: Sink,
        *,
        command_id: str = "",
        query_id: str = "",
        log: SubscriptionLog | None = None,
        owner: MessageOwner | None = None,
        accepted: Callable[[], None] | None = None,
        user_acks: frozenset[str] = frozenset(),
        ends_after: frozenset[str] = frozenset(),
        markers: bool = False,
    ) -> None:
        self.sub_id = sub_id
        self.command_id = command_id
        self.query_id = query_id
        self.sink = sink
        self.log = log
        self.owner = owner or log
        self.accepted = accepted
        self.user_acks = user_acks
        self.ends_after = set(ends_after)
        self.finite = bool(ends_after)
        self.markers = markers
        self.phase = Phase.OPENING
        self.whereabouts = Whereabouts()

    def saw(self, what: str) -> bool:
        """`what` (an ack type or `group_end`) has arrived; whether that was the last thing."""
        self.ends_after.discard(what)
        return self.finite and not self.ends_after


class Router:
    """The table from ids to subscriptions of one connection."""

    __slots__ = ("_by_command", "_by_id", "_routes")

    def __init__(self) -> None:
        self._by_id: dict[str, Subscription] = {}
        self._by_command: dict[str, Subscription] = {}
        self._routes: dict[str, tuple[Subscription, ...]] = {}

    def all(self) -> list[Subscription]:
        """Every subscription once, in the order of entry."""
        return list(dict.fromkeys(self._by_id.values()))

    def get(self, one_id: str) -> Subscription | None:
        """The subscription that is entered under this id."""
        return self._by_id.get(one_id)

    def of_ack(self, command_id: str, query_id: str, sub_id: str) -> Subscription | None:
        """Whom an ack concerns: its command first, then its query, then its subscription."""
        return (
            self._by_command.get(command_id) or self._by_id.get(query_id) or self._by_id.get(sub_id)
        )

    def add(self, subscription: Subscription) -> None:
        """Enter it before its command is sent, so that its first message finds it.

        Raises:
            SubIdInUse: Another one of this connection has the same id (protocol 3.15).
        """
        ids = _ids(subscription)
        self.check_free(ids)
        for one_id in ids:
            self._by_id[one_id] = subscription
        if subscription.command_id:
            self._by_command[subscription.command_id] = subscription
        self._routes.clear()

    def check_free(self, ids: Iterable[str]) -> None:
        """Look whether these ids may be used.

        Raises:
            SubIdInUse: Another subscription of this connection has one of them (protocol 3.15).
        """
        for one_id in ids:
            if one_id in self._by_id:
                raise SubIdInUse(
                    f"the subscription id {one_id!r} is active on this connection: unsubscribe "
                    "it first, or choose another id"
                )

    def remove(self, subscription: Subscription) -> None:
        """Late messages for it are nobody's; removing it again does nothing."""
        for one_id in _ids(subscription):
            if self._by_id.get(one_id) is subscription:
                del self._by_id[one_id]
        if self._by_command.get(subscription.command_id) is subscription:
            del self._by_command[subscription.command_id]
        self._routes.clear()

    def route(self, ids: str) -> tuple[Subscription, ...]:
        """The receivers named by a `sids` text: ids joined by commas, blanks allowed."""
        found = self._routes.get(ids)
        if found is None:
            named = (self._by_id.get(one_id.strip()) for one_id in ids.split(","))
            found = tuple(dict.fromkeys(one for one in named if one is not None))
            if len(self._routes) >= _REMEMBERED_ROUTES:
                self._routes.clear()
            self._routes[ids] = found
        return found


def _ids(subscription: Subscription) -> tuple[str, ...]:
    """Its ids without repetition, in a fixed order."""
    return tuple(dict.fromkeys((subscription.sub_id, subscription.query_id or subscription.sub_id)))

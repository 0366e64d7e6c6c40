"""Reports of a client about itself: log records with fields, and events for listeners.

Both are created here. A log record is for people: it has a sentence, and the fields `client`,
`uri`, `sub_id` and `attempt` to filter by. An event is for programs: it has a name and values, and
is created only while there are listeners.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

from typing_extensions import override

from haclient.protocol.uri import Uri
from haclient.transport.events import Events
from haclient_stores.logs import SafeLogger

EventName: TypeAlias = Literal[
    "connected",
    "logged_on",
    "connection_lost",
    "attempt_failed",
    "publishes_replayed",
    "publishes_persisted",
    "publish_refused",
    "resubscribed",
    "subscription_ended",
    "subscription_stalled",
    "subscription_paused",
    "subscription_resumed",
    "duplicates_dropped",
    "recovery_point_moved",
    "store_pruned",
]
"""The names of the events; later versions may add some."""

EVENT_NAMES: Final[frozenset[str]] = frozenset(get_args(EventName))

EVENT: Final = "event"
"""The key of the event listeners among the callbacks of a client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientEvent:
    """Something that has happened to a client.

    Attributes:
        name: What has happened; see docs/observability.md for what each name means.
        at_us: When, in microseconds since 1970.
        client: The name of the client.
        uri: The server in use or tried last, without its password; empty before the first one.
        sub_id: The subscription that the event concerns, if any.
        attempt: The number of the connection attempt, from 1 on, if the event concerns one.
        count: The number of messages or publishes that the event concerns.
        sequence: The highest sequence number of the publishes that the event concerns.
        bookmark: The recovery point, for `recovery_point_moved`.
        error: The reason of a failure.
    """

    name: EventName
    at_us: int
    client: str
    uri: str = ""
    sub_id: str = ""
    attempt: int = 0
    count: int = 0
    sequence: int = 0
    bookmark: str = ""
    error: Exception | None = None


EventListener: TypeAlias = Callable[[ClientEvent], object]
"""Called with each event of a client; a plain function or a coroutine function."""


class Reporter:
    """Creates the log records and the events of one client.

    Args:
        client_name: Its name.
        clock_us: The time in microseconds since 1970.
        events: The callbacks of the application.

    Attributes:
        uri: The server in use or tried last.
        log: The logger `haclient.client`, whose records have the fields of this client.
    """

    def __init__(self, client_name: str, clock_us: Callable[[], int], events: Events) -> None:
        self.client_name = client_name
        self.uri: Uri | None = None
        self.clock_us = clock_us
        self.log = ClientLogger(self)
        self._events = events

    @property
    def has_listeners(self) -> bool:
        """Whether there are event listeners."""
        return EVENT in self._events

    def event(  # noqa: PLR0913  # the values of one event, all by keyword
        self,
        name: EventName,
        *,
        sub_id: str = "",
        attempt: int = 0,
        count: int = 0,
        sequence: int = 0,
        bookmark: str = "",
        error: Exception | None = None,
    ) -> None:
        """Report an event to the listeners, if there are any; see `ClientEvent` for the values."""
        if not self.has_listeners:
            return
        event = ClientEvent(
            name=name,
            at_us=self.clock_us(),
            client=self.client_name,
            uri=self.safe_uri,
            sub_id=sub_id,
            attempt=attempt,
            count=count,
            sequence=sequence,
            bookmark=bookmark,
            error=error,
        )
        self._events.emit(EVENT, event)

    @property
    def safe_uri(self) -> str:
        """The server in use or tried last, without its password."""
        return "" if self.uri is None else self.uri.safe


class ClientLogger(SafeLogger):
    """Adds `client`, `uri`, `sub_id` and `attempt` to each record; empty or 0 where unknown.

    `sub_id` and `attempt` are given as `extra=`.
    """

    def __init__(self, reporter: Reporter) -> None:
        super().__init__(logging.getLogger("haclient.client"))
        self._reporter = reporter

    @override
    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        fields: dict[str, object] = {"sub_id": "", "attempt": 0, **(kwargs.get("extra") or {})}
        fields |= {"client": self._reporter.client_name, "uri": self._reporter.safe_uri}
        return msg, {**kwargs, "extra": fields}

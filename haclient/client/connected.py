"""The life of a client, what it can be asked, and who is told what happens to it."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import NoReturn, Self

from typing_extensions import override

from haclient.errors import UsageError
from haclient.events import Event, EventListener
from haclient.observability.health import Health, health_of
from haclient.observability.metrics import ClientMetrics, metrics_of
from haclient.observability.recovery_explanation import RecoveryExplanation, explain_recovery
from haclient.observability.report import report
from haclient.session.connection_state import ConnectionState
from haclient.transport.core import Core
from haclient.transport.open_clients import OpenClients, open_clients
from haclient_stores.checks import check_utf8
from haclient_stores.interfaces import BookmarkStore, PublishStore


class ConnectedClient:
    """The life of a client, and what it says of itself.

    Args:
        core: Its connection and its collaborators.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._open_clients: OpenClients | None = None  # of the `haclient.run` around this client

    @override
    def __reduce__(self) -> NoReturn:
        name = type(self).__qualname__
        raise TypeError(f"a {name} owns its connection: make another instead of a copy")

    # -- life ---------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self._core.enter()
        self._open_clients = open_clients.get()
        if self._open_clients is not None:
            self._open_clients.entered(self._core)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._core.leave(kind, error, traceback)
        finally:
            if self._open_clients is not None:
                self._open_clients.left(self._core)

    async def disconnect(self) -> None:
        """Close the connection; what the stores keep stays kept. The client may connect again."""
        await self._core.disconnect()

    def __enter__(self) -> NoReturn:
        """Refuse `with`: `haclient.blocking` has the clients for it."""
        kind = type(self).__name__
        raise UsageError(
            f"{kind} is entered by `async with`, in a trio program: for `with` use "
            f"haclient.blocking.{kind}"
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # pragma: no cover  # `with` looks for it before it enters
        pass

    @property
    def name(self) -> str:
        """The client name."""
        return self._core.name

    @property
    def state(self) -> ConnectionState:
        """How far the connection is."""
        return self._core.status.state

    @property
    def persisted_sequence(self) -> int | None:
        """The highest sequence of this client's name that the server has reported as persisted.

        It comes from the last logon and rises with each persisted ack. A `Client` that numbers its
        publishes itself continues above it after a lost connection. `None` before the first logon,
        and for a server that does not report it: nothing is known to be persisted then.
        """
        return self._core.publisher.publishes.persisted

    @property
    def publish_store(self) -> PublishStore | None:
        """The publish store that this client was made with."""
        return self._core.publisher.store

    @property
    def bookmark_store(self) -> BookmarkStore | None:
        """The bookmark store that this client was made with."""
        return self._core.settings.bookmark_store

    @property
    def unpersisted_count(self) -> int:
        """Publishes that are not persisted yet."""
        return self._core.publisher.log.unpersisted_count

    # -- facts ---------------------------------------------------------------

    @property
    def uri(self) -> str:
        """The connection string in use, or used last, without its password; empty before that."""
        uri = self._core.uri
        return "" if uri is None else uri.safe

    @property
    def connection_info(self) -> Mapping[str, str]:
        """Facts about the connection as text, for a log or a support request; no password.

        The keys are `client_name`, `state`, `uri`, `user`, `peer` (the address that is connected),
        `message_type`, `server_version` as the server writes it, and `seen_sequence`: the highest
        sequence of this client's name that the server had seen at the last logon. What lies above
        `persisted_sequence` may be missing on a synchronous replica, and may be published again.
        What is not known is empty. Others may be added.
        """
        core = self._core
        uri, seen = core.uri, core.publisher.publishes.seen
        return {
            "client_name": core.name,
            "state": str(core.status.state),
            "uri": self.uri,
            "user": "" if uri is None else uri.user,
            "peer": "" if core.connection is None else core.connection.link.peer,
            "message_type": "" if uri is None else uri.message_type,
            "server_version": core.status.server_version,
            "seen_sequence": "" if seen is None else str(seen),
        }

    @property
    def metrics(self) -> ClientMetrics:
        """Counters and gauges of this client, as they are now.

        Reading them costs time for each subscription, not for each message. From another thread it
        is a `UsageError` while the client runs.
        """
        if self._core.entered:
            self._core.thread.check("metrics")
        return metrics_of(self._core)

    def health(self) -> Health:
        """Whether the client works: for a liveness and a readiness probe, with the reasons.

        Returns:
            `is_alive`: not, once the client was left or has given up, so that only a restart helps.
            `is_ready`: whether it is connected and has recovered everything.

        Raises:
            UsageError: The call comes from another thread while the client is open.
        """
        self._check_thread("health")
        return health_of(self._core)

    def explain_recovery(self, sub_id: str) -> RecoveryExplanation:
        """What a subscription would ask for if its connection were lost now, and why.

        It changes nothing. It takes time for each queued message and, once, for what the store
        tracks: it is for people who look for the reason of a replay, not for a metric.

        Args:
            sub_id: The id of the subscription.

        Returns:
            The bookmarks for the same server and for another one, the reason, and the counts of
            messages; `str()` gives a readable text.

        Raises:
            UsageError: There is no such subscription, or the call comes from another thread.
        """
        self._core.thread.check("explain_recovery")
        check_utf8("sub_id", sub_id)
        return explain_recovery(self._core, sub_id)

    def report(self) -> str:
        """Describe this client as text, for a log or a support request.

        The text has state, server, health, the last errors, stores, metrics, each subscription with
        the bookmark at which it would resume, and the last frames. It contains topics and filters,
        but no bodies and no passwords.

        Returns:
            Several lines.

        Raises:
            UsageError: The call comes from another thread while the client is open.
        """
        self._check_thread("report")
        return report(self._core)

    def _check_thread(self, what: str) -> None:
        if self._core.entered:  # after its end its thread may have ended, too
            self._core.thread.check(what)

    def add_event_listener(self, listener: EventListener, *kinds: type[Event]) -> None:
        """Call `listener` with each event of this client from now on.

        Events are what happens to states, connections, publishes and subscriptions, such as
        `ConnectionLost` with the error; `haclient.events` has all kinds. One task calls the
        listeners, in order, off the reading task: they may issue commands and wait for them. When
        they fall too far behind, the client stops reading meanwhile.

        Args:
            listener: A plain function or a coroutine function that takes an `Event`. An error that
                it raises is logged and reported as `ExceptionRaised`.
            kinds: The kinds that it gets; all but `MessagesReceived` if none is named.

        Raises:
            UsageError: It was added before, or the call comes from another thread.
        """
        self._core.thread.check_setting("add_event_listener")
        self._core.reporter.add(listener, kinds)
        self._core.session.tap = self._core.reporter.tap

    def remove_event_listener(self, listener: EventListener) -> None:
        """Stop calling `listener`, even with earlier events that it has not received yet.

        Args:
            listener: A listener that was added.

        Raises:
            UsageError: It was never added, or the call comes from another thread.
        """
        self._core.thread.check_setting("remove_event_listener")
        self._core.reporter.remove(listener)
        self._core.session.tap = self._core.reporter.tap

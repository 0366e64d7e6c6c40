"""Takes snapshots of a client from any thread, and never waits for long.

Exporters have threads of their own, and a client is used by one thread. A client is therefore read
in its thread, through trio; that of a client of `haclient.blocking` or `haclient.aio` is known, so
such a client may be given anywhere. An exporter must neither fail nor hang because a client does: a
client that has ended, for whatever reason, or whose event loop is held up, has no snapshot.
"""

from __future__ import annotations

from abc import abstractmethod
from concurrent.futures import Future
from typing import Final, Protocol, cast

import trio

from haclient.errors import UsageError
from haclient.observability.health import Health
from haclient.observability.instruments import ClientSnapshot
from haclient.observability.metrics import ClientMetrics
from haclient_stores.logs import logger_of

__all__ = ["MeasuredClient"]

ANSWER_LIMIT_S: Final = 2.0
"""How long an exporter waits for a client, in seconds; less than a scrape may take."""

_logger = logger_of(__name__)


class MeasuredClient(Protocol):
    """A client of any kind: of trio, blocking, or for asyncio."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The client name."""

    @property
    @abstractmethod
    def metrics(self) -> ClientMetrics:
        """Its snapshot."""

    @abstractmethod
    def health(self) -> Health:
        """Its health."""


class _ClientThread(Protocol):
    """The thread of a client that does not run on the caller's trio."""

    @property
    @abstractmethod
    def token(self) -> trio.lowlevel.TrioToken | None:
        """The trio run in it; `None` if that was not started in this process."""


class _Bridge(Protocol):
    """What a blocking client, or one for asyncio, has as its `__bridge__`."""

    @property
    @abstractmethod
    def inner(self) -> MeasuredClient:
        """Its client of trio."""

    @property
    @abstractmethod
    def thread(self) -> _ClientThread:
        """The thread of that."""


class SnapshotReader:
    """Reads one client.

    Args:
        client: The client. One of trio has to be given inside its trio program.
        answer_limit: How many seconds a thread waits for it.

    Attributes:
        client_name: Its name.

    Raises:
        UsageError: It is a client of trio, and this is no trio program.
    """

    def __init__(self, client: MeasuredClient, *, answer_limit: float = ANSWER_LIMIT_S) -> None:
        self._client = client
        self._answer_limit = answer_limit
        self._token: trio.lowlevel.TrioToken | None = None
        bridge = cast("_Bridge | None", getattr(client, "__bridge__", None))
        self._thread = None if bridge is None else bridge.thread
        if bridge is not None:
            self._client = bridge.inner  # it may be read as one of trio in its thread
        elif trio.lowlevel.in_trio_run():
            self._token = trio.lowlevel.current_trio_token()
        else:
            raise UsageError(
                f"client {client.name} runs on trio: give it to the exporter inside trio.run, or "
                "use a client of haclient.blocking"
            )
        self.client_name = self._client.name

    def read(self) -> ClientSnapshot:
        """The client at this moment; without a snapshot if it does not answer in time."""
        try:
            return self._read()
        except Exception as error:  # one client must not hide the others from an exporter
            why = str(error) or type(error).__name__
            _logger.debug("client %s is not measured: %s", self.client_name, why)
            return ClientSnapshot(None, None)

    def _read(self) -> ClientSnapshot:
        token = self._token if self._thread is None else self._thread.token
        if token is None:
            raise UsageError("it was not opened in this process")
        if trio.lowlevel.in_trio_run() and trio.lowlevel.current_trio_token() is token:
            return self._snapshot()
        answer: Future[ClientSnapshot] = Future()

        def reply() -> None:
            try:
                answer.set_result(self._snapshot())
            except Exception as error:  # raised in the thread that waits for it
                answer.set_exception(error)

        token.run_sync_soon(reply)
        return answer.result(self._answer_limit)

    def _snapshot(self) -> ClientSnapshot:
        return ClientSnapshot(self._client.metrics, self._client.health())

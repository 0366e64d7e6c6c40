"""A cluster in a thread of its own, for tests that do not run on trio.

::

    with ClusterThread("broker") as broker:
        ...                                 # plain or asyncio clients connect to broker.uri
        broker.apply(Cut())                 # in force when this returns

The brokers run in the process of the test, under trio in a thread. Clients of any kind reach them
over TCP, through the same proxies as those of a `Cluster`, so every fault but a kill at a point can
be applied.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Literal, Self, TypeVar

import trio

from haclient.errors import TimedOut, UsageError
from haclient_fake_server.config import BrokerConfig
from haclient_fake_server.testing.cluster import Cluster
from haclient_fake_server.testing.faults import Fault

__all__ = ["ClusterThread"]

T = TypeVar("T")

LIMIT_S: Final = 300.0
"""How long the start of the brokers may take, also on a machine with much other work."""


class ClusterThread:
    """Brokers that run while the `with` block does; every method may block for a moment.

    Args:
        names: The brokers' instance names, one or more.
        mode: How they replicate.
        config: Everything else; see `Cluster`.

    Raises:
        UsageError: The names are refused; see `Cluster`.
    """

    def __init__(
        self,
        *names: str,
        mode: Literal["sync", "async"] = "sync",
        config: BrokerConfig | None = None,
    ) -> None:
        self._cluster = Cluster(*names, mode=mode, config=config)
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._stopped = trio.Event()
        self._thread = threading.Thread(target=self._run, name="haclient-cluster", daemon=True)

    def __enter__(self) -> Self:
        """Start all brokers; returns when they listen.

        Raises:
            UsageError: The configuration of a broker is refused.
            HAClientError: A broker did not start.
            TimedOut: They do not listen after five minutes.
        """
        self._thread.start()
        if not self._ready.wait(LIMIT_S):
            raise TimedOut(f"brokers in a thread: they do not listen after {LIMIT_S:g} s")
        if self._error is not None:
            raise self._error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End all brokers and connections.

        Raises:
            HAClientError: A broker has failed meanwhile.
        """
        if self._token is not None:
            self._token.run_sync_soon(self._stopped.set)
        self._thread.join(LIMIT_S)
        if self._error is not None and error is None:
            raise self._error

    @property
    def uris(self) -> list[str]:
        """The addresses for clients, in the order of the names; the same after restarts."""
        return self._cluster.uris

    @property
    def uri(self) -> str:
        """The first of `uris`."""
        return self._cluster.uri

    def apply(self, *faults: Fault) -> None:
        """Apply faults, one after the other; they are in force when this returns.

        Args:
            faults: What goes wrong, or is undone; see `Cluster.apply`.

        Raises:
            UsageError: One of them is not a fault or names an unknown broker, or this is a test
                that runs on trio.
            HAClientError: A broker did not start again.
        """

        async def apply() -> None:
            await self._cluster.apply(*faults)

        trio.from_thread.run(apply, trio_token=self._own_token())

    def is_running(self, name: str) -> bool:
        """Whether a broker runs.

        Raises:
            UsageError: There is no such broker.
        """
        return self._call(lambda: self._cluster.is_running(name))

    def _call(self, function: Callable[[], T]) -> T:
        return trio.from_thread.run_sync(function, trio_token=self._own_token())

    def _own_token(self) -> trio.lowlevel.TrioToken:
        """The trio token of the brokers' thread; raises where a call would block a trio run."""
        if trio.lowlevel.in_trio_run():
            # It would block the test's own event loop; tests under trio use a `Cluster`.
            raise UsageError("brokers in a thread are for tests without trio: use a Cluster here")
        if self._token is None:
            raise UsageError("brokers in a thread: wanted a call inside their `with` block")
        return self._token

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:  # a thread's top: the test's thread raises it
            self._error = error
        finally:
            self._token = None
            self._ready.set()

    async def _serve(self) -> None:
        async with self._cluster:
            self._token = trio.lowlevel.current_trio_token()
            self._ready.set()
            await self._stopped.wait()

"""The one place where the command line builds a client.

A command describes its needs as a `ConnectionRequest` and gets an `HAClient` that is logged on. Two
limits make sure that no command hangs:

* *before the first connection*, each server is tried once, in the order given and without a pause,
  so that a mistyped address is reported at once;
* *after that*, the client looks for a lost connection on all servers until `give_up_after_s` has
  passed.

If a server reports that the client name is in use, both end at once: another attempt would compete
with the other client for the name.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from typing_extensions import override

from haclient.cli.options import logon_options
from haclient.cli.termination import hidden_warnings, one_line, print_error
from haclient.client import HAClient
from haclient.errors import NameInUse, ReconnectGaveUp
from haclient.options import OnPublishGap
from haclient.protocol.messages import Message
from haclient.protocol.uri import Uri
from haclient.servers.auth import Authenticator
from haclient.servers.chooser import ConnectionInfo, DefaultServerChooser, ServerChooser
from haclient.servers.delay import DelayStrategy, ExponentialDelayStrategy
from haclient.stores import BookmarkStore, PublishStore

CONNECT_TIMEOUT_S = 10.0
"""How long one server may take to answer, in seconds, without `--timeout`."""

GIVE_UP_AFTER_S = 30.0
"""How long to try to reconnect, in seconds, without `--timeout`."""

HEARTBEAT_S = 10.0
"""Seconds between heartbeats; a server is considered dead after two intervals without data."""

_LONGEST_WAIT_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionRequest:
    """The connection parameters of a command.

    Attributes:
        servers: URIs, best first.
        name: The client name; by default host and process id, unique while this process lives.
        timeout_s: Limit for connecting and logging on, for each server, in seconds.
        give_up_after_s: How long the client tries to reconnect, in seconds.
        publish_store: The client takes ownership and closes it.
        bookmark_store: The same.
        on_publish_gap: What to do with a server that has lost acknowledged messages.
        on_failed_write: Called with each publish that the server refused, and its reason.
        logon_options: By default those of the command that is being carried out.
    """

    servers: tuple[str, ...]
    name: str | None
    timeout_s: float | None = None
    give_up_after_s: float | None = None
    publish_store: PublishStore | None = None
    bookmark_store: BookmarkStore | None = None
    on_publish_gap: OnPublishGap = "refuse"
    on_failed_write: Callable[[Message, str], object] | None = None
    logon_options: str = field(default_factory=logon_options)


class _Sweep(ServerChooser):
    """Servers in order: each once until the client is connected, then in rotation.

    Attributes:
        is_connected: The client was entered, and has a connection to lose.
        refused: The error of a server at which the client name is in use, if any.
    """

    def __init__(self, servers: tuple[str, ...]) -> None:
        self._ring = DefaultServerChooser(servers)
        self._count = len(servers)
        self._failures: list[tuple[str, Exception]] = []
        self.is_connected = False
        self.refused: Exception | None = None

    @override
    def current_uri(self) -> str:
        was_swept = not self.is_connected and len(self._failures) >= self._count
        return "" if was_swept or self.refused is not None else self._ring.current_uri()

    @override
    def current_authenticator(self) -> Authenticator:
        return self._ring.current_authenticator()

    @override
    def report_success(self, info: ConnectionInfo) -> None:
        self._ring.report_success(info)

    @override
    def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
        self._ring.report_failure(error, info)
        if isinstance(error, NameInUse):
            self.refused = error
        if not self.is_connected or self.refused is not None:
            self._failures.append((Uri.parse(info["uri"]).safe, error))
        if not self.is_connected and self.refused is None and len(self._failures) < self._count:
            told = one_line(self._with_server(error))
            following = Uri.parse(self._ring.current_uri()).safe
            print_error(f"{told}; trying {following} now", kind="warning")

    @override
    def error(self) -> str:
        if self.is_connected:
            return self._ring.error()
        return "; ".join(
            str(failure) if uri in str(failure) else f"{uri}: {failure}"
            for uri, failure in self._failures
        )

    def _with_server(self, error: Exception) -> Exception:
        """The error, with a note that names the server."""
        uri = next((uri for uri, failure in self._failures if failure is error), "")
        if uri and uri not in str(error):
            error.add_note(f"server {uri}")
        return error

    def verdict(self, error: ReconnectGaveUp) -> Exception:
        """The error to print: that of the only server, or one that names the errors of all."""
        if self.refused is not None:
            return self._with_server(self.refused)
        if not self.is_connected and len(self._failures) == 1:
            return self._with_server(self._failures[0][1])
        return error


class _Delay(DelayStrategy):
    """No delay in the first sweep; then an exponential one, up to a limit in time."""

    def __init__(self, sweep: _Sweep, give_up_after_s: float) -> None:
        self._sweep = sweep
        self._growing = ExponentialDelayStrategy(
            initial=0.1, maximum=_LONGEST_WAIT_S, give_up_after=give_up_after_s
        )

    @override
    def delay_for(self, uri: str, now: float) -> float:
        return self._growing.delay_for(uri, now) if self._sweep.is_connected else 0.0

    @override
    def reset(self) -> None:
        self._growing.reset()


@asynccontextmanager
async def open_client(connection: ConnectionRequest) -> AsyncGenerator[HAClient]:
    """A client that is logged on to the first server that answers, and stays connected.

    Raises:
        AuthenticationError: The only server, or each one, refused user or password.
        NameInUse: The client name belongs to the connection of another client.
        DisconnectedError: No server could be reached, or none could be reached again in time.
        TimedOut: The only server did not answer in time.
        PublishGap: The only server has lost messages that it had acknowledged.
    """
    sweep = _Sweep(connection.servers)
    client = HAClient(
        connection.name or f"haclient-{socket.gethostname()}-{os.getpid()}",
        server_chooser=sweep,
        delay_strategy=_Delay(sweep, connection.give_up_after_s or GIVE_UP_AFTER_S),
        publish_store=connection.publish_store,
        bookmark_store=connection.bookmark_store,
        on_failed_write=connection.on_failed_write,
        on_publish_gap=connection.on_publish_gap,
        connect_timeout=connection.timeout_s or CONNECT_TIMEOUT_S,
        heartbeat=HEARTBEAT_S,
        logon_options=connection.logon_options,
    )
    # Each failure of the first sweep ends up in the error, or in our own warning.
    hidden = hidden_warnings(
        "haclient.client",
        r"client .+?: attempt \d+ at \S+ failed",
        while_=lambda: not sweep.is_connected,
    )
    try:
        with hidden:
            async with client:
                sweep.is_connected = True
                yield client
    except ReconnectGaveUp as error:
        verdict = sweep.verdict(error)
        if verdict is error:  # an error must not become its own cause
            raise
        raise verdict from verdict.__cause__ or error  # such as the refusal of a logon

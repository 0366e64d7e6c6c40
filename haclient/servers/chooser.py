"""Server choosers: which server is tried next.

The client asks its chooser before each attempt and reports each result to it. A chooser belongs to
one client, never calls it and never waits. An empty URI means that there is no server to try;
`error` says why.

A chooser that has to wait for something is an `AsyncServerChooser`. One that wants the client to
leave a server that works, for a better one, is a `MovingServerChooser`: the client checks the
servers that it names, reports what it finds, and asks whether to move.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping
from typing import Protocol, runtime_checkable

from typing_extensions import override

from haclient.errors import UsageError
from haclient.protocol.uri import Uri
from haclient.servers.auth import Authenticator, DefaultAuthenticator
from haclient_stores.checks import check_count

__all__ = [
    "AsyncServerChooser",
    "ConnectionInfo",
    "DefaultServerChooser",
    "FailureCountServerChooser",
    "MovingServerChooser",
    "ServerChooser",
]

ConnectionInfo = Mapping[str, str]
"""What is known of an attempt: `uri` (without its password), `client_name`, `server_version`."""


class ServerChooser(Protocol):
    """Chooses the server of the next attempt."""

    @abstractmethod
    def current_uri(self) -> str:
        """The server to try now; empty when there is none.

        Returns:
            A connection string, or an empty one: that ends the client with `ReconnectGaveUp`.
        """

    @abstractmethod
    def current_authenticator(self) -> Authenticator:
        """The authenticator for that server; asked on each attempt.

        Returns:
            An authenticator; `DefaultAuthenticator` sends the password of the URI.
        """

    @abstractmethod
    def report_success(self, info: ConnectionInfo) -> None:
        """Note that the attempt led to a logon.

        When the connection is lost before it was live for 5 seconds, `report_failure` follows.

        Args:
            info: What is known of the attempt.
        """

    @abstractmethod
    def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
        """Note that the attempt failed, the server was unfit, or its connection did not last.

        Args:
            error: Why.
            info: What is known of the attempt.
        """

    @abstractmethod
    def error(self) -> str:
        """Why there is no server to try.

        Returns:
            One line for people to read; it must not contain a password.
        """


class AsyncServerChooser(Protocol):
    """A chooser whose answers may take a while, such as one that asks a name service.

    The members are those of `ServerChooser`. The client ends with `ReconnectGaveUp` when an answer
    takes longer than 60 seconds or raises an error of `haclient.errors`; before a planned move it
    stays where it is.
    """

    @abstractmethod
    async def current_uri(self) -> str:
        """The server to try now; empty when there is none. See `ServerChooser.current_uri`."""

    @abstractmethod
    def current_authenticator(self) -> Authenticator | Awaitable[Authenticator]:
        """The authenticator for that server; this may be a coroutine, too."""

    @abstractmethod
    def report_success(self, info: ConnectionInfo) -> None:
        """Note that the attempt led to a logon. See `ServerChooser.report_success`."""

    @abstractmethod
    def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
        """Note that the attempt failed. See `ServerChooser.report_failure`."""

    @abstractmethod
    def error(self) -> str:
        """Why there is no server to try, in one line without a password."""


@runtime_checkable
class MovingServerChooser(Protocol):
    """What a chooser also has when it may move a client whose connection works.

    Its `report_success` is called after `HAClient.move_to`, too, with the server that it led to.

    Attributes:
        check_every: Seconds between two rounds of checks while the client is live.
    """

    check_every: float

    @abstractmethod
    def to_check(self) -> list[tuple[str, Authenticator]]:
        """The servers to log on to now, for a check, with their authenticators."""

    @abstractmethod
    def report_check(self, uri: str, error: Exception | None, now: float) -> None:
        """Note the result of a check.

        Args:
            uri: The server.
            error: Why it failed; `None` when the server has accepted a logon.
            now: Seconds on a clock that only rises.
        """

    @abstractmethod
    def is_move_due(self, now: float) -> bool | Awaitable[bool]:
        """Whether the client is to move.

        It then waits until its server has what was sent to it, and calls `report_move`; or it stays
        where it is, because that fails or the connection is lost.

        Args:
            now: Seconds on a clock that only rises.
        """

    @abstractmethod
    def report_move(self) -> None:
        """Note that the client leaves its server: from now on `current_uri` is where to."""


def check_uris(name: str, uris: object) -> None:
    """Refuse what is not a list of connection strings, such as a single one.

    Raises:
        UsageError: It is not a list. The value is not shown, since it may have a password.
    """
    if isinstance(uris, str | bytes) or not isinstance(uris, Iterable):
        raise UsageError(f"{name} is a list of connection strings: {name}=[...]")


class DefaultServerChooser(ServerChooser):
    """Servers in order: stay after a success, move on after a failure.

    After a lost connection the server that was connected last is tried first.

    Args:
        uris: The servers, best first.

    Raises:
        UsageError: A URI is wrong.
    """

    def __init__(self, uris: Iterable[str] = ()) -> None:
        self._servers: list[tuple[str, Authenticator]] = []
        self._current = 0
        self._last_error = ""
        check_uris("uris", uris)
        for uri in uris:
            self.add(uri)

    def add(self, uri: str, authenticator: Authenticator | None = None) -> None:
        """Append a server.

        Args:
            uri: Its connection string.
            authenticator: Its own authenticator; by default the URI's password is sent.

        Raises:
            UsageError: The URI is wrong.
        """
        Uri.parse(uri)
        self._servers.append((uri, authenticator or DefaultAuthenticator()))

    def remove(self, uri: str) -> None:
        """Remove a server. A connection to it continues until it is lost.

        Args:
            uri: The connection string that it was added with.

        Raises:
            UsageError: It is not one of the servers.
        """
        known = [each for each, _ in self._servers]
        if uri not in known:
            raise UsageError(f"{Uri.parse(uri).safe} is not one of this chooser's servers")
        index = known.index(uri)
        del self._servers[index]
        if index < self._current:
            self._current -= 1
        self._current = self._current % len(self._servers) if self._servers else 0

    @override
    def current_uri(self) -> str:
        return self._servers[self._current][0] if self._servers else ""

    @override
    def current_authenticator(self) -> Authenticator:
        return self._servers[self._current][1] if self._servers else DefaultAuthenticator()

    @override
    def report_success(self, info: ConnectionInfo) -> None:
        self._last_error = ""

    @override
    def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
        self._last_error = str(error)
        if self._servers and self._is_current(info.get("uri", "")):
            self._current = (self._current + 1) % len(self._servers)

    def _is_current(self, tried: str) -> bool:
        """Whether the current server was tried: that one may have been removed since."""
        uri, _ = self._servers[self._current]
        return tried in {"", uri, Uri.parse(uri).safe}

    @override
    def error(self) -> str:
        if not self._servers:
            return "no servers configured: give servers=[...] or add one to the chooser"
        return self._last_error or "no server was tried yet"


class FailureCountServerChooser(DefaultServerChooser):
    """Servers in order, skipping those that failed too often in a row.

    A server is skipped once it has failed more than `limit` times in a row, until all of them have:
    then none is skipped any more, and all are tried in order. The delay strategy decides how long
    that lasts. A success counts only if the resulting connection does not end in a failure report.

    Args:
        uris: The servers, best first.
        limit: Failures in a row after which a server is still tried.
        ends: Whether the client ends when all have failed too often, instead of trying all again.

    Raises:
        UsageError: A URI is wrong, or the limit is negative.
    """

    def __init__(self, uris: Iterable[str] = (), *, limit: int = 5, ends: bool = False) -> None:
        check_count("limit", limit)
        self._limit = limit
        self._ends = ends
        self._failures = Counter[str]()
        self._succeeded = False  # and no failure was reported since
        super().__init__(uris)

    @override
    def current_uri(self) -> str:
        uri = super().current_uri()
        if self._succeeded:
            # The client asks again without having reported a failure: the success was a lasting
            # one. A server that logs us on and cuts the connection at once must not be cleared.
            self._succeeded = False
            del self._failures[uri]
        return "" if self._ends and self._all_failed() else uri

    def _all_failed(self) -> bool:
        return all(self._failures[uri] > self._limit for uri, _ in self._servers)

    @override
    def report_success(self, info: ConnectionInfo) -> None:
        self._succeeded = True
        super().report_success(info)

    @override
    def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
        self._succeeded = False
        self._failures[super().current_uri()] += 1
        self._move_on(error, info)

    def report_refusal(self, error: Exception, info: ConnectionInfo) -> None:
        """Move on from a server that was not tried, since others report it as unfit.

        A refusal counts as a failure, except with `ends`, where only failed attempts may end the
        client.

        Args:
            error: Why it was refused.
            info: The server.
        """
        if self._ends:
            self._move_on(error, info)
        else:
            self.report_failure(error, info)

    def _move_on(self, error: Exception, info: ConnectionInfo) -> None:
        super().report_failure(error, info)
        if not self._all_failed():
            while self._failures[super().current_uri()] > self._limit:
                super().report_failure(error, {})  # skipped, not tried

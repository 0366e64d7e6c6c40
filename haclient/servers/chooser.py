"""Server choosers: which server is tried next.

The client asks its chooser before each attempt and reports each result to it. A chooser belongs to
one client, never calls it and never waits. An empty URI means that there is no server to try;
`error` says why.

A chooser that has to wait for something is an `AsyncServerChooser`. One that wants the client to
leave a server that works, for a better one, is a `MovingServerChooser`: the client checks the
servers that it names, reports what it finds, and asks whether to move. A *planned move* loses
nothing: the client first waits until the server has what was sent to it, then continues at the
other one as after any lost connection.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping
from typing import Final, Protocol, cast, runtime_checkable

from typing_extensions import override

from haclient.errors import UsageError
from haclient.protocol.uri import Uri
from haclient.servers.auth import Authenticator, DefaultAuthenticator
from haclient_stores.checks import check_count, check_seconds, is_number

__all__ = [
    "AsyncServerChooser",
    "ConnectionInfo",
    "DefaultServerChooser",
    "FailureCountServerChooser",
    "MovingServerChooser",
    "PriorityServerChooser",
    "RandomServerChooser",
    "ServerChooser",
]

MAX_WEIGHT: Final = 1e9
"""The sum over any number of servers is finite."""

MAX_WAIT_FACTOR: Final = 16
"""How much longer, at most, a server that fails after moves is watched."""

MIN_WAIT_S: Final = 5.0
"""What is multiplied for such a server, if `healthy_for` is less, in seconds."""

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
        """Note that the client leaves its server: from now on `current_uri` names the new one."""


def check_uris(name: str, uris: object) -> None:
    """Refuse what is not a list of connection strings, such as a single one.

    Raises:
        UsageError: It is not a list. The value is not shown, since it may have a password.
    """
    if isinstance(uris, str | bytes) or not isinstance(uris, Iterable):
        raise UsageError(f"{name} is a list of connection strings: {name}=[...]")


def _weights_of(servers: Iterable[str] | Mapping[str, float]) -> Mapping[str, float]:
    if isinstance(servers, Mapping):
        return cast("Mapping[str, float]", servers)
    return dict.fromkeys(servers, 1.0)


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
        self._succeeded = False  # and no failure was reported since
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

    @property
    def _uri(self) -> str:
        return self._servers[self._current][0] if self._servers else ""

    @override
    def current_uri(self) -> str:
        if self._succeeded:
            # The client asks again without having reported a failure: the success was a lasting
            # one. A server that logs us on and cuts the connection at once is none.
            self._succeeded = False
            self._connection_lasted(self._uri)
        return self._uri

    def _connection_lasted(self, uri: str) -> None:
        """The connection to this server lasted, and a server is looked for again."""

    @override
    def current_authenticator(self) -> Authenticator:
        return self._servers[self._current][1] if self._servers else DefaultAuthenticator()

    @override
    def report_success(self, info: ConnectionInfo) -> None:
        self._last_error = ""
        self._succeeded = True

    @override
    def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
        self._last_error = str(error)
        self._succeeded = False
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
        super().__init__(uris)

    @override
    def current_uri(self) -> str:
        uri = super().current_uri()
        return "" if self._ends and self._all_failed() else uri

    @override
    def _connection_lasted(self, uri: str) -> None:
        del self._failures[uri]

    def _all_failed(self) -> bool:
        return all(self._failures[uri] > self._limit for uri, _ in self._servers)

    @override
    def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
        self._failures[self._uri] += 1
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
            while self._failures[self._uri] > self._limit:
                super().report_failure(error, {})  # skipped, not tried


class RandomServerChooser(DefaultServerChooser):
    """Servers in a random order, so that clients spread over them.

    Each sweep is a new order, in which every server comes once. A server of weight 3 is the first
    one three times as often as a server of weight 1. After a success the client stays, and after a
    lost connection the server that was connected last is tried first.

    Args:
        servers: The servers, or a mapping from each server to its weight.
        source: The random number generator; pass a seeded one for repeatable runs.

    Raises:
        UsageError: A URI is wrong, or a weight is not above 0 or exceeds `MAX_WEIGHT`.
    """

    def __init__(
        self,
        servers: Iterable[str] | Mapping[str, float] = (),
        *,
        source: random.Random | None = None,
    ) -> None:
        self._random = source or random.Random()  # noqa: S311  # spreads load, keeps no secret
        self._weights: dict[str, float] = {}
        self._is_shuffled = False  # in this sweep
        super().__init__()
        check_uris("servers", servers)
        for uri, weight in _weights_of(servers).items():
            self.add(uri, weight=weight)

    @override
    def add(
        self, uri: str, authenticator: Authenticator | None = None, *, weight: float = 1.0
    ) -> None:
        """Add a server; it is the last one of the sweep that has begun.

        Args:
            uri: Its connection string.
            authenticator: Its own authenticator; by default the URI's password is sent.
            weight: How often it comes first, compared with the others.

        Raises:
            UsageError: The URI is wrong, or the weight is not above 0 or exceeds `MAX_WEIGHT`.
        """
        safe = Uri.parse(uri).safe
        if not is_number(weight) or not 0 < weight <= MAX_WEIGHT:
            raise UsageError(
                f"the weight of {safe} is a number above 0 and at most {MAX_WEIGHT:g}, "
                f"not {weight!r}"
            )
        if uri in self._weights:
            self.remove(uri)
        super().add(uri, authenticator)
        self._weights[uri] = weight

    @override
    def remove(self, uri: str) -> None:
        super().remove(uri)
        del self._weights[uri]

    @override
    def current_uri(self) -> str:
        if not self._is_shuffled:
            self._shuffle()
        return super().current_uri()

    def _shuffle(self) -> None:
        """Draw an order by weight, without replacement."""
        left, self._servers = self._servers, []
        while left:
            weights = [self._weights[uri] for uri, _ in left]
            (index,) = self._random.choices(range(len(left)), weights)
            self._servers.append(left.pop(index))
        self._is_shuffled = bool(self._servers)

    @override
    def current_authenticator(self) -> Authenticator:
        self.current_uri()
        return super().current_authenticator()

    @override
    def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
        super().report_failure(error, info)
        self._is_shuffled = self._current > 0  # else all were tried


class PriorityServerChooser(DefaultServerChooser, MovingServerChooser):
    """Servers in order, and back to a better one once it has been healthy for a while.

    After a failure the next server is tried, after a lost connection the one that was connected
    last. While the client is live with another server than the first, it logs on to each better
    server every `check_every` seconds, as another client, and logs off. A server is
    healthy while each of these logons succeeds: a process that hangs, or is still recovering its
    log, accepts a TCP connection, but no logon. After `healthy_for` seconds without a failure the
    client moves to the best such server.

    If the server fails within 5 seconds of the move, it has to be healthy for twice as long before
    the next one, and at least 10 seconds; then for four times as long, and at most 16 times.

    Like every chooser it belongs to one client.

    Args:
        uris: The servers, best first.
        healthy_for: Seconds for which a better server has to be healthy before the client moves.
        check_every: Seconds between two checks.
        spread: Up to so many seconds are added by chance to `healthy_for`, so that the clients of a
            server do not all move at the same time.
        source: The random number generator; pass a seeded one for repeatable runs.

    Raises:
        UsageError: A URI is wrong, or a time cannot be.
    """

    def __init__(  # the settings by keyword
        self,
        uris: Iterable[str] = (),
        *,
        healthy_for: float = 30.0,
        check_every: float = 5.0,
        spread: float = 0.0,
        source: random.Random | None = None,
    ) -> None:
        check_seconds("healthy_for", healthy_for, zero=True, endless=False)
        check_seconds("check_every", check_every, endless=False)
        check_seconds("spread", spread, zero=True, endless=False)
        self.check_every = check_every
        self._healthy_for_s = healthy_for
        generator = source or random.Random()  # noqa: S311  # spreads load, keeps no secret
        self._extra_s = generator.uniform(0.0, spread)
        self._target = ""  # of the move that is due
        self._healthy_since: dict[str, float] = {}
        self._factor: dict[str, int] = {}
        self._moved_to = ""  # until the result is known
        super().__init__(uris)

    @override
    def _connection_lasted(self, uri: str) -> None:
        self._moved_to = ""
        self._factor.pop(uri, None)

    @override
    def report_success(self, info: ConnectionInfo) -> None:
        uri = info.get("uri", "")
        if self._servers and not self._is_current(uri):  # `HAClient.move_to` has led elsewhere
            known = [Uri.parse(each).safe for each, _ in self._servers]
            self._current = known.index(uri) if uri in known else self._current
        super().report_success(info)
        self._healthy_since.clear()

    @override
    def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
        uri = self._uri
        if uri and uri == self._moved_to:
            self._factor[uri] = min(2 * self._factor.get(uri, 1), MAX_WAIT_FACTOR)
        self._moved_to = ""
        self._healthy_since.clear()
        super().report_failure(error, info)

    @override
    def to_check(self) -> list[tuple[str, Authenticator]]:
        return self._servers[: self._current]

    @override
    def report_check(self, uri: str, error: Exception | None, now: float) -> None:
        if error is None:
            self._healthy_since.setdefault(uri, now)
        else:
            self._healthy_since.pop(uri, None)

    @override
    def is_move_due(self, now: float) -> bool:
        for uri, _ in self.to_check():
            since = self._healthy_since.get(uri)
            if since is not None and now - since >= self._needed_s(uri):
                self._target = uri
                self._healthy_since.clear()  # if the client stays all the same, it starts anew
                return True
        return False

    def _needed_s(self, uri: str) -> float:
        """For how long a server has to be healthy."""
        factor = self._factor.get(uri, 1)
        least_s = MIN_WAIT_S if factor > 1 else 0.0
        return max(self._healthy_for_s, least_s) * factor + self._extra_s

    @override
    def report_move(self) -> None:
        self.current_uri()  # the client leaves a connection that did not fail
        known = [uri for uri, _ in self._servers]
        if self._target in known:  # else it was removed since
            self._current, self._moved_to = known.index(self._target), self._target
        self._target = ""

"""A server chooser that prefers the first servers, and returns to them.

It decides from what it is told, and on a clock that it is given. The client carries out the checks:
see `MovingServerChooser`. A *planned move* loses nothing: the client first waits until the server
has what was sent to it, then continues at the other one as after any lost connection.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final

from typing_extensions import override

from haclient.auth import Authenticator, DefaultAuthenticator
from haclient.chooser import ConnectionInfo, MovingServerChooser, ServerChooser
from haclient.errors import UsageError
from haclient.protocol.uri import Uri

__all__ = ["PriorityServerChooser"]

MAX_WAIT_FACTOR: Final = 16
"""How much longer than `healthy_for`, at most, a server that fails after moves is watched."""


class PriorityServerChooser(ServerChooser, MovingServerChooser):
    """Servers in order, and back to a better one once it has been healthy for a while.

    After a failure the next server is tried, after a lost connection the one that was connected
    last. While the client is live with another server than the first, it logs on to each better
    server every `check_every` seconds, under the name `NAME-check`, and logs off. A server is
    healthy while each of these logons succeeds: a process that hangs, or is still recovering its
    log, accepts a TCP connection, but no logon. After `healthy_for` seconds without a failure the
    client moves to the best such server.

    If the server fails within 5 seconds of the move, it has to be healthy for twice as long before
    the next one, at most 16 times as long.

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
        if not (healthy_for >= 0 and check_every > 0 and spread >= 0):
            raise UsageError(
                "healthy_for and spread are seconds from 0 on, check_every more than 0; found "
                f"{healthy_for!r}, {spread!r} and {check_every!r}"
            )
        self.check_every = check_every
        self._healthy_for_s = healthy_for
        generator = source or random.Random()  # noqa: S311  # spreads load, keeps no secret
        self._extra_s = generator.uniform(0.0, spread)
        self._servers: list[tuple[str, Authenticator]] = []
        self._current = 0
        self._target: int | None = None  # of a move that is due, until the next attempt
        self._healthy_since: dict[str, float] = {}
        self._factor: dict[str, int] = {}
        self._moved_to = ""  # until the result is known
        self._succeeded = False  # and no failure was reported since
        self._last_error = ""
        for uri in uris:
            self.add(uri)

    def add(self, uri: str, authenticator: Authenticator | None = None) -> None:
        """Append a server, the least preferred so far.

        Args:
            uri: Its connection string.
            authenticator: Its own authenticator; by default the URI's password is sent.

        Raises:
            UsageError: The URI is wrong.
        """
        Uri.parse(uri)
        self._servers.append((uri, authenticator or DefaultAuthenticator()))

    @override
    def current_uri(self) -> str:
        if self._target is not None:  # the client has left, or lost, the server that it had
            self._current, self._target = self._target, None
            self._moved_to, self._succeeded = self._servers[self._current][0], False
        uri = self._servers[self._current][0] if self._servers else ""
        if self._succeeded:  # asked again without a failure: the last connection was a lasting one
            self._succeeded, self._moved_to = False, ""
            self._factor.pop(uri, None)
        return uri

    @override
    def current_authenticator(self) -> Authenticator:
        return self._servers[self._current][1] if self._servers else DefaultAuthenticator()

    @override
    def report_success(self, info: ConnectionInfo) -> None:
        self._last_error = ""
        self._succeeded = True
        self._healthy_since.clear()

    @override
    def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
        self._last_error = str(error)
        self._succeeded = False
        uri = self.current_uri()
        if uri and uri == self._moved_to:
            self._factor[uri] = min(2 * self._factor.get(uri, 1), MAX_WAIT_FACTOR)
        self._moved_to = ""
        self._healthy_since.clear()
        if self._servers:
            self._current = (self._current + 1) % len(self._servers)

    @override
    def error(self) -> str:
        if not self._servers:
            return "no servers configured: give some to the chooser"
        return self._last_error or "no server was tried yet"

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
        for index, (uri, _) in enumerate(self._servers[: self._current]):
            since = self._healthy_since.get(uri)
            factor, needed_s = self._factor.get(uri, 1), self._healthy_for_s
            if factor > 1:  # of 0 seconds, too
                needed_s = max(needed_s, self.check_every) * factor
            needed_s += self._extra_s
            if since is not None and now - since >= needed_s:
                self._target = index
                self._healthy_since.clear()  # if the client stays all the same, it starts anew
                return True
        return False

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

from haclient.protocol.uri import Uri
from haclient.servers.auth import Authenticator
from haclient.servers.chooser import ConnectionInfo, DefaultServerChooser, MovingServerChooser
from haclient_stores.checks import check_seconds

__all__ = ["PriorityServerChooser"]

MAX_WAIT_FACTOR: Final = 16
"""How much longer, at most, a server that fails after moves is watched."""

MIN_WAIT_S: Final = 5.0
"""What is multiplied for such a server, if `healthy_for` is less, in seconds."""


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
        self._succeeded = False  # and no failure was reported since
        super().__init__(uris)

    @override
    def current_uri(self) -> str:
        uri = super().current_uri()
        if self._succeeded:  # asked again without a failure: the last connection was a lasting one
            self._succeeded, self._moved_to = False, ""
            self._factor.pop(uri, None)
        return uri

    @override
    def report_success(self, info: ConnectionInfo) -> None:
        uri = info.get("uri", "")
        if self._servers and not self._is_current(uri):  # `HAClient.move_to` has led elsewhere
            known = [Uri.parse(each).safe for each, _ in self._servers]
            self._current = known.index(uri) if uri in known else self._current
        super().report_success(info)
        self._succeeded = True
        self._healthy_since.clear()

    @override
    def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
        self._succeeded = False
        uri = self.current_uri()
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

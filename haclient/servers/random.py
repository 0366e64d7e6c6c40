"""A server chooser that spreads clients over servers by chance.

It decides as the others do, from what it is told (`haclient.servers.chooser`); but it needs a
random number generator, and the pure modules have none.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Final, cast

from typing_extensions import override

from haclient.errors import UsageError
from haclient.protocol.uri import Uri
from haclient.servers.auth import Authenticator, DefaultAuthenticator
from haclient.servers.chooser import ConnectionInfo, ServerChooser, check_uris
from haclient_stores.checks import is_number

__all__ = ["RandomServerChooser"]

MAX_WEIGHT: Final = 1e9
"""Of any number of servers the sum is finite."""


class RandomServerChooser(ServerChooser):
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
        self._servers: dict[str, tuple[float, Authenticator]] = {}
        self._sweep: list[str] = []
        self._last_error = ""
        check_uris("servers", servers)
        if isinstance(servers, Mapping):
            for uri, weight in cast("Mapping[str, float]", servers).items():
                self.add(uri, weight=weight)
        else:
            for uri in servers:
                self.add(uri)

    def add(
        self, uri: str, authenticator: Authenticator | None = None, *, weight: float = 1.0
    ) -> None:
        """Add a server; it takes part from the next sweep on.

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
        self._servers[uri] = (weight, authenticator or DefaultAuthenticator())

    @override
    def current_uri(self) -> str:
        if not self._sweep:
            self._sweep = self._new_sweep()
        return self._sweep[0] if self._sweep else ""

    def _new_sweep(self) -> list[str]:
        """All servers in an order drawn by weight, without replacement."""
        left, order = {uri: weight for uri, (weight, _) in self._servers.items()}, list[str]()
        while left:
            (uri,) = self._random.choices(list(left), list(left.values()))
            del left[uri]
            order.append(uri)
        return order

    @override
    def current_authenticator(self) -> Authenticator:
        uri = self.current_uri()
        return self._servers[uri][1] if uri else DefaultAuthenticator()

    @override
    def report_success(self, info: ConnectionInfo) -> None:
        self._last_error = ""

    @override
    def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
        self._last_error = str(error)
        del self._sweep[:1]

    @override
    def error(self) -> str:
        if not self._servers:
            return "no servers configured: give some to the chooser"
        return self._last_error or "no server was tried yet"

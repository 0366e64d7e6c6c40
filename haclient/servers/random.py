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
from haclient.servers.auth import Authenticator
from haclient.servers.chooser import ConnectionInfo, DefaultServerChooser, check_uris
from haclient_stores.checks import is_number

__all__ = ["RandomServerChooser"]

MAX_WEIGHT: Final = 1e9
"""Of any number of servers the sum is finite."""


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
        weights = servers if isinstance(servers, Mapping) else dict.fromkeys(servers, 1.0)
        for uri, weight in cast("Mapping[str, float]", weights).items():
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

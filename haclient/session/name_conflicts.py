"""Detects another client with the same name, where the server does not report it. Pure.

Of two connections with one name, a server keeps the newer one. Some servers send `name in use` to
the older one; others only close it. Then both clients reconnect again and again, each displacing
the other, and a publisher loses messages: sequence numbers are counted by name, so the server drops
as duplicates what one client publishes with lower numbers than the other has used.

A publisher has proof. Its numbers are above every number that a server has seen from it, so a later
logon ack with a higher one proves that another client has published meanwhile. A subscriber only
sees a pattern, live connections that are closed soon, and that may have another cause.
"""

from __future__ import annotations

from typing import Final

_SHORT_S: Final = 60.0  # a connection lasts less while two clients displace each other
_IN_A_ROW: Final = 3


class NameConflicts:
    """The signs that one client has seen of another client with its name."""

    __slots__ = ("_closed", "_highest", "_servers")

    def __init__(self) -> None:
        self._servers: set[str] = set()  # addresses that it has logged on to
        self._highest = 0  # sequence that any of them has seen; this client numbers above it
        self._closed = 0  # short connections in a row

    def note_logon(self, server: str, *, seen: int | None, highest: int) -> bool:
        """Note a logon; return whether another client has published under the name meanwhile.

        The first logon to a server proves nothing: the server may know numbers of an earlier
        process.

        Args:
            server: The address of the server.
            seen: The highest sequence that the server has seen; `None` if it does not say.
            highest: The highest sequence that this client has used.
        """
        is_known = server in self._servers
        self._servers.add(server)
        before, self._highest = self._highest, max(self._highest, seen or 0)
        return is_known and seen is not None and seen > max(before, highest)

    def note_closed(self, lived_s: float) -> bool:
        """Note that a connection was closed.

        Args:
            lived_s: How long it was live, in seconds.

        Returns:
            Whether a warning is due: once for each series of short connections.
        """
        self._closed = self._closed + 1 if lived_s < _SHORT_S else 0
        return self._closed == _IN_A_ROW

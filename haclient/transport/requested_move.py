"""One move to another server that the application has asked for (`HAClient.move_to`).

It is told of to the task that serves the connection, and comes to its end there: the client is live
at the new server, or has not left the old one, or has come back from an attempt that failed.
"""

from __future__ import annotations

import trio

from haclient.errors import HAClientError
from haclient.protocol.uri import Uri


class RequestedMove:
    """A move that has not ended yet.

    Args:
        uri: The connection string of the new server.

    Attributes:
        uri: The same.
        has_left: Whether the old connection was drained and closed.
    """

    __slots__ = ("_ended", "_error", "has_left", "uri")

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.has_left = False
        self._ended = trio.Event()
        self._error: HAClientError | None = None

    @property
    def safe_uri(self) -> str:
        """The connection string without its password."""
        return Uri.parse(self.uri).safe

    def end(self, error: HAClientError | None = None) -> None:
        """The client is live at the new server, or is not; whoever waits gets the error."""
        self._error = error
        self._ended.set()

    async def ended(self) -> None:
        """Wait for the end.

        Raises:
            HAClientError: The client is not at the new server.
        """
        await self._ended.wait()
        if self._error is not None:
            raise self._error

"""Shows each frame to a callback of the application, for recording and for debugging.

The callback runs where frames are read and written. An exception of it must not pass for one of the
socket, so it ends the tap and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from haclient.transport.reporter import Reporter
from haclient_stores.logs import logger_of

WireTap: TypeAlias = Callable[[str, str], object]
"""Called with `>` for a frame that was sent or `<` for one that has arrived, and its header."""

_logger = logger_of(__name__)


def guarded(tap: WireTap | None, reporter: Reporter) -> GuardedTap | None:
    """The tap of a client, if it has one.

    Args:
        tap: The callback of the application.
        reporter: Is told of its exception.
    """
    return None if tap is None else GuardedTap(tap, reporter)


class GuardedTap:
    """A wire tap that is called no more after its first exception.

    Args:
        tap: The callback of the application.
        reporter: Is told of the exception.
    """

    def __init__(self, tap: WireTap, reporter: Reporter) -> None:
        self._tap: WireTap | None = tap
        self._reporter = reporter

    def __call__(self, direction: str, header: str) -> None:
        """Show one header to the callback, if it has not raised yet."""
        if self._tap is None:
            return
        try:
            self._tap(direction, header)
        except Exception as error:  # of any kind: it is the application's
            self._tap = None
            _logger.warning(
                "the wire tap raised %s: it is called no more", type(error).__name__, exc_info=error
            )
            self._reporter.exception(error)

"""A detector for code that blocks the thread of a client.

While a handler computes without an `await`, no heartbeat is sent, and the server cuts the
connection. A detector says so before that, with the stack of the blocked thread, from a thread of
its own::

    with StallDetector(limit=5.0):  # half of the heartbeat interval
        async with HAClient("pricing", servers=servers, heartbeat=10.0) as client:
            ...

It asks the event loop for a sign of life once per limit: that is all that it costs.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

import trio

from haclient.errors import UsageError
from haclient_stores.checks import check_seconds
from haclient_stores.logs import logger_of

__all__ = ["StallDetector"]

DEFAULT_LIMIT_S: Final = 5.0
"""Half of the default heartbeat interval of an `HAClient`; the server waits for two intervals."""

_MAX_FRAMES: Final = 12  # of a stack that is logged: the innermost say what blocks
_logger = logger_of(__name__)


class StallDetector:
    """Warns while the event loop of the calling thread is blocked.

    A stall is logged once while it lasts, with its stack, and once when it has ended, with its
    duration. It is found between one and two limits after its begin.

    Args:
        limit: Seconds that the event loop may be blocked; half of the heartbeat interval warns
            before the server cuts the connection.

    Raises:
        UsageError: The limit is not above 0.
    """

    def __init__(self, limit: float = DEFAULT_LIMIT_S) -> None:
        check_seconds("limit", limit)
        if limit > threading.TIMEOUT_MAX:
            raise UsageError(
                f"limit is a number of seconds up to {threading.TIMEOUT_MAX:g}, not {limit!r}"
            )
        self._limit_s = limit
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise UsageError("this detector was used before: make a new one")
        if not trio.lowlevel.in_trio_run():
            raise UsageError("enter a StallDetector inside trio.run, in the thread of the client")
        self._thread = threading.Thread(
            target=self._watch,
            args=(threading.get_ident(), trio.lowlevel.current_trio_token()),
            name="haclient stall detector",
            daemon=True,
        )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        self._stopped.set()  # the thread never waits for this one, and ends soon

    def _watch(self, ident: int, token: trio.lowlevel.TrioToken) -> None:
        with suppress(trio.RunFinishedError):  # left without an exit
            while not self._stopped.is_set():
                alive, asked_at = threading.Event(), _now()
                token.run_sync_soon(alive.set)
                if not alive.wait(self._limit_s):
                    self._report(ident)
                    while not alive.wait(self._limit_s):
                        if self._stopped.is_set():
                            return
                    _logger.warning("the event loop goes on after %.1f s", _now() - asked_at)
                self._stopped.wait(self._limit_s)

    def _report(self, ident: int) -> None:
        # The only way to another thread's stack, and documented.
        frames = sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        frame = frames.get(ident)
        if frame is None or self._stopped.is_set():  # the thread has ended
            return
        _logger.warning(
            "the event loop has been blocked for %g s, and no heartbeat can be sent: run what "
            "takes the processor in haclient.workers or trio.to_thread.run_sync. It is at\n%s",
            self._limit_s,
            "".join(traceback.format_stack(frame)[-_MAX_FRAMES:]),
        )


def _now() -> float:
    """Seconds; trio's clock cannot be read in this thread."""
    return time.monotonic()  # noqa: TID251  # the watched loop may be blocked, its clock with it

"""What `haclient.blocking.run` and `haclient.aio.run` have in common.

Both do what `haclient.service` does for services of trio, in the same order and with the same
limits. Here each client has a thread of its own, so one more thread drains them all
(`ThreadShutdown`). It is started before any signal, since a signal handler may interrupt any code.
It waits for the consumers of all clients, then flushes all clients, then ends `main`.
"""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from time import monotonic  # noqa: TID251  # the drain thread runs no trio
from typing import TypeVar

import trio

from haclient.errors import GraceExpired
from haclient.facade.thread import Call, MainEnded, TrioThread, running_threads
from haclient.service import (
    CLOSING_S,
    Deadline,
    expired_text,
)
from haclient.transport.open_clients import OpenClients
from haclient_stores.checks import check_seconds
from haclient_stores.logs import logger_of

_T = TypeVar("_T")
_logger = logger_of(__name__)


class ThreadShutdown:
    """The orderly end of all clients that have threads of their own.

    Args:
        grace_s: Seconds for all of it, from the signal on.

    Attributes:
        number: The signal that started it; 0 before.
        drained: Done when `main` has to end.

    Raises:
        UsageError: `grace_s` is not a valid time.
    """

    def __init__(self, grace_s: float) -> None:
        check_seconds("grace", grace_s, zero=True, endless=False)
        self._grace_s = grace_s
        # Whether `main` has ended; else the signal came, or a call ended. Its `put` is reentrant.
        self._events: queue.SimpleQueue[bool] = queue.SimpleQueue()
        limit_s = min(grace_s + CLOSING_S, threading.TIMEOUT_MAX)
        self._deadline = Deadline(limit_s, _unfinished)
        self._expired: GraceExpired | None = None
        self.number = 0
        self.drained: Future[None] = Future()
        self._thread = threading.Thread(target=self._drain, name="haclient-drain", daemon=True)
        self._thread.start()

    def begin(self, number: int) -> None:
        """React to the first signal, in its handler."""
        self.number = number
        self._deadline.begin()
        self._events.put(False)  # see above

    def run(self, run_main: Callable[[], _T]) -> _T | None:
        """Run `main`, which `MainEnded` leaves after the drain; return or raise as `run` does."""
        result: _T | None = None
        try:
            result = run_main()
        except MainEnded:
            if self._expired is not None:
                raise self._expired from None
        finally:
            self.close()
        if self.number == signal.SIGINT:  # also when `main` returned since its streams had ended
            raise KeyboardInterrupt
        return result

    def close(self) -> None:
        """Stop: `main` has ended. A second call does nothing."""
        self._events.put(True)  # see above
        self._thread.join()
        self._deadline.call_off()

    def _drain(self) -> None:
        if self._events.get():
            return
        name = signal.Signals(self.number).name
        _logger.info("%s: finishing what was begun, for at most %g s", name, self._grace_s)
        try:
            self._drain_until(monotonic() + self._grace_s)
        except TimeoutError:
            self._expired = GraceExpired(expired_text(self._grace_s, _unfinished()))
        except MainEnded:
            return
        for thread in running_threads():  # publishes that wait: `main` and its threads are to end
            if thread.token is not None:
                with suppress(trio.RunFinishedError):
                    thread.token.run_sync_soon(thread.clients.fail_held)
        self.drained.set_result(None)

    def _drain_until(self, wait_until: float) -> None:
        """As `OpenClients.drain`, over all threads.

        Raises:
            TimeoutError: The time ended first.
            MainEnded: `main` has ended.
        """
        drained: set[TrioThread] = set()
        while new := set(running_threads()) - drained:  # a handler may have opened one
            self._call(new, OpenClients.finish_consumers, wait_until)
            drained |= new
        self._call(drained, OpenClients.pass_on_points, wait_until)
        self._call(drained, OpenClients.flush, wait_until)

    def _call(
        self,
        threads: Collection[TrioThread],
        step: Callable[[OpenClients], Awaitable[None]],
        wait_until: float,
    ) -> None:
        left = 0
        for thread in threads:
            call: Call[None] = Call(partial(self._events.put, False), "run")  # see above
            try:
                thread.submit(call, partial(step, thread.clients))
                left += 1
            except BaseException as error:  # any error by which the client has ended meanwhile
                _logger.debug("client %s has nothing to finish: %r", thread.name, error)
        while left:
            try:
                has_main_ended = self._events.get(timeout=max(0.0, wait_until - monotonic()))
            except queue.Empty:
                raise TimeoutError from None
            if has_main_ended:
                raise MainEnded
            left -= 1


def _unfinished() -> str:
    return "; ".join(filter(None, (each.clients.unfinished() for each in running_threads())))

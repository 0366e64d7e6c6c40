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
from contextlib import suppress
from enum import Enum, auto
from functools import partial
from time import monotonic  # noqa: TID251  # the drain thread runs no trio
from typing import TypeVar

from haclient.errors import GraceExpired
from haclient.facade.thread import Call, TrioThread, running_threads
from haclient.service import (
    CLOSING_S,
    Deadline,
    expired_text,
)
from haclient.transport.active_consumers import OpenClients
from haclient_stores.checks import check_seconds
from haclient_stores.logs import logger_of

_T = TypeVar("_T")
_logger = logger_of(__name__)


class _Event(Enum):
    SIGNALLED = auto()
    CALL_ENDED = auto()
    MAIN_ENDED = auto()


class _MainHasEndedError(Exception):
    """`main` has returned by itself, so the drain stops."""


class ThreadShutdown:
    """The orderly end of all clients that have threads of their own.

    Args:
        grace_s: Seconds for all of it, from the signal on.
        end_main: Ends `main`; called in the drain thread, at most once.

    Attributes:
        number: The signal that started it; 0 before.
        expired: The error, if the grace period ended before the drain.

    Raises:
        UsageError: `grace_s` is not a valid time.
    """

    def __init__(self, grace_s: float, end_main: Callable[[], object]) -> None:
        check_seconds("grace", grace_s, zero=True, endless=False)
        self._grace_s = grace_s
        self._end_main = end_main
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()  # its `put` is reentrant
        limit_s = min(grace_s + CLOSING_S, threading.TIMEOUT_MAX)
        self._deadline = Deadline(limit_s, _unfinished)
        self.number = 0
        self.expired: GraceExpired | None = None
        self._thread = threading.Thread(
            target=self._drain_then_end_main, name="haclient-drain", daemon=True
        )
        self._thread.start()

    def begin(self, number: int) -> None:
        """React to the first signal, in its handler."""
        self.number = number
        self._deadline.begin()
        self._events.put(_Event.SIGNALLED)

    def close(self) -> None:
        """Stop: `main` has ended."""
        self._events.put(_Event.MAIN_ENDED)
        self._thread.join()
        self._deadline.call_off()

    def result(self, value: _T | None, *, was_ended: bool) -> _T | None:
        """What `run` returns or raises.

        Args:
            value: What `main` has returned.
            was_ended: Whether it was ended by the shutdown instead.
        """
        if was_ended and self.expired is not None:
            raise self.expired
        if self.number == signal.SIGINT:  # also when `main` returned since its streams had ended
            raise KeyboardInterrupt
        return value

    def _drain_then_end_main(self) -> None:
        if self._events.get() is _Event.MAIN_ENDED:
            return
        name = signal.Signals(self.number).name
        _logger.info("%s: finishing what was begun, for at most %g s", name, self._grace_s)
        try:
            self._drain(monotonic() + self._grace_s)
        except TimeoutError:
            self.expired = GraceExpired(expired_text(self._grace_s, _unfinished()))
        except _MainHasEndedError:
            return
        _fail_held_publishes()
        self._end_main()

    def _drain(self, wait_until: float) -> None:
        """As `OpenClients.drain`, over all threads.

        Raises:
            TimeoutError: The time ended first.
            _MainHasEndedError: `main` has ended.
        """
        drained: set[TrioThread] = set()
        while new := set(running_threads()) - drained:  # a handler may have opened one
            self._call(new, OpenClients.finish_consumers, wait_until)
            drained |= new
        self._call(drained, OpenClients.flush, wait_until)

    def _call(
        self,
        threads: Collection[TrioThread],
        step: Callable[[OpenClients], Awaitable[None]],
        wait_until: float,
    ) -> None:
        left = 0
        for thread in threads:
            call: Call[None] = Call(partial(self._events.put, _Event.CALL_ENDED), "run")
            try:
                thread.submit(call, partial(step, thread.clients))
                left += 1
            except BaseException as error:  # any error by which the client has ended meanwhile
                _logger.debug("client %s has nothing to finish: %r", thread.name, error)
        while left:
            try:
                event = self._events.get(timeout=max(0.0, wait_until - monotonic()))
            except queue.Empty:
                raise TimeoutError from None
            if event is _Event.MAIN_ENDED:
                raise _MainHasEndedError
            left -= 1


def _fail_held_publishes() -> None:
    """Fail the waiting publishes, which cannot be cancelled, so that `main` and its threads end."""
    for thread in running_threads():
        # A client may have ended meanwhile, by any error: all its calls fail.
        with suppress(BaseException):
            thread.submit_now(Call(_ignore_end, "run"), thread.clients.fail_held)


def _ignore_end() -> None:
    """Ignore the end of the call: nobody waits for it."""


def _unfinished() -> str:
    return "; ".join(filter(None, (each.clients.unfinished() for each in running_threads())))

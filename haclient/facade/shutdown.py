"""`haclient.blocking.run`, and what `haclient.aio.run` has in common with it.

Both do what `haclient.service` does for services of trio, in the same order and with the same
limits. Here each client has a thread of its own, so one more thread drains them all
(`ThreadShutdown`). It is started before any signal, since a signal handler may interrupt any code.
It waits for the consumers of all clients, then flushes all clients, then ends `main`.

**How `main` is ended.** A thread cannot be cancelled, but the main thread can be interrupted: the
drain thread sends it the same signal again, whose handler raises an exception where `main` waits,
as Ctrl-C does. Everything is drained by then.
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
from typing import Final, TypeVar

from haclient.errors import GraceExpired
from haclient.facade.thread import Call, TrioThread, running_threads
from haclient.service import (
    CLOSING_S,
    DEFAULT_GRACE_S,
    STOP_SIGNALS,
    Deadline,
    expired_text,
    signal_handler,
    use_defaults,
)
from haclient.transport.active_consumers import OpenClients
from haclient_stores.checks import check_seconds
from haclient_stores.logs import logger_of

_RESEND_S: Final = 0.1
"""Seconds between two signals to a main thread that has not reacted."""

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


# -- haclient.blocking.run ------------------------------------------------------------------


class _MainInterrupted(
    BaseException
):  # like KeyboardInterrupt, so that `except Exception` does not catch it
    """Raised in `main` where it waits."""


class _InterruptibleMain:
    """Runs `main` in the main thread, which signals interrupt.

    A signal that comes just before a blocking wait is handled after the wait, which may never end.
    So it is sent until its handler has run. The counts of sent and received signals distinguish
    these from a second signal by somebody else.
    """

    def __init__(self, grace_s: float) -> None:
        self._shutdown = ThreadShutdown(grace_s, self._interrupt)
        self._runs = False
        self._should_end = False
        self._sent = 0
        self._received = 0
        self._noticed: queue.SimpleQueue[None] = queue.SimpleQueue()  # its `put` is reentrant

    def run(self, main: Callable[[], _T]) -> _T | None:
        result: _T | None = None
        was_ended = False
        try:
            with signal_handler(STOP_SIGNALS, self._on_signal):
                result = self._until_ended(main)
        except _MainInterrupted:
            was_ended = True
        finally:
            self._shutdown.close()
        return self._shutdown.result(result, was_ended=was_ended)

    def _until_ended(self, main: Callable[[], _T]) -> _T:
        try:
            self._runs = True
            if self._should_end:  # the signal came before `main` ran
                raise _MainInterrupted
            return main()
        finally:
            self._runs = False
            self._shutdown.close()  # before the handler is removed: a signal may be under way

    def _on_signal(self, number: int) -> None:
        if not self._shutdown.number:
            self._shutdown.begin(number)
            return
        if self._received == self._sent:
            use_defaults()
            signal.raise_signal(number)
        self._received += 1
        self._noticed.put(None)
        if self._runs:
            self._runs = False
            raise _MainInterrupted

    def _interrupt(self) -> None:
        self._should_end = True
        ident = threading.main_thread().ident
        assert ident is not None  # noqa: S101  # it runs
        is_noticed = False
        while not is_noticed:
            self._sent += 1
            signal.pthread_kill(ident, self._shutdown.number)
            is_noticed = self._is_noticed()

    def _is_noticed(self) -> bool:
        try:
            self._noticed.get(timeout=_RESEND_S)
        except queue.Empty:
            return False
        return True


def run(main: Callable[[], _T], *, grace: float = DEFAULT_GRACE_S) -> _T | None:
    """Run a service until it returns, or until SIGTERM or SIGINT ends it in good order.

    After the first signal handlers finish the message they have and get no further one; streams
    end; each client of the process flushes acknowledgements and publishes, within its
    `exit_timeout`. Then `main` is interrupted where it waits, as by Ctrl-C, and the blocks
    of the clients are left, which closes their stores. A `main` that returns by itself meanwhile is
    not interrupted. Other threads of the application are not interrupted either: their calls of a
    closed client raise, and at its end Python waits for them unless they are daemons.

    Args:
        main: The application, a function without arguments; use `functools.partial` for one that
            takes some.
        grace: Seconds for all of it, from the signal on; 0 ends at once.

    Returns:
        What `main` returns; `None` when SIGTERM has ended it.

    Raises:
        UsageError: `grace` is not a valid time, or this is not the main thread.
        GraceExpired: The grace period ended first. The text names what was left.
        KeyboardInterrupt: SIGINT ended it, in the same order.
    """
    return _InterruptibleMain(grace).run(main)

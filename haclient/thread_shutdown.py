"""`haclient.blocking.run`, and what `haclient.aio.run` has in common with it.

Both do what `haclient.shutdown` does for services of trio, in the same order and with the same
limits. Here each client has a thread of its own, so a further thread leads (`ThreadShutdown`): it
was started beforehand, since a signal handler may interrupt any code. It has the consumers of all
clients of the process finish, then flushes all clients, and ends `main` at last.

**How `main` is ended.** A thread cannot be cancelled, but the main thread can be interrupted: the
leading thread sends it the same signal again, whose handler raises an exception where `main` waits,
as Ctrl-C does. Nothing is left to be drained by then.
"""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from enum import Enum, auto
from functools import partial
from time import monotonic  # noqa: TID251  # the leading thread runs no trio
from typing import Final, TypeVar

from haclient.errors import GraceExpired
from haclient.shutdown import (
    CLOSING_S,
    DEFAULT_GRACE_S,
    STOP_SIGNALS,
    Deadline,
    expired_text,
    signal_handler,
    use_defaults,
)
from haclient.transport.intake import OpenClients
from haclient.trio_thread import Call, TrioThread, running_threads
from haclient_stores.checks import check_seconds
from haclient_stores.logs import logger_of

_RESEND_S: Final = 0.1
"""How often a main thread that has not noticed its end is told of it."""

_T = TypeVar("_T")
_logger = logger_of(__name__)


class _Event(Enum):
    SIGNALLED = auto()
    CALL_ENDED = auto()
    MAIN_ENDED = auto()


class _MainHasEndedError(Exception):
    """`main` has returned by itself: nothing is left to be done."""


class ThreadShutdown:
    """The orderly end of all clients that have threads of their own.

    Args:
        grace_s: Seconds for all of it, from the signal on.
        end_main: Ends `main`; called in the leading thread, at most once.

    Attributes:
        number: The signal that has begun it; 0 before.
        expired: The error of a grace that was over too early.

    Raises:
        UsageError: `grace_s` is no time.
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
        self._thread = threading.Thread(target=self._lead, name="haclient-drain", daemon=True)
        self._thread.start()

    def begin(self, number: int) -> None:
        """React to the first signal, in its handler."""
        self.number = number
        self._deadline.begin()
        self._events.put(_Event.SIGNALLED)

    def close(self) -> None:
        """`main` has ended: do nothing any more."""
        self._events.put(_Event.MAIN_ENDED)
        self._thread.join()
        self._deadline.call_off()

    def result(self, value: _T | None, *, was_cut: bool) -> _T | None:
        """What `run` returns or raises.

        Args:
            value: What `main` has returned.
            was_cut: Whether it was ended instead.
        """
        if was_cut and self.expired is not None:
            raise self.expired
        if was_cut and self.number == signal.SIGINT:
            raise KeyboardInterrupt
        return value

    def _lead(self) -> None:
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
            TimeoutError: The time was over first.
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
            except BaseException as error:  # by which it has ended meanwhile, whatever that is
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
    """Let `main` and its threads come to their ends: a publish that waits has no cancellation."""
    for thread in running_threads():
        with suppress(BaseException):  # by which it has ended meanwhile: all its calls fail
            thread.submit_now(Call(_told, "run"), thread.clients.fail_held)


def _told() -> None:
    """Nobody waits for the end of the call."""


def _unfinished() -> str:
    return "; ".join(filter(None, (each.clients.unfinished() for each in running_threads())))


# -- haclient.blocking.run ------------------------------------------------------------------


class _MainInterrupted(BaseException):  # as KeyboardInterrupt: no error
    """Raised in `main` where it waits."""


class _InterruptibleMain:
    """Runs `main` in the main thread, which signals interrupt.

    A signal that comes in the moment before a wait is handled after it, which may be never. So it
    is sent until its handler has run; how often tells those from a second one of somebody else.
    """

    def __init__(self, grace_s: float) -> None:
        self._shutdown = ThreadShutdown(grace_s, self._interrupt)
        self._runs = False
        self._is_to_end = False
        self._sent = 0
        self._received = 0
        self._noticed: queue.SimpleQueue[None] = queue.SimpleQueue()  # its `put` is reentrant

    def run(self, main: Callable[[], _T]) -> _T | None:
        result: _T | None = None
        was_cut = False
        try:
            with signal_handler(STOP_SIGNALS, self._on_signal):
                result = self._until_ended(main)
        except _MainInterrupted:
            was_cut = True
        finally:
            self._shutdown.close()
        return self._shutdown.result(result, was_cut=was_cut)

    def _until_ended(self, main: Callable[[], _T]) -> _T:
        try:
            self._runs = True
            if self._is_to_end:  # the signal came before it could be interrupted
                raise _MainInterrupted
            return main()
        finally:
            self._runs = False
            self._shutdown.close()  # while the handler is there: it may have sent its signal

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
        self._is_to_end = True
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
    end; acknowledgements and publishes are flushed, by each client of the process for as long as
    its `exit_timeout` says. Then `main` is interrupted where it waits, as by Ctrl-C, and the blocks
    of the clients are left, which closes their stores. A `main` that returns by itself meanwhile is
    not interrupted. Other threads of the application are not: their calls of a client that was
    closed raise, and Python waits for them at its end unless they are daemons.

    Args:
        main: The application, a function without arguments; use `functools.partial` for one that
            takes some.
        grace: Seconds for all of it, from the signal on; 0 ends at once.

    Returns:
        What `main` returns; `None` when SIGTERM has ended it.

    Raises:
        UsageError: `grace` is no time, or this is not the main thread.
        GraceExpired: The grace was over first. It says what was left.
        KeyboardInterrupt: SIGINT has ended it, in the same good order.
    """
    return _InterruptibleMain(grace).run(main)

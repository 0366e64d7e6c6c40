"""`haclient.run`: `trio.run` for services that signals end in good order.

A supervisor (systemd, Kubernetes, a shell) ends a service with SIGTERM and, when that takes too
long, with SIGKILL. Stores survive both. The difference is in what comes after: a process that was
killed leaves messages that were handled and not discarded, which the next process handles again,
and publishes that wait for the next process. `run` uses the time before the SIGKILL:

1. consumers get no further message (`ActiveConsumers.stop`), and finish the ones they have;
2. publishes and acknowledgements are flushed, each client within its `exit_timeout`;
3. `main` is cancelled, which leaves the blocks of the clients and closes their stores.

**The end of the grace** cancels `main` at once. That does not end a process whose handler blocks
its thread, so a thread of its own ends the process shortly after. It was started beforehand, since
a signal handler may interrupt any code, also the one that starts threads. A second signal has its
default action and ends the process.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Awaitable, Callable, Collection, Generator
from contextlib import contextmanager
from inspect import iscoroutine, iscoroutinefunction
from types import FrameType
from typing import Final, Generic, TypeVar

import trio

from haclient.errors import GraceExpired, UsageError
from haclient.transport.open_clients import OpenClients, open_clients
from haclient.transport.tasks import open_nursery
from haclient_stores.checks import check_seconds
from haclient_stores.logs import logger_of

__all__ = ["DEFAULT_GRACE_S", "run"]

DEFAULT_GRACE_S: Final = 25.0
"""Seconds from the signal to the end; below the 30 s after which Kubernetes sends SIGKILL."""

CLOSING_S: Final = 1.0
"""Seconds that a cancelled `main` has to close its stores before the process is ended."""

EXIT_FAILURE: Final = 1
"""The exit code of a process that had to be ended, as after an error that nobody has caught."""

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_T = TypeVar("_T")
_logger = logger_of(__name__)


@contextmanager
def first_signal(numbers: Collection[int], react: Callable[[int], object]) -> Generator[None]:
    """Call `react` with the first of these signals; a second one has its default action.

    Args:
        numbers: The signals.
        react: Called in a signal handler, so between any two instructions of the main thread.

    Raises:
        UsageError: This is not the main thread, which alone may handle signals.
    """

    def handle(number: int) -> None:
        use_defaults(numbers)
        react(number)

    with signal_handler(numbers, handle):
        yield


def use_defaults(numbers: Collection[int] = STOP_SIGNALS) -> None:
    """Restore the default actions of these signals."""
    for each in numbers:
        signal.signal(each, signal.SIG_DFL)


@contextmanager
def signal_handler(numbers: Collection[int], react: Callable[[int], object]) -> Generator[None]:
    """Call `react` with each of these signals, and restore their handlers at the end.

    In a process that was forked meanwhile they have their default actions.

    Args:
        numbers: The signals.
        react: Called in a signal handler, so between any two instructions of the main thread.

    Raises:
        UsageError: This is not the main thread, which alone may handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        raise UsageError(
            "signals are handled by the main thread: call haclient.run there, or use trio.run "
            "(asyncio.run) in this thread and end its work yourself"
        )

    process = os.getpid()

    def handle(number: int, _: FrameType | None) -> None:
        if os.getpid() == process:
            react(number)
            return
        use_defaults(numbers)  # a forked child, such as of multiprocessing, has no drain thread
        signal.raise_signal(number)

    before = {each: signal.signal(each, handle) for each in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            # None: it was installed by something else than Python, and cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


class Deadline:
    """Ends a process that does not end by itself; works while its main thread is blocked."""

    def __init__(self, limit_s: float, unfinished: Callable[[], str]) -> None:
        self._limit_s = limit_s
        self._unfinished = unfinished
        self._words: queue.SimpleQueue[str] = queue.SimpleQueue()  # its `put` is reentrant
        self._thread = threading.Thread(target=self._wait, name="haclient-grace", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Start the time; safe in a signal handler."""
        self._words.put("begin")

    def call_off(self) -> None:
        """Stop the time: the process ends by itself."""
        self._words.put("end")
        self._thread.join()

    def _wait(self) -> None:
        if self._words.get() == "end":
            return
        try:
            self._words.get(timeout=self._limit_s)
        except queue.Empty:
            text = (
                f"haclient: error: {expired_text(self._limit_s - CLOSING_S, self._unfinished())}\n"
            )
            try:
                os.write(2, text.encode(errors="replace"))
            finally:  # stderr may be closed
                os._exit(EXIT_FAILURE)


def expired_text(grace_s: float, unfinished: str) -> str:
    what = unfinished or "work of the application, outside of haclient's clients"
    return f"the grace of {grace_s:g} s is over, and this is not finished: {what}"


class _Shutdown(Generic[_T]):
    """One `run`."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._clients = OpenClients()
        self._deadline = Deadline(min(grace_s + CLOSING_S, threading.TIMEOUT_MAX), self._left)
        self._token: trio.lowlevel.TrioToken | None = None
        self._signalled: trio.Event | None = None
        self._scope = trio.CancelScope()
        self.number = 0
        self.expired: GraceExpired | None = None
        self.result: _T | None = None

    def on_signal(self, number: int) -> None:
        """React to the first signal, in a signal handler."""
        self.number = number
        self._deadline.begin()
        if self._token is not None:
            try:
                self._token.run_sync_soon(self._wake)
            except trio.RunFinishedError:  # `main` has just returned
                return

    def _wake(self) -> None:
        if self._signalled is not None:
            self._signalled.set()

    def _left(self) -> str:
        return self._clients.unfinished()

    def call_off(self) -> None:
        """The run is over: the process may take as long as it likes for what follows."""
        self._deadline.call_off()

    async def run(self, main: Callable[[], Awaitable[_T]]) -> None:
        """Run `main` until it returns, or until a signal has ended it."""
        open_clients.set(self._clients)
        self._signalled = trio.Event()
        self._token = self._clients.run = trio.lowlevel.current_trio_token()
        if self.number:  # it came before there was a token to tell of it
            self._signalled.set()
        async with open_nursery() as nursery:
            nursery.start_soon(self._end_when_signalled, self._signalled)
            with self._scope:
                self.result = await main()
            nursery.cancel_scope.cancel()

    async def _end_when_signalled(self, signalled: trio.Event) -> None:
        await signalled.wait()
        name = signal.Signals(self.number).name
        _logger.info("%s: finishing what was begun, for at most %g s", name, self._grace_s)
        with trio.move_on_after(self._grace_s) as grace:
            await self._clients.drain()
        if grace.cancelled_caught:
            self.expired = GraceExpired(expired_text(self._grace_s, self._left()))
        self._scope.cancel()
        self._clients.fail_held()  # last: cancelled publishes no longer wait

    @property
    def was_cancelled(self) -> bool:
        """Whether `main` was cancelled."""
        return self._scope.cancelled_caught


def check_main(main: object, *, is_async: bool = True) -> None:
    """Check what the `run` of trio, asyncio or blocking is given, as far as is known beforehand.

    Raises:
        UsageError: It is no function; or, unless `is_async`, an async function.
    """
    if iscoroutine(main):
        main.close()  # else Python warns that it was never awaited
        raise UsageError("main is an async function, not its coroutine: run(main), not run(main())")
    if not callable(main):
        raise UsageError(f"main is a function without arguments, not {main!r}")
    if not is_async and iscoroutinefunction(main):
        raise UsageError(
            "haclient.blocking.run takes a plain function, and main is an async one: use "
            "haclient.run, or haclient.aio.run for asyncio"
        )


def run(main: Callable[[], Awaitable[_T]], *, grace: float = DEFAULT_GRACE_S) -> _T | None:
    """Run a service under trio until it returns, or until SIGTERM or SIGINT ends it in good order.

    After the first signal handlers finish the message they have and get no further one; streams
    end; acknowledgements and publishes are flushed, by each client for as long as its
    `exit_timeout` says. Then `main` is cancelled, and the blocks of the clients are left, which
    closes their stores. A `main` that returns by itself meanwhile is not cancelled. What cannot be
    known is not waited for: work that consumers have passed on to tasks or threads of their own.
    Clients in a trio run of another thread are left alone.

    Args:
        main: The application, an async function without arguments; use `functools.partial` for
            one that takes some.
        grace: Seconds for all of it, from the signal on; 0 ends at once.

    Returns:
        What `main` returns; `None` when SIGTERM has ended it.

    Raises:
        UsageError: `main` is no function, `grace` is no time, or this is not the main thread.
        GraceExpired: The grace was over first. It says what was left.
        KeyboardInterrupt: SIGINT came, and all has ended in the same good order.
    """
    check_main(main)
    check_seconds("grace", grace, zero=True, endless=False)
    shutdown = _Shutdown[_T](grace)
    try:
        with first_signal(STOP_SIGNALS, shutdown.on_signal):
            trio.run(shutdown.run, main)
    finally:
        shutdown.call_off()
    if shutdown.was_cancelled and shutdown.expired is not None:
        raise shutdown.expired
    # A `main` whose stream the shutdown has ended may return before it is cancelled: whoever
    # pressed Ctrl-C sees the same end either way.
    if shutdown.number == signal.SIGINT:
        raise KeyboardInterrupt
    return shutdown.result

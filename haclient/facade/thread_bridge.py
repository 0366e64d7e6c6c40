"""Between threads that block and the thread of a client: calls, callbacks, life, shutdown.

`TrioThread` runs the client, and has what its callers do. This module is how any other thread waits
for that one, and how that one calls the callbacks of the application in worker threads
(`BlockingThread.wrap`).

A call that is interrupted is cancelled in the client's thread and waited for, as trio does it: it
is undone or complete when its caller continues. A callback that is cancelled, since its client is
being left, is waited for as well. So the calls that it makes are run by the task that waits for it,
and are cancelled with that. A call in a thread that runs an event loop is refused, since it would
block that loop (`refuse_event_loop`).
"""

from __future__ import annotations

import math
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable, iscoroutine, iscoroutinefunction
from threading import current_thread
from time import monotonic, sleep  # noqa: TID251  # these threads run no trio
from typing import Concatenate, Final, ParamSpec, TypeVar

import trio
from typing_extensions import override

from haclient.errors import DisconnectedError, UsageError
from haclient.facade.shutdown import ThreadShutdown
from haclient.facade.thread import MainEnded, TrioThread, Waiter
from haclient.service import (
    DEFAULT_GRACE_S,
    STOP_SIGNALS,
    check_main,
    signal_handler,
    use_defaults,
)
from haclient.transport.message_queue import ShuttingDown
from haclient.transport.tasks import NeverCalled, call_in_thread

_P = ParamSpec("_P")
_S = TypeVar("_S", bound=TrioThread)
_T = TypeVar("_T")

WORDS: Final = {
    "async with": "with",
    "async for": "for",
    "An async iterator": "An iterator",
    "A coroutine function or plain function": "A plain function",
    "A plain function or a coroutine function": "A plain function",
    "another task": "another thread",
}
"""How words of the trio client's docstrings read here."""

# A handler occupies a thread of its own; there is one at a time for each subscription, or as many
# as `workers` says. With fewer, handlers that wait for each other could wait for ever.
_HANDLER_THREADS: Final = trio.CapacityLimiter(float("inf"))

_SIGNAL_CHECK_S: Final = 1.0
"""How often a wait lets the handlers of signals run."""

_RESEND_S: Final = 0.02
"""Seconds between two signals to a main thread that has not reacted."""


class LockWaiter(Waiter):
    """Where one thread waits.

    A signal interrupts a wait of the main thread only once that has begun: one that comes in the
    moment before would be handled after the wait, which may be never. So there are many short ones.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._is_notified = False

    @override
    def notify(self) -> None:
        self._is_notified = True
        self._lock.release()

    @override
    async def wait(self, limit_s: float = math.inf) -> bool:
        until = math.inf if limit_s == math.inf else monotonic() + limit_s
        left_s = limit_s
        while not self._is_notified and left_s > 0:
            self._lock.acquire(timeout=min(left_s, _SIGNAL_CHECK_S))
            left_s = until - monotonic()
        return self._is_notified

    @override
    async def wait_uncancelled(self) -> None:
        await self.wait()  # nothing cancels a thread


def _blocking(
    method: Callable[Concatenate[_S, _P], Coroutine[object, object, _T]],
) -> Callable[Concatenate[_S, _P], _T]:
    """The plain form of a coroutine method that suspends nowhere, since its waits block."""

    def call(self: _S, /, *arguments: _P.args, **options: _P.kwargs) -> _T:
        return next(_returned(partial(method, self, *arguments, **options)))

    return call


def _returned(method: Callable[[], Coroutine[object, object, _T]]) -> Generator[_T]:
    # One line: a signal that is handled behind it would lose what the call has opened.
    yield (yield from method().__await__())  # the first is never reached


class BlockingThread(TrioThread):
    """The thread of a client that other threads call, which wait."""

    def __init__(self, name: str) -> None:
        super().__init__(name, waiter=LockWaiter, current=current_thread, close="close")

    @override
    def check_may_wait(self, what: str) -> None:
        """Refuse a call in a thread that runs an event loop."""
        refuse_event_loop(what, self)

    check_may_block = check_may_wait  # here each wait blocks the thread of its caller

    @override
    def wrap(self, function: object) -> object:
        """Make a function awaitable for the trio client; return other values unchanged.

        Raises:
            UsageError: It is a coroutine function.
        """
        if iscoroutinefunction(function):
            raise _no_coroutines(function)
        return _InWorkerThread(function, self) if callable(function) else function

    open = enter = _blocking(TrioThread.async_open)
    exit = _blocking(TrioThread.async_exit)
    leave = _blocking(TrioThread.async_leave)
    _wait_as_other = _blocking(TrioThread.async_wait)

    def wait(
        self,
        function: Callable[[], Awaitable[_T]],
        what: str,
        *,
        undo: Callable[[_T], Awaitable[object]] | None = None,
    ) -> _T:
        """Run a coroutine function of trio in the client's thread; see `TrioThread`."""
        if not self.is_in_callback:
            return self._wait_as_other(function, what, undo=undo)
        self.check_may_wait(what)
        try:
            return trio.from_thread.run(function)  # in the task that waits for the callback
        except trio.Cancelled:
            raise DisconnectedError(f"{what} was cancelled") from None


def refuse_event_loop(what: str, thread: TrioThread) -> None:
    """Refuse to block a thread that runs an event loop.

    Args:
        what: The call.
        thread: The client's.

    Raises:
        UsageError: This thread runs trio or asyncio.
    """
    if trio.lowlevel.in_trio_run():
        if thread.is_current:
            raise UsageError(
                f"{what} was called by a callback that runs in the client's own thread, which it "
                "would block: call it in a handler, or in a thread of your own"
            )
        raise UsageError(
            f"{what} of haclient.blocking would block this thread, which runs trio: use "
            "haclient.HAClient, or trio.to_thread.run_sync"
        )
    asyncio = sys.modules.get("asyncio")  # whoever runs it has imported it
    if asyncio is not None and asyncio._get_running_loop() is not None and not _is_notebook():  # noqa: SLF001  # get_running_loop raises instead
        raise UsageError(
            f"{what} of haclient.blocking would block this thread, which runs asyncio: use "
            "haclient.aio.HAClient, or asyncio.to_thread"
        )


def _is_notebook() -> bool:
    """Whether this is a shell of IPython: its kernel runs cells inside a loop of asyncio."""
    shell = sys.modules.get("IPython")
    return shell is not None and shell.get_ipython() is not None


# -- callbacks of the client in worker threads ----------------------------------------------


@dataclass(frozen=True, slots=True)
class _InWorkerThread:
    """A callback of the application, which may block, for the trio client to await.

    Two of the same function are equal, so that a listener can be removed.
    """

    function: Callable[..., object]
    thread: TrioThread

    async def __call__(self, *arguments: object) -> object:
        # Not abandoned when the client is left: after that no handler runs any more.
        task = trio.lowlevel.current_task()
        try:
            return await call_in_thread(self._call, arguments, task, limiter=_HANDLER_THREADS)
        except NeverCalled as error:
            if threading.main_thread().is_alive():
                raise
            # The program ends, and Python may start no thread any more: the client closes in order.
            raise ShuttingDown(str(error)) from error

    def _call(self, arguments: tuple[object, ...], task: trio.lowlevel.Task) -> object:
        self.thread.callbacks[current_thread()] = task
        try:
            result = self.function(*arguments)
        finally:
            del self.thread.callbacks[current_thread()]
        if isawaitable(result):
            if iscoroutine(result):
                result.close()  # else Python warns that it was never awaited
            raise _no_coroutines(self.function)
        return result


def _no_coroutines(function: object) -> UsageError:
    return UsageError(
        f"a callback of haclient.blocking is a plain function, and {function!r} is a coroutine "
        "function: use haclient.aio, or haclient.HAClient with trio"
    )


# -- haclient.blocking.run ------------------------------------------------------------------


class _InterruptibleMain:
    """Runs `main` in the main thread, which signals interrupt.

    A thread cannot be cancelled. But after the drain, the drain thread can send the signal once
    more, whose handler raises an exception where `main` waits, as Ctrl-C does.

    A signal that comes just before a blocking wait is handled after the wait, which may never end.
    So it is sent until its handler has run. The counts of sent and received signals distinguish
    these from a second signal by somebody else.
    """

    def __init__(self, shutdown: ThreadShutdown) -> None:
        self._shutdown = shutdown
        self._runs = False
        self._sent = 0
        self._received = 0

    def run(self, main: Callable[[], _T]) -> _T:
        with signal_handler(STOP_SIGNALS, self._on_signal):
            try:
                self._runs = True
                self._shutdown.drained.add_done_callback(self._interrupt)
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
        if self._runs:
            self._runs = False
            raise MainEnded

    def _interrupt(self, _: object) -> None:
        ident = threading.main_thread().ident
        assert ident is not None  # noqa: S101  # it runs
        while not self._received:
            self._sent += 1
            signal.pthread_kill(ident, self._shutdown.number)
            sleep(_RESEND_S)


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
        UsageError: `main` is no plain function, `grace` is not a valid time, or this is not the
            main thread.
        GraceExpired: The grace period ended first. The text names what was left.
        KeyboardInterrupt: SIGINT ended it, in the same order.
    """
    check_main(main, is_async=False)
    shutdown = ThreadShutdown(grace)
    return shutdown.run(partial(_InterruptibleMain(shutdown).run, main))

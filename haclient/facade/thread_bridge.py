"""Between threads that block and the thread of a client: calls, callbacks, life, shutdown.

`TrioThread` runs the client. This module passes calls from any thread to the client's thread
(`BlockingThread.wait`), and callbacks of the application from there to worker threads
(`BlockingThread.wrap`).

A call that is interrupted is cancelled in the client's thread and waited for, as trio does it: it
is undone or complete when its caller continues. A callback that is cancelled, since its client is
being left, is waited for as well, so the call that it makes is cancelled. A call in a thread that
runs an event loop is refused, since it would block that loop (`refuse_event_loop`).
"""

from __future__ import annotations

import math
import queue
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable, iscoroutine, iscoroutinefunction
from threading import get_ident
from time import monotonic  # noqa: TID251  # a thread that waits for a lock runs no trio
from typing import Final, TypeVar

import trio
from typing_extensions import override

from haclient.client import BaseClient
from haclient.errors import UsageError
from haclient.facade.shutdown import ThreadShutdown
from haclient.facade.thread import Call, TrioThread, open_timed_out
from haclient.options import seconds
from haclient.service import DEFAULT_GRACE_S, STOP_SIGNALS, signal_handler, use_defaults

_F = TypeVar("_F")
_T = TypeVar("_T")

WORDS: Final = {
    "async with": "with",
    "async for": "for",
    "An async iterator": "An iterator",
    "A coroutine function or plain function": "A plain function",
    "A plain function or a coroutine function": "A plain function",
    "another task": "another thread",
}
"""What the words of the trio client's docstrings are here."""

# A handler occupies a thread of its own; there is one at a time for each subscription, or as many
# as `workers` says. With fewer, handlers that wait for each other could wait for ever.
_HANDLER_THREADS: Final = trio.CapacityLimiter(float("inf"))

_CANCELLED_CHECK_S: Final = 0.1
"""How often a callback that waits for a call checks whether its client is being left."""

_SIGNAL_CHECK_S: Final = 1.0
"""How often a wait of the main thread lets the handlers of signals run."""

_RESEND_S: Final = 0.1
"""Seconds between two signals to a main thread that has not reacted."""


class BlockingThread(TrioThread):
    """The thread of a client that other threads call, which wait."""

    # -- calls ----------------------------------------------------------------

    @property
    def caller(self) -> object:
        """Who makes a call in the calling thread; see `haclient.transport.tasks`."""
        return self.callback_threads.get(get_ident()) or threading.current_thread()

    def wait(
        self,
        function: Callable[[], Awaitable[_T]],
        what: str,
        *,
        undo: Callable[[_T], Awaitable[object]] | None = None,
    ) -> _T:
        """Run a coroutine function of trio in the client's thread; return or raise what it does.

        Args:
            function: The coroutine function.
            what: The name of the method, for errors.
            undo: Takes back what the function has done if it is complete when the caller is
                interrupted, who never gets its result. A coroutine function of trio.
        """
        refuse_event_loop(what, self)
        done = threading.Lock()
        done.acquire()
        call: Call[_T] = Call(done.release, what, caller=self.caller)
        try:
            self.submit(call, function)
            self._wait_for(call, done)
            return call.outcome()
        except BaseException:  # of the call, or an interrupt, which a signal handler raises
            call.cancel()
            if call.is_running:  # an interrupt may come when the call has just ended
                done.acquire()
            if undo is not None and call.has_result:
                with suppress(Exception):  # the client has ended: nothing is left to undo
                    self.wait(partial(undo, call.outcome()), what)
            raise

    def _wait_for(self, call: Call[_T], done: threading.Lock) -> None:
        """Wait for the end of a call; cancel it if a callback makes it and is cancelled itself."""
        if get_ident() in self.callback_threads:
            while not done.acquire(timeout=_CANCELLED_CHECK_S):
                if _is_cancelled():
                    call.cancel()
                    break
            else:
                return
        acquire(done)

    @override
    def check_may_block(self, what: str) -> None:
        """Refuse a call in a thread that runs an event loop."""
        refuse_event_loop(what, self)

    @override
    def wrap(self, function: object) -> object:
        """A callback as one that the trio client can await; what is no function stays as it is.

        Raises:
            UsageError: It is a coroutine function.
        """
        if iscoroutinefunction(function):
            raise _no_coroutines(function)
        return _InWorkerThread(function, self) if callable(function) else function

    # -- life -----------------------------------------------------------------

    def open(self, client: BaseClient, timeout: float | None, facade: _F) -> _F:
        """Begin to run a client, and wait until it is entered.

        Args:
            client: The client.
            timeout: Seconds to wait; `None` for no limit.
            facade: What to return.

        Raises:
            UsageError: As for `start` and `refuse_event_loop`, or `timeout` is no time.
            HAClientError: It cannot connect, within the time, or was closed.
        """
        refuse_event_loop("open", self)
        limit_s = seconds(timeout)
        entered = threading.Lock()
        entered.acquire()
        try:  # up to the last line: an interrupt anywhere leaves the client closed
            self.start(client, entered.release)
            if not acquire(entered, limit_s):
                raise open_timed_out(client, limit_s)  # noqa: TRY301  # closed below
            if not (self.has_ended or self.error is not None):
                return facade
        except UsageError:  # it was opened before, and may be in use
            raise
        except BaseException:  # a KeyboardInterrupt, or the limit
            self.abort()
            raise
        self.join()
        self.raise_error()
        raise self.why_cut_short("open")

    def enter(self, client: BaseClient, facade: _F) -> _F:
        """As `open`, at the beginning of a block."""
        return self.open(client, None, facade)

    def exit(self, _kind: type[BaseException] | None, error: BaseException | None) -> None:
        """End the client at the end of a block, which an error may leave."""
        self.leave(drains=error is None)
        # A KeyboardInterrupt or SystemExit of the block takes precedence.
        if error is None or (isinstance(error, Exception) and error is not self.error):
            self.raise_error()

    def leave(self, *, drains: bool) -> None:
        """End the client, and wait for that.

        Args:
            drains: Whether to wait for what was published.

        Raises:
            UsageError: A handler of the client calls this.
        """
        if not self.is_running:
            return  # also in a process that was forked: the client belongs to the other one
        refuse_event_loop("close", self)
        if get_ident() in self.callback_threads:
            raise UsageError(
                "close was called by a handler of the client, and would wait for that handler: "
                "call it in the thread that has opened the client"
            )
        try:
            self.stop(drains=drains)
            self.join()
        except BaseException:  # a KeyboardInterrupt: leave at once
            self.abort()
            raise


def acquire(lock: threading.Lock, timeout: float = math.inf) -> bool:
    """Acquire a lock, of which the main thread gives up when a signal's handler raises.

    A signal interrupts a wait only once that has begun: one that comes in the moment before would
    be handled after the wait, which may be never.

    Args:
        lock: The lock.
        timeout: Seconds to wait.

    Returns:
        Whether it was acquired in time.
    """
    if threading.current_thread() is not threading.main_thread():
        return lock.acquire(timeout=min(timeout, threading.TIMEOUT_MAX))
    wait_until = monotonic() + timeout
    while not lock.acquire(timeout=min(timeout, _SIGNAL_CHECK_S)):
        timeout = max(0.0, wait_until - monotonic())
        if not timeout:
            return False
    return True


def _is_cancelled() -> bool:
    """Whether the task that waits for the callback in this thread is cancelled."""
    try:
        trio.from_thread.check_cancelled()
    except trio.Cancelled:
        return True
    return False


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
        return await trio.to_thread.run_sync(self._call, arguments, task, limiter=_HANDLER_THREADS)

    def _call(self, arguments: tuple[object, ...], task: trio.lowlevel.Task) -> object:
        ident = get_ident()
        self.thread.callback_threads[ident] = task
        try:
            result = self.function(*arguments)
        finally:
            del self.thread.callback_threads[ident]
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


class _MainInterrupted(
    BaseException
):  # like KeyboardInterrupt, so that `except Exception` does not catch it
    """Raised in `main` where it waits."""


class _InterruptibleMain:
    """Runs `main` in the main thread, which signals interrupt.

    A thread cannot be cancelled. But after the drain, the drain thread can send the signal once
    more, whose handler raises an exception where `main` waits, as Ctrl-C does.

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

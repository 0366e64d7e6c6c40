"""Calls between the thread of a client and threads of the application, which may block.

`TrioThread` runs the client of `haclient.blocking`. This module passes calls from any thread to the
client's thread (`Bridge.wait`), and callbacks of the application from there to worker threads
(`in_worker_thread`).

A call that is interrupted is cancelled in the client's thread and waited for, as trio does it: it
is undone or complete when its caller continues. A callback that is cancelled, since its client is
being left, is waited for as well, so the call that it makes is cancelled. A call in a thread that
runs an event loop is refused, since it would block that loop (`refuse_event_loop`).
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable, iscoroutine, iscoroutinefunction
from threading import get_ident
from time import monotonic  # noqa: TID251  # a thread that waits for a lock runs no trio
from typing import Final, Generic, TypeVar

import trio

from haclient.errors import UsageError
from haclient.facade.thread import Call, TrioThread

_Inner_co = TypeVar("_Inner_co", covariant=True)
_T = TypeVar("_T")

# A handler occupies a thread of its own; there is one at a time for each subscription, or as many
# as `workers` says. With fewer, handlers that wait for each other could wait for ever.
_HANDLER_THREADS: Final = trio.CapacityLimiter(float("inf"))

_CANCELLED_CHECK_S: Final = 0.1
"""How often a callback that waits for a call checks whether its client is being left."""

_SIGNAL_CHECK_S: Final = 1.0
"""How often a wait of the main thread lets the handlers of signals run."""


# -- calls of the application in the client's thread ---------------------------------------


class Bridge(Generic[_Inner_co]):
    """Calls an object of the trio client in the thread that it lives in.

    Args:
        inner: The client, or a stream.
        thread: The client's thread.
    """

    def __init__(self, inner: _Inner_co, thread: TrioThread) -> None:
        self._inner = inner
        self.thread = thread

    @property
    def inner(self) -> _Inner_co:
        """The client, or a stream."""
        return self._inner

    def wait(self, function: Callable[[], Awaitable[_T]], what: str) -> _T:
        """Run a coroutine function in the client's thread; return or raise what it does."""
        refuse_event_loop(what, self.thread)
        done = threading.Lock()
        done.acquire()
        call: Call[_T] = Call(done.release, what, caller=self.thread.caller)
        try:
            self.thread.submit(call, function)
            self._wait_for(call, done)
        except BaseException:  # a KeyboardInterrupt, or what another signal handler raises
            call.cancel()
            if call.is_running:  # an interrupt may come when the call has just ended
                done.acquire()
            raise
        return call.outcome()

    def _wait_for(self, call: Call[_T], done: threading.Lock) -> None:
        """Wait for the end of a call; cancel it if a callback makes it and is cancelled itself."""
        if get_ident() in self.thread.callback_threads:
            while not done.acquire(timeout=_CANCELLED_CHECK_S):
                if _is_cancelled():
                    call.cancel()
                    break
            else:
                return
        acquire(done)

    def now(self, function: Callable[[], _T], what: str) -> _T:
        """Run a plain function in the client's thread; return or raise what it does."""
        refuse_event_loop(what, self.thread)
        done = threading.Lock()
        done.acquire()
        call: Call[_T] = Call(done.release, what)
        self.thread.submit_now(call, function)
        done.acquire()
        return call.outcome()

    def read(self, read: Callable[[_Inner_co], _T], what: str) -> _T:
        """Read a property: in the client's thread, or here if that does not run."""
        if self.thread.is_running:
            try:
                return self.now(partial(read, self._inner), what)
            except BaseException as error:
                if not self.thread.is_of_end(error):
                    raise
        return read(self._inner)

    def wrap(self, function: object) -> object:
        """A callback of the application as one that the trio client can await."""
        return in_worker_thread(function, self.thread)


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


def in_worker_thread(function: object, thread: TrioThread) -> object:
    """A callback as one that the trio client can await; other values are returned unchanged.

    Raises:
        UsageError: It is a coroutine function.
    """
    if iscoroutinefunction(function):
        raise _no_coroutines(function)
    return _InWorkerThread(function, thread) if callable(function) else function


def _no_coroutines(function: object) -> UsageError:
    return UsageError(
        f"a callback of haclient.blocking is a plain function, and {function!r} is a coroutine "
        "function: use haclient.aio, or haclient.HAClient with trio"
    )

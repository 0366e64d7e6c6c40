"""Between an event loop of asyncio and the thread of a client: calls, callbacks, life, shutdown.

`TrioThread` runs the client, and has what its callers do. This module is how a task of asyncio
waits for that thread, and how the thread calls the callbacks of the application in the loop
(`LoopThread.wrap`).

Both directions keep what cancellation means in trio: a cancelled call or callback is asked to end
and is waited for, so that it is undone or complete when its caller continues. There is one
exception: a callback whose loop has stopped cannot end, and is waited for no longer.

Only `asyncio`'s public functions and methods are used, so that any implementation of a loop will
do.
"""

from __future__ import annotations

import asyncio  # noqa: TID251  # for those who use it
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from inspect import isawaitable
from typing import Final, TypeVar

import trio
from typing_extensions import override

from haclient.client import BaseClient
from haclient.errors import DisconnectedError, UsageError
from haclient.facade.shutdown import ThreadShutdown
from haclient.facade.thread import F, MainEnded, TrioThread, Waiter
from haclient.service import DEFAULT_GRACE_S, STOP_SIGNALS, check_main, first_signal
from haclient.transport.message_queue import ShuttingDown
from haclient.transport.tasks import NeverCalled, in_handler

_T = TypeVar("_T")

WORDS: Final[dict[str, str]] = {}
"""How words of the trio client's docstrings read here: all fit as they are."""

_LOOP_CHECK_S: Final = 0.1
"""How often it is checked, for a cancelled callback that does not end, whether its loop runs."""


def call_soon(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Call a function in a loop, from any thread; not in one that was closed."""
    with suppress(RuntimeError):  # nobody waits there any more
        loop.call_soon_threadsafe(function)


class LoopWaiter(Waiter):
    """Where a task of asyncio waits: the one that has made this."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    @override
    def notify(self) -> None:
        call_soon(self._loop, self._event.set)

    @override
    async def wait(self, limit_s: float = math.inf) -> bool:
        if limit_s == math.inf:
            return await self._event.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._event.wait()
        return self._event.is_set()

    @override
    async def wait_uncancelled(self) -> None:
        while not self._event.is_set():
            with suppress(asyncio.CancelledError):  # the caller raises the first one
                await self._event.wait()


class LoopThread(TrioThread):
    """The thread of a client that tasks of an event loop call.

    Attributes:
        loop: The event loop in which the client was opened; `None` before.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, waiter=LoopWaiter, current=asyncio.current_task, close="aclose")
        self.loop: asyncio.AbstractEventLoop | None = None
        self._body: asyncio.Timeout | None = None  # of the block; no time ends it but the client

    @override
    def check_may_wait(self, what: str) -> None:
        """Refuse a caller who runs no loop, or another one than the client's, or is a fork."""
        self.check_process()  # first: a forked process runs no loop
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            other = "haclient.HAClient" if trio.lowlevel.in_trio_run() else "haclient.blocking"
            raise UsageError(
                f"{what} of haclient.aio was called where no event loop of asyncio runs: "
                f"use {other} there"
            ) from None
        if self.loop is not None and self.loop is not loop:
            raise UsageError(
                f"{what} was called in another event loop than the one in which the client "
                f"{self.name!r} was opened: make a client in each loop"
            )

    @override
    def wrap(self, function: object) -> object:
        """Make a function awaitable for the trio client; return other values unchanged."""
        return _InLoop(function, self) if callable(function) else function

    wait = TrioThread.async_wait
    leave = TrioThread.async_leave

    async def open(self, client: BaseClient, timeout: float | None, facade: F) -> F:
        """Begin to run a client, and wait until it is entered; see `TrioThread`."""
        self.check_may_wait("open")
        self.loop = asyncio.get_running_loop()  # first: callbacks may be called at once
        return await self.async_open(client, timeout, facade)

    async def enter(self, client: BaseClient, timeout: float | None, facade: F) -> F:
        """As `open`, at the beginning of a block, whose task is cancelled if the client fails."""
        await self.open(client, timeout, facade)
        self._body = await asyncio.timeout(None).__aenter__()
        self.notify_ended(partial(call_soon, asyncio.get_running_loop(), self._cancel_body))
        return facade

    def _cancel_body(self) -> None:
        if self.error is not None and self._body is not None:
            with suppress(RuntimeError):  # it was left
                self._body.reschedule(0)

    async def exit(self, kind: type[BaseException] | None, error: BaseException | None) -> None:
        """End the client at the end of a block, which an error may leave."""
        if kind is GeneratorExit or self._body is None:  # the loop has dropped the coroutine
            self.cancel()
            return
        if self._body.expired() and not isinstance(error, asyncio.CancelledError):
            with suppress(asyncio.CancelledError):  # it was not delivered yet: it is here
                await asyncio.sleep(0)
        try:
            await self._body.__aexit__(kind, error, None)
        except TimeoutError:  # nobody but the client has cancelled the task
            error = None
        await self.async_exit(kind, error)


# -- callbacks: the way from the client's thread to the loop -------------------------------


@dataclass(frozen=True, slots=True)
class _InLoop:
    """A callback of the application, for the trio client to await.

    Two of the same function are equal, so that a listener can be removed.
    """

    function: Callable[..., object]
    thread: LoopThread
    context: Context = field(compare=False, default_factory=copy_context)

    async def __call__(self, *arguments: object) -> object:
        loop = self.thread.loop
        assert loop is not None  # noqa: S101  # callbacks are called while the client is open
        await trio.lowlevel.checkpoint_if_cancelled()  # else the loop might begin it
        run = _CallbackRun(self, arguments)
        try:
            context = self.context.copy()
            context.run(in_handler.set, in_handler.get())
            loop.call_soon_threadsafe(run.start, context=context)
        except RuntimeError:
            raise NeverCalled(
                f"the event loop of the client {self.thread.name!r} was closed before the "
                "client, which has something for a callback: close the client first"
            ) from None
        try:
            await run.ended.wait()
        except trio.Cancelled:
            run.is_cancelled = True  # at once: a loop that has stopped may run again, and begin it
            call_soon(loop, run.cancel)
            with trio.CancelScope(shield=True):
                while not run.ended.is_set() and loop.is_running():
                    with trio.move_on_after(_LOOP_CHECK_S):
                        await run.ended.wait()
            result = run.outcome()  # or what it raises instead of its cancellation
            if run.has_returned:  # its message is processed
                return result
            raise
        return run.outcome()


class _CallbackRun:
    """One call of a callback in the loop, and its outcome.

    Args:
        callback: What is called.
        arguments: Its arguments.

    Attributes:
        has_returned: Whether `outcome` has returned what the callback has.
        is_cancelled: Whether it was cancelled; then it does not begin any more.
        ended: Set when it has ended.
    """

    def __init__(self, callback: _InLoop, arguments: tuple[object, ...]) -> None:
        self._callback = callback
        self._arguments = arguments
        self._token = trio.lowlevel.current_trio_token()
        self._waiting = trio.lowlevel.current_task()
        self._future: asyncio.Future[object] | None = None
        self.has_returned = False
        self.is_cancelled = False
        self.ended = trio.Event()

    def start(self) -> None:
        """Begin it, in the loop; what a plain function returns needs no task."""
        if self.is_cancelled:
            return
        self._future = asyncio.get_running_loop().create_future()
        try:
            result = self._callback.function(*self._arguments)
        except BaseException as error:
            is_taken = not isinstance(error, StopIteration)  # by a future
            self._future.set_exception(error if is_taken else RuntimeError(repr(error)))
            self._end()
            if not isinstance(error, Exception):  # KeyboardInterrupt and the like end the loop
                raise
            return
        if isawaitable(result):
            self._future = asyncio.ensure_future(self._finish(result))
            self._future.add_done_callback(self._end)
        else:
            self._future.set_result(result)
            self._end()

    async def _finish(self, awaitable: Awaitable[object]) -> object:
        callbacks, task = self._callback.thread.callbacks, asyncio.current_task()
        callbacks[task] = self._waiting  # here: an eager task runs before it is returned
        try:
            return await awaitable
        finally:
            del callbacks[task]

    def _end(self, _: object = None) -> None:
        with suppress(trio.RunFinishedError):  # the loop had stopped, and nobody waits any more
            self._token.run_sync_soon(self.ended.set)

    def cancel(self) -> None:
        """Cancel it, in the loop; `ended` is set when it has ended."""
        if self._future is None:
            self._end()
        else:
            self._future.cancel("the client is left")

    def outcome(self) -> object:
        """What it has returned, after `ended`; raises what it has raised."""
        future = self._future
        if future is None or not future.done() or (self.is_cancelled and future.cancelled()):
            return None
        self._future = None  # the traceback refers to this frame: leave no cycle
        try:
            result = future.result()
        except asyncio.CancelledError:
            # By somebody else, such as `asyncio.run` at its end; or it has raised this itself.
            was_cancelled = isinstance(future, asyncio.Task) and future.cancelling()
            kind = ShuttingDown if was_cancelled else DisconnectedError
            raise kind(
                f"the task of the callback {self._callback.function!r} was cancelled"
            ) from None
        finally:
            del future
        self.has_returned = True
        return result


# -- haclient.aio.run -------------------------------------------------------------------------


def run(main: Callable[[], Awaitable[_T]], *, grace: float = DEFAULT_GRACE_S) -> _T | None:
    """Run a service under asyncio until it returns, or until SIGTERM or SIGINT ends it in order.

    After the first signal handlers finish the message they have and get no further one; streams
    end; each client of the process flushes acknowledgements and publishes, within its
    `exit_timeout`. Then the task of `main` is cancelled, and the blocks of the clients are
    left, which closes their stores. A `main` that returns by itself meanwhile is not cancelled.
    Finally, as by `asyncio.run`, all other tasks are cancelled and the loop is closed.

    Args:
        main: The application, an async function without arguments; use `functools.partial` for
            one that takes some.
        grace: Seconds for all of it, from the signal on; 0 ends at once.

    Returns:
        What `main` returns; `None` when SIGTERM has ended it.

    Raises:
        UsageError: `main` is no function, `grace` is not a valid time, or this is not the main
            thread.
        GraceExpired: The grace period ended first. The text names what was left.
        KeyboardInterrupt: SIGINT ended it, in the same order.
    """
    check_main(main)
    shutdown = ThreadShutdown(grace)

    async def until_drained() -> _T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None  # noqa: S101  # this is one
        shutdown.drained.add_done_callback(lambda _: call_soon(loop, task.cancel))
        try:
            return await main()
        except asyncio.CancelledError:
            if not shutdown.drained.done():  # raised by `main` itself
                raise
            raise MainEnded from None

    def run_loop() -> _T:
        with first_signal(STOP_SIGNALS, shutdown.begin):
            return asyncio.run(until_drained())

    return shutdown.run(run_loop)

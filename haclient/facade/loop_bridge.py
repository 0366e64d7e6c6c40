"""Between an event loop of asyncio and the thread of a client: calls, callbacks, life, shutdown.

`TrioThread` runs the client. This module carries calls from a task of asyncio to that thread
(`LoopThread.wait`), and callbacks of the application from the thread to the loop
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
from inspect import isawaitable, iscoroutine
from typing import Final, TypeVar

import trio
from typing_extensions import override

from haclient.client import BaseClient
from haclient.errors import DisconnectedError, UsageError
from haclient.facade.shutdown import ThreadShutdown
from haclient.facade.thread import Call, TrioThread, open_timed_out
from haclient.options import seconds
from haclient.service import DEFAULT_GRACE_S, STOP_SIGNALS, first_signal

_F = TypeVar("_F")
_T = TypeVar("_T")

WORDS: Final[dict[str, str]] = {}
"""What the words of the trio client's docstrings are here: they fit as they are."""

_LOOP_CHECK_S: Final = 0.1
"""How often it is checked, for a cancelled callback that does not end, whether its loop runs."""


class Wakeup:
    """Wakes the one task that waits for the client's thread.

    Args:
        loop: The loop of that task.
    """

    __slots__ = ("_future", "_is_set", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: asyncio.Future[None] | None = None
        self._is_set = False

    def notify(self) -> None:
        """Wake the task, from any thread."""
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._is_set = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        """Wait for `notify`."""
        if not self._is_set:
            self._future = self._loop.create_future()
            await self._future

    async def wait_within(self, limit_s: float) -> bool:
        """Wait for `notify`; return whether it came in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None if limit_s == math.inf else limit_s):
                await self.wait()
        return self._is_set

    async def wait_uncancelled(self) -> None:
        """Wait for `notify`, no matter how often this task is cancelled meanwhile."""
        while not self._is_set:
            with suppress(asyncio.CancelledError):  # the caller raises the first one
                await self.wait()


class LoopThread(TrioThread):
    """The thread of a client that tasks of an event loop call.

    Attributes:
        loop: The event loop in which the client was opened; `None` before.
        callback_tasks: The trio tasks that wait for a callback of this client, by the asyncio task
            that runs it now.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.callback_tasks: dict[asyncio.Task[object], trio.lowlevel.Task] = {}
        self._body: _Body | None = None

    def running_loop(self, what: str) -> asyncio.AbstractEventLoop:
        """The loop of the calling task, which must be the client's.

        Args:
            what: The call, for the error.

        Raises:
            UsageError: The caller runs no loop of asyncio, or another one, or is in a process that
                was forked.
        """
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
        return loop

    # -- calls ----------------------------------------------------------------

    @property
    def caller(self) -> object | None:
        """Who makes a call in the calling task; see `haclient.transport.tasks`."""
        task = asyncio.current_task()
        return None if task is None else self.callback_tasks.get(task, task)

    async def wait(
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
                cancelled, who never gets its result. A coroutine function of trio.
        """
        wakeup = Wakeup(self.running_loop(what))
        call: Call[_T] = Call(wakeup.notify, what, caller=self.caller)
        self.submit(call, function)
        try:
            await wakeup.wait()
        except asyncio.CancelledError:
            call.cancel()
            await wakeup.wait_uncancelled()
            if undo is not None and call.has_result:
                undoing = Wakeup(self.running_loop(what))
                with suppress(Exception):  # the client has ended: nothing is left to undo
                    self.submit(Call(undoing.notify, what), partial(undo, call.outcome()))
                    await undoing.wait_uncancelled()
            raise
        except BaseException:  # the coroutine is closed, and can wait for nothing
            call.cancel()
            raise
        return call.outcome()

    @override
    def wrap(self, function: object) -> object:
        """A callback as one that the trio client can await; what is no function stays as it is."""
        return _InLoop(function, self) if callable(function) else function

    # -- life -----------------------------------------------------------------

    async def open(self, client: BaseClient, timeout: float | None, facade: _F) -> _F:
        """Begin to run a client, and wait until it is entered.

        Args:
            client: The client.
            timeout: Seconds to wait; `None` for no limit.
            facade: What to return.

        Raises:
            UsageError: As for `start` and `running_loop`, or `timeout` is no time.
            HAClientError: It cannot connect, within the time, or was closed.
        """
        loop = self.running_loop("open")
        limit_s = seconds(timeout)
        self.loop = self.loop or loop  # callbacks may be called before this call returns
        entered = Wakeup(loop)
        self.start(client, entered.notify)
        if not await self._unless_cancelled(entered, limit_s):
            error = open_timed_out(client, limit_s)
            self.cancel()
            await self._wait_ended()
            raise error
        if self.has_ended or self.error is not None:
            await self._wait_ended()
            self.raise_error()
            raise self.why_cut_short("open")
        return facade

    async def enter(self, client: BaseClient, facade: _F) -> _F:
        """As `open`, at the beginning of a block, whose task is cancelled if the client fails."""
        await self.open(client, None, facade)
        self._body = _Body(self)
        return facade

    async def exit(self, kind: type[BaseException] | None, error: BaseException | None) -> None:
        """End the client at the end of a block, which an error may leave."""
        if kind is GeneratorExit or self._body is None:  # the loop has dropped the coroutine
            self.cancel()
            return
        is_cancelled = await self._body.leave(error)
        await self.leave(drains=error is None)
        if is_cancelled and isinstance(error, asyncio.CancelledError):
            return  # by somebody else, too, which goes before; the error was logged
        if error is None or error is not self.error:
            self.raise_error()

    async def leave(self, *, drains: bool) -> None:
        """End the client, and wait for that.

        Args:
            drains: Whether to wait for what was published.

        Raises:
            UsageError: A handler of the client calls this.
        """
        if not self.is_running:
            return  # also in a process that was forked: the client belongs to the other one
        self.running_loop("aclose")
        if asyncio.current_task() in self.callback_tasks:
            raise UsageError(
                "aclose was called by a handler of the client, and would wait for that handler: "
                "call it in the task that has opened the client"
            )
        self.stop(drains=drains)
        await self._unless_cancelled(self._notified_at_end(), math.inf)
        self.join()  # it has nothing left to do

    def _notified_at_end(self) -> Wakeup:
        """Notified when this thread has ended."""
        ended = Wakeup(self.running_loop("aclose"))
        self.notify_ended(ended.notify)
        return ended

    async def _wait_ended(self) -> None:
        await self._notified_at_end().wait_uncancelled()
        self.join()

    async def _unless_cancelled(self, event: Wakeup, limit_s: float) -> bool:
        """Wait for an event; if that is cancelled, leave the client at once, and wait for that."""
        try:
            return await event.wait_within(limit_s)
        except asyncio.CancelledError:
            self.cancel()
            await self._wait_ended()
            raise
        except BaseException:  # the coroutine is closed, and can wait for nothing
            self.cancel()
            raise


class _Body:
    """The task inside the `async with` block of a client, to be cancelled if the client fails.

    Args:
        thread: The client's thread.
    """

    def __init__(self, thread: LoopThread) -> None:
        self._thread = thread
        self._loop = thread.running_loop("open")
        self._task = asyncio.current_task()
        self._is_left = False
        self._has_cancelled = False
        thread.notify_ended(self._notify)

    def _notify(self) -> None:
        with suppress(RuntimeError):  # the loop was closed, and the task with it
            self._loop.call_soon_threadsafe(self._client_ended)

    def _client_ended(self) -> None:
        if self._thread.error is not None and not self._is_left and self._task is not None:
            self._has_cancelled = True
            self._task.cancel(f"the client {self._thread.name!r} has ended by an error")

    async def leave(self, error: BaseException | None) -> bool:
        """Cancel the task no more, and take back a cancellation that this has caused.

        Returns:
            Whether somebody else has cancelled the task as well.
        """
        self._is_left = True
        if not self._has_cancelled or self._task is None:
            return False
        if not isinstance(error, asyncio.CancelledError):
            with suppress(asyncio.CancelledError):  # it was not delivered yet: it is here
                await asyncio.sleep(0)
        return self._task.uncancel() > 0


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
        run = _CallbackRun(self, arguments, trio.lowlevel.current_trio_token())
        try:
            loop.call_soon_threadsafe(run.start, context=self.context.copy())
        except RuntimeError:
            raise UsageError(
                f"the event loop of the client {self.thread.name!r} was closed before the "
                "client, which has something for a callback: close the client first"
            ) from None
        try:
            await run.ended.wait()
        except trio.Cancelled:
            await self._cancel(run, loop)
            run.outcome()  # what it raises instead of its cancellation
            raise
        return run.outcome()

    async def _cancel(self, run: _CallbackRun, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel the callback, and wait for its end for as long as its loop runs."""
        run.is_cancelled = True  # at once: a loop that has stopped may run again, and begin it
        with suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(run.cancel)
        with trio.CancelScope(shield=True):
            while not run.ended.is_set() and loop.is_running():
                with trio.move_on_after(_LOOP_CHECK_S):
                    await run.ended.wait()


class _CallbackRun:
    """One call of a callback in the loop, and its outcome.

    Args:
        callback: What is called.
        arguments: Its arguments.
        token: Of the trio run that waits for `ended`.

    Attributes:
        is_cancelled: Whether nobody wants it any more.
        ended: Set when it has ended.
    """

    def __init__(
        self, callback: _InLoop, arguments: tuple[object, ...], token: trio.lowlevel.TrioToken
    ) -> None:
        self._callback = callback
        self._arguments = arguments
        self._token = token
        self._waiting = trio.lowlevel.current_task()
        self._task: asyncio.Task[object] | None = None
        self.is_cancelled = False
        self._result: object = None
        self._error: BaseException | None = None
        self._has_ended = False
        self.ended = trio.Event()

    def start(self) -> None:
        """Call it, in the loop."""
        if self.is_cancelled:
            return
        try:
            result = self._callback.function(*self._arguments)
            if isawaitable(result):
                tasks = self._callback.thread.callback_tasks
                self._task = asyncio.ensure_future(self._finish(result))
                tasks[self._task] = self._waiting
                self._task.add_done_callback(tasks.pop)
                self._task.add_done_callback(self._done)
                return
            self._result = result
        except BaseException as error:
            self._end(error)
            if not isinstance(error, Exception):  # KeyboardInterrupt and the like end the loop
                raise
        else:
            self._end(None)

    async def _finish(self, awaitable: Awaitable[object]) -> object:
        return await awaitable

    def _done(self, task: asyncio.Task[object]) -> None:
        if task.cancelled() and self.is_cancelled:
            self._end(None)
        elif task.cancelled():
            self._end(
                DisconnectedError(
                    f"the task of the callback {self._callback.function!r} was cancelled"
                )
            )
        elif (error := task.exception()) is None:
            self._result = task.result()
            self._end(None)
        else:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        self._has_ended = True
        self._error = error
        with suppress(trio.RunFinishedError):  # the loop had stopped, and nobody waits any more
            self._token.run_sync_soon(self.ended.set)

    def cancel(self) -> None:
        """Cancel it, in the loop; `ended` is set when it has ended."""
        if self._task is not None:
            self._task.cancel("the client is left")
        elif not self._has_ended:  # else `outcome` may still have an error to raise
            self._end(None)

    def outcome(self) -> object:
        """What it has returned, after `ended`; raises what it has raised."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # the traceback refers to this frame: leave no cycle
        return self._result


# -- haclient.aio.run -------------------------------------------------------------------------


class _CancellableMain:
    """Runs `main` in a loop of the main thread, and cancels it."""

    def __init__(self, grace_s: float) -> None:
        self._shutdown = ThreadShutdown(grace_s, self._cancel_soon)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[object] | None = None
        self._should_end = False
        self._is_cancelled = False
        self._was_ended = False

    def run(self, main: Callable[[], Awaitable[_T]]) -> _T | None:
        try:
            with first_signal(STOP_SIGNALS, self._shutdown.begin):
                result = asyncio.run(self._until_ended(main))
        finally:
            self._shutdown.close()
        return self._shutdown.result(result, was_ended=self._was_ended)

    async def _until_ended(self, main: Callable[[], Awaitable[_T]]) -> _T | None:
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        if self._should_end:  # the signal came before there was a loop to cancel in
            self._cancel()
        try:
            return await main()
        except asyncio.CancelledError:
            if not self._is_cancelled:  # raised by `main` itself
                raise
            self._was_ended = True
            return None

    def _cancel_soon(self) -> None:
        self._should_end = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop was closed: `main` has ended
                self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        assert self._task is not None  # noqa: S101  # set before the loop
        if not self._is_cancelled:  # once: a second one would interrupt the clean-up of `main`
            self._is_cancelled = True
            self._task.cancel()


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
        UsageError: `main` is a coroutine, `grace` is not a valid time, or this is not the main
            thread.
        GraceExpired: The grace period ended first. The text names what was left.
        KeyboardInterrupt: SIGINT ended it, in the same order.
    """
    if iscoroutine(main):
        main.close()  # else Python warns that it was never awaited
        raise UsageError("main is an async function, not its coroutine: run(main), not run(main())")
    return _CancellableMain(grace).run(main)

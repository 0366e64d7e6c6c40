"""The way between an event loop of asyncio and the thread of a client.

`haclient.aio` is thin, like `haclient.blocking`: `TrioThread` runs the client. This module carries
calls from a task of asyncio to that thread (`Bridge.wait`), and callbacks of the application from
the thread to the loop (`in_loop`).

Both directions keep what cancellation means in trio: a cancelled call or callback is asked to end
and is waited for, so that it is undone or complete when its caller continues. There is one
exception: a callback whose loop has stopped cannot end, and is waited for no longer.

Only `asyncio`'s public functions and methods are used, so that any implementation of a loop will
do.
"""

from __future__ import annotations

import asyncio  # noqa: TID251  # for those who use it
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from inspect import isawaitable
from typing import Final, Generic, TypeVar

import trio

from haclient.errors import DisconnectedError, UsageError
from haclient.facade.thread import Call, TrioThread

_Inner_co = TypeVar("_Inner_co", covariant=True)
_T = TypeVar("_T")

_LOOP_CHECK_S: Final = 0.1
"""How often it is checked, for a cancelled callback that does not end, whether its loop runs."""


# -- the way from the loop to the client's thread and back ---------------------------------


class LoopThread:
    """The client's thread, and the event loop that it works for.

    Args:
        name: The client's name.

    Attributes:
        thread: The client's thread.
        loop: The event loop in which the client was opened; `None` before.
        callback_tasks: The trio tasks that wait for a callback of this client, by the asyncio task
            that runs it now.
    """

    def __init__(self, name: str) -> None:
        self.thread = TrioThread(name)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.callback_tasks: dict[asyncio.Task[object], trio.lowlevel.Task] = {}

    @property
    def caller(self) -> object | None:
        """Who makes a call in the calling task; see `haclient.transport.caller`."""
        task = asyncio.current_task()
        return None if task is None else self.callback_tasks.get(task, task)

    def running_loop(self, what: str) -> asyncio.AbstractEventLoop:
        """The loop of the calling task, which must be the client's.

        Args:
            what: The call, for the error.

        Raises:
            UsageError: The caller runs no loop of asyncio, or another one, or is in a process that
                was forked.
        """
        self.thread.check_process()  # first: a forked process runs no loop
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
                f"{self.thread.name!r} was opened: make a client in each loop"
            )
        return loop


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

    async def wait_uncancelled(self) -> None:
        """Wait for `notify`, no matter how often this task is cancelled meanwhile."""
        while not self._is_set:
            with suppress(asyncio.CancelledError):  # the caller raises the first one
                await self.wait()


class Bridge(Generic[_Inner_co]):
    """Calls an object of the trio client in the thread that it lives in.

    Args:
        inner: The client, or a stream.
        home: The client's thread and loop.
    """

    def __init__(self, inner: _Inner_co, home: LoopThread) -> None:
        self._inner = inner
        self.home = home

    @property
    def inner(self) -> _Inner_co:
        """The client, or a stream."""
        return self._inner

    @property
    def thread(self) -> TrioThread:
        """The client's thread."""
        return self.home.thread

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
        wakeup = Wakeup(self.home.running_loop(what))
        call: Call[_T] = Call(wakeup.notify, what, caller=self.home.caller)
        self.home.thread.submit(call, function)
        try:
            await wakeup.wait()
        except asyncio.CancelledError:
            call.cancel()
            await wakeup.wait_uncancelled()
            if undo is not None and call.has_result:
                await self._undo(partial(undo, call.outcome()), what)
            raise
        except BaseException:  # the coroutine is closed, and can wait for nothing
            call.cancel()
            raise
        return call.outcome()

    async def _undo(self, function: Callable[[], Awaitable[object]], what: str) -> None:
        wakeup = Wakeup(self.home.running_loop(what))
        with suppress(Exception):  # the client has ended: nothing is left to undo
            self.home.thread.submit(Call(wakeup.notify, what), function)
            await wakeup.wait_uncancelled()

    def now(self, function: Callable[[], _T], what: str) -> _T:
        """Run a plain function in the client's thread, for which the caller stands still.

        The client's thread never waits for the loop without a task switch of its own, so that
        neither of the two can stop the other for long.
        """
        if self.home.thread.is_current:  # a callback that the client calls at once
            return function()
        done = threading.Lock()
        done.acquire()
        call: Call[_T] = Call(done.release, what)
        self.home.thread.submit_now(call, function)
        done.acquire()
        return call.outcome()

    def read(self, read: Callable[[_Inner_co], _T], what: str) -> _T:
        """Read a property: in the client's thread, or here if that does not run."""
        if self.home.thread.is_running:
            try:
                return self.now(partial(read, self._inner), what)
            except BaseException as error:
                if not self.home.thread.is_of_end(error):
                    raise
        return read(self._inner)

    def wrap(self, function: object) -> object:
        """A callback of the application as one that the trio client can await."""
        return in_loop(function, self.home)


# -- callbacks: the way from the client's thread to the loop -------------------------------


@dataclass(frozen=True, slots=True)
class _InLoop:
    """A callback of the application, for the trio client to await.

    Two of the same function are equal, so that a listener can be removed.
    """

    function: Callable[..., object]
    home: LoopThread
    context: Context = field(compare=False, default_factory=copy_context)

    async def __call__(self, *arguments: object) -> object:
        loop = self.home.loop
        assert loop is not None  # noqa: S101  # callbacks are called while the client is open
        run = _CallbackRun(self, arguments, trio.lowlevel.current_trio_token())
        try:
            loop.call_soon_threadsafe(run.start, context=self.context.copy())
        except RuntimeError:
            raise UsageError(
                f"the event loop of the client {self.home.thread.name!r} was closed before the "
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
                tasks = self._callback.home.callback_tasks
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


def in_loop(function: object, home: LoopThread) -> object:
    """A callback as one that the trio client can await; what is no function stays as it is."""
    return _InLoop(function, home) if callable(function) else function

"""A thread that runs trio, with one client in it, for callers who do not run trio.

`haclient.blocking` and `haclient.aio` are thin: each of their methods runs the method of the same
name of the trio client in the client's own thread. This module is that thread, with all that its
callers have in common. How they wait for it, and how it calls their handlers, is in
`haclient.facade.loop_bridge` for tasks of asyncio, and in `haclient.facade.thread_bridge` for
threads that block.

**Life.** `start` begins the thread, which enters the client's block; `stop` has it leave the block,
as the end of an `async with` would, and the thread then ends. The thread itself holds the block:
the task that has entered a cancel scope must also leave it. An error that leaves the block (a
handler raised, a store is full) ends the thread. It is raised to every call that waits and to every
later one.

**Calls.** A call is a task of its own, beside the client's block and not in it, so that its error
ends no other call. It ends with the client at the latest: a caller never waits for a thread that
has ended. A call that is cancelled or interrupted is waited for, as trio does it: what it had begun
is undone or complete when its caller goes on.

**The end of the process.** Python stops threads like this one anywhere, also between a message and
its acknowledgement. So clients that are open when the main thread and all other threads of the
application have ended, except daemons, are closed by `atexit`, with a `ResourceWarning`. In a child
after `os.fork` the thread does not exist, and calls are refused.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, Generic, TypeVar

import trio

from haclient.client import BaseClient
from haclient.errors import DisconnectedError, UsageError
from haclient.options import seconds
from haclient.transport.open_clients import OpenClients, open_clients
from haclient.transport.tasks import (
    Caller,
    calling,
    check_threads_are_real,
    current_caller,
    in_handler,
    unwrapped,
)
from haclient_stores.logs import logger_of

F = TypeVar("F")
T = TypeVar("T")
_Inner_co = TypeVar("_Inner_co", covariant=True)
_Thread_co = TypeVar("_Thread_co", bound="TrioThread", covariant=True)
Notify = Callable[[], object]
"""Wakes a caller; it is called once, in the client's thread, and must not raise."""

_EXIT_CHECK_S: Final = 0.1
"""How often it is checked, while clients are closed at exit, whether others were opened."""

_HANDLER_WAIT_S: Final = 1.0
"""Seconds for handlers to end, when a client fails, before iterations raise without its error."""

_logger = logger_of(__name__)
_begun: Final[set[TrioThread]] = set()  # and not ended


class MainEnded(BaseException):  # like KeyboardInterrupt: `except Exception` lets it pass
    """Raised where `main` waits, after the drain; and in the drain when `main` has returned."""


class Call(Generic[T]):
    """One call in the client's thread, and its outcome after `notify` was called.

    Args:
        notify: Wakes the caller.
        what: The name of the method, for errors.
        caller: Who makes it (`haclient.transport.tasks`); `None` if that one takes no
            messages.

    Attributes:
        has_begun: Whether its task was started, or it was refused.
        has_ended: Whether `notify` was called.
        result: Empty, or what it has returned.
        token: Of the client's thread; `None` before it was submitted there.
        what: The name of the method.
    """

    def __init__(self, notify: Notify, what: str, *, caller: object | None = None) -> None:
        self._caller = Caller(caller, in_handler.get())
        self._notify = notify
        self._scope = trio.CancelScope()
        self.result: list[T] = []
        self._error: BaseException | None = None
        self.has_begun = False
        self.has_ended = False
        self.token: trio.lowlevel.TrioToken | None = None
        self.what = what

    async def run(self, function: Callable[[], Awaitable[T]], thread: TrioThread) -> None:
        """Carry out a coroutine function, as a task in the client's thread."""
        error: BaseException | None = None
        try:
            with calling(self._caller), self._scope:
                thread.check_not_ended(self.what)
                self.result.append(await function())
        except trio.Cancelled:  # the client was left, or has ended by an error
            error = thread.why_cut_short(self.what)
            raise
        except BaseException as raised:  # the caller gets it, whatever it is
            error = raised
        finally:
            self.end(error)
            del error  # its traceback refers to this frame: leave no cycle

    def run_now(self, function: Callable[[], T]) -> None:
        """Carry out a plain function in the client's thread."""
        try:
            self.result.append(function())
        except BaseException as error:  # the caller gets it, whatever it is
            self.end(error)
        else:
            self.end(None)

    def end(self, error: BaseException | None) -> None:
        """Wake the caller, who gets this error, or the result."""
        self._error = error
        self.has_ended = True  # before the caller is woken
        self._notify()

    def cancel(self) -> None:
        """Cancel it, from any thread; `notify` is called when it has ended."""
        if self.token is None:
            return
        try:
            self.token.run_sync_soon(self._cancel)
        except trio.RunFinishedError:  # it has ended, like everything there, or never began
            self.has_ended = True

    def _cancel(self) -> None:
        self._scope.cancel()
        if not self.has_begun:  # an interrupt came before it was submitted
            self.end(None)

    def outcome(self) -> T:
        """What it has returned, after `notify`; raises what it has raised."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # the traceback refers to this frame: leave no cycle
        if not self.result:
            raise DisconnectedError(f"{self.what} was cancelled")
        return self.result[0]


class Waiter(ABC):
    """Where one caller waits for the client's thread: a task of asyncio, or a thread."""

    @abstractmethod
    def notify(self) -> None:
        """Wake the caller, from any thread."""

    @abstractmethod
    async def wait(self, limit_s: float = math.inf) -> bool:
        """Wait for `notify`; return whether it came in time."""

    @abstractmethod
    async def wait_uncancelled(self) -> None:
        """Wait for `notify`, no matter how often the caller is cancelled meanwhile."""


class TrioThread(ABC):
    """The thread of one client, and how callers wait for it.

    The coroutine methods `async_open`, `async_exit`, `async_leave` and `async_wait` run in the
    caller's thread, and suspend only in a `Waiter`. If that one blocks, they run through at once.

    Args:
        name: The client's name, for the thread's and for errors.
        waiter: Makes a waiter for the caller.
        current: Returns the caller: a task of asyncio, or a thread.
        close: The name of the method that closes the client.

    Attributes:
        name: The client's name.
        error: What has ended the client; `None` while it is open and after an ordinary end.
        callbacks: The trio tasks that wait for a callback of this client, by who runs it
            (`current`).
        clients: What `run` finishes and flushes in this thread at the end of the process.
        closes_at_exit: Whether the end of the program closes the client, without a warning.
        has_ended: Whether it was started and has ended.
    """

    def __init__(
        self,
        name: str,
        *,
        waiter: Callable[[], Waiter],
        current: Callable[[], object],
        close: str,
    ) -> None:
        self.name = name
        self.error: BaseException | None = None
        self._traceback: TracebackType | None = None  # of the error, when the client ended
        self.callbacks: dict[object, trio.lowlevel.Task] = {}
        self.clients = OpenClients()
        self.closes_at_exit = False
        self._waiter = waiter
        self._current = current
        self._close = close
        self._pid = os.getpid()
        self._lock = threading.RLock()  # a signal handler may interrupt who has it
        self._thread: threading.Thread | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._early: list[Callable[[], object]] = []  # what to call once there is a token
        self._calls: trio.Nursery | None = None
        self._task: object = None  # which makes the last calls of listeners, uncancelled
        self._scope = trio.CancelScope()
        self._stop = trio.Event()
        self._waiting_for_end: list[Notify] = []
        self._has_begun = False
        self._has_entered = False
        self.has_ended = False
        self._is_stopped = False
        self._is_failing = False
        self._is_reported = False

    # -- how callers wait, and are called ---------------------------------------

    @abstractmethod
    def check_may_wait(self, what: str) -> None:
        """Refuse a call that waits where that would block an event loop, or that has none.

        Args:
            what: The call, for the error.

        Raises:
            UsageError: It cannot wait here.
        """

    def check_may_block(self, what: str) -> None:
        """Refuse a call in a thread that must not block; by default every thread may."""
        del what

    @abstractmethod
    def wrap(self, function: object) -> object:
        """Make a function awaitable for the trio client; return other values unchanged."""

    # -- life -----------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether it was started, in this process, and has not ended."""
        return self._thread is not None and not (self.has_ended or self.is_forked)

    @property
    def is_forked(self) -> bool:
        """Whether this is a copy of another process, whose threads do not exist here."""
        return self._pid != os.getpid()

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is this one."""
        return self._thread is threading.current_thread()

    @property
    def is_in_callback(self) -> bool:
        """Whether the caller is a callback of this client."""
        return self._current() in self.callbacks

    @property
    def token(self) -> trio.lowlevel.TrioToken | None:
        """For functions to be run in this thread; `None` before it runs trio, and after a fork."""
        return None if self.is_forked else self._token

    def start(self, client: AbstractAsyncContextManager[object], notify: Notify) -> None:
        """Enter the client's block in a new thread.

        Args:
            client: The trio client.
            notify: Called when the block is entered, or when that has failed: see `has_ended` and
                `error`.

        Raises:
            UsageError: It was started before, or this process is a fork, or gevent has replaced
                what the thread needs.
        """
        self.check_process()
        check_threads_are_real()
        with self._lock:
            if self._thread is not None:
                raise UsageError(
                    f"the client {self.name!r} was opened before, and a client runs once: make a "
                    "new one"
                )
            self._thread = threading.Thread(
                target=self._main,
                args=(client, notify),
                name=f"haclient {self.name}",
                daemon=True,  # Python waits for the others before `atexit`, which closes it
            )
        self._thread.start()

    def _main(self, client: AbstractAsyncContextManager[object], notify: Notify) -> None:
        with self._lock:
            if self.has_ended:  # by an interrupt of `start`
                return
            self._has_begun = True
        _begun.add(self)
        try:
            trio.run(self._run, client, notify)
        except BaseException as error:  # a thread has nobody above: callers get it
            self.error = self.error or error
        with self._lock:
            self._traceback = None if self.error is None else self.error.__traceback__
            self.has_ended = True
            waiting, self._waiting_for_end = self._waiting_for_end, []
        _begun.discard(self)
        if not self._has_entered:
            waiting.append(notify)  # `error` says why
        elif self.error is not None:
            _logger.error("client %s has ended by an error: %r", self.name, self.error)
        for each in waiting:
            each()

    async def _run(self, client: AbstractAsyncContextManager[object], notify: Notify) -> None:
        open_clients.set(self.clients)
        self._task = trio.lowlevel.current_task()
        async with trio.open_nursery() as calls:
            self._calls = calls
            with self._lock:
                self._token = trio.lowlevel.current_trio_token()
                for each in self._early:
                    each()
            try:
                with self._scope:
                    async with client:
                        self._has_entered = True
                        notify()
                        try:
                            await self._stop.wait()
                        except trio.Cancelled:  # a task of the client has failed, or `cancel`
                            self._is_failing = not self._scope.cancel_called
                            raise
            except BaseExceptionGroup as group:
                self.error = unwrapped(group)
            except BaseException as error:  # every caller gets it
                self.error = error
            finally:
                self._calls = None
                calls.cancel_scope.cancel()

    def stop(self) -> None:
        """Have the client's block left, from any thread; a second call does nothing.

        While the block is still being entered, which may take for ever, that is cancelled.
        """
        with self._lock:
            if not self._is_stopped:
                self._run_soon(self._leave_block)
                self._is_stopped = True  # last: after an interrupt, a second call has to do it

    def _leave_block(self) -> None:
        self._stop.set()
        if not self._has_entered:
            self._scope.cancel()

    def cancel(self) -> None:
        """Leave the client's block at once, whatever it waits for; from any thread."""
        with self._lock:
            self._run_soon(self._scope.cancel)
            self._is_stopped = True

    def _run_soon(self, function: Callable[[], object]) -> None:
        if self._token is None:
            self._early.append(function)
        elif not self.is_forked:
            with suppress(trio.RunFinishedError):  # it has ended already
                self._token.run_sync_soon(function)

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended."""
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(timeout)

    def notify_ended(self, notify: Notify) -> None:
        """Call `notify` when the thread has ended; at once if it has."""
        with self._lock:
            if not self.has_ended:
                self._waiting_for_end.append(notify)
                return
        notify()

    def raise_error(self) -> None:
        """Raise the error that has ended the client, once."""
        if self.error is not None and not self._is_reported:
            self._is_reported = True
            raise self.error

    def drop(self) -> None:
        """End the client with a warning, if nobody has closed it."""
        if not self.is_running or self._is_stopped:
            return
        self.stop()  # first: a warning may be an error
        if not self.closes_at_exit:
            warnings.warn(
                f"the client {self.name!r} was never closed: use it in a with block, or close it",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    # -- opening and closing, for callers ---------------------------------------

    async def async_open(self, client: BaseClient, timeout: float | None, facade: F) -> F:
        """Begin to run a client, and wait until it is entered.

        Args:
            client: The client.
            timeout: Seconds to wait; `None` for no limit.
            facade: What to return.

        Raises:
            UsageError: As for `start` and `check_may_wait`, or `timeout` is no time.
            HAClientError: It cannot connect, within the time, or was closed.
        """
        self.check_may_wait("open")
        limit_s = seconds(timeout)
        entered = self._waiter()
        try:  # up to the last line: an interrupt anywhere leaves the client closed
            self.start(client, entered.notify)
            if not await entered.wait(limit_s):
                status = client._core.status  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # of ours
                raise status.timed_out(f"open: not logged on within {limit_s:g} s")  # noqa: TRY301  # closed below
            if self.is_running and self.error is None:
                return facade
        except UsageError:  # it was opened before, and may be in use
            raise
        except BaseException as error:  # an interrupt, or the limit
            await self._abort(error)
            raise
        await self._ended().wait_uncancelled()
        self.join()
        self.raise_error()
        raise self.why_cut_short("open")

    async def async_exit(
        self, _kind: type[BaseException] | None, error: BaseException | None
    ) -> None:
        """End the client at the end of a block, which an error may leave."""
        await self.async_leave(drains=error is None)
        # A KeyboardInterrupt, SystemExit or cancellation of the block takes precedence. The orderly
        # end of `main` does not: a service whose client had failed did not end in good order.
        if error is None or (isinstance(error, Exception | MainEnded) and error is not self.error):
            self.raise_error()

    async def async_leave(self, *, drains: bool) -> None:
        """End the client, and wait for that.

        Args:
            drains: Whether to wait for what was published.

        Raises:
            UsageError: A handler of the client calls this.
        """
        if not self.is_running:
            return  # also in a process that was forked: the client belongs to the other one
        self.check_may_wait(self._close)
        if self.is_in_callback:
            raise UsageError(
                f"{self._close} was called by a handler of the client, and would wait for that "
                "handler: call it where the client was opened"
            )
        try:
            (self.stop if drains else self.cancel)()
            await self._ended().wait()
            self.join()  # it has nothing left to do
        except BaseException as error:  # an interrupt: leave at once
            await self._abort(error)
            raise

    async def _abort(self, error: BaseException) -> None:
        """Leave the client's block at once, and wait until the thread has ended.

        It may have been interrupted in `start`, where nobody can know whether there is a thread: if
        there is, it enters nothing and ends.
        """
        self.cancel()
        with self._lock:
            self.has_ended = self.has_ended or not self._has_begun
        if not isinstance(error, GeneratorExit):  # else the coroutine can wait for nothing
            await self._ended().wait_uncancelled()
            self.join()

    def _ended(self) -> Waiter:
        """Notified when this thread has ended."""
        ended = self._waiter()
        self.notify_ended(ended.notify)
        return ended

    # -- calls ----------------------------------------------------------------

    async def async_wait(
        self,
        function: Callable[[], Awaitable[T]],
        what: str,
        *,
        undo: Callable[[T], Awaitable[object]] | None = None,
    ) -> T:
        """Run a coroutine function of trio in the client's thread; return or raise what it does.

        Args:
            function: The coroutine function.
            what: The name of the method, for errors.
            undo: Takes back what the function has done if it is complete when the caller is
                cancelled or interrupted, who never gets its result. A coroutine function of trio.
        """
        self.check_may_wait(what)
        waiter, caller = self._waiter(), self._current()
        call: Call[T] = Call(waiter.notify, what, caller=self.callbacks.get(caller, caller))
        try:
            self.submit(call, function)
            await waiter.wait()
            return call.outcome()
        except BaseException as error:  # of the call, or an interrupt or a cancellation
            call.cancel()
            if isinstance(error, GeneratorExit):  # the coroutine can wait for nothing
                raise
            if call.token is not None and not call.has_ended:
                await waiter.wait_uncancelled()
            if undo is not None and call.result:
                undoing = self._waiter()
                with suppress(Exception):  # the client has ended: nothing is left to undo
                    self.submit(Call(undoing.notify, what), partial(undo, call.outcome()))
                    await undoing.wait_uncancelled()
            raise

    def submit(self, call: Call[T], function: Callable[[], Awaitable[T]]) -> None:
        """Carry out a coroutine function as a task; from any thread.

        Raises:
            UsageError: The client was not opened, was closed, or belongs to another process.
            BaseException: The error that has ended the client.
        """
        self._submit(call, partial(self._begin, call), function)

    def _submit(self, call: Call[T], begin: Callable[[F], object], function: F) -> None:
        self.check_process()
        if self._token is None:
            raise UsageError(
                f"{call.what} of a client that is not open: use `with`, or call open() first"
            )
        # The token is set first: an interrupt before the next line finds a call that `cancel` ends,
        # and one after it a call that can be cancelled.
        call.token = self._token
        try:
            call.token.run_sync_soon(begin, function)
        except trio.RunFinishedError:
            raise self.why_ended(call.what) from None

    def _begin(self, call: Call[T], function: Callable[[], Awaitable[T]]) -> None:
        call.has_begun = True
        if self._calls is None:
            call.end(self.why_ended(call.what))
        else:
            self._calls.start_soon(call.run, function, self)

    def now(self, function: Callable[[], T], what: str) -> T:
        """Run a plain function in this thread; return or raise what it does.

        The caller blocks meanwhile, but not for long: this thread never waits for another one
        without a task switch.
        """
        if self.is_current:  # a callback that the client calls at once
            return function()
        self.check_may_block(what)
        done = threading.Lock()
        done.acquire()
        call: Call[T] = Call(done.release, what)
        self._submit(call, call.run_now, function)
        done.acquire()
        return call.outcome()

    async def check_end(self, *, was_cut: bool = False) -> None:
        """To be called by a call that finds an iteration at its end, in this thread.

        When an error ends the client, every iteration ends first. Its caller must not take that for
        the ordinary end, and gets the error. A handler that is cancelled because the client is left
        must not take it for that either: its message would count as processed.

        Args:
            was_cut: Whether the iteration has ended before its result was complete.
        """
        handlers = {*self.callbacks.values()} - {self._task}
        is_left = was_cut and self._stop.is_set() and current_caller() in handlers
        if self._is_failing or is_left:
            # The end of the client or of the handler ends this, but for a thread that a handler has
            # started and waits for: the client waits for the handler.
            with trio.move_on_after(_HANDLER_WAIT_S if handlers else math.inf):
                await trio.sleep_forever()
            raise self.why_cut_short("iterating")

    def check_not_ended(self, what: str) -> None:
        """Refuse a call, in this thread, when the client has ended and its stores are closed."""
        if self._calls is None:
            raise self.why_cut_short(what)

    def is_of_end(self, error: BaseException) -> bool:
        """Whether a call failed only because the client has ended meanwhile."""
        return error is self.error or isinstance(error, UsageError)

    def why_ended(self, what: str) -> BaseException:
        """The error of a call that came too late."""
        return self._own_error() or UsageError(
            f"{what} of a client that was closed: make a new one"
        )

    def why_cut_short(self, what: str) -> BaseException:
        """The error of a call that the end of the client has cut short."""
        return self._own_error() or DisconnectedError(
            f"{what}: the client {self.name!r} was closed while it waited"
        )

    def _own_error(self) -> BaseException | None:
        """The error that has ended the client, with the traceback that it had then.

        Each raise adds frames to it, which would keep the arguments of failed calls alive.
        """
        if self.error is not None and self.has_ended:
            self.error.__traceback__ = self._traceback
        return self.error

    def check_process(self) -> None:
        """Refuse a call in another process than the one in which the client was made.

        Raises:
            UsageError: This process is a fork.
        """
        if self.is_forked:
            raise UsageError(
                f"the client {self.name!r} was made before this process was forked, and its "
                "thread is in the other one: make a client in each process, after the fork"
            )


@dataclass(frozen=True)
class Bridge(Generic[_Inner_co, _Thread_co]):
    """An object of the trio client, and the thread that it lives in.

    Attributes:
        inner: A client, a stream or records.
        thread: The client's thread.
    """

    inner: _Inner_co
    thread: _Thread_co

    def read(self, read: Callable[[], T], what: str) -> T:
        """Read a property of it: in the client's thread, or here if that does not run."""
        if self.thread.is_running:
            try:
                return self.thread.now(read, what)
            except BaseException as error:
                if not self.thread.is_of_end(error):
                    raise
        return read()


def running_threads() -> list[TrioThread]:
    """The threads of the clients that are open in this process."""
    return [each for each in list(_begun) if each.is_running]


def _close_all() -> None:
    while threads := running_threads():  # a listener may open a client meanwhile
        for each in threads:
            try:
                each.drop()
            except ResourceWarning as warning:  # an error by `python -W error`
                _logger.warning("%s", warning)
        threads[0].join(_EXIT_CHECK_S)


atexit.register(_close_all)

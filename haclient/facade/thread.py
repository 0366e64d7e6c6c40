"""A thread that runs trio, with one client in it, for callers who do not run trio.

`haclient.blocking` and `haclient.aio` are thin: each of their methods runs the method of the same
name of the trio client in the client's own thread. This module is that thread; how callers wait for
it, and how it calls their handlers, is in `haclient.facade.loop_bridge` for tasks of asyncio and in
`haclient.facade.thread_bridge` for threads that block.

**Life.** `start` begins the thread, which enters the client's block; `stop` has it leave the block,
as the end of an `async with` would, and the thread then ends. The thread itself holds the block:
the task that has entered a cancel scope must also leave it. An error that leaves the block (a
handler raised, a store is full) ends the thread. It is raised to every call that waits and to every
later one.

**Calls.** A call is a task of its own, beside the client's block and not in it, so that its error
ends no other call. It ends with the client at the latest: a caller never waits for a thread that
has ended. A call that is cancelled is waited for, as trio does it: what it had begun is undone or
complete when its caller goes on.

**The end of the process.** The thread is no daemon, whoever opens the client: the interpreter would
stop it anywhere, also between a message and its acknowledgement. Python waits for such threads
before it exits, and an application that forgets to close a client would never end. So clients that
are open when the main thread and all other threads of the application have ended, except daemons,
are closed, with a `ResourceWarning`. In a child after `os.fork` the thread does not exist, and
calls are refused.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Final, Generic, TypeVar, cast

import trio

from haclient.client import BaseClient
from haclient.errors import DisconnectedError, TimedOut, UsageError
from haclient.transport.active_consumers import OpenClients, open_clients
from haclient.transport.tasks import (
    calling,
    check_threads_are_real,
    current_caller,
    unwrapped,
)
from haclient_stores.logs import logger_of

T = TypeVar("T")
_Inner_co = TypeVar("_Inner_co", covariant=True)
_Thread_co = TypeVar("_Thread_co", bound="TrioThread", covariant=True)
Notify = Callable[[], object]
"""Wakes a caller; it is called once, in the client's thread, and must not raise."""

_logger = logger_of(__name__)


class _LeftByError(Exception):
    """Leaves the client's block as the error of its caller would: without waiting for acks."""


def _without_leaving(error: BaseException) -> BaseException:
    """What has failed besides the block of the caller, who gets the error of that itself."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    group = cast("BaseExceptionGroup[BaseException]", error)
    others = group.split(_LeftByError)[1]
    return group if others is None else unwrapped(others)


class Call(Generic[T]):
    """One call in the client's thread, and its outcome after `notify` was called.

    Args:
        notify: Wakes the caller.
        what: The name of the method, for errors.
        caller: Who makes it (`haclient.transport.tasks`); `None` if that one takes no
            messages.
    """

    __slots__ = (
        "_caller",
        "_error",
        "_has_begun",
        "_has_ended",
        "_notify",
        "_result",
        "_scope",
        "_token",
        "what",
    )

    def __init__(self, notify: Notify, what: str, *, caller: object | None = None) -> None:
        self._caller = caller
        self._notify = notify
        self._scope = trio.CancelScope()
        self._token: trio.lowlevel.TrioToken | None = None
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._has_begun = False
        self._has_ended = False
        self.what = what

    def submit(self, token: trio.lowlevel.TrioToken, run: Callable[[Call[T]], object]) -> None:
        """Have `run` called with this call in the client's thread.

        Raises:
            trio.RunFinishedError: The thread has ended.
        """
        # The token is set first: an interrupt before the next line finds a call that `cancel` ends,
        # and one after it a call that can be cancelled.
        self._token = token
        token.run_sync_soon(self._begin, run)

    def _begin(self, run: Callable[[Call[T]], object]) -> None:
        self._has_begun = True
        run(self)

    async def run(
        self, function: Callable[[], Awaitable[T]], ended: Callable[[str], BaseException]
    ) -> None:
        """Carry out a coroutine function, as a task in the client's thread.

        Args:
            function: The coroutine function.
            ended: Gives the error of a call that the end of the client has cut short.
        """
        try:
            with calling(self._caller), self._scope:
                self._result.append(await function())
        except trio.Cancelled:  # the client was left, or has ended by an error
            self._error = ended(self.what)
            raise
        except BaseException as error:  # the caller gets it, whatever it is
            self._error = error
        finally:
            self._finish()

    def run_now(self, function: Callable[[], T]) -> None:
        """Carry out a plain function in the client's thread."""
        try:
            self._result.append(function())
        except BaseException as error:  # the caller gets it, whatever it is
            self._error = error
        finally:
            self._finish()

    def fail(self, error: BaseException) -> None:
        """End it without carrying it out."""
        self._error = error
        self._finish()

    def _finish(self) -> None:
        self._has_ended = True  # before the caller is woken
        self._notify()

    @property
    def is_running(self) -> bool:
        """Whether `notify` will be called, after `cancel` at the latest."""
        return self._token is not None and not self._has_ended

    def cancel(self) -> None:
        """Cancel it, from any thread; `notify` is called when it has ended."""
        if self._token is None:
            return
        try:
            self._token.run_sync_soon(self._cancel)
        except trio.RunFinishedError:  # it has ended, like everything there, or never began
            self._has_ended = True

    def _cancel(self) -> None:
        self._scope.cancel()
        if not self._has_begun:  # an interrupt came before it was submitted
            self._finish()

    @property
    def has_result(self) -> bool:
        """Whether it has returned, after `notify`."""
        return bool(self._result)

    def outcome(self) -> T:
        """What it has returned, after `notify`; raises what it has raised."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # the traceback refers to this frame: leave no cycle
        if not self._result:
            raise DisconnectedError(f"{self.what} was cancelled")
        return self._result[0]


class TrioThread:
    """The thread of one client.

    Args:
        name: The client's name, for the thread's and for errors.

    Attributes:
        name: The client's name.
        error: By what the client has ended; `None` while it is open and after an ordinary end.
        is_reported: Whether a caller that closed the client has got that error.
        callback_threads: The tasks that wait for a callback of this client, by the ident of the
            thread that runs it now.
        clients: What `run` finishes and flushes in this thread at the end of the process.
        closes_at_exit: Whether the end of the program closes the client, without a warning.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._pid = os.getpid()
        self._lock = threading.RLock()  # a signal handler may interrupt who has it
        self._thread: threading.Thread | None = None
        self._has_begun = False
        self._token: trio.lowlevel.TrioToken | None = None
        self._calls: trio.Nursery | None = None
        self._task: object = None  # which makes the last calls of listeners, uncancelled
        self._scope = trio.CancelScope()
        self._stop = trio.Event()
        self._drains = True
        self._entered = False
        self._ended = False
        self._is_stopped = False
        self._is_cancelled = False
        self._is_failing = False
        self._waiting_for_end: list[Notify] = []
        self.error: BaseException | None = None
        self.is_reported = False
        self.callback_threads: dict[int, trio.lowlevel.Task] = {}
        self.clients = OpenClients()
        self.closes_at_exit = False

    # -- life -----------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether it was started, in this process, and has not ended."""
        return self._thread is not None and not self._ended and self._pid == os.getpid()

    @property
    def is_abandoned(self) -> bool:
        """Whether it runs, and nobody has asked it to end."""
        return self.is_running and not (self._is_stopped or self._is_cancelled)

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is this one."""
        return self._thread is threading.current_thread()

    @property
    def ident(self) -> int | None:
        """The ident of the thread; `None` if it does not run: another thread may get it then."""
        return self._thread.ident if self._thread is not None and self.is_running else None

    @property
    def has_ended(self) -> bool:
        """Whether it was started and has ended."""
        return self._ended

    @property
    def was_closed(self) -> bool:
        """Whether it does not run, and no error is the reason."""
        return not self.is_running and self.error is None

    @property
    def token(self) -> trio.lowlevel.TrioToken | None:
        """For functions to be run in this thread; `None` before it runs trio, and after a fork."""
        return None if self.is_forked else self._token

    @property
    def is_forked(self) -> bool:
        """Whether this is a copy of another process, whose threads do not exist here."""
        return self._pid != os.getpid()

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
                daemon=False,  # also when a daemon opens the client: it would be inherited
            )
        _exit_watch.add(self)
        self._thread.start()

    def _main(self, client: AbstractAsyncContextManager[object], notify: Notify) -> None:
        with self._lock:
            self._has_begun = True
        try:
            trio.run(self._run, client, notify)
        except BaseException as error:  # a thread has nobody above: callers get it
            self.error = self.error or error
        finally:
            with self._lock:
                self._ended = True
                waiting, self._waiting_for_end = self._waiting_for_end, []
            if not self._entered:
                waiting.append(notify)  # `error` says why
            elif self.error is not None:
                _logger.error("client %s has ended by an error: %r", self.name, self.error)
            for each in waiting:
                each()

    async def _run(self, client: AbstractAsyncContextManager[object], notify: Notify) -> None:
        with self._lock:  # what was asked before goes through the flags, all else by the token
            self._token = trio.lowlevel.current_trio_token()
            if self._is_cancelled:
                self._scope.cancel()
            if self._is_stopped:
                self._leave()
        open_clients.set(self.clients)
        self._task = trio.lowlevel.current_task()
        async with trio.open_nursery() as calls:
            self._calls = calls
            try:
                with self._scope:
                    async with client:
                        self._entered = True
                        notify()
                        await self._stopped()
                        if not self._drains:
                            raise _LeftByError  # noqa: TRY301  # seen by the client's block
            except _LeftByError:
                pass
            except BaseException as error:  # every caller gets it
                self.error = _without_leaving(error)
            finally:
                self._calls = None
                calls.cancel_scope.cancel()

    async def _stopped(self) -> None:
        try:
            await self._stop.wait()
        except trio.Cancelled:
            self._is_failing = not self._is_cancelled  # else a task of the client has failed
            raise

    def stop(self, *, drains: bool = True) -> None:
        """Have the client's block left, from any thread; a second call does nothing.

        While the block is still being entered, which may take for ever, that is cancelled.

        Args:
            drains: Whether to wait for what was published, as at the end of a block; not if an
                error leaves it.
        """
        with self._lock:
            if not self._is_stopped:
                self._drains = drains
                self._soon(self._leave)
                self._is_stopped = True  # last: after an interrupt, a second call has to do it

    def _leave(self) -> None:
        self._stop.set()
        if not self._entered:
            self._scope.cancel()

    def cancel(self) -> None:
        """Leave the client's block at once, whatever it waits for; from any thread."""
        with self._lock:
            self._is_cancelled = True
            self._soon(self._scope.cancel)

    def abort(self) -> None:
        """Leave the client's block at once, and wait until the thread has ended.

        It may have been interrupted in `start`, where nobody can know whether there is a thread: if
        there is, it enters nothing and ends.
        """
        self.cancel()
        with self._lock:
            if not self._has_begun:
                self._ended = True
                return
        self.join()

    def _soon(self, function: Callable[[], object]) -> None:
        if self._token is None or self.is_forked:
            return
        with suppress(trio.RunFinishedError):  # it has ended already
            self._token.run_sync_soon(function)

    def join(self) -> None:
        """Wait until the thread has ended."""
        if self._thread is not None and not self.is_forked:
            self._thread.join()

    def notify_ended(self, notify: Notify) -> None:
        """Call `notify` when the thread has ended; at once if it has."""
        with self._lock:
            if not self._ended:
                self._waiting_for_end.append(notify)
                return
        notify()

    def raise_error(self) -> None:
        """Raise by what the client has ended, once."""
        if self.error is not None and not self.is_reported:
            self.is_reported = True
            raise self.error

    def drop(self) -> None:
        """Warn, and end, if nobody has closed the client and nobody can any more."""
        if self.is_abandoned:
            warn_unclosed(self)
            self.stop()

    # -- calls ----------------------------------------------------------------

    def now(self, function: Callable[[], T], what: str) -> T:
        """Run a plain function in this thread; return or raise what it does.

        The caller stands still meanwhile, which is short: this thread never waits for another one
        without a task switch.
        """
        if self.is_current:  # a callback that the client calls at once
            return function()
        self.check_may_block(what)
        done = threading.Lock()
        done.acquire()
        call: Call[T] = Call(done.release, what)
        self.submit_now(call, function)
        done.acquire()
        return call.outcome()

    def check_may_block(self, what: str) -> None:
        """Refuse a call in a thread that must not stand still; each may, by default."""

    def wrap(self, function: object) -> object:
        """A callback as one that the trio client can await; it is called here, by default."""
        return function

    async def check_end(self, *, was_cut: bool = False) -> None:
        """To be called by a call that finds an iteration at its end, in this thread.

        When an error ends the client, every iteration ends first. Its caller must not take that for
        the ordinary end, and gets the error. A handler that is cancelled because the client is left
        must not take it for that either: its message would count as processed.

        Args:
            was_cut: Whether the iteration has ended before its result was complete.
        """
        handlers = {*self.callback_threads.values()} - {self._task}
        is_left = was_cut and self._stop.is_set() and current_caller() in handlers
        if self._is_failing or is_left:
            await trio.sleep_forever()  # until the end of the client or of the handler ends this

    def submit(self, call: Call[T], function: Callable[[], Awaitable[T]]) -> None:
        """Carry out a coroutine function as a task; from any thread.

        Raises:
            UsageError: The client was not opened, was closed, or belongs to another process.
            BaseException: The error by which the client has ended.
        """

        async def run() -> T:
            if self._calls is None:  # it has ended since `start`, and its stores are closed
                raise self.why_cut_short(call.what)
            return await function()

        def start(call: Call[T]) -> None:
            if self._calls is None:
                call.fail(self._why_ended(call.what))
            else:
                self._calls.start_soon(call.run, run, self.why_cut_short)

        self._submit(call, start)

    def submit_now(self, call: Call[T], function: Callable[[], T]) -> None:
        """Carry out a plain function, between two tasks; it raises what `submit` does."""
        self._submit(call, lambda call: call.run_now(function))

    def _submit(self, call: Call[T], run: Callable[[Call[T]], object]) -> None:
        self.check_process()
        if self._token is None:
            raise UsageError(
                f"{call.what} of a client that is not open: use `with`, or call open() first"
            )
        try:
            call.submit(self._token, run)
        except trio.RunFinishedError:
            raise self._why_ended(call.what) from None

    def is_of_end(self, error: BaseException) -> bool:
        """Whether a call failed only because the client has ended meanwhile."""
        return error is self.error or isinstance(error, UsageError)

    def _why_ended(self, what: str) -> BaseException:
        return self.error or UsageError(f"{what} of a client that was closed: make a new one")

    def why_cut_short(self, what: str) -> BaseException:
        """The error of a call that the end of the client has cut short."""
        return self.error or DisconnectedError(
            f"{what}: the client {self.name!r} was closed while it waited"
        )

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


class _ExitWatch:
    """Closes the clients that are open when the program ends.

    A thread of its own waits for that: Python offers no public hook before the moment at which it
    waits for threads.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew, in a process that was forked: nothing is open here, no thread watches."""
        self._lock = threading.Lock()
        self._threads: weakref.WeakSet[TrioThread] = weakref.WeakSet()
        self._watches = False

    def add(self, thread: TrioThread) -> None:
        """Watch a thread that starts now, unless by `atexit`: Python waits for none any more."""
        main = threading.main_thread()
        if threading.current_thread() is main and not main.is_alive():
            return
        with self._lock:
            self._threads.add(thread)
            if not self._watches:
                self._watches = True
                # A daemon: it only waits, and ends by itself before Python waits for the others.
                threading.Thread(target=self._watch, name="haclient exit", daemon=True).start()

    def _watch(self) -> None:
        threading.main_thread().join()
        while working := self._application_threads():
            working[0].join()
        with self._lock:
            self._watches = False  # what is opened from here on is closed by a watch of its own
            threads = [thread for thread in self._threads if thread.is_running]
        for thread in threads:
            if thread.is_abandoned and not thread.closes_at_exit:
                warn_unclosed(thread)
            thread.stop()

    def running(self) -> list[TrioThread]:
        """The threads of the clients that are open."""
        with self._lock:
            return [thread for thread in self._threads if thread.is_running]

    def _application_threads(self) -> list[threading.Thread]:
        """The threads that Python waits for, and that may still use a client."""
        alive = [each for each in threading.enumerate() if each.is_alive() and not each.daemon]
        with self._lock:  # after that: a client's thread is added here before it starts
            ours = {thread.ident for thread in self._threads}
        return [each for each in alive if each.ident not in ours]


class Bridge(Generic[_Inner_co, _Thread_co]):
    """An object of the trio client, and the thread that it lives in.

    Args:
        inner: A client, a stream or records.
        thread: The client's thread.
    """

    def __init__(self, inner: _Inner_co, thread: _Thread_co) -> None:
        self._inner = inner
        self._thread = thread

    @property
    def inner(self) -> _Inner_co:
        """A client, a stream or records."""
        return self._inner

    @property
    def thread(self) -> _Thread_co:
        """The client's thread."""
        return self._thread

    def read(self, read: Callable[[_Inner_co], T], what: str) -> T:
        """Read a property: in the client's thread, or here if that does not run."""
        if self._thread.is_running:
            try:
                return self._thread.now(partial(read, self._inner), what)
            except BaseException as error:
                if not self._thread.is_of_end(error):
                    raise
        return read(self._inner)


def open_timed_out(client: BaseClient, limit_s: float) -> TimedOut:
    """The error of an opening that took too long, with the reason."""
    status = client._core.status  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # of ours
    return status.timed_out(f"open: not logged on within {limit_s:g} s")


def running_threads() -> list[TrioThread]:
    """The threads of the clients that are open in this process."""
    return _exit_watch.running()


def warn_unclosed(thread: TrioThread) -> None:
    """Warn of a client that nobody has closed."""
    warnings.warn(
        f"the client {thread.name!r} was never closed: use it in a with block, or close it",
        ResourceWarning,
        stacklevel=2,
        source=thread,
    )


_exit_watch: Final = _ExitWatch()  # a process has one main thread
os.register_at_fork(after_in_child=_exit_watch.reset)

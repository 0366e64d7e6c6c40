"""The tasks and the thread of a client: nurseries, turns, and the calls of other threads.

A client belongs to the thread that runs trio: its stores, queues and counters have no locks. A call
from another thread is refused before it changes anything. The exceptions are the methods of a
message: a worker thread that processes a message (`trio.to_thread.run_sync(work, message)`) may
discard or acknowledge it, or extend its lease. That then runs on the client's thread, and the call
returns after that.

A forked process has a copy of the client's memory and shares its socket. A publish there would take
the next sequence numbers, and the server would drop the messages of the client with these numbers
as duplicates. The only thread of a forked process has the ident of the thread that forked, which
may be the client's. So `os.register_at_fork` resets the ident, and the comparison refuses them all.

In a program that runs trio, a caller is a task. Each call of `haclient.blocking` and `haclient.aio`
runs as a task of its own in the client's thread. Its caller is the thread or the asyncio task that
has made the call, or the task of the handler that makes it.

A nursery wraps even a single error into a group, and `except CommandError` around `async with`
would never match. This package's context managers raise the error itself, unless several unrelated
ones happened at once.

Tasks share one thread. A loop that calls plain functions without suspending holds up heartbeats,
acks and all other subscriptions, so it lets others run after a few milliseconds::

    turn = Turn()
    for message in messages:
        handle(message)
        if turn.now() >= turn.ends_at:
            await turn.end()
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import partial
from threading import get_ident
from typing import Final, NamedTuple, TypeVar, TypeVarTuple, cast

import trio

from haclient.errors import UsageError
from haclient_stores.interfaces import Discard, SubscriptionLog

_Arguments = TypeVarTuple("_Arguments")
_T = TypeVar("_T")

_NO_THREAD: Final = -1  # the ident of no thread
in_handler: Final = ContextVar("in_handler", default=False)
"""Whether a handler runs this code: also in the threads and tasks of asyncio that it has started
with its context."""


class Caller(NamedTuple):
    """Who has made a call.

    Attributes:
        owner: The thread or the task that takes messages; `None` for the task of the call itself.
        is_handler: Whether a handler has made it, of this client or of another one.
    """

    owner: object | None
    is_handler: bool


_callers: Final[dict[trio.lowlevel.Task, Caller]] = {}  # of the tasks that carry out a call


@contextmanager
def calling(caller: Caller) -> Generator[None]:
    """Note for whom the current task carries out a call, while it does."""
    task = trio.lowlevel.current_task()
    _callers[task] = caller
    try:
        yield
    finally:
        del _callers[task]


def current_caller() -> object:
    """The caller for which the current task runs."""
    task = trio.lowlevel.current_task()
    caller = _callers.get(task)
    return task if caller is None else caller.owner or task


def is_alive(caller: object) -> bool:
    """Whether a caller can still finish what it was given."""
    if isinstance(caller, threading.Thread):
        return caller.is_alive()
    if isinstance(caller, trio.lowlevel.Task):
        return inspect.getcoroutinestate(caller.coro) != inspect.CORO_CLOSED
    is_done: Callable[[], bool] = getattr(caller, "done", bool)  # of asyncio
    return not is_done()


def call_handlers() -> None:
    """Note that the current task calls handlers from now on: it, and each task that it starts."""
    in_handler.set(True)


def is_of_handler() -> bool:
    """Whether the current task is one that a handler has started, or makes a call for a handler."""
    caller = _callers.get(trio.lowlevel.current_task())
    return in_handler.get() if caller is None else caller.is_handler


class NeverCalled(UsageError):
    """A handler could not be called, so no policy for errors of handlers applies."""


async def call_in_thread(
    function: Callable[[*_Arguments], _T],
    *arguments: *_Arguments,
    limiter: trio.CapacityLimiter,
    abandon_on_cancel: bool = False,
) -> _T:
    """Call a plain function that is, or is part of, a handler in a thread of trio.

    Raises:
        NeverCalled: No thread could be started.
        Exception: What the function raised.
    """
    has_begun = False

    def call() -> _T:
        nonlocal has_begun
        has_begun = True
        return function(*arguments)

    try:
        return await trio.to_thread.run_sync(
            call, abandon_on_cancel=abandon_on_cancel, limiter=limiter
        )
    except RuntimeError as error:  # of Python, or of the function
        if has_begun:
            raise
        raise NeverCalled(
            f"no thread could be started for a handler ({error}): does the system limit the "
            "threads or the memory of this process?"
        ) from error


class ClientThread:
    """Binds a client to the thread in which its `async with` block is entered.

    A hot function writes out the comparison, which costs some 30 ns::

        if get_ident() != thread.ident:
            thread.check("publish")

    Attributes:
        ident: `threading.get_ident()` of the thread while the client is open: from when its block
            is entered until that was left. Otherwise, and in a process that was forked meanwhile,
            the ident of no thread.
    """

    __slots__ = ("__weakref__", "_home", "_name", "_pid", "_token", "ident")

    def __init__(self) -> None:
        self.ident = _NO_THREAD
        self._home = _NO_THREAD  # as `ident`, but kept after the client was left
        self._name = ""
        self._pid = 0
        self._token: trio.lowlevel.TrioToken | None = None

    @property
    def is_bound(self) -> bool:
        """Whether the client is open: not before its block is entered, nor once it was left."""
        return self.ident != _NO_THREAD

    def bind(self) -> None:
        """Bind the client to the calling thread, which runs trio."""
        self.ident = self._home = get_ident()
        self._name = threading.current_thread().name
        self._pid = os.getpid()
        self._token = trio.lowlevel.current_trio_token()
        _bound.add(self)

    def release(self, *, was_open: bool = True) -> None:
        """Refuse calls from now on.

        Args:
            was_open: Whether the client was open; false if entering it failed.
        """
        self.ident = _NO_THREAD
        if not was_open:
            self._token = None

    def forked(self) -> None:
        """Belong to no thread: this process was forked from the client's."""
        self.ident = self._home = _NO_THREAD

    def check(self, what: str) -> None:
        """Refuse a call before the client is entered, after it was left, or from another thread.

        Args:
            what: The call, such as `publish`.

        Raises:
            UsageError: The client is not open; or it was entered in another thread, or in the
                process that this one was forked from.
        """
        if self.ident == get_ident():
            return
        if self._token is None:
            raise UsageError(
                f"{what} of a client that was not entered: call it inside of `async with client:`"
            )
        self.check_caller(what)
        raise UsageError(f"{what} of a client that was left: make a new one")

    def check_setting(self, what: str) -> None:
        """As `check`, but allowed before the client is entered: for calls that prepare it."""
        if self._token is not None:
            self.check(what)

    def check_caller(self, what: str) -> None:
        """Refuse a call from another thread than the client's; the client may be closed.

        Args:
            what: The call, such as `aclose of a stream`.

        Raises:
            UsageError: The client was entered in another thread, or in the process that this one
                was forked from.
        """
        if self._token is None or self._home == get_ident():
            return
        self._refuse_fork(what)
        raise UsageError(
            f"{what} was called by the thread {threading.current_thread().name!r}, but the client "
            f"belongs to {self._name!r}, which runs trio: call it through trio.from_thread.run or "
            "trio.from_thread.run_sync; only the methods of a message, such as message.discard(), "
            "work in every thread"
        )

    def discard(self, log: SubscriptionLog, number: int) -> None:
        """Discard a message on the client's thread and wait until that is done.

        Raises:
            UsageError: As for `call`.
        """
        self.call("message.discard()", log.discard, number)

    def call(
        self,
        what: str,
        function: Callable[[*_Arguments], object],
        *arguments: *_Arguments,
    ) -> None:
        """Call a function on the client's thread and wait until it has returned.

        Args:
            what: The call of the application, such as `message.discard()`.
            function: A plain function.
            *arguments: Its arguments.

        Raises:
            UsageError: The trio run that the client belonged to is over, or is in the process that
                this one was forked from; or this thread runs trio itself, which must not be
                blocked.
        """
        if get_ident() == self._home:  # a closed store belongs to no thread
            function(*arguments)
            return
        if self._token is None:
            raise UsageError(f"{what} of a client that was never entered")
        self._refuse_fork(what)  # the client's thread does not exist here: the wait had no end
        if trio.lowlevel.in_trio_run():
            raise UsageError(
                f"{what} was called inside a trio run of another thread, which it would block: "
                f"call it through trio.to_thread.run_sync({what.rstrip('()')})"
            )
        try:
            trio.from_thread.run_sync(function, *arguments, trio_token=self._token)
        except trio.RunFinishedError:  # the client was left long ago, and its store is closed
            raise UsageError(
                f"{what} came after the client was left: wait for your threads inside its async "
                "with block"
            ) from None

    def _refuse_fork(self, what: str) -> None:
        if self._pid != os.getpid():
            raise UsageError(
                f"{what} was called in a process that was forked from the one of its client: call "
                "it there"
            )


def check_threads_are_real() -> None:
    """Check that gevent has not replaced threads or `select`, without which trio cannot run.

    Raises:
        UsageError: It has replaced one of them.
    """
    monkey = sys.modules.get("gevent.monkey")
    names = "threading", "select"  # of the modules: what `patch_all` calls `thread` is unknown here
    replaced = [each for each in names if monkey and monkey.is_module_patched(each)]
    if replaced:
        raise UsageError(
            f"gevent has replaced the modules {' and '.join(replaced)}, which a client needs: call "
            "monkey.patch_all(thread=False, select=False) and use haclient.blocking, or use "
            "gunicorn's worker gthread"
        )


class LoggedBy:
    """Where `message.discard()` goes: a subscription's part of the bookmark store.

    Args:
        log: That part, of a store that belongs to the client's thread.
        thread: The client's thread.

    Attributes:
        discard: See `MessageOwner.discard`. It is the store's own function, since a call from here
            to there would cost as much as the discard itself.
    """

    __slots__ = ("__weakref__", "_elsewhere", "discard")

    discard: Discard

    def __init__(self, log: SubscriptionLog, thread: ClientThread) -> None:
        self._elsewhere = partial(thread.discard, log)
        self.discard = log.discard_function(self._elsewhere)
        _bound.add(self)

    def forked(self) -> None:
        """Have the client's thread refuse each discard: the store's function checks for no fork."""
        self.discard = self._elsewhere


_bound: Final = weakref.WeakSet[ClientThread | LoggedBy]()


def _refuse_all() -> None:
    for each in list(_bound):
        each.forked()


os.register_at_fork(after_in_child=_refuse_all)


def unwrapped(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error inside nested groups that caused all others, or the group when there are several.

    One failure may reach several tasks: the one where it occurred, and those that waited for it.
    """
    errors = list(_errors(group))
    first = {id(error): error for error in errors if not _caused_by(error, errors)}
    if len(first) == 1:
        return first.popitem()[1]
    only = group.exceptions[0]
    if len(group.exceptions) == 1 and isinstance(only, BaseExceptionGroup):
        return unwrapped(cast("BaseExceptionGroup[BaseException]", only))
    return group


def _errors(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _errors(cast("BaseExceptionGroup[BaseException]", error))
        else:
            yield error


def _caused_by(error: BaseException, errors: list[BaseException]) -> bool:
    cause, seen = error.__cause__, {id(error)}
    while (
        cause is not None and id(cause) not in seen
    ):  # the causes set by an application may form a cycle
        if any(cause is each for each in errors):
            return True
        seen.add(id(cause))
        cause = cause.__cause__
    return False


def is_only(error: Exception, kinds: type[Exception] | tuple[type[Exception], ...]) -> bool:
    """Whether an error is of these kinds, or a group of such errors, as a nursery raises it."""
    if isinstance(error, ExceptionGroup):
        return cast("ExceptionGroup[Exception]", error).split(kinds)[1] is None
    return isinstance(error, kinds)


@asynccontextmanager
async def open_nursery() -> AsyncGenerator[trio.Nursery]:
    """A nursery that raises a single error itself instead of a group."""
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
    except BaseExceptionGroup as group:  # trio wraps even a single error
        error = unwrapped(group)
        if error is group:
            raise
        # The group adds nothing to the error's own traceback and would only hide its type.
        raise error from error.__cause__


_THREADS: Final = 40  # as many as trio has by default
_own_threads: Final = trio.lowlevel.RunVar[dict[str, trio.CapacityLimiter]]("haclient_threads")


def own_threads(purpose: str) -> trio.CapacityLimiter:
    """The limiter of the threads that the clients of this trio run need to go on.

    All threads of trio's default limiter may belong to functions of the application that wait for a
    client (`trio.from_thread.run(client.publish, ...)`): a client that waited for one of those
    would wait for ever.

    Args:
        purpose: What the threads do: what hangs there holds up nothing else.
    """
    try:
        limiters = _own_threads.get()
    except LookupError:  # the first use in this run
        _own_threads.set(limiters := {})
    return limiters.setdefault(purpose, trio.CapacityLimiter(_THREADS))


TURN_S: Final = 0.005
"""How many seconds a task may call application code before others run."""


class Turn:
    """The current turn of one task; begins when it is made.

    Attributes:
        now: The clock of the trio run; a function, so that a loop can read it fast.
        ends_at: When others have to run.
    """

    __slots__ = ("ends_at", "now")

    def __init__(self) -> None:
        self.now = trio.lowlevel.current_clock().current_time
        self.begin()

    def begin(self) -> None:
        """Begin the next turn: others have just run."""
        self.ends_at = self.now() + TURN_S

    async def end(self) -> None:
        """Let others run, and begin the next turn."""
        try:
            await trio.lowlevel.checkpoint()
        finally:  # others have run, also if this task is cancelled, which may ask once more
            self.begin()

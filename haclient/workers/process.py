"""One worker process, which is restarted when it dies.

A `concurrent.futures.ProcessPoolExecutor` of one process starts it, by spawn: a forked process
would share the client's sockets, locks and stores. A function and its argument go there as a
pickle; its result comes back as one that the process itself has made and tested, since an exception
that cannot be unpickled would break the executor.

A process that dies takes no message with it: the client still has the message, and calls the
function with it again in a new process. A message over which several processes have died in a row
is an error.

The process takes no notice of SIGINT and SIGTERM, which a terminal and systemd send to it as well:
the client decides what they mean. It ends itself when the client's process has ended, however that
came.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from typing import Final, Generic, TypeVar

import trio

from haclient.errors import UsageError, WorkerError
from haclient.protocol.messages import Message
from haclient.workers.message_runner import Work, call
from haclient_stores.logs import logger_of

_MAX_DEATHS: Final = 3  # of processes over one message, before that is an error
_T = TypeVar("_T")
_logger = logger_of(__name__)


def _name(work: Work[object]) -> str:
    return getattr(work, "__qualname__", type(work).__name__)


# -- in the worker process -----------------------------------------------------------------------


def _initialize() -> None:
    """Prepare the process: the client decides about signals, and nothing outlives the client."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Not SIG_IGN, which the programs that the function starts would inherit: nothing but SIGKILL
    # could end them.
    signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    _end_forks_by_sigterm()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_forks_by_sigterm() -> None:
    """Restore the default action of SIGTERM in each process that the function forks."""

    def after_in_child() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        unblock()

    # Blocked during the fork: Python drops a signal that the child gets before it is complete.
    block = partial(signal.pthread_sigmask, signal.SIG_BLOCK, {signal.SIGTERM})
    unblock = partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=after_in_child)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()  # a client that was killed cannot tell the process to end
        os._exit(1)


def _run(work: Work[object], message: Message) -> tuple[bool, bytes]:
    """Call the function; return whether it returned, and the pickle of its result or exception."""
    try:
        result = call(work, message)
    except Exception as error:  # of any kind: it is the application's
        return False, _pickled_exception(error)
    try:
        return True, pickle.dumps(result)
    except Exception as error:  # a class may refuse with any error
        failure = UsageError(
            f"{_name(work)} returned a {type(result).__name__}, which cannot be pickled ({error}): "
            "return plain values from a worker process"
        )
        return False, pickle.dumps(failure)


def _pickled_exception(error: Exception) -> bytes:
    error.add_note(f"in the worker process {os.getpid()}:\n{traceback.format_exc()}")
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)  # noqa: S301  # made above; the constructor may not fit its arguments
    except Exception:  # a class may refuse with any error
        failure = WorkerError(f"{type(error).__name__}: {error}")
        failure.add_note(error.__notes__[-1])
        return pickle.dumps(failure)
    return pickled


# -- in the client -------------------------------------------------------------------------------


def check_picklable(work: Work[object]) -> None:
    """Refuse a function that no process could be given.

    Args:
        work: The function.

    Raises:
        UsageError: It cannot be pickled.
    """
    try:
        pickle.dumps(work)
    except Exception as error:  # a class may refuse with any error
        raise UsageError(
            f"{_name(work)} cannot be pickled for a worker process ({error}): define it at the top "
            "level of a module, or use ThreadPool"
        ) from error


class WorkerProcess(Generic[_T]):
    """A process that runs a function, one message at a time.

    Args:
        work: A function that can be pickled.
    """

    def __init__(self, work: Work[_T]) -> None:
        self._work = work
        self._executor: ProcessPoolExecutor | None = None
        self._pid = 0
        self._is_working = False

    @property
    def pid(self) -> int:
        """The process; 0 while there is none."""
        return 0 if self._executor is None else self._pid

    async def start(self) -> None:
        """Start the process and wait until it runs.

        Raises:
            WorkerError: It ended at once.
        """
        try:
            await self._started()
        except BrokenProcessPool as error:
            self._executor = None
            raise WorkerError(
                "a worker process ended while it was started: its own error is on stderr; a script "
                "that starts worker processes needs `if __name__ == '__main__':` around its start"
            ) from error

    async def _started(self) -> ProcessPoolExecutor:
        executor = ProcessPoolExecutor(
            1, mp_context=multiprocessing.get_context("spawn"), initializer=_initialize
        )
        self._executor = executor
        running = executor.submit(os.getpid)
        # At once: a process that never gets through its imports has to be killed, too.
        self._pid = next(iter(executor._processes), 0)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # only its own function would tell
        await _result(running)
        return executor

    async def call(self, message: Message) -> _T:
        """Run the function with a message, in a new process if the present one dies.

        Args:
            message: The message; the process gets a copy that belongs to no client.

        Returns:
            What the function returned.

        Raises:
            Exception: What the function raised, with its traceback as a note.
            UsageError: The result cannot be pickled.
            WorkerError: The process died several times over this message, or the function's
                exception cannot be pickled.
        """
        copy = message.copy()
        copy.owner = copy.lease = None
        for _ in range(_MAX_DEATHS):
            try:  # a process may also die while it is started in place of another one
                executor = self._executor or await self._started()
                returned, pickled = await self._submit(executor, copy)
            except BrokenProcessPool:
                self._executor = None
                _logger.warning(
                    "the worker process %d died, and is replaced; the message %s of topic %s is "
                    "processed again",
                    self._pid,
                    message.bookmark or message.sow_key or "without a bookmark",
                    message.topic,
                )
                continue
            if returned:
                result: _T = pickle.loads(pickled)  # noqa: S301  # from our own process
                return result
            error: Exception = pickle.loads(pickled)  # noqa: S301  # likewise
            raise error
        raise WorkerError(
            f"{_MAX_DEATHS} worker processes died over the message "
            f"{message.bookmark or message.sow_key} of topic {message.topic}: was there enough "
            "memory, or does it crash native code?"
        )

    async def _submit(self, executor: ProcessPoolExecutor, message: Message) -> tuple[bool, bytes]:
        self._is_working = True
        outcome = await _result(executor.submit(_run, self._work, message))
        self._is_working = False  # not after a cancel: it still works then
        return outcome

    async def close(self, limit_s: float) -> None:
        """End the process; one that still works is killed.

        Args:
            limit_s: Seconds that an idle process has to end by itself.
        """
        executor, self._executor = self._executor, None
        if executor is None:
            return
        if self._is_working:
            self._kill()
        with trio.CancelScope(deadline=trio.current_time() + limit_s, shield=True) as scope:
            await trio.to_thread.run_sync(executor.shutdown, abandon_on_cancel=True)
        if scope.cancelled_caught:
            self._kill()

    def _kill(self) -> None:
        if self._pid:
            with suppress(ProcessLookupError):  # it has just died by itself
                os.kill(self._pid, signal.SIGKILL)


async def _result(future: Future[_T]) -> _T:
    """Wait for a future of another thread; a cancellation leaves it running."""
    done, token = trio.Event(), trio.lowlevel.current_trio_token()

    def wake(_: object) -> None:
        with suppress(trio.RunFinishedError):  # nobody waits any more
            token.run_sync_soon(done.set)

    future.add_done_callback(wake)
    await done.wait()
    return future.result()

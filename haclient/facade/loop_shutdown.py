"""`haclient.aio.run`: `asyncio.run` for services that signals end in good order.

See `haclient.service` for the order, and `haclient.facade.shutdown` for the thread that keeps it.
`main` is ended by the cancellation of its task.
"""

from __future__ import annotations

import asyncio  # noqa: TID251  # this module is for its users
from collections.abc import Awaitable, Callable
from contextlib import suppress
from inspect import iscoroutine
from typing import TypeVar

from haclient.errors import UsageError
from haclient.facade.shutdown import ThreadShutdown
from haclient.service import DEFAULT_GRACE_S, STOP_SIGNALS, first_signal

_T = TypeVar("_T")


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

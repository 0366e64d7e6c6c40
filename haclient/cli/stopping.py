"""Commands that a signal may end: SIGTERM and SIGINT cancel the work at its next safe point.

The work runs in a cancel scope and only stops where it awaits, so whatever it does between two
awaits (print, flush, discard) is never torn. The first signal cancels; then the default handlers
are back, so that a second one ends a process that cannot stop (its stdout stands still, say).
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable

import trio

__all__ = ["run_stoppable"]


async def _watch(scope: trio.CancelScope, seen: list[int], task_status: trio.TaskStatus) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for number in signals:
            seen.append(number)
            scope.cancel()
            return


async def _run(work: Callable[[], Awaitable[int]], stopped: Callable[[int], int]) -> int:
    seen: list[int] = []
    result: int | None = None
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        await nursery.start(_watch, scope, seen)
        with scope:
            result = await work()
        nursery.cancel_scope.cancel()
    return stopped(seen[0]) if result is None else result


def run_stoppable(work: Callable[[], Awaitable[int]], stopped: Callable[[int], int]) -> int:
    """Run `work` under trio and return its exit code.

    Args:
        work: The command; it returns its exit code.
        stopped: Called with the number of the signal that ended the work: the exit code, or it
            raises.
    """
    return trio.run(_run, work, stopped)

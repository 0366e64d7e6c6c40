"""Who makes a call: a task of trio, or a caller outside of the client's thread.

In a program that runs trio, a caller is a task. Each call of `haclient.blocking` and `haclient.aio`
runs as a task of its own in the client's thread. Its caller is the thread or the asyncio task that
has made the call, or the task of the handler that makes it.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import trio

_callers: Final[dict[trio.lowlevel.Task, object]] = {}  # of the tasks that carry out a call


@contextmanager
def calling(caller: object | None) -> Generator[None]:
    """Note for whom the current task carries out a call, while it does.

    Args:
        caller: Who has made the call; `None` for the task itself.
    """
    task = trio.lowlevel.current_task()
    _callers[task] = caller or task
    try:
        yield
    finally:
        del _callers[task]


def current_caller() -> object:
    """The caller for which the current task runs."""
    task = trio.lowlevel.current_task()
    return _callers.get(task, task)

"""Brokers whose time stands still until a test lets some pass."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import trio
import trio.testing

__all__ = ["run", "wait"]

T = TypeVar("T")


async def wait(seconds: float) -> None:
    """Let time pass, until no task can go on and no thread works for one."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    threads = trio.to_thread.current_default_thread_limiter()
    clock.jump(seconds)
    await trio.testing.wait_all_tasks_blocked()
    while threads.borrowed_tokens:  # a task that waits for a thread counts as blocked
        await trio.testing.wait_all_tasks_blocked(0.001)


def run(main: Callable[..., Awaitable[T]], *arguments: object, **keywords: object) -> T:
    """Run something in a time that stands still."""
    return trio.run(partial(main, *arguments, **keywords), clock=trio.testing.MockClock())

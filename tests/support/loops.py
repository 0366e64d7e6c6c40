"""What the tests of `haclient.aio` need of asyncio.

`support.threads` has the same for the tests that are made of them for `haclient.blocking`.
"""

from __future__ import annotations

import asyncio  # noqa: TID251  # for tests of what runs in it
from collections.abc import AsyncIterable, Callable, Coroutine
from functools import wraps
from typing import ParamSpec, TypeAlias, TypeVar

from support.process import LIMIT_S

__all__ = [
    "at_once",
    "begin",
    "in_loop",
    "in_other_thread",
    "rest_of",
    "result_of",
    "start",
    "until",
]

P = ParamSpec("P")
T = TypeVar("T")
Running: TypeAlias = asyncio.Task[T]


def in_loop(test: Callable[P, Coroutine[object, object, T]]) -> Callable[P, T]:
    """Run a test in a loop of its own, and end it with the place where it hangs."""

    async def limited(*arguments: P.args, **options: P.kwargs) -> T:
        async with asyncio.timeout(LIMIT_S):
            return await test(*arguments, **options)

    @wraps(test)
    def run(*arguments: P.args, **options: P.kwargs) -> T:
        return asyncio.run(limited(*arguments, **options))

    return run


def begin(call: Callable[[], Coroutine[object, object, T]]) -> Running[T]:
    """Make a call in a task of its own."""
    return asyncio.create_task(call())


async def result_of(running: Running[T]) -> T:
    """Wait for the end of such a call."""
    return await running


async def at_once(*calls: Callable[[], Coroutine[object, object, None]]) -> None:
    """Make calls in tasks of their own, and wait for them."""
    await asyncio.gather(*(call() for call in calls))


async def in_other_thread(function: Callable[[], T]) -> T:
    """Call a function that blocks."""
    return await asyncio.to_thread(function)


def start(call: Callable[[], Coroutine[object, object, object]]) -> None:
    """Make a call up to its first wait."""
    call().send(None)


async def rest_of(items: AsyncIterable[T]) -> list[T]:
    """All that follows."""
    return [item async for item in items]


async def until(condition: Callable[[], object]) -> None:
    """Wait for what has no event."""
    while not condition():  # noqa: ASYNC110  # see above
        await asyncio.sleep(0.001)

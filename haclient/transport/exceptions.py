"""Errors at the edge of a nursery.

A nursery wraps even a single error into a group, and `except CommandError` around `async with`
would never match. What leaves this package's context managers is the error itself, unless several
unrelated ones happened at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

__all__ = ["open_nursery", "unwrapped"]


def unwrapped(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The only error inside nested groups, or the group when there are several."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


@asynccontextmanager
async def open_nursery() -> AsyncIterator[trio.Nursery]:
    """A nursery whose single errors leave it as themselves."""
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
    except BaseExceptionGroup as group:
        error = unwrapped(group)
        if error is group:
            raise
        # The group adds nothing to the error's own traceback and would only hide its type.
        raise error from error.__cause__

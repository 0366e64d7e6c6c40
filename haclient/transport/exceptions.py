"""Errors at the edge of a nursery.

A nursery wraps even a single error into a group, and `except CommandError` around `async with`
would never match. What leaves this package's context managers is the error itself, unless several
unrelated ones happened at once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import cast

import trio

__all__ = ["open_nursery", "unwrapped"]


def unwrapped(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The only error inside nested groups, or the group when there are several."""
    if len(group.exceptions) != 1:
        return group
    only = group.exceptions[0]
    if isinstance(only, BaseExceptionGroup):
        return unwrapped(cast("BaseExceptionGroup[BaseException]", only))
    return only


@asynccontextmanager
async def open_nursery() -> AsyncGenerator[trio.Nursery]:
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

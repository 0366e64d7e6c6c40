"""Errors at the edge of a nursery.

A nursery wraps even a single error into a group, and `except CommandError` around `async with`
would never match. This package's context managers raise the error itself, unless several unrelated
ones happened at once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import cast

import trio


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

"""Who takes messages, and who waits for an ack: identities to compare.

A wait for an ack that stands behind messages which the waiting one has yet to take would never end,
so it is refused. In a program that runs trio, whoever takes messages or waits is a task. Each call
of `haclient.blocking` and `haclient.aio` is a task of its own in the client's thread; there it is
the thread or the asyncio task that has made the call, or the task of the handler that makes it.
Several of those may share a stream. Each of them may wait, as long as another takes the messages.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from threading import Thread
from typing import Final, Protocol, runtime_checkable

import trio

_callers: Final[dict[trio.lowlevel.Task, object | None]] = {}  # of the tasks that carry out a call
_waiting: Final[set[object]] = set()  # callers that have begun to wait for an ack in their call


@contextmanager
def calling(caller: object | None) -> Generator[None]:
    """Carry out a call of somebody outside of the client's thread, in a task of its own.

    Args:
        caller: Who has made the call; `None` for the task itself.
    """
    task = trio.lowlevel.current_task()
    _callers[task] = caller
    try:
        yield
    finally:
        del _callers[task]
        _waiting.discard(caller)


def current_caller() -> object:
    """Who takes messages or waits in the current task."""
    task = trio.lowlevel.current_task()
    return _callers.get(task) or task


def waiting_caller() -> object:
    """The current caller, who is about to wait for an ack until its call ends."""
    caller = current_caller()
    if _callers.get(trio.lowlevel.current_task()) is not None:  # else no `calling` removes it
        _waiting.add(caller)
    return caller


@runtime_checkable
class _AsyncioTask(Protocol):
    """What is used of `asyncio.Task`, which only the facade for asyncio imports."""

    @abstractmethod
    def done(self) -> bool:
        """Whether it has ended."""


def has_ended(caller: object) -> bool:
    """Whether a caller makes no more calls."""
    if isinstance(caller, trio.lowlevel.Task):
        return inspect.getcoroutinestate(caller.coro) == inspect.CORO_CLOSED
    if isinstance(caller, Thread):
        return not caller.is_alive()
    return isinstance(caller, _AsyncioTask) and caller.done()


class Takers:
    """The callers outside of the client's thread that take the messages of one stream."""

    __slots__ = ("_callers",)

    def __init__(self) -> None:
        self._callers: dict[object, None] = {}

    def __contains__(self, caller: object) -> bool:
        return caller in self._callers

    def add(self, caller: object) -> None:
        """Note that a caller takes messages; from any thread.

        Args:
            caller: The caller.
        """
        if caller not in self._callers:
            self._remove_ended()
            self._callers[caller] = None

    def only(self, last: object | None) -> object | None:
        """The caller that takes the messages; this object, which is none, while several do.

        Args:
            last: Who it is if none is known.
        """
        self._remove_ended()
        callers = list(self._callers)
        if len(callers) > 1:
            return self
        return callers[0] if callers else last

    def stuck(self) -> object | None:
        """One of them to be refused its wait, if all of them wait for acks."""
        self._remove_ended()
        callers = list(self._callers)
        return callers[0] if callers and _waiting.issuperset(callers) else None

    def _remove_ended(self) -> None:
        for caller in list(self._callers):
            if has_ended(caller):
                self._callers.pop(caller, None)  # another thread may remove it at the same time

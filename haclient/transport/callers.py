"""Who takes messages, who waits for an ack, and which waits are refused.

**Callers.** In a program that runs trio, whoever takes messages or waits is a task. Each call of
`haclient.blocking` and `haclient.aio` is a task of its own in the client's thread; there it is the
thread or the asyncio task that has made the call, or the task of the handler that makes it.

**The rule.** While a full queue has stopped the reading, no ack is read. A caller that takes the
messages of that queue is refused a wait for an ack (`UsageError`) unless another caller is expected
to take them: one that has taken messages before, has not ended, and does not wait for an ack
itself. The rule is applied when a wait begins, when reading stops, and about once a second until it
resumes, since nothing announces the end of a thread or a task. A caller that has not ended is
expected to take messages again, however long it does something else.

Callers outside of the client's thread may share a stream. Tasks of trio take turns: of them only
the one that took last is expected to go on, as long as it has not ended.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Thread
from typing import Final, Protocol, runtime_checkable

import trio

from haclient.errors import UsageError

_callers: Final[dict[trio.lowlevel.Task, object]] = {}  # of the tasks that carry out a call


@contextmanager
def calling(caller: object | None) -> Generator[None]:
    """Carry out a call of somebody outside of the client's thread, in a task of its own.

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
    """Who takes messages or waits in the current task."""
    task = trio.lowlevel.current_task()
    return _callers.get(task, task)


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
    """The callers that take the messages of one queue.

    Attributes:
        last: The one that took last; `None` before.
        are_outside: Whether they are outside of the client's thread, and may share the queue.
    """

    __slots__ = ("_callers", "are_outside", "last")

    def __init__(self) -> None:
        self._callers: dict[object, None] = {}
        self.last: object | None = None
        self.are_outside = False

    def __contains__(self, caller: object) -> bool:
        return caller in self._callers

    def add(self, caller: object) -> None:
        """Note that a caller takes messages; from any thread.

        Args:
            caller: The caller.
        """
        if caller is self.last:
            return
        self.last = caller
        if caller not in self._callers:
            for each in list(self._callers):
                if has_ended(each):
                    self._callers.pop(each, None)  # another thread may remove it at the same time
            self._callers[caller] = None

    def expected(self) -> list[object]:
        """The callers that are expected to take the next messages."""
        if not self.are_outside and self.last is not None and not has_ended(self.last):
            return [self.last]
        return [each for each in list(self._callers) if not has_ended(each)]


class AckWaits:
    """The waits for acks of one client's callers.

    Args:
        stopped_by: The takers of the full queue that has stopped the reading; `None` while reading
            goes on.
    """

    def __init__(self, stopped_by: Callable[[], Takers | None] = lambda: None) -> None:
        self._stopped_by = stopped_by
        self._callers: dict[trio.CancelScope, object] = {}  # by the scope of their wait

    @contextmanager
    def waiting(self, what: str) -> Generator[None]:
        """Wait for an ack inside this block.

        Args:
            what: What the caller does, for the error.

        Raises:
            UsageError: The ack stands behind messages that the caller has yet to take. The block
                was not entered, or what it awaits was cancelled.
        """
        caller, scope = current_caller(), trio.CancelScope()
        if self._is_endless(caller):
            raise _would_deadlock(what)
        self._callers[scope] = caller
        try:
            with scope:
                yield
        finally:
            self._callers.pop(scope, None)
        if scope.cancelled_caught:
            raise _would_deadlock(what)

    def recheck(self) -> None:
        """End the waits that the rule refuses."""
        for scope, caller in list(self._callers.items()):
            if self._is_endless(caller):
                del self._callers[scope]  # at once: it may take the messages for the others
                scope.cancel()

    def _is_endless(self, caller: object) -> bool:
        takers = self._stopped_by()
        if takers is None or caller not in takers:
            return False
        waiting = set(self._callers.values())
        return all(each is caller or each in waiting for each in takers.expected())

    @property
    def is_stopped_by_caller(self) -> bool:
        """Whether reading has stopped, and the current caller is expected to take the messages."""
        takers = self._stopped_by()
        return takers is not None and current_caller() in takers.expected()


def _would_deadlock(what: str) -> UsageError:
    return UsageError(
        f"{what} waits for an ack that stands behind messages which the caller has yet to take: "
        "its subscription is full. Issue it from another task or thread, or take the messages first"
    )

"""Who takes messages, who waits for an ack, and which waits are refused.

**Callers.** In a program that runs trio, whoever takes messages or waits is a task. Each call of
`haclient.blocking` and `haclient.aio` is a task of its own in the client's thread; there it is the
thread or the asyncio task that has made the call, or the task of the handler that makes it.

**The rule.** While a full queue has stopped the reading, no ack is read. A caller that is expected
to take the messages of that queue is refused a wait for an ack (`UsageError`), unless another one
is expected to as well and does not wait itself. The rule is applied when a wait begins, when
reading stops, and about once a second until it resumes, since nothing announces the end of a thread
or a task.

A caller that has taken messages and has not ended is expected to take more, however long it does
something else. Callers outside of the client's thread may share a stream. Tasks of trio take turns:
of them only the one that took last is expected to go on, as long as it has not ended.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Collection, Generator
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

    def add(self, caller: object) -> None:
        """Note that a caller takes messages; from any thread.

        Args:
            caller: The caller.
        """
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
        expected: The callers that are expected to take the messages of the full queue that has
            stopped the reading; empty while reading goes on.
    """

    __slots__ = ("_callers", "_expected")

    def __init__(self, expected: Callable[[], Collection[object]] = tuple) -> None:
        self._expected = expected
        self._callers: dict[trio.Event, object] = {}  # by what they wait for

    def check(self, what: str) -> None:
        """Refuse a wait that would never end, before it begins.

        Args:
            what: What the caller does, for the error.

        Raises:
            UsageError: The ack stands behind messages that the caller has yet to take.
        """
        if self._is_endless(current_caller()):
            raise _would_deadlock(what)

    async def until(self, event: trio.Event, what: str) -> None:
        """Wait for an ack.

        Args:
            event: Set when it has come, or when the wait is refused; nobody else waits for it.
            what: As for `check`.

        Raises:
            UsageError: As `check`, also during the wait.
        """
        caller, waiting = current_caller(), self._callers
        if not event.is_set() and self._is_endless(caller):
            raise _would_deadlock(what)
        waiting[event] = caller
        try:
            await event.wait()
            if event not in waiting:
                raise _would_deadlock(what)
        finally:
            waiting.pop(event, None)

    def recheck(self) -> None:
        """End the waits that would never end."""
        for event, caller in list(self._callers.items()):
            if not event.is_set() and self._is_endless(caller):
                del self._callers[event]  # at once: it may take the messages for the others
                event.set()

    def _is_endless(self, caller: object) -> bool:
        expected = self._expected()
        if caller not in expected:
            return False
        # One whose event is set goes on in a moment, and may take the messages.
        waiting = (each for event, each in self._callers.items() if not event.is_set())
        return {caller, *waiting}.issuperset(expected)

    @property
    def is_stopped_by_caller(self) -> bool:
        """Whether reading has stopped, and the current caller is expected to take the messages."""
        return current_caller() in self._expected()


class AckLot:
    """Where callers wait for what acks bring about: a `trio.lowlevel.ParkingLot` with the rule.

    Args:
        waits: The waits of the client's callers.
    """

    __slots__ = ("_events", "_waits")

    def __init__(self, waits: AckWaits) -> None:
        self._waits = waits
        self._events: set[trio.Event] = set()

    async def park(self, what: str) -> None:
        """Wait for `unpark_all`; see `AckWaits.until`."""
        event = trio.Event()
        self._events.add(event)
        try:
            await self._waits.until(event, what)
        finally:
            self._events.discard(event)

    def unpark_all(self) -> None:
        """Wake everyone who waits."""
        for event in self._events:
            event.set()


def _would_deadlock(what: str) -> UsageError:
    return UsageError(
        f"{what} waits for an ack that stands behind messages which the caller has yet to take: "
        "its subscription is full. Issue it from another task or thread, or take the messages first"
    )

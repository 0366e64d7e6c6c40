"""The callers that take messages or wait for acks, and the waits that would deadlock.

**The rule.** While a full queue has stopped the reading, no ack arrives. So a wait for an ack is
refused with a `UsageError` if every caller that is expected to take the messages of that queue
would then be waiting, and the caller is one of them. The rule is applied when a wait begins, when
reading stops, and about once a second until it resumes, since nothing reports the end of a thread
or a task.

**Expected callers.** A caller that has taken messages is expected to take more until it ends,
however long that takes. Callers outside the client's thread may share a stream, and all of them are
expected. Tasks of trio use a stream in turn: only the last one is expected, until it ends.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Collection
from threading import Thread
from typing import Protocol, runtime_checkable

import trio

from haclient.errors import UsageError
from haclient.transport.caller import current_caller


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


class Consumers:
    """The callers that take the messages of one queue.

    Attributes:
        last: The one that took messages last; `None` before the first.
        are_outside: Whether they are outside the client's thread, and may share the queue.
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
        self._callers: dict[trio.Event, object] = {}  # that wait, by their events

    def check(self, what: str) -> None:
        """Refuse a wait that would never end, before it begins.

        Args:
            what: What the caller does, for the error.

        Raises:
            UsageError: The ack comes after messages that the caller has yet to take.
        """
        if self._would_deadlock(current_caller()):
            raise _deadlock_error(what)

    async def until(self, event: trio.Event, what: str) -> None:
        """Wait for an event that an ack sets.

        Args:
            event: The event, for which nobody else waits: it is also set when the wait is refused.
            what: As for `check`.

        Raises:
            UsageError: As `check`, also during the wait.
        """
        caller, waiting = current_caller(), self._callers
        if not event.is_set() and self._would_deadlock(caller):
            raise _deadlock_error(what)
        waiting[event] = caller
        try:
            await event.wait()
            if event not in waiting:
                raise _deadlock_error(what)
        finally:
            waiting.pop(event, None)

    def recheck(self) -> None:
        """Refuse the waits that would never end by now."""
        for event, caller in list(self._callers.items()):
            if not event.is_set() and self._would_deadlock(caller):
                del self._callers[event]  # at once: it can take the messages for the others
                event.set()

    def _would_deadlock(self, caller: object) -> bool:
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
    """A `trio.lowlevel.ParkingLot` for waits for acks: those that would deadlock are refused.

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
        """Wake all callers that wait."""
        for event in self._events:
            event.set()


def _deadlock_error(what: str) -> UsageError:
    return UsageError(
        f"{what} waits for an ack that stands behind messages which the caller has yet to take: "
        "its subscription is full. Issue it from another task or thread, or take the messages first"
    )

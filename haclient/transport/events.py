"""Calls the listeners of the application, off the reading task.

Callbacks may be plain or async; one task calls them in order, so a callback that issues commands
delays only the callbacks after it. The queue is bounded like a subscription's, in events and in
bytes: when the callbacks cannot keep up, the reader stops reading until they have.

A callback cannot end the client: an error that it raises is logged with its traceback and reported
to the exception listener, and the next callback is called.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from inspect import isawaitable
from typing import Final, TypeAlias

import trio

from haclient.errors import DisconnectedError, UsageError
from haclient.protocol.commands import CommandName
from haclient.protocol.messages import Message
from haclient.transport.callers import Consumers
from haclient_stores.checks import check_callable
from haclient_stores.logs import logger_of

EXCEPTION: Final = "exception"
"""The event of an exception, for the application's exception listener."""

_COMMAND: Final = "command "  # and its name: the event of a message that arrives
_CAP: Final = 65_536  # events
_CAP_BYTES: Final = 16 * 1024 * 1024  # of the bodies of their messages
_logger = logger_of(__name__)

Callback: TypeAlias = Callable[..., object]


class Events:
    """Named callbacks and the queue in front of them."""

    def __init__(self, **callbacks: Callback | None) -> None:
        self._callbacks: dict[str, tuple[Callback, ...]] = {
            name: (each,) for name, each in callbacks.items() if each is not None
        }
        self._queue: deque[tuple[str, tuple[Callback, ...], tuple[object, ...]]] = deque()
        self._held_bytes = 0
        self._arrived = trio.lowlevel.ParkingLot()
        self._drained = trio.lowlevel.ParkingLot()
        self._is_open: Callable[[], bool] = lambda: True
        self.consumers = Consumers()

    def __contains__(self, name: str) -> bool:
        return name in self._callbacks

    @property
    def names(self) -> frozenset[str]:
        """The events that have listeners."""
        return frozenset(self._callbacks)

    def add(self, name: str, callback: Callback) -> None:
        """Add a listener; it gets every event from now on.

        Raises:
            UsageError: It was added already.
        """
        check_callable("listener", callback, optional=False)
        callbacks = self._callbacks.get(name, ())
        if callback in callbacks:
            raise UsageError(f"this {name} listener was added already: remove it first")
        self._callbacks[name] = (*callbacks, callback)

    def remove(self, name: str, callback: Callback) -> None:
        """Remove a listener; it gets no further call, not even for queued events.

        Raises:
            UsageError: It was never added, or was removed before.
        """
        callbacks = self._callbacks.get(name, ())
        if callback not in callbacks:
            raise UsageError(f"no such {name} listener: only one that was added can be removed")
        rest = tuple(each for each in callbacks if each != callback)
        if rest:
            self._callbacks[name] = rest
        else:
            del self._callbacks[name]

    def emit(self, name: str, *values: object) -> None:
        """Queue one event, if anyone listens."""
        if name in self._callbacks:
            self._queue.append((name, self._callbacks[name], values))
            self._held_bytes += _size_of(values)
            self._arrived.unpark_all()

    @property
    def full(self) -> bool:
        """Whether the callbacks are too far behind."""
        return len(self._queue) > _CAP or self._held_bytes > _CAP_BYTES

    @property
    def draining(self) -> bool:
        """Whether the callbacks have yet to catch up to half of the cap."""
        return len(self._queue) > _CAP // 2 or self._held_bytes > _CAP_BYTES // 2

    @property
    def backlog(self) -> int:
        """How many events are queued."""
        return len(self._queue)

    async def drained(self) -> None:
        """Wait until the callbacks have caught up to half of the cap."""
        while self.draining:
            await self._drained.park()

    async def run(self, *, is_open: Callable[[], bool] = lambda: True) -> None:
        """Call the listeners while the client is open.

        Args:
            is_open: Whether the client is open, and not being left.
        """
        self._is_open = is_open
        self.consumers.add(trio.lowlevel.current_task())
        while True:
            await self._call_all()
            await self._arrived.park()

    async def finish(self) -> None:
        """Call back for the queued events after `run` has ended.

        The client is shutting down: calls that a callback makes to it fail, which is only logged.
        """
        self._is_open = lambda: False
        await self._call_all()

    async def _call_all(self) -> None:
        while self._queue:
            name, callbacks, values = self._queue.popleft()
            self._held_bytes -= _size_of(values)
            for callback in callbacks:
                if callback in self._callbacks.get(name, ()):  # it may have been removed meanwhile
                    await self._call(name, callback, values)
            if self._drained and not self.draining:
                self._drained.unpark_all()

    async def _call(self, name: str, callback: Callback, values: tuple[object, ...]) -> None:
        try:
            result = callback(*values)
            if isawaitable(result):
                await result
        except Exception as error:  # any error of the application's code
            if isinstance(error, DisconnectedError) and not self._is_open():  # this is no failure
                _logger.warning("a callback used its client when that was left: %s", error)
                return
            _logger.exception("a listener of %s raised; it is called again", name)
            if name != EXCEPTION:  # else its own errors would call it without an end
                self.emit(EXCEPTION, error)


def _size_of(values: tuple[object, ...]) -> int:
    return sum(len(each.data) for each in values if isinstance(each, Message))


class CommandTap:
    """Passes each message that arrives to the listeners of its command.

    Args:
        events: Has the listeners, each under `event_of` its command.
    """

    def __init__(self, events: Events) -> None:
        self._events = events

    @staticmethod
    def event_of(command: CommandName | str) -> str:
        """The event of the messages with this command.

        Raises:
            UsageError: There is no such command.
        """
        try:
            return f"{_COMMAND}{CommandName(command)}"
        except ValueError:
            known = ", ".join(CommandName)
            raise UsageError(f"{command!r} is no command; there are {known}") from None

    @classmethod
    def if_needed(cls, events: Events) -> CommandTap | None:
        """The tap, if a command has a listener: looking at each message takes time."""
        is_needed = any(name.startswith(_COMMAND) for name in events.names)
        return cls(events) if is_needed else None

    def __call__(self, messages: Sequence[Message]) -> None:
        """Queue a copy of each message that has listeners."""
        for message in messages:
            name = f"{_COMMAND}{message.command}"
            if name in self._events:
                self._events.emit(name, message.copy())

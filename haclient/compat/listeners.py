"""The listeners and handlers of the application, which may be set and changed at any time.

The client of `haclient` is created when the application connects. `Listeners.on_event` gets its
events, and calls the listeners set at that moment. An error that a listener raises goes to the
exception listener, as in the official clients, and does not end the client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import haclient.protocol.messages
from haclient.compat.messages import Message
from haclient.compat.policies import STATE_NUMBERS
from haclient.errors import HAClientError, UsageError
from haclient.events import (
    ConnectionLost,
    DuplicatesDropped,
    Event,
    ExceptionRaised,
    MessagesReceived,
    MessagesUnrouted,
    StateChanged,
)
from haclient.protocol.commands import CommandName
from haclient.session.connection_state import ClosedByClient, ConnectionState
from haclient_stores.logs import logger_of

MessageHandler: TypeAlias = Callable[[Message], object]
_logger = logger_of(__name__)

KINDS: Final = (
    ConnectionLost,
    DuplicatesDropped,
    ExceptionRaised,
    MessagesUnrouted,
    StateChanged,
)
"""The events that `Listeners.on_event` needs."""


class Listeners:
    """The listeners and handlers that the application has set.

    Attributes:
        exception: Gets each exception of a handler or of a background task.
        disconnect: Called when the connection is lost.
        failed_write: Gets each publish that the server refused, and the reason.
        duplicate: Gets each message that a bookmark store filtered out.
        last_chance: Gets each message that belongs to no subscription.
        of_commands: Gets each message of a command, by the command.
    """

    def __init__(self) -> None:
        self.exception: Callable[[Exception], object] | None = None
        self.disconnect: Callable[[], object] | None = None
        self.failed_write: Callable[[Message, str], object] | None = None
        self.duplicate: MessageHandler | None = None
        self.last_chance: MessageHandler | None = None
        self.of_commands: dict[str, MessageHandler] = {}
        self._states: list[Callable[[int], object]] = []

    # -- for the application ----------------------------------------------------

    def add_state(self, listener: Callable[[int], object]) -> None:
        """Call `listener` with the number of each state.

        Raises:
            UsageError: It was added before.
        """
        if listener in self._states:
            raise UsageError("this connection state listener was added already")
        self._states.append(listener)

    def remove_state(self, listener: Callable[[int], object]) -> None:
        """Stop calling `listener`.

        Raises:
            UsageError: It was never added.
        """
        if listener not in self._states:
            raise UsageError("no such connection state listener was added")
        self._states.remove(listener)

    def clear_states(self) -> None:
        """Stop calling all state listeners."""
        self._states.clear()

    def set_of_command(self, command: str, handler: MessageHandler | None) -> None:
        """Call `handler` with each message of one command; `None` for no more calls.

        Raises:
            UsageError: There is no such command.
        """
        try:
            name = CommandName(command)
        except ValueError:
            known = ", ".join(CommandName)
            raise UsageError(f"{command!r} is no command; there are {known}") from None
        if handler is None:
            self.of_commands.pop(name, None)
        else:
            self.of_commands[name] = handler

    # -- for the client -----------------------------------------------------------

    def call(self, function: Callable[..., object], *values: object) -> None:
        """Call a listener; an error that it raises goes to the exception listener."""
        try:
            function(*values)
        except Exception as error:  # any error of the application's code
            self.on_exception(error)

    def on_event(self, event: Event) -> None:
        """Something has happened to the client."""
        match event:
            case StateChanged(state=state):
                self._on_state(state)
            case ConnectionLost(error=error):
                self._on_disconnect(error)
            case ExceptionRaised(error=error):
                self.on_exception(error)
            case DuplicatesDropped(messages=messages):
                self._call_with(self.duplicate, messages)
            case MessagesUnrouted(messages=messages):
                self._call_with(self.last_chance, messages)
            case _:
                pass

    def on_received(self, event: Event) -> None:
        """Messages have arrived."""
        if isinstance(event, MessagesReceived):
            for each in event.messages:
                self._call_with(self.of_commands.get(each.command), [each])

    def on_exception(self, error: Exception) -> None:
        """An exception was raised by a handler, or by a task of the client."""
        if self.exception is None:
            _logger.error("no exception listener is set: %r", error, exc_info=error)
            return
        try:
            self.exception(error)
        except Exception:
            _logger.exception("the exception listener raised")

    def on_failed_write(self, native: haclient.protocol.messages.Message, reason: str) -> None:
        """The server has refused a publish."""
        if self.failed_write is not None:
            self.call(self.failed_write, Message(native), reason)
        elif self.last_chance is not None:
            self.call(self.last_chance, Message(native))
        else:
            _logger.warning(
                "the server refused a publish to %r: %s; no failed write handler is set",
                native.topic,
                reason,
            )

    def _on_disconnect(self, reason: HAClientError) -> None:
        """The connection has ended; the handler is not called if the application closed it."""
        if self.disconnect is not None and not isinstance(reason, ClosedByClient):
            self.call(self.disconnect)

    def _call_with(
        self,
        handler: MessageHandler | None,
        messages: Sequence[haclient.protocol.messages.Message],
    ) -> None:
        if handler is not None:
            for each in messages:
                self.call(handler, Message(each))

    def _on_state(self, state: ConnectionState) -> None:
        number = STATE_NUMBERS.get(state)
        if number is not None:
            for listener in tuple(self._states):
                self.call(listener, number)

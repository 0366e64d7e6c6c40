"""Reports exceptions of handlers and background tasks to the application's listener.

A report decides nothing: the policy of handlers and the client's nursery do. The same exception is
reported once, however many tasks and scopes it passes on its way out.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from inspect import isawaitable
from typing import TYPE_CHECKING

from haclient.transport.events import EXCEPTION, Events

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from haclient.protocol.messages import Message
    from haclient.transport.message_queue import Handler
    from haclient.transport.settings import Settings


class ExceptionReporter:
    """The exceptions of one client, on their way to its `on_exception`.

    Args:
        events: The queue in front of the application's callbacks.
    """

    def __init__(self, events: Events) -> None:
        self._events = events
        self._last: BaseException | None = None

    def report(self, error: Exception) -> None:
        """Queue one exception for the listener, unless it was the last that was reported."""
        if error is not self._last:
            self._last = error
            self._events.emit(EXCEPTION, error)

    def watched(self, handler: Handler) -> Handler:
        """A handler whose exceptions are reported; the handler itself where nobody listens."""
        if EXCEPTION not in self._events:
            return handler

        async def finish(result: Awaitable[None]) -> None:
            try:
                await result
            except Exception as error:  # of any kind: it is the application's
                self.report(error)
                raise

        def call(message: Message) -> Awaitable[None] | None:
            try:
                result = handler(message)
            except Exception as error:  # of any kind: it is the application's
                self.report(error)
                raise
            return finish(result) if isawaitable(result) else result

        return call

    @contextmanager
    def reporting(self, *, apart_from: BaseException | None) -> Generator[None]:
        """Report the exception that leaves this block.

        Args:
            apart_from: The exception that the application raised itself: that is no news.
        """
        try:
            yield
        except Exception as error:  # of any kind: it goes on to leave the client's block
            if error is not apart_from:
                self.report(error)
            raise


def listeners_of(settings: Settings) -> tuple[Events, ExceptionReporter]:
    """The callbacks of the application, and what reports their exceptions to one of them.

    Args:
        settings: Those of the client.
    """
    events = Events(
        failed_write=settings.on_failed_write,
        duplicate=settings.on_duplicate,
        last_chance=settings.on_last_chance,
        disconnect=settings.on_disconnect,
        exception=settings.on_exception,
        state=settings.on_state,
        event=settings.on_event,
    )
    return events, ExceptionReporter(events)

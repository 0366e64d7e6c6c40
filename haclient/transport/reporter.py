"""What a client reports about itself: log records with fields, and events for listeners.

A log record is for people: it has a sentence, and the fields `client`, `uri`, `sub_id` and
`attempt` to filter by. An event is for programs; without a listener for its kind, none is created.

Listeners may be plain or async; one task calls them in order, off the reading task, so one that
issues commands delays only the calls after it. The queue in front of them is bounded like that of a
subscription, in bytes: when they cannot keep up, the reader stops reading until they have. A
listener cannot end the client: an error that it raises is logged with its traceback and reported as
`ExceptionRaised`, and the next one is called.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Generator, MutableMapping, Sequence
from contextlib import contextmanager
from inspect import isawaitable
from typing import Any, Concatenate, Final, ParamSpec, TypeAlias

import trio
from typing_extensions import override

from haclient.errors import DisconnectedError, HAClientError, PublishFailed, UsageError
from haclient.events import (
    Event,
    EventListener,
    ExceptionRaised,
    MessagesReceived,
    PublishRefused,
    SubscriptionEnded,
)
from haclient.protocol.messages import Message
from haclient.protocol.uri import Uri
from haclient.transport.tasks import Turn, is_only
from haclient_stores.checks import check_callable
from haclient_stores.logs import SafeLogger, logger_of

_CAP_BYTES: Final = 16 * 1024 * 1024  # of the calls and the bodies of their messages
_CALL_BYTES: Final = 256  # about what a call takes in memory, without a body
_logger = logger_of(__name__)

WireTap: TypeAlias = Callable[[str, str], object]
"""Called with `>` for a frame that was sent or `<` for one that has arrived, and its header."""

_P = ParamSpec("_P")
_Call: TypeAlias = tuple[Callable[..., object], tuple[object, ...], int]
"""A callback of the application, its arguments, and the bytes of both."""


class CallQueue:
    """Calls of the application's callbacks, off the reading task."""

    def __init__(self) -> None:
        self._calls: deque[_Call] = deque()
        self._arrived = trio.lowlevel.ParkingLot()
        self.queued_bytes = 0
        self.cap_bytes = _CAP_BYTES
        self.reader: trio.lowlevel.ParkingLot | None = None  # woken when calls are taken

    def put(
        self, callback: Callable[..., object], *values: object, messages: Sequence[Message] = ()
    ) -> None:
        """Queue one call.

        Args:
            callback: A plain function or a coroutine function.
            values: Its arguments.
            messages: The messages among them.
        """
        size = _CALL_BYTES + sum(len(each.data) for each in messages)
        self._calls.append((callback, values, size))
        self.queued_bytes += size
        self._arrived.unpark_all()

    @property
    def full(self) -> bool:
        """Whether the callbacks are too far behind."""
        return self.queued_bytes > self.cap_bytes

    @property
    def backlog(self) -> int:
        """How many calls are queued."""
        return len(self._calls)

    @property
    def progress(self) -> int:
        """A value that changes with each call that is taken."""
        return len(self._calls)

    async def wait(self) -> None:
        """Wait for the next call."""
        while not self._calls:
            await self._arrived.park()

    def pop(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """Take the next call."""
        callback, values, size = self._calls.popleft()
        self.queued_bytes -= size
        if self.reader:
            self.reader.unpark_all()
        return callback, values


def _is_kind(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Event)


class Reporter:
    """Creates the log records and the events of one client.

    Args:
        client_name: Its name.
        clock_us: The time in microseconds since 1970.
        on_event: The first listener, for every kind.
        on_failed_write: Called with each publish that no server takes, and the reason.

    Attributes:
        uri: The server in use or tried last.
        log: The logger `haclient.client`, whose records have the fields of this client.
        calls: The queue in front of the application's callbacks.
    """

    def __init__(
        self,
        client_name: str,
        clock_us: Callable[[], int],
        on_event: EventListener | None = None,
        on_failed_write: Callable[[Message, str], object] | None = None,
    ) -> None:
        self._on_failed_write = on_failed_write
        self.client_name = client_name
        self.uri: Uri | None = None
        self.clock_us = clock_us
        self.log = ClientLogger(self)
        self.calls = CallQueue()
        self._listeners: list[tuple[EventListener, tuple[type[Event], ...]]] = []
        if on_event is not None:
            self._listeners.append((on_event, (Event,)))
        self._is_open = False
        self._calling = trio.CancelScope(shield=True)
        self._calls_end_at = math.inf
        self._last_exception: BaseException | None = None

    @property
    def safe_uri(self) -> str:
        """The server in use or tried last, without its password."""
        return "" if self.uri is None else self.uri.safe

    # -- events ---------------------------------------------------------------

    def add(self, listener: EventListener, kinds: tuple[type[Event], ...]) -> None:
        """Add a listener; it gets every event of these kinds from now on.

        Raises:
            UsageError: It was added already, or one of these is no kind of event.
        """
        check_callable("listener", listener, optional=False)
        for each in kinds:
            if not _is_kind(each):
                raise UsageError(f"a kind of event is a class of haclient.events, not {each!r:.60}")
        if any(each == listener for each, _ in self._listeners):
            raise UsageError("this event listener was added already: remove it first")
        self._listeners.append((listener, kinds or (Event,)))

    def remove(self, listener: EventListener) -> None:
        """Remove a listener; it gets no further call, not even for queued events.

        Raises:
            UsageError: It was never added, or was removed before.
        """
        rest = [each for each in self._listeners if each[0] != listener]
        if len(rest) == len(self._listeners):
            raise UsageError("no such event listener: only one that was added can be removed")
        self._listeners = rest

    def wants(self, kind: type[Event]) -> bool:
        """Whether there is a listener for this kind of event."""
        return any(_gets(kind, kinds) for _, kinds in self._listeners)

    def emit(
        self,
        kind: Callable[Concatenate[str, int, str, _P], Event],
        *args: _P.args,
        **facts: _P.kwargs,
    ) -> None:
        """Report an event to the listeners of its kind, if there are any.

        Args:
            kind: The class of the event.
            args: Nothing: the facts have names.
            facts: Its attributes besides those of `Event`.
        """
        if not self._listeners:  # the usual case costs nothing: this is called for each read
            return
        listeners = [each for each, kinds in self._listeners if _gets(kind, kinds)]
        if not listeners:
            return
        event = kind(self.client_name, self.clock_us(), self.safe_uri, *args, **facts)
        messages: Sequence[Message] = getattr(event, "messages", ())
        for listener in listeners:
            self.calls.put(listener, event, messages=messages)

    @property
    def tap(self) -> Callable[[Sequence[Message]], None] | None:
        """Reports the messages of each read, if somebody listens: copying them takes time."""
        return self._received if self.wants(MessagesReceived) else None

    def _received(self, messages: Sequence[Message]) -> None:
        self.emit(MessagesReceived, messages=tuple(message.copy() for message in messages))

    def exception(self, error: Exception) -> None:
        """Report an exception of the application's code or of a background task, but never twice.

        The same one passes several tasks and scopes on its way out.
        """
        if error is not self._last_exception:
            self._last_exception = error
            self.emit(ExceptionRaised, error=error)

    def subscription_ended(self, sub_id: str, error: HAClientError, *, text: str) -> None:
        """Report a subscription that has ended with an error, by a log record and an event.

        Args:
            sub_id: Its id.
            error: The error.
            text: The log record, with the error, after the name of the client.
        """
        extra = {"sub_id": sub_id}
        self.log.error("client %s%s", self.client_name, text, extra=extra)
        self.emit(SubscriptionEnded, sub_id=sub_id, error=error)

    def publish_refused(self, error: PublishFailed, message: Message) -> None:
        """Report a publish that no server takes, with its reason."""
        self.emit(PublishRefused, error=error, message=message)
        if self._on_failed_write is not None:
            self.calls.put(self._on_failed_write, message, message.reason, messages=[message])

    @contextmanager
    def reporting(self, *, apart_from: BaseException | None) -> Generator[None]:
        """Report the exception that leaves this block.

        Args:
            apart_from: The exception that the application raised itself, which it knows.
        """
        try:
            yield
        except Exception as error:  # of any kind: it goes on to leave the client's block
            if error is not apart_from:
                self.exception(error)
            raise

    def guarded(self, tap: WireTap) -> WireTap:
        """A wire tap that is called no more after its first exception.

        It runs where frames are read and written: its exception must not pass for one of the
        socket.
        """
        has_raised = False

        def show(direction: str, header: str) -> None:
            nonlocal has_raised
            if has_raised:
                return
            try:
                tap(direction, header)
            except Exception as error:  # of any kind: it is the application's
                has_raised = True
                name = type(error).__name__
                _logger.warning(
                    "the wire tap raised %s: it is called no more", name, exc_info=error
                )
                self.exception(error)

        return show

    # -- calls ----------------------------------------------------------------

    async def run(self) -> None:
        """Call the listeners while the client is open."""
        self._is_open = True
        while True:
            await self.calls.wait()
            # Shielded: a call that was taken when the client is left would be lost.
            # With the limit of `closing`, which may have come since this task was woken.
            self._calling = trio.CancelScope(shield=True, deadline=self._calls_end_at)
            with self._calling:
                await self.finish()
            await trio.lowlevel.checkpoint_if_cancelled()  # `wait` is none if calls are queued

    def closing(self, limit_s: float) -> None:
        """The client is shutting down: from now on calls that a listener makes to it fail.

        Args:
            limit_s: Seconds for the calls that `run` is making.
        """
        self._is_open = False
        self._calling.deadline = self._calls_end_at = trio.current_time() + limit_s

    async def finish(self) -> None:
        """Make the queued calls; also after `run` has ended."""
        turn = Turn()
        while self.calls.backlog:
            await self._call(*self.calls.pop())
            if turn.now() >= turn.ends_at:
                await turn.end()

    async def _call(self, callback: Callable[..., object], values: tuple[object, ...]) -> None:
        event = values[0]
        # It may have been removed meanwhile.
        if isinstance(event, Event) and all(each != callback for each, _ in self._listeners):
            return
        try:
            result = callback(*values)
            if isawaitable(result):
                await result
        except Exception as error:  # any error of the application's code
            if is_only(error, DisconnectedError) and not self._is_open:  # this is no failure
                _logger.warning("a callback used its client when that was left: %s", error)
                return
            what = type(event).__name__ if isinstance(event, Event) else "on_failed_write"
            _logger.exception("a listener of %s raised; it is called again", what)
            if not isinstance(event, ExceptionRaised):  # else its errors would call it for ever
                self.exception(error)


def _gets(kind: object, kinds: tuple[type[Event], ...]) -> bool:
    """Whether a listener of `kinds` gets events of this class."""
    if kind is MessagesReceived:
        return kind in kinds
    return isinstance(kind, type) and issubclass(kind, kinds)


class ClientLogger(SafeLogger):
    """Adds `client`, `uri`, `sub_id` and `attempt` to each record; empty or 0 where unknown.

    `sub_id` and `attempt` are given as `extra=`.
    """

    def __init__(self, reporter: Reporter) -> None:
        super().__init__(logging.getLogger("haclient.client"))
        self._reporter = reporter

    @override
    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        fields: dict[str, object] = {"sub_id": "", "attempt": 0, **(kwargs.get("extra") or {})}
        fields |= {"client": self._reporter.client_name, "uri": self._reporter.safe_uri}
        return msg, {**kwargs, "extra": fields}

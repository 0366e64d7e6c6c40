"""The last protocol events of a client, kept to be read after a failure.

Log files say that a connection was lost; what both sides had sent before it is rarely logged, since
that would be a line for each frame. A recorder keeps the last frames, states and errors in memory.
It is fed where a wire tap is, with headers whose password is masked, and it is bounded twice: by
the number of events and by their size.

The application makes the recorder and owns it, so that it outlives the client. Without one, a
client does not look at its frames at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Final, Literal, TypeAlias

from typing_extensions import override

from haclient.errors import HAClientError, UsageError
from haclient_stores.checks import check_count
from haclient_stores.logs import logger_of

__all__ = ["FlightEvent", "FlightRecorder"]

EventKind: TypeAlias = Literal[">", "<", "=", "!"]

MAX_EVENTS: Final = 1_000
MAX_BYTES: Final = 1_000_000  # about 1 000 headers of the usual length, several times over
MAX_TEXT: Final = 1_000  # one frame with a long filter or many ids must not displace the others

_REPORTED_EVENTS: Final = 30  # a log line for people: the logon, the recovery and what ended it
_EVENT_OVERHEAD: Final = 150  # bytes of one event besides its text, about
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_logger = logger_of(__name__)


@dataclass(frozen=True, slots=True)
class FlightEvent:
    """One protocol event.

    Attributes:
        at_us: When, in microseconds since 1970.
        client: The name of the client.
        kind: `>` for a frame that was sent, `<` for one that has arrived, `=` for a state that the
            client has reached, `!` for an error that ended a connection or an attempt.
        text: The header of the frame with its password masked, the state, or the error. It is cut
            after 1 000 characters.
    """

    at_us: int
    client: str
    kind: EventKind
    text: str

    @override
    def __str__(self) -> str:
        at = _EPOCH + timedelta(microseconds=self.at_us)
        return f"{at:%Y-%m-%dT%H:%M:%S.%fZ} {self.client} {self.kind} {self.text}"


class FlightRecorder:
    """Keeps the last protocol events of a client; pass it as `flight_recorder=`.

    `str()` gives one line for each event, oldest first. It may be read from any thread, while the
    client runs and after it has ended. Several clients may share one.

    Args:
        max_events: How many events are kept.
        max_bytes: How many bytes of memory they may take, about; older ones go first.

    Raises:
        UsageError: A limit is below 1.
    """

    def __init__(self, *, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES) -> None:
        for name, limit in (("max_events", max_events), ("max_bytes", max_bytes)):
            check_count(name, limit, 1)
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._lock = Lock()  # the client's thread records, any other one may read
        self._events: deque[FlightEvent] = deque()
        self._size = 0
        self._dropped = 0

    @property
    def events(self) -> tuple[FlightEvent, ...]:
        """The events that are kept, oldest first."""
        with self._lock:
            return tuple(self._events)

    @property
    def dropped(self) -> int:
        """How many older events were dropped to keep the limits."""
        return self._dropped

    def clear(self) -> None:
        """Forget all events, and how many were dropped."""
        with self._lock:
            self._events.clear()
            self._size = self._dropped = 0

    def record(self, event: FlightEvent) -> None:
        """Keep one event, and drop the oldest ones that have no room beside it."""
        with self._lock:
            self._events.append(event)
            self._size += _size(event)
            while len(self._events) > self._max_events or (
                self._size > self._max_bytes and len(self._events) > 1
            ):
                self._size -= _size(self._events.popleft())
                self._dropped += 1

    @override
    def __str__(self) -> str:
        return "\n".join(map(str, self.events))


def check_recorder(recorder: object) -> None:
    """Refuse what is neither a recorder nor `None`.

    Raises:
        UsageError: It is something else.
    """
    if recorder is not None and not isinstance(recorder, FlightRecorder):
        raise UsageError(
            "flight_recorder is a FlightRecorder, such as FlightRecorder(max_events=1000), or "
            f"None, not {type(recorder).__name__}"
        )


def _size(event: FlightEvent) -> int:
    return len(event.text) + _EVENT_OVERHEAD


class ClientFlight:
    """The part of one client in a recorder; does nothing without one.

    Args:
        recorder: The recorder of the application, if there is one.
        client_name: The name of the client.
        clock_us: The time in microseconds since 1970.
    """

    def __init__(
        self, recorder: FlightRecorder | None, client_name: str, clock_us: Callable[[], int]
    ) -> None:
        self._recorder = recorder
        self._client_name = client_name
        self._clock_us = clock_us
        self._unreported = 0

    def note(self, kind: EventKind, text: str) -> None:
        """Record one event of this client."""
        if self._recorder is None:
            return
        if len(text) > MAX_TEXT:
            text = f"{text[:MAX_TEXT]}..."
        self._recorder.record(FlightEvent(self._clock_us(), self._client_name, kind, text))
        self._unreported += 1

    def tap(self, other: Callable[[str, str], None] | None) -> Callable[[str, str], None] | None:
        """A wire tap that records each frame, and shows it to another tap if there is one."""
        if self._recorder is None:
            return other

        def record(direction: str, header: str) -> None:
            self.note(">" if direction == ">" else "<", header)
            if other is not None:
                other(direction, header)

        return record

    @contextmanager
    def noting_errors(self) -> Generator[None]:
        """The block in which an attempt is made: record the error that it ends with."""
        try:
            yield
        except HAClientError as error:
            self.note("!", _of_error(error))
            raise

    def failed(self, error: HAClientError) -> None:
        """A connection was lost, or an attempt has failed, and that is worth a warning."""
        self._report(f"before: {error}")

    def lost(self, reason: HAClientError) -> None:
        """The connection has ended."""
        self.note("!", _of_error(reason))

    def _report(self, what: str) -> None:
        """Log the last events of this client, but none twice."""
        count, self._unreported = min(self._unreported, _REPORTED_EVENTS), 0
        if self._recorder is None or not count:
            return
        events = [each for each in self._recorder.events if each.client == self._client_name]
        lines = "\n".join(map(str, events[-count:]))
        _logger.warning("client %s: the last events %s\n%s", self._client_name, what, lines)


def _of_error(error: HAClientError) -> str:
    return f"{type(error).__name__}: {error}"

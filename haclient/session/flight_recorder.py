"""The last frames, states and errors of a client, kept in memory to be read after a failure.

Log files say that a connection was lost; what both sides had sent before is rarely logged, since
that would be a line for each frame. Every client records it, so it must cost nothing: of what
arrives, the last headers of each read and how many there were; of what is sent, the headers of
commands, and how many bytes of publishes went between them. An entry is a tuple; the text is made
when somebody reads it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Final, TypeAlias

from haclient.errors import HAClientError
from haclient.protocol.codec import shown_header
from haclient_stores.logs import logger_of

MAX_ENTRIES: Final = 100
MAX_HEADERS: Final = 3  # of one read
MAX_TEXT: Final = 500  # a frame with a long filter or many ids must not take the room of others

_REPORTED: Final = 30  # the logon, the recovery and what ended it
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_logger = logger_of("haclient.flight_recorder")

_Entry: TypeAlias = tuple[float, str, str | Sequence[bytes], int, int]
"""The time, the kind, a text or headers, how many frames, the bytes of publishes so far."""


class FlightRecorder:
    """What has happened last to one client.

    Args:
        client_name: Its name.
        clock_us: The time in microseconds since 1970.

    Attributes:
        published_bytes: Bytes of publishes that were sent so far.
    """

    def __init__(self, client_name: str, clock_us: Callable[[], int]) -> None:
        self.published_bytes = 0
        self._client_name = client_name
        self._clock_us = clock_us
        self._entries: deque[_Entry] = deque(maxlen=MAX_ENTRIES)
        self._reported: _Entry | None = None  # the last one that was logged
        self._offset_s = 0.0  # from the clock of the connection to the time since 1970

    def connected(self, now: float) -> None:
        """A connection begins, at this time of its clock: that is read anyway with each chunk."""
        self._offset_s = self._clock_us() / 1_000_000 - now

    def received(self, heads: Sequence[bytes], now: float) -> None:
        """Frames with these headers have arrived in one read."""
        at = now + self._offset_s
        self._entries.append((at, "<", heads[-MAX_HEADERS:], len(heads), self.published_bytes))

    def sent(self, frame: bytes) -> None:
        """A command is sent; its body is not recorded."""
        header_end = frame.find(b"}", 4, MAX_TEXT) + 1
        self._append(">", [frame[4 : header_end or MAX_TEXT]])

    def reached(self, state: str) -> None:
        """The client has reached a state."""
        self._append("=", state)

    def ended(self, reason: HAClientError) -> None:
        """A connection or an attempt has ended."""
        self._append("!", f"{type(reason).__name__}: {reason}")

    @contextmanager
    def attempt(self) -> Generator[None]:
        """The block in which a connection is made: record the error that it ends with."""
        try:
            yield
        except HAClientError as error:
            self.ended(error)
            raise

    def log_before(self, error: HAClientError) -> None:
        """Log what came before a failure, but no entry twice, and nothing if there was no frame."""
        newest_first = takewhile(lambda each: each is not self._reported, reversed(self._entries))
        entries = list(islice(newest_first, _REPORTED))[::-1]
        if entries:
            self._reported = entries[-1]
        if any(kind in {"<", ">"} for _, kind, *_ in entries):
            lines = "\n".join(_lines(entries))
            _logger.info("client %s: before %s\n%s", self._client_name, error, lines)

    def lines(self) -> list[str]:
        """Everything that is kept as text, oldest first, passwords masked."""
        return list(_lines(self._entries))

    def _append(self, kind: str, text: str | Sequence[bytes]) -> None:
        at = self._clock_us() / 1_000_000
        self._entries.append((at, kind, text, 1, self.published_bytes))


def _lines(entries: Iterable[_Entry]) -> Iterator[str]:
    published: int | None = None
    for at_s, kind, text, count, published_bytes in entries:
        at = f"{_EPOCH + timedelta(seconds=at_s):%Y-%m-%dT%H:%M:%S.%fZ}"
        if published is not None and published_bytes > published:
            yield f"{at} > {published_bytes - published} bytes of publishes"
        published = published_bytes
        if isinstance(text, str):
            yield f"{at} {kind} {text[:MAX_TEXT]}"
            continue
        if count > len(text):
            yield f"{at} {kind} {count - len(text)} more frames, then"
        for header in text:
            yield f"{at} {kind} {shown_header(header[:MAX_TEXT])}"

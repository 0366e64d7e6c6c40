"""The messages of one command as a plain iterator, with the official names."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import NoReturn, Self

import haclient.blocking
from haclient.compat.messages import Message
from haclient.compat.units import seconds_of
from haclient.errors import DisconnectedError, HAClientError, UsageError
from haclient.facade.thread import Call
from haclient_stores.logs import logger_of

_logger = logger_of(__name__)


class _Taken(threading.local):
    """What each thread took last: another one may still process its message."""

    last: Message | None = None


class MessageStream:
    """The messages of one command, in order.

    The iteration ends with the connection, even on an `HAClient`, and `end_reason` says why:
    `execute` the command again for more. An `HAClient` resubscribes only handlers
    (`execute_async`).

    A stream without references is unsubscribed, such as that of `for message in
    client.subscribe("orders")` after a `break`.

    Args:
        stream: The open stream of `haclient.blocking`.
        auto_ack: Whether a message of a queue is acknowledged at the next iteration of the thread
            that took it.
    """

    def __init__(self, stream: haclient.blocking.MessageStream, *, auto_ack: bool = False) -> None:
        self._stream = stream
        self._messages: Iterator[haclient.Message | None] = iter(stream)
        self._auto_ack = auto_ack
        self._taken = _Taken()
        self._lost: HAClientError | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message | None:
        self._ack_last()
        try:
            native = next(self._messages)
        except StopIteration:
            self._stream.close()  # what it leaves undiscarded is delivered to the next one
            raise
        except DisconnectedError as error:
            self._end(error)
        except UsageError:
            thread = self._stream.__bridge__.thread
            if thread.error is not None or not thread.has_ended:
                raise
            self._end(DisconnectedError("its client has disconnected"))
        self._taken.last = None if native is None else Message(native)
        return self._taken.last

    def _ack_last(self) -> None:
        last, self._taken.last = self._taken.last, None
        if self._auto_ack and last is not None:
            last.ack()

    def _end(self, error: DisconnectedError) -> NoReturn:
        _logger.info("a stream has ended with its connection: %s", error)
        self._lost = error
        self._stream.close()  # see above
        raise StopIteration from None

    def timeout(self, timeout: float) -> Self:
        """Yield `None` each time that no message arrives in time.

        Args:
            timeout: Milliseconds to wait for a message; 0 for no limit.

        Returns:
            This stream.

        Raises:
            UsageError: The timeout is negative or not a number.
        """
        seconds = seconds_of(timeout)
        self._messages = iter(self._stream.with_timeout(seconds) if timeout else self._stream)
        return self

    def close(self) -> None:
        """Unsubscribe; messages still queued are dropped. A second call does nothing.

        With `auto_ack` the message that was taken last is not acknowledged: it may have failed.
        """
        self._taken.last = None
        self._stream.close()

    def __del__(self) -> None:
        stream: haclient.blocking.MessageStream | None = getattr(self, "_stream", None)
        if stream is None:  # the constructor failed
            return
        thread = stream.__bridge__.thread
        if thread.is_running:
            with suppress(Exception):  # the client ends at this moment, and the stream with it
                # Not waited for: this may run in any thread, also in that of the client.
                thread.submit(Call(_ignore_end, "close"), stream.__bridge__.inner.aclose)

    def get_sub_id(self) -> str:
        """The id of the subscription."""
        return self._stream.sub_id

    @property
    def end_reason(self) -> HAClientError | None:
        """Why the iteration has ended; `None` before, and after a complete result."""
        return self._lost or self._stream.end_reason

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._ack_last()
        self.close()


def _ignore_end() -> None:
    """Ignore the end of the call: nobody waits for it."""

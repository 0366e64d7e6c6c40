"""Messages taken from a stream that wait for callers outside of the client's thread.

A hand-over to the client's thread costs more than a message, so `haclient.blocking` and
`haclient.aio` take all messages that have arrived at once. When a caller is interrupted or
cancelled while it waits, the messages that have arrived for it stay here, so that none is lost.

The messages here still belong to the stream. They are dropped when the stream is closed, when its
client is about to end, and in a forked process. A message of a queue may lose its lease while it
waits here, and be delivered to another consumer. So each call for the next message of a queue goes
through the client's thread, which checks the lease again.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeAlias

from haclient.protocol.messages import Message
from haclient.streams import MessageStream, QueueStream

Take: TypeAlias = Callable[[], Awaitable[list[Message]]]
"""Takes messages from the stream, in the client's thread."""


def _nothing() -> Message | None:
    """`pop_ready` of a queue: nothing is ready, since each lease has to be checked again first."""
    return None


class StreamBuffer:
    """The messages that wait for callers of one stream.

    Args:
        stream: The stream of the trio client.

    Attributes:
        pop_ready: As `pop`, for a message that may be given to a caller without `fill`.
    """

    def __init__(self, stream: MessageStream) -> None:
        self._stream = stream
        self._messages: deque[Message] = deque()
        self._is_of_queue = isinstance(stream, QueueStream)
        # A queue's messages are taken one by one: each acknowledges the one before with auto_ack.
        self._take_next: Take = self._take_one if self._is_of_queue else stream.batches().__anext__
        self.pop_ready = _nothing if self._is_of_queue else self.pop
        _buffers.add(self)
        stream._on_skip = self._messages.clear  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # of ours

    # -- in the client's thread -----------------------------------------------

    async def fill(self, take: Take | None = None) -> bool:
        """Make sure that there are messages for a caller; wait for them if there are none.

        Args:
            take: How to take them; by default one by one for a queue, else all that have arrived.

        Returns:
            Whether messages may follow; `False` at the end of the stream.
        """
        if found := self.pop_list(None):  # one by one: callers take some at the same time
            waiting = self._stream._take_again(found)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # of ours
            self._messages.extendleft(reversed(waiting))
            if waiting:
                return True
        try:
            self._messages.extend(await (take or self._take_next)())
        except StopAsyncIteration:
            return False
        return True

    async def _take_one(self) -> list[Message]:
        return [await self._stream.__anext__()]

    # -- in the threads of the callers ----------------------------------------

    def take_one_by_one(self) -> None:
        """Buffer no messages: conflation cannot replace a message that is buffered here."""
        self._take_next = self._take_one

    @property
    def is_ready(self) -> bool:
        """Whether messages may be given to a caller without `fill`."""
        return bool(self._messages) and not self._is_of_queue

    def pop(self) -> Message | None:
        """The next message, after `fill`; `None` if there is none."""
        try:
            return self._messages.popleft()
        except IndexError:
            return None

    def pop_list(self, most: int | None) -> list[Message]:
        """The next messages, after `fill`; empty if there are none.

        Args:
            most: The most messages; `None` for all.
        """
        found: list[Message] = []
        with suppress(IndexError):  # another thread may take messages at the same time
            while most is None or len(found) < most:
                found.append(self._messages.popleft())
        return found

    def clear(self) -> None:
        """Drop everything: the stream is closed."""
        self._messages.clear()


_buffers: Final[weakref.WeakSet[StreamBuffer]] = weakref.WeakSet()


def _clear_all() -> None:
    """Drop everything in a forked process: the other one delivers these messages."""
    for buffer in _buffers:
        buffer.clear()


os.register_at_fork(after_in_child=_clear_all)

"""Messages taken from a stream that wait for callers outside of the client's thread.

A hand-over to the client's thread costs more than a message, so `haclient.blocking` and
`haclient.aio` take all messages that have arrived at once, and give out the others without one.

The messages here still belong to the stream. They are dropped when the stream is closed, when its
client is about to end, and in a forked process. A message of a queue may lose its lease while it
waits here, and be delivered to another consumer. So each call for the next message of a queue goes
through the client's thread, which checks the lease again.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias

import trio

from haclient.facade.thread import TrioThread
from haclient.protocol.messages import Message
from haclient.streams import Batches, MessageStream, QueueStream

Take: TypeAlias = Callable[[], Awaitable[list[Message]]]
"""Takes messages from the stream, in the client's thread."""


class StreamBuffer:
    """The messages that wait for callers of one stream.

    What a caller has been given and cannot deliver, since it was cancelled or interrupted at that
    moment, it puts back.

    Args:
        stream: The stream of the trio client.
        thread: The client's thread.
    """

    def __init__(self, stream: MessageStream, thread: TrioThread) -> None:
        self._stream = stream
        self._thread = thread
        self._messages: deque[Message] = deque()
        self._is_closed = False
        self._is_of_queue = isinstance(stream, QueueStream)
        if isinstance(stream, QueueStream):
            stream.note_callers()
        # A queue's messages are taken one by one: each acknowledges the one before with auto_ack.
        self._take_next: Take = self._take_one if self._is_of_queue else stream.batches().__anext__
        self._taking = trio.Lock()  # one caller waits for messages, the others for that one
        _buffers.add(self)
        stream._add_buffer(count=self._messages.__len__, drop=self.close)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # of ours

    # -- in the client's thread -----------------------------------------------

    async def take(self, lists: Batches | None = None, most: int | None = 1) -> list[Message]:
        """Wait for messages; an empty list is the end of the stream.

        Args:
            lists: Where to take them if none waits here; by default all that have arrived.
            most: The most messages for this caller; `None` for all.
        """
        self._finish_taken()
        async with self._taking:
            with suppress(StopAsyncIteration):
                return await self._take(lists.__anext__ if lists else self._take_next, most)
        return []

    async def take_within(self, seconds: float) -> list[Message | None]:
        """As `take`, for one message; it is `None` when none arrives in time."""
        until = trio.current_time() + seconds
        self._finish_taken()
        try:
            self._taking.acquire_nowait()
        except trio.WouldBlock:
            with trio.move_on_at(until) as limit:
                await self._taking.acquire()
            if limit.cancelled_caught:
                return [None]
        try:
            return [*await self._take(partial(self._take_one_until, until), 1)] or [None]
        except StopAsyncIteration:
            return []
        finally:
            self._taking.release()

    def _finish_taken(self) -> None:
        """The caller asks for more: finish its messages before it waits, maybe for ever."""
        self._stream._finish_taken()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # of ours

    async def _take(self, take: Take, most: int | None) -> list[Message]:
        """Take those that wait here, or else others.

        Raises:
            StopAsyncIteration: No message will follow.
        """
        if found := self._pop_all():
            found = self._stream._take_again(found)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # of ours
        if not found:
            try:
                found = await take()
            except StopAsyncIteration:
                await self._thread.check_end(was_cut=self._stream.end_reason is not None)
                raise
        given, rest = found[:most], found[most:] if most is not None else []
        self._stream._not_delivered(rest)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # of ours
        if not self._is_closed:
            self._messages.extend(rest)
        return given

    async def _take_one(self) -> list[Message]:
        return [await self._stream.__anext__()]

    async def _take_one_until(self, until: float) -> list[Message]:
        left_s = max(0.0, until - trio.current_time())
        message = await self._stream.with_timeout(left_s).__anext__()
        return [] if message is None else [message]

    async def put_back(self, messages: Sequence[Message | None]) -> None:
        """Take back messages that a caller got and cannot deliver."""
        found = [each for each in messages if each is not None]
        # Also when closed: the caller may ask again, which acknowledges what it was given.
        self._stream._not_delivered(found)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # of ours
        if not self._is_closed:
            self._messages.extendleft(reversed(found))

    # -- in the threads of the callers ----------------------------------------

    def take_one_by_one(self) -> None:
        """Buffer no messages: conflation cannot replace a message that is buffered here."""
        self._take_next = self._take_one

    def pop(self) -> Message | None:
        """The next message that may be delivered without `take`; `None` if there is none."""
        if self._is_of_queue:  # its lease has to be checked again first
            return None
        try:
            return self._messages.popleft()
        except IndexError:
            return None

    def _pop_all(self) -> list[Message]:
        found: list[Message] = []
        with suppress(IndexError):  # one by one: callers take some at the same time
            while True:
                found.append(self._messages.popleft())
        return found

    def close(self) -> None:
        """Drop everything: the stream is closed."""
        self._is_closed = True
        self._messages.clear()


_buffers: Final[weakref.WeakSet[StreamBuffer]] = weakref.WeakSet()


def _close_all() -> None:
    """Drop everything in a forked process: the other one delivers these messages."""
    for buffer in _buffers:
        buffer.close()


os.register_at_fork(after_in_child=_close_all)

"""Messages as an async iterator.

A stream is a class, not an async generator: it can be closed from another task, and a `break`
leaves nothing half finished. It takes batches from its subscription's queue. Taking a message that
has already arrived costs a fraction of a microsecond and does not suspend, except some milliseconds
after the last time, so that other tasks run and a cancellation is noticed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import isawaitable
from itertools import islice
from operator import length_hint
from types import TracebackType
from typing import Final, Generic, Self, TypeVar
from weakref import WeakKeyDictionary

import trio
from typing_extensions import override

from haclient.codecs import OnDecodeError, Topic
from haclient.errors import DecodeError, HAClientError, UsageError
from haclient.protocol.messages import Message
from haclient.session.back_pressure import ConflationKey, QueueConflation, sow_key
from haclient.transport.message_queue import MessageQueue
from haclient.transport.tasks import current_caller, is_alive
from haclient_stores.checks import check_count, check_seconds
from haclient_stores.logs import logger_of

__all__ = ["Batches", "MessageStream", "QueueStream", "TimedMessages", "TypedStream"]

T = TypeVar("T")
_logger = logger_of(__name__)

_LONGEST_RUN: Final = 64  # messages delivered before the turn is checked again


class MessageStream:
    """The messages of one command, in order.

    It ends when the query is complete, when it is closed, or with the connection. A stream that has
    ended stays ended. When the connection is lost, messages that had arrived are still delivered;
    then

    * a query raises the error, since its result is incomplete;
    * a plain stream of a `Client` ends, with the reason in `end_reason`; one of an `HAClient`
      raises `DisconnectedError`, or continues with the next connection if it was made with
      `resumes=True`;
    * a bookmark stream or queue stream of an `HAClient` continues, and nothing is missing.

    When the server ends the subscription by an error, the stream raises it. A stream that a handler
    reads raises the reason of any early end, also when the client is left or shut down.

    Use it as a context manager; leaving the block unsubscribes. To iterate over a stream that was
    never opened is a `UsageError`::

        async with client.stream("orders") as messages:
            async for message in messages:
                ...
    """

    def __init__(
        self,
        queue: MessageQueue,
        *,
        open_: Callable[[], Awaitable[str]],
        close: Callable[[], Awaitable[None]],
        check_thread: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._check_thread = check_thread
        self._queue = queue
        self._open = open_
        self._close = close
        self._opened = self._closed = False
        self._current: Iterator[Message] = iter(())  # the rest of the batch
        self._run: Iterator[Message] = iter(())  # the next ones of it, before the turn is checked
        self._run_size = 1
        self._on_skip: Callable[[], object] = lambda: None  # for a buffer in front of this stream
        self.sub_id = ""
        queue.on_stop = self._skip_rest
        queue.count_in_hand_by(self._count_in_hand)

    def _add_buffer(self, *, count: Callable[[], int], drop: Callable[[], object]) -> None:
        """Note a buffer in front of this stream: what counts its messages, and what drops them."""
        self._queue.count_in_hand_by(count)
        self._on_skip = drop

    def _count_in_hand(self) -> int:
        return length_hint(self._current)

    async def open(self) -> Self:
        """Send the command and wait until the server has accepted it; `async with` does this.

        Raises:
            CommandError: The server refused it.
            DisconnectedError: There is no connection.
            TimedOut: The server did not answer in time.
            UsageError: It was opened or closed before.
        """
        self._check_thread("opening a stream")
        if self._opened or self._closed:  # it would seem to have an empty result
            word = "opened" if self._opened else "closed"
            raise UsageError(f"this stream was {word} before: make a new one for a new command")
        self._opened = True
        try:
            self.sub_id = await self._open()
        except BaseException:
            self._queue.end()  # refused or cancelled: nothing will come
            raise
        return self

    def _skip_rest(self) -> None:
        """Deliver none of the messages that were taken from the queue and are not delivered yet.

        The stream is closed, or its client is about to end: they are redelivered later.
        """
        self._current = self._run = iter(())
        self._on_skip()

    async def __aenter__(self) -> Self:
        return self if self._opened and not self._closed else await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Unsubscribe and end; messages still queued are dropped. Calling it again does nothing."""
        self._check_thread("aclose of a stream")
        self._closed = True
        self._skip_rest()
        await self._close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        for message in self._run:
            return message
        return await self._from_next_run()

    async def _from_next_run(self) -> Message:
        """Check whether the turn is over, which is too slow for each message, and continue.

        The more messages the application takes in one turn, the more come before the next check.
        """
        self._check_opened()
        queue = self._queue
        turn = queue.turn
        if turn is None or turn.now() >= turn.ends_at:  # a call less where batches are short
            await queue.end_turn()
            self._run_size = 1
        elif self._run_size < _LONGEST_RUN:
            self._run_size *= 2
        if length_hint(self._current):  # after the wait: another task may have taken a batch
            self._run = islice(self._current, self._run_size)
            return next(self._run)
        batch = await queue.next_batch()
        if batch is None:
            self._queue.check_cut()
            raise StopAsyncIteration
        self._current = iter(batch)
        self._run = islice(self._current, self._run_size)
        return next(self._run)

    def _check_opened(self) -> None:
        self._check_thread("iterating over a stream")
        if not (self._opened or self._queue.ended):  # nothing was sent: the wait would not end
            raise UsageError(
                "enter the stream first: async with ... as messages (haclient.blocking: with ...)"
            )

    def _has_arrived(self) -> bool:
        """Whether messages or the end have arrived that were not taken yet."""
        return self._count_in_hand() > 0 or self._queue.has_queued

    def conflate(self, key: ConflationKey = sow_key) -> Self:
        """Deliver only the newest of the queued messages of each key.

        A message replaces the queued message of the same key, so a slow consumer gets each key in
        turn. The replaced message is discarded. The messages of a batch are taken from the queue
        together: later messages do not replace them.

        The newest messages of all keys have to fit into `max_queued_bytes`: a queue above it stops
        the reading, and what waits at the server is not conflated.

        After a lost connection, a message that was taken and not discarded may be redelivered.

        Args:
            key: A function that returns the key of a message, or `None` if the message neither
                replaces another one nor is replaced. It is called in the client's thread when a
                message arrives, and must be fast. By default the key is the topic and the SOW key.

        Returns:
            This stream, which is not open yet.

        Raises:
            UsageError: The stream is already open, or is one of a queue, of deltas, or of a query
                with a bookmark other than `NOW`.
        """
        if self._queue.carries_deltas:
            raise UsageError(
                "a stream of deltas cannot be conflated in the client, since each delta has other "
                "fields: use the option conflation, so that the server merges them"
            )
        if self._queue.is_historical:
            raise UsageError(
                "a stream of a query with a bookmark cannot be conflated in the client: after a "
                "lost connection its records would replace newer messages; use bookmark=NOW, or "
                "leave the bookmark out"
            )
        if self._opened or self._queue.ended:
            raise UsageError("conflate a stream before it is opened, where it is made")
        self._queue.conflation = QueueConflation(key)
        return self

    def batches(self, max_messages: int | None = None, max_seconds: float = 0.0) -> Batches:
        """The same messages in lists: as they arrive, which is the fast path, or collected.

        A list that is being collected when the wait for it is cancelled stays in the stream.

        Args:
            max_messages: The most messages in a list; `None` for whatever has arrived.
            max_seconds: How long to wait for that many, once there is a first one: a list is
                complete when it is full, after this time, and at the end of the stream.

        Returns:
            An async iterator of non-empty lists.

        Raises:
            UsageError: The numbers cannot be.
        """
        check_count("max_messages", max_messages, 1, optional=True)
        check_seconds("max_seconds", max_seconds, zero=True)
        if max_seconds and max_messages is None:
            raise UsageError("max_seconds needs max_messages: memory holds no list without end")
        return Batches(partial(self._next_list, max_messages, max_seconds))

    def with_timeout(self, seconds: float) -> TimedMessages:
        """Yield the same messages, and `None` each time that none arrives in time.

        Args:
            seconds: How long to wait for a message; 0 yields `None` at once when none is queued.

        Returns:
            An async iterator of messages and `None`.

        Raises:
            UsageError: `seconds` is negative or NaN.
        """
        return TimedMessages(self, seconds)

    async def _next_list(self, most: int | None, limit_s: float) -> list[Message]:
        self._finish_taken()
        while True:
            await self._queue.end_turn()  # before any is taken: a cancelled wait loses none
            batch = self._in_hand(most) or await self._arrived(most)
            if most is not None and batch and len(batch) != most:
                batch = await self._collected(batch, most, limit_s)
            if batch:
                self._taken_now(batch)
                return batch

    def _in_hand(self, most: int | None) -> list[Message]:
        """Take as many as are wanted of what is left of a batch, and leave the rest untouched."""
        taken = self._deliverable(list(islice(self._current, most)))
        while most is not None and len(taken) < most:
            more = list(islice(self._current, most - len(taken)))
            if not more:
                break
            taken += self._deliverable(more)
        return taken

    async def _arrived(self, most: int | None = None) -> list[Message]:
        """What has arrived, after a wait; empty if nothing of it is to be delivered any more."""
        self._current = iter(())
        self._check_opened()
        batch = await self._queue.next_batch()
        if batch is None:
            self._queue.check_cut()
            raise StopAsyncIteration
        if self._queue.conflation is not None:
            batch += self._queue.take_waiting(None if most is None else most - 1)
        return self._deliverable(batch)

    async def _collected(self, batch: list[Message], most: int, limit_s: float) -> list[Message]:
        """Wait for more, and leave what is too much for the next list."""
        batch = batch.copy()
        self._current = iter(())
        try:
            with trio.move_on_after(limit_s):
                while limit_s and len(batch) < most:
                    more = await self._queue.next_more()
                    if more is None:
                        break
                    batch += more
        except BaseException:  # cancelled: nothing was delivered
            self._current = iter(() if self._queue.skips_rest else batch)
            raise
        if self._queue.skips_rest:  # all of it is redelivered later
            return []
        batch = self._deliverable(batch)
        self._current = iter(batch[most:])
        return batch[:most]

    def _finish_taken(self) -> None:
        """The application asks for more than it was given before."""

    def _deliverable(self, batch: list[Message]) -> list[Message]:
        """Those of some messages that may be delivered now."""
        return batch

    def _take_again(self, messages: list[Message]) -> list[Message]:
        """Return those of some taken, undelivered messages that the present caller may have."""
        return messages

    def _taken_now(self, batch: list[Message]) -> None:
        """Note that these messages are delivered to the application."""

    def _not_delivered(self, messages: list[Message]) -> None:
        """Note that these messages, noted before, are not delivered after all."""

    @contextmanager
    def working(self) -> Generator[MessageQueue]:
        """Have the client wait for messages that were taken and are still processed elsewhere.

        `haclient.workers.run_workers` does it: a client that ends in order waits for this block.

        Yields:
            The queue of the messages, which knows the client's policy for errors of handlers.

        Raises:
            UsageError: The messages are acknowledged before they were processed.
        """
        self._check_workable()
        queue = self._queue
        queue.is_served = True
        try:
            yield queue
        finally:
            queue.is_served = False
            if queue.ended:
                queue.consumer_left()

    def _check_workable(self) -> None:
        self._check_thread("processing a stream with workers")
        if self._queue.is_served:
            raise UsageError("workers process this stream already: give it more of them")

    @property
    def caught_up(self) -> bool:
        """Whether the query or the replay is complete and all of it was delivered.

        It is false again from a lost connection to the end of the replay on the next one, and stays
        so for a stream that has ended early.
        """
        return self._queue.is_caught_up

    async def wait_caught_up(self) -> None:
        """Wait for `caught_up`, or the end of the stream; another task has to take the messages.

        Raises:
            HAClientError: A handler waits, and the stream has ended early.
            UsageError: The stream was not opened, so neither would ever come.
        """
        self._check_opened()
        await self._queue.caught_up.wait()
        self._queue.check_cut()

    @property
    def gaps(self) -> int:
        """How often messages may be missing before the one that was taken last.

        It rises when the first message after a lost connection is taken. Only a plain stream with
        `resumes=True` has gaps: a bookmark stream resumes without one.
        """
        return self._queue.gaps

    @property
    def ended(self) -> bool:
        """Whether no message will follow."""
        return self._queue.ended

    @property
    def end_reason(self) -> HAClientError | None:
        """Why the stream ended early; `None` while it runs and after an ordinary end."""
        return self._queue.end_reason


class QueueStream(MessageStream):
    """The messages of a queue; see `MessageStream`.

    Messages whose connection was lost before the application took them are skipped: the server
    redelivers them, with new leases.

    Args:
        queue: Where messages come from.
        open_: Sends the command.
        close: Ends the subscription.
        check_thread: Refuses other threads.
        auto_ack: Whether a message is acknowledged when the task or thread that took it requests
            the next one. The last one of each is not, since nothing shows that it was processed:
            acknowledge it, or it is redelivered.
    """

    def __init__(
        self,
        queue: MessageQueue,
        *,
        open_: Callable[[], Awaitable[str]],
        close: Callable[[], Awaitable[None]],
        check_thread: Callable[[str], None] = lambda _: None,
        auto_ack: bool = False,
    ) -> None:
        super().__init__(queue, open_=open_, close=close, check_thread=check_thread)
        self._auto_ack = auto_ack
        self._notes_callers = auto_ack
        # By the caller that may still process them; one that has ended takes its entry along.
        self._taken: WeakKeyDictionary[object, list[Message]] = WeakKeyDictionary()
        self._taker_count = 0
        self._has_warned = False

    @classmethod
    def of(cls, stream: MessageStream) -> QueueStream:
        """The same stream, open, of a topic that is a queue, as the server's answer has shown."""
        made = cls(
            stream._queue,  # noqa: SLF001  # its own base class
            open_=stream._open,  # noqa: SLF001  # as above
            close=stream._close,  # noqa: SLF001  # as above
            check_thread=stream._check_thread,  # noqa: SLF001  # as above
        )
        made._opened, made.sub_id = True, stream.sub_id
        made._queue.error_policy = "continue"  # what fails is given back
        return made

    @override
    def conflate(self, key: ConflationKey = sow_key) -> Self:
        """Raise a `UsageError`: no message of a queue replaces another one."""
        raise UsageError(
            "messages of a queue cannot be conflated: each has a lease, and the consumer that has "
            "processed it acknowledges it"
        )

    @override
    def _check_workable(self) -> None:
        super()._check_workable()
        if self._auto_ack:
            raise UsageError(
                "a queue stream with auto_ack acknowledges a message when the next one is taken, "
                "before a worker has processed it: open it without"
            )

    @override
    async def __anext__(self) -> Message:
        self._finish_taken()
        await self._queue.end_turn()
        while True:
            for message in self._current:
                if _is_deliverable(message):
                    self._taken_now([message])
                    return message
            self._current = iter(await self._arrived())

    def note_callers(self) -> None:
        """Have an orderly end wait for all callers, of which several may be at work at a time."""
        self._notes_callers = True
        self._queue.is_shared_at_work = self._is_at_work

    def _is_at_work(self) -> bool:
        """Whether a caller has yet to finish a message: to acknowledge it, or ask for another."""
        return any(
            any(message.lease is not None for message in taken)
            for caller, taken in self._taken.items()
            if is_alive(caller)
        )

    @override
    def _finish_taken(self) -> None:
        if self._auto_ack and len(self._taken) < self._taker_count and not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "the stream %s: a task or thread that took a message has ended without asking "
                "for another one, so auto_ack does not acknowledge it: call message.ack(), or "
                "take all messages in one task",
                self.sub_id,
                extra={"sub_id": self.sub_id},
            )
        if self._notes_callers:
            for message in self._taken.pop(current_caller(), ()):
                if self._auto_ack:
                    message.ack()
            self._taker_count = len(self._taken)

    @override
    def _deliverable(self, batch: list[Message]) -> list[Message]:
        return [message for message in batch if _is_deliverable(message)]

    @override
    def _take_again(self, messages: list[Message]) -> list[Message]:
        self._finish_taken()
        kept = self._deliverable(messages)
        self._taken_now(kept)
        return kept

    @override
    def _taken_now(self, batch: list[Message]) -> None:
        if self._notes_callers:
            self._taken[current_caller()] = list(batch)  # the application may change its own list
            self._taker_count = len(self._taken)

    @override
    def _not_delivered(self, messages: list[Message]) -> None:
        ids = {id(message) for message in messages}
        for taken in self._taken.values():
            taken[:] = [each for each in taken if id(each) not in ids]


def _is_deliverable(message: Message) -> bool:
    """Whether the lease of a message of a queue is still ours."""
    return message.lease is None or message.lease.is_deliverable(message)


class TimedMessages:
    """An async iterator of messages, which yields `None` when none arrives in time."""

    def __init__(self, messages: MessageStream, seconds: float) -> None:
        check_seconds("seconds", seconds, zero=True)
        self._messages = messages
        self._seconds = seconds

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message | None:
        stream = self._messages
        while True:
            with trio.move_on_after(self._seconds):
                return await anext(stream)
            if not stream._has_arrived():  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
                return None  # otherwise the timeout hit a mere checkpoint


class Batches:
    """An async iterator of non-empty lists of messages."""

    def __init__(self, take: Callable[[], Awaitable[list[Message]]]) -> None:
        self._take = take

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Message]:
        return await self._take()


class TypedStream(AsyncIterator[tuple[T, Message]], Generic[T]):
    """The messages of a stream with their values, in order.

    A message that does not decode raises `DecodeError` from the iteration, and the stream goes on
    with the next one if it is asked; or `on_decode_error` gets it, and the iteration goes on by
    itself. It is discarded or acknowledged only by a call of `discard` or `ack`: else a bookmark
    subscription delivers it again in the next run. (A queue stream with `auto_ack` acknowledges
    whatever it has delivered when the next message is asked for.)

    ::

        async with client.bookmark_stream(orders.name, sub_id="s") as messages:
            async for order, message in TypedStream(orders, messages):
                await book(order)
                message.discard()

    Args:
        topic: Decodes the messages.
        messages: An open stream, which the caller closes.
        on_decode_error: Called with each message that does not decode, and the error.

    Attributes:
        last: The message that was taken last, also where it did not decode.
    """

    def __init__(
        self,
        topic: Topic[T],
        messages: AsyncIterator[Message],
        *,
        on_decode_error: OnDecodeError | None = None,
    ) -> None:
        self._topic = topic
        self._messages = messages
        self._on_decode_error = on_decode_error
        self.last: Message | None = None

    @override
    def __aiter__(self) -> Self:
        return self

    @override
    async def __anext__(self) -> tuple[T, Message]:
        while True:
            message = self.last = await anext(self._messages)
            try:
                return self._topic.decode(message), message
            except DecodeError as error:
                if self._on_decode_error is None:
                    raise
                result = self._on_decode_error(message, error)
                if isawaitable(result):
                    await result

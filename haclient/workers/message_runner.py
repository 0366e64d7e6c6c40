"""Calls a handler with messages, and finishes each message as its call has ended.

A message whose handler has returned is discarded, or acknowledged to its queue, where that is
automatic. One whose handler raised is finished by a policy. A message of a queue whose lease is
over is not passed to the handler, since the server redelivers it.

Plain handlers, handlers of queues and `run_workers` all call their functions here.

**Several workers** (`KeyedPool`) share the messages and keep the order of each key: messages of
equal keys are handled in order and one at a time, messages of different keys in parallel, by
whatever worker is free. A redelivered message is handled after later ones of its key that have
arrived before it.

**Leases** (`LeaseWatch`) of messages whose handlers are running are extended on request, each when
half of it is over, and a handler is cancelled when the lease of its message ends. An application
may extend a lease itself, so the end is looked up again when it has come.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass
from inspect import isawaitable
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import trio

from haclient.errors import DisconnectedError, HAClientError, WorkerError, failure_text
from haclient.protocol.messages import Message
from haclient.session.dead_letter import DeadLetter
from haclient.transport.ack_sender import QueueLease
from haclient.transport.message_queue import Handler, MessageQueue, ShuttingDown
from haclient.transport.reporter import Reporter
from haclient.transport.tasks import NeverCalled, Turn, call_handlers, is_only
from haclient_stores.logs import SafeLogger, logger_of

QueueErrorPolicy: TypeAlias = (
    Literal["raise", "cancel", "expire", "continue", "discard"]
    | DeadLetter
    | Callable[[Message, Exception], Awaitable[None] | None]
)
"""What to do with a message whose handler raised. `continue` is `cancel` for a message of a queue,
`discard` is `expire`, and a callable may discard or acknowledge the message as it likes."""

PublishDeadLetter: TypeAlias = Callable[[str, bytes, str], Awaitable[None]]
"""Publishes to a topic a body with a correlation id, and waits until that is persisted."""

_T = TypeVar("_T")
_logger = logger_of(__name__)

Work: TypeAlias = Callable[[Message], _T]
"""A plain function that is called in a thread or process with each message."""

MessageKey: TypeAlias = Callable[[Message], Hashable]
"""Returns the key of a message: messages of equal keys are handled in order."""


def call(work: Work[_T], message: Message) -> _T:
    """Call the function of a worker, in its thread or process.

    Args:
        work: The function.
        message: Its argument.

    Returns:
        What it returned.

    Raises:
        WorkerError: It called `sys.exit`, which would end the client's program without a word.
        Exception: What it raised.
    """
    try:
        return work(message)
    except SystemExit as error:
        name = getattr(work, "__qualname__", type(work).__name__)
        raise WorkerError(f"{name} raised SystemExit({error.code!r})") from error


class DeadLetters(NamedTuple):
    """How dead letters are published, while other messages are handled.

    Attributes:
        publish: Publishes a copy.
        nursery: Where that is done.
    """

    publish: PublishDeadLetter
    nursery: trio.Nursery


@dataclass(slots=True)
class _RunningHandler:
    message: Message
    extend_at: float


class LeaseWatch:
    """Watches the leases of one subscription.

    Args:
        extend_s: By how much a lease is extended, again and again; `None` to extend none.
        cancels: Whether a handler is cancelled when the lease of its message ends.
        log: Logs that.
    """

    def __init__(self, *, extend_s: float | None, cancels: bool, log: SafeLogger) -> None:
        self._extend_s = extend_s
        self._cancels = cancels
        self._log = log
        self._running: dict[trio.CancelScope, _RunningHandler] = {}
        self._sleeps_until = 0.0
        self._is_earlier = trio.Event()

    async def call(self, handler: Handler, message: Message) -> None:
        """Call a handler; it is cancelled if the lease of its message ends before.

        The message loses its lease then, since the server redelivers it.
        """
        now = trio.current_time()
        ends_at, extend_at = self._end_of(message), math.inf
        if ends_at <= now:  # it waited for too long
            self._ended(message)
            return
        if self._extend_s is not None and message.lease_period:
            known = message.lease_deadline
            left_s = self._extend_s if known is None else max(0.0, known - now)
            extend_at = now + min(self._extend_s, left_s) / 2
        was_cut = False
        with trio.CancelScope() as scope:
            self._running[scope] = _RunningHandler(message, extend_at)
            if min(extend_at, ends_at) < self._sleeps_until:
                self._is_earlier.set()
            try:
                result = handler(message)
                if isawaitable(result):
                    await result
            except DisconnectedError:
                if not scope.cancel_called:
                    raise
                was_cut = True  # a handler in a thread gets it from the call that is cancelled
            finally:
                del self._running[scope]
        if was_cut or scope.cancelled_caught:
            self._ended(message)

    def _end_of(self, message: Message) -> float:
        """When a handler is to be cancelled; infinite for never."""
        ends_at = message.lease_deadline if self._cancels else None
        return math.inf if ends_at is None else ends_at

    def _ended(self, message: Message) -> None:
        message.lease = None
        self._log.warning(
            "the lease of message %s of the queue %s ended before it was processed: it is "
            "redelivered; extend_lease= keeps it for longer",
            message.bookmark,
            message.topic,
            extra={"sub_id": message.sub_id},
        )

    async def run(self) -> None:
        """Extend and end leases as they are due, for ever."""
        while True:
            self._is_earlier = trio.Event()
            self._sleeps_until = self._carry_out(trio.current_time())
            with trio.move_on_at(self._sleeps_until):
                await self._is_earlier.wait()

    def _carry_out(self, now: float) -> float:
        """Do what is due; return when something is due next."""
        next_at = math.inf
        for scope, running in self._running.items():
            if running.extend_at <= now and self._extend_s is not None:
                running.message.extend_lease(self._extend_s)
                running.extend_at = now + self._extend_s / 2
            ends_at = self._end_of(running.message)
            if ends_at <= now:
                scope.cancel()
            else:
                next_at = min(next_at, running.extend_at, ends_at)
        return next_at


class MessageRunner:
    """Handles the messages of one subscription.

    Args:
        queue: Where the messages come from. It has the handler, which another one may replace.
        policy: What happens to a message whose handler has raised.
        discards: Whether a message is discarded when its handler has returned.
        acks: Whether a message is acknowledged then.
        expire_after: After so many failures a message is expired instead of given back.
        letters: Publishes dead letters, if the policy is one.
        watch: Watches the leases while handlers are running; `None` if that is not needed.
        reporter: Logs and reports the failures; without one they are logged by this module.
    """

    def __init__(  # noqa: PLR0913  # all but two by keyword
        self,
        queue: MessageQueue,
        policy: QueueErrorPolicy,
        *,
        discards: bool = False,
        acks: bool = False,
        expire_after: int | None = None,
        letters: DeadLetters | None = None,
        watch: LeaseWatch | None = None,
        reporter: Reporter | None = None,
    ) -> None:
        self._queue = queue
        self._turn = queue.turn = Turn()
        self._policy = policy
        self._discards = discards
        self._acks = acks
        self._expire_after = expire_after
        self._letters = letters
        self._watch = watch
        self._reporter = reporter
        self._connection = 0 if queue.status is None else queue.status.connection
        self._log = _logger if reporter is None else reporter.log

    async def run(self, messages: Iterable[Message], handler: Handler | None = None) -> None:
        """Call the handler with messages, one after the other, and finish each of them.

        Args:
            messages: The messages.
            handler: Called instead of the handler of the queue.

        Raises:
            Exception: What the handler raised, if the policy is `raise`; what a policy raised.
        """
        queue, turn, watch = self._queue, self._turn, self._watch
        now, discards, acks = turn.now, self._discards, self._acks
        call_handlers()
        for message in messages:
            if now() >= turn.ends_at:
                await turn.end()
            lease = message.lease
            if queue.skips_rest or (lease is not None and not lease.is_deliverable(message)):
                continue  # the server redelivers it
            call = handler or queue.handler
            assert call is not None  # noqa: S101  # a queue that is served has one
            try:
                if watch is not None:
                    await watch.call(call, message)
                else:
                    result = call(message)
                    if result is not None and isawaitable(result):
                        await result
            except Exception as error:  # the application's: a policy decides
                await self.failed(message, error)
            else:
                if discards:
                    message.discard()
                if acks:
                    message.ack()

    async def serve(self) -> None:
        """Handle one message after the other until the subscription ends."""
        queue = self._queue
        while (batch := await queue.next_batch()) is not None:
            await self.run(queue.each(batch))

    async def failed(self, message: Message, error: Exception) -> None:
        """Apply the policy to a message whose handler has raised.

        Raises:
            Exception: `error`, if the policy is `raise`; what a policy raised.
        """
        # A policy must not finish a message that is redelivered and that may have failed, in
        # whatever way, because the connection ended. An error that leaves the client's block does
        # so even then, unless a call of the client has raised it.
        leaves = self._policy == "raise" or isinstance(error, NeverCalled)
        is_cut_short = self._is_caused_by_end(error)
        if self._has_ended and not leaves:
            is_cut_short = is_cut_short or _comes_again(message)
        if not (leaves or is_cut_short):
            try:
                await self._apply_policy(message, error)
            except Exception as raised:  # by the function that is the policy
                error = raised
            else:
                return
        if not (is_cut_short or self._is_caused_by_end(error)):  # a policy has its own errors
            raise error
        self._cut_short(message, error)

    def _cut_short(self, message: Message, error: Exception) -> None:
        _give_back(message, 0)  # where the client goes on; else its lease ends with the link
        self._log.warning(
            "the handler of subscription %s was cut short, and its message is not finished: %s",
            message.sub_id,
            failure_text(error),
            extra={"sub_id": message.sub_id},
        )

    async def _apply_policy(self, message: Message, error: Exception) -> None:
        policy = self._policy
        if self._reporter is not None:
            self._reporter.exception(error)
        lease = message.lease
        failures = lease.failed(message) if isinstance(lease, QueueLease) else 0
        self._warn(message, error, failures)
        if isinstance(policy, DeadLetter):
            letters = self._letters
            assert letters is not None  # noqa: S101  # only queues have this policy
            copy = policy.topic, message.data, policy.correlation_id(message, error, failures)
            letters.nursery.start_soon(self._send_letter, letters, copy, message, failures)
            return
        if callable(policy):
            result = policy(message, error)
            if isawaitable(result):
                await result
        is_over = self._expire_after is not None and failures >= self._expire_after
        if policy in ("discard", "expire"):
            message.discard()
            is_over = True
        if is_over:
            message.ack(expire=True)
        else:
            _give_back(message, failures)

    @property
    def _has_ended(self) -> bool:
        """Whether the connection of the messages is lost, and none will follow by itself.

        The application may have connected a `Client` again, which continues no subscription.
        """
        status = self._queue.status
        if status is None or status.stop_reason is not None:
            return status is not None
        return not (status.reconnects or 0 < self._connection == status.connection)

    def _is_caused_by_end(self, error: Exception) -> bool:
        """Whether a call of the client has failed since it ends or has ended."""
        status = self._queue.status
        if status is None or not self._has_ended:
            return is_only(error, ShuttingDown)
        reason = status.stop_reason
        kinds = DisconnectedError if reason is None else (DisconnectedError, type(reason))
        return is_only(error, kinds)

    async def _send_letter(
        self, letters: DeadLetters, copy: tuple[str, bytes, str], message: Message, failures: int
    ) -> None:
        """Publish the copy of a message; acknowledge the message once that is persisted."""
        try:
            await letters.publish(*copy)
        except HAClientError as error:
            self._log.error(  # refused or lost: the text has the reason
                "message %s of the queue %s could not be sent to %s and is given back: %s",
                message.bookmark,
                message.topic,
                copy[0],
                error,
                extra={"sub_id": message.sub_id},
            )
            _give_back(message, failures)
        else:
            message.ack()

    def _warn(self, message: Message, error: Exception, failures: int) -> None:
        name = f"a message of subscription {message.sub_id} on topic {message.topic}"
        if failures:
            name = f"message {message.bookmark} of the queue {message.topic} (failure {failures})"
        self._log.warning(
            "a handler raised for %s: %s (at DEBUG: its traceback)",
            name,
            failure_text(error),
            extra={"sub_id": message.sub_id},
        )
        self._log.debug("traceback of this failure", exc_info=error)


def _comes_again(message: Message) -> bool:
    """Whether a message is redelivered after its connection if it is not finished."""
    lease = message.lease
    is_leased = isinstance(lease, QueueLease) and not lease.leases.is_once
    return message.owner is not None or is_leased


def _give_back(message: Message, failures: int) -> None:
    """Give a message back to its queue; nothing happens to one that is acknowledged already."""
    if isinstance(message.lease, QueueLease):
        message.lease.give_back(message, failures)


class KeyedPool:
    """The messages that the workers of one subscription handle, or have yet to handle.

    Args:
        capacity: How many there may be.
        key: Returns the key of a message; `None` keeps no order.
        runner: Handles the messages.

    Attributes:
        count: How many there are.
    """

    def __init__(self, capacity: int, key: MessageKey | None, runner: MessageRunner) -> None:
        self._capacity = capacity
        self._key = key
        self._runner = runner
        self.count = 0
        self._ready: deque[tuple[Hashable, Message]] = deque()
        self._busy: dict[Hashable, deque[Message]] = {}  # what waits behind a message of its key
        self._is_ended = False
        self._arrived = trio.lowlevel.ParkingLot()
        self._finished = trio.lowlevel.ParkingLot()

    async def put(self, message: Message) -> None:
        """Give a message to the workers, behind those of its key; wait while there is no room.

        Raises:
            Exception: What the key function raised, if the policy is `raise`.
        """
        while self.count >= self._capacity:
            await self._finished.park()
        if self._is_ended:  # dropped, a moment before the cancellation of this task
            return
        key: Hashable = None
        if self._key is not None:
            try:
                key = self._key(message)
                waiting = self._busy.get(key)
            except Exception as error:  # the application's: the key is part of the handling
                await self._runner.failed(message, error)
                return
            if waiting is not None:
                waiting.append(message)
                self.count += 1
                return
            self._busy[key] = deque()
        self._ready.append((key, message))
        self.count += 1
        self._arrived.unpark()

    def end(self) -> None:
        """Nothing follows: the workers end when they have handled what is there."""
        self._is_ended = True
        self._arrived.unpark_all()

    def drop_waiting(self) -> None:
        """Drop what waits: the workers end after the messages that they are handling."""
        self.count -= len(self._ready) + sum(map(len, self._busy.values()))
        self._ready.clear()
        for waiting in self._busy.values():
            waiting.clear()
        self.end()

    async def work(self, handler: Handler | None = None) -> None:
        """Handle messages until none will follow; the task of one worker.

        Args:
            handler: Called instead of the handler of the queue.

        Raises:
            Exception: What the handler raised, if the policy is `raise`; what a policy raised. That
                message, and one that was cancelled, still counts in `count`.
        """
        while self._ready or not self._is_ended:
            if not self._ready:
                await self._arrived.park()
                continue
            key, message = self._ready.popleft()
            await self._runner.run((message,), handler)
            self.count -= 1
            if self._key is not None:
                if waiting := self._busy[key]:
                    self._ready.append((key, waiting.popleft()))
                else:
                    del self._busy[key]
            # Not for each message: it costs as much as a twentieth of a call in a thread. While
            # half of them are ready, no worker idles.
            if len(self._ready) <= self._capacity // 2:
                self._finished.unpark_all()

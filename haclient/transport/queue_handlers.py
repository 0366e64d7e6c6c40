"""Calls a handler with the messages of a queue, and acknowledges those that it has processed.

A message whose handler returned is acknowledged; one whose handler raised never is. A policy
decides what happens to it: it is given back after a delay that grows with its failures, removed as
expired, or copied to a dead letter topic.

**Workers.** One worker calls the handler for one message after the other. Several share the
messages; with a key, messages of equal keys are handled in order and one at a time. A redelivered
message is handled after later ones of its key that have arrived before it. No more messages wait
for a worker than the backlog allows.

**Leases.** A message whose connection was lost, or whose subscription has ended, is not passed to
the handler, since the server redelivers it. On request a handler is cancelled when its lease ends,
or one task extends the leases of all messages whose handlers are at work.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from inspect import isawaitable
from typing import Final, Literal, TypeAlias, TypedDict

import trio

from haclient.errors import HAClientError, UsageError, failure_text
from haclient.protocol.messages import Message
from haclient.session.cancel_delay import CancelDelay
from haclient.session.dead_letter import DeadLetter
from haclient.session.queue_acks import AckOption, lease_extension
from haclient.transport.message_queue import Delivery, Handler
from haclient.transport.nursery import open_nursery
from haclient.transport.queue_acks import Lease, QueueConsumer
from haclient_stores.checks import check_count

QueueErrorPolicy: TypeAlias = (
    Literal["raise", "cancel", "expire", "continue", "discard"]
    | DeadLetter
    | Callable[[Message, Exception], Awaitable[None] | None]
)
"""What to do with a queue message whose handler raised; `continue` is `cancel`, `discard` is
`expire`, and a callable may acknowledge the message as it likes."""

PublishDeadLetter: TypeAlias = Callable[[str, bytes, str], Awaitable[None]]
"""Publishes to a topic a body with a correlation id, and waits until that is persisted."""

DEFAULT_MAX_BACKLOG: Final = 10
"""How many unacknowledged messages a consumer asks for by default."""

_WORDS: Final = frozenset({"raise", "cancel", "expire", "continue", "discard"})
_EXPIRES: Final = frozenset({"expire", "discard"})
_CHECKPOINT_EVERY: Final = 64  # plain functions in a row before other tasks get a turn


class QueueHandlerOptions(TypedDict, total=False):
    """Keyword arguments of `queue_subscribe` about the handling of messages.

    Attributes:
        max_backlog: How many unacknowledged messages this consumer may have, 10 by default; the
            server may grant less.
        auto_ack: Whether a message is acknowledged when the handler has returned, which is the
            default; else call `message.ack()`.
        on_handler_error: What happens to a message whose handler raised; `"cancel"` by default. See
            `queue_subscribe`.
        expire_after: After so many failures in this subscription a message is expired instead of
            cancelled; `None`, the default, for no limit. Other consumers count their own failures:
            the limit for all is `max_deliveries` of the queue.
        workers: How many handlers run at the same time, 1 by default; `max_backlog` should be
            larger.
        key: With several workers, a function of a message: messages with equal keys are handled in
            order, one at a time.
        cancel_at_lease_end: Whether a handler is cancelled when the lease of its message ends.
        extend_lease: While a handler runs, the lease of its message is extended by so many seconds,
            each time that half of it is over; `None`, the default, to extend none.
    """

    max_backlog: int
    auto_ack: bool
    on_handler_error: QueueErrorPolicy
    expire_after: int | None
    workers: int
    key: Callable[[Message], Hashable] | None
    cancel_at_lease_end: bool
    extend_lease: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueHandling:
    """`QueueHandlerOptions` with their defaults.

    Raises:
        UsageError: A value can never work.
    """

    max_backlog: int = DEFAULT_MAX_BACKLOG
    auto_ack: bool = True
    on_handler_error: QueueErrorPolicy = "cancel"
    expire_after: int | None = None
    workers: int = 1
    key: Callable[[Message], Hashable] | None = None
    cancel_at_lease_end: bool = False
    extend_lease: float | None = None

    def __post_init__(self) -> None:
        policy = self.on_handler_error
        is_word = isinstance(policy, str) and policy in _WORDS
        if not (is_word or isinstance(policy, DeadLetter) or callable(policy)):
            raise UsageError(
                "on_handler_error of a queue is one of raise, cancel, expire, a DeadLetter or a "
                f"function, not {policy!r}"
            )
        check_count("workers", self.workers, 1)
        check_count("expire_after", self.expire_after, 1, optional=True)
        if self.extend_lease is not None:
            lease_extension(self.extend_lease)  # raises what is no interval


async def serve_queue(
    delivery: Delivery,
    handler: Handler,
    handling: QueueHandling,
    *,
    consumer: QueueConsumer,
    publish: PublishDeadLetter,
) -> None:
    """Handle the messages of a queue until the subscription ends, and finish what was begun.

    Args:
        delivery: Where messages come from.
        handler: Called with each message.
        handling: How.
        consumer: The acknowledgements of the subscription.
        publish: Publishes dead letters.

    Raises:
        Exception: What a handler raised, if the policy is `raise`; what a policy raised.
    """
    backlog, count = consumer.backlog, handling.workers
    if backlog is not None and backlog < count:
        consumer.warn_once(
            "workers",
            "the queue %s grants a backlog smaller than the number of workers, and some of "
            "them will always wait: ask for a larger max_backlog, and allow it at the server",
        )
    extender = LeaseExtender(consumer, handling.extend_lease or math.inf)
    async with open_nursery() as nursery, open_nursery() as background:
        if handling.extend_lease is not None:
            background.start_soon(extender.run)
        failed_messages = FailedMessages(handling, consumer, publish, nursery)
        workers = QueueWorkers(
            delivery, handler, consumer=consumer, failed_messages=failed_messages, extender=extender
        )
        await workers.run()
        background.cancel_scope.cancel()


class QueueWorkers:
    """Handles the messages of one queue subscription until it ends; see `serve_queue`.

    Args:
        delivery: Where messages come from.
        handler: Called with each message.
        consumer: The acknowledgements of the subscription.
        failed_messages: What happens to messages whose handler raised; how messages are handled.
        extender: Extends leases while handlers are at work.
    """

    def __init__(
        self,
        delivery: Delivery,
        handler: Handler,
        *,
        consumer: QueueConsumer,
        failed_messages: FailedMessages,
        extender: LeaseExtender,
    ) -> None:
        self._delivery = delivery
        self._handler = handler
        self._handling = handling = failed_messages.handling
        self._consumer = consumer
        self._failed_messages = failed_messages
        self._extender = extender
        self._watches_lease = handling.cancel_at_lease_end or handling.extend_lease is not None
        # Of the pool:
        self._ready: deque[tuple[Hashable, Message]] = deque()
        self._busy: dict[Hashable, deque[Message]] = {}  # what waits behind a message of its key
        self._held = 0
        self._ended = False
        self._arrived = trio.lowlevel.ParkingLot()
        self._finished = trio.lowlevel.ParkingLot()

    async def run(self) -> None:
        """Handle messages until the subscription ends, and finish what was begun.

        Raises:
            Exception: What a handler raised, if the policy is `raise`; what a policy raised.
        """
        if self._handling.workers == 1:
            await self._one_by_one()
        else:
            await self._in_pool()

    # -- one worker -------------------------------------------------------------

    async def _one_by_one(self) -> None:
        while (batch := await self._delivery.next_batch()) is not None:
            for index, message in enumerate(batch):
                await self._handle(message)
                if index % _CHECKPOINT_EVERY == _CHECKPOINT_EVERY - 1:
                    await trio.lowlevel.checkpoint()

    # -- several workers -----------------------------------------------------------

    async def _in_pool(self) -> None:
        async with open_nursery() as workers:
            for _ in range(self._handling.workers):
                workers.start_soon(self._work)
            while (batch := await self._delivery.next_batch()) is not None:
                for message in batch:
                    while self._held >= self._capacity:
                        await self._finished.park()
                    await self._assign(message)
            self._ended = True
            self._arrived.unpark_all()

    @property
    def _capacity(self) -> int:
        """How many messages are with the workers, at work or waiting."""
        return max(self._handling.workers, self._consumer.most_unacknowledged)

    async def _assign(self, message: Message) -> None:
        """Give a message to the workers, behind those of its key."""
        key: Hashable = None
        if self._handling.key is not None:
            try:
                key = self._handling.key(message)
                waiting = self._busy.get(key)
            except Exception as error:  # the application's: the key is part of the handling
                await self._failed_messages.failed(message, error)
                return
            if waiting is not None:
                waiting.append(message)
                self._held += 1
                return
            self._busy[key] = deque()
        self._held += 1
        self._ready.append((key, message))
        self._arrived.unpark()

    async def _work(self) -> None:
        while self._ready or not self._ended:
            if not self._ready:
                await self._arrived.park()
                continue
            key, message = self._ready.popleft()
            await self._handle(message)
            self._held -= 1
            self._finished.unpark_all()
            if self._handling.key is not None:
                if waiting := self._busy[key]:
                    self._ready.append((key, waiting.popleft()))
                else:
                    del self._busy[key]
            await trio.lowlevel.checkpoint()

    # -- one message ------------------------------------------------------------------

    async def _handle(self, message: Message) -> None:
        lease = message.lease
        if lease is not None and not lease.is_deliverable(message):
            return
        if self._delivery.skips_rest:  # it is given back when the connection is closed
            return
        try:
            if self._watches_lease and lease is not None:
                if not await self._within_lease(message):
                    return
            else:
                result = self._handler(message)
                if result is not None and isawaitable(result):
                    await result
        except Exception as error:  # the application's: a policy decides
            if self._handling.on_handler_error == "raise":
                raise
            await self._failed_messages.failed(message, error)
        else:
            if self._handling.auto_ack:
                message.ack()

    async def _within_lease(self, message: Message) -> bool:
        """Call the handler while the lease lasts; return whether it has finished by then."""
        ends_at = message.lease_deadline
        cancels = self._handling.cancel_at_lease_end and ends_at is not None
        deadline = ends_at if cancels and ends_at is not None else math.inf
        if deadline <= trio.current_time():  # it waited for too long
            self._lease_ended(message)
            return False
        name = (message.topic, message.bookmark)
        with trio.CancelScope(deadline=deadline) as scope:
            if cancels:
                self._consumer.scopes[name] = scope
            self._extender.begin(message)
            try:
                result = self._handler(message)
                if isawaitable(result):
                    await result
            finally:
                self._extender.end(message)
                if self._consumer.scopes.get(name) is scope:  # else that of its redelivery
                    del self._consumer.scopes[name]
        if scope.cancelled_caught:
            self._lease_ended(message)
        return not scope.cancelled_caught

    def _lease_ended(self, message: Message) -> None:
        """The lease of a message has ended before its handler: the server redelivers it."""
        message.lease = None
        self._consumer.acks.log.warning(
            "the lease of message %s of the queue %s ended before it was processed: it comes "
            "again; extend_lease= holds it for longer",
            message.bookmark,
            message.topic,
            extra={"sub_id": message.sub_id},
        )


class FailedMessages:
    """What happens to the messages of a queue subscription whose handlers have raised.

    Args:
        handling: The policy.
        consumer: The acknowledgements of the subscription.
        publish: Publishes dead letters.
        nursery: Where dead letters are published: handlers go on meanwhile.

    Attributes:
        handling: The policy.
    """

    def __init__(
        self,
        handling: QueueHandling,
        consumer: QueueConsumer,
        publish: PublishDeadLetter,
        nursery: trio.Nursery,
    ) -> None:
        self.handling = handling
        self._consumer = consumer
        self._publish = publish
        self._nursery = nursery

    async def failed(self, message: Message, error: Exception) -> None:
        """Do what the policy says.

        Raises:
            Exception: `error`, if the policy is `raise`; what a policy raised.
        """
        policy = self.handling.on_handler_error
        if policy == "raise":
            raise error
        failures = self._consumer.failures.failed(message.topic, message.bookmark)
        log = self._consumer.acks.log
        log.warning(
            "a handler raised for message %s of the queue %s (failure %d): %s (at DEBUG: its "
            "traceback)",
            message.bookmark,
            message.topic,
            failures,
            failure_text(error),
            extra={"sub_id": message.sub_id},
        )
        log.debug("traceback of this failure", exc_info=error)
        if isinstance(policy, DeadLetter):
            self._nursery.start_soon(self._send_dead_letter, policy, message, error, failures)
            return
        if callable(policy):
            result = policy(message, error)
            if isawaitable(result):
                await result
        expire_after = self.handling.expire_after
        is_over = expire_after is not None and failures >= expire_after
        if is_over or (isinstance(policy, str) and policy in _EXPIRES):
            message.ack(expire=True)
        else:
            give_back(message, failures)

    async def _send_dead_letter(
        self, letter: DeadLetter, message: Message, error: Exception, failures: int
    ) -> None:
        """Publish the copy; acknowledge the message once that is persisted."""
        context = letter.correlation_id(message, error, failures)
        try:
            await self._publish(letter.topic, message.data, context)
        except HAClientError as failure:
            self._consumer.acks.log.error(  # noqa: TRY400  # refused or lost: the text has the reason
                "message %s of the queue %s could not be sent to %s and is given back: %s",
                message.bookmark,
                message.topic,
                letter.topic,
                failure,
                extra={"sub_id": message.sub_id},
            )
            give_back(message, failures)
        else:
            message.ack()


def give_back(message: Message, failures: int | None = None) -> None:
    """Give a message back to its queue, after a delay that grows with its failures.

    Args:
        message: The message; nothing happens if it is already acknowledged.
        failures: How often it has failed in its subscription; `None` counts one more failure.
    """
    lease = message.lease
    if not isinstance(lease, Lease):
        return
    if failures is None:
        failures = lease.consumer.failures.failed(message.topic, message.bookmark)
    acks = lease.consumer.acks
    acks.schedule_ack(lease, message, AckOption.CANCEL, CancelDelay.delay_s(failures))


class LeaseExtender:
    """Extends the leases of messages whose handlers are at work.

    Args:
        consumer: The acknowledgements of the subscription.
        seconds: By how much a lease is extended.
    """

    def __init__(self, consumer: QueueConsumer, seconds: float) -> None:
        self._consumer = consumer
        self._seconds = seconds
        self._due: dict[tuple[str, str], tuple[float, Message]] = {}
        self._parked = trio.lowlevel.ParkingLot()
        self._sleep: trio.CancelScope | None = None

    def begin(self, message: Message) -> None:
        """The handler of a message begins: extend its lease when half of it is over."""
        if not message.lease_period or self._seconds == math.inf:
            return
        now = trio.current_time()
        ends_at = message.lease_deadline
        left_s = self._seconds if ends_at is None else min(self._seconds, max(0.0, ends_at - now))
        due = now + left_s / 2
        self._due[message.topic, message.bookmark] = (due, message)
        self._parked.unpark()
        if self._sleep is not None and due < self._sleep.deadline:
            self._sleep.deadline = due

    def end(self, message: Message) -> None:
        """Its handler has ended; the handler of its redelivery may be at work."""
        name = (message.topic, message.bookmark)
        if name in self._due and self._due[name][1] is message:
            del self._due[name]

    async def run(self) -> None:
        """Extend what is due, for ever."""
        while True:
            if not self._due:
                await self._parked.park()
                continue
            deadline = min(due for due, _ in self._due.values())
            with trio.CancelScope(deadline=deadline) as self._sleep:
                await trio.sleep_forever()
            self._sleep = None
            self._extend(trio.current_time())

    def _extend(self, now: float) -> None:
        for name, (due, message) in self._due.items():
            if due <= now:
                message.extend_lease(self._seconds)
                self._due[name] = (now + self._seconds / 2, message)

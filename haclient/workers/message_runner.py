"""Calls a handler with messages, and finishes each message as its call has ended.

A message whose handler has returned is discarded, or acknowledged to its queue, where that is
automatic. One whose handler raised is finished by a policy. A message of a queue whose lease is
over is not passed to the handler, since the server redelivers it.

Plain handlers, handlers of queues and `run_workers` all call their functions here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from inspect import isawaitable
from typing import Literal, NamedTuple, TypeAlias, TypeVar, cast

import trio

from haclient.errors import DisconnectedError, HAClientError, WorkerError, failure_text
from haclient.protocol.messages import Message
from haclient.session.dead_letter import DeadLetter
from haclient.transport.ack_sender import QueueLease
from haclient.transport.message_queue import Handler, MessageQueue, ShuttingDown
from haclient.transport.reporter import Reporter
from haclient.transport.tasks import Turn
from haclient.workers.lease_watch import LeaseWatch
from haclient_stores.logs import logger_of

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


def call(work: Callable[[Message], _T], message: Message) -> _T:
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


class MessageRunner:
    """Handles the messages of one subscription.

    Args:
        queue: Where the messages come from. It has the handler, which another one may replace.
        policy: What happens to a message whose handler has raised.
        discards: Whether a message is discarded when its handler has returned.
        acks: Whether a message is acknowledged then.
        expire_after: After so many failures a message is expired instead of given back.
        letters: Publishes dead letters, if the policy is one.
        watch: Watches the leases while handlers are at work; `None` if nobody wants it.
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
        queue.handler_tasks.add(trio.lowlevel.current_task())
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
        """Do with a message whose handler has raised what the policy says.

        Raises:
            Exception: `error`, if the policy is `raise`; what a policy raised.
        """
        policy = self._policy
        # What leaves the client's block is reported there. A shutdown goes on.
        if policy == "raise" and not _is_only(error, ShuttingDown):
            raise error
        if self._is_of_end(error):  # the message has not failed, and comes again
            self._log.warning(
                "the handler of subscription %s used its client when that had ended: %s",
                message.sub_id,
                error,
                extra={"sub_id": message.sub_id},
            )
            return
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

    def _is_of_end(self, error: Exception) -> bool:
        """Whether a call of the client has failed since no connection will follow."""
        status = self._queue.status
        reason = None if status is None else status.stop_reason
        if reason is None:
            return _is_only(error, ShuttingDown)
        return error is reason or _is_only(error, DisconnectedError)

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


def _is_only(error: Exception, kind: type[Exception]) -> bool:
    """Whether an error is one of this kind, or a group of such errors, as a nursery raises it."""
    if isinstance(error, ExceptionGroup):
        return cast("ExceptionGroup[Exception]", error).split(kind)[1] is None
    return isinstance(error, kind)


def _give_back(message: Message, failures: int) -> None:
    """Give a message back to its queue; nothing happens to one that is acknowledged already."""
    if isinstance(message.lease, QueueLease):
        message.lease.give_back(message, failures)

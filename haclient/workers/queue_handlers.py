"""Calls a handler with the messages of a queue, and acknowledges those that it has processed.

A message whose handler returned is acknowledged; one whose handler raised never is. A policy
decides what happens to it: it is given back after a delay that grows with its failures, removed as
expired, or copied to a dead letter topic.

One worker calls the handler for one message after the other. Several share the messages, and no
more wait for a worker than the backlog allows.

On request a handler is cancelled when the lease of its message ends, or one task extends the leases
of all messages whose handlers are running.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypedDict

from haclient.errors import UsageError
from haclient.session.dead_letter import DeadLetter
from haclient.session.leases import QueueLeases, lease_extension
from haclient.transport.message_queue import Handler, MessageQueue
from haclient.transport.reporter import Reporter
from haclient.transport.tasks import open_nursery
from haclient.workers.message_runner import (
    DeadLetters,
    KeyedPool,
    LeaseWatch,
    MessageKey,
    MessageRunner,
    PublishDeadLetter,
    QueueErrorPolicy,
)
from haclient_stores.checks import check_count

DEFAULT_MAX_BACKLOG: Final = 10
"""How many unacknowledged messages a consumer asks for by default."""

_WORDS: Final = frozenset({"raise", "cancel", "expire", "continue", "discard"})


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
            order, one at a time; one that is given back is handled after later ones of its key.
        cancel_at_lease_end: Whether a handler is cancelled when the lease of its message ends. In a
            thread, as with `haclient.blocking`, only its calls of the client are.
        extend_lease: While a handler runs, the lease of its message is extended by so many seconds,
            each time that half of it is over; `None`, the default, to extend none.
    """

    max_backlog: int
    auto_ack: bool
    on_handler_error: QueueErrorPolicy
    expire_after: int | None
    workers: int
    key: MessageKey | None
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
    key: MessageKey | None = None
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
            lease_extension(self.extend_lease)  # raises what is not an interval


async def serve_queue(
    queue: MessageQueue,
    handler: Handler,
    handling: QueueHandling,
    *,
    leases: QueueLeases,
    publish: PublishDeadLetter,
    reporter: Reporter,
) -> None:
    """Handle the messages of a queue until the subscription ends, and finish what was begun.

    Args:
        queue: Where messages come from.
        handler: Called with each message, until another one replaces it in the queue.
        handling: How.
        leases: Those of the subscription.
        publish: Publishes dead letters.
        reporter: Logs and reports what handlers raise.

    Raises:
        Exception: What a handler raised, if the policy is `raise`; what a policy raised.
    """
    if leases.backlog is not None and leases.backlog < handling.workers:
        leases.warn_once(
            "workers",
            "the queue %s grants a backlog smaller than the number of workers, and some of "
            "them will always wait: ask for a larger max_backlog, and allow it at the server",
        )
    async with open_nursery() as nursery, open_nursery() as background:
        watch: LeaseWatch | None = None
        if handling.cancel_at_lease_end or handling.extend_lease is not None:
            watch = LeaseWatch(
                extend_s=handling.extend_lease,
                cancels=handling.cancel_at_lease_end,
                log=leases.log,
            )
            background.start_soon(watch.run)
        runner = MessageRunner(
            queue,
            handling.on_handler_error,
            acks=handling.auto_ack,
            expire_after=handling.expire_after,
            letters=DeadLetters(publish, nursery),
            watch=watch,
            reporter=reporter,
        )
        queue.handler = handler
        if handling.workers == 1:
            await runner.serve()
        else:
            capacity = max(handling.workers, leases.most_unacknowledged)
            pool = KeyedPool(capacity, handling.key, runner)
            async with open_nursery() as workers:
                for _ in range(handling.workers):
                    workers.start_soon(pool.work)
                while (batch := await queue.next_batch()) is not None:
                    for message in batch:
                        await pool.put(message)
                pool.end()
        background.cancel_scope.cancel()

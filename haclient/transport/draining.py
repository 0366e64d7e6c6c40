"""The shutdown of a client: it releases queues for the last acks, and waits for publishes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

import trio

from haclient.errors import CommandError, DisconnectedError, TimedOut
from haclient.session.subscriptions import Subscription
from haclient.transport.callers import has_ended
from haclient.transport.message_queue import Delivery
from haclient.transport.publisher import Publisher

_UNCONFIRMED: Final = (TimedOut, DisconnectedError, CommandError)


class Flush(Protocol):
    """Waits until the server is done with everything that was sent so far."""

    async def __call__(self, *, timeout: float) -> None:
        """Raise `TimedOut` after `timeout` seconds, another error if waiting is hopeless."""


def release_queues(subscriptions: Iterable[Subscription]) -> None:
    """Drop the queues of the exiting task, so that the final acks can still be read.

    A full queue whose last consumer has ended is dropped as well, since it stops the reading.
    """
    for subscription in subscriptions:
        sink = subscription.sink
        if not isinstance(sink, Delivery):
            continue
        if sink.consumers.last in {trio.lowlevel.current_task(), None}:
            subscription.drop_queued()
            sink.end()
        elif sink.full and _has_ended(sink.consumers.last):
            subscription.drop_queued()
            sink.end(DisconnectedError("the client was left"), raises=True)


def _has_ended(consumer: object) -> bool:
    # Each request of a caller outside of the client's thread is a new task.
    return not isinstance(consumer, trio.lowlevel.Task) or has_ended(consumer)


async def drain(publisher: Publisher, flush: Flush, *, limit_s: float) -> str:
    """Wait until all publishes are sent and persisted, both within the limit.

    Returns:
        A text about what is not persisted, and why; empty if everything is.
    """
    began = trio.current_time()
    with trio.move_on_after(limit_s):
        while publisher.log is None and publisher.writer and publisher.writer.outbox_bytes:
            await publisher.writer.room()
    rest_s = limit_s
    if publisher.log is None:
        rest_s = max(limit_s - round(trio.current_time() - began, 3), 0.0)
    try:
        await flush(timeout=rest_s)
    except _UNCONFIRMED as error:  # too late, or hopeless: the caller warns
        if publisher.log is None and publisher.confirmed_unstored == publisher.sent_unstored:
            return ""  # nothing was published since another flush
        return str(error)
    count = 0 if publisher.log is None else publisher.log.unpersisted_count
    return f"{count} were published during the shutdown" if count else ""


async def drain_acks(flush: Flush, *, limit_s: float) -> str:
    """Wait until the server has processed each acknowledgement, within the limit.

    Returns:
        Why it may not have; empty if it has.
    """
    try:
        await flush(timeout=limit_s)
    except _UNCONFIRMED as error:
        return str(error)
    return ""

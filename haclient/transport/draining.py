"""What happens before a client is left: room for the last acks, and the wait for publishes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import trio

from haclient.errors import DisconnectedError, TimedOut
from haclient.session.subscriptions import Subscription
from haclient.transport.commands import drop_queued
from haclient.transport.message_queue import Delivery
from haclient.transport.publisher import Publisher


class Flush(Protocol):
    """Waits until everything published so far is persisted, or processed without a store."""

    async def __call__(self, *, timeout: float) -> None:
        """Raise `TimedOut` after `timeout` seconds, `DisconnectedError` when it is hopeless."""


def release_queues(subscriptions: Iterable[Subscription]) -> None:
    """Drop the queues of the exiting task, so that the final acks can still be read."""
    for subscription in subscriptions:
        sink = subscription.sink
        if isinstance(sink, Delivery) and sink.consumer in {trio.lowlevel.current_task(), None}:
            drop_queued(subscription)
            sink.end()


async def drain(publisher: Publisher, flush: Flush, *, limit_s: float) -> str:
    """Wait until everything published has left, and is persisted; both within the limit.

    Returns:
        What is left unpersisted and why, empty when nothing is.
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
    except (TimedOut, DisconnectedError) as error:  # too late, or hopeless: the caller warns
        return str(error)
    count = 0 if publisher.log is None else publisher.log.unpersisted_count
    return f"{count} were published while it was left" if count else ""

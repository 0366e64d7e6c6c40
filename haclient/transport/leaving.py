"""Before a client is left: what was published is persisted, if the exit timeout allows (HA25)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import trio

from haclient.errors import DisconnectedError, TimedOut
from haclient.session.subscriptions import Subscription
from haclient.transport.commander import drop_queued
from haclient.transport.dispatch import Delivery
from haclient.transport.publisher import Publisher

__all__ = ["Flush", "drain", "let_go"]


class Flush(Protocol):
    """Waits until everything published so far is persisted, or processed without a store."""

    async def __call__(self, *, timeout: float | None) -> None:
        """Raise `TimedOut` after `timeout` seconds, `DisconnectedError` when it is hopeless."""


def let_go(subscriptions: Iterable[Subscription]) -> None:
    """Who leaves takes no more messages: its full streams must not hold back the last acks."""
    for subscription in subscriptions:
        sink = subscription.sink
        if isinstance(sink, Delivery) and sink.consumer in {trio.lowlevel.current_task(), None}:
            drop_queued(subscription)
            sink.end()


async def drain(publisher: Publisher, flush: Flush, *, limit_s: float | None) -> str:
    """Wait until everything published has left, and is persisted; both within the limit.

    Returns:
        What is left unpersisted and why, empty when nothing is.
    """
    began = trio.current_time()
    with trio.move_on_after(float("inf") if limit_s is None else limit_s):
        while publisher.log is None and publisher.writer and publisher.writer.outbox_bytes:
            await publisher.writer.room()
    rest_s = limit_s
    if limit_s is not None and publisher.log is None:
        rest_s = max(limit_s - round(trio.current_time() - began, 3), 0.0)
    try:
        await flush(timeout=rest_s)
    except (TimedOut, DisconnectedError) as error:
        return str(error)
    count = 0 if publisher.log is None else publisher.log.unpersisted_count
    return f"{count} were published while it was left" if count else ""

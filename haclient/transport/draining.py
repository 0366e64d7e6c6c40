"""The end of a client's queues: those of the exiting task are released for the last acks."""

from __future__ import annotations

from collections.abc import Iterable

import trio

from haclient.errors import DisconnectedError
from haclient.session.subscriptions import Subscription
from haclient.transport.callers import has_ended
from haclient.transport.message_queue import Delivery


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

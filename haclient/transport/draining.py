"""The end of a client's queues: those of the exiting task are released for the last acks."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

import trio

from haclient.errors import DisconnectedError
from haclient.session.subscriptions import Subscription
from haclient.transport.message_queue import Delivery


def release_queues(subscriptions: Iterable[Subscription]) -> None:
    """Drop the queues of the exiting task, so that the final acks can still be read.

    A full queue whose last consumer has ended is dropped as well, since it stops the reading.
    """
    for subscription in subscriptions:
        sink = subscription.sink
        if not isinstance(sink, Delivery):
            continue
        if sink.consumer is None or sink.consumer is trio.lowlevel.current_task():
            subscription.drop_queued()
            sink.end()
        elif sink.full and inspect.getcoroutinestate(sink.consumer.coro) == inspect.CORO_CLOSED:
            subscription.drop_queued()
            sink.end(DisconnectedError("the client was left"), raises=True)

"""Stops a connection from reading while its queues are full, unless somebody waits for an ack.

`AckWaits` has the waits of the client, `BackPressure` the full queues of one connection. What
follows from both is decided by `haclient.session.back_pressure`.
"""

from __future__ import annotations

import math

import trio

from haclient.errors import SubscriptionFull
from haclient.session.back_pressure import FullQueues, Reading
from haclient.session.subscriptions import Subscription
from haclient.transport.ack_waits import AckWaits
from haclient.transport.message_queue import MessageQueue
from haclient.transport.reporter import CallQueue


class BackPressure:
    """The full queues of one connection.

    Args:
        waits: The waits for acks of the client.
        calls: The queue of its listeners.
    """

    def __init__(self, waits: AckWaits, calls: CallQueue) -> None:
        self._waits = waits
        self._calls = calls
        self._full = FullQueues[Subscription | None]()  # None: the queue of the listeners

    @property
    def is_ack_awaited(self) -> bool:
        """Whether a caller waits for an ack right now."""
        return bool(self._waits)

    def note(self, subscription: Subscription) -> None:
        """Note that the queue of a subscription is over its cap."""
        if subscription not in self._full:
            self._refresh()  # the others may have been emptied, and their subscriptions ended
        self._update(subscription)
        self._full.set_paused(subscription, is_paused=self.pause_for_back_pressure(subscription))

    def pause_for_back_pressure(self, _: Subscription, /) -> bool:
        """Have the server send nothing for a full subscription until half of its queue is free.

        Returns:
            Whether it stops sending soon. Here it never does: each full queue stops the reading.
        """
        return False

    def allows_reading(self) -> bool:
        """Whether the connection may read on; to be asked after each chunk."""
        return not (self._full or self._calls.full) or self._decide() is Reading.ON

    async def run(self) -> None:
        """Run for as long as the connection lasts.

        Raises:
            DisconnectedError: The connection has to end.
        """
        await trio.sleep_forever()

    async def wait(self) -> None:
        """Wait until the connection may read on; fail the waits for acks that cannot end."""
        while (reading := self._decide()) is not Reading.ON:
            if reading is Reading.STUCK:
                self._waits.fail(self._error)
            wake_at = self._full.stuck_at if reading is Reading.AT_LIMIT else math.inf
            with trio.move_on_at(wake_at):
                await self._waits.reader.park()

    def _update(self, subscription: Subscription | None) -> None:
        queue = self._queue_of(subscription)
        queue.reader = self._waits.reader
        self._full.update(
            subscription,
            queue.queued_bytes,
            queue.cap_bytes,
            progress=queue.progress,
            now=trio.current_time(),
        )

    def _queue_of(self, subscription: Subscription | None) -> MessageQueue | CallQueue:
        return self._calls if subscription is None else queue_of(subscription)

    def _refresh(self) -> None:
        for each in self._full.queues():
            self._update(each)

    def _decide(self) -> Reading:
        if self._calls.full:
            self._update(None)
        reading = self._full.decide(is_ack_awaited=bool(self._waits), now=trio.current_time())
        if reading is Reading.ON:
            return reading
        self._refresh()  # most of them may have been taken from meanwhile
        return self._full.decide(is_ack_awaited=bool(self._waits), now=trio.current_time())

    def _error(self, what: str) -> SubscriptionFull:
        subscription = self._full.fullest
        held = f"holds {self._queue_of(subscription).queued_bytes} bytes that nobody takes"
        before = f"{what}: the ack comes after what the client reads ahead: the queue of"
        if subscription is None:
            return SubscriptionFull(
                f"{before} the listeners {held}: wait for acks in another task than a listener"
            )
        request = subscription.request
        topic = str(request.fields.get("t", ""))
        return SubscriptionFull(
            f"{before} subscription {subscription.sub_id!r} on topic {topic!r} {held}: take its "
            "messages in a task that does not wait for acks, or raise max_queued_bytes",
            sub_id=subscription.sub_id,
            topic=topic,
        )


def queue_of(subscription: Subscription) -> MessageQueue:
    """The queue of a subscription that has one."""
    assert isinstance(subscription.queue, MessageQueue)  # noqa: S101  # no other one is full
    return subscription.queue

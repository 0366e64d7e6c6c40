from __future__ import annotations

from typing_extensions import override

from haclient.protocol.messages import Message
from haclient.session.subscriptions import SubscribeRequest, Subscription
from haclient.transport.back_pressure import AckWaits, BackPressure
from haclient.transport.message_queue import MessageQueue
from haclient.transport.reporter import CallQueue


class Counting(BackPressure):
    """Counts how often it looks at a queue."""

    looked_at = 0

    @override
    def _update(self, subscription: Subscription | None) -> None:
        self.looked_at += 1
        super()._update(subscription)


async def test_a_queue_that_gets_full_does_not_look_at_all_others() -> None:
    pressure, count = Counting(AckWaits(), CallQueue()), 200
    queues: list[MessageQueue] = []
    for number in range(count):
        queue, sub_id = MessageQueue(10), f"s{number}"
        queue.put([Message(data=b"x")], 100)
        queues.append(queue)
        request = SubscribeRequest.complete(
            {"c": "subscribe", "t": "orders"}, b"", command_id=sub_id, has_store=False
        )
        pressure.note(Subscription(request, queue))
    assert pressure.looked_at <= 4 * count
    assert not pressure.allows_reading()
    for queue in queues:
        await queue.next_batch()
    assert pressure.allows_reading()

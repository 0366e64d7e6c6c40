"""A queue that removes messages before it sends them: what has arrived is not thrown away."""

from __future__ import annotations

import trio

from haclient import Client, HAClient, Message
from haclient_fake_server.config import BrokerConfig, QueueTopic
from haclient_fake_server.testing.faults import Cut
from haclient_fake_server.testing.proxy import FaultProxy
from support.broker import running_broker
from support.inbox import until


async def test_what_an_at_most_once_queue_has_delivered_outlives_its_connection() -> None:
    queue = QueueTopic(name="q", semantics="at-most-once", max_per_subscription_backlog=50)
    got: list[int] = []
    first = trio.Event()

    async def handler(message: Message) -> None:
        got.append(int(message.text))
        await first.wait()

    async with (
        running_broker(BrokerConfig(queues=(queue,))) as server,
        FaultProxy(server.uris[0]) as proxy,
        Client("pubber") as pubber,
        HAClient("consumer", servers=[f"{proxy.uri}/amps/json"]) as client,
    ):
        await pubber.connect(f"{server.uris[0]}/amps/json")
        await pubber.logon()
        await client.queue_subscribe("q", handler=handler, max_backlog=50)
        for number in range(20):
            await pubber.publish("q", str(number))
        await pubber.flush()
        await until(lambda: client.metrics.messages_delivered >= 20)
        proxy.wire.apply(Cut())
        await until(lambda: client.metrics.disconnections >= 1)
        first.set()
        await until(lambda: len(got) >= 20)
        assert got == list(range(20))

"""An orderly end of clients that talk to a broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import HAClient
from haclient.errors import WouldBlock
from haclient.protocol.messages import Message
from haclient.transport.active_consumers import OpenClients, open_clients
from haclient_fake_server.config import BrokerConfig, QueueTopic
from haclient_fake_server.pytest_plugin import ClusterFactory
from haclient_fake_server.testing.cluster import Cluster
from support.clock import in_virtual_time

pytestmark = in_virtual_time


@pytest.fixture
def clients() -> Iterator[OpenClients]:
    found = OpenClients()
    token = open_clients.set(found)
    yield found
    open_clients.reset(token)


class SlowHandler:
    """A handler that works on each message for a second."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def __call__(self, message: Message) -> None:
        await trio.sleep(1.0)
        self.seen.append(message.text)


async def publish(uri: str, *bodies: str) -> None:
    async with HAClient.memory_backed("other", servers=[uri]) as client:
        for body in bodies:
            await client.publish("orders", body)
        await client.publish_flush()


@pytest.mark.row("HA24")
async def test_a_handler_finishes_its_message_and_gets_no_other(
    amps_memory_broker: Cluster, clients: OpenClients
) -> None:
    handler = SlowHandler()
    await publish(amps_memory_broker.uri, "a", "b", "c")
    async with HAClient.memory_backed("sub", servers=[amps_memory_broker.uri]) as client:
        await client.bookmark_subscribe("orders", sub_id="s", handler=handler, auto_discard=True)
        await trio.sleep(0.5)
        assert clients.unfinished() == "client 'sub': at work: s"
        await clients.drain()
        assert handler.seen == ["a"]
        assert clients.unfinished() == ""
        await trio.sleep(10.0)
        assert handler.seen == ["a"]
    assert clients.unfinished() == ""


@pytest.mark.row("HA24")
async def test_messages_of_a_plain_subscription_that_have_arrived_are_all_handled(
    amps_memory_broker: Cluster, clients: OpenClients
) -> None:
    handler = SlowHandler()
    async with HAClient.memory_backed("sub", servers=[amps_memory_broker.uri]) as client:
        await client.subscribe("orders", handler=handler)
        await publish(amps_memory_broker.uri, "a", "b", "c")
        await trio.sleep(0.5)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clients.drain)
            await wait_all_tasks_blocked()
            await publish(amps_memory_broker.uri, "too late")
        assert handler.seen == ["a", "b", "c"]


@pytest.mark.row("HA24")
@pytest.mark.parametrize("in_batches", [False, True])
async def test_a_stream_ends_when_its_consumer_has_finished(
    amps_memory_broker: Cluster, clients: OpenClients, *, in_batches: bool
) -> None:
    finished: list[str] = []
    await publish(amps_memory_broker.uri, "a", "b", "c")
    async with (
        HAClient.memory_backed("sub", servers=[amps_memory_broker.uri]) as client,
        client.bookmark_stream("orders", sub_id="s") as messages,
        trio.open_nursery() as nursery,
    ):
        began = trio.current_time()

        async def consume() -> None:
            if in_batches:
                async for batch in messages.batches():
                    await trio.sleep(1.0)
                    finished.extend(message.text for message in batch)
            else:
                async for message in messages:
                    await trio.sleep(1.0)
                    finished.append(message.text)

        nursery.start_soon(consume)
        await trio.sleep(0.5)
        await clients.drain()
        assert trio.current_time() - began < 2.0
        assert finished == (["a", "b", "c"] if in_batches else ["a"])
    assert messages.ended


async def test_a_query_goes_on_since_it_is_part_of_the_work(
    amps_memory_broker: Cluster, clients: OpenClients
) -> None:
    found: list[str] = []
    uri = amps_memory_broker.uri

    async with HAClient.memory_backed("sub", servers=[uri]) as client:

        async def handle(message: Message) -> None:
            await trio.sleep(1.0)
            async with client.stream("another") as messages:  # opened during the end: ended
                found.extend([message.text async for message in messages])
            found.append(message.text)
            await client.publish("results", message.data)

        await client.bookmark_subscribe("orders", sub_id="s", handler=handle, auto_discard=True)
        await publish(uri, "a")
        await trio.sleep(0.5)
        await clients.drain()
        assert found == ["a"]
        assert client.unpersisted_count == 0


@pytest.mark.row("HA24")
async def test_the_messages_of_a_queue_that_were_not_begun_go_to_another_consumer(
    amps_cluster: ClusterFactory,
) -> None:
    queue = QueueTopic(name="jobs", topics=("orders",), max_per_subscription_backlog=4)
    broker = await amps_cluster("broker", on="memory", config=BrokerConfig(queues=(queue,)))
    uri, seen = broker.uri, list[str]()

    async def handle(message: Message) -> None:
        await trio.sleep(1.0)
        seen.append(message.text)

    async with HAClient.memory_backed("producer", servers=[uri]) as producer:
        for number in range(6):
            await producer.publish("orders", str(number))
        await producer.publish_flush()
    for workers in (1, 2):
        clients = OpenClients()
        open_clients.set(clients)
        async with HAClient("worker", servers=[uri]) as client:
            await client.queue_subscribe("jobs", handler=handle, max_backlog=4, workers=workers)
            await trio.sleep(0.5)
            await clients.drain()
            assert clients.unfinished() == ""
    assert sorted(seen) == ["0", "1", "2"]
    open_clients.set(None)
    async with HAClient("worker", servers=[uri]) as client:
        await client.queue_subscribe("jobs", handler=handle, max_backlog=4)
        await trio.sleep(10.0)
    assert sorted(seen) == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.row("HA24")
async def test_a_publish_after_the_flush_waits_to_be_cancelled(
    amps_memory_broker: Cluster, clients: OpenClients
) -> None:
    async with HAClient.memory_backed("pub", servers=[amps_memory_broker.uri]) as client:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def publish_for_ever() -> None:
                    while True:
                        await client.publish("orders", "x")
                        await trio.sleep(0.001)

                nursery.start_soon(publish_for_ever)
                await trio.sleep(1.0)
                await clients.drain()
                assert client.unpersisted_count == 0
                with pytest.raises(WouldBlock, match="is ending"):
                    client.publish_nowait("orders", "x")
                await trio.sleep(10.0)
                assert client.unpersisted_count == 0
                scope.cancel()


async def test_a_client_that_is_entered_during_the_end_gets_no_messages(
    amps_memory_broker: Cluster, clients: OpenClients
) -> None:
    await publish(amps_memory_broker.uri, "a")
    await clients.drain()
    async with (
        HAClient.memory_backed("sub", servers=[amps_memory_broker.uri]) as client,
        client.bookmark_stream("orders", sub_id="s") as messages,
    ):
        assert [message.text async for message in messages] == []

"""An orderly end of clients that talk to a broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Final, Literal

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import HAClient
from haclient.errors import DisconnectedError, WouldBlock
from haclient.protocol.messages import Message
from haclient.stores import MemoryBookmarkStore
from haclient.transport.open_clients import OpenClients, open_clients
from haclient.workers import ThreadPool, run_workers
from haclient_fake_server.config import BrokerConfig, QueueTopic, SowTopic
from haclient_fake_server.pytest_plugin import ClusterFactory
from haclient_fake_server.testing.cluster import Cluster
from support.clock import in_virtual_time
from support.instances import durable, instances

pytestmark = in_virtual_time

FIRST: Final = '{"id":1}'
SECOND: Final = '{"id":2}'


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
@pytest.mark.parametrize("in_a_stream", [False, True])
async def test_an_orderly_end_delivers_what_a_query_has_queued_when_the_link_is_lost(
    clients: OpenClients, tmp_path: Path, *, in_a_stream: bool
) -> None:
    handler = SlowHandler()
    async with (
        instances("east", config=durable(tmp_path)) as (east,),
        HAClient.memory_backed("pub", servers=[east.uri]) as publisher,
        HAClient("sub", servers=[east.uri]) as client,
        trio.open_nursery() as nursery,
    ):

        async def consume() -> None:
            async with client.sow_and_stream("prices", resumes=True) as messages:
                async for message in messages:
                    await handler(message)

        if in_a_stream:
            nursery.start_soon(consume)
        else:
            await client.sow_and_subscribe("prices", handler=handler)
        await trio.sleep(5.0)  # the markers of the query are handled
        for body in (FIRST, SECOND):
            await publisher.publish("prices", body)
            await publisher.publish_flush()
        await trio.sleep(0.5)
        with trio.fail_after(30):
            async with trio.open_nursery() as draining:
                draining.start_soon(clients.finish_consumers)
                await wait_all_tasks_blocked()
                await east.cut()
        assert handler.seen[-2:] == [FIRST, SECOND]


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
    assert isinstance(messages.end_reason, DisconnectedError)


async def _read_stream(client: HAClient) -> None:
    async with client.stream("replies") as replies:
        async for _ in replies:
            pass


async def _read_in_task(client: HAClient) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_read_stream, client)
        nursery.start_soon(_read_stream, client)


async def _read_lists(client: HAClient) -> None:
    async with client.bookmark_stream("replies", sub_id="r") as replies:
        async for _ in replies.batches(10, 1.0):
            pass


async def _read_queue(client: HAClient) -> None:
    async with client.queue_stream("replies") as replies:
        async for _ in replies.with_timeout(10.0):
            pass


async def _read_records(client: HAClient) -> None:
    async with client.records("prices", key=itemgetter("id")) as prices:
        async for _ in prices:
            pass


async def _read_in_workers(client: HAClient) -> None:
    async with client.stream("replies") as replies:
        await run_workers(replies, repr, ThreadPool(1))


async def _open_late(client: HAClient) -> None:
    await trio.sleep(2.0)
    await _read_stream(client)


READS: list[Callable[[HAClient], Awaitable[None]]] = [
    _read_stream,
    _read_in_task,
    _read_lists,
    _read_queue,
    _read_records,
    _read_in_workers,
    _open_late,
]


@pytest.mark.row("HA24")
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("policy", ["raise", "discard"])
async def test_a_handler_whose_stream_ends_keeps_its_message(
    amps_cluster: ClusterFactory,
    clients: OpenClients,
    read: Callable[[HAClient], Awaitable[None]],
    policy: Literal["raise", "discard"],
) -> None:
    seen, queue = list[str](), QueueTopic(name="replies", topics=("answers",))
    prices = SowTopic("prices", ("/id",))
    config = BrokerConfig(queues=(queue,), sow_topics=(prices,))
    broker = await amps_cluster("b", on="memory", config=config)
    store = MemoryBookmarkStore()
    await publish(broker.uri, "a")

    async with HAClient(
        "sub", servers=[broker.uri], bookmark_store=store, on_handler_error=policy
    ) as client:

        async def handle(message: Message) -> None:
            seen.append("begun")
            await read(client)
            seen.append("all replies are there")
            await client.publish("results", message.data)

        await client.bookmark_subscribe("orders", sub_id="s", handler=handle, auto_discard=True)
        await trio.sleep(1.0)
        await clients.drain()
        assert clients.unfinished() == ""
    assert seen == ["begun"]
    assert store.subscription("s").undiscarded_count == 1


@pytest.mark.row("HA24")
@pytest.mark.parametrize("form", ["handlers", "workers"])
async def test_a_worker_whose_stream_ends_gives_its_message_to_another_consumer(
    amps_cluster: ClusterFactory, clients: OpenClients, form: str
) -> None:
    config = BrokerConfig(queues=(QueueTopic(name="jobs", topics=("orders",)),))
    broker = await amps_cluster("broker", on="memory", config=config)
    seen, begun = list[str](), trio.Event()
    await publish(broker.uri, "a")
    async with HAClient("sub", servers=[broker.uri]) as client:

        async def read(*_: object) -> None:
            seen.append("begun")
            begun.set()
            await _read_stream(client)
            seen.append("all replies are there")

        async with client.queue_stream("jobs") as jobs, trio.open_nursery() as nursery:
            if form == "handlers":
                await jobs.aclose()
                await client.queue_subscribe("jobs", handler=read, workers=2)
            else:
                nursery.start_soon(partial(run_workers, jobs, repr, ThreadPool(1), on_result=read))
            await begun.wait()
            await clients.drain()
            assert clients.unfinished() == ""
    open_clients.set(None)
    async with (
        HAClient("next", servers=[broker.uri]) as client,
        client.queue_stream("jobs") as jobs,
    ):
        assert (await anext(jobs)).text == "a"
    assert seen == ["begun"]


async def test_a_query_goes_on_since_it_is_part_of_the_work(
    amps_cluster: ClusterFactory, clients: OpenClients
) -> None:
    config = BrokerConfig(sow_topics=(SowTopic("another", ("/id",)),))
    broker = await amps_cluster("broker", on="memory", config=config)
    found, uri = list[str](), broker.uri

    async with HAClient.memory_backed("sub", servers=[uri]) as client:

        async def handle(message: Message) -> None:
            await trio.sleep(1.0)
            async with client.sow("another") as records:
                found.extend([record.text async for record in records])
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

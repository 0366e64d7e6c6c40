"""Acks that come behind messages for which a queue has no room: whoever waits gets them."""

from __future__ import annotations

import asyncio  # noqa: TID251  # one of the facades is for it
import threading
from collections.abc import Awaitable, Callable, Generator
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient import Command, HAClient, Message, MessageStream, aio, blocking
from haclient.errors import HAClientError, SubscriptionFull, TimedOut
from haclient.events import Event, MessagesReceived
from haclient.session import back_pressure
from haclient.workers import ThreadPool, run_workers
from support.broker_thread import BrokerThread, broker_thread
from support.clock import in_virtual_time
from support.peer import Peer, Server, answering
from support.process import LIMIT_S
from support.recovery import entered, live

pytestmark = pytest.mark.row("MS5")

BODY = bytes(1_000)
CAP = 4_000
QUERY = Command("sow", topic="customers", sub_id="q")


async def publish_over_the_limit(client: HAClient) -> None:
    for _ in range(2):  # the second one waits for room
        await client.publish("copies", bytes(300_000))


async def publish_and_wait(client: HAClient) -> None:
    sequence = await client.publish("copies", b"x")
    await client.wait_persisted(sequence or 0)


async def publish_and_flush(client: HAClient) -> None:
    await client.publish("copies", b"x")
    await client.publish_flush()


async def subscribe_and_end(client: HAClient) -> None:
    await client.unsubscribe(await client.subscribe("others", handler=print))


async def query(client: HAClient) -> None:
    async with client.sow("customers") as records:
        assert [record.data async for record in records] == [b"1", b"2"]


CALLS: dict[str, Callable[[HAClient], Awaitable[object]]] = {
    "publish": publish_over_the_limit,
    "wait_persisted": publish_and_wait,
    "publish_flush": publish_and_flush,
    "flush": HAClient.flush,
    "commands": subscribe_and_end,
    "query": query,
}


def client_of(server: Server) -> HAClient:
    return HAClient.memory_backed(
        "c",
        servers=[server.uri],
        max_queued_bytes=CAP,
        max_unpersisted_bytes=CAP,
        heartbeat=None,
        exit_timeout=0,
    )


async def answer_behind_messages(peer: Peer, count: int = 20, *, sub_id: str = "s") -> None:
    """Answer each command and publish, always behind more messages than a queue has room for."""
    while (message := await peer.hear_or_end()) is not None:
        for _ in range(4):
            await peer.publish(sub_id, *[BODY] * (count // 4))
            await wait_all_tasks_blocked()  # so that it is read by itself
        if message.sequence is not None:
            await peer.persisted(message.sequence)
        if message.command not in {"publish", "sow"}:
            await peer.ack(message, message.ack_type.split(",")[0] or "processed")
        elif message.command == "sow":
            await peer.ack(message)
            await wait_all_tasks_blocked()  # nobody waits for an ack any more
            await peer.records(message, b"1", b"2")


class Count:
    """Counts, and wakes whoever waits for a number."""

    def __init__(self) -> None:
        self.value = 0
        self._raised = trio.Event()

    def add(self) -> None:
        self.value += 1
        self._raised.set()
        self._raised = trio.Event()

    async def reaches(self, value: int) -> None:
        with trio.fail_after(LIMIT_S):
            while self.value < value:
                await self._raised.wait()


@in_virtual_time
@pytest.mark.parametrize("call", CALLS)
async def test_a_handler_gets_acks_that_come_behind_its_own_messages(
    server: Server, call: str
) -> None:
    client, handled = client_of(server), Count()

    async def handle(_: Message) -> None:
        await CALLS[call](client)
        handled.add()

    async with entered(client, partial(live, server)) as peer, trio.open_nursery() as nursery:
        async with answering(peer):
            await client.subscribe("orders", sub_id="s", handler=handle)
        nursery.start_soon(answer_behind_messages, peer)
        await peer.publish("s", *[BODY] * 20)
        await handled.reaches(5)
        nursery.cancel_scope.cancel()


@in_virtual_time
@pytest.mark.parametrize("call", CALLS)
async def test_a_stream_gets_acks_that_come_behind_its_messages_also_through_a_channel(
    server: Server, call: str
) -> None:
    client, handled = client_of(server), Count()
    jobs, work = trio.open_memory_channel[Message](0)

    async def take() -> None:
        async for message in stream:
            await jobs.send(message)

    async def call_for_each() -> None:
        async for _ in work:
            await CALLS[call](client)
            handled.add()

    async with entered(client, partial(live, server)) as peer, trio.open_nursery() as nursery:
        stream = client.stream("orders", sub_id="s")
        async with answering(peer):
            await stream.open()
        nursery.start_soon(take)
        nursery.start_soon(call_for_each)
        nursery.start_soon(answer_behind_messages, peer)
        await peer.publish("s", *[BODY] * 20)
        await handled.reaches(5)
        nursery.cancel_scope.cancel()


@in_virtual_time
async def test_a_listener_gets_acks_that_come_behind_what_listeners_have_yet_to_hear(
    server: Server,
) -> None:
    client, heard = client_of(server), Count()

    async def listen(_: Event) -> None:
        await client.flush()
        heard.add()

    client.add_event_listener(listen, MessagesReceived)
    client._core.reporter.calls.cap_bytes = CAP
    async with entered(client, partial(live, server)) as peer, trio.open_nursery() as nursery:
        async with answering(peer):
            await client.subscribe("orders", sub_id="s", handler=lambda _: None)
        nursery.start_soon(answer_behind_messages, peer)
        await peer.publish("s", *[BODY] * 20)
        await heard.reaches(5)
        nursery.cancel_scope.cancel()


@in_virtual_time
async def test_nothing_is_read_for_a_full_queue_while_nobody_waits_and_all_once_somebody_does(
    server: Server,
) -> None:
    client = client_of(server)
    async with entered(client, partial(live, server)) as peer, trio.open_nursery() as nursery:
        async with answering(peer):
            await client.subscribe("orders", sub_id="s", handler=sleep_forever)
        for _ in range(10):
            await peer.publish("s", *[BODY] * 5)
            await wait_all_tasks_blocked()
        assert queued_bytes(client) < 4 * CAP
        nursery.start_soon(client.flush)
        await peer.ack(await peer.expect("flush"))
        await wait_all_tasks_blocked()
        assert queued_bytes(client) > 40_000
        nursery.cancel_scope.cancel()


@in_virtual_time
async def test_a_client_is_degraded_until_it_reads_again_for_a_queue_that_was_full(
    server: Server,
) -> None:
    client, allowed = client_of(server), trio.Semaphore(0)

    async def handle(_: Message) -> None:
        await allowed.acquire()

    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            await client.subscribe("orders", sub_id="s", handler=handle)
        for _ in range(5):
            await peer.publish("s", BODY)
            await wait_all_tasks_blocked()
        found = list[tuple[int, bool]]()
        for _ in range(5):
            found.append((queued_bytes(client), client.health().is_degraded))
            allowed.release()
            await wait_all_tasks_blocked()
        allowed.release()
    assert found[0][0] > CAP
    assert any(CAP // 2 < held <= CAP for held, _ in found)
    assert [is_degraded for _, is_degraded in found] == [held > CAP // 2 for held, _ in found]


def queued_bytes(client: HAClient) -> int:
    (found,) = [each for each in client.metrics.subscriptions if each.sub_id == "s"]
    return found.queued_bytes


async def sleep_forever(_: Message) -> None:
    await trio.sleep_forever()


@pytest.fixture
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client reads little ahead."""
    monkeypatch.setattr(back_pressure, "IN_FLIGHT_BYTES", 20_000)


@in_virtual_time
@pytest.mark.usefixtures("low_limit")
@pytest.mark.parametrize("call", CALLS)
async def test_a_wait_that_would_read_too_far_ahead_ends_and_names_the_full_queue(
    server: Server, call: str
) -> None:
    client, refused = client_of(server), list[SubscriptionFull]()
    handled = Count()

    async def handle(_: Message) -> None:
        if handled.value < 1:
            with pytest.raises(SubscriptionFull) as caught:
                await CALLS[call](client)
            refused.append(caught.value)
        handled.add()

    async with entered(client, partial(live, server)) as peer, trio.open_nursery() as nursery:
        async with answering(peer):
            await client.subscribe("orders", sub_id="s", handler=handle)
        nursery.start_soon(answer_behind_messages, peer, 100)
        await peer.publish("s", BODY)
        await handled.reaches(101)
        await client.flush()
        nursery.cancel_scope.cancel()
    (error,) = refused
    assert isinstance(error, TimedOut)
    assert (error.sub_id, error.topic) == ("s", "orders")
    text = str(error)
    assert "the ack comes after what the client reads ahead: the queue of subscription 's'" in text
    assert text.endswith("or raise max_queued_bytes")


@in_virtual_time
@pytest.mark.usefixtures("low_limit")
@pytest.mark.parametrize("kind", ["stream", "handler"])
async def test_a_query_whose_records_come_too_far_behind_ends_alone_and_names_the_full_queue(
    server: Server, kind: str
) -> None:
    client, reasons, handled = client_of(server), list[HAClientError | None](), Count()

    async def handle(_: Message) -> None:
        if not reasons and kind == "stream":
            async with await client.execute(QUERY) as records:
                with pytest.raises(SubscriptionFull) as caught:
                    await anext(records)
            reasons.append(caught.value)
        elif not reasons:
            await client.execute_async(QUERY, lambda _: None)
            reasons.append(None)
            await trio.sleep(10)
        handled.add()

    async with entered(client, partial(live, server)) as peer, trio.open_nursery() as nursery:
        async with answering(peer):
            await client.subscribe("orders", sub_id="s", handler=handle)
        await peer.publish("s", BODY)
        await peer.ack(await peer.expect("sow"))
        for _ in range(10):
            await peer.publish("s", *[BODY] * 10)
            await wait_all_tasks_blocked()
        assert (await peer.expect("unsubscribe")).sub_id == "q"
        nursery.start_soon(answer_behind_messages, peer)
        await handled.reaches(101)
        await client.flush()
        nursery.cancel_scope.cancel()
    assert [getattr(each, "sub_id", "s") for each in reasons] == ["s"]


@in_virtual_time
@pytest.mark.usefixtures("low_limit")
async def test_a_lasting_query_with_a_handler_does_not_end_for_another_ones_slow_handler(
    server: Server,
) -> None:
    client, records, allowed = client_of(server), Count(), trio.Event()

    async def handle(_: Message) -> None:
        await allowed.wait()

    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            await client.subscribe("orders", sub_id="s", handler=handle)
            await client.sow_and_subscribe("customers", sub_id="q", handler=lambda _: records.add())
        for _ in range(10):
            await peer.publish("s", *[BODY] * 10)
            await wait_all_tasks_blocked()
        await trio.sleep(60)
        assert {each.sub_id for each in client.metrics.subscriptions} == {"s", "q"}
        allowed.set()
        await peer.publish("q", b"1")
        await records.reaches(1)


@in_virtual_time
@pytest.mark.usefixtures("low_limit")
@pytest.mark.parametrize("kind", ["handler", "stream"])
async def test_others_wait_for_as_long_as_a_slow_consumer_takes_its_messages(
    server: Server, kind: str
) -> None:
    client, handled = client_of(server), Count()

    async def handle(_: Message) -> None:
        await trio.sleep(0.9)
        handled.add()

    async def take(stream: MessageStream) -> None:
        async for message in stream:
            await handle(message)

    async with entered(client, partial(live, server)) as peer, trio.open_nursery() as nursery:
        async with answering(peer):
            if kind == "handler":
                await client.subscribe("orders", sub_id="s", handler=handle)
            else:
                nursery.start_soon(take, await client.stream("orders", sub_id="s").open())
        nursery.start_soon(answer_behind_messages, peer, 100)
        await client.publish("copies", BODY)
        await client.publish_flush(timeout=LIMIT_S)
        assert handled.value > 20
        nursery.cancel_scope.cancel()


# -- threads and asyncio ----------------------------------------------------------------


@pytest.fixture
def broker() -> Generator[BrokerThread]:
    with broker_thread() as running:
        yield running


@pytest.fixture
def flood(broker: BrokerThread) -> Generator[Callable[[int], None]]:
    """Publishes so many messages, more than a client with small queues has room for."""
    with blocking.HAClient.memory_backed("pub", servers=[broker.uri]) as publisher:

        def publish(count: int) -> None:
            publisher.publish_many("orders", [BODY] * count)
            publisher.publish_flush(timeout=LIMIT_S)

        yield publish


@pytest.mark.row("CC35")
def test_threads_get_acks_behind_their_messages_in_streams_that_they_share_and_in_handlers(
    broker: BrokerThread, flood: Callable[[int], None]
) -> None:
    done = threading.Semaphore(0)

    def copy(messages: blocking.MessageStream) -> None:
        for message in messages:
            client.publish("copies", message.data)
            client.publish_flush(timeout=LIMIT_S)
            done.release()

    def handle(message: Message) -> None:
        client.publish("copies", message.data)
        client.publish_flush(timeout=LIMIT_S)
        done.release()

    client = blocking.HAClient.memory_backed(
        "sub", servers=[broker.uri], max_queued_bytes=CAP, max_unpersisted_bytes=CAP
    )
    with client, client.stream("orders") as messages:
        client.subscribe("orders", handler=handle)
        threads = [threading.Thread(target=copy, args=(messages,)) for _ in range(2)]
        flood(100)
        for each in threads:
            each.start()
        assert all(done.acquire(timeout=LIMIT_S) for _ in range(200))
        messages.close()
        for each in threads:
            each.join(LIMIT_S)


@pytest.mark.row("CC35")
def test_asyncio_tasks_get_acks_behind_their_messages_in_a_stream_that_they_share(
    broker: BrokerThread, flood: Callable[[int], None]
) -> None:
    copied = 0

    async def main() -> None:
        async def copy() -> None:
            nonlocal copied
            async for message in messages:
                await client.publish("copies", message.data)
                await client.publish_flush(timeout=LIMIT_S)
                copied += 1
                if copied == 100:
                    await messages.aclose()

        client = aio.HAClient.memory_backed(
            "sub", servers=[broker.uri], max_queued_bytes=CAP, max_unpersisted_bytes=CAP
        )
        async with client, client.stream("orders") as messages:
            await asyncio.to_thread(flood, 100)
            async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
                for _ in range(2):
                    tasks.create_task(copy())

    asyncio.run(main())
    assert copied >= 100


async def test_results_of_workers_are_published_and_flushed_behind_the_messages_of_their_stream(
    broker: BrokerThread,
) -> None:
    finished = 0

    async def finish(_: Message, result: bytes) -> None:
        nonlocal finished
        await client.publish("results", result)
        await client.publish_flush(timeout=LIMIT_S)
        finished += 1
        if finished == 200:
            await stream.aclose()

    async def publish() -> None:
        await source.publish_many("orders", [BODY] * 200)

    client = HAClient.memory_backed(
        "sub", servers=[broker.uri], max_queued_bytes=CAP, max_unpersisted_bytes=CAP
    )
    with trio.fail_after(LIMIT_S):
        async with (
            HAClient.memory_backed("pub", servers=[broker.uri]) as source,
            client,
            trio.open_nursery() as nursery,
        ):
            stream: MessageStream = client.stream("orders")
            await stream.open()
            nursery.start_soon(publish)
            await run_workers(stream, lambda message: message.data, ThreadPool(2), on_result=finish)
    assert finished >= 200

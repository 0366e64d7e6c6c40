"""The public types of `haclient.blocking` and `haclient.aio`, checked by mypy and pyright.

Nothing in here is ever run. A change that makes a user's correct program fail its type check fails
here first.
"""

from __future__ import annotations

import asyncio  # noqa: TID251  # for its users
from collections.abc import Hashable
from typing import assert_type

from haclient import (
    EPOCH,
    Command,
    ConnectionState,
    EventListener,
    HAClient,
    LiveRecords,
    Message,
    RecordChange,
    Topic,
    TypedStream,
    aio,
    blocking,
)
from haclient.contrib.fastapi import Lifespan
from haclient.contrib.wsgi import ProcessClient
from haclient.errors import HAClientError
from haclient.stores import FilePublishStore, MemoryBookmarkStore

SERVERS = ["tcp://127.0.0.1:9007/amps/json"]


def handle(message: Message) -> None:
    message.discard()


async def handle_later(message: Message) -> None:
    message.discard()


def blocks() -> None:
    with blocking.Client("orders-7", heartbeat=3.0) as plain:
        assert_type(plain, blocking.Client)
        plain.connect(SERVERS[0], timeout=10.0)
    with blocking.HAClient.memory_backed("orders-7", servers=SERVERS, on_event=print) as client:
        assert_type(client, blocking.HAClient)
        assert_type(client.publish("orders", b"{}"), int)
        assert_type(client.publish_many("orders", ["a", b"b"]), int)
        assert_type(client.publish_persisted("orders", b"{}"), int)
        assert_type(client.subscribe("orders", handler=handle), str)
        assert_type(client.state, ConnectionState)
        assert_type(client.state.is_logged_on, bool)
        assert_type(client.health().is_ready, bool)
        with client.bookmark_stream("orders", sub_id="s", bookmark=EPOCH) as messages:
            assert_type(messages, blocking.MessageStream)
            for message in messages:
                assert_type(message, Message)
            for batch in messages.batches():
                assert_type(batch, list[Message])
            assert_type(messages.end_reason, HAClientError | None)
        assert_type(client.execute(Command("sow", topic="orders")), blocking.MessageStream)
        client.publish("orders", 7)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # no body
        client.publish()  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]  # no topic
    opened = blocking.HAClient("a", servers=SERVERS, publish_store=FilePublishStore("a")).open()
    assert_type(opened, blocking.HAClient)
    opened.close()
    blocking.HAClient("a", servers=SERVERS, exit_timout=1.0)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]  # misspelt


async def awaits() -> None:
    listener: EventListener = print
    async with aio.Client("orders-7", heartbeat=3.0) as plain:
        assert_type(plain, aio.Client)
        await plain.connect(SERVERS[0], timeout=10.0)
    made = aio.HAClient.memory_backed("orders-7", servers=SERVERS, on_event=listener)
    async with made as client:
        assert_type(client, aio.HAClient)
        assert_type(await client.publish("orders", b"{}"), int)
        assert_type(await client.publish_many("orders", ["a", b"b"]), int)
        assert_type(await client.publish_persisted("orders", b"{}"), int)
        assert_type(client.publish_nowait("orders", b"{}"), int)
        assert_type(await client.subscribe("orders", handler=handle), str)
        assert_type(await client.subscribe("orders", handler=handle_later), str)
        assert_type(await client.queue_subscribe("jobs", handler=handle_later, workers=2), str)
        assert_type(client.state, ConnectionState)
        assert_type(client.state.is_logged_on, bool)
        client.add_event_listener(listener)
        task = asyncio.create_task(client.flush(timeout=1))
        await asyncio.wait_for(task, 2)
        assert_type(await asyncio.wait_for(client.publish("orders", b""), 1), int)
        assert_type(await client.execute(Command("sow", topic="orders")), aio.MessageStream)
        await client.publish("orders", 7)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # no body
        client.name = "other"  # type: ignore[assignment] # pyright: ignore[reportAttributeAccessIssue]  # read-only


async def iterates(client: aio.HAClient) -> None:
    async with client.stream("orders", filter="/px > 10") as messages:
        assert_type(messages, aio.MessageStream)
        async for message in messages:
            assert_type(message, Message)
        async for batch in messages.batches():
            assert_type(batch, list[Message])
        assert_type(messages.gaps, int)
        async for value, received in TypedStream(Topic("orders", int), messages):
            assert_type(value, int)
            assert_type(received, Message)
    opened = await client.sow("orders", order_by="/px DESC", top_n=10).open()
    assert_type([record.data async for record in opened], list[bytes])
    await opened.aclose()


async def opens() -> None:
    client = await aio.HAClient("a", servers=SERVERS, bookmark_store=MemoryBookmarkStore()).open()
    assert_type(client, aio.HAClient)
    await client.aclose()


def running() -> None:
    def main() -> str:
        return ""

    async def main_of_asyncio() -> str:
        return ""

    assert_type(blocking.run(main), str | None)
    assert_type(blocking.run(main, grace=10), str | None)
    assert_type(aio.run(main_of_asyncio), str | None)
    aio.run(main_of_asyncio())  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # called too early


async def web(stream: aio.MessageStream) -> None:
    def make(name: str) -> aio.HAClient:
        return aio.HAClient.memory_backed(name, servers=SERVERS)

    async def on_open(client: aio.HAClient) -> None:
        await client.subscribe("orders", handler=handle)

    amps = Lifespan("api", make, on_open=on_open, open_timeout=1.0)
    assert_type(amps, Lifespan)
    assert_type(await amps.get(), aio.HAClient)
    async for text in amps.events(stream, event=lambda message: message.text):
        assert_type(text, str)

    def make_blocking(name: str) -> blocking.HAClient:
        return blocking.HAClient.memory_backed(name, servers=SERVERS)

    assert_type(ProcessClient("web", make_blocking).get(), blocking.HAClient)
    ProcessClient("web", make)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # of aio


def key_of(record: dict[str, object]) -> object:
    return record["id"]


async def live_records(
    client: HAClient, of_asyncio: aio.HAClient, plain: blocking.HAClient, numbers: Topic[int]
) -> None:
    async with client.records("prices", key=key_of, filter="/px > 1") as prices:
        assert_type(prices, LiveRecords[dict[str, object]])
        assert_type(prices["A"], dict[str, object])
        async for change in prices:
            assert_type(change, RecordChange[dict[str, object]])
            assert_type(change.new, dict[str, object] | None)
    assert_type(client.records(numbers, key=lambda number: number + 1), LiveRecords[int])
    async with of_asyncio.records(numbers, deltas=True) as of_loop:
        assert_type(of_loop, aio.LiveRecords[int])
        assert_type(await anext(of_loop), RecordChange[int])
        assert_type(of_loop.caught_up, bool)
    with plain.records("prices", key=key_of) as of_threads:
        assert_type(of_threads, blocking.LiveRecords[dict[str, object]])
        for each in of_threads.changes():
            assert_type(each, RecordChange[dict[str, object]])
        assert_type(of_threads.snapshot(), dict[Hashable, dict[str, object]])
    plain.records(numbers, key="id")  # type: ignore[call-overload] # pyright: ignore[reportArgumentType, reportCallIssue]  # no function

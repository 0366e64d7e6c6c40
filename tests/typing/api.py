"""The public types, checked by mypy and pyright; nothing in here is ever run.

A change that makes a user's correct program fail its type check fails here first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_type

from haclient import (
    EPOCH,
    MOST_RECENT,
    NOW,
    Bookmark,
    BookmarkRange,
    Client,
    Command,
    ConnectionState,
    DefaultServerChooser,
    HAClient,
    Message,
    MessageStream,
    NvfixCodec,
    Options,
    StateListener,
    Topic,
    TypedStream,
)
from haclient.errors import CommandError, HAClientError, PublishFailed, StoreCorrupt, TimedOut
from haclient.stores import (
    BookmarkStore,
    FilePublishStore,
    LoggedBookmarkStore,
    MemoryBookmarkStore,
    MemoryPublishStore,
    PublishStore,
)


def any_store_of_ours_is_a_store() -> None:
    publish: list[PublishStore] = [MemoryPublishStore(), FilePublishStore("orders.pub")]
    bookmark: list[BookmarkStore] = [MemoryBookmarkStore(), LoggedBookmarkStore("orders.bm")]
    Client("orders-7", publish_store=publish[0], bookmark_store=bookmark[0])


async def connecting() -> None:
    async with Client("orders-7", heartbeat=3.0) as client:
        assert_type(client, Client)
        await client.connect("tcp://127.0.0.1:9007/amps/json", timeout=10.0)
        await client.logon(timeout=10.0)
        assert_type(client.name, str)


async def staying_connected() -> None:
    async def later(state: ConnectionState) -> None:
        assert_type(state, ConnectionState)

    listener: StateListener = later
    servers = ["tcp://127.0.0.1:9007/amps/json"]
    HAClient("orders-7", servers=servers, on_state=print, on_event=print, exit_timeout=None)
    async with HAClient.memory_backed("orders-7", servers=servers, heartbeat=None) as client:
        assert_type(client, HAClient)
        client.add_state_listener(listener)
        client.add_state_listener(print)
        client.remove_state_listener(listener)
        assert_type(client.state, ConnectionState)
        assert_type(client.disconnected, bool)
    chooser = DefaultServerChooser(servers)
    made = HAClient.create_file_backed(
        "orders-7", publish_path="orders.pub", bookmark_path="orders.bm", server_chooser=chooser
    )
    assert_type(made, HAClient)
    assert_type(HAClient.create_memory_backed("orders-7", server_chooser=chooser), HAClient)
    HAClient.memory_backed("orders-7", servers=servers, exit_timout=1.0)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]  # misspelt


async def publishing(client: Client) -> None:
    assert_type(await client.publish("orders", b"{}"), int | None)
    await client.publish("orders", "text", expiration=60, correlation_id="c")
    await client.publish("orders", memoryview(b"{}"))
    await client.publish("orders", bytearray(b"{}"))
    assert_type(await client.publish_batch("orders", [b"a", "b"], first_sequence=1), int)
    assert_type(client.persisted_sequence, int | None)
    assert_type(client.publish_nowait("orders", b"{}"), int | None)
    await client.publish_flush(timeout=10)
    assert_type(client.unpersisted_count, int)


async def handling(client: Client) -> None:
    async def later(message: Message) -> None:
        message.discard()

    def now(message: Message) -> None:
        message.discard()

    assert_type(await client.subscribe("orders", handler=later), str)
    assert_type(await client.subscribe("orders", handler=now, filter="/px > 10"), str)
    sub_id = await client.bookmark_subscribe(
        "orders", sub_id="s1", bookmark=MOST_RECENT, handler=later
    )
    await client.unsubscribe(sub_id)
    await client.unsubscribe([sub_id])
    await client.unsubscribe()


async def streaming(client: Client) -> None:
    async with client.stream("orders", filter="/px > 10") as messages:
        assert_type(messages, MessageStream)
        async for message in messages:
            assert_type(message, Message)
            assert_type(message.data, bytes)
            assert_type(message.text, str)
            assert_type(message.topic, str)
            assert_type(message.bookmark, str)
            assert_type(message.sequence, int | None)
    for bookmark in (EPOCH, NOW, MOST_RECENT, Bookmark(7, 3), BookmarkRange(EPOCH, NOW, "[)")):
        async with client.bookmark_stream("orders", sub_id="s2", bookmark=bookmark) as messages:
            async for batch in messages.batches():
                for message in batch:
                    message.discard()
    async with client.sow("orders", order_by="/px DESC", top_n=10) as records:
        assert_type([record.data async for record in records], list[bytes])


async def commanding(client: Client) -> None:
    command = Command("subscribe", topic="orders").set_filter("/px > 10").set_options(Options())
    assert_type(command, Command)
    assert_type(await client.execute(command), MessageStream)
    assert_type(await client.execute_async(command, print), str)
    stats = await client.sow_delete("orders", filter="/px > 10")
    assert_type(stats.records_deleted, int | None)


@dataclass
class Order:
    """A value of the application."""

    id: int


def handle_order(order: Order, message: Message) -> None:
    message.sub_id = str(order.id)


async def typing_topics(client: Client, message: Message) -> None:
    orders = Topic("orders", Order)
    assert_type(orders, Topic[Order])
    assert_type(orders.decode(message), Order)
    assert_type(orders.encode(Order(1)), bytes)
    assert_type(message.json(Order), Order)
    assert_type(message.json(), object)
    assert_type(Topic("counts", dict[str, int], format="msgpack").decode(message), dict[str, int])
    pairs = Topic("pairs", codec=NvfixCodec()).decode(message)
    assert_type(pairs, list[tuple[str, str]])
    await client.subscribe(orders.name, handler=orders.handler(handle_order))
    async with client.stream(orders.name) as messages:
        async for order, received in TypedStream(orders, messages):
            assert_type(order, Order)
            assert_type(received, Message)


def errors(error: Exception) -> Iterator[str]:
    match error:
        case StoreCorrupt():
            assert_type(error.offset, int)
        case PublishFailed():
            assert_type(error.sequence, int)
            yield error.reason
        case CommandError():
            yield assert_type(error.reason, str)
        case TimedOut():
            as_builtin: TimeoutError = error
            as_ours: HAClientError = error
            yield f"{as_builtin}{as_ours}"
        case _:
            pass

"""The public types, checked by mypy and pyright; nothing in here is ever run.

A change that makes a user's correct program fail its type check fails here first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_type

import haclient
from haclient import (
    EPOCH,
    MOST_RECENT,
    NOW,
    Bookmark,
    BookmarkRange,
    Client,
    ClientMetrics,
    Codec,
    Command,
    CompositeCodec,
    ConnectionState,
    DeadLetter,
    DefaultServerChooser,
    FileSubscriptionManager,
    FixCodec,
    HAClient,
    Health,
    JsonCodec,
    Message,
    MessageStream,
    MsgpackCodec,
    NvfixCodec,
    Options,
    RecoveryExplanation,
    SubscriptionMetrics,
    Topic,
    TypedStream,
)
from haclient.errors import (
    CommandError,
    DecodeError,
    HAClientError,
    PublishFailed,
    StoreCorrupt,
    TimedOut,
)
from haclient.events import ConnectionLost, Event, EventListener, StateChanged
from haclient.live_records import apply_delta
from haclient.observability.stall_detector import StallDetector
from haclient.recovery_points.source import ResumePoint, SourcePosition
from haclient.stores import (
    BookmarkStore,
    FilePublishStore,
    LoggedBookmarkStore,
    MemoryBookmarkStore,
    MemoryPublishStore,
    PublishStore,
)
from haclient.workers import ProcessPool, ThreadPool, run_workers


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
    async def later(event: Event) -> None:
        match event:
            case StateChanged(state=state):
                assert_type(state, ConnectionState)
            case ConnectionLost(error=error):
                assert_type(error, HAClientError)
            case _:
                assert_type(event.uri, str)

    listener: EventListener = later
    servers = ["tcp://127.0.0.1:9007/amps/json"]
    HAClient("orders-7", servers=servers, on_event=print, exit_timeout=None)
    async with HAClient.memory_backed("orders-7", servers=servers, heartbeat=None) as client:
        assert_type(client, HAClient)
        client.add_event_listener(listener, StateChanged, ConnectionLost)
        client.add_event_listener(print)
        client.remove_event_listener(listener)
        assert_type(client.state, ConnectionState)
        assert_type(client.state.is_logged_on, bool)
    chooser = DefaultServerChooser(servers)
    made = HAClient.file_backed(
        "orders-7", publish_path="orders.pub", bookmark_path="orders.bm", server_chooser=chooser
    )
    assert_type(made, HAClient)
    HAClient.memory_backed("orders-7", servers=servers, exit_timout=1.0)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]  # misspelt


async def publishing(client: Client) -> None:
    assert_type(await client.publish("orders", b"{}"), int)
    await client.publish("orders", "text", expiration=60, correlation_id="c")
    await client.publish("orders", memoryview(b"{}"))
    await client.publish("orders", bytearray(b"{}"))
    assert_type(await client.publish_many("orders", [b"a", "b"], first_sequence=1), int)
    assert_type(client.persisted_sequence, int | None)
    assert_type(client.publish_nowait("orders", b"{}"), int)
    await client.publish_flush(timeout=10)
    assert_type(client.unpersisted_count, int)


async def publishing_in_other_ways(client: Client) -> None:
    assert_type(await client.publish_many("orders", ["a", b"b", bytearray(b"c")]), int)
    assert_type(await client.publish_persisted("orders", b"{}", timeout=10), int)
    assert_type(await client.publish_json("orders", {"id": 1}, expiration=60), int)
    assert_type(await client.publish("orders", b"{}", sow_key="1", delta=True), int)
    await client.publish_persisted("orders", b"{}", expiration=60)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]  # it has none
    await client.wait_persisted(1, timeout=None)
    await client.publish_flush(timeout=10)
    await client.flush(ack="persisted")
    assert_type(client.metrics.oldest_unpersisted_age, float)


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


async def streaming_in_other_ways(client: Client) -> None:
    async with client.stream("orders", resumes=True).conflate() as messages:
        assert_type(messages, MessageStream)
        async for message in messages.with_timeout(1.0):
            assert_type(message, Message | None)
        async for batch in messages.batches(100, 0.5):
            assert_type(batch, list[Message])
        assert_type(messages.caught_up, bool)
        assert_type(messages.gaps, int)
        assert_type(messages.end_reason, HAClientError | None)
        await messages.wait_caught_up()
    client.stream("orders").conflate(lambda message: message.topic)
    client.stream("orders").conflate(key=lambda message: [message.topic])  # type: ignore[arg-type, return-value] # pyright: ignore[reportArgumentType]  # a key is hashable


async def querying_and_following(client: Client) -> None:
    def handle(message: Message) -> None:
        message.discard()

    assert_type(await client.subscribe("orders", delta=True, handler=handle), str)
    assert_type(await client.sow_and_subscribe("orders", handler=handle, order_by="/px"), str)
    assert_type(await client.sow_and_subscribe("orders", delta=True, handler=handle), str)
    streams = [
        client.stream("orders", delta=True, resumes=True),
        client.sow_and_stream("orders", order_by="/px", batch_size=100),
        client.sow_and_stream("orders", delta=True, filter="/px > 10"),
    ]
    assert_type(streams, list[MessageStream])
    assert_type(apply_delta({"id": 1}, {"px": 2}), dict[str, object])


async def changing_subscriptions(client: Client) -> None:
    await client.pause("s1")
    await client.pause(["s1", "s2"], timeout=None)
    await client.resume(["s1", "s2"])
    await client.replace("s1", topic="orders", filter="/px > 10", options=Options())
    await client.replace("s1", "orders")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]  # by name only


async def consuming_queues(client: Client) -> None:
    async def later(message: Message) -> None:
        message.extend_lease(60)

    def decide(message: Message, error: Exception) -> None:
        message.ack(cancel=isinstance(error, ValueError))

    assert_type(await client.queue_subscribe("jobs", handler=later, workers=4), str)
    await client.queue_subscribe("jobs", handler=later, on_handler_error="expire", max_backlog=5)
    await client.queue_subscribe("jobs", handler=later, on_handler_error=DeadLetter("dead"))
    await client.queue_subscribe("jobs", handler=later, on_handler_error=decide, auto_ack=False)
    await client.queue_subscribe("jobs", handler=later, on_handler_error="drop")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # none of its words
    await client.queue_subscribe("jobs", handler=later, worker=4)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]  # misspelt
    async with client.queue_stream("jobs", max_backlog=10, auto_ack=True) as messages:
        async for message in messages:
            message.ack(expire=True)
    await client.ack("jobs", ["1|2|", "1|3|"], cancel=True)
    assert_type(await client.ack_matching("jobs", "/id = 1"), int)
    await client.flush_acks(timeout=10)
    assert_type(client.metrics.dropped_acks, int)


async def moving_and_restoring(client: HAClient) -> None:
    async def later(message: Message) -> None:
        message.discard()

    await client.move_to("tcp://127.0.0.1:9008/amps/json", timeout=30)
    restored = await client.restore_subscriptions(
        {"s1": later, "jobs-1": print},
        auto_discard=["s1"],
        queues={"jobs-1": {"workers": 2, "on_handler_error": "cancel"}},
        others="drop",
    )
    assert_type(restored, list[str])
    await client.restore_subscriptions({}, queues={"jobs-1": {"worker": 2}})  # type: ignore[typeddict-unknown-key] # pyright: ignore[reportArgumentType]  # misspelt
    await client.restore_subscriptions({}, others="forget")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # none of its words
    manager = FileSubscriptionManager("orders.subscriptions")
    HAClient("orders-7", servers=["tcp://a:9007/amps"], subscription_manager=manager)


async def inspecting(client: Client) -> None:
    assert_type(client.metrics, ClientMetrics)
    assert_type(client.metrics.subscriptions, tuple[SubscriptionMetrics, ...])
    assert_type([each.message_lag for each in client.metrics.subscriptions], list[int | None])
    assert_type(client.health(), Health)
    assert_type(client.health().is_ready, bool)
    assert_type(client.report(), str)
    assert_type(client.explain_recovery("s1"), RecoveryExplanation)
    assert_type(client.explain_recovery("s1").as_dict(), dict[str, object])
    assert_type(client.connection_info["server_version"], str)


def word_count(message: Message) -> int:
    return len(message.data.split())


async def working(messages: MessageStream) -> None:
    def on_result(message: Message, count: int) -> None:
        message.sub_id = str(count)

    def on_wrong_result(message: Message, count: list[str]) -> None: ...

    await run_workers(messages, word_count, ProcessPool(4), on_result=on_result)
    await run_workers(
        messages, word_count, ThreadPool(4), key=word_count, on_handler_error="continue"
    )
    await run_workers(messages, word_count, ThreadPool(4), on_result=on_wrong_result)  # type: ignore[misc] # pyright: ignore[reportArgumentType]  # it gets a number
    with StallDetector(limit=5.0) as detector:
        assert_type(detector, StallDetector)


def running() -> None:
    async def main() -> str:
        return ""

    assert_type(haclient.run(main), str | None)
    assert_type(haclient.run(main, grace=10), str | None)
    haclient.run(main())  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # called too early


def publishing_a_source() -> None:
    position = SourcePosition(FilePublishStore("orders.pub"), "lines")
    assert_type(position.resume(), ResumePoint)
    assert_type(position.resume().skip, int)
    position.note("line 7")
    SourcePosition(MemoryPublishStore(), "lines")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # it keeps no notes


async def commanding(client: Client) -> None:
    command = Command("subscribe", topic="orders", filter="/px > 10", options=Options())
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
    assert_type(pairs, list[tuple[str, str | bytes]])
    await client.subscribe(orders.name, handler=orders.handler(handle_order))
    async with client.stream(orders.name) as messages:
        async for order, received in TypedStream(orders, messages):
            assert_type(order, Order)
            assert_type(received, Message)


class Cents:
    """A codec of the application, without a base class."""

    name = "cents"

    def encode(self, value: int) -> bytes:
        return str(value).encode()

    def decode(self, data: bytes) -> int:
        return int(data)


async def choosing_codecs(client: Client, message: Message) -> None:
    async def handle(value: int, received: Message) -> None:
        received.sub_id = str(value)

    def on_decode_error(undecoded: Message, error: DecodeError) -> None:
        undecoded.sub_id = error.codec

    codec: Codec[int] = Cents()
    cents = Topic("cents", codec=codec)
    assert_type(Topic("cents", codec=Cents()), Topic[int])
    assert_type(cents, Topic[int])
    await client.subscribe("cents", handler=cents.handler(handle, on_decode_error=on_decode_error))
    cents.handler(handle_order)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # of other values
    cents.encode("7")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # a text
    assert_type(Topic("o", codec=JsonCodec(Order)).decode(message), Order)
    assert_type(Topic("o", codec=MsgpackCodec(Order)).decode(message), Order)
    assert_type(Topic("f", codec=FixCodec()).decode(message), list[tuple[int, str | bytes]])
    assert_type(Topic("c", codec=CompositeCodec()).decode(message), list[bytes])
    Topic("o", Order, codec=JsonCodec(Order))  # type: ignore[call-overload] # pyright: ignore[reportCallIssue]  # one of the two
    Topic("o", Order, format="xml")  # type: ignore[call-overload] # pyright: ignore[reportArgumentType]  # not built in


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

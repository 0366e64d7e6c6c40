"""Consumers of a queue and the reference broker: what each does with the other's messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import BaseClient, Client, HAClient
from haclient.errors import DisconnectedError, InvalidOptions, InvalidTopic
from haclient.options import HAOptions
from haclient.protocol.messages import Message
from haclient.servers.delay import FixedDelayStrategy
from haclient.session.dead_letter import DeadLetter
from haclient_fake_server.config import BrokerConfig, QueueTopic
from haclient_stores.bookmark import EPOCH
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.instances import Instance, instances

pytestmark = in_virtual_time

WORK = QueueTopic(name="work", topics=("orders",), lease_s=30.0, max_per_subscription_backlog=10)
CONFIG = BrokerConfig(ack_interval_s=0.05, queues=(WORK,))


def with_queue(**options: object) -> BrokerConfig:
    return replace(CONFIG, queues=(replace(WORK, **options),))  # type: ignore[arg-type]  # as given


def ha(name: str, *brokers: Instance, **options: object) -> HAClient:
    given: HAOptions = {
        "servers": [broker.uri for broker in brokers],
        "delay_strategy": FixedDelayStrategy(0.1),
    }
    return HAClient(name, **{**given, **options})  # type: ignore[arg-type]  # as each test gives them


@asynccontextmanager
async def publisher(broker: Instance) -> AsyncGenerator[BaseClient]:
    async with Client("publisher") as client:
        await client.connect(broker.uri)
        await client.logon()
        yield client


async def publish(client: BaseClient, *numbers: int, topic: str = "orders") -> None:
    for number in numbers:
        await client.publish(topic, b'{"id": %d}' % number)
    await client.flush()


def number_of(message: Message) -> int:
    body = message.json()
    assert isinstance(body, dict)
    return int(body["id"])


async def browsed(client: BaseClient) -> list[int]:
    """What is available in the queue."""
    async with client.sow("work") as found:
        return [number_of(message) async for message in found]


@pytest.mark.row("QC1", "QC3", "QC5", "QC6", "QC10", "QC18")
async def test_a_queue_is_consumed_to_its_end() -> None:
    seen: list[int] = []
    async with instances("east", config=CONFIG) as (broker,), publisher(broker) as client:
        async with ha("consumer", broker) as consumer:
            await consumer.queue_subscribe(
                "work", handler=lambda m: seen.append(number_of(m)), max_backlog=50
            )
            await publish(client, *range(100))
            await trio.sleep(1)
            assert seen == list(range(100))
            await consumer.flush_acks()
        assert await browsed(client) == []


@pytest.mark.row("QC17", "QC18")
async def test_a_queue_is_published_to_and_browsed_by_its_name() -> None:
    async with instances("east", config=CONFIG) as (broker,), publisher(broker) as client:
        await publish(client, 1, 2, 3, topic="work")
        assert await browsed(client) == [1, 2, 3]
        async with client.queue_stream("work", max_backlog=2) as leased:
            await anext(leased)
            assert await browsed(client) == [3], "what is leased is not available"
        await client.flush()
        assert await browsed(client) == [1, 2, 3], "leases end with their subscription"
        with pytest.raises(InvalidTopic):
            await client.sow_and_subscribe("work", handler=print)


@pytest.mark.row("QC7", "QC11")
async def test_a_failed_message_comes_again_and_is_expired_in_the_end() -> None:
    seen: list[int] = []

    def handler(message: Message) -> None:
        seen.append(number_of(message))
        if number_of(message) == 2:
            raise ValueError

    async with instances("east", config=CONFIG) as (broker,), publisher(broker) as client:
        async with ha("consumer", broker) as consumer:
            await consumer.queue_subscribe("work", handler=handler, expire_after=3)
            await publish(client, 1, 2, 3)
            await trio.sleep(10)
            assert Counter(seen) == {1: 1, 2: 3, 3: 1}
        assert await browsed(client) == []


@pytest.mark.row("QC11")
@pytest.mark.parametrize("with_store", [True, False])
async def test_a_dead_letter_is_in_its_topic_with_its_context(*, with_store: bool) -> None:
    async with instances("east", config=CONFIG) as (broker,), publisher(broker) as client:
        store = MemoryPublishStore() if with_store else None
        async with ha("consumer", broker, publish_store=store) as consumer:

            def handler(message: Message) -> None:
                raise ValueError(message.text)

            await consumer.queue_subscribe(
                "work", handler=handler, on_handler_error=DeadLetter("dead")
            )
            await publish(client, 7)
            await trio.sleep(10)
        assert await browsed(client) == []
        async with client.bookmark_stream("dead", sub_id="d", bookmark=EPOCH) as letters:
            letter = await anext(letters)
        context = DeadLetter.context(letter)
        assert (number_of(letter), context["queue"], context["error"]) == (7, "work", "ValueError")


@pytest.mark.row("QC12", "QC13")
async def test_leases_end_and_are_extended() -> None:
    async with instances("east", config=CONFIG) as (broker,), publisher(broker) as client:
        async with client.queue_stream("work") as stream:
            await publish(client, 1, 2)
            first, second = await anext(stream), await anext(stream)
            assert first.lease_deadline == pytest.approx(trio.current_time() + 30, abs=1)
            await trio.sleep(20)
            first.extend_lease(30)
            await trio.sleep(15)
            again = await anext(stream)
            assert number_of(again) == 2, "its lease has ended"
            second.ack(cancel=True)  # of the lease that has ended: it must not end the next one
            first.ack()
            await client.flush_acks()
            with trio.move_on_after(5):
                pytest.fail(f"message {number_of(await anext(stream))} came for the third time")
            again.ack()
        await trio.sleep(60)
        assert await browsed(client) == []


@pytest.mark.row("QC12", "QC13")
async def test_a_long_handler_keeps_its_message() -> None:
    seen: list[int] = []

    async def handler(message: Message) -> None:
        seen.append(number_of(message))
        await trio.sleep(300)

    async with instances("east", config=CONFIG) as (broker,), publisher(broker) as client:
        async with ha("consumer", broker) as consumer:
            await consumer.queue_subscribe(
                "work", handler=handler, extend_lease=20, cancel_at_lease_end=True
            )
            await publish(client, 1)
            await trio.sleep(310)
            assert seen == [1]
        assert await browsed(client) == []


@pytest.mark.row("QC8")
async def test_messages_are_acknowledged_by_filter_and_by_bookmark() -> None:
    async with instances("east", config=CONFIG) as (broker,), publisher(broker) as client:
        await publish(client, *range(10))
        assert await client.ack_matching("work", "/id > 6") == 3
        async with client.sow("work", filter="/id < 2") as found:
            await client.ack("work", [message.bookmark async for message in found])
        assert await browsed(client) == [2, 3, 4, 5, 6]


@pytest.mark.row("QC9")
async def test_an_at_most_once_queue_waits_for_acknowledgements_too() -> None:
    config = with_queue(semantics="at-most-once", lease_s=None, max_per_subscription_backlog=2)
    async with instances("east", config=config) as (broker,), publisher(broker) as client:
        await publish(client, 1, 2, 3)
        async with client.queue_stream("work") as stream:
            first, second = await anext(stream), await anext(stream)
            assert (first.lease_deadline, await browsed(client)) == (None, [3])
            first.ack()
            second.ack(cancel=True)
            assert number_of(await anext(stream)) == 3
        await client.flush()
        assert await browsed(client) == []


@pytest.mark.row("QC16")
async def test_a_bookmark_subscription_to_a_queue_is_a_replay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with instances("east", config=CONFIG) as (broker,), publisher(broker) as client:
        async with client.queue_stream("work"):
            assert "replays" not in caplog.text
        await publish(client, 1, 2)
        async with client.bookmark_stream("work", sub_id="b", bookmark=EPOCH) as stream:
            for number in (1, 2):
                message = await anext(stream)
                assert (number_of(message), message.topic) == (number, "orders")
                message.ack()
        assert await browsed(client) == [1, 2]
    assert "replays the log and consumes no queue" in caplog.text


@pytest.mark.row("QC16")
@pytest.mark.parametrize(
    ("topic", "why"),
    [
        ("work", "with a bookmark a subscription to a queue replays its topic and has no backlog"),
        ("orders", "'orders' is no queue"),
    ],
)
async def test_the_broker_logs_why_a_replay_with_a_backlog_is_refused(
    caplog: pytest.LogCaptureFixture, topic: str, why: str
) -> None:
    async with instances("east", config=CONFIG) as (broker,), publisher(broker) as client:
        stream = client.bookmark_stream(topic, sub_id="b", bookmark=EPOCH, options="max_backlog=5")
        with pytest.raises(InvalidOptions):
            await stream.open()
    assert f"refused: invalid options: max_backlog: {why}" in caplog.text
    assert f"subscription b on {topic} has a bookmark" in caplog.text


@pytest.mark.row("QC16")
async def test_a_bookmark_store_leaves_queues_alone() -> None:
    store = MemoryBookmarkStore()
    seen: list[int] = []
    async with instances("east", config=CONFIG) as (broker,), publisher(broker) as client:
        async with ha("consumer", broker, bookmark_store=store) as consumer:
            await consumer.queue_subscribe("work", handler=lambda m: seen.append(number_of(m)))
            await publish(client, 1, 2)
            await trio.sleep(1)
            await broker.cut()
            await trio.sleep(1)
            async with publisher(broker) as other:
                await publish(other, 3)
            await trio.sleep(1)
        assert seen == [1, 2, 3]


@pytest.mark.row("QC14")
async def test_a_cut_link_loses_no_message() -> None:
    """Many cuts, at moments that differ."""
    done: Counter[int] = Counter()

    async def handler(message: Message) -> None:
        await trio.sleep(0.01)
        done[number_of(message)] += 1

    async with (
        instances("east", config=CONFIG) as (broker,),
        ha("publisher", broker, publish_store=MemoryPublishStore()) as client,
        ha("consumer", broker) as consumer,
    ):
        await consumer.queue_subscribe("work", handler=handler, workers=3)
        for number in range(200):
            await client.publish("orders", b'{"id": %d}' % number)
            await trio.sleep(0.007)
            if number % 20 == 19:
                await broker.cut()
                await trio.sleep(0.3)
        await trio.sleep(60)
        assert set(done) == set(range(200))
        await client.flush()
        assert await browsed(client) == []
        assert consumer.metrics.dropped_acks == 0
        assert sum(done.values()) <= 200 + 3 * 10, "only what was at work comes twice"


@pytest.mark.row("QC14", "QC19")
async def test_a_broker_that_is_killed_loses_no_message(tmp_path: Path) -> None:
    config = replace(CONFIG, data_dir=tmp_path)
    done: Counter[int] = Counter()
    at_work: set[int] = set()

    async def handler(message: Message) -> None:
        number = number_of(message)
        assert number % 5 not in at_work
        at_work.add(number % 5)
        await trio.sleep(0.01)
        at_work.remove(number % 5)
        done[number] += 1

    async with (
        instances("east", config=config) as (broker,),
        ha("publisher", broker, publish_store=MemoryPublishStore()) as client,
        ha("consumer", broker) as consumer,
    ):
        await consumer.queue_subscribe(
            "work", handler=handler, workers=4, key=lambda m: number_of(m) % 5
        )
        for number in range(100):
            await client.publish("orders", b'{"id": %d}' % number)
            await trio.sleep(0.01)
            if number % 25 == 24:
                await broker.stop()
                await trio.sleep(0.5)
                await broker.start()
        await trio.sleep(60)
        assert set(done) == set(range(100))
        await client.flush()
        await consumer.flush_acks()
        assert await browsed(client) == []


@pytest.mark.row("QC14")
async def test_consumers_continue_on_a_replica() -> None:
    done: Counter[int] = Counter()
    async with (
        instances("east", "west", config=CONFIG, replicate=True) as (east, west),
        ha("publisher", east, west, publish_store=MemoryPublishStore()) as client,
        ha("consumer", east, west) as consumer,
    ):
        stream_id = await consumer.queue_subscribe(
            "work", handler=lambda m: done.update([number_of(m)])
        )
        await publish(client, *range(20))
        await trio.sleep(1)
        assert set(done) == set(range(20))
        await east.stop()
        await publish(client, *range(20, 40))
        await trio.sleep(60)
        assert set(done) == set(range(40))
        await consumer.flush_acks()
        await consumer.unsubscribe(stream_id)
        await wait_all_tasks_blocked()
        assert await browsed(client) == []


@pytest.mark.parametrize("is_late", [False, True])
async def test_flush_acks_reports_what_waits_for_a_subscription(*, is_late: bool) -> None:
    """A `Client` sends the acknowledgements of a lost connection once it consumes a queue again."""
    async with instances("east", config=CONFIG) as (east,), Client("consumer") as client:
        async with publisher(east) as producer:
            await publish(producer, 1)
        await client.connect(east.uri)
        await client.logon()
        async with client.queue_stream("work", max_backlog=5) as messages:
            message = await anext(messages)
            if not is_late:
                message.ack()
            await east.cut()
            await trio.sleep(0.1)
            message.ack()
        await client.connect(east.uri)
        await client.logon()
        with pytest.raises(DisconnectedError, match=r"1 acknowledgement.* subscribe"):
            await client.flush_acks()
        async with client.queue_stream("work", max_backlog=5):
            await client.flush_acks()
        assert client.metrics.unacknowledged == 0
        async with client.sow("work") as left:
            assert [each async for each in left] == []

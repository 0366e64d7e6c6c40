"""The whole surface of an HAClient: its methods, with any stores, at its limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked
from typing_extensions import override

from haclient.client import BaseClient, HAClient
from haclient.errors import DisconnectedError, StoreFull, UsageError, WouldBlock
from haclient.observability.metrics import ClientMetrics
from haclient.protocol.commands import Command
from haclient.protocol.messages import Message
from haclient.servers.chooser import DefaultServerChooser
from haclient.servers.delay import FixedDelayStrategy
from haclient.session.connection_state import ConnectionState
from haclient.streams import MessageStream
from haclient.subscription_manager import MemorySubscriptionManager
from haclient.transport.tasks import open_nursery
from haclient_fake_server.config import BrokerConfig, QueueTopic, SowTopic
from haclient_stores.bookmark import EPOCH
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.interfaces import BookmarkStore, PublishStore
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.custom import DictBookmarkStore, DictPublishStore
from support.instances import Instance, instances
from support.listening import on_states

pytestmark = in_virtual_time

SOW = BrokerConfig(
    ack_interval_s=0.05,
    sow_topics=(SowTopic("prices", ("/id",)),),
    queues=(QueueTopic(name="jobs", topics=("prices",), max_per_subscription_backlog=10),),
)
BODY = b'{"id":1}'


# -- its methods ------------------------------------------------------------------


def ignore(_: Message) -> None:
    """A handler that takes everything."""


async def one(stream: MessageStream) -> bytes:
    async with stream as messages:
        return (await anext(messages)).data


async def alive(stream: MessageStream) -> bool:
    async with stream:
        return True


async def sow_delete(client: BaseClient) -> bool:
    return bool((await client.sow_delete("prices", filter="/id = 7")).status)


async def listeners(client: BaseClient) -> None:
    client.add_event_listener(print)
    client.remove_event_listener(print)


async def healthy(client: BaseClient) -> bool:
    return client.health().is_ready


async def explained(client: BaseClient) -> str:
    async with client.bookmark_stream("orders", sub_id="e"):
        return client.explain_recovery("e").sub_id


async def reported(client: BaseClient) -> bool:
    return client.report().startswith(f"client {client.name}, haclient ")


async def recorded(client: BaseClient) -> int:
    async with client.records("prices") as records:
        return len(records)


async def execute(client: BaseClient) -> bool:
    return await alive(await client.execute(Command("subscribe", topic="orders")))


SUBSCRIBE = Command("subscribe", topic="orders")
# What each public method and property is to give; a method that is missing here fails the test.
METHODS: dict[str, tuple[Callable[[BaseClient], Awaitable[object]], object]] = {
    "publish": (lambda c: c.publish("prices", BODY), int),
    "publish_many": (lambda c: c.publish_many("prices", [BODY, BODY]), int),
    "publish_json": (lambda c: c.publish_json("prices", {"id": 1}), int),
    "publish_persisted": (lambda c: c.publish_persisted("prices", BODY, timeout=5), int),
    "publish_flush": (lambda c: c.publish_flush(timeout=5), None),
    "wait_persisted": (lambda c: c.wait_persisted(1, timeout=5), None),
    "flush": (lambda c: c.flush(timeout=5), None),
    "sow": (lambda c: one(c.sow("prices")), BODY),
    "records": (recorded, 1),
    "sow_and_stream": (lambda c: one(c.sow_and_stream("prices", delta=True)), BODY),
    "sow_and_subscribe": (lambda c: c.sow_and_subscribe("prices", handler=ignore), str),
    "sow_delete": (sow_delete, True),
    "subscribe": (lambda c: c.subscribe("orders", handler=ignore, delta=True), str),
    "stream": (lambda c: alive(c.stream("orders")), True),
    "bookmark_subscribe": (
        lambda c: c.bookmark_subscribe("orders", sub_id="h", handler=ignore),
        "h",
    ),
    "bookmark_stream": (
        lambda c: one(c.bookmark_stream("prices", sub_id="s", bookmark=EPOCH)),
        BODY,
    ),
    "pause": (lambda c: c.pause("h"), None),
    "resume": (lambda c: c.resume(["h"]), None),
    "replace": (lambda c: c.replace("h", filter="/id > 0"), None),
    "queue_stream": (lambda c: one(c.queue_stream("jobs")), BODY),
    "queue_subscribe": (lambda c: c.queue_subscribe("jobs", handler=ignore), str),
    "flush_acks": (lambda c: c.flush_acks(timeout=5), None),
    "ack": (lambda c: c.ack("jobs", "1|1|"), None),
    "ack_matching": (lambda c: c.ack_matching("jobs", "/id = 77"), 0),
    "execute": (execute, True),
    "execute_async": (lambda c: c.execute_async(SUBSCRIBE, ignore), str),
    "unsubscribe": (lambda c: c.unsubscribe(), None),
    "health": (healthy, True),
    "explain_recovery": (explained, "e"),
    "report": (reported, True),
    "add_event_listener": (listeners, None),
    "disconnect": (lambda c: c.disconnect(), None),
}
PROPERTIES = {
    "name": "c",
    "state": ConnectionState.RESUBSCRIBED,
    "uri": str,
    "connection_info": dict,
    "metrics": ClientMetrics,
    "publish_store": MemoryPublishStore,
    "bookmark_store": MemoryBookmarkStore,
    "unpersisted_count": 0,
    "persisted_sequence": 0,
}
ELSEWHERE = {
    "publish_nowait",
    "remove_event_listener",
}


OWN = {"memory_backed", "file_backed", "move_to", "restore_subscriptions"}


def fits(found: object, wanted: object) -> bool:
    return isinstance(found, wanted) if isinstance(wanted, type) else found == wanted


@pytest.mark.row("HA1")
async def test_every_method_of_a_client_works_on_it() -> None:
    public = {name for name in dir(BaseClient) if not name.startswith("_")} | {"disconnect"}
    assert public == {*METHODS, *PROPERTIES, *ELSEWHERE}
    assert {name for name in dir(HAClient) if not name.startswith("_")} - public == OWN
    async with (
        instances("east", config=SOW) as (east,),
        HAClient.memory_backed("c", servers=[east.uri]) as client,
    ):
        await client.publish_flush(timeout=5)
        await wait_all_tasks_blocked()
        for name, wanted in PROPERTIES.items():
            assert fits(getattr(client, name), wanted), name
        assert client.publish_nowait("prices", BODY)
        for name, (method, wanted) in METHODS.items():
            assert fits(await method(client), wanted), name


# -- any stores --------------------------------------------------------------------


PUBLISHES: list[Callable[[Path], PublishStore] | None] = [
    None,
    lambda _: MemoryPublishStore(),
    lambda path: FilePublishStore(path / "p"),
    lambda _: DictPublishStore(),
]
BOOKMARKS: list[Callable[[Path], BookmarkStore] | None] = [
    None,
    lambda _: MemoryBookmarkStore(),
    lambda path: LoggedBookmarkStore(path / "b"),
    lambda _: DictBookmarkStore(),
]


@pytest.mark.row("HA10", "HA12", "HA13")
@pytest.mark.parametrize("publishes", PUBLISHES, ids=["none", "memory", "file", "custom"])
@pytest.mark.parametrize("bookmarks", BOOKMARKS, ids=["none", "memory", "file", "custom"])
async def test_any_mix_of_stores_goes_on_after_a_lost_connection(
    tmp_path: Path,
    publishes: Callable[[Path], PublishStore] | None,
    bookmarks: Callable[[Path], BookmarkStore] | None,
) -> None:
    config = BrokerConfig(data_dir=tmp_path / "broker", segment_bytes=1 << 20, ack_interval_s=0.05)
    async with instances("east", config=config) as (east,):
        client = HAClient(
            "c",
            servers=[east.uri],
            publish_store=publishes(tmp_path) if publishes else None,
            bookmark_store=bookmarks(tmp_path) if bookmarks else None,
        )
        async with (
            client,
            client.bookmark_stream("orders", sub_id="s", bookmark=EPOCH) as messages,
        ):
            await client.publish("orders", b"1")
            (first := await anext(messages)).discard()
            await client.publish_flush(timeout=5)
            await trio.sleep(1)  # the persisted ack of the subscription comes
            await east.stop()
            if publishes is None:  # nothing keeps it
                with pytest.raises(DisconnectedError, match="no publish store"):
                    await client.publish("orders", b"2")
            else:
                await client.publish("orders", b"2")
            await east.start()
            await client.flush(timeout=60)
            if publishes is None:
                await client.publish("orders", b"2")
            if bookmarks is None:  # nothing remembers the first
                first = await anext(messages)
            assert (first.data, (await anext(messages)).data) == (b"1", b"2")
            await client.publish_flush(timeout=5)
            assert client.unpersisted_count == 0


@pytest.mark.row("HA11")
async def test_a_client_backed_by_memory() -> None:
    chooser = DefaultServerChooser()
    async with instances("east") as (east,):
        chooser.add(east.uri)
        client = HAClient.memory_backed(
            "c", server_chooser=chooser, heartbeat=None, max_queued_bytes=10_000
        )
        async with client:
            assert isinstance(client.publish_store, MemoryPublishStore)
            assert isinstance(client.bookmark_store, MemoryBookmarkStore)
            assert await client.publish("orders", b"1")


@pytest.mark.row("HA11")
async def test_a_client_backed_by_files(tmp_path: Path) -> None:
    make: Callable[..., HAClient] = HAClient.file_backed
    paths = {"publish_path": tmp_path / "p", "bookmark_path": str(tmp_path / "b")}
    with pytest.raises(UsageError) as refused:  # kept: its frames hold what was opened
        make("c", **paths)
    async with instances("east") as (east,):
        for number in (b"1", b"2"):  # the files are free again, and remember
            async with make("c", **paths, servers=[east.uri], heartbeat=2.0) as client:
                assert isinstance(client.publish_store, FilePublishStore)
                assert isinstance(client.bookmark_store, LoggedBookmarkStore)
                await client.publish("orders", number)
                async with client.bookmark_stream("orders", sub_id="s") as messages:
                    message = await anext(messages)
                    message.discard()
                    assert message.data == number
    assert "either servers" in str(refused.value)


@pytest.mark.row("HA12")
async def test_the_extension_points_are_those_that_were_given() -> None:
    class Manager(MemorySubscriptionManager):
        pass

    manager = Manager()
    async with (
        instances("east") as (east,),
        HAClient("c", servers=[east.uri], subscription_manager=manager) as client,
    ):
        await client.subscribe("orders", handler=ignore, sub_id="s")
        assert [entry.sub_id for entry in manager.entries()] == ["s"]


# -- at its limits -----------------------------------------------------------------


@pytest.mark.row("HA18")
@pytest.mark.parametrize("size", [100, 400_000])
async def test_a_publish_waits_for_room_while_there_is_no_connection(size: int) -> None:
    body, limit = bytes(size), 10 * size
    async with instances("east") as (east,):
        client = HAClient.memory_backed("c", servers=[east.uri], max_unpersisted_bytes=limit)
        async with client, open_nursery() as nursery:
            await east.stop()
            accepted: list[int | None] = []

            async def publish() -> None:
                for _ in range(30):
                    accepted.append(await client.publish("orders", body))  # noqa: PERF401  # seen one by one

            nursery.start_soon(publish)
            await trio.sleep(100)
            store = client.publish_store
            assert store is not None
            assert 5 < len(accepted) < 30
            assert limit <= store.unpersisted_bytes < limit + 2 * size
            with pytest.raises(WouldBlock, match="too much is unpersisted"):
                client.publish_nowait("orders", body)
            await east.start()
            await trio.sleep(100)
            assert len(accepted) == 30
            assert client.publish_nowait("orders", body)
            await client.publish_flush(timeout=100)


@pytest.mark.row("HA18", "PS18")
async def test_a_full_store_refuses_a_publish_and_goes_on_when_acks_come() -> None:
    store = MemoryPublishStore(segment_bytes=2**16, max_bytes=2 * 2**16)
    async with (
        instances("east") as (east,),
        HAClient("c", servers=[east.uri], publish_store=store) as client,
    ):
        await east.stop()
        with pytest.raises(StoreFull):  # noqa: PT012  # the one that is too many is not known
            while True:
                await client.publish("orders", bytes(10_000))
        kept = client.unpersisted_count
        assert kept > 5
        with pytest.raises(StoreFull):
            client.publish_nowait("orders", bytes(10_000))
        assert client.unpersisted_count == kept
        await east.start()
        await client.publish_flush(timeout=60)
        await client.publish("orders", bytes(10_000))


@pytest.mark.row("HA18", "PS17")
async def test_a_publish_waits_for_a_server_while_the_store_may_not_grow() -> None:
    asked: list[int] = []

    def resize(size: int) -> bool:
        asked.append(size)
        return size <= 2 * 2**16

    store = MemoryPublishStore(segment_bytes=2**16, resize_handler=resize)
    async with (
        instances("east") as (east,),
        HAClient("c", servers=[east.uri], publish_store=store) as client,
    ):
        await east.stop()
        with trio.move_on_after(5) as waited:
            while True:
                await client.publish("orders", bytes(10_000))
        assert waited.cancelled_caught
        kept = client.unpersisted_count
        with pytest.raises(WouldBlock, match="resize handler refused"):
            client.publish_nowait("orders", bytes(10_000))
        await east.start()
        await client.publish("orders", bytes(10_000))
        assert asked[-1] == 3 * 2**16
        await client.publish_flush(timeout=60)
    assert kept > 5


@pytest.mark.row("BS18", "HA18")
async def test_a_bookmark_store_that_may_not_grow_ends_the_client_and_loses_nothing(
    tmp_path: Path,
) -> None:
    count, got = 35_000, 0
    async with instances("east") as (east,):
        async with HAClient.memory_backed("p", servers=[east.uri]) as publisher:
            await publisher.publish_many("orders", [b"%d" % number for number in range(count)])

        def client(*, may_grow: bool) -> HAClient:
            store = LoggedBookmarkStore(tmp_path / "b", resize_handler=lambda _: may_grow)
            return HAClient("c", servers=[east.uri], bookmark_store=store)

        with pytest.raises(StoreFull, match="resize handler refused"):  # noqa: PT012  # the block
            async with (
                client(may_grow=False) as first,
                first.bookmark_stream("orders", sub_id="s", bookmark=EPOCH) as messages,
            ):
                async for message in messages:
                    assert message.data == b"%d" % got
                    message.discard()
                    got += 1
        assert 0 < got < count
        async with (
            client(may_grow=True) as second,
            second.bookmark_stream("orders", sub_id="s") as messages,
        ):
            while got < count:
                message = await anext(messages)
                assert message.data == b"%d" % got
                message.discard()
                got += 1


# -- one recovery, and what its chooser sees ------------------------------------------


class Counting(DefaultServerChooser):
    """A chooser that counts what it is asked, and keeps what it is told."""

    def __init__(self, *brokers: Instance) -> None:
        super().__init__([each.uri for each in brokers])
        self.asked: Counter[str] = Counter()
        self.told: list[object] = []

    @override
    def current_uri(self) -> str:
        self.asked["uri"] += 1
        return super().current_uri()

    @override
    def report_success(self, info: Mapping[str, str]) -> None:
        self.told.append(info)
        super().report_success(info)

    @override
    def report_failure(self, error: Exception, info: Mapping[str, str]) -> None:
        self.told += [error, info]
        super().report_failure(error, info)


@pytest.mark.row("HA22")
async def test_many_errors_at_once_lead_to_one_recovery() -> None:
    """Reader, writer and every waiting command meet the loss; each of them may meet more."""
    async with instances("east") as (east,):
        chooser = Counting(east)
        told: list[ConnectionState] = []
        client = HAClient.memory_backed("c", server_chooser=chooser, heartbeat=1.0)
        async with client, open_nursery() as nursery:
            client.add_event_listener(on_states(told.append))
            chooser.asked.clear()
            for number in range(50):
                nursery.start_soon(client.flush)
                nursery.start_soon(client.publish, "orders", bytes(100_000))
                subscribe = partial(client.subscribe, "orders", handler=ignore)
                nursery.start_soon(partial(subscribe, sub_id=f"{number}"))
            await trio.lowlevel.checkpoint()
            await east.cut()
            await east.cut()
            await trio.sleep(60)
            await client.publish_flush(timeout=60)
        assert chooser.asked["uri"] == told.count(ConnectionState.CONNECTED)
        assert chooser.asked["uri"] == told.count(ConnectionState.RECONNECTING)
        assert 1 <= chooser.asked["uri"] <= 2


@pytest.mark.row("SC5")
async def test_a_chooser_is_given_data_only() -> None:
    async with instances("east", "west") as (east, west):
        chooser = Counting(east, west)
        delay = FixedDelayStrategy(0.1)
        async with HAClient(
            "c", server_chooser=chooser, delay_strategy=delay, logon_options=""
        ) as client:
            await east.stop()
            await client.flush(timeout=60)
        informed = [each for each in chooser.told if not isinstance(each, Exception)]
        assert len(informed) == 3
        for info in informed:
            assert type(info) is dict
            assert set(info) == {"uri", "client_name", "server_version"}
            assert {type(each) for each in info.values()} == {str}

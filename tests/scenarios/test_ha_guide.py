"""What a guide to high availability tells its readers, in its order, as programs that run.

Each test is what an application would write, against brokers that are stopped and started.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from typing_extensions import override

from haclient.auth import Authenticator, DefaultAuthenticator
from haclient.chooser import (
    ConnectionInfo,
    DefaultServerChooser,
    FailureCountServerChooser,
    ServerChooser,
)
from haclient.client import Client
from haclient.delay import ExponentialDelayStrategy, FixedDelayStrategy
from haclient.errors import (
    DisconnectedError,
    ReconnectGaveUp,
    TimedOut,
    UsageError,
)
from haclient.ha import HAClient
from haclient.protocol.commands import Command
from haclient.protocol.messages import Message
from haclient.sow_adapter import SOWRecoveryPointAdapter
from haclient.transport.memory_network import network
from haclient_fake_server.config import BrokerConfig, SowTopic
from haclient_stores.bookmark import EPOCH, MOST_RECENT, NOW
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.custom import DictBookmarkStore, DictPublishStore
from support.instances import Instance, address, instances

pytestmark = in_virtual_time

NOWHERE = f"{address('nowhere')}/amps/json"


def durable(path: Path) -> BrokerConfig:
    """A broker whose log outlives it."""
    sow = (
        SowTopic("prices", ("/id",)),
        SowTopic("/ADMIN/bookmark_store", ("/clientName", "/subId")),
    )
    return BrokerConfig(data_dir=path, segment_bytes=1 << 20, ack_interval_s=0.05, sow_topics=sow)


async def restart(broker: Instance) -> None:
    """A server that is away for a while."""
    await broker.stop()
    await trio.sleep(2)
    await broker.start()


async def until(happened: Callable[[], bool]) -> None:
    """Wait for it. The broker's threads write files while every task waits for them."""
    with trio.fail_after(60):
        while not happened():  # noqa: ASYNC110 - it happens in several places
            await trio.sleep(0.01)


class Inbox:
    """A handler that finishes each message, and what it got."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self._arrived = trio.lowlevel.ParkingLot()

    def __call__(self, message: Message) -> None:
        self.got.append(message.data)
        message.discard()
        self._arrived.unpark_all()

    async def until(self, *bodies: bytes) -> None:
        """Wait for exactly these."""
        with trio.fail_after(60):
            while len(self.got) < len(bodies):
                await self._arrived.park()
        assert self.got == list(bodies)


# -- the client, beside one that does not reconnect ------------------------------------------------


@pytest.mark.row("HA1", "HA3")
async def test_one_client_connects_in_one_step_and_comes_back_and_the_other_does_neither(
    tmp_path: Path,
) -> None:
    async with (
        instances("east", config=durable(tmp_path)) as (east,),
        HAClient("ha", servers=[east.uri]) as client,
        Client("plain") as plain,
    ):
        await plain.connect(east.uri)
        await plain.logon()
        await restart(east)
        await client.flush(timeout=60)
        with pytest.raises(DisconnectedError):
            await plain.flush(timeout=60)


# -- the choice of stores --------------------------------------------------------------------------


@pytest.mark.row("HA10", "HA11", "HA13", "PS7", "BS4")
async def test_four_clients_with_different_stores_survive_what_their_stores_promise(
    tmp_path: Path,
) -> None:
    def files() -> HAClient:
        return HAClient.file_backed(
            "disk",
            publish_path=tmp_path / "disk.pub",
            bookmark_path=tmp_path / "disk.bm",
            servers=[east.uri],
            exit_timeout=0,
        )

    async with instances("east", config=durable(tmp_path / "broker")) as (east,):
        subscriber_store = LoggedBookmarkStore(tmp_path / "subscriber.bm")
        async with (
            HAClient.memory_backed("memory", servers=[east.uri]) as memory,
            HAClient("sub", servers=[east.uri], bookmark_store=subscriber_store) as subscriber,
            HAClient("reader", servers=[east.uri]) as reader,
        ):
            inbox, seen = Inbox(), list[bytes]()
            await subscriber.bookmark_subscribe("orders", sub_id="s", handler=inbox)
            await reader.subscribe("orders", handler=lambda each: seen.append(each.data))
            async with files() as disk:
                await east.stop()
                await memory.publish("orders", b"from memory")
                await disk.publish("orders", b"from a file")
                with pytest.raises(DisconnectedError):  # there is no store to keep it
                    await reader.publish("orders", b"from nowhere")
            # The process with the files ends here, before the server is back; another one follows.
            await east.start()
            await memory.publish_flush(timeout=60)
            async with files() as disk:
                await disk.publish_flush(timeout=60)
            await inbox.until(b"from memory", b"from a file")
            await reader.flush(timeout=60)  # connected again, and subscribed
            await memory.publish("orders", b"later")
            await until(lambda: b"later" in seen)  # only its connection is restored


@pytest.mark.row("HA12", "PS19", "BS20")
async def test_stores_of_ones_own_take_part(tmp_path: Path) -> None:
    inbox = Inbox()
    async with (
        instances("east", config=durable(tmp_path)) as (east,),
        HAClient(
            "own",
            servers=[east.uri],
            publish_store=DictPublishStore(),
            bookmark_store=DictBookmarkStore(),
        ) as client,
    ):
        await client.bookmark_subscribe("orders", sub_id="s", handler=inbox)
        await client.publish("orders", b"1")
        await inbox.until(b"1")
        await east.stop()
        await client.publish("orders", b"2")
        await east.start()
        await inbox.until(b"1", b"2")


@pytest.mark.row("BS17")
async def test_a_bookmark_file_is_pruned_when_the_application_is_idle(tmp_path: Path) -> None:
    store = LoggedBookmarkStore(tmp_path / "bm", prune_policy=None)
    inbox = Inbox()
    async with (
        instances("east", config=durable(tmp_path / "broker")) as (east,),
        HAClient(
            "c", servers=[east.uri], publish_store=MemoryPublishStore(), bookmark_store=store
        ) as client,
    ):
        await client.bookmark_subscribe("orders", sub_id="s", handler=inbox)
        bodies = [b"%d" % each for each in range(50_000)]
        await client.publish_many("orders", bodies)
        await inbox.until(*bodies)
        await client.publish_flush(timeout=60)
        await trio.sleep(1)  # idle: the last persisted ack has come
        before = (tmp_path / "bm").stat().st_size
        store.prune()
        assert (tmp_path / "bm").stat().st_size < 0.6 * before
        await client.publish("orders", b"after")
        await client.publish_flush(timeout=60)


# -- recovery points in a topic --------------------------------------------------------------------


@pytest.mark.row("RP3", "RP4")
async def test_a_subscription_resumes_from_a_topic_where_the_application_has_no_file(
    tmp_path: Path,
) -> None:
    async with instances("east", config=durable(tmp_path)) as (east,):
        publisher = HAClient.memory_backed("publisher", servers=[east.uri])
        async with publisher:
            for run in range(3):
                inbox = Inbox()
                await publisher.publish_many("orders", [b"%d" % run, b"%d again" % run])
                await publisher.publish_flush(timeout=60)
                # The adapter has a client of its own, never the one whose state it keeps.
                async with HAClient("points", servers=[east.uri]) as points:
                    store = MemoryBookmarkStore(adapter=SOWRecoveryPointAdapter(points))
                    async with HAClient("c", servers=[east.uri], bookmark_store=store) as client:
                        await client.bookmark_subscribe("orders", sub_id="s", handler=inbox)
                        await inbox.until(b"%d" % run, b"%d again" % run)
                        await trio.sleep(5)


# -- servers ---------------------------------------------------------------------------------------


@pytest.mark.row("HA5", "SC1", "SC3")
async def test_the_next_server_is_used_when_the_primary_cannot_be_connected_to() -> None:
    chooser = DefaultServerChooser()
    chooser.add(address("primary") + "/amps/json")
    chooser.add(address("secondary") + "/amps/json")
    names = ("primary", "secondary")
    async with instances(*names, replicate=True) as (primary, secondary):
        await primary.stop()
        async with HAClient.memory_backed("c", server_chooser=chooser) as client:
            await client.publish("orders", b"1")
            assert client._core.status.address == "secondary:1"
            await primary.start()
            await trio.sleep(10)
            await secondary.cut()  # a lost connection: the same server first
            await client.flush(timeout=60)
            assert client._core.status.address == "secondary:1"
            await secondary.stop()
            await client.flush(timeout=60)
            assert client._core.status.address == "primary:1"


@pytest.mark.row("DS1", "DS2", "DS3")
async def test_the_time_between_attempts_grows_up_to_a_limit_and_ends_after_another() -> None:
    class Attempts(DefaultServerChooser):
        def __init__(self, uri: str) -> None:
            super().__init__([uri])
            self.times: list[float] = []

        @override
        def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
            self.times.append(trio.current_time())
            super().report_failure(error, info)

    chooser = Attempts(NOWHERE)
    strategy = ExponentialDelayStrategy(
        initial=0.2, factor=1.5, maximum=5.0, jitter=0.0, give_up_after=60.0
    )
    began = trio.current_time()
    with pytest.raises(ReconnectGaveUp, match="the limit is 60 s"):
        async with HAClient("c", server_chooser=chooser, delay_strategy=strategy):
            pytest.fail("never entered")
    waits = [
        after - before for before, after in zip(chooser.times, chooser.times[1:], strict=False)
    ]
    assert waits[:4] == pytest.approx([0.2, 0.3, 0.45, 0.675])
    assert waits[-3:-1] == [5.0, 5.0]
    assert chooser.times[0] == began
    assert chooser.times[-1] - began == 60.0  # the last attempt


@pytest.mark.row("SC2", "SC4", "SC5", "AT9")
async def test_a_chooser_of_ones_own_gives_address_and_credentials_of_each_attempt() -> None:
    class Tokens(DefaultAuthenticator):
        def __init__(self, token: str) -> None:
            self.token = token

        @override
        async def authenticate(self, user: str, password: str) -> str:
            return self.token

    class OnCall(ServerChooser):
        """Has a new token for each attempt, and no server for a third one."""

        def __init__(self, *uris: str) -> None:
            self.uris = [*uris, ""]
            self.reported: list[str] = []

        @override
        def current_uri(self) -> str:
            return self.uris[len(self.reported)]

        @override
        def current_authenticator(self) -> Authenticator:
            return Tokens(f"token {len(self.reported)}")

        @override
        def report_success(self, info: ConnectionInfo) -> None:
            self.reported.append("success")

        @override
        def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
            self.reported.append("failure")

        @override
        def error(self) -> str:
            return "the desk is closed"

    config = BrokerConfig(users={"desk": "token 1"})
    async with instances("east", config=config) as (east,):
        chooser = OnCall(NOWHERE, east.uri.replace("://", "://desk@"))
        async with HAClient("c", server_chooser=chooser):
            assert chooser.reported == ["failure", "success"]
        with pytest.raises(ReconnectGaveUp, match="the desk is closed"):
            async with HAClient("c", server_chooser=chooser):
                pytest.fail("never entered")


@pytest.mark.row("SC10")
async def test_a_server_that_failed_more_than_five_times_is_skipped_until_all_have() -> None:
    tried: list[str] = []

    class Counting(FailureCountServerChooser):
        @override
        def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
            tried.append(info["uri"].partition("://")[2][0])
            super().report_failure(error, info)

    uris = [f"mem://{name}:1/amps/json" for name in ("a-down", "b-down")]
    chooser = Counting(uris)
    with pytest.raises(ReconnectGaveUp):
        async with HAClient(
            "c",
            server_chooser=chooser,
            delay_strategy=FixedDelayStrategy(1.0, give_up_after=20.0),
        ):
            pytest.fail("never entered")
    assert tried[:12] == ["a", "b"] * 6
    assert {*tried[12:]} == {"a", "b"}  # all have: none is skipped any more


# -- heartbeats ------------------------------------------------------------------------------------


@pytest.mark.row("HB1", "HB2", "HA9")
async def test_a_server_that_falls_silent_is_left_after_two_intervals(tmp_path: Path) -> None:
    lost: list[float] = []
    async with instances("east", config=durable(tmp_path)) as (east,):
        client = HAClient.memory_backed(
            "importantStuff", servers=[east.uri], on_disconnect=lambda _: lost.append(now())
        )
        await client.set_heartbeat(3.0)
        now = trio.current_time
        async with client:
            await trio.sleep(30)
            assert not lost  # regular beats keep it
            began = now()
            for connection in network().connections:
                connection.server.sending.silent = True
            await trio.sleep(20)
            assert 3.0 <= lost[0] - began <= 6.5
            await client.flush(timeout=60)  # it is back, on another connection


# -- publishers ------------------------------------------------------------------------------------


@pytest.mark.row("CC9", "PS12", "PS14")
async def test_a_publisher_that_ends_says_what_is_not_persisted_and_the_next_run_sends_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def publisher() -> HAClient:
        store = FilePublishStore(tmp_path / "pub")
        return HAClient("pub", servers=[east.uri], publish_store=store, exit_timeout=1.0)

    inbox = Inbox()
    async with (
        instances("east", config=durable(tmp_path / "broker")) as (east,),
        HAClient("sub", servers=[east.uri], bookmark_store=MemoryBookmarkStore()) as subscriber,
    ):
        await subscriber.bookmark_subscribe("loggedTopic", sub_id="s", handler=inbox)
        async with publisher() as client:
            for number in range(3):
                await client.publish("loggedTopic", b"%d" % number)
            await client.publish_flush(timeout=10)
            assert client.unpersisted_count == 0
            await east.stop()
            for number in range(3, 6):
                await client.publish("loggedTopic", b"%d" % number)
            with pytest.raises(TimedOut, match="3 publishes are not persisted"):
                await client.publish_flush(timeout=10)
            assert client.unpersisted_count == 3
        assert "3 publishes are not persisted" in caplog.text
        await east.start()
        async with publisher() as client:  # the same name, the same file
            await client.wait_empty(timeout=60)
        await inbox.until(*(b"%d" % number for number in range(6)))


# -- subscribers -----------------------------------------------------------------------------------


@pytest.mark.row("SM1", "SM2", "SM3")
async def test_subscriptions_with_handlers_are_placed_again_with_their_query(
    tmp_path: Path,
) -> None:
    plain: list[bytes] = []
    records: list[tuple[str, bytes]] = []

    def record(each: Message) -> None:
        if each.command not in {"group_begin", "group_end"}:
            records.append((each.command, each.data))

    async with (
        instances("east", config=durable(tmp_path)) as (east,),
        HAClient.memory_backed("pub", servers=[east.uri]) as publisher,
        HAClient("sub", servers=[east.uri]) as client,
    ):
        await client.subscribe("orders", handler=lambda each: plain.append(each.data))
        await publisher.publish("prices", b'{"id":1,"px":1}')
        await publisher.publish_flush(timeout=60)
        await client.sow_and_subscribe(
            "prices",
            filter="/px > 0",
            handler=record,
        )
        await until(lambda: len(records) > 0)
        assert records == [("sow", b'{"id":1,"px":1}')]
        await restart(east)
        await until(lambda: len(records) > 1)
        assert records == [("sow", b'{"id":1,"px":1}')] * 2
        await publisher.publish("orders", b"1")
        await publisher.publish("prices", b'{"id":1,"px":-1}')
        await publisher.publish("prices", b'{"id":2,"px":2}')
        await until(lambda: len(records) > 2 and len(plain) > 0)
        assert plain == [b"1"]
        assert records[2:] == [("publish", b'{"id":2,"px":2}')]


@pytest.mark.row("MS1", "MS2")
async def test_a_stream_ends_with_its_connection_and_the_program_subscribes_again(
    tmp_path: Path,
) -> None:
    got: list[bytes] = []
    async with (
        instances("east", config=durable(tmp_path)) as (east,),
        HAClient.memory_backed("pub", servers=[east.uri]) as publisher,
        HAClient("sub", servers=[east.uri]) as client,
        trio.open_nursery() as nursery,
    ):
        subscribed = trio.Event()

        async def process() -> None:
            nonlocal subscribed
            while len(got) < 2:
                try:
                    async with client.stream("topic") as messages:
                        subscribed.set()
                        async for message in messages:
                            got.append(message.data)
                            if len(got) == 2:
                                break
                except DisconnectedError:
                    continue

        nursery.start_soon(process)
        for body in (b"1", b"2"):
            await subscribed.wait()
            subscribed = trio.Event()
            await publisher.publish("topic", body)
            await publisher.publish_flush(timeout=60)
            if body == b"1":
                await until(lambda: len(got) == 1)
                await restart(east)
    assert got == [b"1", b"2"]


# -- bookmark subscriptions ------------------------------------------------------------------------


@pytest.mark.row("CC13", "CC14", "BS1", "BS4")
async def test_each_run_resumes_after_what_was_finished_whether_client_or_server_failed(
    tmp_path: Path,
) -> None:
    def subscriber() -> HAClient:
        return HAClient.file_backed(
            "aSubscriber",
            publish_path=tmp_path / "pub",
            bookmark_path=tmp_path / "subscribe.log",
            servers=[east.uri],
        )

    async with (
        instances("east", config=durable(tmp_path / "broker")) as (east,),
        HAClient.memory_backed("pub", servers=[east.uri]) as publisher,
    ):
        expected: list[bytes] = []
        for run in range(3):
            inbox = Inbox()
            async with subscriber() as client:
                command = Command(
                    "subscribe", topic="orders", sub_id="MySubId", bookmark=MOST_RECENT
                )
                await client.execute_async(command, inbox)
                await publisher.publish("orders", b"%d" % run)
                await inbox.until(b"%d" % run)
                await restart(east)
                await publisher.publish("orders", b"%d after" % run)
                await inbox.until(b"%d" % run, b"%d after" % run)
            expected += inbox.got
        other = Inbox()
        async with subscriber() as client:  # another id: an entirely new subscription
            await client.bookmark_subscribe("orders", sub_id="another", handler=other)
            await other.until(*expected)


@pytest.mark.row("BS2", "BS8")
async def test_an_old_message_that_is_never_finished_comes_again_and_the_finished_do_not(
    tmp_path: Path,
) -> None:
    got: list[bytes] = []

    def handle(message: Message) -> None:
        got.append(message.data)
        if message.data != b"stuck":
            message.discard()

    def subscriber() -> HAClient:
        store = LoggedBookmarkStore(tmp_path / "bm")
        return HAClient("c", servers=[east.uri], bookmark_store=store)

    async with (
        instances("east", config=durable(tmp_path / "broker")) as (east,),
        HAClient.memory_backed("publisher", servers=[east.uri]) as publisher,
    ):
        bodies = [b"0", b"stuck", *(b"%d" % each for each in range(1, 50))]
        await publisher.publish_many("orders", bodies)
        await publisher.publish_flush(timeout=60)
        for expected in (bodies, [b"stuck"], [b"stuck"]):
            async with subscriber() as client:
                await client.bookmark_subscribe("orders", sub_id="s", handler=handle)
                await trio.sleep(5)
                await restart(east)
                await client.flush(timeout=60)
                await trio.sleep(5)  # the application still has it in hand: not delivered twice
            assert got == expected
            got.clear()


@pytest.mark.row("CC13", "BM3")
async def test_where_a_subscription_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with (
        instances("east", config=durable(tmp_path)) as (east,),
        HAClient.memory_backed("c", servers=[east.uri]) as client,
        HAClient("without a store", servers=[east.uri]) as without,
    ):
        await client.publish("orders", b"old")
        await client.publish_flush(timeout=60)
        inboxes = {name: Inbox() for name in ("epoch", "now", "recent", "without")}
        for name, bookmark in (("epoch", EPOCH), ("now", NOW), ("recent", MOST_RECENT)):
            await client.bookmark_subscribe(
                "orders", sub_id=name, bookmark=bookmark, handler=inboxes[name]
            )
        await without.bookmark_subscribe(
            "orders", sub_id="s", bookmark=MOST_RECENT, handler=inboxes["without"]
        )
        with pytest.raises(UsageError, match="bookmark"):  # not as if it had been NOW
            await client.bookmark_subscribe(
                "orders", sub_id="wrong", bookmark="1|nonsense|", handler=print
            )
        await client.publish("orders", b"new")
        await inboxes["epoch"].until(b"old", b"new")
        await inboxes["recent"].until(b"old", b"new")  # seen for the first time: from the start
        await inboxes["without"].until(b"old", b"new")
        await inboxes["now"].until(b"new")

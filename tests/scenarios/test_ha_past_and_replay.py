"""Queries of the past and the replay after them, with clients whose brokers go away."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import Client, HAClient
from haclient.errors import DisconnectedError, InvalidBookmark, InvalidOptions, UsageError
from haclient.protocol.messages import Message
from haclient.protocol.options import Options
from haclient.session import historical
from haclient.streams import MessageStream
from haclient_fake_server.config import BrokerConfig, SowTopic
from haclient_fake_server.engine.log_writer import LogWriter
from haclient_fake_server.engine.routes import Routes
from haclient_fake_server.engine.sow import history, queries
from haclient_fake_server.engine.sow.table import SowTable
from haclient_fake_server.engine.timers import Clock
from haclient_fake_server.pytest_plugin import ClusterFactory
from haclient_fake_server.testing.faults import Heal, Kill, Partition, Restart
from haclient_stores.bookmark import EPOCH, MOST_RECENT, NOW, Bookmark
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from support.clock import in_virtual_time
from support.inbox import until
from support.instances import Instance, instances
from support.peer import Server, answering, together
from support.recovery import entered, live, lose

pytestmark = [in_virtual_time, pytest.mark.row("CC15", "SW1")]

TOPICS = (SowTopic("prices", ("/id",), history=True), SowTopic("present", ("/id",)))


def lasting(path: Path) -> BrokerConfig:
    """A broker whose log outlives it."""
    return BrokerConfig(
        data_dir=path, segment_bytes=1 << 20, ack_interval_s=0.05, sow_topics=TOPICS
    )


IN_MEMORY = BrokerConfig(ack_interval_s=0.05, sow_topics=TOPICS)


async def restart(broker: Instance) -> None:
    await broker.stop()
    await broker.start()


async def publish(client: HAClient, *numbers: int) -> None:
    for number in numbers:
        await client.publish("prices", json.dumps({"id": number % 3, "n": number}))
    await client.publish_flush(timeout=60)


def shown(messages: Sequence[Message]) -> list[str]:
    return [
        f"{each.command} {json.loads(each.data)['n']}" if each.data else each.command
        for each in messages
    ]


async def take(stream: MessageStream, count: int, *, discard: bool = True) -> list[str]:
    found: list[Message] = []
    with trio.fail_after(60):
        async for message in stream:
            found.append(message)
            if discard:
                message.discard()
            if len(found) == count:
                break
    return shown(found)


@asynccontextmanager
async def clients(
    *brokers: Instance, bookmark_store: MemoryBookmarkStore | LoggedBookmarkStore | None = None
) -> AsyncGenerator[tuple[HAClient, HAClient]]:
    """A publisher, and a subscriber with a bookmark store."""
    servers = [each.uri for each in brokers]
    store = bookmark_store or MemoryBookmarkStore()
    async with (
        HAClient.memory_backed("pub", servers=servers) as publisher,
        HAClient("sub", servers=servers, bookmark_store=store) as subscriber,
    ):
        yield publisher, subscriber


async def test_a_stream_has_the_records_of_then_and_goes_on_at_its_recovery_point(
    tmp_path: Path,
) -> None:
    async with (
        instances("east", config=lasting(tmp_path)) as (east,),
        clients(east) as (publisher, subscriber),
    ):
        await publish(publisher, 1, 2, 3)
        async with subscriber.bookmark_stream("prices", sub_id="b", bookmark=EPOCH) as all_of_them:
            marks = [(await anext(all_of_them)).bookmark for _ in range(3)]
        stream = subscriber.sow_and_stream(
            "prices", bookmark=Bookmark.parse(marks[0]), sub_id="s", resumes=True
        )
        async with stream as messages:
            assert await take(messages, 3) == ["sow 1", "publish 2", "publish 3"]
            await publish(publisher, 4)
            assert await take(messages, 1) == ["publish 4"]
            assert messages.caught_up
            await publish(publisher, 5, 6)
            assert await take(messages, 1, discard=False) == ["publish 5"]
            await restart(east)
            await publish(publisher, 7)
            # What the application has is not delivered again, discarded or not, and the records
            # are not older than that.
            expected = ["publish 6", "sow 4", "sow 5", "sow 6", "publish 7"]
            assert await take(messages, 5) == expected
            assert messages.gaps == 0


@pytest.mark.row("MS5")
async def test_a_query_that_was_paused_for_its_full_queue_loses_nothing_with_its_connection(
    tmp_path: Path,
) -> None:
    got: list[Message] = []
    events: list[str] = []
    may_take = trio.Event()

    async def handle(message: Message) -> None:
        await may_take.wait()
        got.append(message)
        message.discard()

    async with (
        instances("east", config=lasting(tmp_path)) as (east,),
        HAClient.memory_backed("pub", servers=[east.uri]) as publisher,
        HAClient(
            "sub",
            servers=[east.uri],
            bookmark_store=MemoryBookmarkStore(),
            max_queued_bytes=1_000,
        ) as subscriber,
    ):
        subscriber.add_event_listener(lambda event: events.append(type(event).__name__))
        await publish(publisher, 1)
        await subscriber.sow_and_subscribe("prices", bookmark=EPOCH, sub_id="s", handler=handle)
        count = 1
        for _ in range(3):
            may_take = trio.Event()
            events.clear()
            while "SubscriptionPaused" not in events:
                count += 1
                await publish(publisher, count)
            await publish(publisher, *range(count + 1, count + 6))  # while it is paused
            count += 5
            await restart(east)
            await publish(publisher, count + 1)
            count += 1
            await until(lambda: "Resubscribed" in events)
            may_take.set()
            await until(lambda: f"publish {count}" in shown(got))  # noqa: B023  # awaited here
        assert [each for each in shown(got) if each.startswith("publish")] == [
            f"publish {number}" for number in range(1, count + 1)
        ]


async def test_a_connection_that_is_lost_in_mid_answer_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    got: list[Message] = []
    asked: list[int] = []

    def handle(message: Message) -> None:
        got.append(message)
        message.discard()

    async with (
        instances("east", config=IN_MEMORY) as (east,),
        clients(east) as (publisher, subscriber),
        trio.open_nursery() as nursery,
    ):
        for number in range(1, 41):  # each is a block of its own
            await publish(publisher, number)
        async with subscriber.bookmark_stream("prices", sub_id="b", bookmark=EPOCH) as log:
            mark = [(await anext(log)).bookmark for _ in range(38)][-1]

        def lose_in_mid_answer(
            log: LogWriter,
            routes: Routes,
            clock: Clock,
            topics: Iterable[SowTable],
            position: int,
        ) -> Generator[None, None, list[SowTable]]:
            asked.append(position)
            steps = history.records_at(log, routes, clock, topics, position)
            for _ in range(10):
                next(steps)
                yield
            if len(asked) == 1:
                nursery.start_soon(east.cut)
            return (yield from steps)

        monkeypatch.setattr(history, "STEP_BYTES", 1)
        monkeypatch.setattr(queries, "records_at", lose_in_mid_answer)
        await subscriber.sow_and_subscribe(
            "prices", handler=handle, bookmark=Bookmark.parse(mark), sub_id="s"
        )
        await publish(publisher, 41)
        await trio.sleep(5)
    assert len(asked) == 2, "the first answer was begun and never came"
    told = shown(got)
    assert (told[0], *sorted(told[1:4]), told[4]) == (
        "group_begin",
        "sow 36",
        "sow 37",
        "sow 38",
        "group_end",
    )
    assert told[5:] == ["publish 39", "publish 40", "publish 41"]


@pytest.mark.parametrize("discards", [0, 3, 6])
async def test_a_failover_sends_the_records_as_of_the_recovery_point(discards: int) -> None:
    table: dict[str, int] = {}
    undelivered: list[int] = []

    def apply(message: Message) -> None:
        if message.data:
            table[message.sow_key] = json.loads(message.data)["n"]
        if message.command == "publish":
            undelivered.append(json.loads(message.data)["n"])

    async with (
        instances("east", "west", config=IN_MEMORY, replicate=True) as (east, west),
        clients(east, west) as (publisher, subscriber),
    ):
        await publish(publisher, 1, 2, 3)
        stream = subscriber.sow_and_stream("prices", bookmark=EPOCH, sub_id="s", resumes=True)
        async with stream as messages:
            with trio.fail_after(60):
                for number in range(3):
                    message = await anext(messages)
                    apply(message)
                    if number < discards:
                        message.discard()
                await publish(publisher, 4, 5, 6)
                for number in range(3, 6):
                    message = await anext(messages)
                    apply(message)
                    if number < discards:
                        message.discard()
            await trio.sleep(20)  # so that the overlap of the caught-up time has passed
            await east.stop()
            for number in (7, 8):  # persisted when the other broker is back
                await publisher.publish("prices", json.dumps({"id": number % 3, "n": number}))
            with trio.fail_after(60):
                while undelivered[-1:] != [8]:
                    apply(await anext(messages))
    assert undelivered == list(range(1, 9))
    assert sorted(table.values()) == [6, 7, 8]


async def test_a_recovery_point_of_two_publishers_leaves_nothing_old_in_the_records() -> None:
    async with (
        instances("east", config=IN_MEMORY) as (east,),
        clients(east) as (publisher, subscriber),
        HAClient.memory_backed("other", servers=[east.uri]) as other,
    ):
        await publish(other, 1)
        await publish(publisher, *range(2, 12))
        stream = subscriber.sow_and_stream("prices", bookmark=EPOCH, sub_id="s", resumes=True)
        async with stream as messages:
            await take(messages, 11)
            await publish(publisher, 12, 13)
            assert await take(messages, 2, discard=False) == ["publish 12", "publish 13"]
            await east.cut()
            # The recovery point names both publishers, one of them at its only message.
            assert await take(messages, 3) == ["sow 13", "sow 11", "sow 12"]
            await publish(publisher, 14)
            assert await take(messages, 1) == ["publish 14"]


async def test_the_next_process_begins_with_the_records_of_its_recovery_point(
    tmp_path: Path,
) -> None:
    async with instances("east", config=IN_MEMORY) as (east,):
        store = LoggedBookmarkStore(tmp_path / "b")
        async with (
            clients(east, bookmark_store=store) as (publisher, subscriber),
            HAClient.memory_backed("other", servers=[east.uri]) as other,
        ):
            await publish(other, 0)
            await publish(publisher, 1, 2, 3)
            async with subscriber.sow_and_stream(
                "prices", bookmark=MOST_RECENT, sub_id="s"
            ) as messages:
                assert await take(messages, 3) == ["publish 0", "publish 1", "publish 2"]
            await publish(publisher, 4)
        store = LoggedBookmarkStore(tmp_path / "b")
        async with (
            clients(east, bookmark_store=store) as (_, subscriber),
            subscriber.sow_and_stream("prices", bookmark="recent", sub_id="s") as messages,
        ):
            expected = ["sow 0", "sow 1", "sow 2", "publish 3", "publish 4"]
            assert await take(messages, 5) == expected


async def test_a_replica_that_lags_takes_no_record_back_for_good(
    amps_cluster: ClusterFactory,
) -> None:
    cluster = await amps_cluster("east", "west", on="memory", config=IN_MEMORY)
    table: dict[int, int] = {}
    published: list[int] = []

    async def read(messages: MessageStream) -> None:
        async for message in messages:
            record = json.loads(message.data)
            table[record["id"]] = record["n"]
            if message.command == "publish":
                published.append(record["n"])
                message.discard()

    async with (
        HAClient.memory_backed("pub", servers=cluster.uris, exit_timeout=0) as publisher,
        HAClient("sub", servers=cluster.uris, bookmark_store=MemoryBookmarkStore()) as subscriber,
        subscriber.sow_and_stream("prices", bookmark=EPOCH, sub_id="s", resumes=True) as messages,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(read, messages)
        await publish(publisher, 1, 2, 3)
        await cluster.apply(Partition("east", "west"))
        for number in (4, 5):  # which only this server has
            await publisher.publish("prices", json.dumps({"id": number % 3, "n": number}))
        await trio.sleep(1)
        assert table == {0: 3, 1: 4, 2: 5}
        await publisher.disconnect()
        await cluster.apply(Kill("east"))
        await trio.sleep(10)
        assert table == {0: 3, 1: 1, 2: 2}, "the records of the replica"
        await cluster.apply(Heal(), Restart("east"))
        await trio.sleep(10)
        assert table == {0: 3, 1: 4, 2: 5}
        nursery.cancel_scope.cancel()
    assert published == [1, 2, 3, 4, 5]


async def test_the_next_process_has_the_last_values_in_whatever_order_they_were_discarded(
    tmp_path: Path,
) -> None:
    async with instances("east", config=IN_MEMORY) as (east,):
        for expected in (
            ["publish 1", "publish 4", "publish 2"],
            ["publish 1", "sow 4", "publish 2"],
        ):
            store = LoggedBookmarkStore(tmp_path / "b")
            async with clients(east, bookmark_store=store) as (publisher, subscriber):
                if expected[1] == "publish 4":
                    await publish(publisher, 1, 4, 2)
                async with subscriber.sow_and_stream(
                    "prices", bookmark=MOST_RECENT, sub_id="s"
                ) as messages:
                    with trio.fail_after(60):
                        found = [await anext(messages) for _ in range(3)]
                    assert shown(found) == expected
                    found[1].discard()  # and not the first one, which holds the recovery point


async def test_a_stream_that_does_not_resume_ends_with_its_connection() -> None:
    async with (
        instances("east", config=IN_MEMORY) as (east,),
        clients(east) as (publisher, subscriber),
    ):
        await publish(publisher, 1)
        async with subscriber.sow_and_stream("prices", bookmark=EPOCH, sub_id="s") as messages:
            assert await take(messages, 1) == ["publish 1"]
            await east.cut()
            with pytest.raises(DisconnectedError):
                await anext(messages)


async def test_without_a_store_it_begins_again_where_it_began() -> None:
    async with (
        instances("east", config=IN_MEMORY) as (east,),
        HAClient.memory_backed("pub", servers=[east.uri]) as publisher,
        HAClient("sub", servers=[east.uri]) as subscriber,
    ):
        await publish(publisher, 1, 2)
        stream = subscriber.sow_and_stream("prices", bookmark=EPOCH, sub_id="s", resumes=True)
        async with stream as messages:
            assert await take(messages, 2) == ["publish 1", "publish 2"]
            await east.cut()
            assert await take(messages, 2) == ["publish 1", "publish 2"]
            assert messages.gaps == 1


async def test_a_paused_replay_stays_paused_after_a_lost_connection() -> None:
    async with (
        instances("east", config=IN_MEMORY) as (east,),
        clients(east) as (publisher, subscriber),
    ):
        await publish(publisher, 1, 2)
        stream = subscriber.sow_and_stream("prices", bookmark=EPOCH, sub_id="s", resumes=True)
        async with stream as messages:
            assert await take(messages, 2) == ["publish 1", "publish 2"]
            await subscriber.pause("s")
            await publish(publisher, 3)
            await east.cut()
            await trio.sleep(1)
            assert await take(messages, 2) == ["sow 1", "sow 2"]
            with trio.move_on_after(5) as waiting:
                await anext(messages)
            assert waiting.cancelled_caught
            await subscriber.resume("s")
            assert await take(messages, 1) == ["publish 3"]


async def test_what_replaces_it_is_sent_again() -> None:
    async with (
        instances("east", config=IN_MEMORY) as (east,),
        clients(east) as (publisher, subscriber),
    ):
        await publish(publisher, 1, 2, 3)
        stream = subscriber.sow_and_stream("prices", bookmark=EPOCH, sub_id="s", resumes=True)
        async with stream as messages:
            assert await take(messages, 3) == ["publish 1", "publish 2", "publish 3"]
            await subscriber.replace("s", filter="/id = 1")
            assert await take(messages, 1) == ["sow 1"]
            await publish(publisher, 4, 5)
            assert await take(messages, 1) == ["publish 4"]
            await east.cut()
            assert await take(messages, 1) == ["sow 4"]
            await publish(publisher, 6, 7)
            assert await take(messages, 1) == ["publish 7"]


@pytest.mark.parametrize("topic", ["present", "elsewhere"])
async def test_now_needs_no_history_and_the_past_does(topic: str) -> None:
    async with (
        instances("east", config=IN_MEMORY) as (east,),
        Client("c") as client,
    ):
        await client.connect(east.uri)
        await client.logon()
        async with client.sow_and_stream(topic, bookmark=NOW, sub_id="s") as messages:
            await client.publish(topic, b'{"id": 1, "n": 1}')
            assert await take(messages, 1) == ["publish 1"]
        with pytest.raises(InvalidBookmark):
            await client.sow_and_stream(topic, bookmark=EPOCH, sub_id="s").open()
        options = Options(top_n=2, skip_n=1)
        with pytest.raises(InvalidOptions):
            await client.sow_and_stream("prices", bookmark=EPOCH, options=options).open()


async def test_where_an_earlier_process_was_is_remembered_under_a_name() -> None:
    async with (
        instances("east", config=IN_MEMORY) as (east,),
        clients(east) as (_, subscriber),
    ):
        with pytest.raises(UsageError, match="needs a sub_id"):
            await subscriber.sow_and_stream("prices", bookmark=MOST_RECENT).open()
        with pytest.raises(UsageError, match="needs a sub_id"):
            await subscriber.sow_and_subscribe("prices", handler=print, bookmark="recent")


async def test_on_the_wire_it_is_one_command_and_what_was_delivered(server: Server) -> None:
    got: list[Message] = []

    def handle(message: Message) -> None:
        got.append(message)
        if message.data != b'{"n": 3}':  # which stays in hand
            message.discard()

    store = MemoryBookmarkStore()
    client = HAClient("sub", servers=[server.uri], bookmark_store=store, heartbeat=None)
    async with entered(client, partial(live, server)) as peer:
        _, command = await together(
            lambda: client.sow_and_subscribe(
                "prices", handler=handle, bookmark="20231114T000000Z", sub_id="s"
            ),
            lambda: peer.answer("sow_and_subscribe"),
        )
        assert (command.bookmark, command.ack_type) == ("20231114T000000Z", "completed,processed")
        await peer.records(command, b'{"n": 1}')
        await peer.publish("s", b'{"n": 2}', b'{"n": 3}', bm="7|2|")
        await wait_all_tasks_blocked()
        await lose(peer)
        again = await live(server)
        repeated = await again.answer("sow_and_subscribe")
        assert (repeated.bookmark, repeated.query_id) == ("7|3|", "s")
        await again.publish("s", b'{"n": 3}', b'{"n": 4}', bm="7|3|")
        async with answering(again):
            await client.flush(timeout=1)
    # What the server repeats is not in its records.
    expected = ["sow 1", "group_end", "publish 2", "publish 3", "sow 3", "publish 4"]
    assert shown(got) == ["group_begin", *expected]
    assert str(store.most_recent("s")) == "7|2|"


async def test_a_range_covers_what_was_delivered_and_too_many_publishers_are_reported_once(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(historical, "MAX_PUBLISHERS", 2)
    store = MemoryBookmarkStore()
    client = HAClient("sub", servers=[server.uri], bookmark_store=store, heartbeat=None)
    span = "[20231114T000000Z:20991231T000000Z]"
    async with entered(client, partial(live, server)) as first:
        peer = first
        _, command = await together(
            lambda: client.sow_and_subscribe("t", handler=print, bookmark=span, sub_id="s"),
            lambda: peer.answer("sow_and_subscribe"),
        )
        assert command.bookmark == span
        await peer.records(command)
        for publisher in (7, 8):
            await peer.publish("s", b'{"n": 2}', bm=f"{publisher}|2|")
        await wait_all_tasks_blocked()
        covered = "(7|2|,8|2|,20231114T000000Z:20991231T000000Z]"
        for warnings in (0, 1, 1):
            await lose(peer)
            peer = await live(server)
            assert (await peer.answer("sow_and_subscribe")).bookmark == covered
            assert caplog.text.count("more than 2 publishers") == warnings
            await peer.publish("s", b'{"n": 2}', bm="9|2|")
            await wait_all_tasks_blocked()


async def test_its_stream_is_not_conflated_since_its_records_would_replace_newer_messages() -> None:
    client = HAClient("sub", servers=["tcp://127.0.0.1:1/amps"])
    for bookmark in (EPOCH, MOST_RECENT, "7|1|"):
        with pytest.raises(UsageError, match="a query with a bookmark cannot be conflated"):
            client.sow_and_stream("prices", bookmark=bookmark, sub_id="s").conflate()
        client.bookmark_stream("prices", bookmark=bookmark, sub_id="s").conflate()
    client.sow_and_stream("prices", bookmark=NOW, sub_id="s").conflate()
    client.sow_and_stream("prices", sub_id="s").conflate()


async def test_what_was_queued_and_not_delivered_comes_again(server: Server) -> None:
    got: list[Message] = []
    go_on = trio.Event()

    async def handle(message: Message) -> None:
        got.append(message)
        if message.command == "publish":
            await go_on.wait()
        message.discard()

    client = HAClient(
        "sub", servers=[server.uri], bookmark_store=MemoryBookmarkStore(), heartbeat=None
    )
    async with entered(client, partial(live, server)) as peer:
        _, command = await together(
            lambda: client.sow_and_subscribe(
                "prices", handler=handle, bookmark="20231114T000000Z", sub_id="s"
            ),
            lambda: peer.answer("sow_and_subscribe"),
        )
        await peer.records(command)
        for number in (2, 3):
            await peer.publish("s", b'{"n": %d}' % number, bm=f"7|{number}|")
            await wait_all_tasks_blocked()
        await lose(peer)
        again = await live(server)
        repeated = await again.answer("sow_and_subscribe")
        assert repeated.bookmark == "7|2|,20231114T000000Z", "the second is in hand, the third not"
        await again.publish("s", b'{"n": 3}', bm="7|3|")
        go_on.set()
        async with answering(again):
            await client.flush(timeout=1)
    assert shown(got) == ["group_begin", "group_end", "publish 2", "publish 3"]

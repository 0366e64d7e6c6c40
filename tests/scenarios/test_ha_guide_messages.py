"""The guide to high availability, its end: publishers, subscribers and bookmark subscriptions.

See `test_ha_guide.py`.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from typing_extensions import override

from haclient.client import HAClient
from haclient.errors import DisconnectedError, NameInUse, TimedOut, UsageError
from haclient.protocol.commands import Command
from haclient.protocol.messages import Message
from haclient.stores import (
    FilePublishStore,
    LoggedBookmarkStore,
    MemoryBookmarkStore,
    MemoryPublishStore,
)
from haclient.subscription_manager import Entry, FileSubscriptionManager, SubscriptionManager
from haclient_fake_server.config import BrokerConfig, LogTopic
from haclient_stores.bookmark import EPOCH, MOST_RECENT, NOW
from support.clock import in_virtual_time
from support.inbox import Inbox, until
from support.instances import address, durable, instances, restart
from support.process import SMALL_PIPE_BYTES, Child, running_broker

pytestmark = in_virtual_time


# -- publishers ------------------------------------------------------------------------------------


@pytest.mark.row("PS5", "PS25", "AK2", "AK5")
async def test_acks_of_a_logged_topic_are_conflated_and_those_of_another_come_one_by_one(
    tmp_path: Path,
) -> None:
    acks: list[int] = []

    def frame(direction: str, header: str) -> None:
        fields = json.loads(header)
        if direction == "<" and fields.get("a") == "persisted" and "s" in fields:
            acks.append(fields["s"])

    config = BrokerConfig(data_dir=tmp_path, log_topics=(LogTopic("^orders$"),))
    async with (
        instances("east", config=config) as (east,),
        HAClient("c", servers=[east.uri], publish_store=MemoryPublishStore(), wire_tap=frame) as c,
    ):
        for topic, expected in (("orders", range(1, 4)), ("unlogged", range(20, 21))):
            numbers = [await c.publish(topic, b"%d" % number) for number in range(20)]
            await trio.sleep(10)
            assert c.unpersisted_count == 0
            assert len(acks) in expected
            assert acks[-1] == numbers[-1]  # the last one is for all before it
            acks.clear()


@pytest.mark.row("CC9", "PS11", "PS14", "PS15", "HA25")
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
            await client.publish_flush(timeout=60)
        await inbox.until(*(b"%d" % number for number in range(6)))


@pytest.mark.row("PS14", "PS16")
@pytest.mark.parametrize("how", ["returns", "is downgraded"])
async def test_the_count_stays_above_zero_until_a_synchronous_replica_returns_or_is_downgraded(
    how: str,
) -> None:
    async with (
        instances("east", "west", replicate=True) as (east, west),
        HAClient.memory_backed("c", servers=[east.uri]) as client,
    ):
        await client.publish("orders", b"1")
        await client.publish_flush(timeout=10)
        await west.stop()
        await client.publish("orders", b"2")
        for _ in range(6):
            await trio.sleep(60)
            assert client.unpersisted_count == 1  # the other replica has it
        if how == "returns":
            await west.start()
        else:
            east.running.downgrade(address("west"))
        await client.publish_flush(timeout=10)


@pytest.mark.row("HA27", "ID4", "ID5")
async def test_each_instance_has_a_name_of_its_own(tmp_path: Path) -> None:
    async with instances("east", config=durable(tmp_path)) as (east,):
        async with (
            HAClient.memory_backed("one", servers=[east.uri]) as one,
            HAClient.memory_backed("another", servers=[east.uri]) as another,
        ):
            await one.publish("orders", b"1")
            await another.publish("orders", b"2")
            await one.publish_flush(timeout=60)
            await another.publish_flush(timeout=60)
        with pytest.raises(NameInUse):  # noqa: PT012  # the block raises it
            async with HAClient.memory_backed("same", servers=[east.uri]) as first:
                await first.publish("orders", b"3")
                await first.publish_flush(timeout=60)
                async with HAClient.memory_backed("same", servers=[east.uri]) as second:
                    await second.flush(timeout=60)
                    await trio.sleep(3600)  # the first one has ended, and does not come back


PUBLISHER = """
import sys
import trio
from haclient import HAClient
from haclient.stores import FilePublishStore
async def main():
    store = FilePublishStore(sys.argv[2])
    async with HAClient("pub", servers=[sys.argv[1]], publish_store=store) as client:
        number = 0
        while True:
            number += 1
            await client.publish("orders", str(number))
            print(number, flush=True)
            await trio.sleep(0)
trio.run(main)
"""


@pytest.mark.row("PS11", "PS22", "PS7", "HA11")
def test_a_publisher_that_is_killed_sends_what_it_had_published_in_its_next_run(
    tmp_path: Path,
) -> None:
    """Not in virtual time: processes of their own."""
    store = tmp_path / "pub"
    with running_broker(tmp_path / "broker") as broker:
        command = [sys.executable, "-c", PUBLISHER, broker.uri, str(store)]
        with Child(command, pipe_bytes=SMALL_PIPE_BYTES) as publisher:
            said = [publisher.line() for _ in range(100)]
            broker.kill()
            said += [publisher.line() for _ in range(5000)]  # most go into the store alone
            publisher.kill()
            said += [line.decode() for line in publisher.rest()]
        broker.start()
        found: list[str] = []

        async def next_run() -> None:
            with trio.fail_after(60):
                async with HAClient(
                    "pub", servers=[broker.uri], publish_store=FilePublishStore(store)
                ) as client:
                    assert client.unpersisted_count >= 1000
                    await client.publish("orders", "end")
                    await client.publish_flush(timeout=60)
                    async with client.bookmark_stream("orders", sub_id="s") as messages:
                        async for message in messages:
                            if message.text == "end":
                                return
                            found.append(message.text)

        trio.run(next_run)
    assert found[: len(said)] == said  # and at most one more, which it did not live to tell
    assert found == [str(number) for number in range(1, len(found) + 1)]


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


class OwnManager(SubscriptionManager):
    """The simplest manager that an application could write: a dictionary."""

    def __init__(self) -> None:
        self.kept: dict[str, Entry] = {}

    @override
    def add(self, entry: Entry) -> None:
        self.kept[entry.sub_id] = entry

    @override
    def remove(self, sub_id: str) -> None:
        self.kept.pop(sub_id, None)

    @override
    def clear(self) -> None:
        self.kept.clear()

    @override
    def entries(self) -> Iterator[Entry]:
        return iter(list(self.kept.values()))


@pytest.mark.row("SM1", "SM2", "SM7", "HA12")
async def test_a_subscription_manager_of_ones_own_has_the_commands_and_no_message(
    tmp_path: Path,
) -> None:
    manager = OwnManager()
    inbox = Inbox()
    async with (
        instances("east", config=durable(tmp_path)) as (east,),
        HAClient.memory_backed("c", servers=[east.uri], subscription_manager=manager) as client,
    ):
        await client.subscribe("ord.*", filter="/id > 0", sub_id="s", handler=inbox)
        await client.subscribe("prices", sub_id="ended", handler=print)
        await client.unsubscribe("ended")
        await client.publish("orders", b'{"id":1}')
        await inbox.until(b'{"id":1}')
        (entry,) = manager.kept.values()
        assert (entry.sub_id, entry.body) == ("s", b"")
        assert (entry.fields["t"], entry.fields["filter"]) == ("ord.*", "/id > 0")
        assert '"id":1' not in str(entry)
        await restart(east)
        await client.flush(timeout=60)
        await client.publish("orders", b'{"id":0}')
        await client.publish("orders", b'{"id":2}')
        await inbox.until(b'{"id":1}', b'{"id":2}')
        manager.clear()  # it alone knows what is sent again
        await restart(east)
        await client.flush(timeout=60)
        await client.publish("orders", b'{"id":3}')
        await client.publish_flush(timeout=60)
        await trio.sleep(10)
        assert len(inbox.got) == 2


@pytest.mark.row("SM1", "SM10")
async def test_subscriptions_in_a_file_are_those_of_the_next_process(tmp_path: Path) -> None:
    def process() -> HAClient:
        return HAClient(
            "c",
            servers=[east.uri],
            bookmark_store=LoggedBookmarkStore(tmp_path / "bm"),
            subscription_manager=FileSubscriptionManager(tmp_path / "subscriptions"),
        )

    async with (
        instances("east", config=durable(tmp_path / "broker")) as (east,),
        HAClient.memory_backed("publisher", servers=[east.uri]) as publisher,
    ):
        inbox, again = Inbox(), Inbox()
        async with process() as client:
            await client.bookmark_subscribe("orders", sub_id="s", handler=inbox)
            await publisher.publish("orders", b"a message")
            await inbox.until(b"a message")
        assert b"a message" not in (tmp_path / "subscriptions").read_bytes()
        await publisher.publish("orders", b"while it was away")
        async with process() as client:
            assert await client.restore_subscriptions({"s": again}) == ["s"]
            await again.until(b"while it was away")


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


@pytest.mark.row("BS7", "CC13")
async def test_a_subscription_without_an_id_gets_a_new_one_in_each_run(tmp_path: Path) -> None:
    ids: list[str] = []
    async with (
        instances("east", config=durable(tmp_path / "broker")) as (east,),
        HAClient.memory_backed("publisher", servers=[east.uri]) as publisher,
    ):
        await publisher.publish("orders", b"1")
        for _ in range(2):
            store = LoggedBookmarkStore(tmp_path / "bm")
            async with HAClient("c", servers=[east.uri], bookmark_store=store) as client:
                inboxes = Inbox(), Inbox()
                for inbox in inboxes:
                    command = Command("subscribe", topic="orders", bookmark=MOST_RECENT)
                    ids.append(await client.execute_async(command, inbox))
                for inbox in inboxes:
                    await inbox.until(b"1")  # from the start: nothing is known of the new id
                ids.append(await client.subscribe("orders", handler=print))
        assert all(ids)
        assert len({*ids[:3]}) == len({*ids[3:]}) == 3


@pytest.mark.row("BS3", "BS5")
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


@pytest.mark.row("CC13", "BS8", "RB3", "RB4", "RB7")
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
        inboxes = {name: Inbox() for name in ("epoch", "now", "recent", "without", "unknown")}
        for name, bookmark in (("epoch", EPOCH), ("now", NOW), ("recent", MOST_RECENT)):
            await client.bookmark_subscribe(
                "orders", sub_id=name, bookmark=bookmark, handler=inboxes[name]
            )
        await without.bookmark_subscribe(
            "orders", sub_id="s", bookmark=MOST_RECENT, handler=inboxes["without"]
        )
        await client.bookmark_subscribe(  # well-formed, and of no message: as if it had been NOW
            "orders", sub_id="unknown", bookmark="123|456|", handler=inboxes["unknown"]
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
        await inboxes["unknown"].until(b"new")

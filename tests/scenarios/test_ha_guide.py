"""What a guide to high availability tells its readers, in its order, as programs that run.

Each test is what an application would write, against brokers that are stopped and started. This
part is about the client, its reconnecting and its stores; `test_ha_guide_servers.py` and
`test_ha_guide_messages.py` follow.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio
from typing_extensions import override

from haclient.client import BaseClient, Client, HAClient
from haclient.errors import DisconnectedError, ReconnectGaveUp, UsageError
from haclient.protocol.identity import publisher_id
from haclient.recovery_points.sow import SOWRecoveryPointAdapter
from haclient.servers.chooser import DefaultServerChooser
from haclient.stores import (
    FilePublishStore,
    LoggedBookmarkStore,
    MemoryBookmarkStore,
    MemoryPublishStore,
    PrunePolicy,
    RingPublishStore,
    StoreLocked,
    publish_store_size,
)
from haclient_fake_server.config import BrokerConfig, SowTopic
from haclient_stores.bookmark_stores.record_file import BLOCK_BYTES
from support.clock import in_virtual_time
from support.custom import DictBookmarkStore, DictPublishStore
from support.inbox import Inbox, until
from support.instances import durable, instances, restart
from support.listening import on_exceptions
from support.recovery import RecordedDelay, Recorder

pytestmark = in_virtual_time


# -- the client, beside one that does not reconnect ------------------------------------------------


@pytest.mark.row("HA1", "HA2")
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


# -- the steps of a reconnect ----------------------------------------------------------------------


@pytest.mark.row("HA3", "HA4", "PS7", "SC1", "SC3", "DS1", "SM2")
async def test_the_steps_of_a_reconnect_have_an_order(tmp_path: Path) -> None:
    steps: list[str] = []

    class Trimmed(DictPublishStore):
        @override
        def reconcile(self, *, seen: int, persisted: int, clock_us: int) -> None:
            before = self.unpersisted_count
            super().reconcile(seen=seen, persisted=persisted, clock_us=clock_us)
            steps.append(f"store trimmed by {before - self.unpersisted_count}")

    def frame(direction: str, header: str) -> None:
        command: str = json.loads(header)["c"]
        if direction == ">" and command != "heartbeat":
            steps.append("publish" if command == "p" else command)

    async with instances("east", config=durable(tmp_path)) as (east,):
        client = HAClient(
            "c",
            server_chooser=Recorder({"east": east.uri}, steps),
            delay_strategy=RecordedDelay(steps, 0.5),
            publish_store=Trimmed(),
            logon_options="ack_conflation=1h",  # the ack of the first publish does not come
            wire_tap=frame,
        )
        async with client:
            await client.subscribe("prices", handler=print)
            await client.publish("orders", b"persisted, unknown to the client")
            await trio.sleep(10)
            steps.clear()
            await east.stop()
            await client.publish("orders", b"not sent yet")
            await trio.sleep(0.25)  # the attempt without a delay has failed
            await east.start()
            await client.flush(timeout=60)
            assert steps[: steps.index("flush")] == [
                "uri east",
                "authenticator east",
                "delay 0.0",
                "failure east: ConnectionRefused",
                "uri east",
                "authenticator east",
                "delay 0.5",
                "logon",
                "success east",
                "store trimmed by 1",
                "publish",
                "subscribe",
            ]


@pytest.mark.row("HA6", "SC4", "OB7")
@pytest.mark.parametrize("application", ["idle", "waits"])
async def test_an_empty_uri_ends_the_reconnecting_and_the_listener_gets_the_reason(
    application: str,
) -> None:
    class Closing(DefaultServerChooser):
        """Has no server after hours."""

        is_open = True
        asked = 0

        @override
        def current_uri(self) -> str:
            self.asked += 1
            return super().current_uri() if self.is_open else ""

        @override
        def error(self) -> str:
            return "the exchange is closed"

    told: list[str] = []
    async with instances("east") as (east,):
        chooser = Closing([east.uri])
        with pytest.raises(ReconnectGaveUp, match="the exchange is closed"):  # noqa: PT012  # the block raises it
            async with HAClient(
                "c",
                server_chooser=chooser,
                on_event=on_exceptions(lambda error: told.append(str(error))),
            ) as client:
                await trio.sleep(10)
                chooser.is_open = False
                await east.cut()
                if application == "waits":
                    await client.flush(timeout=None)
                await trio.sleep(3600)
        assert len(told) == 1
        assert "the exchange is closed" in told[0]
        assert chooser.asked == 2
        await trio.sleep(3600)  # the server is there, and nobody asks for it
        assert chooser.asked == 2


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


@pytest.mark.row("HA12", "PS1", "BS22")
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


@pytest.mark.row("PS3", "PS7")
async def test_a_delete_that_was_not_confirmed_is_sent_again_as_publishes_are(
    tmp_path: Path,
) -> None:
    async with (
        instances("east", config=durable(tmp_path)) as (east,),
        HAClient.memory_backed("c", servers=[east.uri]) as client,
        trio.open_nursery() as nursery,
    ):

        async def records() -> list[bytes]:
            async with client.sow("prices") as found:
                return [each.data async for each in found]

        await client.publish("prices", b'{"id":1}')
        await client.publish("prices", b'{"id":2}')
        assert await records() == [b'{"id":1}', b'{"id":2}']
        await client.publish_flush(timeout=60)
        await east.stop()
        nursery.start_soon(lambda: client.sow_delete("prices", filter="/id = 1", timeout=3600))
        await trio.sleep(1)
        assert client.unpersisted_count == 1
        await client.publish("prices", b'{"id":3}')
        await east.start()
        await client.publish_flush(timeout=60)
        assert await records() == [b'{"id":2}', b'{"id":3}']


@pytest.mark.row("PS10", "PS11", "BS13", "BS14", "HA11")
@pytest.mark.parametrize("kind", ["memory", "files"])
async def test_stores_in_memory_end_with_their_process_and_those_in_files_do_not(
    kind: str, tmp_path: Path
) -> None:
    def process() -> HAClient:
        """What a new process has: the same program, and the files if there are any."""
        if kind == "memory":
            return HAClient.memory_backed("c", servers=[east.uri], exit_timeout=0)
        return HAClient.file_backed(
            "c",
            publish_path=tmp_path / "c.pub",
            bookmark_path=tmp_path / "c.bm",
            servers=[east.uri],
            exit_timeout=0,
        )

    async with instances("east", config=durable(tmp_path / "broker")) as (east,):
        inbox, again = Inbox(), Inbox()
        async with process() as client:
            await client.bookmark_subscribe("orders", sub_id="s", handler=inbox)
            await client.publish("orders", b"1")
            await inbox.until(b"1")
            await client.publish_flush(timeout=60)
            await restart(east)
            await client.publish("orders", b"2")
            await inbox.until(b"1", b"2")  # a lost connection repeats nothing with either
            await client.publish_flush(timeout=60)
            await east.stop()
            await client.publish("orders", b"3")
        await east.start()
        async with process() as client:
            await client.bookmark_subscribe("orders", sub_id="s", handler=again)
            await client.publish("orders", b"4")
            if kind == "memory":  # "3" is lost, and what was finished comes again
                await again.until(b"1", b"2", b"4")
            else:
                await again.until(b"3", b"4")


@pytest.mark.row("PS12", "BS21")
async def test_a_store_file_belongs_to_one_instance_at_a_time(tmp_path: Path) -> None:
    def instance(name: str) -> HAClient:
        return HAClient.file_backed(
            name,
            publish_path=tmp_path / "c.pub",
            bookmark_path=tmp_path / "c.bm",
            servers=[east.uri],
        )

    async with instances("east", config=durable(tmp_path / "broker")) as (east,):
        async with instance("c"):
            with pytest.raises(StoreLocked):
                instance("c")
            with pytest.raises(StoreLocked):
                LoggedBookmarkStore(tmp_path / "c.bm")
        with pytest.raises(StoreLocked, match="'c'"):  # it is free, and that of another client
            instance("another")
        async with instance("c") as client:
            await client.flush(timeout=60)


@pytest.mark.usefixtures("small_growth")
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
        bodies = [b"%d" % each for each in range(5_000)]
        await client.publish_many("orders", bodies)
        await inbox.until(*bodies)
        await client.publish_flush(timeout=60)
        await trio.sleep(1)  # idle: the last persisted ack has come
        before = (tmp_path / "bm").stat().st_size
        store.prune()
        assert (tmp_path / "bm").stat().st_size < 0.6 * before
        await client.publish("orders", b"after")
        await client.publish_flush(timeout=60)


@pytest.mark.usefixtures("small_growth")
@pytest.mark.row("BS17", "BS16")
@pytest.mark.parametrize(
    ("policy", "messages"),
    [(PrunePolicy(every_messages=2_000), 2_100), (PrunePolicy(growths=1), 4_000)],
    ids=["after 2 000 messages", "after a growth"],
)
async def test_a_bookmark_file_is_pruned_by_the_client_when_its_policy_says_so(
    policy: PrunePolicy, messages: int, tmp_path: Path
) -> None:
    happened: list[str] = []
    inbox, after = Inbox(), Inbox()
    bodies = [b"%d" % each for each in range(messages)]

    def subscriber() -> HAClient:
        return HAClient(
            "c",
            servers=[east.uri],
            bookmark_store=LoggedBookmarkStore(tmp_path / "bm", prune_policy=policy),
            on_event=lambda event: happened.append(type(event).__name__),
        )

    async with (
        instances("east", config=durable(tmp_path / "broker")) as (east,),
        HAClient.memory_backed("publisher", servers=[east.uri]) as publisher,
    ):
        async with subscriber() as client:
            await client.bookmark_subscribe("orders", sub_id="s", handler=inbox)
            await publisher.publish_many("orders", bodies[:1000])
            await inbox.until(*bodies[:1000])
            await trio.sleep(600)
            assert "StorePruned" not in happened
            await publisher.publish_many("orders", bodies[1000:])
            await inbox.until(*bodies)
            await until(lambda: "StorePruned" in happened)
        async with subscriber() as client:  # a prune forgets nothing that counts
            await client.bookmark_subscribe("orders", sub_id="s", handler=after)
            await publisher.publish("orders", b"new")
            await after.until(b"new")


@pytest.mark.usefixtures("small_growth")
@pytest.mark.row("BS17", "BS16")
def test_a_bookmark_file_is_pruned_when_the_application_ends(tmp_path: Path) -> None:
    """Not in virtual time: the last thing that a process does is the thread that prunes."""
    path = tmp_path / "bm"

    async def process(*bodies: bytes) -> int:
        inbox = Inbox()
        store = LoggedBookmarkStore(path, prune_policy=PrunePolicy(on_exit=True))
        async with (
            instances("east", config=durable(tmp_path / "broker")) as (east,),
            HAClient.memory_backed("publisher", servers=[east.uri]) as publisher,
            HAClient("c", servers=[east.uri], bookmark_store=store) as client,
        ):
            await client.bookmark_subscribe("orders", sub_id="s", handler=inbox)
            last = await publisher.publish_many("orders", list(bodies))
            await inbox.until(*bodies)
            # A discarded message that no ack covers yet is kept by a prune.
            await until(lambda: str(store.most_recent("s")).endswith(f"|{last}|"))
            return path.stat().st_size

    before = trio.run(process, *(b"%d" % each for each in range(5_000)))
    assert path.stat().st_size < 0.6 * before
    trio.run(process, b"new")  # nothing comes again


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


@pytest.mark.row("RP4")
async def test_the_topic_of_recovery_points_and_its_fields_may_have_other_names() -> None:
    config = BrokerConfig(
        ack_interval_s=0.05, sow_topics=(SowTopic("points", ("/application", "/subscription")),)
    )

    def adapter(client: BaseClient) -> SOWRecoveryPointAdapter:
        return SOWRecoveryPointAdapter(
            client,
            topic="points",
            client_name_field="application",
            sub_id_field="subscription",
            bookmark_field="position",
        )

    async with (
        instances("east", config=config) as (east,),
        HAClient.memory_backed("points", servers=[east.uri]) as points,
        HAClient.memory_backed("publisher", servers=[east.uri]) as publisher,
    ):
        for body in (b"1", b"2"):
            inbox = Inbox()
            store = MemoryBookmarkStore(adapter=adapter(points))
            async with HAClient("c", servers=[east.uri], bookmark_store=store) as client:
                await publisher.publish("orders", body)
                await client.bookmark_subscribe("orders", sub_id="s", handler=inbox)
                await inbox.until(body)
                await trio.sleep(5)
        async with points.sow("points") as found:
            (record,) = [json.loads(each.data) async for each in found]
    assert (record["application"], record["subscription"]) == ("c", "s")
    assert record["position"].startswith(f"{publisher_id(publisher.name)}|")


@pytest.mark.row("RP5")
async def test_the_adapter_refuses_the_client_whose_state_it_keeps(tmp_path: Path) -> None:
    async with (
        instances("east", config=durable(tmp_path)) as (east,),
        HAClient("c", servers=[east.uri]) as same,
    ):
        store = MemoryBookmarkStore(adapter=SOWRecoveryPointAdapter(same))
        with pytest.raises(UsageError, match="a client of its own"):
            async with HAClient("c", servers=[east.uri], bookmark_store=store):
                pytest.fail("never entered")


# -- how large stores become -----------------------------------------------------------------------


@pytest.mark.usefixtures("small_growth")
@pytest.mark.row("BS14", "BS16")
async def test_a_bookmark_log_grows_by_a_few_bytes_for_each_message_until_it_is_pruned(
    tmp_path: Path,
) -> None:
    path = tmp_path / "bm"
    grown: list[int] = []

    def resized(size: int) -> bool:
        grown.append(size)
        return True

    store = LoggedBookmarkStore(path, prune_policy=None, resize_handler=resized)
    inbox = Inbox()
    async with (
        instances("east", config=durable(tmp_path / "broker")) as (east,),
        HAClient(
            "c", servers=[east.uri], publish_store=MemoryPublishStore(), bookmark_store=store
        ) as client,
    ):
        await client.bookmark_subscribe("orders", sub_id="a long subscription id", handler=inbox)
        bodies = [b"%d" % each for each in range(6_000)]
        await client.publish_many("orders", bodies)
        await inbox.until(*bodies)
        await client.publish_flush(timeout=3600)
        await trio.sleep(3600)  # time alone gives nothing back
        size = path.stat().st_size
        assert grown == sorted(grown)
        assert grown[-1] == size
        # An arrival and a discard each.
        assert 16 * len(bodies) < size < 2 * 24 * len(bodies) + BLOCK_BYTES
        store.prune()
        assert path.stat().st_size <= BLOCK_BYTES + 4096  # a header, and room to grow


@pytest.mark.row("PS19", "PS18")
async def test_a_publish_store_is_as_large_as_the_outage_at_the_highest_rate(
    tmp_path: Path,
) -> None:
    rate, body = 100, bytes(1000)
    size = publish_store_size(rate, len(body), downgrade_age_s=120.0, check_period_s=15.0)
    assert size.messages == rate * 135
    store = RingPublishStore(tmp_path / "pub", size.bytes)
    async with (
        instances("east", config=durable(tmp_path / "broker")) as (east,),
        HAClient(
            "c", servers=[east.uri], publish_store=store, max_unpersisted_bytes=size.bytes
        ) as client,
    ):
        for _ in range(2):  # the second outage has the whole of it again
            await east.stop()
            for _ in range(135):
                await client.publish_many("orders", [body] * rate)
                await trio.sleep(1)
            assert client.unpersisted_count == size.messages
            await east.start()
            await client.publish_flush(timeout=3600)
        await east.stop()
        many = [bytes(100_000)] * (size.bytes // 100_000)
        with trio.move_on_after(60) as waits:  # for room: a ring never takes more
            await client.publish_many("orders", many)
        assert waits.cancelled_caught
        await east.start()


@pytest.mark.row("PS11", "PS18")
async def test_a_publish_store_uses_the_space_of_persisted_messages_again(tmp_path: Path) -> None:
    store = FilePublishStore(tmp_path / "pub", segment_bytes=256 * 1024)

    def used() -> int:
        return sum(each.stat().st_size for each in (tmp_path / "pub").iterdir())

    async with (
        instances("east", config=durable(tmp_path / "broker")) as (east,),
        HAClient("c", servers=[east.uri], publish_store=store) as client,
    ):
        sizes: list[int] = []
        for _ in range(20):  # 10 MB in all, of which 0.5 MB wait at a time
            await client.publish_many("orders", [bytes(1000)] * 500)
            await client.publish_flush(timeout=3600)
            sizes.append(used())
        assert max(sizes) <= sizes[0] + 256 * 1024

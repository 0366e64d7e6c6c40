"""HAClient and a server that lacks what was acknowledged to it (PS9)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import Client, HAClient
from haclient.errors import HAClientError, PublishGap, ReconnectGaveUp, UsageError
from haclient.options import OnPublishGap
from haclient.servers.delay import FixedDelayStrategy
from haclient_fake_server.config import BrokerConfig, LogTopic, SowTopic
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.custom import DictPublishStore
from support.instances import Instance, address, durable, instances
from support.listening import on_losses, on_states
from support.peer import Peer, Server, answering
from support.recovery import Recorder, entered, live, lose

pytestmark = in_virtual_time


async def acknowledged(client: HAClient, peer: Peer) -> int:
    """The sequence of a publish that the server has persisted."""
    sequence = await client.publish("orders", b"acknowledged")
    assert sequence is not None
    await peer.expect("publish")
    await peer.persisted(sequence)
    await client.publish_flush(timeout=1)
    return sequence


@pytest.mark.row("PS9", "HA3")
@pytest.mark.parametrize("store_class", [MemoryPublishStore, DictPublishStore])
@pytest.mark.parametrize("policy", ["refuse", "raise", "continue"])
async def test_a_server_that_lacks_what_was_acknowledged(
    server: Server,
    other: Server,
    policy: OnPublishGap,
    store_class: type[MemoryPublishStore | DictPublishStore],
) -> None:
    seen: list[str] = []
    client = HAClient(
        "ha",
        server_chooser=Recorder({"A": server.uri, "B": other.uri}, seen),
        publish_store=store_class(),
        on_publish_gap=policy,
        heartbeat=None,
    )

    async def run() -> None:
        async with entered(client, partial(live, server)) as peer:
            sequence = await acknowledged(client, peer)
            await lose(peer)
            seen.clear()
            forgetful = await live(server, seen=0)
            await wait_all_tasks_blocked()
            fit = await live(other, seen=sequence) if policy == "refuse" else forgetful
            async with answering(fit):
                await client.flush(timeout=1)

    if policy == "raise":
        with pytest.raises(PublishGap):
            await run()
    else:
        await run()
        assert ("failure A: PublishGap" in seen) == (policy == "refuse")


@pytest.mark.row("PS9", "HA3")
@pytest.mark.parametrize("store_class", [MemoryPublishStore, DictPublishStore])
async def test_a_server_that_was_not_told_yet_what_its_replicas_have_lacks_nothing(
    server: Server, store_class: type[MemoryPublishStore | DictPublishStore]
) -> None:
    client = HAClient(
        "ha",
        servers=[server.uri],
        publish_store=store_class(),
        on_publish_gap="raise",
        heartbeat=None,
    )
    async with entered(client, partial(live, server)) as peer:
        first = await acknowledged(client, peer)
        await client.publish("orders", b"kept")
        await lose(peer)
        back = await live(server, seen=first + 1, persisted=0)
        await back.expect("publish", data=b"kept", sequence=first + 1)  # seen is not persisted
        await back.persisted(first + 1)
        await client.publish_flush(timeout=1)


@pytest.mark.row("PS8", "PS9")
@pytest.mark.parametrize("store_class", [MemoryPublishStore, DictPublishStore])
async def test_a_server_that_does_not_say_what_it_has_seen_has_no_gap_and_is_sent_everything(
    server: Server, store_class: type[MemoryPublishStore | DictPublishStore]
) -> None:
    client = HAClient("ha", servers=[server.uri], publish_store=store_class(), heartbeat=None)
    async with entered(client, partial(live, server)) as peer:
        first = await acknowledged(client, peer)
        await client.publish("orders", b"kept")
        await lose(peer)
        mute = await server.accept()
        await mute.ack(await mute.expect("logon"))  # without `s`
        await mute.expect("publish", data=b"kept", sequence=first + 1)
        await client.disconnect()


@pytest.mark.row("AT14", "PS8")
@pytest.mark.parametrize("number", [2**63, 2**64 - 1])
async def test_a_number_that_no_publisher_can_have_reached_fails_the_server_and_no_store(
    server: Server, other: Server, tmp_path: Path, number: int
) -> None:
    store = FilePublishStore(tmp_path / "pub")
    client = HAClient(
        "ha", servers=[server.uri, other.uri], publish_store=store, heartbeat=None, exit_timeout=0
    )

    async def serve() -> Peer:
        wrong = await server.accept()
        await wrong.ack(await wrong.expect("logon"), s=number)
        return await live(other)

    async with entered(client, serve) as peer:
        sequence = await client.publish("orders", b"x")
        await peer.expect("publish")
        await peer.ack(None, "persisted", s=number)
        await peer.expect_end()
        assert (store.lowest_unpersisted, store.last_sequence) == (sequence, sequence)
    again = FilePublishStore(tmp_path / "pub")
    again.open_for("ha")
    assert (again.lowest_unpersisted, again.last_sequence) == (sequence, sequence)
    again.close()


@pytest.mark.row("PS9")
def test_a_store_that_minds_gaps_is_not_overruled_silently() -> None:
    store = MemoryPublishStore(error_on_publish_gap=True)
    with pytest.raises(
        UsageError, match="error_on_publish_gap=True of the publish store says stop"
    ):
        HAClient("ha", servers=["tcp://a:1/amps"], publish_store=store, on_publish_gap="continue")
    assert store.client_name == ""
    plain = MemoryPublishStore()
    policies: list[OnPublishGap] = ["refuse", "continue"]
    for policy in policies:  # what one client was told is not left in the store
        HAClient("ha", servers=["tcp://a:1/amps"], publish_store=plain, on_publish_gap=policy)
    assert not plain.error_on_publish_gap


@pytest.mark.row("PS9", "HA14")
async def test_when_all_servers_lack_something_it_is_tried_for_as_long_as_the_strategy_allows(
    server: Server, other: Server, tmp_path: Path
) -> None:
    """The store remembers what was acknowledged, also in the next run."""

    def client_of(*servers: Server) -> HAClient:
        return HAClient(
            "ha",
            servers=[each.uri for each in servers],
            publish_store=FilePublishStore(tmp_path / "pub"),
            delay_strategy=FixedDelayStrategy(0.5, give_up_after=2.0),
            heartbeat=None,
        )

    client = client_of(server)
    async with entered(client, partial(live, server)) as peer:
        sequence = await acknowledged(client, peer)
    client = client_of(server, other)

    async def forget() -> None:
        while True:
            await live(server, seen=0)
            await live(other, seen=0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(forget)
        with pytest.raises(ReconnectGaveUp, match=f"{sequence}"):
            async with client:
                pytest.fail("never entered")
        nursery.cancel_scope.cancel()


@pytest.mark.row("PS9")
async def test_whoever_goes_on_in_spite_of_a_gap_is_told(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryPublishStore()
    client = HAClient(
        "ha",
        servers=[server.uri],
        publish_store=store,
        on_publish_gap="continue",
        heartbeat=None,
    )
    async with entered(client, partial(live, server)) as peer:
        sequence = await acknowledged(client, peer)
        await lose(peer)
        forgetful = await live(server, seen=0)
        await wait_all_tasks_blocked()
        assert store.gap is not None
        assert "goes on with" in caplog.text
        assert await client.publish("orders", b"y") == sequence + 1  # no number is used twice
        assert (await forgetful.expect("publish")).sequence == sequence + 1
        await forgetful.persisted(sequence + 1)


REPLICAS = BrokerConfig(
    ack_interval_s=0.05,
    log_topics=(LogTopic("^orders"),),
    sow_topics=(SowTopic("orders", ("/id",)),),
)
NO_MESSAGE = pytest.mark.parametrize(
    ("topic", "body"), [("orders", b"no json"), ("unlogged", b"x")], ids=["refused", "unlogged"]
)


@asynccontextmanager
async def after_no_message(
    topic: str, body: bytes, *, knows_west: bool
) -> AsyncGenerator[tuple[Instance, Instance, HAClient, list[str]]]:
    """Two replicas and a client of the first, with its states; its last publish is no message."""
    states: list[str] = []
    async with instances("east", "west", config=REPLICAS, replicate=True) as (east, west):
        servers = [east.uri, west.uri] if knows_west else [east.uri]
        async with HAClient.memory_backed(
            "c", servers=servers, on_event=on_states(lambda s: states.append(s.name))
        ) as client:
            await client.publish("orders", b'{"id":1}')
            await client.publish(topic, body)
            await client.publish_flush(timeout=5)
            yield east, west, client, states


@NO_MESSAGE
@pytest.mark.row("PS9", "ID8")
async def test_a_server_whose_replica_is_down_is_taken_back_after_a_publish_that_is_no_message(
    topic: str, body: bytes
) -> None:
    async with after_no_message(topic, body, knows_west=False) as (east, west, c, states):
        await west.stop()
        await c.publish("orders", b'{"id":2}')
        await trio.sleep(1)
        await east.cut()
        await trio.sleep(10)
        assert states.count("DISCONNECTED") == 1
        await west.start()
        await c.publish_flush(timeout=30)


@NO_MESSAGE
@pytest.mark.row("PS9", "RE4")
async def test_a_replica_takes_over_after_a_publish_that_is_no_message(
    topic: str, body: bytes
) -> None:
    async with after_no_message(topic, body, knows_west=True) as (east, west, c, states):
        await east.stop()
        west.running.downgrade(address("east"))
        await c.publish("orders", b'{"id":2}')
        await c.publish_flush(timeout=10)
        assert states.count("DISCONNECTED") == 1


@pytest.mark.row("RE9", "PS9")
@pytest.mark.parametrize("policy", ["refuse", "continue"])
async def test_a_fail_over_to_a_downgraded_replica_loses_messages_and_the_loss_is_found(
    policy: OnPublishGap, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gaps: list[HAClientError] = []
    async with (
        instances("east", "west", config=durable(tmp_path), replicate=True) as (east, west),
        HAClient.memory_backed(
            "publisher",
            servers=[east.uri, west.uri],
            on_event=on_losses(gaps.append),
            on_publish_gap=policy,
        ) as publisher,
    ):
        await publisher.publish("orders", b"1")
        await publisher.publish_flush(timeout=10)
        await west.stop()
        east.running.downgrade(address("west"))
        for body in (b"2", b"3"):
            await publisher.publish("orders", body)
        await publisher.publish_flush(timeout=10)  # confirmed, and in one log alone
        await east.stop()
        await west.start()
        await trio.sleep(10)
        if policy == "refuse":
            gap = next(each for each in gaps if isinstance(each, PublishGap))
            assert gap.acknowledged - gap.server == 2
            await east.start()  # which is waited for: nothing is lost then
            await publisher.publish("orders", b"4")
            await publisher.publish_flush(timeout=60)
            assert await everything(west) == [b"1", b"2", b"3", b"4"]
            return
        assert "what lies between is gone from this server" in caplog.text
        await publisher.publish("orders", b"4")
        await east.start()
        await publisher.publish_flush(timeout=60)
        assert await everything(west) == [b"1", b"4"]
        assert await everything(east) == [b"1", b"2", b"3", b"4"]
        (to_west,) = east.running.destinations
        assert (to_west.missing, west.running.missing) == (2, 2)
        assert "2 records of publisher" in caplog.text
        assert "the two logs differ for good" in caplog.text


async def everything(broker: Instance) -> list[bytes]:
    """What the log of a broker has, in its order."""
    found: list[bytes] = []
    async with Client("reader") as client:
        await client.connect(broker.uri)
        await client.logon()
        async with client.bookmark_stream("orders", bookmark="0", sub_id="1") as messages:
            with trio.move_on_after(1):
                async for message in messages:
                    found.append(message.data)  # noqa: PERF401  # it is cancelled in the middle
    return found

"""A publish above the limit of the server: it must not block those behind it for ever."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.cli.app import run
from haclient.client import HAClient
from haclient.errors import PublishFailed, UsageError
from haclient.protocol.messages import Message
from haclient.session.diagnosis import MAX_LOSSES
from haclient_fake_server.config import BrokerConfig, ReplicateTo
from haclient_fake_server.pytest_plugin import ClusterFactory
from haclient_fake_server.testing.cluster import Cluster
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.broker import running_broker
from support.clock import in_virtual_time
from support.peer import Peer, Server
from support.recovery import drop, entered, live

pytestmark = in_virtual_time

LIMIT_BYTES = 2**20
BIG = b"x" * (2 * LIMIT_BYTES)


@pytest.fixture
async def broker(amps_cluster: ClusterFactory) -> Cluster:
    """A broker that takes no frame above 1 MiB."""
    return await amps_cluster(
        "broker", on="memory", config=BrokerConfig(max_frame_bytes=LIMIT_BYTES)
    )


async def test_a_publish_that_no_server_takes_ends_the_client_with_an_error_that_names_it(
    broker: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    refused: list[tuple[int | None, str]] = []

    async def publish(*bodies: bytes) -> None:
        """As one process, which has the store."""
        async with HAClient(
            "ha",
            servers=[broker.uri],
            publish_store=FilePublishStore(tmp_path / "p"),
            on_failed_write=lambda message, _: refused.append((message.sequence, message.topic)),
        ) as client:
            for body in bodies:
                await client.publish("orders", body)
            await client.publish_flush(timeout=60)

    with pytest.raises(PublishFailed, match=r"\(topic 'orders', 20972\d\d bytes\)") as caught:
        await publish(BIG, b"behind it")
    assert refused == [(caught.value.sequence, "orders")]
    assert "on_rejected_frame='park'" in str(caught.value)
    assert "uses the same name" not in caplog.text
    with pytest.raises(PublishFailed):  # nor is the next process blocked
        await publish()
    assert len(refused) == 2


async def test_a_publish_that_no_server_takes_is_parked_and_what_is_behind_it_goes_on(
    broker: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p"
    refused: list[Message] = []
    async with HAClient(
        "ha",
        servers=[broker.uri],
        publish_store=FilePublishStore(path),
        on_failed_write=lambda message, _: refused.append(message),
        on_rejected_frame="park",
    ) as client:
        sequence = await client.publish("orders", BIG) or 0
        behind = await client.publish("orders", b"behind it") or 0
        await client.wait_persisted(behind, timeout=60)
        with pytest.raises(PublishFailed, match="moved to"):
            await client.wait_persisted(sequence, timeout=1)
    (message,) = refused
    assert (message.sequence, message.data) == (sequence, BIG)
    parked = tmp_path / f"p.parked-{sequence}"
    assert parked.read_bytes().endswith(BIG)
    assert run(["store", "show", str(path)]) == 0
    shown = f"  parked {sequence}: topic 'orders', {parked.stat().st_size} bytes, {parked}"
    assert capsys.readouterr().out.splitlines()[-1] == shown
    assert run(["store", "drop-parked", str(path), "--sequence", "1"]) == 2
    assert run(["store", "drop-parked", str(path)]) == 0
    assert not parked.exists()


async def test_a_delete_that_no_server_takes_is_not_reported_as_done(
    broker: Cluster, tmp_path: Path
) -> None:
    async with HAClient(
        "ha",
        servers=[broker.uri],
        publish_store=FilePublishStore(tmp_path / "p"),
        on_rejected_frame="park",
    ) as client:
        with pytest.raises(PublishFailed, match="moved to"):
            await client.sow_delete("orders", data=BIG, timeout=60)


async def test_a_parked_publish_blocks_nobody_while_a_replica_holds_the_acks_before_it_back(
    tmp_path: Path,
) -> None:
    replica = "tcp://127.0.0.1:1"
    config = BrokerConfig(max_frame_bytes=LIMIT_BYTES, replicate_to=(ReplicateTo(replica),))
    refused: list[int | None] = []
    async with (
        running_broker(config) as broker,
        HAClient(
            "ha",
            servers=[f"{broker.uris[0]}/amps/json"],
            publish_store=FilePublishStore(tmp_path / "p"),
            on_failed_write=lambda message, _: refused.append(message.sequence),
            on_rejected_frame="park",
        ) as client,
    ):
        big: list[int] = []
        for _ in range(2):
            await client.publish("orders", b"before")
            big.append(await client.publish("orders", BIG) or 0)
        behind = await client.publish("orders", b"behind")
        await trio.sleep(200)
        assert refused == big
        assert client.unpersisted_count == 5
        broker.downgrade(replica)
        await client.wait_persisted(behind or 0, timeout=10)
        assert client.unpersisted_count == 0


async def test_a_publish_that_no_server_takes_is_named_behind_others_that_leave_with_it(
    broker: Cluster,
) -> None:
    with pytest.raises(PublishFailed) as caught:  # noqa: PT012  # it leaves the block
        async with HAClient(
            "ha", servers=[broker.uri], publish_store=MemoryPublishStore()
        ) as client:
            first = await client.publish("orders", b"before")
            await client.publish("orders", BIG)
            await client.publish("orders", b"behind")
            await client.publish_flush(timeout=200)
    assert caught.value.sequence == first + 1


def publishing_client(server: Server) -> HAClient:
    return HAClient(
        "ha",
        servers=[server.uri],
        publish_store=MemoryPublishStore(),
        heartbeat=None,
        exit_timeout=0,
    )


async def closed_at_once(server: Server) -> Peer:
    """Accept a client and its logon, and close the connection before it has sent anything."""
    peer = await live(server)
    await drop(peer)
    return peer


@pytest.mark.parametrize("size", [100, len(BIG)])
async def test_a_server_that_fails_without_the_publish_is_tried_for_ever(
    server: Server, size: int
) -> None:
    """However often its connections are lost: the last one closes before the publish is sent."""
    client = publishing_client(server)
    async with entered(client, partial(live, server)) as peer:
        await client.publish("orders", b"x" * size)
        await drop(peer)
        for _ in range(MAX_LOSSES - 2 if size > 100 else MAX_LOSSES):
            await drop(await live(server))
        for _ in range(5):
            await closed_at_once(server)
        last = await live(server)
        await wait_all_tasks_blocked()
        await trio.sleep(2)
        await last.expect("publish")
        await client.disconnect()


async def test_a_publish_is_named_behind_others_whose_acks_a_replica_holds_back(
    server: Server,
) -> None:
    client = publishing_client(server)
    with pytest.raises(PublishFailed, match="20972") as caught:  # noqa: PT012  # it leaves the block
        async with entered(client, partial(live, server)) as peer:
            small, big = [await client.publish("orders", body) or 0 for body in (b"small", BIG)]
            await drop(peer)
            for _ in range(MAX_LOSSES):
                again = await live(server, seen=small, persisted=0)
                await trio.sleep(2)
                await drop(again)
            await trio.sleep_forever()
    assert caught.value.sequence == big


def test_a_publish_is_parked_beside_a_store_with_a_path_only() -> None:
    for store in (None, MemoryPublishStore()):
        with pytest.raises(UsageError, match=r"on_rejected_frame='park' .* with a path"):
            HAClient(
                "ha", servers=["tcp://a:1/amps"], publish_store=store, on_rejected_frame="park"
            )

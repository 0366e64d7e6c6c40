"""The broker over real sockets."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from haclient.errors import StoreError, StoreFull, StoreLocked, UsageError
from haclient_fake_server.config import (
    BrokerConfig,
    FsyncPolicy,
    QueueTopic,
    ReplicateTo,
    SowTopic,
    TlsFiles,
)
from haclient_fake_server.journal.format import LogStart
from haclient_fake_server.journal.queue_points import QUEUE_POINTS_NAME
from haclient_fake_server.journal.queue_snapshots import snapshot_name
from haclient_fake_server.server import BrokerServer, serve
from haclient_fake_server.testing.cluster import Cluster
from haclient_fake_server.testing.faults import Kill, Restart
from support.broker import RawClient, running_broker
from support.clock import in_virtual_time
from support.disks import FullDisk

PUBBER = 7094790850998930143


@pytest.mark.row("TL7", "AK2")
async def test_a_publish_is_acknowledged() -> None:
    async with running_broker() as server, RawClient.connect(server.uris[0]) as client:
        await client.logon("pubber", opts="ack_conflation=0s")
        await client.send(b"{}", c="p", t="orders", s=1, a="persisted")
        ack = await client.ack("persisted")
        assert (ack.status, ack.sequence, ack.bookmark) == ("success", 1, f"{PUBBER}|1|")


@pytest.mark.row("TL1", "ID2")
@pytest.mark.parametrize("fsync", list(FsyncPolicy))
async def test_a_journal_survives_the_broker(tmp_path: Path, fsync: FsyncPolicy) -> None:
    config = BrokerConfig(
        data_dir=tmp_path, fsync=fsync, segment_bytes=1 << 20, flush_interval_s=0.001
    )
    async with running_broker(config) as server, RawClient.connect(server.uris[0]) as client:
        await client.logon("pubber")
        await client.send(b"one", c="p", t="orders", s=1)
        await client.send(c="flush", cid="1", a="persisted")
        await client.ack("persisted", "1")
        await trio.sleep(0.02 if fsync is FsyncPolicy.INTERVAL else 0)
    async with running_broker(config) as server, RawClient.connect(server.uris[0]) as client:
        assert (await client.logon("pubber")).sequence == 1
        await client.send(c="subscribe", cid="1", t="orders", bm="0")
        (message,) = await client.publishes(1)
        assert message.data == b"one"


@pytest.mark.row("QB29", "QB30", "QB31")
@pytest.mark.parametrize("file_backed", [False, True])
async def test_what_has_left_a_queue_is_not_delivered_by_the_next_broker(
    tmp_path: Path, *, file_backed: bool
) -> None:
    queue = QueueTopic(
        name="work",
        topics=("orders",),
        max_per_subscription_backlog=10,
        file_backed=file_backed,
    )
    config = BrokerConfig(data_dir=tmp_path, segment_bytes=1 << 20, queues=(queue,))
    subscribe = {"c": "subscribe", "cid": "1", "t": "work", "opts": "max_backlog=10"}
    async with running_broker(config) as server, RawClient.connect(server.uris[0]) as client:
        await client.logon("pubber")
        for number in range(1, 6):
            await client.send(b"%d" % number, c="p", t="orders", s=number)
        await client.send(**subscribe)
        await client.publishes(5)
        bookmarks = ",".join(f"{PUBBER}|{number}|" for number in (1, 2, 4))
        await client.send(c="sow_delete", cid="2", t="work", bm=bookmarks, a="stats")
        await client.ack("stats", "2")
    (point,) = json.loads((tmp_path / QUEUE_POINTS_NAME).read_bytes())["queues"]
    assert (point["name"], point["position"]) == ("work", 3)
    assert (tmp_path / snapshot_name("work", "json")).exists() == file_backed
    async with running_broker(config) as server, RawClient.connect(server.uris[0]) as client:
        await client.logon("reader")
        await client.send(**subscribe)
        assert [message.data for message in await client.publishes(2)] == [b"3", b"5"]


async def test_two_brokers_cannot_have_one_directory(tmp_path: Path) -> None:
    config = BrokerConfig(data_dir=tmp_path, segment_bytes=1 << 20)
    async with running_broker(config):
        with pytest.raises(StoreLocked):
            await BrokerServer(config).__aenter__()


@pytest.mark.parametrize(
    "uri", ["udp://127.0.0.1:0", "tcp://127.0.0.1", "tcp://127.0.0.1:x", "tcp://127.0.0.1:99999"]
)
async def test_an_address_that_cannot_be_listened_on_is_named(uri: str) -> None:
    with pytest.raises(UsageError, match="cannot listen on"):
        await BrokerServer(BrokerConfig(listen=(uri,))).__aenter__()


async def test_a_start_that_is_refused_is_none_of_the_log(tmp_path: Path) -> None:
    """The log knows its last starts only, and a broker may be started again and again."""
    config = BrokerConfig(data_dir=tmp_path, segment_bytes=1 << 20)
    tls = TlsFiles(cert=tmp_path / "missing.pem")
    async with BrokerServer(config) as server:
        starts = log_starts(server)
    async with BrokerServer(BrokerConfig()) as other:
        for refused, error in (
            (replace(config, listen=tuple(other.uris)), OSError),
            (replace(config, admin=other.uris[0].removeprefix("tcp://")), OSError),
            (replace(config, listen=("tcps://127.0.0.1:0",), tls=tls), UsageError),
        ):
            with pytest.raises(error):
                await BrokerServer(refused).__aenter__()
    newer = tmp_path / QUEUE_POINTS_NAME
    newer.write_text('{"format": 2}')
    with pytest.raises(StoreError, match="version 2"):
        await BrokerServer(config).__aenter__()
    newer.unlink()
    async with BrokerServer(config) as server:
        assert log_starts(server)[:-1] == starts


def log_starts(server: BrokerServer) -> tuple[LogStart, ...]:
    assert server._journal is not None
    return server._journal.log_starts


async def test_one_broker_may_listen_on_several_addresses() -> None:
    config = BrokerConfig(listen=("tcp://127.0.0.1:0", "tcp://[::1]:0"))
    async with running_broker(config) as server:
        first, second = server.uris
        assert first.startswith("tcp://127.0.0.1:")
        assert second.startswith("tcp://[::1]:")


@pytest.mark.row("TL7")
async def test_a_broker_that_cannot_write_its_journal_stops_and_says_why(tmp_path: Path) -> None:
    config = BrokerConfig(data_dir=tmp_path, segment_bytes=4096)
    with pytest.raises(StoreFull):
        await publish_too_much(BrokerServer(config, disk=FullDisk()))


async def test_a_broker_with_many_publishers_says_once_why_it_stops(tmp_path: Path) -> None:
    async def publish(uri: str) -> None:
        async with RawClient.connect(uri) as client:
            await client.logon(f"pubber-{client}")
            ready.append(client)
            while len(ready) < 8:
                await trio.lowlevel.checkpoint()
            await client.send(b"x" * 5000, c="p", t="orders", s=1)
            await trio.sleep_forever()

    async def publish_all() -> None:
        broker = BrokerServer(config, disk=FullDisk())
        async with broker as server, trio.open_nursery() as clients:
            for _ in range(8):
                clients.start_soon(publish, server.uris[0])

    ready: list[RawClient] = []
    config = BrokerConfig(data_dir=tmp_path, segment_bytes=4096)
    with pytest.raises(StoreFull):
        await publish_all()


async def publish_too_much(broker: BrokerServer) -> None:
    async with broker as server, RawClient.connect(server.uris[0]) as client:
        await client.logon("pubber")
        await client.send(b"x" * 5000, c="p", t="orders", s=1)
        await trio.sleep_forever()


async def test_an_error_of_the_block_leaves_it_as_itself() -> None:
    with pytest.raises(ZeroDivisionError):
        async with BrokerServer(BrokerConfig()):
            raise ZeroDivisionError


async def test_several_errors_leave_it_as_a_group() -> None:
    with pytest.raises(ExceptionGroup):
        async with BrokerServer(BrokerConfig()):
            raise ExceptionGroup("two", [ValueError(), KeyError()])


@pytest.mark.row("TL17", "ID3")
async def test_the_wall_clock_is_asked_once_and_can_be_any() -> None:
    async with (
        BrokerServer(BrokerConfig(), wall_clock_us=lambda: 7_000_000) as server,
        RawClient.connect(server.uris[0]) as client,
    ):
        await client.logon("pubber")
        await client.send(c="subscribe", cid="1", t="orders", opts="bookmark,timestamp")
        await client.send(c="p", t="orders")
        (message,) = await client.publishes(1)
        assert message.bookmark.split("|")[1] == "7000000001"
        assert message.timestamp.startswith("19700101T00000")


async def test_serve_runs_a_broker_until_it_is_cancelled() -> None:
    async with trio.open_nursery() as nursery:
        (uri,) = await nursery.start(serve, BrokerConfig())
        async with RawClient.connect(uri) as client:
            await client.logon("pubber")
        nursery.cancel_scope.cancel()


async def test_leaving_the_block_closes_the_connections() -> None:
    async with BrokerServer(BrokerConfig()) as server:
        stream = await trio.open_tcp_stream("127.0.0.1", int(server.uris[0].rpartition(":")[2]))
        client = RawClient(stream)
        await client.logon("pubber")
    async with stream:
        assert await client.receive() is None


async def test_connections_of_one_broker_see_each_others_messages() -> None:
    async with (
        running_broker() as server,
        RawClient.connect(server.uris[0]) as reader,
        RawClient.connect(server.uris[0]) as writer,
    ):
        await reader.logon("reader")
        await reader.send(c="subscribe", cid="1", t="orders", a="processed")
        await reader.ack("processed", "1")
        await writer.logon("writer")
        await writer.send(b"hello", c="p", t="orders")
        (message,) = await reader.publishes(1)
        assert message.data == b"hello"


@pytest.mark.row("RE5", "RE11")
async def test_destinations_are_told_of_and_can_be_downgraded(tmp_path: Path) -> None:
    to = ReplicateTo("tcp://127.0.0.1:1")
    config = BrokerConfig(data_dir=tmp_path, segment_bytes=1 << 20, replicate_to=(to,))
    for expected in (0, 1):
        async with running_broker(config) as server:
            (status,) = server.destinations
            assert (status.is_sync, status.behind) == (True, expected)
            async with RawClient.connect(server.uris[0]) as client:
                answer = await client.logon("pubber", opts="ack_conflation=0s")
                assert answer.bookmark == f"{PUBBER}|{expected}|"
                server.downgrade(to.address)
                assert not server.destinations[0].is_sync
                await client.send(b"{}", c="p", t="orders", s=1, a="persisted")
                assert (await client.ack("persisted")).sequence == 1
            server.upgrade(to.address)
            with pytest.raises(UsageError, match="no synchronous destination"):
                server.upgrade("tcp://elsewhere:1")


@in_virtual_time
@pytest.mark.row("RE3", "RE11")
async def test_a_broker_knows_its_asynchronous_destination_before_it_reaches_it_again() -> None:
    async with Cluster("east", "west", on="memory", mode="async") as cluster:
        await trio.sleep(1.0)
        assert cluster.destination("east", "west").is_connected
        await cluster.apply(Kill("west"), Restart("east"))
        status = cluster.destination("east", "west")
        assert (status.is_connected, status.instance) == (False, "west")


async def test_a_broker_that_was_not_entered_says_so() -> None:
    server = BrokerServer(BrokerConfig())
    with pytest.raises(UsageError, match="async with BrokerServer"):
        _ = server.destinations
    for change in (server.downgrade, server.upgrade):
        with pytest.raises(UsageError, match="async with BrokerServer"):
            change("tcp://127.0.0.1:9007")


async def test_the_data_stay_where_the_broker_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    config = BrokerConfig(data_dir=Path("data"), segment_bytes=4096)
    async with running_broker(config) as server, RawClient.connect(server.uris[0]) as client:
        await client.logon("pubber")
        monkeypatch.chdir(tmp_path / "there")
        for number in range(1, 11):
            await client.send(bytes(1000), c="p", t="orders", s=number)
        await client.send(c="flush", cid="1", a="persisted")
        await client.ack("persisted", "1")
    assert not list((tmp_path / "there").iterdir())
    config = BrokerConfig(data_dir=tmp_path / "here" / "data", segment_bytes=4096)
    async with running_broker(config) as server, RawClient.connect(server.uris[0]) as client:
        assert (await client.logon("pubber")).sequence == 10


@contextmanager
def cyclic_garbage() -> Iterator[list[object]]:
    """What is left within for the garbage collector, once it has ended."""
    gc.collect()
    gc.disable()
    found: list[object] = []
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
    finally:
        gc.set_debug(0)
        found += gc.garbage
        gc.garbage.clear()
        gc.enable()


COMMANDS = (
    {"c": "p", "t": "sow"},
    {"c": "subscribe", "t": "sow", "sub_id": "1", "filter": "/id = 1 AND /a LIKE 'x'"},
    {"c": "subscribe", "t": "sow", "sub_id": "2", "bm": "0"},
    {"c": "sow_and_subscribe", "t": "sow", "sub_id": "3", "opts": "oof"},
    {"c": "subscribe", "t": "jobs", "sub_id": "4"},
    {"c": "subscribe", "t": "^j", "sub_id": "5", "opts": "conflation=1s,conflation_key=[/id]"},
    {"c": "sow_and_subscribe", "t": "sow", "sub_id": "6", "opts": "skip_n=1,top_n=5"},
    {"c": "sow", "t": "sow", "query_id": "7", "orderby": "/id"},
    {"c": "sow_delete", "t": "sow", "filter": "/id = 1"},
    {"c": "subscribe", "t": "sow", "sub_id": "8", "filter": "wrong"},
)


@pytest.mark.parametrize("last", [b"", b"\xff\xff\xff\xff", b'\0\0\0\x09{"c":"?"}'])
async def test_what_a_client_leaves_is_freed_without_the_garbage_collector(last: bytes) -> None:
    config = BrokerConfig(
        sow_topics=(SowTopic("sow", ("/id",)),), queues=(QueueTopic(name="jobs"),)
    )
    async with running_broker(config) as server:
        with cyclic_garbage() as found:
            async with RawClient.connect(server.uris[0]) as client:
                await client.logon("client")
                for number, command in enumerate(COMMANDS):
                    await client.send(b'{"id":1}', **command, cid=str(number), a="processed")
                    await client.ack("processed", str(number))
                await client.send_bytes(last)
                if last:
                    await client.closed()
            while not server.ended_connections:
                await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked()
        ours = [each for each in found if type(each).__module__.startswith("haclient_fake_server")]
        assert not ours

"""Connections of the broker, accepted and dialled."""

from __future__ import annotations

import contextlib
import logging
import struct
import zlib
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import ClassVar

import pytest
import trio
import trio.abc
import trio.lowlevel
import trio.testing
from typing_extensions import override

from haclient.client import Client
from haclient.errors import ConnectionRefused, HAClientError, SlowClient
from haclient.protocol.codec import encode_frame
from haclient.transport.links.link import Link
from haclient.transport.links.memory_network import MemoryLink, link_pair
from haclient.transport.tasks import open_nursery
from haclient_fake_server import hub as hub_module
from haclient_fake_server import session
from haclient_fake_server.config import BrokerConfig, ReplicateTo, SowTopic
from haclient_fake_server.engine import subscribing
from haclient_fake_server.engine.connections import SILENT_INTERVALS
from haclient_fake_server.engine.journal import MemoryJournal
from haclient_fake_server.hub import Hub
from haclient_fake_server.offline_queue import OfflineQueue
from haclient_fake_server.server import BrokerServer
from haclient_fake_server.session import Session, dial_destination
from haclient_stores.disk.files import File
from haclient_stores.errors import StoreFull
from support.broker import RawClient, port_of, running_broker
from support.disks import WatchedDisk
from support.listening import on_losses
from support.peer import Peer
from support.recording import RecordingDisk

KIB = 1024
LIMIT_S = 60.0  # of a test that hangs


LARGE = b"x" * 40_000


async def fill(client: RawClient, count: int, body: bytes) -> None:
    """Publish and wait until all of it is in the log."""
    await client.logon("pubber")
    for number in range(count):
        await client.send(b"%d" % number + body, c="p", t="orders", s=number + 1)
    await client.send(c="flush", cid="f", a="persisted")
    await client.ack("persisted", "f")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack(">I", 5) + b"hello", id="no header"),
        pytest.param(struct.pack(">I", 2**31), id="too long"),
        pytest.param(struct.pack(">I", 9) + b'{"c":"p",', id="cut short"),
    ],
)
async def test_bytes_that_are_no_commands_end_the_connection(data: bytes) -> None:
    async with running_broker() as server, RawClient.connect(server.uris[0]) as client:
        await client.logon("pubber")
        await client.send_bytes(data)
        with trio.fail_after(LIMIT_S):
            await client.closed()


async def test_a_header_is_limited_and_a_body_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A header is read in one step, during which nobody else is served."""
    monkeypatch.setattr(session, "MAX_HEADER_BYTES", KIB * KIB)
    async with running_broker() as server, RawClient.connect(server.uris[0]) as client:
        await client.logon("pubber")
        await client.send(b"x" * 2 * KIB * KIB, c="p", t="orders", s=1)
        await client.send(c="flush", cid="1", a="processed")
        await client.ack("processed", "1")
        await client.send(c="flush", cid="2" * KIB * KIB, a="processed")
        with trio.fail_after(LIMIT_S):
            assert (await client.ack("processed")).reason == "unknown command"
            await client.closed()


async def test_an_answer_of_any_size_reaches_a_reader_that_reads_it() -> None:
    config = BrokerConfig(
        sow_topics=(SowTopic("orders", ()),),
        high_water_bytes=50 * KIB,
        low_water_bytes=20 * KIB,
        slow_client_bytes=100 * KIB,
        query_step_bytes=10 * KIB,
    )
    async with running_broker(config) as server, RawClient.connect(server.uris[0]) as client:
        await client.logon("pubber")
        for number in range(400):
            await client.send(b"x" * KIB, c="p", t="orders", k=f"{number}")
        await client.send(c="sow", cid="q", t="orders", bs=10, a="stats")
        with trio.fail_after(LIMIT_S):
            assert (await client.ack("stats", "q")).records_returned == 400


async def test_commands_behind_a_long_delete_are_carried_out_after_it() -> None:
    config = BrokerConfig(sow_topics=(SowTopic("orders", ()),), query_step_bytes=1)
    async with running_broker(config) as server, RawClient.connect(server.uris[0]) as client:
        await client.logon("pubber")
        for number in range(100):
            await client.send(b"{}", c="p", t="orders", k=f"{number}", s=number + 1)
        await client.send(c="sow_delete", cid="d", t="orders", filter="1=1", a="stats", s=101)
        for number in range(10):
            await client.send(b"{}", c="p", t="orders", k=f"{number}", s=102 + number)
            await trio.lowlevel.checkpoint()  # in several reads
        await client.send(c="sow", cid="q", t="orders", a="stats")
        with trio.fail_after(LIMIT_S):
            assert (await client.ack("stats", "d")).records_deleted == 100
            assert (await client.ack("stats", "q")).records_returned == 10


async def test_others_are_served_between_the_queries_of_one_read() -> None:
    config = BrokerConfig(sow_topics=(SowTopic("orders", ()),))
    query = encode_frame({"c": "sow", "cid": "q", "t": "orders", "filter": "/id = 1"})
    last = encode_frame({"c": "p", "t": "orders", "k": "last"}, b"{}")
    async with (
        running_broker(config) as server,
        RawClient.connect(server.uris[0]) as one,
        RawClient.connect(server.uris[0]) as other,
    ):
        await one.logon("one")
        await other.logon("other")
        await one.send(bytes(512 * KIB), c="p", t="large")  # its buffer has room for all of them
        await one.send(c="flush", cid="f", a="completed")
        await one.ack("completed", "f")
        await one.send_bytes(query * 1000 + last)
        await other.send(c="sow", cid="c", t="orders", a="stats")
        with trio.fail_after(LIMIT_S):
            assert (await other.ack("stats", "c")).topic_matches == 0


@pytest.mark.usefixtures("autojump_clock")
async def test_long_steps_take_turns_while_others_are_served() -> None:
    config = BrokerConfig(sow_topics=(SowTopic("orders", ()),), query_step_bytes=1)
    hub = Hub(config, MemoryJournal(), now_us=1)
    clients: list[Peer] = []
    with trio.fail_after(LIMIT_S):
        async with open_nursery() as nursery:
            for name in ("one", "other"):
                here, there = link_pair()
                each = Session(hub.next_number(), there, hub=hub, config=config)
                hub.accepted(each, peer=name)
                nursery.start_soon(each.run)
                clients.append(Peer(here))
                await clients[-1].say("logon", cid="0", client_name=name, a="processed")
                await clients[-1].hear()
            one, other = clients
            for number in range(3):
                await one.say("publish", b"{}", t="orders", k=f"{number}")
            async with hub.turn:
                await one.say("sow", cid="q", t="orders", a="processed,completed")
                assert (await one.hear()).ack_type == "processed"
                await other.say("flush", cid="f", a="completed")
                assert (await other.hear()).command_id == "f"
                with trio.move_on_after(10) as waited:
                    await one.hear()
                assert waited.cancelled_caught
            assert (await one.hear()).kind == "group_begin"
            while (await one.hear()).ack_type != "completed":
                pass
            nursery.cancel_scope.cancel()


async def test_a_frame_above_the_limit_ends_the_connection() -> None:
    config = BrokerConfig(max_frame_bytes=1000)
    async with running_broker(config) as server, RawClient.connect(server.uris[0]) as client:
        await client.logon("pubber")
        await client.send(b"x" * 2000, c="p", t="orders")
        with trio.fail_after(LIMIT_S):
            await client.closed()


async def test_zero_length_frames_are_ignored() -> None:
    async with running_broker() as server, RawClient.connect(server.uris[0]) as client:
        await client.send_bytes(bytes(8))
        assert (await client.logon("pubber")).status == "success"


async def test_frames_may_arrive_byte_by_byte() -> None:
    async with running_broker() as server, RawClient.connect(server.uris[0]) as client:
        frame = b'\0\0\0\x29{"c":"logon","client_name":"a","a":"processed"}'
        frame = struct.pack(">I", len(frame) - 4) + frame[4:]
        for byte in frame:
            await client.send_bytes(bytes([byte]))
        assert (await client.ack("processed")).status == "success"


@pytest.mark.row("RB13", "TL4")
async def test_a_slow_reader_of_the_log_gets_everything_and_costs_no_memory() -> None:
    config = BrokerConfig(
        high_water_bytes=64 * KIB, low_water_bytes=32 * KIB, slow_client_bytes=4096 * KIB
    )
    count, body = 300, b"x" * 40_000
    async with (
        running_broker(config) as server,
        RawClient.connect(server.uris[0]) as reader,
        RawClient.connect(server.uris[0]) as writer,
    ):
        await reader.logon("reader")
        await reader.send(c="subscribe", cid="1", t="orders", bm="0", a="processed")
        await reader.ack("processed", "1")
        await fill(writer, count, body)
        messages = await reader.publishes(count)
        assert [message.bookmark.split("|")[1] for message in messages] == [
            str(number) for number in range(1, count + 1)
        ]


@pytest.fixture
def _patience_with_slow_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow client reads only when all is published, which may take a busy machine long."""
    monkeypatch.setattr(session, "SLOW_CLIENT_LIMIT_S", LIMIT_S)


@pytest.mark.row("HA26")
@pytest.mark.usefixtures("_patience_with_slow_clients")
async def test_a_plain_subscriber_that_does_not_read_is_told_why_and_cut() -> None:
    config = BrokerConfig(slow_client_bytes=100 * KIB, high_water_bytes=50 * KIB)
    async with running_broker(config) as server, RawClient.connect(server.uris[0]) as writer:
        stream = await trio.open_tcp_stream("127.0.0.1", port_of(server.uris[0]))
        async with stream:
            reader = RawClient(stream)
            await reader.logon("reader")
            await reader.send(c="subscribe", cid="1", t="orders", a="processed")
            await reader.ack("processed", "1")
            await fill(writer, 400, LARGE)
            with trio.fail_after(LIMIT_S):
                assert (await reader.ack("processed")).reason == "slow client"
                assert await reader.receive() is None


@pytest.mark.row("HA26")
@pytest.mark.usefixtures("_patience_with_slow_clients")
async def test_a_slow_client_hears_on_disconnect_that_it_was_one() -> None:
    config = BrokerConfig(slow_client_bytes=100 * KIB, high_water_bytes=50 * KIB)
    lost: list[HAClientError] = []
    goes_on, told = trio.Event(), trio.Event()

    def on_disconnect(reason: HAClientError) -> None:
        lost.append(reason)
        told.set()

    async def handler(_: object) -> None:
        await goes_on.wait()

    async with (
        running_broker(config) as server,
        RawClient.connect(server.uris[0]) as writer,
        Client("slow", on_event=on_losses(on_disconnect), max_queued_bytes=10 * KIB) as client,
    ):
        await client.connect(f"{server.uris[0]}/amps/json")
        await client.logon()
        await client.subscribe("orders", handler=handler)
        await fill(writer, 400, LARGE)
        goes_on.set()
        with trio.fail_after(LIMIT_S):
            await told.wait()
    assert isinstance(lost[0], SlowClient)


class OfflineDisk(WatchedDisk):
    """A disk that remembers the files of slow clients, which have no name."""

    def __init__(self, *, is_full: bool = False) -> None:
        super().__init__()
        self.offline: list[File] = []
        self.full = RecordingDisk() if is_full else None

    @override
    def create_new(self, path: Path, *, locked: bool = False) -> File:
        if not path.name.startswith("offline"):
            return super().create_new(path, locked=locked)
        if self.full is not None:
            self.full.before = None
            file = self.full.create_new(path)
            self.full.before = _refuse
            return file
        self.offline.append(super().create_new(path, locked=locked))
        return self.offline[-1]


def _refuse(event: object) -> None:
    raise StoreFull(f"no room for {type(event).__name__}")


@asynccontextmanager
async def offline_reader(
    data_dir: Path, disk: OfflineDisk
) -> AsyncGenerator[tuple[BrokerServer, RawClient]]:
    """A subscriber of 400 messages which has not read yet, so that most of them are in a file."""
    config = BrokerConfig(
        data_dir=data_dir,
        offline_bytes=100 * KIB,
        high_water_bytes=50 * KIB,
        low_water_bytes=20 * KIB,
        slow_client_bytes=64 * 1024 * KIB,
    )
    async with (
        BrokerServer(config, disk=disk) as server,
        RawClient.connect(server.uris[0]) as writer,
        RawClient.connect(server.uris[0]) as reader,
    ):
        await reader.logon("reader")
        await reader.send(c="subscribe", cid="1", t="orders", a="processed")
        await reader.ack("processed", "1")
        await fill(writer, 400, LARGE)
        yield server, reader


@pytest.mark.row("AD8", "OP14")
async def test_a_slow_client_gets_everything_in_order_from_its_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = OfflineDisk()
    async with offline_reader(tmp_path, disk) as (server, reader):
        assert "taken offline, to a file" in caplog.text
        row = next(each for each in server.rows("clients") if each["client_name"] == "reader")
        assert int(row["offline_bytes"]) > 1024 * KIB
        files = disk.open_files
        with trio.fail_after(LIMIT_S):
            found = [message.data for message in await reader.publishes(400)]
            await reader.send(c="flush", cid="f", a="completed")
            await reader.ack("completed", "f")
        assert found == [b"%d" % number + LARGE for number in range(400)]
        assert disk.open_files == files - 1
        row = next(each for each in server.rows("clients") if each["client_name"] == "reader")
        assert (row["offline_bytes"], row["unsent_bytes"]) == (0, 0)


@pytest.mark.row("AD8", "HA26")
@pytest.mark.usefixtures("_patience_with_slow_clients")
async def test_a_client_whose_file_is_damaged_is_told_why_and_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = OfflineDisk()
    async with offline_reader(tmp_path, disk) as (server, reader):
        disk.offline[-1].pwrite(b"\xff" * 4096 * KIB, 0)
        files = disk.open_files
        with trio.fail_after(LIMIT_S):
            assert (await reader.ack("processed")).reason == "slow client"
            assert await reader.receive() is None
        while "reader" in [each["client_name"] for each in server.rows("clients")]:
            await trio.lowlevel.checkpoint()
        assert disk.open_files < files
        assert server.ended_connections == {"slow client": 1}
    assert "what waited for a client is damaged" in caplog.text


@pytest.mark.row("AD8")
async def test_a_damaged_file_of_a_client_that_is_being_closed_ends_no_other(
    tmp_path: Path,
) -> None:
    disk = OfflineDisk()
    async with offline_reader(tmp_path, disk) as (server, reader):
        disk.offline[-1].pwrite(b"\xff" * 4096 * KIB, 0)
        server.disconnect("reader")
        with trio.fail_after(LIMIT_S):
            while await reader.receive() is not None:
                pass
        async with RawClient.connect(server.uris[0]) as other:
            await other.logon("other")
        assert server.ended_connections["disconnected by an operator"] == 1


@pytest.mark.row("AD8")
@pytest.mark.usefixtures("_patience_with_slow_clients")
async def test_a_slow_client_is_cut_when_the_disk_of_its_file_is_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with offline_reader(tmp_path, OfflineDisk(is_full=True)) as (_, reader):
        with trio.fail_after(LIMIT_S):
            assert (await reader.ack("processed")).reason == "slow client"
            assert await reader.receive() is None
    assert "ended: slow client: no room for Write" in caplog.text


@pytest.mark.row("AD8")
async def test_the_file_of_a_slow_client_ends_with_its_connection(tmp_path: Path) -> None:
    disk = OfflineDisk()
    async with offline_reader(tmp_path, disk) as (_, _):
        before = disk.open_files
    assert disk.open_files < before
    assert disk.open_files == 0


class CountingQueue(OfflineQueue):
    """Notes how many rounds of the loop there were when it was closed."""

    closed: ClassVar[list[int]] = []
    rounds = 0

    @override
    def close(self) -> None:
        self.closed.append(CountingQueue.rounds)
        super().close()


@pytest.mark.row("AD8")
async def test_the_files_of_slow_clients_that_end_at_once_are_closed_in_turns(
    tmp_path: Path,
) -> None:
    """To give a large file back takes the system a while, in which nobody is served."""
    config = BrokerConfig()
    hub = Hub(config, MemoryJournal(), now_us=1)
    CountingQueue.closed.clear()

    async def count() -> None:
        while True:
            CountingQueue.rounds += 1
            await trio.lowlevel.checkpoint()

    with trio.fail_after(LIMIT_S):
        async with open_nursery() as nursery:
            nursery.start_soon(count)
            sessions: list[Session] = []
            for number in range(5):
                _, there = link_pair()
                each = Session(hub.next_number(), there, hub=hub, config=config)
                hub.accepted(each, peer="")
                file = WatchedDisk().create_new(tmp_path / f"{number}")
                each.take_offline(CountingQueue(file, capacity=KIB))
                nursery.start_soon(each.run)
                sessions.append(each)
            await trio.sleep(0.01)  # until all of them read
            for each in sessions:
                each.cut("end")
            while len(CountingQueue.closed) < 5:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    assert max(CountingQueue.closed) - min(CountingQueue.closed) >= 3, "not in one round"


@pytest.mark.row("ID5", "ID7")
async def test_a_displaced_connection_hears_why_before_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        running_broker() as server,
        RawClient.connect(server.uris[0]) as old,
        RawClient.connect(server.uris[0]) as new,
    ):
        await old.logon("pubber")
        await new.logon("pubber")
        ack = await old.ack("processed")
        assert ack.reason == "name in use"
        with trio.fail_after(LIMIT_S):
            await old.closed()
    (line,) = [each for each in caplog.messages if each.endswith("ended: name in use")]
    assert line.startswith("broker: connection 1 of client 'pubber' at 127.0.0.1:")


@pytest.mark.row("AD9")
@pytest.mark.usefixtures("autojump_clock")
async def test_a_silent_client_is_cut() -> None:
    async with BrokerServer(BrokerConfig(listen=())) as server:
        here, there = link_pair()
        server.attach(there)
        client = Peer(here)
        await client.say("logon", cid="0", client_name="pubber", a="processed")
        await client.say("heartbeat", cid="1", opts="start,4", a="processed")
        begun = trio.current_time()
        assert [(await client.hear()).command_id for _ in range(2)] == ["0", "1"]
        for beats in (1, 2):
            assert (await client.hear()).kind == "heartbeat"
            assert trio.current_time() - begun == pytest.approx(4.0 * beats)
        assert (await client.hear()).reason == "heartbeat"
        await client.expect_end()
        assert trio.current_time() - begun == pytest.approx(4.0 * SILENT_INTERVALS)


async def test_what_was_sent_before_a_hang_up_is_carried_out() -> None:
    async with running_broker() as server:
        async with RawClient.connect(server.uris[0]) as client:
            await client.logon("pubber")
            await client.send(c="p", t="orders", s=1)
        async with RawClient.connect(server.uris[0]) as client:
            assert (await client.logon("pubber")).sequence == 1


WEST = ReplicateTo("tcp://west:1", heartbeat_s=4.0)
EAST = BrokerConfig(
    name="east", listen=(), replicate_to=(WEST,), redial_s=1.0, redial_max_s=4.0, ack_interval_s=0.0
)


class Network:
    """Where `west` can be reached, or not; it notes when somebody tried."""

    def __init__(self) -> None:
        self.target: BrokerServer | None = None
        self.dialled: list[float] = []
        self.links: list[MemoryLink] = []

    async def dial(self, to: ReplicateTo, timeout_s: float) -> Link:
        assert (to.address, timeout_s) == ("tcp://west:1", 5.0)
        self.dialled.append(trio.current_time())
        if self.target is None:
            raise ConnectionRefused("nobody is there")
        here, there = link_pair()
        self.links.append(here)
        self.target.attach(there)
        return here


@pytest.mark.row("RE3")
@pytest.mark.usefixtures("autojump_clock")
async def test_the_waits_grow_to_a_limit_and_start_anew(caplog: pytest.LogCaptureFixture) -> None:
    network = Network()
    caplog.set_level(logging.DEBUG, logger="haclient_fake_server")
    begun = trio.current_time()
    async with BrokerServer(EAST, dial=network.dial) as east:
        await trio.sleep(12.0)
        assert [round(each - begun) for each in network.dialled] == [0, 1, 3, 7, 11]
        async with BrokerServer(BrokerConfig(name="west", listen=())) as west:
            network.target = west
            await trio.sleep(30.0)
            assert east.destinations[0].is_connected
            assert len(network.dialled) == 6
            network.links[-1].reset()
            await trio.sleep(1.5)
            assert (len(network.dialled), east.destinations[0].links) == (7, 2)
    told = [each for each in caplog.records if "nobody is there" in each.message]
    assert [each.levelname for each in told] == ["WARNING", *["DEBUG"] * 4]


@pytest.mark.row("RE3")
@pytest.mark.usefixtures("autojump_clock")
async def test_a_link_that_goes_silent_is_dialled_again() -> None:
    network = Network()
    async with (
        BrokerServer(BrokerConfig(name="west", listen=())) as west,
        BrokerServer(EAST, dial=network.dial) as east,
    ):
        network.target = west
        await trio.sleep(20.0)
        link = network.links[-1]
        link.sending.silent = link.receiving.silent = True
        await trio.sleep(20.0)
        assert (east.destinations[0].links, east.destinations[0].is_connected) == (2, True)


async def test_the_real_dial_says_who_did_not_answer() -> None:
    with pytest.raises(ConnectionRefused, match=r"127\.0\.0\.1:1"):
        await dial_destination(ReplicateTo("tcp://127.0.0.1:1"), 5.0)


@pytest.mark.usefixtures("autojump_clock")
async def test_a_client_that_does_not_log_on_is_told_so_and_cut() -> None:
    async with BrokerServer(BrokerConfig(listen=())) as server:
        here, there = link_pair()
        server.attach(there)
        client = Peer(here)
        begun = trio.current_time()
        assert (await client.hear()).reason == "logon required"
        await client.expect_end()
        assert trio.current_time() - begun == pytest.approx(session.LOGON_LIMIT_S)


@pytest.mark.usefixtures("autojump_clock")
async def test_a_client_that_has_logged_on_may_be_silent() -> None:
    async with BrokerServer(BrokerConfig(listen=())) as server:
        here, there = link_pair()
        server.attach(there)
        client = Peer(here)
        await client.say("logon", cid="0", client_name="pubber", a="processed")
        assert (await client.hear()).status == "success"
        await trio.sleep(10 * session.LOGON_LIMIT_S)
        await client.say("flush", cid="1", a="processed")
        assert (await client.hear()).command_id == "1"


@pytest.mark.usefixtures("autojump_clock")
async def test_commands_behind_a_logon_may_take_longer_than_that_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscribing, "ENDS_PER_STEP", 1)
    frames = [
        encode_frame({"c": "logon", "client_name": "pubber"}),
        encode_frame({"c": "unsubscribe", "cid": "1", "sids": "a,b,c", "a": "processed"}),
    ]
    async with BrokerServer(BrokerConfig(listen=())) as server:
        here, there = link_pair()
        server.attach(there)
        async with server._entered().turn:
            assert here.try_send(memoryview(b"".join(frames)))
            await trio.sleep(2 * session.LOGON_LIMIT_S)
        assert (await Peer(here).hear()).command_id == "1"


@pytest.mark.parametrize("pack", [bytes, zlib.compress])
@pytest.mark.parametrize(
    "start", [struct.pack(">I", 200 * KIB * KIB) + b'{"c":"logon","client_name":"', b""]
)
async def test_before_the_logon_little_is_read(
    pack: Callable[[bytes], bytes], start: bytes
) -> None:
    """However little of it is sent: zeros, which are frames without a content, compress well."""
    async with running_broker() as server:
        stream = await trio.open_tcp_stream("127.0.0.1", port_of(server.uris[0]))
        with trio.fail_after(LIMIT_S), contextlib.suppress(trio.BrokenResourceError):
            async with stream:  # it may be cut before it has sent all, and before it has read why
                await stream.send_all(pack(start + bytes([120 * bool(start)]) * (8 * KIB * KIB)))
                while await stream.receive_some():
                    pass
        assert list(server.ended_connections) in (["unknown command"], ["connection lost"])


async def test_after_the_logon_frames_may_be_large() -> None:
    async with running_broker() as server, RawClient.connect(server.uris[0]) as client:
        await client.logon("pubber")
        await client.send(b"x" * KIB * KIB, c="p", t="orders", s=1)
        await client.send(c="flush", cid="1", a="processed")
        await client.ack("processed", "1")


async def test_large_frames_may_follow_a_logon_at_once() -> None:
    frames = [
        encode_frame({"c": "logon", "client_name": "pubber"}),
        encode_frame({"c": "p", "t": "orders", "s": 1}, b"x" * KIB * KIB),
        encode_frame({"c": "flush", "cid": "1", "a": "processed"}),
    ]
    async with running_broker() as server, RawClient.connect(server.uris[0]) as client:
        await client.send_bytes(b"".join(frames))
        await client.ack("processed", "1")


async def test_the_last_ack_is_sent_behind_all_that_waits_before_it() -> None:
    """A client that has not read for a while is told why its connection ends."""
    async with running_broker() as server, RawClient.connect(server.uris[0]) as client:
        await client.logon("reader")
        await client.send(c="subscribe", cid="1", t="orders", bm="0", a="processed")
        await client.ack("processed", "1")
        for _ in range(10):
            await client.send(b"x" * 40_000, c="p", t="orders")
            await client.send(c="flush", cid="2" * 200_000, a="processed")
        await client.send(c="no_such", cid="3", a="processed")
        with trio.fail_after(LIMIT_S):
            assert (await client.ack("processed", "3")).reason == "unknown command"


async def test_unfinished_frames_of_all_connections_share_one_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hub_module, "MAX_UNFINISHED_BYTES", 1000 * KIB)
    frame = encode_frame({"c": "p", "t": "orders", "s": 1, "a": "persisted"}, bytes(700 * KIB))
    async with running_broker() as server, AsyncExitStack() as opened:
        small, large = [
            await opened.enter_async_context(RawClient.connect(server.uris[0])) for _ in range(2)
        ]
        for client, name in ((small, "small"), (large, "large")):
            await client.logon(name, opts="ack_conflation=0s")
        await large.send_bytes(frame[: 690 * KIB])
        await small.send_bytes(frame[: 600 * KIB])
        assert (
            "too many of all connections" in (await large.until(lambda it: it.kind == "ack")).detail
        )
        await large.closed()
        await small.send_bytes(frame[600 * KIB :])
        assert (await small.ack("persisted")).status == "success"
        assert server.ended_connections == {"unknown command": 1}

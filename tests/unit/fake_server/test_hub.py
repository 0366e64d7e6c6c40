"""Effects are carried out in the order that is contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from typing_extensions import override

from haclient.protocol.codec import encode_frame
from haclient.protocol.identity import publisher_id
from haclient_fake_server import hub
from haclient_fake_server.config import BrokerConfig, ReplicateTo
from haclient_fake_server.engine.guards import Guard
from haclient_fake_server.engine.journal import Block, MemoryJournal
from haclient_fake_server.engine.queues.points import QueuePoint
from haclient_fake_server.engine.replication import wire
from haclient_fake_server.engine.replication.durability import ReplicationProgress
from haclient_fake_server.engine.settings import QueueTopic
from haclient_fake_server.hub import NO_FILES, SNAPSHOT_INTERVAL_S, BrokerFiles, Hub, SessionLike
from haclient_fake_server.journal.files import JournalFiles, JournalStopped, ProgressFile
from haclient_fake_server.journal.format import LogStart
from haclient_fake_server.journal.guard_file import GuardFile
from haclient_fake_server.journal.queue_points import QueuePointFile
from haclient_fake_server.journal.queue_snapshots import QueueSnapshotFiles, snapshot_name
from haclient_fake_server.offline_queue import OfflineQueue
from haclient_stores.disk.files import RealDisk
from haclient_stores.errors import StoreFull
from support.disks import RefusingDisk
from support.engine import decode
from support.recording import RecordingDisk


@dataclass
class Session(SessionLike):
    """A connection that keeps a diary."""

    number: int
    diary: list[str]
    unsent_bytes: int = 0
    in_file: int = 0
    sent: list[bytes] = field(default_factory=list[bytes])

    @override
    def put(self, data: bytes) -> None:
        self.diary.append(f"send {self.number}")
        self.sent.append(data)
        self.unsent_bytes += len(data)

    @override
    def wake(self) -> None:
        self.diary.append(f"wake {self.number}")

    @override
    def finish(self, reason: str) -> None:
        self.diary.append(f"close {self.number}: {reason}")

    @override
    def finish_slow_client(self, detail: str = "") -> None:
        self.diary.append(f"slow client {self.number}{detail}")

    @property
    @override
    def is_offline(self) -> bool:
        return self.in_file > 0

    @property
    @override
    def offline_bytes(self) -> int:
        return self.in_file

    @override
    def take_offline(self, queue: OfflineQueue) -> None:
        self.diary.append(f"offline {self.number}")
        self.in_file = self.unsent_bytes

    @override
    def cut(self, reason: str) -> None:
        self.diary.append(f"cut {self.number}: {reason}")


class Journal(MemoryJournal):
    """A journal in the same diary; full when told so."""

    def __init__(self, diary: list[str]) -> None:
        super().__init__()
        self._diary = diary
        self.full = False

    @override
    def append(self, block: Block) -> None:
        if self.full:
            raise StoreFull("no room")
        self._diary.append("journal")
        super().append(block)


class Bench:
    """A hub, its journal and a diary of all that it does."""

    def __init__(
        self,
        config: BrokerConfig | None = None,
        files: Callable[[list[str]], BrokerFiles] = lambda _: NO_FILES,
    ) -> None:
        self.diary: list[str] = []
        self.journal = Journal(self.diary)
        config = config or BrokerConfig(ack_interval_s=0.0)
        self.hub = Hub(config, self.journal, now_us=1, files=files(self.diary))

    def client(self, name: str) -> Session:
        session = Session(self.hub.next_number(), self.diary)
        self.hub.accepted(session, peer="test")
        self.send(session, c="logon", client_name=name)
        return session

    def send(self, session: Session, body: bytes = b"", /, **fields: str | int) -> None:
        self.hub.received(session, decode(encode_frame(fields, body), expand_sow=False))


def with_offline_queues(_: list[str]) -> BrokerFiles:
    """Files of slow clients, in memory."""
    disk = RecordingDisk()

    def new_queue(number: int) -> OfflineQueue:
        return OfflineQueue.create(disk, Path(f"{number}"), capacity=9999)

    return BrokerFiles(new_offline_queue=new_queue)


@pytest.mark.row("TL7")
async def test_the_journal_is_written_before_anything_is_sent() -> None:
    bench = Bench()
    reader, writer = bench.client("reader"), bench.client("writer")
    bench.send(reader, c="subscribe", cid="1", t="orders")
    bench.send(writer, c="p", t="orders", s=1, a="persisted")
    assert bench.diary == ["journal", "send 1", "send 2"]


@pytest.mark.row("TL7")
async def test_nothing_is_sent_when_the_journal_cannot_be_written() -> None:
    bench = Bench()
    writer = bench.client("writer")
    bench.journal.full = True
    with pytest.raises(StoreFull):
        bench.send(writer, c="p", t="orders", s=1, a="persisted")
    assert bench.diary == []


async def test_after_a_failed_write_nothing_reaches_the_engine() -> None:
    bench = Bench()
    writer, other = bench.client("writer"), bench.client("other")
    bench.journal.full = True
    with pytest.raises(StoreFull):
        bench.send(writer, c="p", t="orders", s=1, a="persisted")
    with pytest.raises(JournalStopped) as stopped:
        bench.send(other, c="p", t="orders", s=1, a="persisted")
    assert isinstance(stopped.value.__cause__, StoreFull)
    assert bench.diary == []


@pytest.mark.row("TL6")
async def test_a_lonely_message_is_written_without_waiting_for_others() -> None:
    bench = Bench()
    bench.send(bench.client("writer"), c="p", t="orders", s=1)
    assert bench.diary == ["journal"]
    assert bench.journal.next_position == 2


async def test_last_words_are_sent_before_a_close() -> None:
    bench = Bench()
    bench.client("same")
    bench.client("same")
    assert bench.diary == ["send 1", "close 1: name in use"]


@pytest.mark.row("RB13")
async def test_a_reader_of_the_log_is_woken_and_pumped_when_it_has_room() -> None:
    bench = Bench()
    reader, writer = bench.client("reader"), bench.client("writer")
    bench.send(writer, b"x", c="p", t="orders", s=1)
    bench.send(reader, c="subscribe", cid="1", t="orders", bm="0")
    assert bench.diary == ["journal", "wake 1"]
    assert bench.hub.has_backlog(reader)
    assert bench.hub.pump(reader)
    assert not bench.hub.pump(reader)
    assert [message.data for message in decode(*reader.sent)] == [b"x"]


@pytest.mark.row("RB13")
async def test_a_full_buffer_turns_a_bookmark_subscription_back_to_the_log() -> None:
    bench = Bench(BrokerConfig(high_water_bytes=100))
    reader, writer = bench.client("reader"), bench.client("writer")
    bench.send(reader, c="subscribe", cid="1", t="orders", bm="0")
    bench.hub.pump(reader)
    bench.send(writer, b"x" * 200, c="p", t="orders", s=1)
    bench.send(writer, b"y", c="p", t="orders", s=2)
    assert len(reader.sent) == 1
    reader.unsent_bytes = 0
    assert bench.hub.pump(reader)
    assert decode(*reader.sent)[-1].data == b"y"


async def test_a_plain_subscriber_over_the_hard_limit_is_cut() -> None:
    bench = Bench(BrokerConfig(high_water_bytes=100, slow_client_bytes=300))
    reader, writer = bench.client("reader"), bench.client("writer")
    bench.send(reader, c="subscribe", cid="1", t="orders")
    for number in (1, 2):
        bench.send(writer, b"x" * 200, c="p", t="orders", s=number)
    assert bench.diary[-1] == "slow client 1"


async def test_the_slowest_is_cut_when_all_together_have_too_much_to_send() -> None:
    bench = Bench(BrokerConfig(max_unsent_bytes=2000))
    slow, slower, writer = (bench.client(name) for name in ("slow", "slower", "writer"))
    bench.send(slow, c="subscribe", cid="1", t="one")
    bench.send(slower, c="subscribe", cid="1", t="^(one|other)$")
    bench.send(writer, b"x" * 500, c="p", t="other", s=1)
    assert not any("slow client" in each for each in bench.diary)
    bench.send(writer, b"x" * 900, c="p", t="one", s=2)
    assert [each for each in bench.diary if "slow client" in each] == ["slow client 2"]


@pytest.mark.row("AD8", "OP14")
async def test_a_slow_client_is_taken_offline_before_it_is_cut(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = BrokerConfig(high_water_bytes=1, offline_bytes=300, slow_client_bytes=700)
    bench = Bench(config, with_offline_queues)
    reader, writer = bench.client("reader"), bench.client("writer")
    bench.send(reader, c="subscribe", cid="1", t="orders")
    for number in (1, 2, 3, 4):
        bench.send(writer, b"x" * 200, c="p", t="orders", s=number)
    assert [each for each in bench.diary if each != "journal"] == [
        *("send 1", "send 1", "offline 1", "send 1", "slow client 1", "send 1", "slow client 1")
    ]
    assert "of client 'reader' at test: 4" in caplog.text
    assert "bytes unsent: taken offline, to a file" in caplog.text
    assert bench.hub.rows("clients")[0]["offline_bytes"] == reader.offline_bytes
    instance = bench.hub.rows("instance")[0]
    assert (instance["times_offline"], instance["offline_bytes"]) == (1, reader.offline_bytes)


@pytest.mark.row("AD8")
async def test_equally_slow_clients_are_taken_offline_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hub, "OFFLINE_STEP_BYTES", 500)
    bench = Bench(BrokerConfig(high_water_bytes=1, offline_bytes=300), with_offline_queues)
    readers = [bench.client(name) for name in "abcde"]
    for reader in readers:
        bench.send(reader, c="subscribe", cid="1", t="orders")
    writer = bench.client("writer")
    offline = []
    for number in (1, 2, 3, 4):  # a step ends when 500 bytes were written, and each has more unsent
        bench.send(writer, b"x" * 200, c="p", t="orders", s=number)
        offline.append([reader.is_offline for reader in readers].count(True))
    assert offline == [0, 2, 3, 4]


@pytest.mark.row("AD8")
async def test_all_together_are_taken_offline_before_the_slowest_is_cut() -> None:
    config = BrokerConfig(max_unsent_bytes=2000, max_offline_bytes=3000)
    bench = Bench(config, with_offline_queues)
    slow, slower, writer = (bench.client(name) for name in ("slow", "slower", "writer"))
    bench.send(slow, c="subscribe", cid="1", t="one")
    bench.send(slower, c="subscribe", cid="1", t="^(one|other)$")
    for number, topic in enumerate(("other", "one"), 1):
        bench.send(writer, b"x" * 900, c="p", t=topic, s=number)
    assert (slow.is_offline, slower.is_offline) == (False, True)
    assert not any("slow client" in each for each in bench.diary)
    slower.in_file = 3001
    bench.send(writer, b"x" * 200, c="p", t="one", s=3)
    assert "slow client 2" in bench.diary
    assert "slow client 1" not in bench.diary


@pytest.mark.row("AD8")
async def test_where_no_file_can_be_made_the_unsent_stays_in_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(number: int) -> OfflineQueue:
        raise StoreFull(f"offline.{number}: no room")

    config = BrokerConfig(high_water_bytes=1, offline_bytes=100, slow_client_bytes=400)
    bench = Bench(config, lambda _: BrokerFiles(new_offline_queue=refuse))
    reader, writer = bench.client("reader"), bench.client("writer")
    bench.send(reader, c="subscribe", cid="1", t="orders")
    for number in (1, 2):
        bench.send(writer, b"x" * 200, c="p", t="orders", s=number)
    assert "not taken offline: offline.1: no room" in caplog.text
    assert bench.diary[-1] == "slow client 1"


async def test_a_connection_that_has_gone_is_left_alone() -> None:
    bench = Bench()
    reader, writer = bench.client("reader"), bench.client("writer")
    bench.send(reader, c="subscribe", cid="1", t="orders")
    bench.hub.disconnected(reader)
    bench.send(writer, c="p", t="orders", s=1)
    assert bench.diary == ["journal"]
    assert not bench.hub.pump(reader)


@pytest.mark.row("AK2", "AD9")
async def test_time_reaches_the_engine_when_it_asked_for_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    assert autojump_clock.autojump_threshold == 0
    bench = Bench(BrokerConfig(ack_interval_s=1.0))
    writer = bench.client("writer")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.hub.keep_time)
        await trio.sleep(5)
        bench.send(writer, c="p", t="orders", s=1, a="persisted")
        bench.send(writer, c="heartbeat", opts="start,0.4")
        await trio.sleep(0.5)
        assert [message.kind for message in decode(*writer.sent)] == ["heartbeat"]
        bench.send(writer, c="heartbeat", opts="stop")
        await trio.sleep(0.51)
        assert [message.kind for message in decode(*writer.sent)] == ["heartbeat", "ack"]
        nursery.cancel_scope.cancel()


class Notes(ProgressFile):
    """The file, in the same diary."""

    def __init__(self, directory: Path, diary: list[str]) -> None:
        super().__init__(directory, RealDisk())
        self._diary = diary

    @override
    def write(self, progress: ReplicationProgress) -> None:
        self._diary.append(f"confirmed {progress.confirmed}")
        super().write(progress)


@pytest.mark.row("OP13", "TL7")
async def test_live_subscribers_alone_are_sent_something_before_the_journal_is_written() -> None:
    bench = Bench()
    live, safe = bench.client("live"), bench.client("safe")
    bench.send(live, c="subscribe", cid="1", t="orders", bm="0|1|", opts="live")
    bench.send(safe, c="subscribe", cid="1", t="orders", bm="0|1|")
    bench.send(bench.client("writer"), b"x", c="p", t="orders", s=1, a="persisted")
    assert bench.diary == ["send 1", "journal", "send 2", "send 3"]


@pytest.mark.row("RE4", "RE5", "RE11")
async def test_how_far_all_is_safe_is_written_down_before_anybody_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = BrokerConfig(
        name="east", ack_interval_s=0.0, replicate_to=(ReplicateTo("tcp://west:1"),)
    )
    diary: list[str] = []
    journal = Journal(diary)
    hub = Hub(config, journal, now_us=1, files=BrokerFiles(Notes(tmp_path, diary)))
    link, writer = Session(hub.next_number(), diary), Session(hub.next_number(), diary)
    hub.dialled(link, "tcp://west:1")
    hub.accepted(writer, peer="test")
    frames = [
        encode_frame({"c": "logon", "client_name": "p"}),
        encode_frame({"c": "p", "t": "orders", "s": 1, "a": "persisted"}),
    ]
    hub.received(writer, decode(*frames))
    assert diary == ["confirmed 0", "send 1", "journal"]
    hub.received(link, decode(wire.welcome("west", {})))
    assert hub.pump(link)
    hub.received(link, decode(wire.written(1)))
    assert diary[3:] == ["confirmed 0", "wake 1", "send 1", "confirmed 1", "send 2"]
    assert hub.destinations[0].acknowledged == 1
    hub.downgrade("tcp://west:1")
    assert not hub.destinations[0].is_sync
    hub.upgrade("tcp://west:1")
    assert hub.destinations[0].is_sync
    hub.disconnected(link)
    assert not hub.destinations[0].is_connected
    assert [each.getMessage() for each in caplog.records] == [
        "east: replication to tcp://west:1: connected to west, synchronous replication",
        "east: replication to tcp://west:1: asynchronous, as asked",
        "east: replication to tcp://west:1: synchronous again",
        "east: replication to tcp://west:1: disconnected",
    ]
    again = Hub(config, journal, now_us=1, files=BrokerFiles(Notes(tmp_path, diary)))
    assert diary[-1] == "confirmed 1"
    assert again.destinations[0].instance == "west", "it is known before it is reached"
    assert again.destinations[0].acknowledged == 0


class Points(QueuePointFile):
    """The file of the queues' recovery points, in the same diary."""

    def __init__(self, directory: Path, diary: list[str]) -> None:
        super().__init__(directory, RealDisk(), log_starts=[LogStart(1, 1)])
        self._diary = diary

    @override
    def write(self, points: Sequence[QueuePoint]) -> None:
        super().write(points)
        self._diary.append(f"points {[point.position for point in points]}")


class QueueBench(Bench):
    """The same with a queue whose recovery points are in a file."""

    def __init__(self, directory: Path) -> None:
        super().__init__(
            BrokerConfig(ack_interval_s=0.0, queues=(QueueTopic(name="work", topics=("orders",)),)),
            lambda diary: BrokerFiles(queue_points=Points(directory, diary)),
        )


async def run_inline(function: Callable[..., None], *arguments: object) -> None:
    """Run what belongs into a thread: the clock would jump while the thread runs."""
    await trio.lowlevel.checkpoint()
    function(*arguments)


async def test_a_guard_behind_the_end_of_the_log_is_moved_back_in_its_file_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    GuardFile(tmp_path, RealDisk()).write([Guard("query", 5, 1, 10**15)])
    Bench(None, lambda _: BrokerFiles(guards=GuardFile(tmp_path, RealDisk())))
    (guard,) = GuardFile(tmp_path, RealDisk()).guards
    assert guard.after == 0, "the messages that get positions 1 to 5 next are other ones"
    full = RefusingDisk()
    full.is_full = True
    GuardFile(tmp_path, RealDisk()).write([Guard("query", 5, 1, 10**15)])
    Bench(None, lambda _: BrokerFiles(guards=GuardFile(tmp_path, full)))
    assert "guards.json: no room" in caplog.text


@pytest.mark.row("QB29")
@pytest.mark.usefixtures("autojump_clock")
async def test_recovery_points_are_written_at_the_start_once_a_second_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trio.to_thread, "run_sync", run_inline)
    bench = QueueBench(tmp_path)
    assert bench.diary == ["points [1]"]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.hub.keep_time)
        nursery.start_soon(bench.hub.keep_queue_points)
        writer, worker = bench.client("writer"), bench.client("worker")
        for number in (1, 2):
            bench.send(writer, c="p", t="orders", s=number)
        bench.send(worker, c="subscribe", cid="1", sub_id="1", t="work")
        for number in (1, 2):
            bookmark = f"{publisher_id('writer')}|{number}|"
            bench.send(worker, c="sow_delete", cid="2", t="work", bm=bookmark)
            if number == 1:
                await trio.sleep(3.0)
        assert [entry for entry in bench.diary if "points" in entry] == ["points [1]", "points [2]"]
        nursery.cancel_scope.cancel()
    bench.hub.close()
    bench.hub.close()
    assert [entry for entry in bench.diary if "points" in entry][2:] == ["points [3]"]


@pytest.mark.usefixtures("autojump_clock")
async def test_recovery_points_that_find_no_room_are_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trio.to_thread, "run_sync", run_inline)
    disk = RefusingDisk()
    starts = [LogStart(1, 1)]
    bench = Bench(
        BrokerConfig(queues=(QueueTopic(name="work", topics=("orders",)),)),
        lambda _: BrokerFiles(queue_points=QueuePointFile(tmp_path, disk, log_starts=starts)),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.hub.keep_time)
        nursery.start_soon(bench.hub.keep_queue_points)
        writer, worker = bench.client("writer"), bench.client("worker")
        bench.send(worker, c="subscribe", cid="1", sub_id="1", t="work")
        disk.is_full = True
        bench.send(writer, c="p", t="orders", s=1)
        bookmark = f"{publisher_id('writer')}|1|"
        bench.send(worker, c="sow_delete", cid="2", t="work", bm=bookmark)
        await trio.sleep(5.0)
        assert "queues.ack: no room" in caplog.text
        bench.hub.close()  # it must not hide why a broker ends
        disk.is_full = False
        await trio.sleep(20.0)
        nursery.cancel_scope.cancel()
    (point,) = QueuePointFile(tmp_path, disk, log_starts=starts).points
    assert point.position == 2


@pytest.mark.usefixtures("autojump_clock")
async def test_a_broker_starts_on_a_full_disk_and_writes_recovery_points_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trio.to_thread, "run_sync", run_inline)
    disk = RefusingDisk()
    disk.is_full = True
    file = QueuePointFile(tmp_path, disk, log_starts=[LogStart(1, 1)])
    bench = Bench(
        BrokerConfig(queues=(QueueTopic(name="work"),)), lambda _: BrokerFiles(queue_points=file)
    )
    assert "queues.ack: no room" in caplog.text
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.hub.keep_queue_points)
        await trio.sleep(5.0)
        disk.is_full = False
        await trio.sleep(10.0)
        nursery.cancel_scope.cancel()
    assert [point.name for point in file.points] == ["work"]


async def test_a_guard_that_finds_no_room_has_no_answer_and_ends_no_other_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = RefusingDisk()
    bench = Bench(None, lambda _: BrokerFiles(guards=GuardFile(tmp_path, disk)))
    reader, writer = bench.client("reader"), bench.client("writer")
    disk.is_full = True
    messages = decode(
        encode_frame({"c": "sow", "cid": "1", "t": "/HACLIENT/guards"}, b'{"name":"a","after":0}')
    )
    bench.hub.received(reader, messages)
    assert (
        f"cut {reader.number}: internal error: {tmp_path / 'guards.json'}: no room" in bench.diary
    )
    assert "guards.json: no room" in caplog.text
    bench.send(writer, c="p", t="orders", s=1)
    assert not [entry for entry in bench.diary if f"cut {writer.number}" in entry]


@pytest.mark.row("QB29")
async def test_after_a_failed_write_no_recovery_point_says_what_the_journal_lacks(
    tmp_path: Path,
) -> None:
    bench = QueueBench(tmp_path)
    writer, worker = bench.client("writer"), bench.client("worker")
    bench.send(writer, c="p", t="orders", s=1)
    bench.send(worker, c="subscribe", cid="1", sub_id="1", t="work")
    bench.journal.full = True
    bookmark = f"{publisher_id('writer')}|1|"
    with pytest.raises(StoreFull):
        bench.send(worker, c="sow_delete", cid="2", t="work", bm=bookmark)
    bench.hub.disconnected(worker)  # connections end before the hub does
    bench.hub.close()
    assert [entry for entry in bench.diary if "points" in entry] == ["points [1]"]


async def test_a_broker_without_queues_writes_no_recovery_points(tmp_path: Path) -> None:
    bench = Bench(None, lambda diary: BrokerFiles(queue_points=Points(tmp_path, diary)))
    bench.send(bench.client("writer"), c="p", t="orders", s=1)
    bench.hub.close()
    assert bench.diary == ["journal"]
    assert not Points(tmp_path, bench.diary).points


@pytest.mark.row("QB30")
@pytest.mark.usefixtures("autojump_clock")
async def test_file_backed_queues_are_written_now_and_then_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trio.to_thread, "run_sync", run_inline)
    queue = QueueTopic(name="work", topics=("orders",), file_backed=True)
    config = BrokerConfig(ack_interval_s=0.0, queues=(queue,))
    path = tmp_path / snapshot_name("work", "json")

    def opened(start_id: int) -> tuple[JournalFiles, QueueSnapshotFiles]:
        journal = JournalFiles(
            tmp_path, RealDisk(), segment_bytes=1 << 20, instance_id=1, start_id=start_id
        )
        files = QueueSnapshotFiles(tmp_path, RealDisk(), journal, queues=[("work", "json")])
        return journal, files

    def held(start_id: int) -> list[list[int]]:
        """The positions in the snapshot that the next broker takes."""
        journal, files = opened(start_id)
        journal.close()
        return [
            [position for run in each.columns.messages for position in run.positions]
            for each in files.snapshots
        ]

    journal, files = opened(1)
    hub = Hub(config, journal, now_us=1, files=BrokerFiles(queue_snapshots=files))
    writer = Session(hub.next_number(), [])
    hub.accepted(writer, peer="test")
    hub.received(writer, decode(encode_frame({"c": "logon", "client_name": "w"})))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hub.keep_queue_snapshots)
        hub.received(writer, decode(encode_frame({"c": "p", "t": "orders", "s": 1}, b"1")))
        assert not path.exists()
        await trio.sleep(SNAPSHOT_INTERVAL_S + 1.0)
        written = path.stat().st_ino
        await trio.sleep(SNAPSHOT_INTERVAL_S)
        assert path.stat().st_ino == written, "nothing has happened since"
        hub.received(writer, decode(encode_frame({"c": "p", "t": "orders", "s": 2}, b"2")))
        nursery.cancel_scope.cancel()
    journal.close()
    assert held(2) == [[1]]  # as after a kill: the second message is in the log alone
    journal, files = opened(3)
    hub = Hub(config, journal, now_us=1, files=BrokerFiles(queue_snapshots=files))
    hub.close()
    journal.close()
    assert held(4) == [[1, 2]]

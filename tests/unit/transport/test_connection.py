from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.errors import (
    HAClientError,
    HeartbeatLost,
    NameInUse,
    ProtocolError,
    StoreFull,
)
from haclient.protocol.codec import encode_frame
from haclient.protocol.messages import Message
from haclient.session.connection_state import Heartbeat, HeartbeatTimers
from haclient.session.session import Received, Session
from haclient.session.subscriptions import Subscription
from haclient.transport.back_pressure import AckWaits, BackPressure
from haclient.transport.connection import Connection
from haclient.transport.links.memory_network import MemoryLink, link_pair
from haclient.transport.message_queue import MessageQueue
from haclient.transport.reporter import CallQueue
from haclient.transport.writer import SendGate, Writer
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.peer import Peer, delivery
from support.requests import request_of

pytestmark = in_virtual_time


class Bench:
    """A connection over a link in memory, and the peer at its other end."""

    def __init__(self, *, cap_bytes: int = 10_000) -> None:
        self.link, far = link_pair()
        self.peer = Peer(far)
        self.far: MemoryLink = far
        self.session = Session()
        self.chunks: list[Received] = []
        self.error: Exception | None = None
        self.reason: HAClientError | None = None
        self.over = trio.Event()
        self.times: list[tuple[float, bool]] = []
        self.waits = AckWaits()
        self.delivery = MessageQueue(cap_bytes)
        self.calls = CallQueue()
        self.session.router.add(Subscription(request_of("1"), self.delivery))
        self.connection = Connection(
            self.link,
            self.session,
            writer=Writer(self.link, MemoryPublishStore(), SendGate(1 << 40)),
            owner=self,
            back_pressure=BackPressure(self.waits, self.calls),
        )

    def caught_up(self, until: float, *, is_last: bool) -> None:
        self.times.append((until, is_last))

    def received(self, received: Received, /) -> None:
        if self.error is not None:
            raise self.error
        self.chunks.append(received)

    async def run(self) -> None:
        self.reason = await self.connection.run()
        self.over.set()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        with trio.fail_after(10_000):  # no wall time: whatever hangs fails at once
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.run)
                await wait_all_tasks_blocked()
                yield
                nursery.cancel_scope.cancel()

    async def ended(self) -> str:
        await self.over.wait()
        return f"{type(self.reason).__name__}: {self.reason}"

    @property
    def is_reading(self) -> bool:
        return self.connection.is_reading

    async def bodies(self) -> list[bytes]:
        return [message.data for message in await self.delivery.next_batch() or []]


# -- up to when the peer was heard --------------------------------------------------------


@pytest.mark.row("BS9")
async def test_what_is_read_tells_up_to_when_the_peer_was_heard() -> None:
    bench = Bench()
    async with bench.running():
        begun = trio.current_time()
        for _ in range(3):
            await trio.sleep(0.6)
            await bench.peer.publish("1", b"a")
            await wait_all_tasks_blocked()
        await trio.sleep(50)
        bench.far.close()
        await bench.ended()
    times = [round(until - begun, 3) for until, _ in bench.times]
    assert times == [0.0, 1.2, 1.8]  # about once a second; and nothing after the last message
    assert [last for _, last in bench.times] == [False, False, True]


@pytest.mark.row("BS9", "MS5")
async def test_while_reading_stands_still_nothing_is_heard() -> None:
    """The peer may be held up: what it writes afterwards may be as old as that is long."""
    bench = Bench(cap_bytes=10)
    async with bench.running():
        begun = trio.current_time()
        await bench.peer.publish("1", b"a" * 100)
        await wait_all_tasks_blocked()
        await trio.sleep(20)
        await bench.bodies()
        await wait_all_tasks_blocked()
        bench.far.close()
        await bench.ended()
    assert [round(until - begun, 3) for until, _ in bench.times] == [0.0, 0.0, 0.0]


# -- reading ------------------------------------------------------------------------------


@pytest.mark.parametrize("read_bytes", [1, 3, 7, 1000])
async def test_messages_arrive_whatever_the_size_of_the_reads(read_bytes: int) -> None:
    bench = Bench()
    bench.far.sending.receive_bytes = read_bytes
    found: list[bytes] = []
    async with bench.running():
        await bench.peer.publish("1", b"a", b"", b"ccc")
        while len(found) < 3:
            found += await bench.bodies()
    assert found == [b"a", b"", b"ccc"]


async def test_acks_are_acted_on_before_messages_are_handed_over() -> None:
    bench = Bench()
    async with bench.running():
        persisted = encode_frame({"c": "ack", "a": "persisted", "status": "success", "s": 4})
        await bench.peer.send(delivery("1", b"a") + persisted)
        assert await bench.bodies() == [b"a"]
    assert [each.persisted for each in bench.chunks] == [4]


@pytest.mark.row("AT14")
async def test_a_frame_above_the_limit_ends_the_connection() -> None:
    bench = Bench()
    async with bench.running():
        await bench.peer.send(b"\xff\xff\xff\xff{")
        assert (await bench.ended()).startswith("ProtocolError: the peer announced a frame of")
    assert bench.link.closed


@pytest.mark.row("AT14")
@pytest.mark.parametrize("junk", [b"\0\0\0\x04abcd", b'\0\0\0\x08{"c":"p}'])
async def test_bytes_that_are_not_the_protocol_end_the_connection(junk: bytes) -> None:
    bench = Bench()
    async with bench.running():
        await bench.peer.send(junk)
        await bench.ended()
    assert isinstance(bench.reason, ProtocolError)


@pytest.mark.parametrize(
    ("ack_awaited", "least_s", "most_s"), [(False, 0.001, 0.005), (True, 0, 0)]
)
async def test_many_tiny_reads_are_gathered_unless_someone_waits(
    ack_awaited: bool,  # noqa: FBT001  # a parameter
    least_s: float,
    most_s: float,
) -> None:
    bench = Bench()
    bench.far.sending.receive_bytes = 50
    async with bench.running(), trio.open_nursery() as nursery:
        if ack_awaited:
            nursery.start_soon(bench.waits.until, trio.Event(), "flush")
            await wait_all_tasks_blocked()
        start = trio.current_time()
        await bench.peer.publish("1", *[b"a"] * 20)
        found: list[bytes] = []
        while len(found) < 20:
            found += await bench.bodies()
        assert least_s <= trio.current_time() - start <= most_s
        nursery.cancel_scope.cancel()


# -- the end ------------------------------------------------------------------------------


async def test_the_peers_end_is_a_reason_and_no_error() -> None:
    bench = Bench()
    async with bench.running():
        await bench.peer.publish("1", b"a")
        bench.far.close()
        assert await bench.ended() == "DisconnectedError: server closed the connection"
    assert bench.link.closed


@pytest.mark.row("AT2")
async def test_a_peer_that_closes_without_a_byte_may_expect_another_scheme() -> None:
    bench = Bench()
    async with bench.running():
        bench.far.close()
        assert await bench.ended() == (
            "DisconnectedError: server closed the connection before it sent anything: are the port "
            "and the scheme (tcp:// or tcps://) right?"
        )


async def test_a_reset_is_a_reason_that_carries_the_systems_error() -> None:
    bench = Bench()
    async with bench.running():
        bench.link.reset()
        assert "connection to server was lost: connection reset" in await bench.ended()
    assert bench.reason is not None
    assert isinstance(bench.reason.__cause__, ConnectionResetError)


@pytest.mark.row("ID7")
async def test_a_farewell_says_why() -> None:
    bench = Bench()
    async with bench.running():
        await bench.peer.ack(None, status="failure", reason="slow client")
        bench.far.close()
        assert (await bench.ended()).startswith(
            "SlowClient: server closed the connection: slow client"
        )


@pytest.mark.row("ID7")
@pytest.mark.parametrize("kind", ["processed", "persisted"])
async def test_a_failure_ack_that_more_follows_is_not_the_reason_of_a_later_loss(
    kind: str,
) -> None:
    bench = Bench()
    async with bench.running():
        await bench.peer.ack(None, kind, status="failure", reason="not entitled")
        await wait_all_tasks_blocked()
        await bench.peer.publish("1", b"a")
        await wait_all_tasks_blocked()
        bench.far.close()
        assert "not entitled" not in await bench.ended()


@pytest.mark.row("ID5", "CC37")
async def test_a_name_that_someone_else_took_is_an_error_of_its_own() -> None:
    bench = Bench()
    async with bench.running():
        await bench.peer.ack(None, status="failure", reason="name in use")
        bench.far.close()
        await bench.ended()
    assert isinstance(bench.reason, NameInUse)
    assert "another connection has taken this client name" in str(bench.reason)


async def test_closing_it_ourselves_says_so() -> None:
    bench = Bench()
    async with bench.running():
        bench.connection.close()
        assert "closed by this client" in await bench.ended()


async def test_closing_works_while_reading_has_stopped() -> None:
    bench = Bench(cap_bytes=10)
    async with bench.running():
        await bench.peer.publish("1", bytes(1000))
        await wait_all_tasks_blocked()
        assert not bench.is_reading
        bench.connection.close()
        assert "closed by this client" in await bench.ended()


async def test_a_failure_of_our_own_is_raised() -> None:
    bench = Bench()
    bench.error = StoreFull("no room")
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012  # the block is what is tested
        async with bench.running():
            await bench.peer.publish("1", b"a")
            await trio.sleep_forever()
    assert caught.group_contains(StoreFull)
    assert bench.link.closed


async def test_a_lost_link_wakes_those_who_wait_for_room() -> None:
    bench = Bench()
    async with bench.running(), trio.open_nursery() as nursery:
        nursery.start_soon(bench.connection.writer.room)
        await wait_all_tasks_blocked()
        bench.far.close()
        await bench.ended()
    assert not bench.connection.writer.log_open


# -- beats --------------------------------------------------------------------------------


@pytest.mark.row("HB1")
async def test_a_beat_is_sent_every_interval_to_the_microsecond() -> None:
    bench = Bench()
    async with bench.running():
        start = trio.current_time()
        bench.connection.set_heartbeat(HeartbeatTimers(Heartbeat(0.25, idle_limit=100)))
        with trio.move_on_after(1.1):
            await bench.peer.listen_until_end()
    assert [beat - start for beat in bench.peer.beats] == pytest.approx([0.25, 0.5, 0.75, 1.0])


async def echo_heartbeats(peer: Peer, seconds: float) -> None:
    """Answer each heartbeat with one, beginning with one of its own."""
    with trio.move_on_after(seconds):
        while True:
            before = len(peer.beats)
            await peer.say("heartbeat")
            while len(peer.beats) == before:
                await peer._read()


@pytest.mark.row("HB1")
async def test_a_peer_that_answers_heartbeats_gets_one_per_interval_and_starts_no_storm() -> None:
    bench = Bench()
    async with bench.running():
        bench.connection.set_heartbeat(HeartbeatTimers(Heartbeat(0.25, idle_limit=100)))
        await echo_heartbeats(bench.peer, 2.1)
    assert len(bench.peer.beats) == 8


async def test_heartbeats_that_nobody_asked_for_are_answered_at_most_once_a_second() -> None:
    bench = Bench()
    async with bench.running():
        await echo_heartbeats(bench.peer, 0.5)
        assert len(bench.peer.beats) == 1
        await trio.sleep(1)
        await echo_heartbeats(bench.peer, 0.5)
        assert len(bench.peer.beats) == 2


@pytest.mark.row("HB2", "HB10")
async def test_a_peer_that_falls_silent_is_lost_after_two_intervals() -> None:
    bench = Bench()
    async with bench.running():
        bench.connection.set_heartbeat(HeartbeatTimers(0.35))
        bench.far.sending.silent = bench.link.sending.silent = True
        start = trio.current_time()
        await bench.ended()
        assert trio.current_time() - start == pytest.approx(0.7)
    assert isinstance(bench.reason, HeartbeatLost)
    assert str(bench.reason) == "server was silent for 0.7 s"


@pytest.mark.row("HB2")
async def test_any_traffic_keeps_the_connection_even_half_a_frame() -> None:
    bench = Bench()
    async with bench.running():
        bench.connection.set_heartbeat(HeartbeatTimers(1))
        for piece in b"\0\0\0\x7f{":
            await trio.sleep(1.9)
            await bench.peer.send(bytes([piece]))
        start = trio.current_time()
        await bench.ended()
        assert trio.current_time() - start == pytest.approx(2)


@pytest.mark.row("HB3", "HB5")
async def test_the_heartbeat_can_be_changed_and_ended_at_any_time() -> None:
    bench = Bench()
    async with bench.running():
        bench.connection.set_heartbeat(HeartbeatTimers(1))
        await trio.sleep(1.5)
        bench.connection.set_heartbeat(HeartbeatTimers(Heartbeat(10, idle_limit=30)))
        await trio.sleep(25)
        bench.connection.set_heartbeat(None)
        await trio.sleep(1000)
        assert not bench.over.is_set()
        bench.connection.set_heartbeat(HeartbeatTimers(Heartbeat(1, idle_limit=1.25)))
        start = trio.current_time()
        await bench.ended()
        assert trio.current_time() - start == pytest.approx(1.25)


# -- full queues --------------------------------------------------------------------------


@pytest.mark.row("MS5")
async def test_a_full_queue_stops_the_reading_until_half_is_taken() -> None:
    bench = Bench(cap_bytes=1000)
    async with bench.running():
        for body in (b"a", b"b", b"c", b"d"):
            await bench.peer.publish("1", body * 400)
            await wait_all_tasks_blocked()
        assert not bench.is_reading
        held = bench.delivery.queued_bytes
        assert 1000 < held < 1500
        assert [body[:1] for body in await bench.bodies()] == [b"a"]
        await wait_all_tasks_blocked()
        assert not bench.is_reading
        assert [body[:1] for body in await bench.bodies()] == [b"b"]
        await wait_all_tasks_blocked()
        assert bench.is_reading
        assert [(await bench.bodies())[0][:1] for _ in range(2)] == [b"c", b"d"]


@pytest.mark.row("MS5")
async def test_one_large_message_in_many_reads_counts_whole() -> None:
    bench = Bench(cap_bytes=100_000)
    bench.far.sending.receive_bytes = 10_000
    async with bench.running():
        await bench.peer.publish("1", bytes(200_000))
        await wait_all_tasks_blocked()
        assert bench.delivery.queued_bytes > 200_000
        assert not bench.is_reading


@pytest.mark.row("MS5")
async def test_the_records_of_one_frame_count_once() -> None:
    bench = Bench(cap_bytes=100_000)
    async with bench.running():
        await bench.peer.records(Message(query_id="1"), *[b"x" * 50] * 1000)
        await wait_all_tasks_blocked()
        assert 50_000 < bench.delivery.queued_bytes < 100_000
        assert bench.is_reading


@pytest.mark.row("MS5", "HB7")
async def test_while_reading_has_stopped_our_beats_go_on_and_silence_is_no_loss() -> None:
    bench = Bench(cap_bytes=10)
    async with bench.running():
        bench.connection.set_heartbeat(HeartbeatTimers(1))
        await bench.peer.publish("1", bytes(100))
        with trio.move_on_after(10.5):
            await bench.peer.listen_until_end()
        assert len(bench.peer.beats) == 10
        await bench.bodies()
        start = trio.current_time()
        await bench.ended()
        assert trio.current_time() - start == pytest.approx(2)


@pytest.mark.row("MS5")
async def test_callbacks_that_are_behind_stop_the_reading_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("haclient.transport.reporter._CAP_BYTES", 2 * 256)
    bench = Bench()
    async with bench.running(), trio.open_nursery() as nursery:
        for _ in range(3):
            bench.calls.put(print, 1)
        await bench.peer.publish("1", b"a")
        await wait_all_tasks_blocked()
        assert not bench.is_reading
        while bench.calls.backlog:
            bench.calls.pop()
        await wait_all_tasks_blocked()
        assert bench.is_reading
        nursery.cancel_scope.cancel()


async def test_reading_resumes_only_when_every_full_queue_has_drained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("haclient.transport.reporter._CAP_BYTES", 2 * 256)
    bench = Bench(cap_bytes=10)
    other = MessageQueue(10)
    bench.session.router.add(Subscription(request_of("2"), other))
    async with bench.running(), trio.open_nursery() as nursery:
        await bench.peer.publish("1,2", bytes(100))
        await wait_all_tasks_blocked()
        for _ in range(3):
            bench.calls.put(print, 1)
        assert not bench.is_reading
        await bench.bodies()
        await wait_all_tasks_blocked()
        assert not bench.is_reading
        await other.next_batch()
        await wait_all_tasks_blocked()
        assert not bench.is_reading
        while bench.calls.backlog:
            bench.calls.pop()
        await wait_all_tasks_blocked()
        assert bench.is_reading
        nursery.cancel_scope.cancel()

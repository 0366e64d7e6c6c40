from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked
from typing_extensions import override

from haclient.protocol.framing import FrameReader
from haclient.session.custom_stores import SendingStore
from haclient.session.publishes import UnpersistedAges
from haclient.transport.links.memory_network import MemoryLink, link_pair
from haclient.transport.tasks import TURN_S
from haclient.transport.writer import FLUSH_BYTES, SendGate, Writer
from haclient_stores.interfaces import FrameLog
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.custom import DictPublishStore

HEAD, TAIL = b'{"s":', b"}"


def control(name: str) -> bytes:
    rest = b"{%b}" % name.encode()
    return len(rest).to_bytes(4, "big") + rest


class Wire:
    """A writer over a link in memory, and what has come out at the other end."""

    def __init__(self, log: FrameLog | None = None) -> None:
        self.link, self._far = link_pair()
        self.gate = SendGate(cap_bytes=1 << 40)
        self.log = log or MemoryPublishStore()
        self.writer = Writer(self.link, self.log, self.gate)
        self.writer.log_open = log is not None
        self._reader = FrameReader()

    def append(self, body: bytes = b"") -> None:
        self.log.append(HEAD, TAIL, body)
        if self.log.unsent_bytes >= self.gate.check_at:
            self.writer.flush()
        elif self.gate.parked:
            self.writer.wake()

    def frames(self) -> list[str]:
        """What has arrived since the last call: names of control frames, or sequence and body."""
        buffer = memoryview(bytearray(1 << 20))
        found: list[str] = []
        while count := self._far.recv_into(buffer):
            heads, bodies = self._reader.feed(buffer[:count])
            found += [
                (head[1:-1] + body).decode() for head, body in zip(heads, bodies, strict=True)
            ]
        assert not self._reader.pending or self.link.sending.sent_bytes
        return [each.replace('"s":', "") for each in found]

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.writer.run)
            await wait_all_tasks_blocked()
            yield
            nursery.cancel_scope.cancel()


@pytest.fixture(params=["memory", "custom"])
def log(request: pytest.FixtureRequest) -> FrameLog:
    if request.param == "memory":
        store = MemoryPublishStore(segment_bytes=2**15)
        store.reconcile(seen=0, persisted=0, clock_us=0)
        return store
    return SendingStore(DictPublishStore())


async def test_frames_leave_in_the_order_of_their_sending() -> None:
    wire = Wire()
    async with wire.running():
        for name in "abc":
            wire.writer.send(control(name))
        await wait_all_tasks_blocked()
    assert wire.frames() == ["a", "b", "c"]
    assert wire.writer.outbox_bytes == 0


async def test_a_command_leaves_after_what_was_published_before_it_and_before_the_rest(
    log: FrameLog,
) -> None:
    wire = Wire(log)
    wire.append()
    wire.writer.send(control("query"))
    wire.append()
    wire.writer.send(control("flush"))
    wire.append()
    assert wire.writer.pump()
    assert wire.frames() == ["1", "query", "2", "flush", "3"]


class Layered(MemoryLink):
    """A link that accepts everything, and passes it on when it is waited for."""

    kept = 0

    @property
    @override
    def unsent_bytes(self) -> int:
        return self.kept

    @override
    def try_send(self, data: memoryview | bytes) -> int | None:
        self.kept += len(data)
        return super().try_send(data)

    @override
    async def wait_writable(self) -> None:
        await super().wait_writable()
        self.kept = 0


async def test_what_a_link_of_several_layers_keeps_leaves_with_nothing_behind_it() -> None:
    near, _ = link_pair()
    link = Layered("peer", sending=near.sending, receiving=near.receiving)
    writer = Writer(link, MemoryPublishStore(), SendGate(cap_bytes=1 << 40))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        for _ in range(2):
            writer.send(control("last"))
            await wait_all_tasks_blocked()
            assert link.kept == 0
            assert not writer.blocked
        nursery.cancel_scope.cancel()


async def test_an_urgent_frame_leaves_at_the_next_boundary(log: FrameLog) -> None:
    wire = Wire(log)
    for _ in range(3):
        wire.append(b"x" * 20)
    wire.link.sending.capacity_bytes = 10
    assert not wire.writer.pump()
    wire.writer.send(control("query"))
    wire.writer.send_urgent(control("beat"))
    wire.link.sending.capacity_bytes = 10_000
    assert wire.writer.pump()
    assert wire.frames() == ["1" + "x" * 20, "beat", "2" + "x" * 20, "3" + "x" * 20, "query"]


async def test_an_urgent_frame_does_not_break_into_a_command_either() -> None:
    wire = Wire()
    wire.link.sending.capacity_bytes = 6
    wire.writer.send(control("a long command"))
    assert not wire.writer.pump()
    wire.writer.send_urgent(control("beat"))
    wire.link.sending.capacity_bytes = 10_000
    wire.writer.pump()
    assert wire.frames() == ["a long command", "beat"]


@pytest.mark.row("PS7")
async def test_a_closed_log_stays_and_only_urgent_frames_leave(log: FrameLog) -> None:
    wire = Wire(log)
    wire.writer.log_open = False
    wire.append()
    wire.writer.send_urgent(control("logon"))
    assert wire.writer.pump()
    assert wire.frames() == ["logon"]
    wire.writer.log_open = True
    wire.writer.pump()
    assert wire.frames() == ["1"]


async def test_small_frames_leave_in_one_piece_and_large_ones_alone() -> None:
    wire = Wire()
    for name in ("a" * 100_000, "b" * 100_000, "c" * 100_000):
        wire.writer.send(control(name))
    assert len(wire.writer._next_piece()) == 2 * 100_006
    wire.writer.pump()
    assert [len(each) for each in wire.frames()] == [100_000] * 3


async def test_the_task_sleeps_until_it_is_woken_and_waits_while_the_socket_is_full(
    log: FrameLog,
) -> None:
    wire = Wire(log)
    wire.link.sending.capacity_bytes = 8
    async with wire.running():
        wire.append(b"abc")
        await wait_all_tasks_blocked()
        assert wire.writer.blocked
        assert wire.frames() == []
        await wait_all_tasks_blocked()
        found = wire.frames()
        await wait_all_tasks_blocked()
        assert found + wire.frames() == ["1abc"]
        assert not wire.writer.blocked


@pytest.mark.row("CC32")
async def test_enough_unsent_bytes_are_sent_by_the_publisher_itself(log: FrameLog) -> None:
    wire = Wire(log)
    wire.append(b"x" * (FLUSH_BYTES // 2))
    assert wire.frames() == []
    wire.append(b"x" * (FLUSH_BYTES // 2))
    assert len(wire.frames()) == 2


async def test_while_the_socket_is_full_the_publisher_leaves_it_alone(log: FrameLog) -> None:
    wire = Wire(log)
    wire.link.sending.capacity_bytes = 4
    wire.append(b"x" * FLUSH_BYTES)
    assert wire.writer.blocked
    sent = wire.link.sending.sent_bytes
    wire.link.sending.capacity_bytes = 8
    wire.append(b"x" * FLUSH_BYTES)
    assert wire.link.sending.sent_bytes == sent


@pytest.mark.row("CC6")
async def test_a_broken_link_is_met_by_the_task_and_not_by_the_publisher(log: FrameLog) -> None:
    wire = Wire(log)
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012  # the block is what is tested
        async with wire.running():
            wire.link.reset()
            wire.append(b"x" * FLUSH_BYTES)
            assert log.unpersisted_count == 1
            await trio.sleep_forever()
    assert caught.group_contains(ConnectionResetError)


async def test_whoever_waits_for_room_is_woken_by_progress() -> None:
    wire = Wire()
    wire.link.sending.capacity_bytes = 4
    there_is_room = trio.Event()

    async def wait() -> None:
        while wire.writer.outbox_bytes:
            await wire.writer.room()
        there_is_room.set()

    wire.writer.send(control("a"))
    async with wire.running(), trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert not there_is_room.is_set()
        wire.frames()
        await there_is_room.wait()


async def test_whoever_waits_for_room_is_woken_by_the_end_of_the_link() -> None:
    wire = Wire()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wire.writer.room)
        await wait_all_tasks_blocked()
        wire.writer.release()


@pytest.mark.row("PS7")
async def test_what_was_persisted_before_it_was_sent_again_holds_nothing_up() -> None:
    store = MemoryPublishStore(segment_bytes=2**15)
    store.reconcile(seen=0, persisted=0, clock_us=0)
    wire = Wire(store)
    for _ in range(4):
        wire.append(b"x" * 30_000)
    wire.writer.send(control("query"))
    wire.append(b"new")
    before = store.unsent_bytes
    store.discard_up_to(4)
    wire.writer.passed_over(before - store.unsent_bytes)
    wire.writer.pump()
    found = wire.frames()
    assert found[-2:] == ["query", "5new"]


@pytest.mark.row("PS7")
async def test_what_was_persisted_behind_a_frame_that_was_begun_holds_nothing_up() -> None:
    store = MemoryPublishStore(segment_bytes=2**15)
    store.reconcile(seen=0, persisted=0, clock_us=0)
    wire = Wire(store)
    for _ in range(4):  # each has a segment of its own
        wire.append(b"x" * 30_000)
    wire.link.sending.capacity_bytes = 10_000
    wire.writer.pump()
    store.discard_up_to(3)  # the rest of the first frame has to be sent
    wire.writer.send(control("query"))
    wire.append(b"new")
    found: list[str] = []
    for _ in range(10):
        found += wire.frames()
        wire.writer.pump()
    assert [each[:2] for each in found] == ["1x", "4x", "qu", "5n"]


Step = tuple[str, int]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("publish"), st.sampled_from([0, 1, 40, 200, 30_000])),
            st.tuples(st.sampled_from(["send", "urgent"]), st.just(0)),
            st.tuples(st.just("pump"), st.sampled_from([1, 7, 50, 120, 29_990, 40_000])),
            st.tuples(st.just("persist"), st.integers(0, 3)),
        ),
        max_size=60,
    ),
    st.booleans(),
)
def test_any_interleaving_gives_whole_frames_in_the_order_of_the_contract(
    steps: list[Step],
    custom: bool,  # noqa: FBT001  # drawn
) -> None:
    trio.run(interleave, steps, custom, clock=MockClock())


async def interleave(steps: list[Step], custom: bool) -> None:  # noqa: FBT001  # drawn
    log: FrameLog = (
        SendingStore(DictPublishStore()) if custom else MemoryPublishStore(segment_bytes=2**15)
    )
    log.reconcile(seen=0, persisted=0, clock_us=0)
    wire = Wire(log)
    arrived, issued, urgent = list[str](), list[str](), list[tuple[str, int]]()
    for number, (what, size) in enumerate(steps):
        match what:
            case "publish":
                wire.append(b"x" * size)
                issued.append(f"{log.last_sequence}{'x' * size}")
            case "send":
                wire.writer.send(control(f"o{number}"))
                issued.append(f"o{number}")
            case "urgent":
                urgent.append((f"u{number}", len(arrived)))
                wire.writer.send_urgent(control(f"u{number}"))
            case "persist":  # an ack for what has wholly arrived
                done = [int(name.rstrip("x")) for name in arrived if name[0].isdigit()]
                if done:
                    log.discard_up_to(max(done) - size)
            case _:
                wire.link.sending.capacity_bytes = wire.link.sending.send_bytes = size
                wire.writer.pump()
                arrived += wire.frames()
    wire.link.sending.capacity_bytes = wire.link.sending.send_bytes = 1 << 20
    assert wire.writer.pump()
    arrived += wire.frames()
    assert [name for name in arrived if name[0] != "u"] == issued
    assert [name for name in arrived if name[0] == "u"] == [name for name, _ in urgent]
    assert wire.writer.outbox_bytes == log.unsent_bytes == 0


def test_the_pair_of_links_is_what_the_tests_believe() -> None:
    near, far = link_pair()
    assert isinstance(near, MemoryLink)
    assert near.try_send(b"abc") == 3
    buffer = memoryview(bytearray(8))
    assert far.recv_into(buffer) == 3
    assert far.recv_into(buffer) is None
    near.close()
    assert far.recv_into(buffer) == 0
    with pytest.raises(OSError, match="closed"):
        far.try_send(b"x")


pytestmark = [in_virtual_time, pytest.mark.row("PS18")]


def test_nothing_that_waits_has_no_age() -> None:
    ages = UnpersistedAges()
    assert ages.age(0, 5.0) == 0.0
    ages.note(7, 1.0)
    assert ages.age(0, 5.0) == 0.0


def test_an_age_counts_from_the_first_sample_that_covers_the_message() -> None:
    ages = UnpersistedAges()
    for last, now in ((3, 1.0), (3, 2.0), (8, 4.0)):
        ages.note(last, now)
    assert ages.age(2, 10.0) == 9.0
    assert ages.age(4, 10.0) == 6.0
    ages.forget(9)
    assert ages.age(9, 10.0) == 0.0


def test_what_is_below_a_known_number_tells_nothing_new() -> None:
    ages = UnpersistedAges()
    ages.note(8, 1.0)
    ages.note(5, 2.0)
    assert ages.age(8, 3.0) == 2.0


def test_very_many_samples_get_coarser_and_the_newest_is_kept() -> None:
    ages = UnpersistedAges()
    for number in range(1, 5001):
        ages.note(number, float(number))
    assert len(ages._samples) <= 1024
    assert ages._samples[-1][0] == 5000
    for number in (1, 777, 4999, 5000):
        true_age = 6000.0 - number
        assert 0 <= true_age - ages.age(number, 6000.0) <= true_age / 10


class SlowLink(MemoryLink):
    """A link that is never full, and takes a while for each piece, as one that compresses."""

    @override
    def try_send(self, data: memoryview | bytes) -> int | None:
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, MockClock)
        clock.jump(TURN_S / 10)
        return super().try_send(data[: FLUSH_BYTES // 8])


async def test_a_backlog_that_the_link_takes_at_once_lets_other_tasks_run() -> None:
    near, far = link_pair()
    link = SlowLink("peer", sending=near.sending, receiving=near.receiving)
    log = MemoryPublishStore()
    for _ in range(100):
        log.append(HEAD, TAIL, bytes(FLUSH_BYTES // 8))
    writer = Writer(link, log, SendGate(2**30))
    writer.log_open = True
    size, sent = log.unsent_bytes, [0]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        while log.unsent_bytes:
            await trio.lowlevel.checkpoint()
            sent.append(link.sending.sent_bytes)
        nursery.cancel_scope.cancel()
    assert link.sending.sent_bytes == size
    assert max(after - before for before, after in pairwise(sent)) < size / 5
    assert far.recv_into(memoryview(bytearray(1))) == 1

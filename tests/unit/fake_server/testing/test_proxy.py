"""Wires, the places of cuts, and the TCP proxy that carries them out."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from functools import partial
from itertools import cycle
from typing import Any, cast

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from haclient.errors import UsageError
from haclient.protocol.codec import encode_frame
from haclient.transport.links.memory_network import MemoryLink, MemoryNetwork, origin
from haclient_fake_server.testing.faults import BOTH, Acks, Cut, Direction, How, Kill, Refuse, Slow
from haclient_fake_server.testing.proxy import FaultProxy, FrameTracker, MemorySwitch, Wire
from support.broker import port_of
from support.clock import in_virtual_time

FRAMES = [
    encode_frame({"c": "p", "t": "orders", "s": 1}, b"one"),
    encode_frame({"c": "ack", "a": "processed", "cid": "1"}),
    encode_frame({"c": "ack", "a": "persisted", "s": 1}),
    bytes(4),  # an empty frame
    encode_frame({"c": "p", "t": "orders", "s": 2}, b"x" * 300),
    encode_frame({"c": "ack", "a": "persisted", "s": 2}),
]
STREAM = b"".join(FRAMES)
STARTS = [sum(map(len, FRAMES[:index])) for index in range(len(FRAMES) + 1)]

chunkings = st.lists(st.integers(1, 60), min_size=1, max_size=8)


def chunks(sizes: list[int], data: bytes = STREAM) -> list[bytes]:
    """A stream in pieces of these sizes, over and over."""
    found: list[bytes] = []
    for size in cycle(sizes):
        if not data:
            return found
        found.append(data[:size])
        data = data[size:]
    return found


def run(tracker: FrameTracker, sizes: list[int], data: bytes = STREAM) -> tuple[bytes, Cut | None]:
    """Feed a stream in chunks; what arrives, and the cut that ends it."""
    arrived = b""
    for chunk in chunks(sizes, data):
        passed, cut = tracker.forward(chunk)
        arrived += passed
        if cut is not None:
            return arrived, cut
    return arrived, None


@given(chunkings)
def test_without_a_cut_everything_arrives_at_once(sizes: list[int]) -> None:
    tracker = FrameTracker()
    for chunk in chunks(sizes):
        assert tracker.forward(chunk) == (chunk, None)


PLACES = [
    *[(Cut(at_byte=count), count) for count in (1, 4, STARTS[1], STARTS[4] + 7, len(STREAM))],
    (Cut(in_frame=1), len(FRAMES[0]) // 2),
    (Cut(in_frame=5), STARTS[4] + len(FRAMES[4]) // 2),
    (Cut(before_ack="processed"), STARTS[1]),
    (Cut(after_ack="processed"), STARTS[2]),
    (Cut(before_ack="persisted"), STARTS[2]),
    (Cut(after_ack="persisted"), STARTS[3]),
    (Cut(before_ack="*"), STARTS[1]),
    (Cut(before_ack="completed"), None),
    (Cut(at_byte=len(STREAM) + 1), None),
]


@pytest.mark.row("FI1")
@pytest.mark.parametrize(("cut", "place"), PLACES)
@given(sizes=chunkings)
def test_a_cut_falls_at_its_place_however_the_stream_is_chunked(
    cut: Cut, place: int | None, sizes: list[int]
) -> None:
    tracker = FrameTracker()
    tracker.arm(cut)
    expected = (STREAM, None) if place is None else (STREAM[:place], cut)
    assert run(tracker, sizes) == expected


def test_no_byte_at_all_passes_before_a_cut_at_byte_0() -> None:
    tracker = FrameTracker()
    cut = Cut(at_byte=0)
    tracker.arm(cut)
    assert tracker.forward(b"x") == (b"", cut)


@given(armed_at=st.integers(0, STARTS[4]), sizes=chunkings)
def test_a_cut_may_be_armed_in_the_middle_of_a_frame(armed_at: int, sizes: list[int]) -> None:
    tracker = FrameTracker()
    tracker.forward(STREAM[:armed_at])
    cut = Cut(in_frame=1)
    tracker.arm(cut)
    frame = next(index for index, start in enumerate(STARTS) if start >= armed_at)
    place = STARTS[frame] + len(FRAMES[frame]) // 2
    assert run(tracker, sizes, STREAM[armed_at:]) == (STREAM[armed_at:place], cut)


def test_of_several_cuts_the_first_place_counts() -> None:
    late, early = Cut(after_ack="persisted"), Cut(at_byte=STARTS[1] + 2)
    tracker = FrameTracker()
    tracker.arm(late)
    tracker.arm(early)
    assert tracker.forward(STREAM) == (STREAM[: STARTS[1] + 2], early)


def test_a_cut_that_is_disarmed_lets_go_what_it_kept() -> None:
    cut = Cut(before_ack="persisted")
    tracker = FrameTracker()
    tracker.arm(cut)
    half = FRAMES[0][:10]
    assert tracker.forward(half) == (b"", None)
    tracker.disarm(cut)
    tracker.disarm(cut)
    assert tracker.forward(STREAM[10:]) == (STREAM, None)


def test_a_length_that_no_receiver_takes_is_not_waited_for() -> None:
    tracker = FrameTracker()
    tracker.arm(Cut(in_frame=2))
    nonsense = b"\xff\xff\xff\xff and more"
    assert tracker.forward(nonsense) == (nonsense, None)


def test_a_frame_that_is_no_message_is_no_ack() -> None:
    tracker = FrameTracker()
    tracker.arm(Cut(before_ack="*"))
    garbage = b"\0\0\0\5hello\0\0\0\6{oops}"
    assert tracker.forward(garbage) == (garbage, None)


class Connection:
    """A connection that writes down what happens to it."""

    def __init__(self) -> None:
        self.is_open = True
        self.has_lost_bytes = False
        self.lost: list[How] = []
        self.changes = 0

    def lose(self, how: How) -> None:
        self.lost.append(how)

    def on_wire_changed(self) -> None:
        self.changes += 1


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def connection(wire: Wire) -> Connection:
    made = Connection()
    wire.join(made)
    return made


def test_a_cut_without_a_place_loses_what_is_open_and_nothing_later(
    wire: Wire, connection: Connection
) -> None:
    wire.apply(Cut(how="end"))
    later = Connection()
    wire.join(later)
    assert (connection.lost, later.lost, wire.waiting) == (["end"], [], ())


@pytest.mark.row("FI1")
def test_a_cut_with_a_place_falls_once_on_whichever_connection_gets_there(
    wire: Wire, connection: Connection
) -> None:
    cut = Cut(how="silence", at_byte=4)
    wire.apply(cut)
    later = Connection()
    wire.join(later)
    assert wire.waiting == (cut,)
    assert wire.forward(connection, "down", b"abc") == (b"abc", None)
    assert wire.forward(later, "up", b"abcdef") == (b"abcdef", None)
    assert wire.forward(later, "down", b"abcdef") == (b"abcd", "silence")
    assert not wire.waiting
    assert wire.forward(connection, "down", b"abcdef") == (b"abcdef", None)


def test_blocking_holds_back_new_connections_until_it_is_healed(
    wire: Wire, connection: Connection
) -> None:
    wire.block("up")
    barrier = wire.barrier
    wire.block("down", dropped=True)
    assert isinstance(barrier, trio.Event)
    assert wire.barrier is barrier
    assert dict(wire.blocked) == {"up": False, "down": True}
    seen = connection.changes
    wire.heal()
    assert barrier.is_set()
    assert wire.barrier is None
    assert not wire.blocked
    assert connection.changes > seen
    wire.heal()


def test_healing_undoes_everything_and_resets_what_has_lost_bytes(
    wire: Wire, connection: Connection
) -> None:
    whole = Connection()
    wire.join(whole)
    connection.has_lost_bytes = True
    for fault in (Slow(latency_s=1.0), Refuse(), Cut(at_byte=1), Acks()):
        wire.apply(fault)
    assert (wire.slow.latency_s, wire.refusing) == (1.0, True)
    wire.heal()
    assert (wire.slow, wire.refusing, wire.waiting) == (Slow(), False, ())
    assert (connection.lost, whole.lost) == (["reset"], [])
    assert wire.forward(whole, "down", b"ab") == (b"ab", None)


def test_connections_that_nobody_has_any_more_are_forgotten(
    wire: Wire, connection: Connection
) -> None:
    assert wire.connections == 1
    connection.is_open = False
    assert wire.connections == 0
    wire.apply(Cut())
    assert connection.lost == []


@pytest.mark.parametrize("found", ["cut", None, Kill("east")])
def test_what_a_wire_cannot_suffer_is_refused(wire: Wire, found: object) -> None:
    with pytest.raises(UsageError, match=r"wanted a fault, one of Cut, Acks, Slow, Refuse$"):
        wire.apply(cast("Any", found))


PERSISTED = [encode_frame({"c": "ack", "a": "persisted", "s": number}) for number in range(5)]
MESSAGE = encode_frame({"c": "p", "t": "orders", "s": 1}, b"one")
PROCESSED = encode_frame({"c": "ack", "a": "processed", "cid": "1"})


def arrived(wire: Wire, connection: Connection, sizes: list[int], *frames: bytes) -> bytes:
    """What arrives of frames that are sent in chunks."""
    pieces = [wire.forward(connection, "down", each) for each in chunks(sizes, b"".join(frames))]
    return b"".join(passed for passed, _ in pieces)


@pytest.mark.row("AK8")
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Acks(how="drop"), [MESSAGE]),
        (Acks(how="drop", ack="persisted"), [MESSAGE, PROCESSED]),
        (
            Acks(how="drop", ack="persisted", count=2),
            [MESSAGE, PROCESSED, PERSISTED[2], PERSISTED[3]],
        ),
        (
            Acks(how="reorder", ack="persisted"),
            [MESSAGE, PERSISTED[1], PERSISTED[0], PROCESSED, PERSISTED[3], PERSISTED[2]],
        ),
        (
            Acks(how="reorder", ack="persisted", count=1),
            [MESSAGE, PERSISTED[1], PERSISTED[0], PROCESSED, PERSISTED[2], PERSISTED[3]],
        ),
    ],
)
@given(sizes=chunkings)
def test_acks_get_lost_or_arrive_late(fault: Acks, expected: list[bytes], sizes: list[int]) -> None:
    wire, connection = Wire(), Connection()
    wire.apply(fault)
    wire.join(connection)
    sent = [PERSISTED[0], MESSAGE, PERSISTED[1], PROCESSED, PERSISTED[2], PERSISTED[3]]
    assert arrived(wire, connection, sizes, *sent) == b"".join(expected)
    assert wire.forward(connection, "up", PERSISTED[0]) == (PERSISTED[0], None)


@pytest.mark.row("AK8")
@given(sizes=chunkings)
def test_a_late_ack_arrives_once_the_wire_is_healed(sizes: list[int]) -> None:
    wire, connection = Wire(), Connection()
    wire.join(connection)
    wire.apply(Acks(how="reorder"))
    half = len(MESSAGE) // 2
    assert arrived(wire, connection, sizes, PERSISTED[0], MESSAGE[:half]) == b""
    wire.heal()
    late = arrived(wire, connection, sizes, MESSAGE[half:], PERSISTED[1])
    assert late == PERSISTED[0] + MESSAGE + PERSISTED[1]


@pytest.mark.row("AK8")
def test_acks_of_all_connections_are_counted_together() -> None:
    wire, first, second = Wire(), Connection(), Connection()
    for connection in (first, second):
        wire.join(connection)
    wire.apply(Acks(count=1))
    assert wire.forward(first, "down", PERSISTED[0]) == (b"", None)
    assert wire.forward(second, "down", PERSISTED[1]) == (PERSISTED[1], None)


LIMIT_S = 60.0


class Ends:
    """A proxy, and the sockets on both sides of it."""

    def __init__(
        self, proxy: FaultProxy, arriving: trio.MemoryReceiveChannel[trio.SocketStream]
    ) -> None:
        self.proxy = proxy
        self.wire = proxy.wire
        self._arriving = arriving
        self._opened: list[trio.SocketStream] = []

    async def dial(self) -> trio.SocketStream:
        stream = await trio.open_tcp_stream("127.0.0.1", port_of(self.proxy.uri))
        self._opened.append(stream)
        return stream

    def close(self) -> None:
        for stream in self._opened:
            stream.socket.close()

    async def accept(self) -> trio.SocketStream:
        with trio.fail_after(LIMIT_S):
            stream = await self._arriving.receive()
        self._opened.append(stream)
        return stream

    async def connect(self) -> tuple[trio.SocketStream, trio.SocketStream]:
        client = await self.dial()
        return client, await self.accept()

    async def forgotten(self) -> None:
        """Wait until the proxy has no connection any more."""
        with trio.fail_after(LIMIT_S):
            while self.wire.connections:  # noqa: ASYNC110 - a matter of a few scheduler ticks
                await trio.sleep(0.001)


@pytest.fixture
async def ends() -> AsyncGenerator[Ends]:
    arrived, arriving = trio.open_memory_channel[trio.SocketStream](10)

    async def serve(stream: trio.SocketStream) -> None:
        await arrived.send(stream)
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        serving = partial(trio.serve_tcp, serve, 0, host="127.0.0.1")
        (listener,) = await nursery.start(serving)
        async with FaultProxy(f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}") as proxy:
            found = Ends(proxy, arriving)
            yield found
            found.close()
        nursery.cancel_scope.cancel()


async def receive(stream: trio.SocketStream, count: int) -> bytes:
    """So many bytes, fewer only at the end of the stream."""
    found = b""
    with trio.fail_after(LIMIT_S):
        while len(found) < count and (data := await stream.receive_some(count - len(found))):
            found += bytes(data)
    return found


async def is_silent(stream: trio.SocketStream) -> bool:
    with trio.move_on_after(0.05) as waiting:
        await stream.receive_some(1)
    return waiting.cancelled_caught


async def test_bytes_and_ends_pass_in_both_directions(ends: Ends) -> None:
    client, server = await ends.connect()
    big = (3_000_000).to_bytes(4, "big") + bytes(3_000_000)
    async with trio.open_nursery() as nursery:
        for source, sink in ((client, server), (server, client)):
            nursery.start_soon(source.send_all, big)
            assert await receive(sink, len(big)) == big
    await client.send_eof()
    assert await receive(server, 1) == b""
    await server.send_all(b"after the end")
    assert await receive(client, 13) == b"after the end"
    await server.aclose()
    assert await receive(client, 1) == b""
    await ends.forgotten()


async def test_a_reset_of_one_end_reaches_the_other(ends: Ends) -> None:
    client, server = await ends.connect()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    await client.aclose()
    with pytest.raises(trio.BrokenResourceError):
        await receive(server, 1)
    await ends.forgotten()


@pytest.mark.row("FI1")
@pytest.mark.parametrize("how", ["reset", "end", "silence"])
@pytest.mark.parametrize("direction", BOTH)
async def test_a_cut_after_some_bytes(ends: Ends, direction: Direction, how: How) -> None:
    ends.wire.apply(Cut(how=how, direction=direction, at_byte=5))
    client, server = await ends.connect()
    source, sink = (client, server) if direction == "up" else (server, client)
    await source.send_all(b"abcdefgh")
    if how == "reset":
        for stream in (source, sink):
            with pytest.raises(trio.BrokenResourceError):
                await receive(stream, 100)
        await ends.forgotten()
        return
    assert await receive(sink, 5) == b"abcde"
    if how == "end":
        assert await receive(sink, 1) == b""
        assert await receive(source, 1) == b""
    else:
        await sink.send_all(b"lost")
        assert await is_silent(source)
        await source.aclose()
        assert await is_silent(sink)
        ends.wire.heal()
        with pytest.raises(trio.BrokenResourceError):
            await receive(sink, 1)
    for stream in (source, sink):
        await stream.aclose()
    await ends.forgotten()


@pytest.mark.row("FI4")
async def test_what_is_held_arrives_when_it_is_let_go(ends: Ends) -> None:
    client, server = await ends.connect()
    ends.wire.block("up")
    await client.send_all(b"late")
    await client.send_eof()
    await server.send_all(b"the other way")
    assert await receive(client, 13) == b"the other way"
    assert await is_silent(server)
    ends.wire.heal()
    assert await receive(server, 10) == b"late"


@pytest.mark.row("FI4")
async def test_what_is_dropped_is_lost_and_so_is_the_connection(ends: Ends) -> None:
    client, server = await ends.connect()
    other, other_server = await ends.connect()
    ends.wire.block("up", dropped=True)
    await client.send_all(b"lost")
    assert await is_silent(server)
    ends.wire.heal()
    with pytest.raises(trio.BrokenResourceError):
        await receive(server, 1)
    await other.send_all(b"lost nothing")
    assert await receive(other_server, 12) == b"lost nothing"


async def test_an_end_that_goes_while_it_is_cut_off_is_told_of_afterwards(ends: Ends) -> None:
    client, server = await ends.connect()
    ends.wire.block("up")
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    await client.aclose()
    assert await is_silent(server)
    ends.wire.heal()
    with pytest.raises(trio.BrokenResourceError):
        await receive(server, 1)


@pytest.mark.row("FI4")
async def test_new_connections_wait_while_anything_is_blocked(ends: Ends) -> None:
    ends.wire.block("down")
    client = await ends.dial()
    await client.send_all(b"hello")
    assert await is_silent(client)
    ends.wire.heal()
    assert await receive(await ends.accept(), 5) == b"hello"


async def test_connections_are_refused(ends: Ends) -> None:
    ends.wire.apply(Refuse())
    with pytest.raises(trio.BrokenResourceError):
        await receive(await ends.dial(), 1)
    ends.wire.heal()
    await ends.connect()


@pytest.mark.parametrize("target", ["", "tcp://127.0.0.1:1"])
async def test_nobody_listens_behind_it(ends: Ends, target: str) -> None:
    ends.proxy.target = target
    with pytest.raises(trio.BrokenResourceError):
        await receive(await ends.dial(), 1)


async def test_a_slow_line_is_late_and_in_pieces_and_keeps_the_order(ends: Ends) -> None:
    client, server = await ends.connect()
    ends.wire.apply(Slow(latency_s=0.05, piece_bytes=2))
    started = trio.current_time()
    for number in range(10):
        await client.send_all(b"%d" % number)
    assert await receive(server, 10) == b"0123456789"
    assert trio.current_time() - started >= 0.05


@pytest.mark.row("FI5")
@pytest.mark.parametrize("unread", BOTH)
async def test_a_sender_whose_peer_reads_nothing_has_to_wait(ends: Ends, unread: Direction) -> None:
    sender, receiver = await ends.connect()
    if unread == "down":
        sender, receiver = receiver, sender
    ends.wire.apply(Slow(unread=unread))
    sent = 0
    with trio.move_on_after(0.5):  # more than all buffers between the two take
        while True:
            await sender.send_all(bytes(1024 * 1024))
            sent += 1
    assert sent < 64
    await receiver.send_all(b"the other way")
    assert await receive(sender, 13) == b"the other way"
    ends.wire.apply(Slow())
    assert await receive(receiver, sent * 1024 * 1024) == bytes(sent * 1024 * 1024)


# -- connections in memory -----------------------------------------------------------------------


class MemoryEnds:
    """A network with one listener, and the wire of clients to it."""

    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.accepted: list[MemoryLink] = []
        self.network.listen("a:1", self.accepted.append)
        self.switch = MemorySwitch(self.network)
        self.wire: Wire = self.switch.wire("client", "a:1")

    async def connect(self) -> tuple[MemoryLink, MemoryLink]:
        return await self.network.connect("a:1"), self.accepted[-1]


def take(link: MemoryLink) -> bytes | None:
    buffer = bytearray(100)
    count = link.recv_into(memoryview(buffer))
    return None if count is None else bytes(buffer[:count])


@pytest.mark.row("FI1", "FI7")
@pytest.mark.parametrize("how", ["reset", "end", "silence"])
@pytest.mark.parametrize("direction", BOTH)
@in_virtual_time
async def test_a_cut_after_some_bytes_in_memory(direction: Direction, how: How) -> None:
    ends = MemoryEnds()
    ends.wire.apply(Cut(how=how, direction=direction, at_byte=5))
    client, server = await ends.connect()
    source, sink = (client, server) if direction == "up" else (server, client)
    assert source.try_send(b"abcdefgh") == 8
    assert take(sink) == b"abcde"
    match how:
        case "reset":
            for link in (source, sink):
                with pytest.raises(ConnectionResetError):
                    take(link)
        case "end":
            assert [take(source), take(sink)] == [b"", b""]
        case "silence":
            sink.try_send(b"lost")
            source.close()
            assert take(sink) is None
            assert sink.try_send(b"lost") == 4  # it does not know that nobody is there
            ends.wire.heal()
            with pytest.raises(ConnectionResetError):
                take(sink)
    source.close()
    sink.close()
    assert ends.wire.connections == 0


@pytest.mark.row("FI4", "FI7")
@in_virtual_time
async def test_what_is_held_arrives_when_it_is_let_go_in_memory() -> None:
    ends = MemoryEnds()
    client, server = await ends.connect()
    ends.wire.block("up")
    client.try_send(b"late")
    server.try_send(b"the other way")
    assert [take(server), take(client)] == [None, b"the other way"]
    ends.wire.heal()
    assert take(server) == b"late"


@pytest.mark.row("FI4", "FI7")
@in_virtual_time
async def test_what_is_dropped_is_lost_and_so_is_the_connection_in_memory() -> None:
    ends = MemoryEnds()
    client, server = await ends.connect()
    other, other_server = await ends.connect()
    ends.wire.block("up", dropped=True)
    client.try_send(b"lost")
    assert take(server) is None
    ends.wire.heal()
    with pytest.raises(ConnectionResetError):
        take(server)
    other.try_send(b"lost nothing")
    assert take(other_server) == b"lost nothing"


@in_virtual_time
async def test_an_end_that_closes_while_it_is_cut_off_is_told_of_afterwards() -> None:
    ends = MemoryEnds()
    client, server = await ends.connect()
    ends.wire.block("up")
    client.close()
    assert take(server) is None
    assert server.try_send(b"into the void") == 13
    ends.wire.heal()
    with pytest.raises(ConnectionResetError):
        take(server)


@in_virtual_time
async def test_a_slow_line_is_late_and_in_pieces() -> None:
    ends = MemoryEnds()
    ends.wire.apply(Slow(latency_s=2.0, piece_bytes=3))
    client, server = await ends.connect()
    started = trio.current_time()
    client.try_send(b"abcdef")
    await server.wait_readable()
    assert trio.current_time() - started == pytest.approx(2.0)
    assert [take(server), take(server)] == [b"abc", b"def"]


@pytest.mark.row("FI5")
@in_virtual_time
async def test_a_pipe_that_is_not_read_fills_up() -> None:
    ends = MemoryEnds()
    client, server = await ends.connect()
    ends.wire.apply(Slow(unread="down"))
    sent = 0
    while count := server.try_send(bytes(100_000)):
        sent += count
    assert 0 < sent < 1_000_000
    assert take(client) is None
    client.try_send(b"the other way")
    assert take(server) == b"the other way"
    ends.wire.heal()
    assert take(client) == bytes(100)


@in_virtual_time
async def test_new_connections_wait_or_are_refused() -> None:
    ends = MemoryEnds()
    ends.wire.block("down")
    with trio.move_on_after(5) as waiting:
        await ends.connect()
    assert waiting.cancelled_caught
    ends.wire.heal()
    ends.wire.apply(Refuse())
    with pytest.raises(ConnectionRefusedError):
        await ends.connect()


@in_virtual_time
async def test_each_dialler_has_its_own_wire_and_others_that_of_clients() -> None:
    ends = MemoryEnds()
    wire = ends.switch.wire("east", "a:1")
    token = origin.set("east")
    await ends.connect()
    origin.set("somebody")
    await ends.connect()
    origin.reset(token)
    assert (wire.connections, ends.wire.connections) == (1, 1)


@in_virtual_time
async def test_two_switches_share_a_network() -> None:
    ends = MemoryEnds()
    ends.network.listen("b:1", ends.accepted.append)
    second = MemorySwitch(ends.network).wire("client", "b:1")
    await ends.connect()
    await ends.network.connect("b:1")
    assert (ends.wire.connections, second.connections) == (1, 1)
    ends.wire.apply(Refuse())
    with pytest.raises(ConnectionRefusedError):
        await ends.connect()
    await ends.network.connect("b:1")
    ends.network.listen("c:1", ends.accepted.append)
    await ends.network.connect("c:1")

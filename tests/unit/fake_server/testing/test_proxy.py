"""The proxy between two sockets of a test."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from functools import partial

import pytest
import trio

from haclient_fake_server.testing.faults import BOTH, Cut, Direction, How, Refuse, Slow
from haclient_fake_server.testing.proxy import FaultProxy
from support.broker import port_of

LIMIT_S = 20.0


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

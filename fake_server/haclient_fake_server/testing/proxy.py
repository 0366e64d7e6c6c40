"""A TCP proxy that loses connections as it is told (rows FI1, FI4).

::

    async with FaultProxy("tcp://127.0.0.1:9007") as proxy:
        ...                                     # clients connect to proxy.uri
        proxy.wire.apply(Cut(how="silence", before_ack="persisted"))

Each direction of a connection has two tasks: one reads and notes when, one sends what has arrived,
late or in pieces, and holds it back or drops it. So latency does not cost throughput, and what a
partition holds is limited by what fits between the two, after which the sender has to wait.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

import trio

from haclient.transport.nursery import open_nursery
from haclient_fake_server.testing.faults import Direction, How
from haclient_fake_server.testing.wires import Wire

__all__ = ["FaultProxy"]

READ_BYTES: Final = 64 * 1024
IN_FLIGHT_PIECES: Final = 256
"""How many reads wait between the two tasks of a direction: at most 16 MiB."""

DIAL_TIMEOUT_S: Final = 10.0

_NO_LINGER: Final = struct.pack("ii", 1, 0)  # closing sends RST and nothing that is unsent


class FaultProxy:
    """Forwards connections to a broker, until told otherwise.

    Args:
        target: The broker's address, `tcp://HOST:PORT`; empty while there is none.

    Attributes:
        target: Where new connections are forwarded to; they are reset when nobody listens there.
        wire: What goes wrong with the connections.
        uri: Where it listens, `tcp://127.0.0.1:PORT`, once the block is entered.
    """

    def __init__(self, target: str = "") -> None:
        self.target = target
        self.wire = Wire()
        self.uri = ""
        self._stack = AsyncExitStack()
        self._scope = trio.CancelScope()

    async def __aenter__(self) -> Self:
        nursery = await self._stack.enter_async_context(open_nursery())
        self._scope = nursery.cancel_scope
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.uri = f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, self._serve, [listener])
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Lose all connections and stop to listen."""
        self._scope.cancel()
        await self._stack.__aexit__(kind, error, traceback)

    async def _serve(self, client: trio.SocketStream) -> None:
        server: trio.SocketStream | None = None
        if not self.wire.refusing:
            while self.wire.barrier is not None:
                await self.wire.barrier.wait()
            server = await self._dial()
        if server is None:
            _reset(client)
        else:
            await _Connection(self.wire, client, server).run()

    async def _dial(self) -> trio.SocketStream | None:
        parts = urlsplit(self.target)
        if parts.hostname is None or parts.port is None:
            return None
        with contextlib.suppress(OSError), trio.move_on_after(DIAL_TIMEOUT_S):
            return await trio.open_tcp_stream(parts.hostname, parts.port)
        return None


class _Connection:
    """One connection: two streams and what is on its way between them."""

    def __init__(self, wire: Wire, client: trio.SocketStream, server: trio.SocketStream) -> None:
        self.open = True
        self.lossy = False
        self._wire = wire
        self._client = client
        self._server = server
        self._silent = False
        self._scope = trio.CancelScope()
        self._changed = trio.Event()

    async def run(self) -> None:
        """Carry bytes until both ends have ended."""
        self._wire.join(self)
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._start("up", self._client, self._server, nursery)
                    self._start("down", self._server, self._client, nursery)
        finally:
            self.open = False
            for stream in (self._client, self._server):
                stream.socket.close()

    def _start(
        self,
        direction: Direction,
        source: trio.SocketStream,
        sink: trio.SocketStream,
        nursery: trio.Nursery,
    ) -> None:
        send, receive = trio.open_memory_channel[tuple[float, bytes]](IN_FLIGHT_PIECES)
        nursery.start_soon(self._read, source, send)
        nursery.start_soon(self._write, direction, sink, receive)

    def lose(self, how: How) -> None:
        """Lose it now."""
        self._silent = True  # also after an end: nothing follows it
        self.lossy = self.lossy or how == "silence"
        for stream in (self._client, self._server):
            if how == "reset":
                _reset(stream)
            elif how == "end":
                with contextlib.suppress(OSError):  # that end has already gone
                    stream.socket.shutdown(socket.SHUT_WR)
        if how == "reset":
            self._scope.cancel()
        self.changed()

    def changed(self) -> None:
        """Let what waits look again."""
        self._changed.set()
        self._changed = trio.Event()

    async def _read(
        self, source: trio.SocketStream, queue: trio.MemorySendChannel[tuple[float, bytes]]
    ) -> None:
        with queue:
            while True:
                try:
                    data = bytes(await source.receive_some(READ_BYTES))
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    self._broken()
                    return
                await queue.send((trio.current_time(), data))
                if not data:
                    return

    async def _write(
        self,
        direction: Direction,
        sink: trio.SocketStream,
        queue: trio.MemoryReceiveChannel[tuple[float, bytes]],
    ) -> None:
        async for since, data in queue:
            await self._turn(direction, since)
            if self._silent:
                continue
            if self._wire.blocked.get(direction):
                self.lossy = True
                continue
            try:
                if data:
                    await self._send(direction, sink, data)
                else:
                    await sink.send_eof()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self._broken()

    async def _turn(self, direction: Direction, since: float) -> None:
        """Wait until what was read then may arrive: not held any more, and not too early."""
        while not self._silent:
            changed, due = self._changed, since + self._wire.slow.latency_s
            if self._wire.blocked.get(direction) is False:
                await changed.wait()
            elif due > trio.current_time():
                with trio.move_on_at(due):
                    await changed.wait()
            else:
                return

    async def _send(self, direction: Direction, sink: trio.SocketStream, data: bytes) -> None:
        passed, how = self._wire.feed(self, direction, data)
        size = self._wire.slow.piece_bytes or READ_BYTES
        for start in range(0, len(passed), size):
            await sink.send_all(passed[start : start + size])
        if how is not None:
            self.lose(how)

    def _broken(self) -> None:
        """One end has gone; the other learns of it when it can hear of it."""
        if self._wire.blocked:
            self.lossy = True
        elif not self._silent:
            self.lose("reset")


def _reset(stream: trio.SocketStream) -> None:
    """Close with RST."""
    with contextlib.suppress(OSError):  # the peer has already gone
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    stream.socket.close()

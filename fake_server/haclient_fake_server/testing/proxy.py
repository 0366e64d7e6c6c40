"""Wires, which apply faults to connections, and a TCP proxy that carries them out.

::

    async with FaultProxy("tcp://127.0.0.1:9007") as proxy:
        ...                                     # clients connect to proxy.uri
        proxy.wire.apply(Cut(how="silence", before_ack="persisted"))

A `Wire` stands for all connections from one dialler to one listener, and holds the faults that
apply to them. The transport, `FaultProxy` here or `MemorySwitch` in memory, uses it as follows:

* `refusing` and `barrier` before a connection is made; then `join`;
* `forward` with all bytes that are sent: returns the part that arrives, and how the connection is
  lost after it;
* `blocked` and `slow` whenever bytes are due to arrive. The wire calls `on_wire_changed` of each
  connection when one of them has changed.

A `FrameTracker` finds the place of a cut in one direction of one connection, and the acks that are
to disappear or to come later. It follows the frames from the first byte on, so that a fault may be
applied at any time and still falls where a frame begins. While a fault waits for a frame, only
whole frames pass, because only a whole frame shows whether it is the ack that the fault waits for.

In the proxy each direction of a connection has two tasks: one reads and records the time, the other
delays, splits, holds back or drops what was read, and sends the rest. So latency does not cost
throughput. A partition holds what fits between the two tasks; then the sender has to wait.

`MemorySwitch` applies the same faults to `mem://` connections, in virtual time::

    switch = MemorySwitch(network())
    switch.wire("client", "broker:1").apply(Cut(at_byte=100))
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Final, Protocol, Self
from urllib.parse import urlsplit

import trio

from haclient.errors import HAClientError
from haclient.protocol.codec import MessageDecoder
from haclient.protocol.framing import LENGTH, MAX_FRAME_BYTES, FrameReader
from haclient.transport.links.memory_network import MemoryConnection, MemoryNetwork, Pipe
from haclient.transport.tasks import open_nursery
from haclient_fake_server.testing.faults import (
    BOTH,
    CLIENT,
    LINK_FAULTS,
    Acks,
    Cut,
    Direction,
    How,
    LinkFault,
    Refuse,
    Slow,
    check_fault,
)

__all__ = ["FaultProxy", "FrameTracker", "Wire", "WireConnection"]


_DECODER: Final = MessageDecoder(expand_sow=False)


class FrameTracker:
    """One direction of one connection, watched for the places of cuts, and for acks.

    Attributes:
        acks: The faults of acks that apply.
    """

    def __init__(self) -> None:
        self.acks: tuple[_AckRule, ...] = ()
        self._late: list[tuple[bytes, _AckRule]] = []  # acks that arrive after the next one
        self._cuts: list[_ArmedCut] = []
        self._kept = b""  # of a frame that is not whole, while a cut waits for a frame
        self._left = 0  # of the current frame
        self._length = b""  # of a frame of which not even the length is known

    def arm(self, cut: Cut) -> None:
        """Watch for the place of a cut from the next byte on.

        Args:
            cut: One that has a place.
        """
        self._cuts.append(_ArmedCut(cut))

    def disarm(self, cut: Cut) -> None:
        """Stop watching for a cut; does nothing when it is not armed."""
        self._cuts = [each for each in self._cuts if each.cut is not cut]

    def forward(self, data: bytes | memoryview) -> tuple[bytes, Cut | None]:
        """Split what was sent at the place of a cut.

        Args:
            data: The next bytes that were sent.

        Returns:
            The bytes that arrive now, earlier ones that were kept back first, and the cut that
            follows them, if any. After a cut the tracker must not be used any more.
        """
        self._kept += data
        passed: list[bytes] = []
        while piece := self._next_piece():
            self._kept = self._kept[len(piece) :]
            starts = not (self._left or self._length)
            due = [(each.reached(piece, starts=starts), each.cut) for each in self._cuts]
            for count, cut in sorted(due, key=lambda each: each[0]):
                if count <= len(piece):
                    return b"".join((*passed, piece[:count])), cut
            self._follow(piece)
            passed += self._with_acks(piece) if starts else [piece]
        return b"".join(passed), None

    def _with_acks(self, frame: bytes) -> list[bytes]:
        """What arrives in the place of a frame: nothing, itself, or acks of earlier with it."""
        healed = [late for late, rule in self._late if rule not in self.acks]
        self._late = [each for each in self._late if each[1] in self.acks]
        for rule in self.acks:
            if not _is_ack(frame, rule.ack):
                continue
            due = [late for late, each in self._late if each is rule]
            if due:
                self._late = [each for each in self._late if each[1] is not rule]
                return [*healed, frame, *due]
            if rule.take():
                if rule.is_late:
                    self._late.append((frame, rule))
                return healed
        return [*healed, frame]

    def _next_piece(self) -> bytes:
        """The bytes that pass next: all, or to the end of a frame while a cut waits for one."""
        needs_frames = self.acks or self._late
        if not needs_frames and all(each.cut.at_byte is not None for each in self._cuts):
            return self._kept
        if self._left or self._length:
            return self._kept[: self._left or LENGTH.size - len(self._length)]
        if len(self._kept) < LENGTH.size:
            return b""
        size = LENGTH.size + LENGTH.unpack_from(self._kept)[0]
        if size > MAX_FRAME_BYTES:  # too long for any receiver: pass it on as it is
            return self._kept
        return self._kept[:size] if len(self._kept) >= size else b""

    def _follow(self, data: bytes) -> None:
        """Keep track of where in a frame the stream is after `data`."""
        at, end = 0, len(data)
        while at < end:
            if self._left:
                step = min(self._left, end - at)
                self._left -= step
            else:
                step = min(LENGTH.size - len(self._length), end - at)
                self._length += data[at : at + step]
                if len(self._length) == LENGTH.size:
                    (self._left,) = LENGTH.unpack(self._length)
                    self._length = b""
            at += step


class _ArmedCut:
    """A cut, and how much has passed since it was armed."""

    def __init__(self, cut: Cut) -> None:
        self.cut = cut
        self._bytes = 0
        self._frames = 0

    def reached(self, piece: bytes, *, starts: bool) -> int:
        """How many bytes of a piece pass before the cut; more than there are if it is not in it."""
        cut = self.cut
        before, self._bytes = self._bytes, self._bytes + len(piece)
        if cut.at_byte is not None:
            return cut.at_byte - before
        if starts:  # else the frame had begun before the cut was armed
            self._frames += 1
            if cut.in_frame == self._frames:
                return len(piece) // 2
            if cut.in_frame is None and _is_ack(piece, cut.before_ack or cut.after_ack):
                return 0 if cut.before_ack else len(piece)
        return len(piece) + 1


class _AckRule:
    """A fault of acks, and how many it has left for all connections of its wire."""

    def __init__(self, fault: Acks) -> None:
        self.ack = fault.ack
        self.is_late = fault.how == "reorder"
        self._left = fault.count

    def take(self) -> bool:
        """Whether one more ack is its own."""
        if self._left is not None:
            self._left -= 1
        return self._left is None or self._left >= 0


def _is_ack(frame: bytes, kind: str) -> bool:
    try:
        (message,) = _DECODER.decode(*FrameReader().feed(frame))
    except (HAClientError, ValueError):  # no message, which the receiver has to handle; or empty
        return False
    return message.kind == "ack" and kind in {message.ack_type, "*"}


class WireConnection(Protocol):
    """The interface of a connection, as a wire uses it."""

    @property
    def is_open(self) -> bool:
        """Whether at least one end of it is open."""
        ...

    @property
    def has_lost_bytes(self) -> bool:
        """Whether bytes of it have disappeared, so that it cannot continue after `Heal`."""
        ...

    def lose(self, how: How) -> None:
        """Lose the connection now."""

    def on_wire_changed(self) -> None:
        """Called when the blocked directions or the slowness have changed."""


class Wire:
    """The connections from one dialler, or all clients, to one listener.

    Attributes:
        blocked: Directions in which nothing arrives, and whether it is dropped rather than held.
        slow: How slow connections are.
        refusing: Whether new connections are refused.
        barrier: While anything is blocked, an event that is set when new connections may be made.
        on_cut: Called with each cut that a connection has reached.
    """

    def __init__(self) -> None:
        self.blocked: dict[Direction, bool] = {}
        self.slow = Slow()
        self.refusing = False
        self.barrier: trio.Event | None = None
        self.on_cut: Callable[[Cut], object] = self.disarm
        self._cuts: list[Cut] = []
        self._acks: tuple[_AckRule, ...] = ()
        self._trackers: dict[WireConnection, dict[Direction, FrameTracker]] = {}

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._open())

    @property
    def waiting(self) -> tuple[Cut, ...]:
        """The cuts whose place no connection has reached yet."""
        return tuple(self._cuts)

    # -- for tests --------------------------------------------------------------------------------

    def apply(self, fault: LinkFault) -> None:
        """Apply a fault to all connections of this wire.

        Args:
            fault: Its `source` and `target` are ignored: they choose the wire.

        Raises:
            UsageError: It is not a fault of connections.
        """
        check_fault(fault, LINK_FAULTS)
        match fault:
            case Cut(is_now=True):
                for connection in self._open():
                    connection.lose(fault.how)
            case Cut():
                self._cuts.append(fault)
                for trackers in self._trackers.values():
                    trackers[fault.direction].arm(fault)
            case Acks():
                self._set_acks((*self._acks, _AckRule(fault)))
            case Slow():
                self.slow = fault
                self._notify()
            case Refuse():
                self.refusing = True

    def is_held(self, direction: Direction) -> bool:
        """Whether what was sent in a direction arrives later."""
        return self.blocked.get(direction) is False or self.slow.unread == direction

    def block(self, direction: Direction, *, dropped: bool = False) -> None:
        """Let nothing arrive in a direction, and no new connection be made, until `heal`.

        Args:
            direction: As seen from the dialler.
            dropped: Lose what is sent meanwhile instead of holding it back.
        """
        self.blocked[direction] = dropped
        if self.barrier is None:
            self.barrier = trio.Event()
        self._notify()

    def heal(self) -> None:
        """Undo all faults and reset the connections that have lost bytes."""
        self.blocked.clear()
        self.slow = Slow()
        self.refusing = False
        self._set_acks(())
        for cut in self.waiting:
            self.disarm(cut)
        for connection in self._open():
            if connection.has_lost_bytes:
                connection.lose("reset")
        self._notify()
        if self.barrier is not None:
            self.barrier.set()
            self.barrier = None

    def disarm(self, cut: Cut) -> None:
        """Stop waiting for the place of a cut; does nothing when it is not waited for."""
        self._cuts = [each for each in self._cuts if each is not cut]
        for trackers in self._trackers.values():
            trackers[cut.direction].disarm(cut)

    def _set_acks(self, rules: tuple[_AckRule, ...]) -> None:
        self._acks = rules
        for trackers in self._trackers.values():
            trackers["down"].acks = rules

    # -- for what transports the bytes ------------------------------------------------------------

    def join(self, connection: WireConnection) -> None:
        """Apply the faults of this wire to a new connection, too."""
        self._open()
        trackers = self._trackers[connection] = {direction: FrameTracker() for direction in BOTH}
        trackers["down"].acks = self._acks
        for cut in self._cuts:
            trackers[cut.direction].arm(cut)
        connection.on_wire_changed()

    def forward(
        self, connection: WireConnection, direction: Direction, data: bytes
    ) -> tuple[bytes, How | None]:
        """Pass on what was sent on a connection.

        Args:
            connection: One that has joined.
            direction: Which way the bytes travel.
            data: The next bytes.

        Returns:
            The bytes that arrive, and how the connection is to be lost after them, if it is.
        """
        passed, cut = self._trackers[connection][direction].forward(data)
        if cut is None:
            return passed, None
        self.on_cut(cut)
        return passed, cut.how

    def _open(self) -> list[WireConnection]:
        """The open connections; closed ones are dropped from the table."""
        for connection in [each for each in self._trackers if not each.is_open]:
            del self._trackers[connection]
        return list(self._trackers)

    def _notify(self) -> None:
        for connection in self._open():
            connection.on_wire_changed()


READ_BYTES: Final = 64 * 1024
IN_FLIGHT_PIECES: Final = 256
"""How many reads wait between the two tasks of a direction: at most 16 MiB."""

DIAL_TIMEOUT_S: Final = 10.0

_NO_LINGER: Final = struct.pack("ii", 1, 0)  # closing sends RST and nothing that is unsent


class FaultProxy:
    """Forwards connections to a broker and applies faults to them.

    Args:
        target: The broker's address, `tcp://HOST:PORT`; empty while there is none.

    Attributes:
        target: Where new connections are forwarded to; they are reset when nobody listens there.
        wire: The faults that apply to the connections.
        uri: Where it listens, `tcp://127.0.0.1:PORT`, once the block is entered.
    """

    def __init__(self, target: str = "") -> None:
        self.target = target
        self.wire = Wire()
        self.uri = ""
        self._stack = AsyncExitStack()
        self._scope = trio.CancelScope()

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            OSError: No port is free.
        """
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
        """Lose all connections and stop listening."""
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
            await _ProxiedConnection(self.wire, client, server).run()

    async def _dial(self) -> trio.SocketStream | None:
        parts = urlsplit(self.target)
        if parts.hostname is None or parts.port is None:
            return None
        # Nobody listens there, or nobody answers: the caller resets the client's connection.
        with contextlib.suppress(OSError), trio.move_on_after(DIAL_TIMEOUT_S):
            return await trio.open_tcp_stream(parts.hostname, parts.port)
        return None


class _ProxiedConnection:
    """One connection: two streams and the bytes in flight between them."""

    def __init__(self, wire: Wire, client: trio.SocketStream, server: trio.SocketStream) -> None:
        self.is_open = True
        self.has_lost_bytes = False
        self._wire = wire
        self._client = client
        self._server = server
        self._silent = False
        self._scope = trio.CancelScope()
        self._changed = trio.Event()

    async def run(self) -> None:
        """Pass bytes on until both ends have ended."""
        self._wire.join(self)
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._start("up", self._client, self._server, nursery)
                    self._start("down", self._server, self._client, nursery)
        finally:
            self.is_open = False
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
        nursery.start_soon(self._read, direction, source, send)
        nursery.start_soon(self._write, direction, sink, receive)

    def lose(self, how: How) -> None:
        """Lose the connection now."""
        self._silent = True  # also after an orderly end: nothing may follow it
        self.has_lost_bytes = self.has_lost_bytes or how == "silence"
        for stream in (self._client, self._server):
            if how == "reset":
                _reset(stream)
            elif how == "end":
                with contextlib.suppress(OSError):  # the peer has closed this end already
                    stream.socket.shutdown(socket.SHUT_WR)
        if how == "reset":
            self._scope.cancel()
        self.on_wire_changed()

    def on_wire_changed(self) -> None:
        """Wake the tasks that wait for the wire to change."""
        self._changed.set()
        self._changed = trio.Event()

    async def _read(
        self,
        direction: Direction,
        source: trio.SocketStream,
        queue: trio.MemorySendChannel[tuple[float, bytes]],
    ) -> None:
        with queue:
            while True:
                await self._wait_until_read(direction)
                try:
                    data = bytes(await source.receive_some(READ_BYTES))
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    # The peer has reset its end, or `lose` has closed it in the meantime.
                    self._handle_broken_end()
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
            await self._wait_until_due(direction, since)
            if self._silent:
                continue
            if self._wire.blocked.get(direction):
                self.has_lost_bytes = True
                continue
            try:
                if data:
                    await self._send(direction, sink, data)
                else:
                    await sink.send_eof()
            except (trio.BrokenResourceError, trio.ClosedResourceError):  # as in `_read`
                self._handle_broken_end()

    async def _wait_until_read(self, direction: Direction) -> None:
        while not self._silent and self._wire.slow.unread == direction:
            await self._changed.wait()

    async def _wait_until_due(self, direction: Direction, since: float) -> None:
        """Wait until bytes that were read at a time may arrive: not held, and not too early."""
        while not self._silent:
            changed, due = self._changed, since + self._wire.slow.latency_s
            if self._wire.is_held(direction):
                await changed.wait()
            elif due > trio.current_time():
                with trio.move_on_at(due):
                    await changed.wait()
            else:
                return

    async def _send(self, direction: Direction, sink: trio.SocketStream, data: bytes) -> None:
        passed, how = self._wire.forward(self, direction, data)
        size = self._wire.slow.piece_bytes or READ_BYTES
        for start in range(0, len(passed), size):
            await sink.send_all(passed[start : start + size])
        if how is not None:
            self.lose(how)

    def _handle_broken_end(self) -> None:
        """Reset the other end of a connection, unless the wire is blocked."""
        if self._wire.blocked:
            self.has_lost_bytes = True
        elif not self._silent:
            self.lose("reset")


def _reset(stream: trio.SocketStream) -> None:
    """Close with RST."""
    with contextlib.suppress(OSError):  # the peer has closed it already
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    stream.socket.close()


# -- connections in memory -----------------------------------------------------------------------


_UNLIMITED: Final = 2**62


class MemorySwitch:
    """Puts wires into the network of a `trio.run`; connections without a wire are not changed.

    Args:
        network: The network. The switch takes the place of its hooks `admit` and `connected`, and
            calls the earlier ones after its own.
    """

    def __init__(self, network: MemoryNetwork) -> None:
        self._wires: dict[tuple[str, str], Wire] = {}
        self._network = network
        self._next_admit, self._next_connected = network.admit, network.connected
        network.admit = self._admit
        network.connected = self._connected

    def close(self) -> None:
        """Restore the hooks of the network; the switch that was made last is closed first."""
        self._network.admit, self._network.connected = self._next_admit, self._next_connected

    def wire(self, source: str, address: str) -> Wire:
        """The wire of the connections from one dialler to one listener.

        Args:
            source: The name under which the dialler is known; `CLIENT` for everyone without a wire
                of their own.
            address: `host:port` of the listener.
        """
        return self._wires.setdefault((source, address), Wire())

    def _find(self, source: str, address: str) -> Wire | None:
        return self._wires.get((source, address)) or self._wires.get((CLIENT, address))

    def _admit(self, source: str, address: str) -> trio.Event | None:
        wire = self._find(source, address)
        if wire is not None and wire.refusing:
            raise ConnectionRefusedError(111, "connections are refused")
        if wire is not None and wire.barrier is not None:
            return wire.barrier
        return None if self._next_admit is None else self._next_admit(source, address)

    def _connected(self, connection: MemoryConnection) -> None:
        wire = self._find(connection.source, connection.target)
        if wire is not None:
            _MemoryWireConnection(wire, connection)
        if self._next_connected is not None:
            self._next_connected(connection)


class _MemoryWireConnection:
    """One connection, whose pipes carry out the faults of a wire."""

    def __init__(self, wire: Wire, connection: MemoryConnection) -> None:
        self._wire = wire
        self._connection = connection
        self._has_lost_bytes = self._silent = False
        self._pipes: dict[Direction, Pipe] = {
            "up": connection.client.sending,
            "down": connection.client.receiving,
        }
        for direction, pipe in self._pipes.items():
            pipe.tap = partial(self._tap, direction)
        wire.join(self)

    @property
    def is_open(self) -> bool:
        """Whether at least one end is open."""
        return self._connection.open

    @property
    def has_lost_bytes(self) -> bool:
        """Whether it lost bytes, or one end has closed, of which the other may not know."""
        return (
            self._has_lost_bytes or self._connection.client.closed or self._connection.server.closed
        )

    def lose(self, how: How) -> None:
        """Lose the connection now."""
        match how:
            case "reset":
                self._silent = False
                self.on_wire_changed()
                self._connection.reset()
            case "end":
                self._connection.end()
            case "silence":
                self._silent = self._has_lost_bytes = True
                self.on_wire_changed()

    def on_wire_changed(self) -> None:
        """Apply the state of the wire to both pipes."""
        for direction, pipe in self._pipes.items():
            dropped = self._wire.blocked.get(direction)
            pipe.latency_s = self._wire.slow.latency_s
            pipe.receive_bytes = self._wire.slow.piece_bytes or _UNLIMITED
            pipe.held = self._wire.is_held(direction) and not self._silent
            pipe.silent = self._silent or dropped is True
            pipe.changed()

    def _tap(self, direction: Direction, data: bytes) -> tuple[bytes, Callable[[], None] | None]:
        if self._silent or self._wire.blocked.get(direction):
            self._has_lost_bytes = True
            return b"", None
        passed, how = self._wire.forward(self, direction, data)
        return passed, None if how is None else partial(self.lose, how)

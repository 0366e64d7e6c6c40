"""Connections within one process: `mem://host:port/amps/json`.

A broker that listens on such an address is reachable by every client of the same `trio.run`, and by
no other. No socket, no thread and no real time is involved: bytes that one end has sent are
readable at the other end at once, or after `latency_s` of trio's clock. Under a mock clock a whole
cluster with its clients is exact to the microsecond and takes no time.

Each direction of a connection is a `Pipe` into which faults can be injected while it is used: it
can be made slow, small, silent or held, cut after a number of bytes, ended or reset. `network()`
lists all connections.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

import trio
from typing_extensions import override

from haclient.transport.links.link import Link

_UNLIMITED: Final = 2**62
_ORDINARY_CAPACITY: Final = 256 * 1024  # roughly what a socket holds in flight


class Pipe:
    """The bytes in flight in one direction.

    Attributes:
        capacity_bytes: How many bytes may be in flight; a full pipe reports "would block".
        send_bytes: The most that one `try_send` accepts, to force partial sends.
        receive_bytes: The most that one `recv_into` returns, to force small reads.
        latency_s: How long each byte travels; a change keeps the order.
        silent: What is sent disappears: no error, no end, as behind a dead router (half-open).
        held: While set, nothing arrives; once cleared, all of it does: a healed partition.
        ended: The sender has closed its end.
        broken: Both ends meet this error in this direction, after what was in flight.
        sent_bytes: The total number of bytes sent.
        tap: Called with every piece that is sent. It returns the part that travels on and what to
            call after that, so it can do anything to the stream at any place.
    """

    def __init__(self, capacity_bytes: int = _UNLIMITED) -> None:
        self.capacity_bytes = capacity_bytes
        self.send_bytes = _UNLIMITED
        self.receive_bytes = _UNLIMITED
        self.latency_s = 0.0
        self.silent = False
        self.held = False
        self.ended = False
        self.broken: OSError | None = None
        self.sent_bytes = 0
        self.tap: Callable[[bytes], tuple[bytes, Callable[[], None] | None]] | None = None
        self._flying: deque[tuple[float, memoryview]] = deque()  # when each piece arrives
        self._flying_bytes = 0
        self._fuse_bytes = _UNLIMITED
        self._blow: Callable[[], None] = self.reset
        self._changed = trio.lowlevel.ParkingLot()

    def changed(self) -> None:
        """Wake every waiter, after an attribute was set."""
        self._changed.unpark_all()

    def fail_after(self, count: int, what: Callable[[], None]) -> None:
        """Call `what` when `count` more bytes were sent: a connection lost at a chosen byte."""
        self._fuse_bytes, self._blow = count, what

    def put(self, data: memoryview | bytes) -> int | None:
        """Send as much as fits; `None` when nothing does."""
        if self.broken is not None:
            raise self.broken
        room = self.capacity_bytes - self._flying_bytes
        count = min(len(data), self.send_bytes, room, self._fuse_bytes)
        if count <= 0:
            return None
        self.sent_bytes += count
        self._fuse_bytes -= count
        piece, then = bytes(data[:count]), None
        if self.tap is not None:
            piece, then = self.tap(piece)
        if piece and not self.silent:
            due = trio.current_time() + self.latency_s if self.latency_s else 0.0
            if self._flying:
                due = max(due, self._flying[-1][0])
            self._flying.append((due, memoryview(piece)))
            self._flying_bytes += len(piece)
            self.changed()
        if then is not None:
            then()
        if not self._fuse_bytes:
            self._fuse_bytes = _UNLIMITED
            self._blow()
        return count

    def take(self, buffer: memoryview) -> int | None:
        """Receive what has arrived: its length, 0 at the end, `None` when there is nothing yet."""
        if not self._flying and not self.held:
            if self.broken is not None:
                raise self.broken
            return 0 if self.ended else None
        taken, room = 0, min(len(buffer), self.receive_bytes)
        while taken < room and self._arrived():
            due, piece = self._flying.popleft()
            count = min(len(piece), room - taken)
            buffer[taken : taken + count] = piece[:count]
            taken += count
            if count < len(piece):
                self._flying.appendleft((due, piece[count:]))
        if not taken:
            return None
        self._flying_bytes -= taken
        self.changed()
        return taken

    def _arrived(self) -> bool:
        if self.held or not self._flying:
            return False
        due = self._flying[0][0]
        return not due or due <= trio.current_time()

    def readable(self) -> bool:
        """Whether `take` would not return `None`."""
        if self._flying:
            return self._arrived()
        return not self.held and (self.ended or self.broken is not None)

    def writable(self) -> bool:
        """Whether `put` would not return `None`."""
        return self._flying_bytes < self.capacity_bytes or self.broken is not None

    async def wait_change(self) -> None:
        """Wait until something changes: a sender's room comes from the reader, not with time."""
        await self._changed.park()

    async def wait_arrival(self) -> None:
        """Wait until something changes or arrives."""
        due = self._flying[0][0] if self._flying and not self.held else 0.0
        with trio.move_on_at(due or float("inf")):
            await self.wait_change()

    def end(self) -> None:
        """Nothing more is sent: the reader gets what is in flight, then the end."""
        if not self.silent:
            self.ended = True
            self.changed()

    def reset(self) -> None:
        """The connection is reset by the peer."""
        self.broken = ConnectionResetError("connection reset by peer")
        self.changed()


class MemoryLink(Link):
    """One end of a connection."""

    def __init__(self, peer: str, *, sending: Pipe, receiving: Pipe) -> None:
        self.sending = sending
        self.receiving = receiving
        self.closed = False
        self._peer = peer

    @override
    def try_send(self, data: memoryview | bytes) -> int | None:
        if self.closed:
            raise OSError(9, "the link is closed")
        if self.sending.ended:
            raise BrokenPipeError("the peer has closed the link")
        return self.sending.put(data)

    @override
    def recv_into(self, buffer: memoryview) -> int | None:
        if self.closed:
            raise OSError(9, "the link is closed")
        return self.receiving.take(buffer)

    @override
    async def wait_readable(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self._refuse_closed() and not self.receiving.readable():
            await self.receiving.wait_arrival()

    @override
    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self._refuse_closed() and not self.sending.writable():
            await self.sending.wait_change()

    def _refuse_closed(self) -> bool:
        if self.closed:
            raise trio.ClosedResourceError("the link is closed")
        return False

    @override
    def close(self) -> None:
        self.closed = True
        self.sending.end()
        if not (self.sending.held or self.sending.silent):  # else the peer cannot know of it
            self.receiving.end()

    def reset(self) -> None:
        """End both directions at once by an error."""
        self.sending.reset()
        self.receiving.reset()

    @property
    @override
    def peer(self) -> str:
        return self._peer


def link_pair(
    client: str = "client", server: str = "server", *, capacity_bytes: int = _UNLIMITED
) -> tuple[MemoryLink, MemoryLink]:
    """Two ends of one connection: the client's, then the server's."""
    up, down = Pipe(capacity_bytes), Pipe(capacity_bytes)
    return (
        MemoryLink(server, sending=up, receiving=down),
        MemoryLink(client, sending=down, receiving=up),
    )


class MemoryConnection:
    """One connection between a dialler and a listener.

    Attributes:
        source: The dialling side: the value of `origin` in its task.
        target: The listener's address, `host:port`.
        client: The dialler's end.
        server: The listener's end.
    """

    def __init__(self, source: str, target: str) -> None:
        self.source = source
        self.target = target
        self.client, self.server = link_pair(source, target, capacity_bytes=_ORDINARY_CAPACITY)

    @property
    def open(self) -> bool:
        """Whether an end of it is still open."""
        return not (self.client.closed and self.server.closed)

    def reset(self) -> None:
        """Both ends meet an error (RST)."""
        self.client.reset()

    def end(self) -> None:
        """Both ends read an end (FIN)."""
        self.client.sending.end()
        self.client.receiving.end()


class MemoryNetwork:
    """The listeners and the connections.

    Attributes:
        connected: Called with each new connection before anything is sent on it.
        admit: Asked with source and target before each connection is made. It raises `OSError`
            to refuse, or returns an event after which it is asked again, as for a lost SYN.
    """

    def __init__(self) -> None:
        self._accepting: dict[str, Callable[[MemoryLink], object]] = {}
        self._connections: list[MemoryConnection] = []
        self.connected: Callable[[MemoryConnection], object] | None = None
        self.admit: Callable[[str, str], trio.Event | None] | None = None

    @property
    def connections(self) -> list[MemoryConnection]:
        """Every connection of which an end is still open."""
        self._connections = [each for each in self._connections if each.open]
        return self._connections

    def listen(self, address: str, accept: Callable[[MemoryLink], object]) -> Callable[[], None]:
        """Have `accept` called with the server's end of each connection to `host:port`.

        Returns:
            A function that stops listening; open connections stay.

        Raises:
            OSError: The address is in use.
        """
        if address in self._accepting:
            raise OSError(98, f"mem://{address} has a listener already")
        self._accepting[address] = accept
        return lambda: self._accepting.pop(address, None) and None

    async def connect(self, address: str) -> MemoryLink:
        """Connect to a listener.

        Raises:
            OSError: No listener has this address.
        """
        await trio.lowlevel.checkpoint()
        source = origin.get()
        while self.admit is not None and (wait := self.admit(source, address)) is not None:
            await wait.wait()
        accept = self._accepting.get(address)
        if accept is None:
            raise ConnectionRefusedError(111, "no listener there in this process")
        connection = MemoryConnection(source, address)
        self.connections.append(connection)
        if self.connected is not None:
            self.connected(connection)
        accept(connection.server)
        return connection.client


origin: ContextVar[str] = ContextVar("origin", default="client")
"""The name under which the tasks of this context dial; tasks inherit it."""

_network: trio.lowlevel.RunVar[MemoryNetwork] = trio.lowlevel.RunVar("haclient_memory_network")


def network() -> MemoryNetwork:
    """The network of this `trio.run`."""
    try:
        return _network.get()
    except LookupError:  # the first use in this context
        made = MemoryNetwork()
        _network.set(made)
        return made

"""A pair of links in memory, with faults on demand.

Nothing here waits by itself and nothing reads a clock: bytes that one end has sent are readable at
the other end at once, so a test under the autojump clock is exact to the microsecond.

Each direction is a `Pipe` whose attributes may be set at any time:

* `capacity_bytes`: how much fits in flight; a full pipe says "would block";
* `send_bytes`: the most that one `try_send` takes (partial sends);
* `receive_bytes`: the most that one `recv_into` gives (small reads);
* `silent`: what is sent disappears, as behind a dead router: no error, no end (half-open);
* `broken`: both ends meet this error in this direction, after what was in flight.
"""

from __future__ import annotations

import trio
from typing_extensions import override

from haclient.transport.link import Link

__all__ = ["MemoryLink", "Pipe", "link_pair"]

_UNLIMITED = 2**62


class Pipe:
    """The bytes on their way in one direction."""

    def __init__(self) -> None:
        self.capacity_bytes = _UNLIMITED
        self.send_bytes = _UNLIMITED
        self.receive_bytes = _UNLIMITED
        self.silent = False
        self.ended = False
        self.broken: OSError | None = None
        self.sent_bytes = 0
        self._flying = bytearray()
        self._changed = trio.lowlevel.ParkingLot()

    def changed(self) -> None:
        """Let whoever waits look again."""
        self._changed.unpark_all()

    def put(self, data: memoryview | bytes) -> int | None:
        if self.broken is not None:
            raise self.broken
        count = min(len(data), self.send_bytes, self.capacity_bytes - len(self._flying))
        if count <= 0:
            return None
        self.sent_bytes += count
        if not self.silent:
            self._flying += data[:count]
            self.changed()
        return count

    def take(self, buffer: memoryview) -> int | None:
        if not self._flying:
            if self.broken is not None:
                raise self.broken
            return 0 if self.ended else None
        count = min(len(buffer), self.receive_bytes, len(self._flying))
        buffer[:count] = self._flying[:count]
        del self._flying[:count]
        self.changed()
        return count

    def readable(self) -> bool:
        return bool(self._flying) or self.ended or self.broken is not None

    def writable(self) -> bool:
        return len(self._flying) < self.capacity_bytes or self.broken is not None

    async def wait(self) -> None:
        await self._changed.park()

    def end(self) -> None:
        """Nothing more is sent: the reader gets what is in flight, then the end."""
        self.ended = True
        self.changed()

    def reset(self) -> None:
        """The connection is reset by the peer."""
        self.broken = ConnectionResetError("connection reset by peer")
        self.changed()


class MemoryLink(Link):
    """One end of a pair."""

    def __init__(self, name: str, peer: str, *, sending: Pipe, receiving: Pipe) -> None:
        self.sending = sending
        self.receiving = receiving
        self.closed = False
        self._name = name
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
            await self.receiving.wait()

    @override
    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self._refuse_closed() and not self.sending.writable():
            await self.sending.wait()

    def _refuse_closed(self) -> bool:
        if self.closed:
            raise trio.ClosedResourceError("the link is closed")
        return False

    @override
    def close(self) -> None:
        self.closed = True
        self.sending.end()
        self.receiving.end()

    def reset(self) -> None:
        """End both directions at once by an error."""
        self.sending.reset()
        self.receiving.reset()

    @property
    @override
    def peer(self) -> str:
        return self._peer

    @property
    @override
    def local(self) -> str:
        return self._name


def link_pair() -> tuple[MemoryLink, MemoryLink]:
    """Two ends of one connection: the client's, then the server's."""
    up, down = Pipe(), Pipe()
    client = MemoryLink("client", "server", sending=up, receiving=down)
    server = MemoryLink("server", "client", sending=down, receiving=up)
    return client, server

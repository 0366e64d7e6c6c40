"""Faults for `mem://` connections: the same data as on real sockets, in virtual time.

::

    switch = MemorySwitch(network())
    switch.wire("client", "broker:1").apply(Cut(at_byte=100))
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from haclient_fake_server.testing.faults import CLIENT, Direction, How
from haclient_fake_server.testing.proxy import Wire

if TYPE_CHECKING:
    from haclient.transport.memory_network import MemoryConnection, MemoryNetwork, Pipe

__all__ = ["MemorySwitch"]

_UNLIMITED: Final = 2**62


class MemorySwitch:
    """Puts wires into the network of a `trio.run`; connections without a wire are left alone.

    Args:
        network: Whose `admit` and `connected` are taken; what was there is asked after this.
    """

    def __init__(self, network: MemoryNetwork) -> None:
        self._wires: dict[tuple[str, str], Wire] = {}
        self._network = network
        self._next_admit, self._next_connected = network.admit, network.connected
        network.admit = self._admit
        network.connected = self._connected

    def close(self) -> None:
        """Have no more to do with connections; the switches made after this were closed before."""
        self._network.admit, self._network.connected = self._next_admit, self._next_connected

    def wire(self, source: str, address: str) -> Wire:
        """The wire from who dials under this name to `host:port`.

        That of `CLIENT` is for everybody who has none.
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
    """One connection, disturbed through its pipes."""

    def __init__(self, wire: Wire, connection: MemoryConnection) -> None:
        self._wire = wire
        self._connection = connection
        self._lossy = self._silent = False
        self._pipes: dict[Direction, Pipe] = {
            "up": connection.client.sending,
            "down": connection.client.receiving,
        }
        for direction, pipe in self._pipes.items():
            pipe.tap = partial(self._tap, direction)
        wire.join(self)

    @property
    def open(self) -> bool:
        """Whether at least one end is open."""
        return self._connection.open

    @property
    def lossy(self) -> bool:
        """Whether it cannot go on: it lost bytes, or one end has closed, unheard by the other."""
        return self._lossy or self._connection.client.closed or self._connection.server.closed

    def lose(self, how: How) -> None:
        """Lose it now."""
        match how:
            case "reset":
                self._silent = False
                self.changed()
                self._connection.reset()
            case "end":
                self._connection.end()
            case "silence":
                self._silent = self._lossy = True
                self.changed()

    def changed(self) -> None:
        """Apply the state of the wire to both pipes."""
        for direction, pipe in self._pipes.items():
            dropped = self._wire.blocked.get(direction)
            pipe.latency_s = self._wire.slow.latency_s
            pipe.receive_bytes = self._wire.slow.piece_bytes or _UNLIMITED
            pipe.held = dropped is False and not self._silent
            pipe.silent = self._silent or dropped is True
            pipe.changed()

    def _tap(self, direction: Direction, data: bytes) -> tuple[bytes, Callable[[], None] | None]:
        if self._silent or self._wire.blocked.get(direction):
            self._lossy = True
            return b"", None
        passed, how = self._wire.feed(self, direction, data)
        return passed, None if how is None else partial(self.lose, how)

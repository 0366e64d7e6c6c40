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
            pipe.held = dropped is False and not self._silent
            pipe.silent = self._silent or dropped is True
            pipe.changed()

    def _tap(self, direction: Direction, data: bytes) -> tuple[bytes, Callable[[], None] | None]:
        if self._silent or self._wire.blocked.get(direction):
            self._has_lost_bytes = True
            return b"", None
        passed, how = self._wire.forward(self, direction, data)
        return passed, None if how is None else partial(self.lose, how)

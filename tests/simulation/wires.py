"""The network between the nodes, and what a script can do to it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from random import Random

import trio

from haclient.transport.links.memory_network import MemoryConnection, Pipe, network
from simulation.plans import Links

__all__ = ["Wires"]


def _host(address: str) -> str:
    return address.partition(":")[0]


class Wires:
    """Every connection of a run; each is between two nodes, known by name.

    Args:
        links: How connections are.
        chance: Draws what differs from one connection to the next.

    Attributes:
        dialled: When each node has opened a connection.
        watched: Called with each new connection.
    """

    def __init__(self, links: Links, chance: Random) -> None:
        self._links = links
        self._chance = chance
        self._slow: dict[str, float] = {}
        self._lag: dict[tuple[str, str], float] = {}
        self._apart: dict[tuple[str, str], int] = {}  # from, to: how many partitions hold it
        self._dark: set[str] = set()  # machines without power: they do not even refuse
        self._healed = trio.Event()
        self.dialled: dict[str, list[float]] = {}
        self.watched: Callable[[MemoryConnection], object] = lambda _: None
        network().connected = self._connected
        network().admit = self._admit

    # -- new connections ----------------------------------------------------

    def _admit(self, source: str, address: str) -> trio.Event | None:
        target = _host(address)
        ways = ((source, target), (target, source))
        if any(way in self._apart for way in ways) or target in self._dark:
            return self._healed
        return None

    def _connected(self, connection: MemoryConnection) -> None:
        self.dialled.setdefault(connection.source, []).append(trio.current_time())
        links, chance = self._links, self._chance
        for pipe in _pipes(connection):
            pipe.latency_s = links.latency_s * chance.random()
            pipe.latency_s += self._slow.get(connection.source, 0.0)
            pipe.latency_s += self._lag.get((connection.source, _host(connection.target)), 0.0)
            pipe.receive_bytes = links.receive_bytes
            pipe.send_bytes = links.send_bytes
            pipe.capacity_bytes = links.capacity_bytes
        self.watched(connection)

    # -- connections of a node ------------------------------------------------

    def of(self, node: str) -> Iterator[MemoryConnection]:
        """Its open connections, whoever dialled."""
        for connection in tuple(network().connections):
            if node in {connection.source, _host(connection.target)}:
                yield connection

    def busiest(self, brokers: tuple[str, ...]) -> str:
        """The broker that most clients are connected to."""
        counts = dict.fromkeys(brokers, 0)
        for connection in network().connections:
            if connection.source not in brokers:
                counts[_host(connection.target)] += 1
        return max(brokers, key=lambda broker: counts[broker])

    def reset(self, node: str) -> None:
        """Each end meets an error."""
        for connection in self.of(node):
            connection.reset()

    def end(self, node: str) -> None:
        """Each end reads an end."""
        for connection in self.of(node):
            connection.end()

    def cut(self, node: str, count: int) -> None:
        """Each connection is lost when it has carried so many more bytes to or from its server."""
        for connection in self.of(node):
            pipe = self._chance.choice(_pipes(connection))
            pipe.fail_after(count, connection.reset)

    def call_off_cuts(self) -> None:
        """No connection is cut any more that was to be after some more bytes."""
        for connection in network().connections:
            for pipe in _pipes(connection):
                pipe.fail_after(sys.maxsize, connection.reset)

    def silence(self, node: str) -> None:
        """The connections are half open: what is sent on them disappears without a word."""
        for connection in self.of(node):
            for pipe in _pipes(connection):
                pipe.silent = True

    def slow(self, node: str, seconds: float) -> None:
        """Whatever this node sends or receives takes so much longer, from now on."""
        self._slow[node] = seconds
        for connection in self.of(node):
            for pipe in _pipes(connection):
                pipe.latency_s = seconds

    def lag(self, source: str, target: str, seconds: float) -> None:
        """What one broker replicates to another takes so much longer; the other way stays quick."""
        self._lag[source, target] = seconds
        for connection in self.of(source):
            if (connection.source, _host(connection.target)) == (source, target):
                for pipe in _pipes(connection):
                    pipe.latency_s = seconds

    # -- partitions ---------------------------------------------------------

    def part(self, source: str, target: str) -> None:
        """Nothing gets from the one to the other until they are joined again."""
        way = (source, target)
        self._apart[way] = self._apart.get(way, 0) + 1
        self._hold(source, target, held=True)

    def join(self, source: str, target: str) -> None:
        """What was held arrives, all at once."""
        way = (source, target)
        if way not in self._apart:  # everything was healed meanwhile
            return
        self._apart[way] -= 1
        if not self._apart[way]:
            del self._apart[way]
            self._hold(source, target, held=False)
            self._let_in()

    def _hold(self, source: str, target: str, *, held: bool) -> None:
        for connection in self.of(source):
            for pipe, ends in zip(_pipes(connection), _ways(connection), strict=True):
                if ends == (source, target):
                    pipe.held = held
                    pipe.changed()

    def go_dark(self, node: str) -> None:
        """The machine has no power: its peers hear nothing at all."""
        self._dark.add(node)
        self.silence(node)

    def light_up(self, node: str) -> None:
        """The machine runs again: whoever calls is answered, or refused."""
        if node in self._dark:
            self._dark.remove(node)
            self._let_in()

    def _let_in(self) -> None:
        healed, self._healed = self._healed, trio.Event()
        healed.set()

    def heal(self) -> None:
        """No partition and no slowness any more."""
        for way in tuple(self._apart):
            self._apart[way] = 1
            self.join(*way)
        self._slow.clear()
        self._lag.clear()
        for connection in network().connections:
            for pipe in _pipes(connection):
                pipe.latency_s = min(pipe.latency_s, self._links.latency_s)


def _pipes(connection: MemoryConnection) -> tuple[Pipe, Pipe]:
    return connection.client.sending, connection.server.sending


def _ways(connection: MemoryConnection) -> tuple[tuple[str, str], tuple[str, str]]:
    source, target = connection.source, _host(connection.target)
    return (source, target), (target, source)

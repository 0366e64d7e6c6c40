"""Several pure broker engines that replicate to each other, in a world where nothing happens alone.

Each instance is a `World` with its own journal. A `Wire` is what a connection from one to another
is: two queues of frames that move only when a test says so, one frame at a time or all of them. A
test can lose a wire with everything in flight, restart an instance, or cut two of them off from
each other; `settle` lets everything happen that can.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from typing_extensions import override

from haclient.protocol.framing import LENGTH, MAX_PUBLISH_BYTES
from haclient.protocol.identity import publisher_id
from haclient_fake_server.engine.journal import records_of
from haclient_fake_server.engine.replication.destination import DestinationStatus
from haclient_fake_server.engine.settings import LogTopic, QueueTopic, ReplicateTo, SowTopic
from haclient_fake_server.journal.format import Record
from support.engine import Peer, World, decode

__all__ = ["Group", "Wire", "address"]


def address(name: str) -> str:
    """Where the instance of this name listens."""
    return f"tcp://{name}:9007"


class Wire:
    """One connection from a sender to a receiver."""

    def __init__(self, sender: World, receiver: World, to: str) -> None:
        self.here = _End(sender, self, to=to)
        self.there = _End(receiver, self)
        self.alive = True

    @property
    def ends(self) -> tuple[_End, _End]:
        """The sender's and the receiver's."""
        return self.here, self.there

    def move(self) -> bool:
        """Let one frame arrive in each direction; whether any did."""
        here = self.here.receive()
        return self.there.receive() or here

    def lose(self) -> None:
        """Everything in flight is lost, and both ends learn of it."""
        if self.alive:
            self.alive = False
            for end in self.ends:
                end.flying.clear()
                end.peer.close()


class _End:
    """One end of a wire: a peer of its world, and what is on the way to it."""

    def __init__(self, world: World, wire: Wire, *, to: str = "") -> None:
        self.world = world
        self.flying: deque[bytes] = deque()
        self.wire = wire
        self.peer = _WirePeer(world, self)
        world.peers[self.peer.number] = self.peer
        if to:
            world.apply(world.engine.dialled(self.peer.number, to, world.now))
        else:
            world.engine.connected(self.peer.number, world.now, peer="wire")

    @property
    def is_expecting(self) -> bool:
        """Whether something is on the way to this end."""
        for end in self.wire.ends:
            end.take_off()
        return bool(self.flying) and not self.peer.closed

    def take_off(self) -> None:
        """What this end has sent is on its way to the other."""
        here, there = self.wire.ends
        other = there if self is here else here
        data = self.peer.take_bytes()
        while data:
            size = LENGTH.size + LENGTH.unpack_from(data)[0]
            if other is there:
                limit = other.world.settings.max_message_bytes
                assert size - LENGTH.size <= limit, f"{size} bytes, the other side reads {limit}"
            other.flying.append(data[:size])
            data = data[size:]

    def receive(self) -> bool:
        """One frame arrives; whether there was one."""
        if not self.is_expecting:
            return False
        self.world.deliver(self.peer, decode(self.flying.popleft(), expand_sow=False))
        if self.peer.closed:
            self.wire.lose()
        return True


class _WirePeer(Peer):
    """The connection as an engine sees it."""

    def __init__(self, world: World, end: _End) -> None:
        super().__init__(world, world.next_number())
        self.end = end

    @override
    def close(self) -> None:
        super().close()
        self.end.wire.alive = False


class Group:
    """Some instances and the wires between them.

    Args:
        links: By instance, the instances that it replicates to; `"b"` synchronously, `"~b"` not.
        downgrade_after_s: For all of them.
        max_frame_bytes: The longest frame that they read.
    """

    def __init__(
        self,
        links: Mapping[str, tuple[str, ...]],
        *,
        downgrade_after_s: float | None = None,
        log_topics: tuple[LogTopic, ...] = (LogTopic(".*"),),
        sow_topics: tuple[SowTopic, ...] = (),
        queues: tuple[QueueTopic, ...] = (),
        max_frame_bytes: int = MAX_PUBLISH_BYTES,
    ) -> None:
        self.links = [(name, to.lstrip("~")) for name, targets in links.items() for to in targets]
        self.worlds = {
            name: World(
                name=name,
                ack_interval_s=0.0,
                log_topics=log_topics,
                sow_topics=sow_topics,
                queues=queues,
                max_message_bytes=max_frame_bytes,
                replicate_to=tuple(
                    ReplicateTo(
                        address(to.lstrip("~")),
                        "async" if to.startswith("~") else "sync",
                        downgrade_after_s,
                    )
                    for to in targets
                ),
            )
            for name, targets in links.items()
        }
        self.cut_off: set[tuple[str, str]] = set()
        self.wires: dict[tuple[str, str], Wire] = {}

    def __getitem__(self, name: str) -> World:
        return self.worlds[name]

    def dial(self) -> None:
        """Every link that is down and not cut off is dialled."""
        for link in self.links:
            wire = self.wires.get(link)
            if link not in self.cut_off and (wire is None or not wire.alive):
                if wire is not None:
                    wire.lose()
                self.wires[link] = Wire(self[link[0]], self[link[1]], address(link[1]))

    def cut(self, sender: str, receiver: str) -> None:
        """Nothing gets through from here on, in this direction of replication."""
        self.cut_off.add((sender, receiver))
        self.lose(sender, receiver)

    def lose(self, sender: str, receiver: str) -> None:
        """The connection is lost, with what is in flight."""
        wire = self.wires.get((sender, receiver))
        if wire is not None:
            wire.lose()

    def restart(self, name: str) -> None:
        """Kill an instance and start it on the same journal."""
        for link, wire in self.wires.items():
            if name in link:
                wire.lose()
        self[name].restart()

    def settle(self) -> None:
        """Let everything happen that can, without time passing."""
        self.dial()
        while self._move_all():
            self.tick()

    def _move_all(self) -> bool:
        """One frame in each direction of each wire; whether there was any."""
        moved = [wire.move() for wire in self.wires.values()]
        return any(moved)

    def move(self, choice: int) -> None:
        """Let one frame arrive at one of the ends that something is on the way to."""
        ends = [end for wire in self.wires.values() for end in wire.ends if end.is_expecting]
        if ends:
            ends[choice % len(ends)].receive()

    def tick(self) -> None:
        """Every instance does what is due now."""
        for world in self.worlds.values():
            world.advance(0.0)

    def heal(self) -> None:
        """No partition is left, and everything happens."""
        self.cut_off.clear()
        self.settle()

    def log(self, name: str) -> list[Record]:
        """The messages and deletes that an instance has recorded."""
        journal = self[name].journal
        chunk, _ = journal.read(journal.seek(1), 2**30)
        return [record for record in records_of(chunk) if record.is_data]

    def messages(self, name: str) -> list[tuple[int, int, bytes]]:
        """Publisher, sequence and body of what an instance has recorded."""
        return [(each.publisher_id, each.sequence, each.payload) for each in self.log(name)]

    def sequences(self, name: str, client_name: str) -> set[int]:
        """The sequences of a client that an instance has recorded."""
        wanted = publisher_id(client_name)
        return {each.sequence for each in self.log(name) if each.publisher_id == wanted}

    def status(self, sender: str, receiver: str) -> DestinationStatus:
        """What the sender knows of the receiver."""
        statuses = self[sender].engine.destinations
        return next(each for each in statuses if each.address == address(receiver))

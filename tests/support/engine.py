"""A pure broker engine in a world of its own: a clock that only tests move, a journal in memory.

`World` does what the shells do, in the contract's order: journal, sends, closes, replay. `Peer`
is a client of it that speaks frames, so that what a test reads went through the wire's own
encoding.
"""

from __future__ import annotations

from haclient.protocol.codec import MessageDecoder, encode_frame
from haclient.protocol.framing import FrameReader
from haclient.protocol.messages import Message
from haclient_fake_server.engine.broker import Engine
from haclient_fake_server.engine.guards import Guard
from haclient_fake_server.engine.journal import MemoryJournal
from haclient_fake_server.engine.outbox import Effects, Severity
from haclient_fake_server.engine.queues.points import QueuePoint
from haclient_fake_server.engine.queues.snapshot import QueueSnapshot
from haclient_fake_server.engine.recovery import SavedState
from haclient_fake_server.engine.replication.durability import ReplicationProgress
from haclient_fake_server.engine.settings import EngineSettings
from haclient_fake_server.journal.files import JournalFiles

__all__ = ["START_US", "Peer", "World", "decode"]

START_US = 1_700_000_000_000_000
"""The wall clock when a world begins: 2023-11-14 22:13:20 UTC."""


def decode(*frames: bytes, expand_sow: bool = True) -> list[Message]:
    """The messages in some frames."""
    return MessageDecoder(expand_sow=expand_sow).decode(*FrameReader().feed(b"".join(frames)))


class Peer:
    """One connection to a world."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.closed = ""
        self.stalled = False
        self._inbox: list[bytes] = []
        self._put_back: list[Message] = []
        self._commands = 0

    def send(self, body: bytes = b"", /, **fields: str | int) -> None:
        """Send one command; keyword names are wire names."""
        self.send_all([encode_frame(fields, body)])

    def send_all(self, frames: list[bytes]) -> None:
        """Send some frames in one batch."""
        self.world.deliver(self, decode(*frames, expand_sow=False))

    def publish(self, sequence: int | None, body: bytes = b"{}", /, **fields: str | int) -> None:
        """Publish to `orders`; with a sequence a persisted ack is asked for."""
        message: dict[str, str | int] = {"c": "p", "t": "orders"}
        if sequence is not None:
            message |= {"s": sequence, "a": "persisted"}
        self.send(body, **{**message, **fields})

    def subscribe(self, sub_id: str = "1", /, **fields: str | int) -> None:
        """Subscribe to `orders`; every ack there is for it is asked for."""
        acks = "processed,completed,persisted" if "bm" in fields else "processed"
        message: dict[str, str | int] = {
            "c": "subscribe",
            "cid": sub_id,
            "sub_id": sub_id,
            "t": "orders",
            "a": acks,
        }
        self.send(**{**message, **fields})

    def take_bytes(self) -> bytes:
        """Everything that came since the last look, as it came."""
        taken, self._inbox = b"".join(self._inbox), []
        return taken

    def take(self, *, expand_sow: bool = True) -> list[Message]:
        """Everything that came since the last look."""
        before, self._put_back = self._put_back, []
        return before + decode(self.take_bytes(), expand_sow=expand_sow)

    def put_back(self, messages: list[Message]) -> None:
        """Leave some of what `take` has returned for its next call."""
        self._put_back += messages

    def bodies(self) -> list[bytes]:
        """The bodies of the publishes that came since the last look."""
        return [message.data for message in self.take() if message.kind == "p"]

    def acks(self) -> list[Message]:
        """The acks that came since the last look."""
        return [message for message in self.take() if message.kind == "ack"]

    def close(self) -> None:
        """End the connection from this side."""
        self.closed = self.closed or "by the peer"
        self.world.end(self)

    def take_in(self, data: bytes) -> None:
        """The world has sent something."""
        self._inbox.append(data)


class World:
    """A broker and its clients.

    Args:
        start_id: Which start of a log it is.
        journal: Its log; a new one in memory by default.
        now: The time when it begins, in seconds.
        settings: Of `EngineSettings`.
    """

    def __init__(
        self,
        *,
        start_id: int = 0,
        journal: MemoryJournal | JournalFiles | None = None,
        now: float = 100.0,
        **settings: object,
    ) -> None:
        self.settings = EngineSettings(**settings)  # type: ignore[arg-type]  # checked by its users
        self.journal = MemoryJournal(start_id) if journal is None else journal
        self.now = now
        self.peers: dict[int, Peer] = {}
        self.events: list[str] = []
        self.progress: ReplicationProgress | None = None
        self.guards: tuple[Guard, ...] = ()
        self.queue_points: tuple[QueuePoint, ...] = ()
        self.queue_snapshots: tuple[QueueSnapshot, ...] = ()
        self._connections = 0
        self.engine = self._new_engine()

    def restart(self) -> None:
        """A new broker on the same journal; all connections are gone."""
        for peer in self.peers.values():
            peer.closed = "restart"
        self.peers.clear()
        self.now += 1.0
        self.engine = self._new_engine()

    def connect(self) -> Peer:
        """A connection that has not logged on."""
        number = self.next_number()
        peer = self.peers[number] = Peer(self, number)
        self.engine.connected(number, self.now, peer="test")
        return peer

    def next_number(self) -> int:
        """A number for a new connection."""
        self._connections += 1
        return self._connections

    def client(self, name: str = "pubber", **fields: str | int) -> Peer:
        """A connection that has logged on; its logon ack is swallowed."""
        peer = self.connect()
        logon = {"c": "logon", "cid": "0", "client_name": name, "a": "processed"}
        peer.send(**{**logon, **fields})
        (answer,) = peer.take()
        assert answer.status == "success", answer
        return peer

    def deliver(self, peer: Peer, messages: list[Message]) -> None:
        """Commands from a peer reach the engine."""
        self.apply(self.engine.received(peer.number, messages, self.now))

    def die_before_writing(self, peer: Peer, frames: list[bytes]) -> None:
        """Commands reach the engine, which is killed before their block is in the journal."""
        messages = decode(*frames, expand_sow=False)
        for number, data in self.engine.received(peer.number, messages, self.now).early:
            self.peers[number].take_in(data)
        self.restart()

    def end(self, peer: Peer) -> None:
        """A connection ends."""
        if self.peers.pop(peer.number, None) is not None:
            self.apply(self.engine.disconnected(peer.number, self.now))

    def advance(self, seconds: float) -> None:
        """Let time pass, with every tick that the engine asks for on the way."""
        target = self.now + seconds
        while self.engine.next_due <= target:
            self.now = max(self.now, self.engine.next_due)
            self.apply(self.engine.tick(self.now))
        self.now = target

    def apply(self, effects: Effects) -> None:
        """What the shells do."""
        for number, data in effects.early:
            self.peers[number].take_in(data)
        self.write(effects)
        for number, data in effects.sends:
            self.peers[number].take_in(data)
        for number, reason in effects.closes:
            peer = self.peers[number]
            peer.closed = peer.closed or reason
            self.end(peer)
        for number in effects.with_backlog:
            self.replay_backlog(self.peers[number])

    def write(self, effects: Effects) -> None:
        """What the shells do before anybody is told."""
        if effects.block is not None:
            self.journal.append(effects.block)
        if effects.progress is not None:
            self.progress = effects.progress
        if effects.guards is not None:
            self.guards = effects.guards
        if effects.queue_points is not None:
            self.queue_points = effects.queue_points
        self.events += [each.text for each in effects.events if each.severity > Severity.INFO]

    def replay_backlog(self, peer: Peer) -> None:
        """Replay for a peer until it has all, unless it does not read."""
        while not peer.stalled and self.engine.has_backlog(peer.number):
            self.apply(self.engine.pump(peer.number, self.now))

    def _new_engine(self) -> Engine:
        engine = Engine(
            self.settings,
            self.journal,
            now=self.now,
            now_us=START_US + int(self.now * 1e6),
            saved=SavedState(self.progress, self.guards, self.queue_points, self.queue_snapshots),
        )
        self.progress, self.queue_points = engine.progress, engine.queue_points
        return engine

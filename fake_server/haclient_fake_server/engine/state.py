"""What the parts of the engine share: the world as it is, and what the batch wants done.

`begin` opens a batch, `finish` closes it and returns its `Effects`. In between, parts call `send`,
`close` and `wake_at`, and add records to `batch`. Nothing here waits, reads a clock or does I/O.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from haclient_fake_server.engine.batch import BatchBuilder
from haclient_fake_server.engine.identity import Publisher, Publishers
from haclient_fake_server.engine.routes import Route, RouteTable
from haclient_fake_server.engine.sow import SowTopic
from haclient_fake_server.engine.topics import TopicMatcher

if TYPE_CHECKING:
    from haclient_fake_server.engine.connections import Connection
    from haclient_fake_server.engine.journal import Block, JournalReader
    from haclient_fake_server.engine.settings import EngineSettings
    from haclient_fake_server.engine.subscriptions import Subscription

__all__ = ["Effects", "State"]


@dataclass(frozen=True, slots=True)
class Effects:
    """What one batch wants done, in this order.

    Attributes:
        block: To be written to the journal before anything else is done; failing that, nothing of
            the rest may be done.
        sends: By connection number, bytes to be sent.
        closes: Connections to be closed once what they were sent is out, and why.
        hungry: Connections for which `Engine.feed` has something, when their buffers have room.
    """

    block: Block | None
    sends: list[tuple[int, bytes]]
    closes: list[tuple[int, str]]
    hungry: list[int]


class State:
    """The engine's whole memory.

    Attributes:
        settings: What it was told.
        journal: Where replay reads.
        publishers: Who has published, and how far.
        batch: The block being built.
        connections: By number.
        names: Logged-on connections by client name.
        topics: Routes by their number in the journal.
        replaying: Subscriptions that read the journal, by number.
        unnoted: Publishers whose highest sequence may have no record yet.
        acked: Subscriptions that want persisted acks, by number (RB16).
        now: Seconds on the shell's clock.
        next_due: The earliest moment at which `tick` may have something to do.
        last: Publisher and sequence of the last data record.
    """

    def __init__(
        self,
        settings: EngineSettings,
        journal: JournalReader,
        *,
        now: float,
        now_us: int,
    ) -> None:
        self.settings = settings
        self.journal = journal
        self.publishers = Publishers(settings.name, started_s=now_us // 1_000_000)
        self.batch = BatchBuilder(
            next_position=journal.next_position, next_topic_id=1, now_us=now_us
        )
        self.connections: dict[int, Connection] = {}
        self.names: dict[str, Connection] = {}
        self.topics: dict[int, Route] = {}
        self.replaying: dict[int, Subscription] = {}
        self.unnoted: dict[int, Publisher] = {}
        self.acked: dict[int, Subscription] = {}
        self.now = now
        self.next_due = math.inf
        self.last: tuple[int, int] | None = None
        self._epoch_us = now_us - int(now * 1e6)
        self._tables: dict[str, RouteTable] = {}
        self._sow = {
            (topic.message_type, topic.name): SowTopic(
                topic.name, topic.keys, message_type=topic.message_type
            )
            for topic in settings.sow_topics
        }
        self._log = [
            (TopicMatcher(topic.pattern), topic.message_type) for topic in settings.log_topics
        ]
        self._dirty: list[Connection] = []
        self._closes: list[tuple[int, str]] = []
        self._subscriptions = 0

    def begin(self, now: float) -> None:
        """Open a batch at this time; the journal's time never falls."""
        self.now = now
        self.batch.now_us = max(self.batch.now_us, self._epoch_us + int(now * 1e6))

    def finish(self) -> Effects:
        """Close the batch."""
        for publisher in self.unnoted.values():
            if publisher.noted < publisher.seen and self.logging:
                self.batch.mark(publisher)
        self.unnoted.clear()
        block = self.batch.build()
        for topic_id, message_type, topic in block.definitions if block else ():
            self.topics[topic_id] = self.table(message_type).route(topic)
        sends = [(connection.id, b"".join(connection.out)) for connection in self._dirty]
        for connection in self._dirty:
            connection.out = []
        closes, self._dirty, self._closes = self._closes, [], []
        hungry = {
            item.connection.id: None for item in self.replaying.values() if self.is_hungry(item)
        }
        return Effects(block, sends, closes, list(hungry))

    @property
    def logging(self) -> bool:
        """Whether there is a transaction log at all (AK5, ID4)."""
        return bool(self._log)

    @property
    def now_us(self) -> int:
        """The wall clock of this batch in microseconds."""
        return self.batch.now_us

    @property
    def last_bookmark(self) -> str:
        """The bookmark of the last data record, `0` when there is none."""
        return f"{self.last[0]}|{self.last[1]}|" if self.last else "0"

    def send(self, connection: Connection, frame: bytes | None) -> None:
        """Queue a frame for a connection, behind all that was queued before."""
        if frame is None or connection.closing:
            return
        if not connection.out:
            self._dirty.append(connection)
        connection.out.append(frame)

    def touch(self, connection: Connection) -> list[bytes]:
        """The queue of a connection, for whoever appends more than a frame."""
        if not connection.out:
            self._dirty.append(connection)
        return connection.out

    def close(self, connection: Connection, reason: str) -> None:
        """End a connection after what it was sent; `reason` is for the log (protocol 1.8)."""
        if not connection.closing:
            connection.closing = True
            self._closes.append((connection.id, reason))

    def wake_at(self, due: float) -> None:
        """`tick` is to be called at this time, if not before."""
        self.next_due = min(self.next_due, due)

    def collect_acks(self, connection: Connection) -> None:
        """Persisted acks of a connection are owed: they are due when its interval is over."""
        if connection.ack_due == math.inf:
            connection.ack_due = self.now + connection.ack_interval_s
            self.wake_at(connection.ack_due)

    def due_at_us(self, timestamp_us: int) -> float:
        """The moment on the shell's clock that is this wall-clock time."""
        return (timestamp_us - self._epoch_us) / 1e6

    def next_number(self) -> int:
        """The number of the next subscription."""
        self._subscriptions += 1
        return self._subscriptions

    def is_hungry(self, item: Subscription) -> bool:
        """Whether replay can go on for it: there is more to read, or it can go live."""
        return item.hungry and (item.position < self.batch.position or not item.bounded)

    def table(self, message_type: str) -> RouteTable:
        """The topics of a message type."""
        table = self._tables.get(message_type)
        if table is None:
            table = self._tables[message_type] = RouteTable(message_type, self._make_route)
        return table

    def sow_topics(self, message_type: str) -> list[SowTopic]:
        """The topics of a message type that have a state of the world, as configured."""
        return [topic for (kind, _), topic in self._sow.items() if kind == message_type]

    def is_logged(self, topic: str, message_type: str) -> bool:
        """Whether the journal records a topic (TL2)."""
        return any(
            (not kind or kind == message_type) and matcher.matches(topic)
            for matcher, kind in self._log
        )

    def _make_route(self, topic: str, message_type: str) -> Route:
        return Route(
            topic,
            message_type,
            logged=self.is_logged(topic, message_type),
            sow=self._sow.get((message_type, topic)),
        )

"""The programs of the nodes: production brokers and clients, and applications that use them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

import trio
from typing_extensions import override

from haclient.chooser import DefaultServerChooser
from haclient.delay import ExponentialDelayStrategy
from haclient.errors import CommandError, DisconnectedError, TimedOut
from haclient.ha import HAClient
from haclient.protocol.messages import Message
from haclient.transport.handling import Handler
from haclient_fake_server.config import BrokerConfig, FsyncPolicy, ReplicateTo, SowTopic
from haclient_fake_server.server import BrokerServer
from haclient_stores.errors import StoreFull
from haclient_stores.file_publish import FilePublishStore
from haclient_stores.interfaces import BookmarkStore, PublishStore
from haclient_stores.logged_bookmark import LoggedBookmarkStore
from haclient_stores.memory_publish import MemoryPublishStore
from haclient_stores.segment import MIN_SEGMENT_BYTES
from simulation.disk import SimulatedDisk
from simulation.history import (
    Accepted,
    Delivered,
    Discarded,
    Forgiven,
    History,
    MessageId,
    Point,
    PowerLost,
    Resumed,
)
from simulation.nodes import Life, Program
from simulation.plans import Plan, PublisherPlan, SubscriberPlan

__all__ = [
    "Broker",
    "Counts",
    "Publisher",
    "Reader",
    "Subscriber",
    "Surroundings",
    "message_of",
    "uri",
]

_SEGMENT_BYTES: Final = MIN_SEGMENT_BYTES  # so that segments are recycled
_JOURNAL_BYTES: Final = 128 * 1024
_RETRY_S: Final = 0.2


def uri(broker: str) -> str:
    """Where a client finds a broker."""
    return f"mem://{broker}:1/amps/json"


def message_of(data: bytes) -> MessageId:
    """Whose message this is."""
    found = json.loads(data)
    return MessageId(found["key"], found["n"])


@dataclass(slots=True)
class Counts:
    """What a run has been through."""

    messages: int = 0
    failovers: int = 0
    moves: int = 0
    crashes: int = 0


class Chooser(DefaultServerChooser):
    """The default chooser; it counts each logon that follows another one of its process."""

    def __init__(self, servers: tuple[str, ...], counts: Counts) -> None:
        super().__init__([uri(server) for server in servers])
        self._counts = counts
        self._last = ""

    @override
    def report_success(self, info: Mapping[str, str]) -> None:
        found = info["uri"]
        self._counts.failovers += self._last not in {"", found}
        self._counts.moves += bool(self._last)
        self._last = found
        super().report_success(info)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all actors of a run share."""

    plan: Plan
    history: History
    counts: Counts

    def client(
        self,
        name: str,
        servers: tuple[str, ...],
        *,
        publish_store: PublishStore | None = None,
        bookmark_store: BookmarkStore | None = None,
        life: Life,
    ) -> HAClient:
        """A client as an application would make it."""
        delay = ExponentialDelayStrategy(
            initial=0.05, maximum=1.0, source=Random(f"{self.plan.seed} {name} {life.number}")
        )
        return HAClient(
            name,
            server_chooser=Chooser(servers, self.counts),
            delay_strategy=delay,
            publish_store=publish_store,
            bookmark_store=bookmark_store,
            heartbeat=self.plan.heartbeat_s,
            connect_timeout=3.0,
        )


class Broker(Program):
    """A production broker."""

    def __init__(self, name: str, around: Surroundings, clock_us: Callable[[], int]) -> None:
        plan = around.plan
        self._clock_us = clock_us
        self.server: BrokerServer | None = None
        self._config = BrokerConfig(
            name=name,
            listen=(f"mem://{name}:1",),
            data_dir=Path(f"/{name}"),
            sow_topics=(SowTopic("state", ("/key",)),),
            ack_interval_s=0.1,
            fsync=FsyncPolicy.BATCH if plan.fsync else FsyncPolicy.NONE,
            segment_bytes=_JOURNAL_BYTES,
            high_water_bytes=8 * 1024,
            low_water_bytes=2 * 1024,
            redial_max_s=0.5,
            dial_timeout_s=2.0,
            replicate_to=tuple(
                ReplicateTo(f"mem://{each.target}:1", mode=each.mode, heartbeat_s=1.0)
                for each in plan.replications
                if each.source == name
            ),
        )

    @override
    async def run(self, life: Life) -> None:
        server = BrokerServer(self._config, disk=life.disk, wall_clock_us=self._clock_us)
        async with server:
            self.server = server
            await trio.sleep_forever()

    @override
    def crashed(self, *, power: bool) -> None:
        self.server = None


class Publisher(Program):
    """Publishes what it is told to; its source of messages survives everything."""

    def __init__(self, plan: PublisherPlan, around: Surroundings) -> None:
        self.plan = plan
        self._around = around
        self._owed = 0
        self._next = 0
        self._more = trio.Event()
        self._open: dict[int, MessageId] = {}  # accepted, by sequence, until it is persisted
        self.store: PublishStore | None = None

    @property
    def done(self) -> bool:
        """Whether everything is published and persisted."""
        return not self._owed and self.store is not None and not self.store.unpersisted_count

    def publish(self, count: int) -> None:
        """There is so much more to publish."""
        self._owed += count
        self._more.set()

    def intrude(self, disk: SimulatedDisk) -> None:
        """Another process wants the store, too."""
        FilePublishStore(f"/{self.plan.name}/store", disk=disk)

    def _opened(self, life: Life) -> PublishStore:
        if self.plan.store == "memory":
            return MemoryPublishStore(segment_bytes=_SEGMENT_BYTES)
        return FilePublishStore(
            f"/{self.plan.name}/store",
            segment_bytes=_SEGMENT_BYTES,
            durability="fsync" if self.plan.store == "fsync" else "process",
            disk=life.disk,
        )

    @override
    async def run(self, life: Life) -> None:
        self.store = store = self._opened(life)
        name, servers = self.plan.name, self.plan.servers
        async with self._around.client(name, servers, publish_store=store, life=life) as client:
            while True:
                while self._owed:
                    await self._publish_one(client, life)
                self._more = trio.Event()
                await self._more.wait()

    async def _publish_one(self, client: HAClient, life: Life) -> None:
        message = MessageId(self.plan.name, self._next)
        topic = "state" if self._next % 4 == 3 else "orders"
        self._next += 1
        pad = b"." * (self.plan.pad + 6 - len(str(message.number)))  # all frames equally long
        body = b'{"key":"%b","n":%d,"pad":"%b"}' % (message.publisher.encode(), message.number, pad)
        try:
            sequence = await client.publish(topic, body)
        except StoreFull:  # not stored: the application tries again
            self._next -= life.alive
            await trio.sleep(_RETRY_S)
            return
        await life.stop_if_dead()
        assert sequence is not None
        self._owed -= 1
        self._around.counts.messages += 1
        self._around.history.add(Accepted(message, topic, sequence))
        self._open[sequence] = message
        if len(self._open) > 200:
            self._forget_persisted()

    def _forget_persisted(self) -> None:
        if self.store is not None:
            persisted = self.store.last_persisted
            self._open = {s: m for s, m in self._open.items() if s > persisted}

    @override
    def crashed(self, *, power: bool) -> None:
        self._forget_persisted()
        safe = 2**63
        if self.plan.store == "memory":
            safe = 0
        elif self.plan.store == "file" and power:
            assert self.store is None or isinstance(self.store, FilePublishStore)
            safe = 0 if self.store is None else self.store.synced_sequence
        for sequence, message in self._open.items():
            if sequence > safe:
                self._around.history.add(Forgiven(message))
        self._open = {s: m for s, m in self._open.items() if s <= safe}
        self.store = None


class Subscription:
    """One subscription of a subscriber, over all its processes.

    Attributes:
        name: Subscriber and sub id.
        held: What was handed out in this process and is not discarded.
    """

    def __init__(self, name: str, topic: str) -> None:
        self.name = name
        self.sub_id = name.partition("/")[2]
        self.topic = topic
        self.held: dict[MessageId, Message] = {}

    def wants(self, _message: MessageId, topic: str) -> bool:
        """Whether it is about this topic."""
        return topic == self.topic or self.topic.startswith("^")


class Subscriber(Program):
    """Subscribes with `MOST_RECENT`, discards in any order, and keeps some for ever."""

    def __init__(self, plan: SubscriberPlan, around: Surroundings) -> None:
        self.plan = plan
        self._around = around
        self._chance = Random(f"{around.plan.seed} {plan.name}")
        self.store: LoggedBookmarkStore | None = None
        self.subscriptions = [
            Subscription(f"{plan.name}/sub{number}", topic)
            for number, topic in enumerate(plan.topics)
        ]

    @override
    async def run(self, life: Life) -> None:
        store = LoggedBookmarkStore(f"/{self.plan.name}/bookmarks", disk=life.disk)
        name, servers = self.plan.name, self.plan.servers
        first = (life.number - 1) % len(servers) if self.plan.rotates else 0
        servers = servers[first:] + servers[:first]
        async with self._around.client(name, servers, bookmark_store=store, life=life) as client:
            self.store = store
            for each in self.subscriptions:
                self._around.history.add(Resumed(each.name, life.number))
                await client.bookmark_subscribe(
                    each.topic, sub_id=each.sub_id, handler=self._handler(each, life), timeout=None
                )
                await life.stop_if_dead()
            await trio.sleep_forever()

    def _handler(self, to: Subscription, life: Life) -> Handler:
        async def handle(message: Message) -> None:
            await life.stop_if_dead()
            found = message_of(message.data)
            self._around.history.add(Delivered(to.name, life.number, found, message.bookmark))
            to.held[found] = message
            if self.plan.slow_s:
                await trio.sleep(self.plan.slow_s * self._chance.random())
                await life.stop_if_dead()
            if self._chance.random() < self.plan.eager and found in to.held:
                self._discard(to, found)

        return handle

    def _discard(self, to: Subscription, found: MessageId) -> None:
        if self.plan.keeps and found.number % self.plan.keeps == 5:
            return
        to.held.pop(found).discard()
        self._around.history.add(Discarded(to.name, found))

    def discard(self, seed: int, chosen: str = "") -> None:
        """Discard some of what is held, in any order.

        Args:
            seed: Of what is drawn; 0 for everything.
            chosen: These and no others, as in `p1:0 p2:3`.
        """
        if self.store is None:
            return
        chance = Random(seed)
        for each in self.subscriptions:
            held = list(each.held)
            if chosen:
                held = [found for found in held if f"{found[0]}:{found[1]}" in chosen.split()]
            count = int(len(held) * chance.random()) if seed and not chosen else len(held)
            for found in chance.sample(held, count):
                self._discard(each, found)
        self.look()

    def look(self) -> None:
        """Write down where the subscriptions would resume."""
        if self.store is not None:
            for each in self.subscriptions:
                point = str(self.store.most_recent(each.sub_id))
                self._around.history.add(Point(each.name, point))

    def intrude(self, disk: SimulatedDisk) -> None:
        """Another process wants the store, too."""
        LoggedBookmarkStore(f"/{self.plan.name}/bookmarks", disk=disk)

    def prune(self) -> None:
        """Rewrite the store's file; a disk that fails leaves the old one."""
        if self.store is not None:
            self.store.prune()

    @override
    def crashed(self, *, power: bool) -> None:
        for each in self.subscriptions:
            each.held.clear()
            if power:
                self._around.history.add(PowerLost(each.name))
        self.store = None


class Reader(Program):
    """Queries the State of the World when it is told to."""

    def __init__(self, name: str, around: Surroundings) -> None:
        self.name = name
        self._around = around
        self._wanted = 0
        self._more = trio.Event()
        self.complaints: list[str] = []
        self.answers = 0

    def query(self) -> None:
        """Ask once more."""
        self._wanted += 1
        self._more.set()

    @override
    async def run(self, life: Life) -> None:
        plan = self._around.plan
        async with self._around.client(self.name, plan.brokers[:2], life=life) as client:
            while True:
                while self._wanted:
                    await self._query(client)
                self._more = trio.Event()
                await self._more.wait()

    async def _query(self, client: HAClient) -> None:
        self._wanted -= 1
        try:
            async with client.sow("state") as records:
                keys = [message_of(record.data).publisher async for record in records]
        except (DisconnectedError, TimedOut, CommandError):
            return
        self.answers += 1
        if len(set(keys)) < len(keys):
            self.complaints.append(f"sow: {self.name} got a record twice: {keys}")

    @override
    def crashed(self, *, power: bool) -> None:
        pass

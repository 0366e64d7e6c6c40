"""Programs of nodes: production brokers, clients, and an application that queries.

The ones that publish and subscribe are in `publishing` and `subscribing`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import trio
from typing_extensions import override

from haclient.client import HAClient
from haclient.errors import CommandError, DisconnectedError, PublishGap, TimedOut
from haclient.protocol.identity import publisher_id
from haclient.servers.chooser import ConnectionInfo, DefaultServerChooser
from haclient.servers.delay import ExponentialDelayStrategy
from haclient.transport.message_queue import DEFAULT_CAP_BYTES
from haclient_fake_server.config import (
    BrokerConfig,
    FsyncPolicy,
    LogTopic,
    QueueTopic,
    ReplicateTo,
    SowTopic,
)
from haclient_fake_server.engine.outbox import INTERNAL_ERROR
from haclient_fake_server.server import BrokerServer
from haclient_stores.interfaces import BookmarkStore, PublishStore
from simulation.history import JOBS_TOPIC, History, MessageId
from simulation.jobs import BARRIER, DEAD_TOPIC, PRIORITY
from simulation.nodes import Life, Program
from simulation.plans import Plan, QueuePlan
from simulation.store_kinds import POINTS_TOPIC

__all__ = [
    "UNLOGGED_TOPIC",
    "Broker",
    "Counts",
    "Reader",
    "Surroundings",
    "message_of",
    "uri",
]

UNLOGGED_TOPIC: Final = "elsewhere"
"""No broker has it in its log."""

_LOGGED: Final = f"^(orders|state|{JOBS_TOPIC}|{DEAD_TOPIC}|{POINTS_TOPIC})$"
_JOURNAL_BYTES: Final = (128 * 1024, 4 * 1024)
_OFFLINE_BYTES: Final = (16 * 2**20, 9 * 1024, 20 * 1024)


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
    removed: int = 0
    offlined: int = 0


class Chooser(DefaultServerChooser):
    """The default chooser; it counts each logon that follows another one of its process.

    Args:
        servers: Brokers, best first.
        counts: Where it counts.
        gaps: Takes the publish gaps that servers were refused for.
    """

    def __init__(self, servers: tuple[str, ...], counts: Counts, gaps: list[PublishGap]) -> None:
        super().__init__([uri(server) for server in servers])
        self._counts, self._gaps = counts, gaps
        self._last = ""

    @override
    def report_success(self, info: Mapping[str, str]) -> None:
        found = info["uri"]
        self._counts.failovers += self._last not in {"", found}
        self._counts.moves += bool(self._last)
        self._last = found
        super().report_success(info)

    @override
    def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
        if isinstance(error, PublishGap):
            self._gaps.append(error)
        super().report_failure(error, info)


# Most hold whatever comes. The server has to pause the others, or to wait for them.
_QUEUE_CAPS: Final = (DEFAULT_CAP_BYTES, DEFAULT_CAP_BYTES, 3_000, 300)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all actors of a run share."""

    plan: Plan
    history: History
    counts: Counts
    gaps: list[PublishGap] = field(default_factory=list[PublishGap])

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
        cap = Random(f"cap {self.plan.seed} {name} {life.number}").choice(_QUEUE_CAPS)
        return HAClient(
            name,
            max_queued_bytes=self.plan.queued_bytes or cap,
            server_chooser=Chooser(servers, self.counts, self.gaps),
            delay_strategy=delay,
            publish_store=publish_store,
            bookmark_store=bookmark_store,
            heartbeat=self.plan.heartbeat_s,
            connect_timeout=3.0,
        )


class Broker(Program):
    """A production broker.

    Attributes:
        server: The one that runs.
        clock_ahead_us: By how much its clock is ahead of the virtual time, as it was when its
            process began: from then on it does not read the clock.
    """

    def __init__(self, name: str, around: Surroundings, clock_us: Callable[[], int]) -> None:
        plan = around.plan
        self._clock_us = clock_us
        self.server: BrokerServer | None = None
        self.clock_ahead_us = 0
        self._missing = self._offlined = 0
        self._life: Life | None = None
        self._faults = 0
        self._config = BrokerConfig(
            name=name,
            listen=(f"mem://{name}:1",),
            data_dir=Path(f"/{name}"),
            log_topics=(LogTopic(_LOGGED),),
            sow_topics=(
                SowTopic("state", ("/key",)),
                SowTopic(POINTS_TOPIC, ("/clientName", "/subId")),
            ),
            ack_interval_s=0.1,
            fsync=FsyncPolicy.BATCH if plan.fsync else FsyncPolicy.NONE,
            archive_dir=Path(f"/{name}-archive"),
            segment_bytes=Random(f"journal {plan.seed}").choice(_JOURNAL_BYTES),
            high_water_bytes=8 * 1024,
            low_water_bytes=2 * 1024,
            offline_bytes=Random(f"offline {plan.seed}").choice(_OFFLINE_BYTES),
            query_step_bytes=1600,  # about three records
            redial_max_s=0.5,
            dial_timeout_s=2.0,
            replicate_to=tuple(
                ReplicateTo(f"mem://{each.target}:1", mode=each.mode, heartbeat_s=1.0)
                for each in plan.replications
                if each.source == name
            ),
            queues=tuple(_queue(each) for each in plan.queues) if name == plan.brokers[0] else (),
        )

    @override
    async def run(self, life: Life) -> None:
        start_id = publisher_id(f"{self._config.name}, process {life.number}")
        server = BrokerServer(
            self._config,
            disk=life.disk,
            wall_clock_us=self._clock_us,
            start_id=lambda: start_id,
        )
        self.clock_ahead_us = self._clock_us() - int(trio.current_time() * 1_000_000)
        async with server:
            self.server, self._life = server, life
            await trio.sleep_forever()

    @property
    def missing(self) -> int:
        """How often it has told of a record that it cannot take any more."""
        return self._missing + (0 if self.server is None else self.server.missing)

    @property
    def offlined(self) -> int:
        """How often it has put what a slow client did not read into a file."""
        if self.server is None:
            return self._offlined
        return self._offlined + int(self.server.rows("instance")[0]["times_offline"])

    @property
    def faults(self) -> int:
        """How many connections it has ended for a fault of its own, and not of its disk."""
        if self.server is None or self._life is None or self._life.disk.failures:
            return self._faults
        return self._faults + self.server.ended_connections.get(INTERNAL_ERROR, 0)

    @override
    def crashed(self, *, power: bool) -> None:
        self._missing, self._faults, self._offlined = self.missing, self.faults, self.offlined
        self.server = None


def _queue(plan: QueuePlan) -> QueueTopic:
    return QueueTopic(
        name=plan.name,
        topics=() if plan.name == JOBS_TOPIC else (JOBS_TOPIC,),
        semantics=plan.semantics,
        lease_s=plan.lease_s,
        max_per_subscription_backlog=plan.backlog,
        delivery=plan.delivery,
        leasing=plan.leasing,
        max_deliveries=plan.max_deliveries,
        max_cancels=plan.max_cancels,
        expiration_s=plan.expiration_s,
        expiration_model=plan.expiration_model,
        priority=PRIORITY if plan.priority else "",
        barrier=BARRIER if plan.barrier else "",
        dead_letter=plan.dead_letters,
    )


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

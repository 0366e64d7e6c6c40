"""The application that publishes: it tells what it was promised, and what a crash may take."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Final

import trio
from typing_extensions import override

from haclient.client import HAClient
from haclient.errors import DisconnectedError
from haclient_stores.errors import StoreFull
from haclient_stores.publish_stores.publish_log import PublishLog
from simulation.actors import UNLOGGED_TOPIC, Surroundings
from simulation.disk import SimulatedDisk
from simulation.history import JOBS_TOPIC, Abandoned, Accepted, MessageId
from simulation.jobs import fields_of
from simulation.nodes import Life, Program
from simulation.plans import PublisherPlan
from simulation.store_kinds import publish_store
from simulation.surviving import Waiting, survives_up_to, synced_up_to

__all__ = ["Publisher"]

_RETRY_S: Final = 0.2
_FLUSH_EVERY: Final = 12


class Publisher(Program):
    """Publishes what it is told to; its source of messages survives everything."""

    numbers_from_clock = True

    def __init__(self, plan: PublisherPlan, around: Surroundings) -> None:
        self.plan = plan
        self._around = around
        self._owed = 0
        self._next = 0
        self._more = trio.Event()
        self._open: dict[int, Waiting] = {}  # accepted, by sequence, until it is persisted
        self._found = self._synced = 0
        self._in_flight: dict[int, MessageId] = {}  # without a store: not known to be persisted
        self._life: Life | None = None
        self.store: PublishLog | None = None

    @property
    def _stores(self) -> bool:
        return self.plan.store != "none"

    @property
    def done(self) -> bool:
        """Whether everything is published and persisted."""
        if not self._stores:
            return not self._owed and not self._in_flight
        return not self._owed and self.store is not None and not self.store.unpersisted_count

    def publish(self, count: int) -> None:
        """There is so much more to publish."""
        self._owed += count
        self._more.set()

    def intrude(self, disk: SimulatedDisk) -> bool:
        """Another process wants the store, too; whether there is anything to want."""
        if self.plan.forgets or self.store is None:
            return False
        publish_store(self.plan, disk)
        return True

    @override
    async def run(self, life: Life) -> None:
        self.store = store = publish_store(self.plan, life.disk) if self._stores else None
        self._life = life
        self._found = max(self._open, default=0)
        name, servers = self.plan.name, self.plan.servers
        async with self._around.client(name, servers, publish_store=store, life=life) as client:
            while True:
                while self._owed:
                    await self._publish_one(client, life)
                    if len(self._in_flight) >= _FLUSH_EVERY:
                        await self._flush(client, life)
                if self._in_flight:
                    await self._flush(client, life)
                    continue
                self._more = trio.Event()
                await self._more.wait()

    async def _publish_one(self, client: HAClient, life: Life) -> None:
        message = MessageId(self.plan.name, self._next)
        self._next += 1
        pad = b"." * (self.plan.pad + 6 - len(str(message.number)))  # all frames equally long
        key, job = message.publisher.encode(), b""
        if message.topic == JOBS_TOPIC:
            job = fields_of(message)
        body = b'{"key":"%b","n":%d,%b"pad":"%b"}' % (key, message.number, job, pad)
        try:
            sequence = await client.publish(message.topic, body, expiration=self.plan.expiration_s)
        except (StoreFull, DisconnectedError):  # not stored: the application tries again
            self._next -= life.alive
            await trio.sleep(_RETRY_S)
            return
        await life.stop_if_dead()
        assert sequence is not None
        self._owed -= 1
        self._around.counts.messages += 1
        if not self._stores:  # nothing is promised yet
            self._in_flight[sequence] = message
            return
        now = trio.current_time()
        self._around.history.add(Accepted(message, message.topic, sequence, now))
        self._open[sequence] = Waiting(message, now, len(body))
        if len(self._open) > 200:
            self._forget_persisted()
        with contextlib.suppress(StoreFull):
            await self._publish_no_message(client, life, message.number)

    async def _flush(self, client: HAClient, life: Life) -> None:
        """Without a store: learn what has become of each publish."""
        lost = set[int]()
        try:
            await client.publish_flush()
        except DisconnectedError:
            for sequence in self._in_flight:
                try:
                    await client.wait_persisted(sequence)
                except DisconnectedError:
                    lost.add(sequence)
        await life.stop_if_dead()
        self._resolve_in_flight(lost)

    def _resolve_in_flight(self, lost: Collection[int]) -> None:
        """It is known what is in flight no more: all but these are promised from now on."""
        now = trio.current_time()
        for sequence, message in self._in_flight.items():
            self._around.history.add(Accepted(message, message.topic, sequence, now))
            if sequence in lost:
                self._around.history.add(Abandoned(message))
        self._in_flight.clear()

    async def _publish_no_message(self, client: HAClient, life: Life, number: int) -> None:
        """Publish what takes a number and is in no log, if it is its turn."""
        every = self.plan.no_messages
        if every and number % every == 0:
            if number // every % 2:
                await client.publish("state", b"no json")
            else:
                await client.publish(UNLOGGED_TOPIC, b"{}")
            await life.stop_if_dead()

    def _forget_persisted(self) -> None:
        if self.store is not None:
            persisted = self.store.last_persisted
            self._open = {s: each for s, each in self._open.items() if s > persisted}

    @override
    def crashed(self, *, power: bool) -> None:
        self._resolve_in_flight(self._in_flight)
        self._forget_persisted()
        life, store = self._life, self.store
        self._synced = synced_up_to(
            self.plan,
            self._open,
            synced=max(self._synced, 0 if store is None else store.synced_sequence),
            since=0.0 if life is None else life.began_at,
            now=trio.current_time(),
        )
        safe = survives_up_to(
            self.plan, self._open, power=power, synced=self._synced, found=self._found
        )
        # What a process had in memory only, it had sent in order: what is lost of it is its end.
        ends = self.plan.forgets or not power
        end_of = f"{self.plan.name} {0 if life is None else life.number}" if ends else ""
        for sequence, each in self._open.items():
            if sequence > safe:
                self._around.history.add(Abandoned(each.message, end_of))
        self._open = {s: each for s, each in self._open.items() if s <= safe}
        self.store = None

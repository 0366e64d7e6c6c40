"""The application that consumes queues: it tells what it was handed, and what it did with it.

Its handlers return, raise, take longer than their lease, or are killed with their process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from random import Random
from typing import Final, Literal

import trio
from typing_extensions import override

from haclient.client import HAClient
from haclient.errors import DisconnectedError, TimedOut
from haclient.protocol.messages import Message
from haclient.transport.links.memory_network import MemoryConnection, MemoryLink
from haclient.transport.message_queue import Handler
from haclient_stores.bookmark import Timestamp
from simulation.actors import UNLOGGED_TOPIC, Surroundings, message_of
from simulation.history import (
    Confirmed,
    Finished,
    History,
    Leased,
    LinkClosed,
    LinkOpened,
    MessageId,
    Unsubscribed,
)
from simulation.jobs import is_barrier, is_poison
from simulation.nodes import Life, Program
from simulation.plans import ConsumerPlan, QueuePlan

__all__ = ["Consumer", "LinkBook"]

_NO_LEASE_S: Final = 3.0  # what counts as a lease where there is none
_AWAY_S: Final = 0.3
_FLUSH_S: Final = 5.0


class LinkBook:
    """The connections of consumers, numbered from 1 for each.

    Args:
        history: Where it tells of them.
        life_of: Which process of a node runs.
        clock_ahead_us: By how much the broker's clock is ahead of the virtual time.
    """

    def __init__(
        self, history: History, life_of: Callable[[str], int], clock_ahead_us: Callable[[], int]
    ) -> None:
        self._history = history
        self._life_of = life_of
        self._clock_ahead_us = clock_ahead_us
        self._count: dict[str, int] = {}
        self._calls = 0
        self._ahead_us: dict[str, int] = {}

    def watch(self, connection: MemoryConnection) -> None:
        """Tell of this connection, and of the end of it."""
        name, now = connection.source, trio.current_time()
        number = self._count[name] = self.latest(name) + 1
        self._ahead_us[name] = self._clock_ahead_us()
        self._history.add(LinkOpened(name, number, self._life_of(name), now))
        self._watch_end(connection.server, name, number, "broker")
        self._watch_end(connection.client, name, number, "client")

    def _watch_end(
        self, link: MemoryLink, name: str, number: int, by: Literal["broker", "client"]
    ) -> None:
        close = link.close

        def closed() -> None:
            if not link.closed:
                self._history.add(LinkClosed(name, number, by, trio.current_time()))
            close()

        vars(link)["close"] = closed

    def next_call(self) -> int:
        """The number of the next call of a handler."""
        self._calls += 1
        return self._calls

    def latest(self, consumer: str) -> int:
        """The number of its last connection, 0 if it has had none."""
        return self._count.get(consumer, 0)

    def virtual_time(self, consumer: str, lease_period: str) -> float | None:
        """When a lease ends that came on the last connection, in virtual seconds."""
        if not lease_period:
            return None
        ends_us = Timestamp.parse(lease_period).microseconds
        return (ends_us - self._ahead_us[consumer]) / 1_000_000


class _PlannedError(Exception):
    """What a handler raises."""


class _ForgottenError(Exception):
    """The application never says what has become of a message."""


class Consumer(Program):
    """Consumes queues.

    Attributes:
        healthy: Whether its handlers return from now on, but for messages that nobody can process.
    """

    def __init__(
        self, plan: ConsumerPlan, around: Surroundings, links: LinkBook, kill: Callable[[], None]
    ) -> None:
        self.plan = plan
        self.healthy = False
        self._around = around
        self._links = links
        self._kill = kill
        self._chance = Random(f"{around.plan.seed} {plan.name}")
        self._queues = {each.name: each for each in around.plan.queues}
        self._done: dict[str, set[MessageId]] = {}
        self._orders: list[str] = []
        self._ordered = trio.Event()

    def order(self, what: str) -> None:
        """Have it `leave` its queues for a while, or `confirm` its acknowledgements."""
        self._orders.append(what)
        self._ordered.set()

    @override
    async def run(self, life: Life) -> None:
        name, servers = self.plan.name, self._around.plan.brokers[:1]
        self._done = {queue: set() for queue in self.plan.queues}
        async with (
            self._around.client(name, servers, life=life) as client,
            trio.open_nursery() as nursery,
        ):
            for queue in self.plan.queues:
                await self._subscribe(client, queue, life, nursery)
            while True:
                while self._orders:
                    if self._orders.pop(0) == "leave":
                        await self._leave(client, life, nursery)
                    else:
                        await self._confirm(client, life)
                self._ordered = trio.Event()
                await self._ordered.wait()

    async def _subscribe(
        self, client: HAClient, queue: str, life: Life, nursery: trio.Nursery
    ) -> None:
        plan = self.plan
        lease_s = self._queues[queue].lease_s or _NO_LEASE_S
        await client.queue_subscribe(
            queue,
            handler=self._handler(client, self._queues[queue], life, nursery),
            max_backlog=plan.backlog,
            sub_id=f"on-{queue}",
            auto_ack=not plan.by_hand,
            on_handler_error="expire" if plan.gives_up else "cancel",
            workers=plan.workers,
            cancel_at_lease_end=plan.at_lease_end == "cut",
            extend_lease=lease_s if plan.at_lease_end == "extend" else None,
            timeout=None,
        )
        await life.stop_if_dead()

    async def _leave(self, client: HAClient, life: Life, nursery: trio.Nursery) -> None:
        queue = self._chance.choice(self.plan.queues)
        self._around.history.add(Unsubscribed(self.plan.name, queue, trio.current_time()))
        # Behind a handler that hangs, and whose queue is full, the answer comes late.
        await client.unsubscribe(f"on-{queue}", timeout=None)
        await trio.sleep(_AWAY_S)
        await life.stop_if_dead()
        await self._subscribe(client, queue, life, nursery)

    async def _confirm(self, client: HAClient, life: Life) -> None:
        done = {queue: frozenset(messages) for queue, messages in self._done.items()}
        dropped = client.metrics.dropped_acks
        try:
            await client.flush_acks(timeout=_FLUSH_S)
        except (DisconnectedError, TimedOut):
            return
        await life.stop_if_dead()
        if dropped or client.metrics.dropped_acks:
            return
        for queue, messages in done.items():
            # Who has lost a lease of a strict queue may acknowledge in vain.
            if messages and self._queues[queue].leasing == "sublet":
                now = trio.current_time()
                self._around.history.add(Confirmed(queue, messages, now))

    def _handler(
        self, client: HAClient, queue: QueuePlan, life: Life, nursery: trio.Nursery
    ) -> Handler:
        async def handle(message: Message) -> None:
            await life.stop_if_dead()
            job = _Job(self, client, queue, message, life, self._links)
            if queue.barrier and is_barrier(job.message):
                return
            try:
                if self.plan.by_hand:
                    nursery.start_soon(self._work_by_hand, job)
                else:
                    await self._work(job)
            except trio.Cancelled:
                if life.alive:
                    job.finish("cut")
                raise

        return handle

    async def _work_by_hand(self, job: _Job) -> None:
        try:
            await self._work(job)
        except _ForgottenError:
            pass
        except _PlannedError:
            job.received.ack(cancel=not self.plan.gives_up, expire=self.plan.gives_up)
        else:
            job.received.ack()

    async def _work(self, job: _Job) -> None:
        """Do it, or fail, as it is drawn."""
        plan, draw = self.plan, self._chance.random()
        slow_s = plan.slow_s * self._chance.random()
        lease_s = job.queue.lease_s or _NO_LEASE_S
        if self.healthy:
            await self._pause(slow_s, job)
        elif draw < plan.dies:
            await self._pause(slow_s, job)
            self._kill()
            await job.life.stop_if_dead()
        elif draw < plan.dies + plan.hangs:
            await self._pause(lease_s * 1.5, job)
        elif draw < plan.dies + plan.hangs + plan.extends:
            await self._pause(lease_s * 0.3, job)
            job.received.extend_lease(lease_s)
            if plan.by_hand and job.queue.lease_s is not None and self._chance.random() < 0.5:
                raise _ForgottenError
            await self._pause(lease_s * 1.6, job)
        else:
            await self._pause(slow_s, job)
        if plan.answers:
            with contextlib.suppress(DisconnectedError):
                await job.client.publish_persisted(UNLOGGED_TOPIC, b"{}")
            await job.life.stop_if_dead()
        may_fail = not job.queue.is_at_most_once
        is_lost_cause = is_poison(job.message) and (
            job.queue.max_cancels or job.queue.max_deliveries
        )
        by_chance = not self.healthy and self._chance.random() < plan.fails
        if may_fail and (is_lost_cause or by_chance):
            job.finish("expired" if plan.gives_up else "failed")
            raise _PlannedError
        job.finish("done")
        self._done[job.queue.name].add(job.message)

    @staticmethod
    async def _pause(seconds: float, job: _Job) -> None:
        if seconds:
            await trio.sleep(seconds)
        await job.life.stop_if_dead()

    def record(self, fact: Leased | Finished) -> None:
        """Add a fact to the history of the run."""
        self._around.history.add(fact)

    @override
    def crashed(self, *, power: bool) -> None:
        self._done = {}


class _Job:
    """One delivery.

    Attributes:
        message: What it is about.
        received: The message as the client gives it.
    """

    def __init__(
        self,
        consumer: Consumer,
        client: HAClient,
        queue: QueuePlan,
        received: Message,
        life: Life,
        links: LinkBook,
    ) -> None:
        self.client = client
        self.queue = queue
        self.received = received
        self.life = life
        self.message = message_of(received.data)
        self._consumer = consumer
        self._link = links.latest(consumer.plan.name)
        name = consumer.plan.name
        lease_end = links.virtual_time(name, received.lease_period)
        self._number = links.next_call()
        consumer.record(
            Leased(
                name,
                self._link,
                queue.name,
                self.message,
                lease_end,
                at=trio.current_time(),
                number=self._number,
                is_firm=not consumer.plan.extends and consumer.plan.at_lease_end != "extend",
            )
        )

    def finish(self, how: Literal["done", "failed", "expired", "cut"]) -> None:
        """Record how the application has finished the message."""
        name, now = self._consumer.plan.name, trio.current_time()
        self._consumer.record(
            Finished(name, self._link, self.queue.name, self.message, how, now, self._number)
        )

"""The application that subscribes: it tells what it was handed, and what it has discarded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import dropwhile
from random import Random
from typing import Final

import trio
from typing_extensions import override

from haclient.client import HAClient
from haclient.errors import CommandError, DisconnectedError, TimedOut, UsageError
from haclient.protocol.messages import Message
from haclient.transport.message_queue import Handler
from haclient_stores.publish_stores.memory import MemoryPublishStore
from simulation.actors import Surroundings, message_of
from simulation.checkers import position
from simulation.disk import SimulatedDisk
from simulation.history import (
    Delivered,
    DeliveriesLost,
    Discarded,
    DiscardsLost,
    MessageId,
    Point,
    Resumed,
)
from simulation.nodes import Life, Program
from simulation.plans import SubscriberPlan
from simulation.store_kinds import BookmarkStoreOf, Points, bookmark_store
from simulation.surviving import deliveries_at_risk, discards_at_risk, unsynced

__all__ = ["Subscriber", "Subscription"]

_RETRY_S: Final = 0.2
_UNANSWERED: Final = (DisconnectedError, TimedOut, CommandError)


class Subscription:
    """One subscription of a subscriber, over all its processes.

    Attributes:
        name: Subscriber and sub id.
        held: What was handed out in this process and is not discarded.
        undiscarded: What was handed out in any process and is not discarded, and when it was, as
            far as the store surely has a record of it that may not be synced.
        discarded: What was discarded and may not be synced, and when.
        places: The messages that have arrived, by publisher id and sequence.
        unfinished: What the store's recovery point did not cover when its process ended.
    """

    def __init__(self, name: str, topic: str) -> None:
        self.name = name
        self.sub_id = name.partition("/")[2]
        self.topic = topic
        self.held: dict[MessageId, Message] = {}
        self.undiscarded: dict[MessageId, float] = {}
        self.discarded: dict[MessageId, float] = {}
        self.places: dict[tuple[int, int], MessageId] = {}
        self.unfinished: set[MessageId] = set()

    def wants(self, _message: MessageId, topic: str) -> bool:
        """Whether it is about this topic."""
        return topic == self.topic or self.topic.startswith("^")


class Subscriber(Program):
    """Subscribes with `MOST_RECENT`, discards in any order, and keeps some for ever.

    Attributes:
        calm: Set when faults have stopped and all that was discarded had time to be kept.
        complaints: What its store has promised and not kept.
    """

    def __init__(self, plan: SubscriberPlan, around: Surroundings) -> None:
        self.plan = plan
        self._around = around
        self._chance = Random(f"{around.plan.seed} {plan.name}")
        self._life: Life | None = None
        self._points: Points | None = None
        self.calm = False
        self.complaints: list[str] = []
        self.store: BookmarkStoreOf | None = None
        self.subscriptions = [
            Subscription(f"{plan.name}/sub{number}", topic)
            for number, topic in enumerate(plan.topics)
        ]

    @property
    def settled(self) -> bool:
        """Whether what it has discarded would survive the loss of everything that it is to."""
        return self._points is None or self._points.kept

    @override
    async def run(self, life: Life) -> None:
        self._life = life
        async with AsyncExitStack() as stack:
            client = await self._entered(stack, life)
            for each in self.subscriptions:
                self._around.history.add(Resumed(each.name, life.number))
                await client.bookmark_subscribe(
                    each.topic, sub_id=each.sub_id, handler=self._handler(each, life), timeout=None
                )
                await life.stop_if_dead()
            await trio.sleep_forever()

    async def _entered(self, stack: AsyncExitStack, life: Life) -> HAClient:
        """Its client, connected; with an adapter after that one's own."""
        name, servers = self.plan.name, self.plan.servers
        first = (life.number - 1) % len(servers) if self.plan.rotates else 0
        servers = servers[first:] + servers[:first]
        keeper: HAClient | None = None
        if self.plan.store == "adapter":
            keeper = self._around.client(
                f"{name}-points", servers, publish_store=MemoryPublishStore(), life=life
            )
            await stack.enter_async_context(keeper)
        while True:
            points = None if keeper is None else Points(keeper)
            store = bookmark_store(self.plan, life.disk, points)
            client = self._around.client(name, servers, bookmark_store=store, life=life)
            try:
                await stack.enter_async_context(client)
            except _UNANSWERED:  # nobody has said where it stands
                await trio.sleep(_RETRY_S)
                continue
            await life.stop_if_dead()
            self.store, self._points = store, points
            if points is not None:
                self._recovered(points)
            return client

    def _recovered(self, points: Points) -> None:
        """What its points do not cover may come again, and nothing else."""
        for each in self.subscriptions:
            bookmarks = points.found.get(each.sub_id, "")
            self._around.history.add(Point(each.name, bookmarks))
            items = bookmarks.split(",")
            point = dict(position(one) for one in items if one.count("|") > 1)
            lost = {
                message
                for (publisher, sequence), message in each.places.items()
                if message in each.discarded and sequence > point.get(publisher, 0)
            }
            forgotten = lost - each.unfinished
            if forgotten and self.calm:
                self.complaints.append(f"adapter: {each.name} has not kept {sorted(forgotten)[:3]}")
            self._lose(each, frozenset(lost), may_return=True)

    def _handler(self, to: Subscription, life: Life) -> Handler:
        async def handle(message: Message) -> None:
            await life.stop_if_dead()
            found = message_of(message.data)
            self._around.history.add(Delivered(to.name, life.number, found, message.bookmark))
            to.held[found] = message
            to.undiscarded.setdefault(found, trio.current_time())
            to.places[position(message.bookmark)] = found
            if self.plan.slow_s:
                await trio.sleep(self.plan.slow_s * self._chance.random())
                await life.stop_if_dead()
            if self._chance.random() < self.plan.eager and found in to.held:
                self._discard(to, found)

        return handle

    def _discard(self, to: Subscription, found: MessageId) -> None:
        """Discard one, or all up to it where that is in order."""
        if self.plan.in_order and self.store is not None:
            number = to.held[found].number
            self.store.discard_up_to(to.sub_id, number)
            done = [each for each, message in to.held.items() if message.number <= number]
        elif self.plan.keeps and found.number % self.plan.keeps == 5:
            return
        else:
            to.held[found].discard()
            done = [found]
        for each in done:
            del to.held[each]
            to.undiscarded.pop(each, None)
            to.discarded[each] = trio.current_time()
            self._around.history.add(Discarded(to.name, each))

    def discard(self, seed: int, chosen: str = "") -> None:
        """Discard some of what is held, in any order unless the store wants another.

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
            if self.plan.in_order:
                for found in held[max(count - 1, 0) : count]:
                    self._discard(each, found)
                continue
            for found in chance.sample(held, count):
                self._discard(each, found)
        self.look()

    def look(self) -> None:
        """Write down where the subscriptions would resume."""
        if self.store is not None:
            for each in self.subscriptions:
                point = str(self.store.most_recent(each.sub_id))
                self._around.history.add(Point(each.name, point))

    def intrude(self, disk: SimulatedDisk) -> bool:
        """Another process wants the store, too; whether there is anything to want."""
        if self.plan.store in {"memory", "adapter"} or self.store is None:
            return False
        bookmark_store(self.plan, disk)
        return True

    def prune(self) -> None:
        """Rewrite the store's file; a disk that fails leaves the old one."""
        if self.store is not None:
            self.store.prune()
            if self.plan.store == "logged":  # the new file is synced
                for each in self.subscriptions:
                    each.discarded.clear()
                    each.undiscarded.clear()

    @override
    def crashed(self, *, power: bool) -> None:
        needs_sync, now = self._needs_sync(), trio.current_time()
        since = 0.0 if self._life is None else self._life.began_at
        for each in self.subscriptions:
            unrecorded = deliveries_at_risk(
                self.plan,
                each.undiscarded,
                power=power,
                needs_sync=needs_sync,
                since=since,
                now=now,
            )
            if unrecorded:
                self._around.history.add(DeliveriesLost(each.name, unrecorded))
            for message in unrecorded:
                del each.undiscarded[message]
            each.discarded = unsynced(
                self.plan, each.discarded, needs_sync=needs_sync, since=since, now=now
            )
            lost = discards_at_risk(
                self.plan, each.discarded, behind=self._behind(each), power=power
            )
            self._lose(each, lost)
            each.unfinished = self._unfinished(each)
            each.held.clear()
        self.store = self._points = None

    def _needs_sync(self) -> bool:
        if self.store is None:
            return True
        try:
            return self.store.needs_sync
        except UsageError:  # closed, by a client that ended; perhaps its last sync has failed
            return True

    def _behind(self, to: Subscription) -> set[MessageId]:
        """What is discarded behind an undiscarded message, as the store tells.

        That one need not have been handed out: it may have been queued when its link was lost.
        """
        behind = dropwhile(lambda each: each[1], self._entries(to))
        return {to.places[place] for place, done in behind if done and place in to.places}

    def _unfinished(self, to: Subscription) -> set[MessageId]:
        """What no recovery point covers.

        A discard waits for an ack that names it or something behind it, which a server that goes on
        with other topics need not send. Of many that wait, the store keeps only the last one of
        each publisher: it stands for all of that publisher down to the recovery point.
        """
        if self.store is None:
            return set()
        items = str(self.store.most_recent(to.sub_id)).split(",")
        point = dict(position(item) for item in items if item.count("|") > 1)
        newest: dict[int, int] = {}
        for (publisher, sequence), _ in self._entries(to):
            newest[publisher] = max(sequence, newest.get(publisher, 0))
        return {
            message
            for (publisher, sequence), message in to.places.items()
            if point.get(publisher, 0) < sequence <= newest.get(publisher, 0)
        }

    def _entries(self, to: Subscription) -> Iterator[tuple[tuple[int, int], bool]]:
        """Publisher id and sequence of what has arrived and is not finished; whether discarded."""
        if self.store is None or to.sub_id not in self.store.subscriptions:
            return
        for _, bookmark, discarded in self.store.entries(to.sub_id):
            yield (bookmark.publisher_id, bookmark.sequence), discarded

    def _lose(
        self, to: Subscription, messages: frozenset[MessageId], *, may_return: bool = False
    ) -> None:
        if messages:
            self._around.history.add(DiscardsLost(to.name, messages, may_return))
            for each in messages:
                to.discarded.pop(each, None)

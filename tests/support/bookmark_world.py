"""A server's log and one subscription on it, as sets and lists: the model for bookmark stores.

The server starts after the earliest bookmark of a list that it knows. The client queues what
arrives, hands it out, and discards in any order. `World` notes what must never happen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TypeAlias

from haclient_stores.bookmark import Bookmark, BookmarkList
from haclient_stores.interfaces import SubscriptionLog

__all__ = ["Message", "World"]

Message: TypeAlias = tuple[int, int]
"""Publisher and sequence."""


@dataclass
class World:
    """One subscription from the start of a log.

    Attributes:
        log: The server's log: publisher and sequence of each message.
        synced: So many of them are on the sync destination too.
        cursor: How far the server has delivered on this link.
        queue: Delivered and not handed out: number and message.
        hands: Handed out in this process and not discarded: number to message.
        kept: Handed out and not discarded, but no handler's since the id was entered again.
        discarded: Messages whose discard returned, and that the store has to remember.
        arrived: Messages that were delivered at least once to this process.
        newest: The number of the last copy of each message.
    """

    subscription: SubscriptionLog
    acked: bool
    log: list[Message] = field(default_factory=list)
    synced: int = 0
    cursor: int = 0
    queue: list[tuple[int, Message]] = field(default_factory=list)
    hands: dict[int, Message] = field(default_factory=dict)
    kept: dict[int, Message] = field(default_factory=dict)
    discarded: set[Message] = field(default_factory=set)
    arrived: set[Message] = field(default_factory=set)
    newest: dict[Message, int] = field(default_factory=dict)
    last_number: int = 0
    reached: dict[int, int] = field(default_factory=dict)  # by the recovery points until now

    def publish(self, publisher: int, step: int) -> None:
        """Put a message into the log."""
        last = max((q for p, q in self.log if p == publisher), default=0)
        self.log.append((publisher, last + step))

    def enter(self) -> None:
        """Subscribe where the store says."""
        point = self.subscription.recovery_point()
        self.check(point)
        self.subscription.begin(acked=self.acked, start=None)
        self.cursor = self.start_of(point, self.log)

    @staticmethod
    def start_of(point: BookmarkList, log: list[Message]) -> int:
        """Where a server with this log starts; its end when it knows none of the list."""
        if not point.items:
            return 0
        wanted = {(b.publisher_id, b.sequence) for b in point.items if isinstance(b, Bookmark)}
        found = [index + 1 for index, message in enumerate(log) if message in wanted]
        return min(found, default=len(log))

    def check(self, point: BookmarkList) -> None:
        """Nothing undiscarded is skipped, here or on the sync destination, and no less than before.

        A recovery point that skips less than one before it would deliver again what was discarded,
        once what the earlier one had passed is forgotten.
        """
        newest = {b.publisher_id: b.sequence for b in point if isinstance(b, Bookmark)}
        assert all(newest.get(p, 0) >= q for p, q in self.reached.items()), "it goes back"
        self.reached = newest
        log = self.log
        first = next((i for i, m in enumerate(log) if m not in self.discarded), len(log))
        assert self.start_of(point, log) <= first
        if self.acked:
            there = log[: self.synced]
            first = next((i for i, m in enumerate(there) if m not in self.discarded), len(there))
            if point.items:
                wanted = {(b.publisher_id, b.sequence) for b in point if isinstance(b, Bookmark)}
                assert wanted & set(there), "the other server knows nothing of this list"
            assert self.start_of(point, there) <= first

    def deliver(self, count: int) -> None:
        """The server sends the next messages of its log."""
        messages = self.log[self.cursor : self.cursor + count]
        self.cursor += len(messages)
        numbers = list(self.subscription.log_batch([f"{p}|{q}|" for p, q in messages]))
        assert len(numbers) == len(messages)
        self.arrived.update(messages)
        held = {*self.hands.values(), *(message for _, message in self.queue)}
        for number, message in zip(numbers, messages, strict=True):
            if message in self.discarded or message in held:
                assert number == 0, f"{message} was delivered again"
            else:
                assert number > self.last_number, f"{message} was dropped"
                self.last_number = self.newest[message] = number
                self.queue.append((number, message))
                held.add(message)

    def hand_out(self, count: int) -> None:
        """The application takes messages."""
        self.hands.update(self.queue[:count])
        del self.queue[:count]

    def discard(self, choose: int) -> None:
        """The application is done with one of them."""
        if self.hands:
            number = sorted(self.hands)[choose % len(self.hands)]
            self.subscription.discard(number)
            self.subscription.discard(number)
            self.discarded.add(self.hands.pop(number))

    def discard_up_to(self, choose: int) -> None:
        """The application is done with everything up to one of those it holds."""
        if self.hands:
            number = sorted(self.hands)[choose % len(self.hands)]
            self.subscription.discard_up_to(number)
            self.discarded.update(self.hands.pop(n) for n in list(self.hands) if n <= number)

    def prefix(self) -> set[Message]:
        """The discarded messages that have nothing undiscarded before them."""
        return set(takewhile(self.discarded.__contains__, self.log))

    def forget(self) -> None:
        """The subscription is about to be purged: nothing of it is known, in hand or queued."""
        self.discarded.clear()
        self.arrived.clear()
        self.reached = {}
        self.hands.clear()
        self.kept.clear()
        self.queue.clear()

    def lose_link(self) -> None:
        """The connection breaks; the client enters again."""
        first = self.queue[0][0] if self.queue else self.last_number + 1
        self.subscription.link_lost(first)
        self.queue.clear()
        self.enter()

    def enter_anew(self, choose: int) -> None:
        """The id is unsubscribed and entered again; a handler still processes some messages."""
        left = self.hands.keys() - set(list(self.hands)[choose % 3 :: choose % 4 + 1])
        self.kept.update({number: self.hands.pop(number) for number in left})
        self.subscription.ended_except(self.hands.keys())
        self.queue.clear()
        self.enter()

    def discard_kept(self, choose: int) -> None:
        """The application is done with one that it has kept beyond its subscription."""
        if self.kept:
            number = sorted(self.kept)[choose % len(self.kept)]
            before, message = self.subscription.undiscarded_count, self.kept.pop(number)
            self.subscription.discard(number)
            if self.subscription.undiscarded_count < before:
                self.discarded.add(message)
            elif message not in self.discarded:
                assert number < self.newest[message], "a discard of the last copy counts"

    def restart(
        self,
        subscription: SubscriptionLog,
        known: set[Message] | None = None,
        *,
        forgets: bool = False,
    ) -> None:
        """The process is gone, and with it everything in hands and queue.

        Args:
            subscription: The one of the next process.
            known: The discards that a store which forgets some of them must have kept.
            forgets: The recovery point may be lower than before.
        """
        if forgets:
            self.reached = {}
        self.subscription = subscription
        if known is not None:
            self.discarded = known
            self.arrived = set()
            self.last_number = 0
        self.queue.clear()
        self.hands.clear()
        self.kept.clear()
        self.enter()

    def ack(self, at: int) -> None:
        """The server acknowledges a position that it has passed and that is synced."""
        passed = min(self.cursor, self.synced)
        if passed:
            publisher, sequence = self.log[at % passed]
            self.subscription.persisted(f"{publisher}|{sequence}|")

    def complete(self) -> None:
        """The replay reaches the end."""
        self.deliver(len(self.log))
        last = f"{self.log[-1][0]}|{self.log[-1][1]}|" if self.log else ""
        self.subscription.completed(last)

    def finish(self, reopen: Callable[[], SubscriptionLog]) -> None:
        """In the end everything was delivered, and nothing comes again."""
        self.complete()
        self.hand_out(len(self.queue))
        while self.hands:
            self.discard(0)
        assert self.discarded == set(self.log)
        assert self.subscription.undiscarded_count == 0
        self.synced = len(self.log)
        if self.log:
            self.ack(len(self.log) - 1)
        self.restart(reopen())
        self.deliver(len(self.log))
        assert not self.queue

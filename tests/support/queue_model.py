"""What a message queue has to do, as plainly as it can be written.

One `QueueModel` is one queue with its consumers. It has lists and scans where the engine has heaps
and indexes, and knows nothing of frames or of a journal. Times are microseconds. Everything that
happens to a message ends in `sent`, `dead_letters` or `gone`, which tests compare with the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple, TypeAlias

from haclient_fake_server.engine.settings import QueueTopic

Fields: TypeAlias = Mapping[str, int]

FILTERS: dict[str, Callable[[Fields], bool]] = {
    "": lambda _: True,
    "/n = 0": lambda fields: fields["n"] == 0,
    "/n > 0": lambda fields: fields["n"] > 0,
    "/id > 6": lambda fields: fields["id"] > 6,
    "/barrier = 1": lambda fields: fields["barrier"] == 1,
    "/n > 9": lambda _: False,
}
"""Filters of the wire, and what they say."""


class Sent(NamedTuple):
    """One delivery.

    Attributes:
        connection: Whose.
        sub_id: Of which of its subscriptions.
        bookmark: Which message.
        lease_end: When the lease ends; `None` without one.
    """

    connection: int
    sub_id: str
    bookmark: str
    lease_end: int | None


class DeadLetter(NamedTuple):
    """What the copy of an expired message tells."""

    bookmark: str
    reason: str
    deliveries: int
    cancels: int


@dataclass(eq=False)
class Consumer:
    """One subscription; `place` is its place in the order of subscription."""

    connection: int
    sub_id: str
    place: int
    backlog: int
    filter: str
    held: list[Queued] = field(default_factory=list)

    def wants(self, message: Queued) -> bool:
        return FILTERS[self.filter](message.fields)

    @property
    def has_room(self) -> bool:
        return len(self.held) < self.backlog


@dataclass(eq=False)
class Queued:
    """One message of the queue."""

    bookmark: str
    fields: Fields
    due: int | None
    is_barrier: bool
    holder: Consumer | None = None
    lease_end: int | None = None
    deliveries: int = 0
    cancels: int = 0


class QueueModel:
    """One queue: its messages in the order of the log, and its consumers in their order."""

    def __init__(self, rules: QueueTopic) -> None:
        self.rules = rules
        self.now = 0
        self.messages: list[Queued] = []
        self.consumers: list[Consumer] = []
        self.gone: dict[str, str] = {}
        self.sent: list[Sent] = []
        self.dead_letters: list[DeadLetter] = []
        self._last_served = -1
        self._places = 0

    # --- what happens

    def publish(self, *messages: tuple[str, Fields, int | None]) -> None:
        """Messages arrive at once: bookmark, fields and own expiration of each."""
        for message in messages:
            self._enter(*message)
        self._deliver()

    def _enter(self, bookmark: str, fields: Fields, own_expiration_s: int | None) -> None:
        lifetime = self._lifetime_s(own_expiration_s)
        due = None if lifetime is None else self.now + round(lifetime * 1e6)
        barrier = self.rules.barrier != "" and FILTERS[self.rules.barrier](fields)
        assert bookmark not in self.gone
        self.messages.append(Queued(bookmark, fields, due, barrier))

    def subscribe(self, connection: int, sub_id: str, asked: int | None, content: str) -> int:
        """The effective backlog."""
        self._places += 1
        backlog = self._effective(asked)
        consumer = Consumer(connection, sub_id, self._places, backlog, content)
        self.consumers.append(consumer)
        self._deliver()
        return backlog

    def replace(self, connection: int, sub_id: str, asked: int | None, content: str) -> int:
        consumer = self._consumer(connection, sub_id)
        consumer.backlog = self._effective(asked)
        consumer.filter = content
        self._deliver()
        return consumer.backlog

    def unsubscribe(self, connection: int, sub_id: str) -> None:
        self._leave([self._consumer(connection, sub_id)])

    def disconnect(self, connection: int) -> None:
        self._leave([each for each in self.consumers if each.connection == connection])

    def acknowledge(
        self,
        connection: int,
        *,
        bookmarks: Iterable[str] = (),
        content: str | None = None,
        option: str = "",
        extension_s: int = 0,
    ) -> None:
        """`sow_delete` with bookmarks or with a filter."""
        named = set(bookmarks)
        held = [message for consumer in self.consumers for message in consumer.held]
        known = self.messages + [message for message in held if message not in self.messages]
        for message in known:
            if content is None:
                matches = message.bookmark in named
            else:
                matches = FILTERS[content](message.fields)
            if matches:
                self._acknowledge_one(connection, message, option, extension_s)
        self._deliver()

    def advance(self, now: int) -> None:
        """Let time pass up to `now`, stopping at each lease end and each expiration on the way."""
        while True:
            moments = [
                message.lease_end if message.holder else message.due for message in self.messages
            ]
            due = [moment for moment in moments if moment is not None and moment <= now]
            if not due:
                break
            self.now = max(self.now, min(due))
            self._end_what_is_due()
            self._deliver()
        self.now = now

    def restart(self, now: int) -> None:
        """The broker starts again: leases, counters and consumers are lost, messages are not."""
        self.consumers.clear()
        self._last_served = -1
        for message in self.messages:
            message.holder = message.lease_end = None
            message.deliveries = message.cancels = 0
        self.advance(now)

    # --- what is there

    @property
    def available(self) -> list[Queued]:
        """The messages without a lease, as they would be delivered."""
        waiting = [message for message in self.messages if message.holder is None]
        if self.rules.priority:
            waiting.sort(key=lambda message: -message.fields["p"])  # stable: oldest first
        return waiting

    @property
    def leased(self) -> list[Queued]:
        return [message for message in self.messages if message.holder is not None]

    @property
    def outstanding(self) -> list[str]:
        """What consumers have not acknowledged."""
        return [message.bookmark for consumer in self.consumers for message in consumer.held]

    def holder_of(self, bookmark: str) -> int | None:
        """The connection that has a message."""
        for consumer in self.consumers:
            if any(message.bookmark == bookmark for message in consumer.held):
                return consumer.connection
        return None

    @property
    def at_most_once(self) -> bool:
        return self.rules.semantics == "at-most-once"

    # --- delivery

    def _deliver(self) -> None:
        while self._deliver_one():
            pass

    def _deliver_one(self) -> bool:
        for message in self.available:
            if self._waits_for_a_barrier(message):
                continue
            if message.is_barrier:
                if self._deliver_to_all(message):
                    return True
                continue
            room = [each for each in self.consumers if each.has_room and each.wants(message)]
            if room and not self._is_full():
                self._send(message, self._choose(room))
                return True
        return False

    def _waits_for_a_barrier(self, message: Queued) -> bool:
        before = self.messages[: self.messages.index(message)]
        if message.is_barrier:
            return bool(before or self.outstanding)  # with at-most-once these left the queue
        return any(each.is_barrier for each in before)

    def _deliver_to_all(self, message: Queued) -> bool:
        takers = [each for each in self.consumers if each.wants(message)]
        for each in takers:
            self.sent.append(Sent(each.connection, each.sub_id, message.bookmark, None))
        if takers:
            self._remove(message, "delivered")
        return bool(takers)

    def _is_full(self) -> bool:
        limit = self.rules.max_backlog
        return limit is not None and len(self.outstanding) >= limit

    def _choose(self, room: list[Consumer]) -> Consumer:
        delivery = self.rules.delivery or "proportional"
        if self.at_most_once or delivery == "round-robin":
            later = [each for each in room if each.place > self._last_served]
            return (later or room)[0]
        if delivery == "fast":
            return room[0]
        return min(room, key=lambda each: Fraction(len(each.held), each.backlog))

    def _send(self, message: Queued, consumer: Consumer) -> None:
        self._last_served = consumer.place
        message.deliveries += 1
        consumer.held.append(message)
        if self.at_most_once:
            self._remove(message, "delivered")
        else:
            message.holder = consumer
            if self.rules.lease_s is not None:
                message.lease_end = self.now + round(self.rules.lease_s * 1e6)
        self.sent.append(
            Sent(consumer.connection, consumer.sub_id, message.bookmark, message.lease_end)
        )

    # --- the end of leases

    def _acknowledge_one(
        self, connection: int, message: Queued, option: str, extension_s: int
    ) -> None:
        holder = message.holder
        own = holder is not None and holder.connection == connection
        if extension_s:
            if own and message.lease_end is not None:
                message.lease_end = max(message.lease_end, self.now + extension_s * 1_000_000)
        elif self.at_most_once:
            if message in self.messages:
                self._remove(message, "acknowledged")
            else:
                self._free(connection, message)
        elif self.rules.leasing == "strict" and holder is not None and not own:
            pass
        elif option == "cancel":
            if holder is not None:
                message.cancels += 1
                self._give_back(message)
        elif option == "expire":
            self._expire(message, "forced_expire")
        else:
            self._remove(message, "acknowledged")

    def _free(self, connection: int, message: Queued) -> None:
        """An acknowledgement of an at-most-once queue: only room."""
        for consumer in self.consumers:
            if message in consumer.held and (
                self.rules.leasing == "sublet" or consumer.connection == connection
            ):
                consumer.held.remove(message)

    def _leave(self, consumers: list[Consumer]) -> None:
        self.consumers = [each for each in self.consumers if each not in consumers]
        for message in list(self.messages):
            if message.holder in consumers:
                self._give_back(message)
        self._deliver()

    def _give_back(self, message: Queued) -> None:
        """A message returns to its place, unless it has expired."""
        assert message.holder is not None
        message.holder.held.remove(message)
        message.holder = message.lease_end = None
        rules = self.rules
        if message.due is not None and message.due <= self.now:
            self._expire(message, "time_limit")
        elif rules.max_cancels and (
            message.cancels > rules.max_cancels
            or (rules.max_cancels_rule == "at" and message.cancels == rules.max_cancels)
        ):
            self._expire(message, "max_cancels")
        elif rules.max_deliveries and message.deliveries >= rules.max_deliveries:
            self._expire(message, "max_deliveries")

    def _end_what_is_due(self) -> None:
        for message in list(self.messages):
            if message.holder is not None:
                if message.lease_end is not None and message.lease_end <= self.now:
                    self._give_back(message)
            elif message.due is not None and message.due <= self.now:
                self._expire(message, "time_limit")

    def _expire(self, message: Queued, reason: str) -> None:
        if self.rules.dead_letter:
            self.dead_letters.append(
                DeadLetter(message.bookmark, reason, message.deliveries, message.cancels)
            )
        self._remove(message, reason)

    def _remove(self, message: Queued, reason: str) -> None:
        assert message.bookmark not in self.gone, "a message ended twice"
        self.gone[message.bookmark] = reason
        self.messages.remove(message)
        if message.holder is not None:
            message.holder.held.remove(message)
            message.holder = None

    # --- numbers

    def _effective(self, asked: int | None) -> int:
        return min(self.rules.max_per_subscription_backlog, 1 if asked is None else asked)

    def _consumer(self, connection: int, sub_id: str) -> Consumer:
        (found,) = [
            each
            for each in self.consumers
            if (each.connection, each.sub_id) == (connection, sub_id)
        ]
        return found

    def _lifetime_s(self, own: int | None) -> float | None:
        """How long a message may wait; an own expiration of 0 means for ever."""
        queue = self.rules.expiration_s
        if own is None or self.rules.expiration_model == "queue":
            return queue
        if self.rules.expiration_model == "default" or queue is None:
            return own or None
        if self.rules.expiration_model == "latest":
            return max(own, queue) if own else None
        return min(own, queue) if own else queue

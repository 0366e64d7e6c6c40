"""Topics and their subscribers: one `Route` per topic, one delivery plan per route.

A plan is the result of all live subscriptions of a topic: *groups*, each with the constant
beginning of a frame and the connections that receive it. Several subscriptions of one connection
share a frame that lists all their ids, unless they want different headers. Where subscriptions have
filters, the set of those that match is a bit mask, and groups are remembered per mask.

The plan also names the bookmark subscriptions that wait at the end of the log for a record of the
topic, so that a batch need not look at the others.

A change of a subscription drops the plan of its topic, or all plans when its topic is a pattern. It
is rebuilt when the next message needs it. Which patterns match a topic is kept meanwhile, so that
only those are tried that are newer: else a flood of patterns would make each publish try all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from itertools import takewhile
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from haclient.protocol.codec import encode_string
from haclient_fake_server.engine.connections import (
    BookmarkSubscription,
    Connection,
    Style,
    Subscription,
)
from haclient_fake_server.engine.field_selection import FieldSelection
from haclient_fake_server.engine.filters import Document, Filter, compile_filter
from haclient_fake_server.engine.journal import Block, JournalReader
from haclient_fake_server.engine.patterns import Compared, TopicMatcher, to_bytes
from haclient_fake_server.engine.queues.queue import Queue
from haclient_fake_server.engine.queues.registry import QueueRegistry
from haclient_fake_server.engine.settings import TOPIC_BYTES, EngineSettings
from haclient_fake_server.engine.sow.page import PageSubscription
from haclient_fake_server.engine.sow.table import SowTable
from haclient_fake_server.engine.sow.tables import SowTables

_OF_WHOLE_MESSAGES: Final = ~(Style.DELTA | Style.NO_EMPTIES | Style.SEND_KEYS)

DEVNULL: Final = "/AMPS/devnull"
"""A topic that takes anything and keeps nothing."""

MAX_REMEMBERED_MASKS: Final = 256
"""Combinations of matching filters whose groups are kept; beyond it they are all rebuilt."""

SUBSCRIBERS_PER_CHECK: Final = 4
"""How many deliveries, with their filters, take as long as one comparison with a pattern."""

MAX_PLANNED_MEMBERS: Final = 1_000_000
"""Subscriptions in the plans of all topics of a message type, about 100 bytes each; beyond it all
plans are made anew when they are needed. Plans that were dropped alone count until then. The same
number limits what is kept of the patterns that match topics."""


class FanoutGroup(NamedTuple):
    """Connections that receive the same frame.

    Attributes:
        head: Its constant beginning, not yet closed.
        style: The optional headers, bits of `Style`.
        connections: Those that receive it.
        fields: The fields of the message that it has; `None` for all.
    """

    head: bytes
    style: int
    connections: tuple[Connection, ...]
    fields: FieldSelection | None = None


def frame_head(kind: bytes, wire_topic: bytes, sids: str) -> bytes:
    """The constant beginning of a frame for some subscriptions of one connection."""
    return b'{"c":"%b","t":%b,"sids":%b' % (kind, wire_topic, encode_string(sids))


def _by_delta(
    subscriptions: Sequence[Subscription], wanting: Sequence[Subscription] | None = None
) -> frozenset[int]:
    """The numbers of those that get deltas: none whose connection gets the whole message anyway.

    Args:
        subscriptions: All that get the message.
        wanting: Those of them that want a delta; by default all of that style.
    """
    whole = {item.outlet.id for item in subscriptions if not item.style & Style.DELTA}
    chosen = subscriptions if wanting is None else wanting
    return frozenset(
        item.number for item in chosen if item.style & Style.DELTA and item.outlet.id not in whole
    )


class Plan:
    """The subscribers of one topic.

    Attributes:
        subscriptions: All live ones that match the topic, in the order they came.
        waiting: Those that match the topic and wait for more at the end of the log.
        everyone: The groups when all filters match.
        deltas: Whether any of them wants the changes of an update alone.
        filtered: Whether any of them has a filter, so that each message must be looked at.
        watched: Whether any of them wants out-of-focus messages.
        pages: Those that see a page of the topic's records; the others do not count them.
        conflated: The subscriptions with conflation; the other lists do not contain them.
        checks: What the delivery of a message counts towards `RouteTable.pattern_checks`.
    """

    __slots__ = (
        "_by_mask",
        "_everyone_by_delta",
        "_wire_topic",
        "checks",
        "conflated",
        "deltas",
        "everyone",
        "filtered",
        "pages",
        "subscriptions",
        "waiting",
        "watched",
    )

    def __init__(
        self,
        wire_topic: bytes,
        subscriptions: tuple[Subscription, ...],
        waiting: tuple[BookmarkSubscription, ...] = (),
        pages: tuple[PageSubscription, ...] = (),
        conflated: tuple[Subscription, ...] = (),
    ) -> None:
        self._wire_topic = wire_topic
        self._by_mask: dict[tuple[bytes, int, int], tuple[FanoutGroup, ...]] = {}
        self.subscriptions = subscriptions
        self.waiting = waiting
        self.pages = pages
        self.conflated = conflated
        self.checks = (len(subscriptions) + len(conflated)) // SUBSCRIBERS_PER_CHECK
        self.deltas = any(item.style & Style.DELTA for item in subscriptions)
        self.everyone = self._groups(b"p", subscriptions)
        self._everyone_by_delta = (
            self._groups(b"p", subscriptions, by_delta=_by_delta(subscriptions))
            if self.deltas
            else self.everyone
        )
        self.filtered = any(item.filter is not None for item in subscriptions)
        self.watched = any(item.oof for item in subscriptions)

    def matching(
        self, document: Document, before: Document | None = None
    ) -> tuple[FanoutGroup, ...]:
        """The groups for a message, which may replace the record `before`.

        The groups of the style DELTA get what it has changed. Who wants out-of-focus messages, or
        may not read what the record was before, gets the whole message when it comes into focus.
        """
        if not self.filtered:
            return self.everyone if before is None else self._everyone_by_delta
        mask = by_delta = 0
        for number, item in enumerate(self.subscriptions):
            try:
                if item.filter is None or item.filter(document):
                    mask |= 1 << number
                    if before is None or not item.style & Style.DELTA:
                        continue
                    if item.filter is None or not item.whole_on_entry or item.filter(before):
                        by_delta |= 1 << number
            except Exception as error:  # of this filter; the message is for the others, too
                item.connection.failed(item.connection, error)
        return self._of_mask(b"p", mask, by_delta)

    def losing(self, before: Document, after: Document | None) -> tuple[FanoutGroup, ...]:
        """The groups of those whose filter a record has left; `after` is `None` for a delete.

        Subscribers that match it now get the update itself.
        """
        mask = 0
        for number, item in enumerate(self.subscriptions):
            try:
                if not item.oof or (item.filter is not None and not item.filter(before)):
                    continue
                if after is None or (item.filter is not None and not item.filter(after)):
                    mask |= 1 << number
            except Exception as error:  # as in `matching`
                item.connection.failed(item.connection, error)
        return self._of_mask(b"oof", mask)

    def _of_mask(self, kind: bytes, mask: int, by_delta: int = 0) -> tuple[FanoutGroup, ...]:
        groups = self._by_mask.get((kind, mask, by_delta))
        if groups is None:
            chosen = tuple(s for n, s in enumerate(self.subscriptions) if mask >> n & 1)
            deltas = tuple(s for n, s in enumerate(self.subscriptions) if by_delta >> n & 1)
            if len(self._by_mask) >= MAX_REMEMBERED_MASKS:
                self._by_mask.clear()
            groups = self._groups(kind, chosen, by_delta=_by_delta(chosen, deltas))
            self._by_mask[kind, mask, by_delta] = groups
        return groups

    def _groups(
        self,
        kind: bytes,
        subscriptions: tuple[Subscription, ...],
        *,
        by_delta: Collection[int] = (),
    ) -> tuple[FanoutGroup, ...]:
        ids: dict[tuple[int, int, FieldSelection | None], list[str]] = {}
        connections: dict[int, Connection] = {}
        for item in subscriptions:
            connections[item.outlet.id] = item.outlet
            style = item.style if item.number in by_delta else item.style & _OF_WHOLE_MESSAGES
            ids.setdefault((item.outlet.id, style, item.fields), []).append(item.id)
        shared: dict[tuple[str, int, FieldSelection | None], list[Connection]] = {}
        for (connection_id, style, fields), sub_ids in ids.items():
            group = (",".join(sub_ids), style, fields)
            shared.setdefault(group, []).append(connections[connection_id])
        return tuple(
            FanoutGroup(frame_head(kind, self._wire_topic, sids), style, tuple(members), fields)
            for (sids, style, fields), members in shared.items()
        )


class Route:
    """One topic.

    Attributes:
        topic: Its name.
        message_type: The message type of its bodies.
        wire: Its name as a JSON string.
        topic_id: Its number in the journal; 0 while nothing of it was recorded.
        in_batch: Whether the batch being built has a record of it.
        logged: Whether the journal records it.
        unrecorded: The same topic for the messages that the journal leaves out, if it may do so.
        needs_general_path: Whether a publish has to look at more than the topic.
        sow: Its state of the world, if it has one.
        queues: The queues that its messages enter.
        is_queue: Whether one of them has its name: then subscriptions to it are that queue's.
        plan: Its subscribers; `None` when the plan has to be rebuilt.
    """

    __slots__ = (
        "in_batch",
        "is_queue",
        "log_filters",
        "logged",
        "message_type",
        "needs_general_path",
        "plan",
        "queues",
        "sow",
        "topic",
        "topic_id",
        "unrecorded",
        "wire",
    )

    def __init__(
        self,
        topic: str,
        message_type: str,
        *,
        logged: bool,
        sow: SowTable | None = None,
        queues: tuple[Queue, ...] = (),
        log_filters: Sequence[Filter] = (),
    ) -> None:
        self.topic = topic
        self.message_type = message_type
        self.wire = encode_string(topic)
        self.topic_id = 0
        self.in_batch = False
        self.logged = logged
        self.sow = sow
        self.queues = queues
        self.is_queue = any(queue.settings.name == topic for queue in queues)
        self.plan: Plan | None = None
        self.log_filters = log_filters
        self.unrecorded = Route(topic, message_type, logged=False) if log_filters else None
        self.needs_general_path = sow is not None or self.unrecorded is not None

    def for_message(self, document: Document) -> Route:
        """The route of one message: another one if the journal leaves it out."""
        if self.unrecorded is None or any(each(document) for each in self.log_filters):
            return self
        return self.unrecorded


def _number(subscription: Subscription) -> int:
    return subscription.number


class RouteTable:
    """The topics of one message type and the live subscriptions to them.

    Subscriptions are found by their literal topic, so that planning a topic looks at those that
    name it and at the patterns, not at all there are. Those with one pattern are one search.

    Attributes:
        message_type: The message type.
        routes: By topic.
        targets: Where a publish to a topic, or to a queue, goes.
        pattern_checks: How often a pattern was compared with a topic, and other work of publishes
            in such units.
    """

    def __init__(self, message_type: str, make: Callable[[str, str], Route]) -> None:
        self.message_type = message_type
        self.routes: dict[str, Route] = {}
        self.targets: dict[str, Route] = {}
        self.pattern_checks = 0
        self._make = make
        self._literal: dict[str, dict[int, Subscription]] = {}
        # By number, in the order the patterns came: what is known of a topic keeps none of them.
        self._patterns: dict[int, dict[int, Subscription]] = {}
        self._pattern_numbers: dict[Hashable, int] = {}
        self._last_pattern = 0
        self._known: dict[str, Compared] = {}
        # By topic; kept by those who wait for it.
        self._begun: WeakValueDictionary[str, Compared] = WeakValueDictionary()
        self._known_members = 0
        self._planned: dict[tuple[str, bool], Route] = {}
        self._planned_members = 0

    def route(self, topic: str) -> Route:
        """The route of a topic, new or known."""
        route = self.routes.get(topic)
        if route is None:
            route = self.routes[topic] = self._make(topic, self.message_type)
            self.targets.setdefault(topic, route)
        return route

    def redirect(self, name: str, topic: str) -> None:
        """Send publishes to the name of a queue to a topic."""
        self.targets[name] = self.route(topic)

    def plan(self, route: Route) -> Plan:
        """Make the plan of a topic and keep it."""
        found = [*self._literal.get(route.topic, {}).values()]
        for alike in self._patterns_of(route.topic):
            found += alike.values()
        members = [item for item in found if route.logged or not item.reads_log]
        if route.is_queue:  # what is not replay is the queue's
            members = [item for item in members if isinstance(item, BookmarkSubscription)]
        members.sort(key=_number)
        live: list[Subscription] = []
        waiting: list[BookmarkSubscription] = []
        pages: list[PageSubscription] = []
        conflated: list[Subscription] = []
        for item in members:
            match item:
                case BookmarkSubscription(is_live=False):
                    waiting.append(item)
                case PageSubscription():
                    pages.append(item)
                case _ if item.conflator is not None:
                    conflated.append(item)
                case _:
                    live.append(item)
        self._planned_members += len(members)
        if self._planned_members > MAX_PLANNED_MEMBERS:
            self._forget_plans()
            self._planned_members = len(members)
        route.plan = Plan(route.wire, tuple(live), tuple(waiting), tuple(pages), tuple(conflated))
        self._planned[route.topic, route.logged] = route
        return route.plan

    @property
    def pattern_count(self) -> int:
        """How many patterns subscriptions have."""
        return len(self._patterns)

    def try_patterns(self, topic: str, checks: int) -> Compared | None:
        """Compare a topic with the patterns that are new to it, the oldest of them first.

        What is not complete is kept by those who have asked, and goes on with whoever asks next:
        what others ask meanwhile must not make it begin again.

        Args:
            topic: The topic.
            checks: The most comparisons.

        Returns:
            What to keep until the next call; `None` if no pattern is new to the topic any more.
        """
        known = self._known.get(topic) or self._begun.get(topic) or Compared(topic)
        new = list(takewhile(known.newest.__lt__, reversed(self._patterns)))
        tried = new[-checks:]
        for number in tried:
            self.pattern_checks += 1
            if next(iter(self._patterns[number].values())).matcher.matches(topic):
                known.matching.append(number)
        if tried:
            known.newest = tried[0]
        if len(tried) < len(new):
            if self._known.pop(topic, None) is not None:
                self._known_members -= known.size
            self._begun[topic] = known
            return known
        if tried or topic not in self._known:
            self._remember(known)
        return None

    def _patterns_of(self, topic: str) -> Iterator[dict[int, Subscription]]:
        """The subscriptions by patterns that match a topic: one search for each new pattern."""
        if not self._patterns:
            return iter(())
        self.try_patterns(topic, len(self._patterns))
        known = self._known[topic]
        known.matching = [number for number in known.matching if number in self._patterns]
        return (self._patterns[number] for number in known.matching)

    def _remember(self, known: Compared) -> None:
        """Keep what is complete, in place of all others if these are too many."""
        before = self._known.get(known.topic)
        if before is not None:
            self._known_members -= before.size
        known.size = 1 + len(known.matching)
        self._known_members += known.size
        if self._known_members > MAX_PLANNED_MEMBERS:
            self._known.clear()
            self._known_members = known.size
        self._known[known.topic] = known

    def enter(self, subscription: Subscription) -> None:
        """A subscription is live, or waits at the end of the log."""
        matcher = subscription.matcher
        if matcher.is_regex:
            number = self._pattern_numbers.get(matcher.key)
            if number is None:
                self._last_pattern = number = self._last_pattern + 1
                self._pattern_numbers[matcher.key] = number
            self._patterns.setdefault(number, {})[subscription.number] = subscription
            self._forget_plans()
        else:
            self._literal.setdefault(matcher.text, {})[subscription.number] = subscription
            self._forget_plan(matcher.text)

    def leave(self, subscription: Subscription) -> None:
        """A subscription is neither any more; it need not have been."""
        number = self._pattern_numbers.get(subscription.matcher.key, 0)
        alike = self._patterns.get(number, {})
        if alike.pop(subscription.number, None) is not None:
            self._forget_plans()
            if not alike:
                del self._patterns[number]
                del self._pattern_numbers[subscription.matcher.key]
            return
        topic = subscription.matcher.text
        members = self._literal.get(topic, {})
        if members.pop(subscription.number, None) is not None:
            self._forget_plan(topic)
            if not members:
                del self._literal[topic]

    def set_outlet(self, subscription: Subscription, outlet: Connection) -> None:
        """Send the messages of a live subscription elsewhere."""
        subscription.outlet = outlet
        self.leave(subscription)
        self.enter(subscription)

    def _forget_plan(self, topic: str) -> None:
        route = self.routes.get(topic)
        if route is not None:
            route.plan = None
            if route.unrecorded is not None:
                route.unrecorded.plan = None

    def _forget_plans(self) -> None:
        """Which topics a pattern matches is not known, so all are planned again."""
        for route in self._planned.values():
            route.plan = None
        self._planned.clear()
        self._planned_members = 0


class Routes(dict[str, RouteTable]):
    """The topics of each message type, in a table that is made when it is first asked for.

    Args:
        settings: Which topics are logged, have a state of the world, or are queues.
        journal: Where the messages of queues are.

    Attributes:
        by_id: Logged topics, by their number in the journal.
        sow: The topics with a state of the world.
        queues: The message queues.
    """

    def __init__(self, settings: EngineSettings, journal: JournalReader) -> None:
        super().__init__()
        self.by_id: dict[int, Route] = {}
        self.queues = QueueRegistry(settings.queues, journal)
        self._max_topic_bytes = settings.max_topic_bytes
        self._topic_bytes = 0  # of all topics
        self._log = [
            (
                TopicMatcher(topic.pattern),
                topic.message_type,
                compile_filter(topic.filter) if topic.filter else None,
            )
            for topic in settings.log_topics
        ]
        self.sow = SowTables(settings.sow_topics, self.is_logged)
        for queue in settings.queues:
            if queue.publish_target != queue.name and queue.publish_target:
                self[queue.message_type].redirect(queue.name, queue.publish_target)

    def __missing__(self, message_type: str) -> RouteTable:
        table = self[message_type] = RouteTable(message_type, self._make)
        return table

    def close_batch(self, block: Block | None) -> None:
        """The batch ends with this block."""
        self.queues.close_batch(block)
        for topic_id, message_type, topic in block.definitions if block else ():
            self.by_id[topic_id] = self[message_type].route(topic)

    def is_logged(self, topic: str, message_type: str) -> bool:
        """Whether the journal records a topic."""
        return bool(self._log_filters(topic, message_type))

    def has_room_for(self, topic: str) -> bool:
        """Whether there is memory for a new topic."""
        return self._topic_bytes + _bytes_of(topic) <= self._max_topic_bytes

    def sow_tables(self, message_type: str, matcher: TopicMatcher) -> list[SowTable]:
        """The topics with a state of the world that match; those of a pattern once they are known.

        A single topic becomes known by this, unless all topics together take too much memory.
        """
        if matcher.is_regex:
            return self.sow.matching(matcher, message_type)
        name = matcher.text
        topic = self.sow.get(name, message_type)
        if topic is None and self.sow.may_have(name, message_type) and self.has_room_for(name):
            topic = self[message_type].route(name).sow
        return [] if topic is None else [topic]

    def _log_filters(self, topic: str, message_type: str) -> list[Filter | None]:
        """Of what records a topic, the filters; `None` for what records all messages."""
        if topic == DEVNULL:
            return []
        return [
            filter_
            for matcher, kind, filter_ in self._log
            if (not kind or kind == message_type) and matcher.matches(topic)
        ]

    def _make(self, topic: str, message_type: str) -> Route:
        self._topic_bytes += _bytes_of(topic)
        filters = self._log_filters(topic, message_type)
        is_queue = self.queues.get(topic, message_type) is not None
        return Route(
            topic,
            message_type,
            logged=bool(filters),
            sow=None if is_queue else self.sow.get_or_make(topic, message_type),
            queues=self.queues.fed_by(topic, message_type) if filters else (),
            log_filters=[] if None in filters else [each for each in filters if each is not None],
        )


def _bytes_of(topic: str) -> int:
    """What a topic counts towards `EngineSettings.max_topic_bytes`."""
    return TOPIC_BYTES + len(to_bytes(topic))

"""A connection and its subscriptions, as the engine sees them.

There are two kinds of subscription. A `Subscription` receives new messages, in the batch that
records them. A `BookmarkSubscription` reads the log from a bookmark on, at the reader's pace, and
goes live once it has reached the end.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple, Protocol, TypeAlias

from typing_extensions import override

from haclient.protocol.messages import Message
from haclient_fake_server.engine.conflator import Conflator
from haclient_fake_server.engine.entitlements import Access
from haclient_fake_server.engine.field_selection import FieldSelection
from haclient_fake_server.engine.filters import Document
from haclient_fake_server.engine.journal import Cursor
from haclient_fake_server.engine.pace import ReplayPace
from haclient_fake_server.engine.patterns import Compared, TopicMatcher
from haclient_fake_server.engine.publishers import KnownPublisher
from haclient_fake_server.engine.timers import NEVER
from haclient_fake_server.journal.format import Record

SILENT_INTERVALS: Final = 2.5
"""A connection is closed when it was silent for so many heartbeat intervals."""

MAX_PASSED_AGAIN: Final = 1000
"""Records that a replay reads once more rather than to seek in the journal."""


LongCommand: TypeAlias = Generator[None, None, None]
"""A command that is carried out in several steps, so that other clients get their turn."""


class Connection:
    """One connection, from its first byte to its last.

    Attributes:
        id: The shell's number for it.
        peer: The other end's address, for the log.
        out: Frames that this batch sends to it, in order.
        logged_on: Whether its logon succeeded; no other command is valid before that.
        closing: Whether the engine has asked to close it, or it has ended; further input is
            ignored.
        name: Client name.
        user: Authenticated user; empty for none.
        reading: The topics that the user may read; `None` for all.
        publishing: The topics that the user may publish to; `None` for all.
        message_type: Type of its bodies.
        publisher: The publisher of its messages that carry a sequence.
        origin: The publisher of its messages without a sequence.
        subscriptions: By sub id.
        backlog: Subscriptions with records to replay, by number; the next one comes first.
        live_replays: Bookmark subscriptions that are live, by number.
        queries: Commands that are not carried out to their end yet, the oldest first.
        blocking: A command that is not carried out to its end yet; its others wait for it.
        deferred: The commands that wait, for that or for their turn.
        compared: How far the topic of the first of them, a publish, was compared with patterns.
        ack_interval_s: How long persisted acks are collected.
        ack_is_scheduled: Whether a publish has requested an ack that was not sent yet.
        beat_interval_s: 0 while no heartbeat was started.
        beat_due: When the next heartbeat is due.
        last_received: When data last arrived from it.
        early: Frames that this batch sends to it before the journal is written.
        has_ended: Whether it has ended, and its subscriptions are about to end in steps.
        held: How many of its acks wait for confirmation (see `durability`).
        commands: The commands that it may send, if they are not those of a client.
        consumers: Its subscriptions to queues, by number.
        choked: Those of them that wait until it has sent what it has.
        high_waters: How often it had too much to send.
        end_reason: Why the engine has asked to close it, for the log; empty while it has not.
        failed: Called where work for it meets an exception among the work for others: it has to
            end alone.
    """

    __slots__ = (
        "ack_interval_s",
        "ack_is_scheduled",
        "backlog",
        "beat_due",
        "beat_interval_s",
        "blocking",
        "choked",
        "closing",
        "commands",
        "compared",
        "consumers",
        "deferred",
        "early",
        "end_reason",
        "failed",
        "has_ended",
        "held",
        "high_waters",
        "id",
        "last_received",
        "live_replays",
        "logged_on",
        "message_type",
        "name",
        "origin",
        "out",
        "peer",
        "publisher",
        "publishing",
        "queries",
        "reading",
        "subscription_queries",
        "subscriptions",
        "user",
    )

    publisher: KnownPublisher
    origin: KnownPublisher

    def __init__(
        self,
        number: int,
        *,
        peer: str,
        now: float,
        failed: Callable[[Connection, Exception], None] | None = None,
    ) -> None:
        self.id = number
        self.failed = failed or _raise
        self.peer = peer
        self.out: list[bytes] = []
        self.logged_on = False
        self.closing = False
        self.name = ""
        self.user = ""
        self.reading: Access | None = None
        self.publishing: Access | None = None
        self.message_type = ""
        self.subscriptions: dict[str, Subscription] = {}
        self.backlog: dict[int, BookmarkSubscription] = {}
        self.live_replays: dict[int, BookmarkSubscription] = {}
        self.queries: deque[LongCommand] = deque()
        self.blocking: LongCommand | None = None
        self.deferred: list[Message] = []
        self.compared: Compared | None = None
        self.subscription_queries = 0
        self.ack_interval_s = 0.0
        self.ack_is_scheduled = False
        self.beat_interval_s = 0.0
        self.beat_due = NEVER
        self.last_received = now
        self.early: list[bytes] = []
        self.has_ended = False
        self.held = 0
        self.commands: Mapping[str, Callable[[Connection, Message], None]] | None = None
        self.consumers: dict[int, QueueSubscription] = {}
        self.choked: dict[int, QueueSubscription] = {}
        self.high_waters = 0
        self.end_reason = ""

    def stop(self) -> None:
        """Send nothing more to it: its consumers have no room any more."""
        self.closing = True
        for consumer in self.consumers.values():
            consumer.room_changed()

    def take_step(self) -> None:
        """Take the next step of the command that blocks the others, or of the oldest query."""
        if self.blocking is not None:
            if next(self.blocking, self) is self:  # it has no further step
                self.blocking = None
        elif self.queries and next(self.queries[0], self) is self:
            self.queries.popleft()

    @property
    def has_backlog(self) -> bool:
        """Whether `Engine.pump` has something for it when there is room in its buffer."""
        return bool(self.backlog or self.queries or self.choked or self.is_busy)

    @property
    def is_busy(self) -> bool:
        """Whether it is not read from, since some of its commands wait."""
        return self.blocking is not None or bool(self.deferred)

    @property
    def silent_at(self) -> float:
        """When its connection will have been silent for too long.

        A client that beats once per interval is allowed one lost beat. Its second one may be a
        little late: at two intervals exactly it would be cut just before that arrives.
        """
        if not self.beat_interval_s:
            return NEVER
        if self.is_busy:
            return NEVER
        return self.last_received + SILENT_INTERVALS * self.beat_interval_s

    @property
    def next_due(self) -> float:
        """When the next heartbeat is due, or the silence becomes too long."""
        return min(self.beat_due, self.silent_at)


class Hold(Connection):
    """Takes the messages of a subscription until its query is answered.

    Its frames are sent after the records of the query, so that the subscriber has the records as of
    one moment and then every change since.

    Args:
        subscription: The subscription.
    """

    __slots__ = ("_counted", "_held_bytes")

    def __init__(self, subscription: Subscription) -> None:
        connection = subscription.connection
        super().__init__(
            -subscription.number,
            peer=connection.peer,
            now=connection.last_received,
            failed=lambda _, error: connection.failed(connection, error),
        )
        self.message_type = connection.message_type
        self.commands = {}  # no client's: nothing but frames is ever put here
        self.out = [b""]  # never empty, so that no batch sends what is held
        self._counted = 1
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """How much it has taken; each frame is counted once."""
        self._held_bytes += sum(map(len, self.out[self._counted :]))
        self._counted = len(self.out)
        return self._held_bytes


def _raise(_: Connection, error: Exception) -> None:
    """Raise a fault: what a connection without an engine does."""
    raise error


class Style:
    """Bits of a number: which optional headers a subscription wants, and which part of an update.

    Not an `enum.IntFlag`, whose `&` would be two thirds of the time of a delivery plan.
    """

    PLAIN: Final = 0
    BOOKMARK: Final = 1
    TIMESTAMP: Final = 2
    NO_SOW_KEY: Final = 4
    LIVE: Final = 8
    """No header: messages are sent before the journal is written."""
    DELTA: Final = 16
    """No header: of an update, the fields that have changed."""
    NO_EMPTIES: Final = 32
    """No header: with DELTA, nothing of an update that has changed none."""
    SEND_KEYS: Final = 64
    """No header: with NO_EMPTIES, the key fields all the same."""


class Selection(NamedTuple):
    """The messages that a subscription receives, and their headers.

    Attributes:
        matcher: Its topic or pattern.
        filter: Its content filter, if it has one.
        style: The optional headers it wants.
        oof: Whether it receives a message for each record that stops matching its filter.
        fields: The fields that it receives; `None` for whole messages.
        whole_on_entry: Whether a message that brings a record into focus is no delta: without it, a
            delta refers to the record even if the subscriber has never seen that.
    """

    matcher: TopicMatcher
    filter: Callable[[Document], bool] | None = None
    style: int = Style.PLAIN
    oof: bool = False
    fields: FieldSelection | None = None
    whole_on_entry: bool = False


class Subscription:
    """A subscription of one connection to new messages.

    Attributes:
        connection: Its connection.
        outlet: Where its messages go: its connection, or a `Hold` while its query is answered.
        query: The steps that answer its query, as long as it is not answered; else `None`.
        id: Its sub id.
        number: Its place in the order of all subscriptions.
        matcher: As selected, like `fields`, `filter`, `style`, `oof` and `whole_on_entry`.
        conflator: Holds its messages back; `None` without conflation.
        has_records: Whether it has received every record that it selects.
        reads_log: Whether it receives messages of logged topics alone.
    """

    reads_log = False

    __slots__ = (
        "conflator",
        "connection",
        "fields",
        "filter",
        "has_records",
        "id",
        "matcher",
        "number",
        "oof",
        "outlet",
        "query",
        "style",
        "whole_on_entry",
    )

    def __init__(
        self, connection: Connection, sub_id: str, *, number: int, selection: Selection
    ) -> None:
        self.connection = connection
        self.outlet = connection
        self.query: LongCommand | None = None
        self.id = sub_id
        self.number = number
        self.conflator: Conflator | None = None
        self.has_records = False
        self.select(selection)

    @property
    def is_over(self) -> bool:
        """Whether it has reached its end and receives nothing more."""
        return False

    def select(self, selection: Selection) -> None:
        """Change the topics, the filter and the headers."""
        # Copied, since deliveries read them for each message.
        self.matcher = selection.matcher
        self.filter = selection.filter
        self.style: int = selection.style
        self.oof = selection.oof
        self.fields: FieldSelection | None = selection.fields
        self.whole_on_entry = selection.whole_on_entry

    def selects(self, topic: str, document: Document) -> bool:
        """Whether it receives a message of a topic."""
        return self.matcher.matches(topic) and (self.filter is None or self.filter(document))


class QueueSubscription(Subscription):
    """A consumer of one or several queues.

    Attributes:
        backlog: How many messages it may have at one time.
        leased: How many it has.
        filter_text: The text of its content filter; empty for none.
        is_choked: Whether its connection has enough to send for now.
        queues: The queues that it consumes, by name.
        heads: By queue, the constant beginning of the frames to it.
        wants_timestamp: Whether its messages say when they were published.
    """

    __slots__ = (
        "backlog",
        "filter_text",
        "heads",
        "is_choked",
        "leased",
        "queues",
        "wants_timestamp",
    )

    def __init__(
        self, connection: Connection, sub_id: str, *, number: int, selection: Selection
    ) -> None:
        super().__init__(connection, sub_id, number=number, selection=selection)
        self.backlog = 1
        self.leased = 0
        self.filter_text = ""
        self.is_choked = False
        self.queues: dict[str, QueueLike] = {}
        self.heads: dict[str, bytes] = {}

    @override
    def select(self, selection: Selection) -> None:
        super().select(selection)
        self.wants_timestamp = bool(selection.style & Style.TIMESTAMP)

    @property
    def has_room(self) -> bool:
        """Whether it may be given another message now."""
        return self.leased < self.backlog and not self.is_choked and not self.connection.closing

    @property
    def used(self) -> float:
        """The part of its backlog that is taken."""
        return self.leased / self.backlog

    def room_changed(self) -> None:
        """Let its queues know that it has room, or more or less of it."""
        for queue in self.queues.values():
            queue.room_changed(self)


class QueueLike(Protocol):
    """What a consumer needs of a queue."""

    def room_changed(self, consumer: QueueSubscription) -> None:
        """A consumer has room, or more or less of it."""

    def room_taken(self, consumer: QueueSubscription) -> None:
        """A consumer has less room."""


class LogEnd:
    """An end of the log that subscriptions follow: that of all records, or of the durable ones.

    Attributes:
        position: The first position beyond it.
        bookmark: The bookmark of the last record before it; empty if unknown.
    """

    __slots__ = ("bookmark", "position")

    def __init__(self) -> None:
        self.position = 1
        self.bookmark = ""


class Phase(enum.Enum):
    """Where the messages of a bookmark subscription come from."""

    QUERY = enum.auto()
    """From nowhere yet: its query has to be answered first."""
    REPLAY = enum.auto()
    """From the log. It is in the backlog of its connection while there is more to read, waits at
    the end of the log while there is not, and is nowhere while it is paused."""
    LIVE = enum.auto()
    """From the publishers, in the batch that records them."""
    ENDED = enum.auto()
    """From nowhere: its range or its `top_n` is exhausted."""


class BookmarkSubscription(Subscription):
    """A subscription to the log from a bookmark on.

    Attributes:
        phase: Where its messages come from.
        covered: The messages that the records of its query have to include, as sequences by
            publisher id; empty unless it begins at a list of bookmarks.
        paused: Whether the subscriber has asked to wait.
        fully_durable: Whether it receives only records that are safe on all synchronous
            destinations.
        fell_back: Whether it has left the live stream since its connection had too much to send:
            then it follows the end of the log until there is a message for it. What it has
            missed has no pace.
        cursor: Where replay reads next, `None` to seek `position`.
        ahead: With a pace or a group: records that were read and are not sent yet, the last first.
        position: The first position that it has not passed.
        start: The position at which it began: no earlier one is acknowledged to it.
        target: The position of the last message when it began: `completed` follows it.
        last_position: The position after which its range ends, if it has an end.
        last_us: The time after which its range ends, if it has an end.
        remaining: How many more messages it may receive, `None` for no limit.
        pace: When its replayed messages are due; `None` for no limit.
        is_held: Whether the next one is not due yet.
        group: The subscriptions that share its replay, including itself; `None` if it has a replay
            of its own.
        end: The end of the log that it follows without reading, since no record has arrived for it.
            Then `position` and `passed` are those of `end`.
        read_until: While it waits at the end of the log: no record from this position on is for it.
        heads: By topic id, the constant beginnings of its replayed frames; `None` before the first.
        cid: The command id of its subscribe, for later acks.
        wants_completed: Whether `completed` was requested and is still to be sent.
        wants_persisted: Whether it has requested persisted acks.
        passed: Bookmark of the last position that it has passed.
        acked: The bookmark last acknowledged to it.
    """

    reads_log = True

    __slots__ = (
        "acked",
        "ahead",
        "cid",
        "covered",
        "cursor",
        "end",
        "fell_back",
        "fully_durable",
        "group",
        "heads",
        "is_held",
        "last_position",
        "last_us",
        "pace",
        "passed",
        "paused",
        "phase",
        "position",
        "read_until",
        "remaining",
        "start",
        "target",
        "wants_completed",
        "wants_persisted",
    )

    def __init__(
        self, connection: Connection, sub_id: str, *, number: int, selection: Selection
    ) -> None:
        super().__init__(connection, sub_id, number=number, selection=selection)
        self.phase = Phase.REPLAY
        self.covered: Mapping[int, int] = {}
        self.paused = False
        self.fully_durable = False
        self.fell_back = False
        self.cursor: Cursor | None = None
        self.ahead: list[Record] = []
        self.position = 0
        self.start = 0
        self.end: LogEnd | None = None
        self.read_until = 0
        self.target = 0
        self.last_position: int | None = None
        self.last_us: int | None = None
        self.remaining: int | None = None
        self.pace: ReplayPace | None = None
        self.is_held = False
        self.group: ReplayGroup | None = None
        self.cid = ""
        self.wants_completed = False
        self.wants_persisted = False
        self.passed = ""
        self.acked = ""

    @property
    @override
    def is_over(self) -> bool:
        return self.phase is Phase.ENDED

    @property
    def bounded(self) -> bool:
        """Whether it has an end, so that it never goes live."""
        return (
            self.remaining is not None or self.last_position is not None or self.last_us is not None
        )

    @property
    def is_live(self) -> bool:
        """Whether its messages come from the publishers."""
        return self.phase is Phase.LIVE

    @property
    def reached(self) -> tuple[int, str]:
        """The first position that it has not passed, and the bookmark of the one before it."""
        end = self.end
        return (
            (self.position, self.passed)
            if end is None
            else (end.position, end.bookmark or self.passed)
        )

    def read_anew(self) -> None:
        """Read the log next from its own position on."""
        self.cursor = None
        self.ahead.clear()

    def leave_end(self) -> None:
        """Read the log again, from the end that it has followed."""
        if self.end is None:
            return
        before = self.position
        self.position, self.passed = self.reached
        self.end = None
        if self.position - before > MAX_PASSED_AGAIN:
            self.cursor = None

    @property
    def wants_replay(self) -> bool:
        """Whether replay has to continue for it when there is room in its connection's buffer."""
        return self.phase is Phase.REPLAY and not self.paused and not self.is_held

    @override
    def select(self, selection: Selection) -> None:
        super().select(selection)
        self.style |= Style.BOOKMARK
        self.heads: Mapping[int, bytes | None] | None = None


class ReplayGroup:
    """Two or more subscriptions with one replay; the first one reads.

    A record is looked at by the members of its topic, which are found as in a `RouteTable`: there
    may be thousands of others.

    Attributes:
        members: All of them, in the order in which they receive a record.
    """

    def __init__(self, members: list[BookmarkSubscription]) -> None:
        self.members = members
        self._literal: dict[str, list[BookmarkSubscription]] = {}
        self._patterns: dict[Hashable, list[BookmarkSubscription]] = {}

    def of_topic(self, topic: str) -> Sequence[BookmarkSubscription]:
        """The members with a topic, in order."""
        if not self._literal and not self._patterns:
            for item in self.members:
                matcher = item.matcher
                if matcher.is_regex:
                    self._patterns.setdefault(matcher.key, []).append(item)
                else:
                    self._literal.setdefault(matcher.text, []).append(item)
        found = self._literal.get(topic, [])
        matching = [each for each in self._patterns.values() if each[0].matcher.matches(topic)]
        if not matching:
            return found
        return sorted(chain(found, *matching), key=lambda item: item.number)

    def remove(self, item: BookmarkSubscription) -> None:
        """A member has left."""
        self.members.remove(item)
        self._literal.clear()
        self._patterns.clear()

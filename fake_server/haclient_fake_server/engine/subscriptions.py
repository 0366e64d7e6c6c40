"""One subscription: what it wants, and where it stands."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING

from haclient_fake_server.engine.routes import Style

if TYPE_CHECKING:
    from haclient_fake_server.engine.connections import Connection
    from haclient_fake_server.engine.filters import Document
    from haclient_fake_server.engine.journal import Cursor
    from haclient_fake_server.engine.replay import Heads
    from haclient_fake_server.engine.topics import TopicMatcher

__all__ = ["Phase", "Subscription"]


class Phase(enum.Enum):
    """Where a subscription's messages come from."""

    LIVE = enum.auto()
    """From the publishers, in the batch that records them."""
    REPLAY = enum.auto()
    """From the journal, at the reader's pace."""
    ENDED = enum.auto()
    """From nowhere: its range or its `top_n` is exhausted."""


class Subscription:
    """A subscription of one connection.

    Attributes:
        connection: Whose it is.
        id: Its sub id.
        number: Its place in the order of all subscriptions.
        matcher: Its topic or pattern.
        filter: Its content filter, if it has one.
        style: The optional headers it wants.
        oof: Whether it hears of records that leave its filter.
        from_log: Whether it is a bookmark subscription.
        fully_durable: Whether it hears only of what is safe on all synchronous destinations.
        phase: Where its messages come from.
        paused: Whether the subscriber has asked to wait.
        cursor: Where replay reads next.
        position: The first position that it was not given yet.
        target: The last position of the log when it was entered: `completed` follows it.
        cid: The command id of its subscribe, for later acks.
        wants_completed: Whether `completed` was asked for and is still to come.
        wants_persisted: Whether it asked for persisted acks.
        entered: The last position before its start: never acknowledge less to it.
        passed: Bookmark of the last position that it was given or passed over.
        acked: The bookmark last acknowledged to it.
        last_position: The position after which its range ends, if it has an end.
        last_us: The time after which its range ends, if it has an end.
        remaining: How many messages it still gets, `None` for no limit.
        heads: Constant beginnings of its replayed frames, once it has replayed.
    """

    __slots__ = (
        "acked",
        "cid",
        "connection",
        "cursor",
        "entered",
        "filter",
        "from_log",
        "fully_durable",
        "heads",
        "id",
        "last_position",
        "last_us",
        "matcher",
        "number",
        "oof",
        "passed",
        "paused",
        "phase",
        "position",
        "remaining",
        "style",
        "target",
        "wants_completed",
        "wants_persisted",
    )

    def __init__(
        self, connection: Connection, sub_id: str, *, number: int, matcher: TopicMatcher
    ) -> None:
        self.connection = connection
        self.id = sub_id
        self.number = number
        self.matcher = matcher
        self.filter: Callable[[Document], bool] | None = None
        self.style = Style.PLAIN
        self.oof = False
        self.from_log = False
        self.fully_durable = False
        self.entered = 0
        self.phase = Phase.LIVE
        self.paused = False
        self.cursor: Cursor | None = None
        self.position = 0
        self.target = 0
        self.cid = ""
        self.wants_completed = False
        self.wants_persisted = False
        self.passed = ""
        self.acked = ""
        self.last_position: int | None = None
        self.last_us: int | None = None
        self.remaining: int | None = None
        self.heads: Heads | None = None

    def matches(self, topic: str) -> bool:
        """Whether the topic is one of its topics."""
        return self.matcher.matches(topic)

    @property
    def bounded(self) -> bool:
        """Whether it ends by itself: then it reads the log to its end and never goes live."""
        return (
            self.remaining is not None or self.last_position is not None or self.last_us is not None
        )

    @property
    def wants_replay(self) -> bool:
        """Whether replay has to go on for it when there is room in its connection's buffer."""
        return self.phase is Phase.REPLAY and not self.paused

"""What the engine remembers of one connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from haclient_fake_server.engine.timers import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from haclient.protocol.messages import Message
    from haclient_fake_server.engine.identity import Publisher
    from haclient_fake_server.engine.routes import Route
    from haclient_fake_server.engine.subscriptions import Subscription

__all__ = ["Connection"]

SILENT_INTERVALS: Final = 2.5
"""A connection is closed when it was silent for so many heartbeat intervals."""


class Connection:
    """One connection, from its first byte to its last.

    Attributes:
        id: The shell's number for it.
        peer: The other end's address, for the log.
        out: Frames that this batch has for it, in order.
        logged_on: Whether its logon succeeded; nothing else counts before.
        closing: Whether the engine has asked for its end; what it still sends is ignored.
        name: Client name.
        user: Authenticated user; empty for none.
        message_type: Type of its bodies.
        publisher: Who it is when it publishes with sequences.
        origin: Who it is when it publishes without.
        routes: The topics of its message type.
        subscriptions: By sub id.
        backlog: Subscriptions that replay has something for, by number; those fed last come last.
        live_replays: Bookmark subscriptions that are live, by number.
        ack_interval_s: How long persisted acks are collected.
        ack_is_scheduled: Whether a publish asked for an ack that was not sent yet.
        beat_interval_s: 0 while no heartbeat was started.
        beat_due: When the next heartbeat is to be sent.
        heard: When something last came from it.
        early: Frames that this batch has for it before the journal is written.
        held: How many acks for it wait until they are true (see `durability`).
        commands: What it may say, where that is not what clients say.
    """

    __slots__ = (
        "ack_interval_s",
        "ack_is_scheduled",
        "backlog",
        "beat_due",
        "beat_interval_s",
        "closing",
        "commands",
        "early",
        "held",
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
        "routes",
        "subscriptions",
        "user",
    )

    publisher: Publisher
    origin: Publisher

    def __init__(self, number: int, *, peer: str, now: float) -> None:
        self.id = number
        self.peer = peer
        self.out: list[bytes] = []
        self.logged_on = False
        self.closing = False
        self.name = ""
        self.user = ""
        self.message_type = ""
        self.routes: dict[str, Route] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.backlog: dict[int, Subscription] = {}
        self.live_replays: dict[int, Subscription] = {}
        self.ack_interval_s = 0.0
        self.ack_is_scheduled = False
        self.beat_interval_s = 0.0
        self.beat_due = NEVER
        self.last_received = now
        self.early: list[bytes] = []
        self.held = 0
        self.commands: Mapping[str, Callable[[Connection, Message], None]] | None = None

    @property
    def silent_at(self) -> float:
        """When its silence will have lasted too long.

        A client that beats once per interval is allowed one lost beat. Its second one may be a
        little late: at two intervals exactly it would be cut just before that arrives.
        """
        if not self.beat_interval_s:
            return NEVER
        return self.last_received + SILENT_INTERVALS * self.beat_interval_s

    @property
    def next_due(self) -> float:
        """When the next heartbeat is to be sent, or the silence is too long."""
        return min(self.beat_due, self.silent_at)

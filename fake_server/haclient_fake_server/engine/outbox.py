"""The effects of one batch, and the outbox in which they are collected.

While a batch is carried out, the parts of the engine call `send`, `close`, `wake` and `report`;
`take_effects` returns what has come together, and the next batch begins empty.
"""

from __future__ import annotations

import enum
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from haclient.errors import printable
from haclient.protocol.messages import Message
from haclient_fake_server.engine.acks import (
    MAX_DETAIL_CHARACTERS,
    Refused,
    ack,
    end_ack,
    failure_ack,
    quoted,
    requested,
)
from haclient_fake_server.engine.connections import Connection
from haclient_fake_server.engine.guards import Guard
from haclient_fake_server.engine.journal import Block
from haclient_fake_server.engine.queues.points import QueuePoint
from haclient_fake_server.engine.replication.durability import Durability, ReplicationProgress
from haclient_stores.errors import StoreError

MAX_COMMANDS_REPORTED: Final = 20
"""Refusals and the like of one batch that the log describes: a client in a loop must not fill the
disk."""

MAX_ENDS_REPORTED: Final = 10
"""Ends of connections in one second that the log describes; the statistics count all."""

MAX_END_CHARACTERS: Final = 400
"""How much of the reason for an end the log has: it may quote what the client has sent."""

ENDED_BY_PEER: Final = "connection closed"
"""The reason for the end of a connection that the other end has closed."""

INTERNAL_ERROR: Final = "internal error"
"""The reason for the end of a connection whose command the broker could not carry out."""

_NOT_REMARKABLE: Final = frozenset({ENDED_BY_PEER, "connection lost", "broker stopped"})
"""Reasons for which this broker has not closed the connection, or has closed all."""


class Severity(enum.IntEnum):
    """How much an event matters; the numbers are those of `logging`."""

    INFO = 20
    WARNING = 30
    ERROR = 40


class Event(NamedTuple):
    """Something for the broker's log."""

    severity: Severity
    text: str


@dataclass(frozen=True, slots=True)
class Effects:
    """The effects of one batch, to be applied in this order.

    Attributes:
        block: Written to the journal before anything else is done; if that fails, none of the rest
            may be done.
        sends: By connection number, bytes to be sent.
        closes: Connections to close once their queued bytes are sent, and why.
        with_backlog: Connections for which `Engine.pump` has records to send when they have room.
        early: Bytes for `live` subscriptions, which may be sent before the block is written.
        progress: The progress of replication, if it has changed. It is written to a file before
            anything is sent, and passed to the next engine on the same journal.
        events: Lines for the broker's log.
        guards: All guards against removal, if any has changed. They are written to a file before
            anything is sent, and passed to the next engine on the same journal.
        guarding: The connections that have changed them: without the file they must get no answer.
        queue_points: The recovery points of all queues, if they have changed and are to be written:
            soon after the block. They are passed to the next engine on the same journal.
    """

    block: Block | None
    sends: list[tuple[int, bytes]]
    closes: list[tuple[int, str]]
    with_backlog: list[int]
    early: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    progress: ReplicationProgress | None = None
    events: list[Event] = field(default_factory=list[Event])
    guards: tuple[Guard, ...] | None = None
    guarding: tuple[int, ...] = ()
    queue_points: tuple[QueuePoint, ...] | None = None


class Outbox:
    """Collects what a batch sends, closes and reports.

    Args:
        durability: Holds the acks that wait for other instances.

    Attributes:
        ends: How many connections have ended, by reason.
        faults: How many exceptions were met that the broker should never meet.
    """

    def __init__(self, durability: Durability) -> None:
        self._durability = durability
        self._dirty: list[Connection] = []
        self._early: list[Connection] = []
        self._closes: list[tuple[int, str]] = []
        self._awake: dict[int, Connection] = {}
        self._events: list[Event] = []
        self._commands_reported = 0
        self.ends: dict[str, int] = {}
        self.faults = 0
        self._ends_since, self._ends_in_second = 0.0, 0

    def take_effects(
        self,
        block: Block | None,
        *,
        progress: ReplicationProgress | None = None,
        queue_points: tuple[QueuePoint, ...] | None = None,
        guards: tuple[Guard, ...] | None = None,
        guarding: tuple[int, ...] = (),
    ) -> Effects:
        """Return the effects of this batch, which ends; see `Effects` for the arguments."""
        early = [(connection.id, b"".join(connection.early)) for connection in self._early]
        for connection in self._early:
            connection.early = []
        sends = [(connection.id, b"".join(connection.out)) for connection in self._dirty]
        for connection in self._dirty:
            connection.out = []
        with_backlog = [
            number
            for number, connection in self._awake.items()
            if not connection.closing
            and (connection.has_backlog or connection.commands is not None)
        ]
        if self._commands_reported > MAX_COMMANDS_REPORTED:
            more = self._commands_reported - MAX_COMMANDS_REPORTED
            self.report(Severity.WARNING, f"{more} further refusals and the like in this batch")
        closes, events = self._closes, self._events
        self._early, self._dirty, self._closes, self._events = [], [], [], []
        self._awake, self._commands_reported = {}, 0
        return Effects(
            block,
            sends,
            closes,
            with_backlog,
            early,
            progress,
            events,
            guards,
            guarding,
            queue_points,
        )

    def send(self, connection: Connection, frame: bytes | None) -> None:
        """Queue a frame for a connection, after all that was queued before."""
        if frame is None or connection.closing:
            return
        if not connection.out:
            self._dirty.append(connection)
        connection.out.append(frame)

    def acknowledge(
        self,
        connection: Connection,
        message: Message,
        *kinds: str,
        more: Mapping[str, str | int] | None = None,
    ) -> None:
        """Send a success ack of each of these kinds that a command has requested."""
        wanted = requested(message.ack_type)
        for kind in kinds:
            if kind in wanted:
                self.send(connection, ack(kind, message.command_id, more=more))

    def confirm(self, connection: Connection, frame: bytes) -> None:
        """Send a persisted ack when all that was recorded so far is safe everywhere."""
        if self._durability.waits:
            self._durability.hold(connection, frame)
        else:
            self.send(connection, frame)

    def touch_early(self, connection: Connection) -> list[bytes]:
        """The queue for what may go out before the journal is written, after what is queued."""
        if connection.out:
            return connection.out
        if not connection.early:
            self._early.append(connection)
        return connection.early

    def touch(self, connection: Connection) -> list[bytes]:
        """The queue of a connection, to append several frames to."""
        if not connection.out:
            self._dirty.append(connection)
        return connection.out

    def wake(self, connection: Connection) -> None:
        """A connection may have got a backlog; one to another instance has one."""
        self._awake[connection.id] = connection

    def close(self, connection: Connection, reason: str, detail: str = "") -> None:
        """End a connection after what it was sent; `reason` and `detail` are for the log."""
        if not connection.closing:
            connection.end_reason = f"{reason}: {detail}" if detail else reason
            self._closes.append((connection.id, reason))
            connection.stop()

    def fail(self, connection: Connection, error: Exception) -> None:
        """End a connection whose work has met a fault of the broker, or of its disk."""
        if connection.closing:
            return
        self.report_fault(describe(connection), error)
        if connection.commands is None:
            self.send(connection, end_ack(INTERNAL_ERROR))
        self.close(connection, INTERNAL_ERROR, f"{type(error).__name__}: {error}")

    def refuse(self, connection: Connection, message: Message, error: Refused) -> None:
        """Answer and log a command that is refused."""
        self.report_refusal(connection, message, error.reason, error.detail)
        self.send(connection, failure_ack(message, error.reason, detail=error.detail))

    def report(self, severity: Severity, text: str) -> None:
        """Add a line to the broker's log."""
        self._events.append(Event(severity, text))

    def report_fault(self, what: str, error: Exception) -> None:
        """Count a fault, and log it: one of a disk in a line, every other with its traceback."""
        self.faults += 1
        if isinstance(error, StoreError):
            told = f": {error}"
        else:
            told = "\n" + "".join(traceback.format_exception(error)).rstrip()
        self.report(Severity.ERROR, f"{what}: internal error{told}")

    def report_refusal(
        self, connection: Connection, message: Message, reason: str, detail: str
    ) -> None:
        """Log why a command was refused."""
        shown = f"{reason}: {detail[:MAX_DETAIL_CHARACTERS]}" if detail else reason
        self.report_command(connection, message, f"refused: {shown}")

    def report_command(self, connection: Connection, message: Message, outcome: str) -> None:
        """Log what a client has to know about its command: a limited number in a batch."""
        self._commands_reported += 1
        if self._commands_reported > MAX_COMMANDS_REPORTED:
            return
        what = f"{message.kind} on {quoted(message.topic)}" if message.topic else message.kind
        name = connection.name or message.client_name  # a refused logon has set none
        origin = f"{what} of connection {connection.id} {quoted(name)}"
        self.report(Severity.WARNING, f"{origin} {outcome}")

    def report_end(self, connection: Connection, reason: str, now: float) -> None:
        """Count and log the end of a connection.

        Args:
            connection: It has ended.
            reason: Why, unless the engine has closed it; what follows a colon is not counted apart.
            now: The present moment.
        """
        text = connection.end_reason or reason
        kind = text.partition(":")[0]
        self.ends[kind] = self.ends.get(kind, 0) + 1
        told = f"{describe(connection)} ended: {printable(text)[:MAX_END_CHARACTERS]}"
        if kind in _NOT_REMARKABLE:
            self.report(Severity.INFO, told)
            return
        if now - self._ends_since >= 1:
            if (more := self._ends_in_second - MAX_ENDS_REPORTED) > 0:
                self.report(Severity.WARNING, f"{more} further connections ended in one second")
            self._ends_since, self._ends_in_second = now, 0
        self._ends_in_second += 1
        if self._ends_in_second <= MAX_ENDS_REPORTED:
            self.report(Severity.WARNING, told)


def describe(connection: Connection) -> str:
    """A connection for the log: its number, its client and the other end's address."""
    name = f" of client {quoted(connection.name)}" if connection.name else ""
    return f"connection {connection.id}{name} at {connection.peer or 'no address'}"

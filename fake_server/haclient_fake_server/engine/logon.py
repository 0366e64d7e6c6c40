"""Logging on, and the heartbeats of a connection.

The logon ack carries two numbers. `s` is the highest sequence *seen* of this publisher, above which
it must number new messages. `bm` is the highest sequence persisted here and on every synchronous
destination, to which it can trim its store. A failed logon ends the connection, and so does a
second logon. With a transaction log a client name belongs to one connection: the same user
displaces the older connection, another user is refused.

A client starts heartbeats with `start,<seconds>`. From then on the broker sends it one per
interval, and closes the connection when nothing at all was received on it for two and a half
intervals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from haclient.protocol.messages import Message
from haclient_fake_server.engine.acks import (
    BEAT,
    Reason,
    Refused,
    ack,
    end_ack,
    failure_ack,
    name_in_use_ack,
    quoted,
    requested,
)
from haclient_fake_server.engine.connections import Connection
from haclient_fake_server.engine.entitlements import Rights
from haclient_fake_server.engine.filters.bodies import COMPOSITE_PREFIX
from haclient_fake_server.engine.log_writer import LogWriter
from haclient_fake_server.engine.outbox import Outbox
from haclient_fake_server.engine.replication.durability import Durability
from haclient_fake_server.engine.requests import read_options
from haclient_fake_server.engine.settings import MAX_MESSAGE_TYPE, EngineSettings
from haclient_fake_server.engine.timers import NEVER, Clock

DEFAULT_MESSAGE_TYPE = "json"

_ACKED_STARTS: Final = 16
"""Starts of the log that a logon ack has: every client gets them, and they are in one line."""

_LOG_ONLY: Final = frozenset({Reason.AUTH_FAILURE, Reason.NAME_IN_USE})
"""Reasons whose detail only the broker's log gets: it names users, and the client is none yet."""


@dataclass(eq=False, slots=True)
class Logons:
    """Admits clients.

    Attributes:
        settings: Who may log on.
        names: Logged-on connections by client name.
        log: Knows the publishers.
        durability: Knows what is safe of them.
        outbox: Where the answers go.
        rights: By user. The connections of a user share them, and what they remember of topics:
            then subscriptions of all these with one pattern are one search, too.
    """

    settings: EngineSettings
    names: dict[str, Connection]
    log: LogWriter
    durability: Durability
    outbox: Outbox
    rights: dict[str, Rights] = field(default_factory=dict[str, Rights])

    def log_on(self, connection: Connection, message: Message) -> None:
        """Execute a logon, the first command of every connection."""
        if connection.logged_on:
            self._refuse(connection, message, Reason.DUPLICATE_LOGON, "auth")
            return
        users = self.settings.users
        if users is not None and users.get(message.user_id) != message.password:
            self._refuse(
                connection,
                message,
                Reason.AUTH_FAILURE,
                "auth",
                f"user {quoted(message.user_id)}",
            )
            return
        if problem := _problem_of_type(self.settings, message.message_type):
            self._refuse(connection, message, Reason.INVALID_MESSAGE_TYPE, "auth", problem)
            return
        try:
            options = read_options(message)
        except Refused as error:
            self._refuse(connection, message, error.reason, "auth", error.detail)
            return
        name = message.client_name or self._unused_name(connection)
        holder = self.names.get(name) if self.log.is_logging else None
        if holder is not None and holder.user != message.user_id:
            whose = f"{quoted(holder.user)}, refused to {quoted(message.user_id)}"
            detail = f"{quoted(name)} belongs to user {whose}"
            self._refuse(connection, message, Reason.NAME_IN_USE, "name in use", detail)
            return
        if holder is not None:
            self.outbox.send(holder, name_in_use_ack(name))
            self.outbox.close(holder, "name in use")
        self._admit(connection, message, name=name, ack_interval_s=options.ack_conflation_s)
        self._confirm(connection, message)

    def _admit(
        self,
        connection: Connection,
        message: Message,
        *,
        name: str,
        ack_interval_s: float | None,
    ) -> None:
        connection.logged_on = True
        connection.name = name
        connection.user = message.user_id
        if self.settings.entitlements:
            user = message.user_id  # one of the configured users
            rights = self.rights.get(user)
            if rights is None:
                rights = self.rights[user] = Rights(user, self.settings.entitlements)
            connection.reading, connection.publishing = rights.reading, rights.publishing
        connection.message_type = message.message_type or DEFAULT_MESSAGE_TYPE
        connection.publisher = self.log.publishers.of_client(name)
        connection.origin = self.log.publishers.of_origin(name)
        connection.ack_interval_s = (
            self.settings.ack_interval_s if ack_interval_s is None else ack_interval_s
        )
        self.names[name] = connection

    def _confirm(self, connection: Connection, message: Message) -> None:
        wanted = requested(message.ack_type)
        if "received" in wanted:
            self.outbox.send(connection, ack("received", message.command_id))
        if "processed" not in wanted:
            return
        publisher = connection.publisher
        more: dict[str, str | int] = {
            "s": publisher.seen,
            "bm": publisher.bookmark(self.durability.confirmed_of(publisher)),
            "client_name": connection.name,
            "version": self.settings.version,
            "log_starts": self._log_starts(),
        }
        reason = "authentication disabled" if self.settings.users is None else ""
        self.outbox.send(connection, ack("processed", message.command_id, reason=reason, more=more))

    def _unused_name(self, connection: Connection) -> str:
        """A unique name for a client without one, across instances and restarts.

        The name identifies the publisher: with a reused one its messages would be duplicates.
        """
        return f"unnamed-{self.log.journal.log_starts[-1].id:016x}-{connection.id}"

    def _log_starts(self) -> str:
        """The identity of the log: `<id hex>@<first position>` of its last starts, oldest first."""
        starts = self.log.journal.log_starts[-_ACKED_STARTS:]
        return ",".join(f"{start.id:016x}@{start.first_position}" for start in starts)

    def _refuse(
        self,
        connection: Connection,
        message: Message,
        reason: str,
        closing: str,
        detail: str = "",
    ) -> None:
        more = {"version": self.settings.version}
        sent_detail = "" if reason in _LOG_ONLY else detail
        answer = failure_ack(message, reason, detail=sent_detail, more=more)
        self.outbox.send(connection, answer or end_ack(reason, detail=sent_detail))
        text = f"logon of client {quoted(message.client_name)} refused: {reason}"
        self.outbox.close(connection, closing, f"{text}: {detail}" if detail else text)


def _problem_of_type(settings: EngineSettings, message_type: str) -> str:
    """Why a message type is refused; empty if it is accepted.

    A client with a misspelt type would publish to topics that nobody reads.
    """
    if len(message_type) > MAX_MESSAGE_TYPE:
        return f"{len(message_type)} characters, at most {MAX_MESSAGE_TYPE}"
    if not message_type or settings.knows_type(message_type):
        return ""
    known = ", ".join(sorted({*settings.known_types, f"{COMPOSITE_PREFIX}*"}))
    return f"{message_type[:40]!r} is none of {known}; the broker's --message-type adds one"


MIN_INTERVAL_S: Final = 0.001
"""Shorter heartbeat intervals are refused: they would keep the broker busy with nothing else."""


def heartbeat(clock: Clock, outbox: Outbox, connection: Connection, message: Message) -> None:
    """Start, stop or note a heartbeat.

    Raises:
        Refused: The option is not `start,<seconds>`, `beat` or `stop`.
    """
    words = [word.strip() for word in message.options.split(",")]
    words = [word for word in words if word not in {"", "none"}]
    match words:
        case ["start", text]:
            interval_s = _interval(text)
            connection.beat_interval_s = interval_s
            connection.beat_due = clock.now + interval_s
            watch(clock, outbox, connection)
        case ["stop"]:
            connection.beat_interval_s = 0.0
            connection.beat_due = NEVER
            watch(clock, outbox, connection)
        case [] | ["beat"]:
            pass  # `last_received` is set for every command
        case _:
            raise Refused(
                Reason.INVALID_OPTIONS,
                f"{message.options!r} is none of start,<seconds>, beat and stop",
            )
    outbox.acknowledge(connection, message, "received", "processed")


def act_on_time(clock: Clock, outbox: Outbox, connection: Connection) -> None:
    """Send the heartbeat that is due, or close a connection that was silent for too long."""
    if connection.closing:
        return
    if clock.now >= connection.silent_at:
        silent_s = clock.now - connection.last_received
        if connection.commands is None:
            outbox.send(connection, end_ack("heartbeat"))
        outbox.close(connection, "heartbeat", f"nothing was received for {silent_s:.1f} s")
        return
    if clock.now >= connection.beat_due:
        outbox.send(connection, BEAT)
        connection.beat_due = clock.now + connection.beat_interval_s
    watch(clock, outbox, connection)


def watch(clock: Clock, outbox: Outbox, connection: Connection) -> None:
    """Set the timer for the next heartbeat of a connection, or for its time-out."""
    key = ("heartbeat", connection.id)  # not the connection: a cancelled entry must not keep it
    clock.timers.set(
        key,
        connection.next_due,
        lambda: act_on_time(clock, outbox, connection),
        client=connection.id,
    )


def _interval(text: str) -> float:
    try:
        interval_s = float(text)
    except ValueError:
        interval_s = 0.0
    if not MIN_INTERVAL_S <= interval_s < math.inf:
        raise Refused(Reason.INVALID_OPTIONS, f"heartbeat interval {text!r}, wanted seconds")
    return interval_s

"""Heartbeats, and everything else that only time brings about (AD9, AK2, RB16).

The client starts heartbeats with `start,<seconds>`; from then on it hears one per interval, and
is cut when nothing at all came from it for two and a half. Persisted acks that were collected for
a connection are sent when its interval is over: that of its publishes, and one for each bookmark
subscription that asked and has moved since.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from haclient_fake_server.engine.acks import BEAT, Reason, Refused, ack, requested
from haclient_fake_server.engine.connections import NEVER
from haclient_fake_server.engine.durability import MAX_HELD
from haclient_fake_server.engine.publishing import pay_persisted
from haclient_fake_server.engine.subscriptions import Phase

if TYPE_CHECKING:
    from haclient.protocol.messages import Message
    from haclient_fake_server.engine.connections import Connection
    from haclient_fake_server.engine.state import State
    from haclient_fake_server.engine.subscriptions import Subscription

MIN_INTERVAL_S: Final = 0.001
"""Shorter heartbeat intervals are refused: they would keep the broker busy with nothing else."""

__all__ = ["act_on_time", "heartbeat", "pay_acks"]


def heartbeat(state: State, connection: Connection, message: Message) -> None:
    """Start, stop or note a heartbeat (protocol 3.12).

    Raises:
        Refused: The option is none of `start,<seconds>`, `beat` and `stop`.
    """
    words = [word.strip() for word in message.options.split(",") if word.strip()]
    match words:
        case ["start", text]:
            interval_s = _interval(text)
            connection.beat_interval_s = interval_s
            connection.beat_due = state.now + interval_s
            state.wake_at(connection.next_due)
        case ["stop"]:
            connection.beat_interval_s = 0.0
            connection.beat_due = NEVER
        case [] | ["beat"]:
            pass  # having been heard is all there is to it
        case _:
            raise Refused(
                Reason.INVALID_OPTIONS,
                f"{message.options!r} is none of start,<seconds>, beat and stop",
            )
    for kind in ("received", "processed"):
        if kind in requested(message.ack_type):
            state.send(connection, ack(kind, message.command_id))


def act_on_time(state: State, connection: Connection) -> None:
    """Do for a connection what is due by now."""
    if state.now >= connection.silent_at:
        state.close(connection, "heartbeat")
        return
    if state.now >= connection.beat_due:
        state.send(connection, BEAT)
        connection.beat_due = state.now + connection.beat_interval_s
    if state.now >= connection.ack_due:
        pay_acks(state, connection)


def pay_acks(state: State, connection: Connection) -> None:
    """Send all persisted acks that were collected for a connection."""
    connection.ack_due = NEVER
    if connection.owes_persisted and connection.held < MAX_HELD:
        pay_persisted(state, connection)
    for item in connection.subscriptions.values():
        if not item.wants_persisted:
            continue
        passed = _passed(state, item)
        if passed not in {"", "0", item.acked}:
            item.acked = passed
            more = {"sub_id": item.id, "bm": passed}
            state.send(connection, ack("persisted", item.cid, more=more))


def _passed(state: State, item: Subscription) -> str:
    """How far a subscription may consider the log safe: no further than it was read, either."""
    live = item.phase is Phase.LIVE
    limit, durability = state.durable_limit, state.durability
    if (state.batch.position if live else item.position) <= limit:
        return state.last_bookmark if live else item.passed
    if item.entered >= limit or durability.passed is None:
        return ""
    publisher_id, sequence = durability.passed
    return f"{publisher_id}|{sequence}|"


def _interval(text: str) -> float:
    try:
        interval_s = float(text)
    except ValueError:
        interval_s = 0.0
    if not MIN_INTERVAL_S <= interval_s < math.inf:
        raise Refused(Reason.INVALID_OPTIONS, f"heartbeat interval {text!r}, wanted seconds")
    return interval_s

"""Heartbeats: the client starts them with `start,<seconds>`.

From then on it is sent one per interval, and is cut when nothing at all came from it for two and a
half intervals.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from haclient_fake_server.engine.acks import BEAT, Reason, Refused, ack, requested
from haclient_fake_server.engine.timers import NEVER

if TYPE_CHECKING:
    from haclient.protocol.messages import Message
    from haclient_fake_server.engine.connections import Connection
    from haclient_fake_server.engine.state import State

MIN_INTERVAL_S: Final = 0.001
"""Shorter heartbeat intervals are refused: they would keep the broker busy with nothing else."""

__all__ = ["act_on_time", "heartbeat", "watch"]


def heartbeat(state: State, connection: Connection, message: Message) -> None:
    """Start, stop or note a heartbeat.

    Raises:
        Refused: The option is none of `start,<seconds>`, `beat` and `stop`.
    """
    words = [word.strip() for word in message.options.split(",") if word.strip()]
    match words:
        case ["start", text]:
            interval_s = _interval(text)
            connection.beat_interval_s = interval_s
            connection.beat_due = state.now + interval_s
            watch(state, connection)
        case ["stop"]:
            connection.beat_interval_s = 0.0
            connection.beat_due = NEVER
            watch(state, connection)
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
    """Send the heartbeat that is due, or close a connection that was silent for too long."""
    if connection.closing:
        return
    if state.now >= connection.silent_at:
        state.close(connection, "heartbeat")
        return
    if state.now >= connection.beat_due:
        state.send(connection, BEAT)
        connection.beat_due = state.now + connection.beat_interval_s
    watch(state, connection)


def watch(state: State, connection: Connection) -> None:
    """Come back to a connection when its heartbeats want it."""
    key = ("heartbeat", connection.id)  # not the connection: a cancelled entry must not keep it
    state.timers.set(key, connection.next_due, lambda: act_on_time(state, connection))


def _interval(text: str) -> float:
    try:
        interval_s = float(text)
    except ValueError:
        interval_s = 0.0
    if not MIN_INTERVAL_S <= interval_s < math.inf:
        raise Refused(Reason.INVALID_OPTIONS, f"heartbeat interval {text!r}, wanted seconds")
    return interval_s

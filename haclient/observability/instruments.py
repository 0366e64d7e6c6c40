"""The instruments: what is exported of a client, under which name and in which unit. Pure.

One table serves every exporter. An instrument reads its values from a `ClientSnapshot`, so that all
values of an export are of one moment.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from haclient.observability.health import Health
from haclient.observability.metrics import ClientMetrics, SubscriptionMetrics
from haclient.session.connection_state import ConnectionState

MAX_SUBSCRIPTIONS: Final = 100
"""Of how many subscriptions of a client values are exported: each makes time series of its own."""

Value: TypeAlias = tuple[Mapping[str, str], float]
"""Labels besides the client's name, and the value."""


@dataclass(frozen=True, slots=True)
class ClientSnapshot:
    """One client at one moment.

    Attributes:
        metrics: Its snapshot; `None` if it did not answer.
        health: Its health at the same moment; `None` likewise.
    """

    metrics: ClientMetrics | None
    health: Health | None


class InstrumentKind(enum.Enum):
    """What the values of an instrument do."""

    COUNTER = "counter"  # only rises, as long as the client exists
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Instrument:
    """One thing that is exported.

    Attributes:
        name: Its name without prefix, in words joined by `_`.
        kind: What its values do.
        unit: `seconds`, `bytes`, or empty for a count.
        help: What it is, in one sentence.
        values: Returns its values in a reading.
    """

    name: str
    kind: InstrumentKind
    unit: str
    help: str
    values: Callable[[ClientSnapshot], Iterable[Value]]


def _of_client(name: str, kind: InstrumentKind, text: str, unit: str = "") -> Instrument:
    def values(reading: ClientSnapshot) -> Iterable[Value]:
        value = None if reading.metrics is None else getattr(reading.metrics, name)
        return [] if value is None else [({}, float(value))]

    return Instrument(name, kind, unit, text, values)


def _of_subscriptions(name: str, kind: InstrumentKind, text: str, unit: str = "") -> Instrument:
    def values(reading: ClientSnapshot) -> Iterable[Value]:
        for each in _subscriptions(reading)[:MAX_SUBSCRIPTIONS]:
            value = getattr(each, name)
            if value is not None:
                yield {"sub_id": each.sub_id, "topic": each.topic}, float(value)

    return Instrument(f"subscription_{name}", kind, unit, text, values)


def _subscriptions(reading: ClientSnapshot) -> tuple[SubscriptionMetrics, ...]:
    return () if reading.metrics is None else reading.metrics.subscriptions


def _up(reading: ClientSnapshot) -> Iterable[Value]:
    return [({}, float(reading.metrics is not None))]


def _states(reading: ClientSnapshot) -> Iterable[Value]:
    if reading.metrics is not None:
        for state in ConnectionState:
            yield {"state": state.value}, float(state is reading.metrics.state)


def _servers(reading: ClientSnapshot) -> Iterable[Value]:
    if reading.metrics is not None and reading.metrics.server:
        yield {"server": reading.metrics.server}, 1.0


def _healthy(question: str) -> Callable[[ClientSnapshot], Iterable[Value]]:
    def values(reading: ClientSnapshot) -> Iterable[Value]:
        return [] if reading.health is None else [({}, float(getattr(reading.health, question)))]

    return values


def _count(reading: ClientSnapshot) -> Iterable[Value]:
    return [] if reading.metrics is None else [({}, float(len(reading.metrics.subscriptions)))]


_COUNTER, _GAUGE = InstrumentKind.COUNTER, InstrumentKind.GAUGE

INSTRUMENTS: Final = (
    Instrument("up", _GAUGE, "", "Whether the client answered within the limit.", _up),
    Instrument(
        "alive", _GAUGE, "", "Whether the client can work on by itself.", _healthy("is_alive")
    ),
    Instrument(
        "ready", _GAUGE, "", "Whether it is connected and has recovered.", _healthy("is_ready")
    ),
    Instrument("degraded", _GAUGE, "", "Whether something holds it up.", _healthy("is_degraded")),
    Instrument("state", _GAUGE, "", "1 for the state of the connection, 0 for others.", _states),
    Instrument("server", _GAUGE, "", "1 for the current server, or for the last one.", _servers),
    _of_client("connections", _COUNTER, "Connections that were made."),
    _of_client("logons", _COUNTER, "Logons that a server accepted."),
    _of_client("disconnections", _COUNTER, "Connections that ended."),
    _of_client("failed_attempts", _COUNTER, "Attempts that led to no usable connection."),
    _of_client("bytes_received", _COUNTER, "Bytes that were read."),
    _of_client("bytes_sent", _COUNTER, "Bytes that were written."),
    _of_client("frames_received", _COUNTER, "Frames that were read."),
    _of_client("messages_delivered", _COUNTER, "Messages that reached a subscription's queue."),
    _of_client("duplicates", _COUNTER, "Messages that a bookmark store filtered out."),
    _of_client("failed_writes", _COUNTER, "Publishes that the server refused."),
    _of_client("unpersisted", _GAUGE, "Publishes that are not acknowledged as persisted."),
    _of_client("unpersisted_bytes", _GAUGE, "The size of the unpersisted publishes.", "bytes"),
    _of_client(
        "oldest_unpersisted_age", _GAUGE, "How long the oldest of them has waited.", "seconds"
    ),
    _of_client("unacknowledged", _GAUGE, "Acknowledgements that the server has not confirmed."),
    _of_client("dropped_acks", _COUNTER, "Acknowledgements whose leases had ended."),
    _of_client("unsent_bytes", _GAUGE, "Bytes that wait for the socket.", "bytes"),
    _of_client(
        "heartbeat_round_trip", _GAUGE, "Time of the answer to the heartbeat's start.", "seconds"
    ),
    _of_client("silence", _GAUGE, "Time since bytes arrived from the server.", "seconds"),
    Instrument("subscriptions", _GAUGE, "", "Subscriptions that have not ended.", _count),
    _of_subscriptions("queued", _GAUGE, "Messages that were not taken yet."),
    _of_subscriptions("queued_bytes", _GAUGE, "Bytes that were not taken yet.", "bytes"),
    _of_subscriptions("is_full", _GAUGE, "Whether it holds up reading."),
    _of_subscriptions("is_caught_up", _GAUGE, "Whether its messages are live."),
    _of_subscriptions("gaps", _COUNTER, "How often messages may be missing."),
    _of_subscriptions("undiscarded", _GAUGE, "Messages that were delivered and not discarded."),
    _of_subscriptions("redelivered", _COUNTER, "Redelivered messages that were not filtered out."),
    _of_subscriptions("message_lag", _GAUGE, "How many messages it is behind the server."),
    _of_subscriptions("receive_lag", _GAUGE, "How far it is behind in receiving.", "seconds"),
    _of_subscriptions("process_lag", _GAUGE, "How far it is behind in discarding.", "seconds"),
)
"""All instruments, in the order of their export."""

"""What a client can be measured by: a snapshot of its counters and gauges, and its health.

A snapshot costs time for each subscription, not for each message, and stops nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import trio

from haclient.session.connection_state import ConnectionState, Counters
from haclient.session.subscriptions import Subscription
from haclient.transport.core import Core
from haclient.transport.message_queue import Delivery

__all__ = ["ClientMetrics", "Health", "SubscriptionMetrics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionMetrics:
    """One subscription that has not ended.

    Attributes:
        sub_id: Its id.
        topic: Its topic.
        queued_bytes: Bytes that were received and not yet taken by the handler or the stream.
        is_full: Whether it holds more than it may, so that the client has stopped reading.
        is_caught_up: Whether a replay or query has ended, so that messages are live.
        gaps: How often messages may be missing, because a plain subscription lost its connection.
        undiscarded: Messages that were delivered and not discarded; `None` if no bookmark store
            tracks it.
    """

    sub_id: str
    topic: str
    queued_bytes: int
    is_full: bool
    is_caught_up: bool
    gaps: int
    undiscarded: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMetrics:
    """A client at one moment. Counters only rise, as long as the client exists.

    Attributes:
        state: The state of the connection.
        server: Host and port of the current server, or of the last one; empty before the first.
        connections: Connections that were made so far.
        logons: Logons that a server accepted.
        disconnections: Connections that ended.
        failed_attempts: Attempts of an `HAClient` that led to no connection, or to a server that it
            could not use.
        bytes_received: Bytes that were read.
        bytes_sent: Bytes that were written.
        frames_received: Frames that were read: messages, acks and heartbeats.
        messages_delivered: Messages that were put into the queue of a subscription.
        duplicates: Messages that a bookmark store filtered out.
        failed_writes: Publishes that the server refused.
        unpersisted: Publishes in the store that are not acknowledged as persisted.
        unpersisted_bytes: Their size, with headers.
        oldest_unpersisted_age: How long the oldest of them has waited, in seconds.
        unsent_bytes: Bytes that wait for the socket.
        heartbeat_round_trip: Seconds that the server took to answer the start of the heartbeat,
            after the last logon; `None` without one.
        silence: Seconds since bytes arrived from the server; `None` without a heartbeat.
        subscriptions: Those that have not ended.
    """

    state: ConnectionState
    server: str
    connections: int
    logons: int
    disconnections: int
    failed_attempts: int
    bytes_received: int
    bytes_sent: int
    frames_received: int
    messages_delivered: int
    duplicates: int
    failed_writes: int
    unpersisted: int
    unpersisted_bytes: int
    oldest_unpersisted_age: float
    unsent_bytes: int
    heartbeat_round_trip: float | None
    silence: float | None
    subscriptions: tuple[SubscriptionMetrics, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Whether a client works, for the probes of a supervisor such as Kubernetes.

    Attributes:
        is_alive: Whether the client can still do something by itself. If not, only a restart helps.
        is_ready: Whether it is connected and everything is recovered, so that commands are
            answered.
        reasons: Why it is not alive or not ready, and what holds it up, in lines for people to
            read; they contain no password.
    """

    is_alive: bool
    is_ready: bool
    reasons: tuple[str, ...]


def measure(core: Core) -> ClientMetrics:
    """The snapshot of a client."""
    log, connection = core.publisher.log, core.connection
    counts = {each.name: getattr(core.counters, each.name) for each in fields(Counters)}
    heartbeat = core.heartbeat if connection is not None and core.status.is_logged_on else None
    return ClientMetrics(
        **counts,
        state=core.status.state,
        server=core.status.address,
        unpersisted=0 if log is None else log.unpersisted_count,
        unpersisted_bytes=0 if log is None else log.unpersisted_bytes,
        oldest_unpersisted_age=core.publisher.oldest_age_s,
        unsent_bytes=0 if connection is None else _unsent_bytes(core),
        heartbeat_round_trip=None if heartbeat is None else core.heartbeat_round_trip_s,
        silence=None if heartbeat is None else heartbeat.silence_s(trio.current_time()),
        subscriptions=tuple(map(_of_subscription, core.subscriptions())),
    )


def _unsent_bytes(core: Core) -> int:
    writer, log = core.publisher.writer, core.publisher.log
    waiting = 0 if writer is None else writer.outbox_bytes
    return waiting + (0 if log is None else log.unsent_bytes)


def _of_subscription(subscription: Subscription) -> SubscriptionMetrics:
    sink = subscription.sink if isinstance(subscription.sink, Delivery) else None
    log = subscription.log
    return SubscriptionMetrics(
        sub_id=subscription.sub_id,
        topic="" if subscription.request is None else str(subscription.request.fields["t"]),
        queued_bytes=0 if sink is None else sink.held_bytes,
        is_full=sink is not None and sink.full,
        is_caught_up=sink is not None and sink.caught_up.is_set(),
        gaps=0 if sink is None else sink.gaps,
        undiscarded=None if log is None else log.undiscarded_count,
    )


def examine(core: Core) -> Health:
    """The health of a client."""
    status = core.status
    reasons: list[str] = []
    is_alive = core.entered and status.stop_reason is None
    if not core.entered:
        reasons.append("the client was not entered, or was left")
    elif status.stop_reason is not None:
        reasons.append(f"the client has stopped: {status.stop_reason}")
    is_ready = is_alive and (status.is_live if status.reconnects else status.is_logged_on)
    if is_alive and not is_ready:
        why = f": {status.lost_reason}" if status.lost_reason is not None else ""
        reasons.append(f"{status.state}{why}")
    reasons += _what_holds_up(core)
    return Health(is_alive=is_alive, is_ready=is_ready, reasons=tuple(reasons))


def _what_holds_up(core: Core) -> list[str]:
    log, reasons = core.publisher.log, list[str]()
    if log is not None and log.unpersisted_bytes >= core.publisher.gate.cap_bytes:
        reasons.append(
            f"publishing waits: {log.unpersisted_bytes} bytes are not persisted, the limit is "
            f"{core.publisher.gate.cap_bytes}"
        )
    reasons += [
        f"reading waits for subscription {each.sub_id}: it holds {each.queued_bytes} bytes"
        for each in map(_of_subscription, core.subscriptions())
        if each.is_full
    ]
    return reasons

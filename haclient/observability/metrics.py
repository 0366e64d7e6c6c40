"""Metrics of a client: a snapshot of its counters and gauges.

The cost of a snapshot grows with the number of subscriptions, not of messages. It stops nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import trio

from haclient.session.connection_state import ConnectionState, Counters
from haclient.session.subscriptions import Phase, Subscription
from haclient.transport.core import Core
from haclient.transport.message_queue import MessageQueue

__all__ = ["ClientMetrics", "SubscriptionMetrics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionMetrics:
    """One subscription that has not ended.

    Attributes:
        sub_id: Its id.
        topic: Its topic.
        queued: Messages that were received and not yet taken by the handler or the stream.
        queued_bytes: Bytes that were received and not yet taken by the handler or the stream.
        is_full: Whether its queue holds more than `max_queued_bytes`, so that the server has to
            hold messages back.
        is_caught_up: Whether a replay or query has ended, so that messages are live.
        gaps: How often messages may be missing, because a plain subscription lost its connection.
        undiscarded: Messages that were delivered and not discarded; `None` if no bookmark store
            tracks it.
        redelivered: Redelivered messages that were not filtered out: when their connection or
            process ended, they were not discarded, and nothing in this process was processing them.
            `None` if no bookmark store counts them.
        message_lag: How many messages it is behind the server: those received and not discarded.
            `None` while the number of messages that are still at the server is unknown (without a
            connection, during a replay or a pause), and without a bookmark store.
        receive_lag: How many seconds it is behind the server in receiving; `None` without a
            connection, and until a replay has reached the end of the log.
        process_lag: How many seconds it is behind in receiving and discarding, to about two
            seconds; `None` while that is unknown, and without a bookmark store.
    """

    sub_id: str
    topic: str
    queued: int
    queued_bytes: int
    is_full: bool
    is_caught_up: bool
    gaps: int
    undiscarded: int | None
    redelivered: int | None
    message_lag: int | None
    receive_lag: float | None
    process_lag: float | None


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
        unacknowledged: Acknowledgements of queue messages that the server has not confirmed, or
            that are not sent yet.
        dropped_acks: Acknowledgements that were not sent, since a lost connection had ended their
            leases: more were unconfirmed than the servers had granted.
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
    unacknowledged: int
    dropped_acks: int
    unsent_bytes: int
    heartbeat_round_trip: float | None
    silence: float | None
    subscriptions: tuple[SubscriptionMetrics, ...]


def metrics_of(core: Core) -> ClientMetrics:
    """The snapshot of a client."""
    log, connection = core.publisher.log, core.connection
    counts = {each.name: getattr(core.counters, each.name) for each in fields(Counters)}
    heartbeat = core.heartbeat if connection is not None and core.status.is_logged_on else None
    return ClientMetrics(
        **counts,
        state=core.status.state,
        server=core.status.address,
        unpersisted=log.unpersisted_count,
        unpersisted_bytes=log.unpersisted_bytes,
        oldest_unpersisted_age=core.publisher.oldest_age_s if core.entered else 0.0,
        unacknowledged=core.queue_acks.outstanding,
        dropped_acks=core.queue_acks.dropped,
        unsent_bytes=0 if connection is None else _unsent_bytes(core),
        heartbeat_round_trip=None if heartbeat is None else core.heartbeat_round_trip_s,
        silence=None if heartbeat is None else heartbeat.silence_s(trio.current_time()),
        subscriptions=_of_subscriptions(core),
    )


def _unsent_bytes(core: Core) -> int:
    writer = core.publisher.writer
    waiting = 0 if writer is None else writer.outbox_bytes
    return waiting + core.publisher.log.unsent_bytes


def _of_subscriptions(core: Core) -> tuple[SubscriptionMetrics, ...]:
    now = trio.current_time() if trio.lowlevel.in_trio_run() else None
    return tuple(_of_subscription(core, each, now) for each in core.kept.all())


def _of_subscription(
    core: Core, subscription: Subscription, now: float | None
) -> SubscriptionMetrics:
    receive_lag = None if now is None else _receive_lag(core, subscription, now)
    process_lag = None if now is None else _process_lag(core, subscription, now, receive_lag)
    queue = subscription.queue if isinstance(subscription.queue, MessageQueue) else None
    log = subscription.log
    return SubscriptionMetrics(
        sub_id=subscription.sub_id,
        topic=str(subscription.request.fields.get("t", "")),
        queued=0 if queue is None else queue.queued_count,
        queued_bytes=0 if queue is None else queue.queued_bytes,
        is_full=queue is not None and queue.full,
        is_caught_up=queue is not None and queue.is_caught_up,
        gaps=0 if queue is None else queue.gaps,
        undiscarded=None if log is None else log.undiscarded_count,
        redelivered=None if log is None else log.redelivered_count,
        message_lag=_message_lag(core, subscription),
        receive_lag=receive_lag,
        process_lag=process_lag,
    )


def _message_lag(core: Core, subscription: Subscription) -> int | None:
    log, is_open = subscription.log, subscription.phase is Phase.OPEN
    if log is None or core.connection is None or not is_open:
        return None
    if (
        subscription.is_paused
        or subscription.is_paused_by_client
        or not subscription.position.is_complete
    ):
        return None
    return log.undiscarded_count


def _receive_lag(core: Core, subscription: Subscription, now: float) -> float | None:
    connection, request = core.connection, subscription.request
    if connection is None or subscription.phase is not Phase.OPEN:
        return None
    link_lag = connection.lag_s(now)
    if not request.bookmark:
        return link_lag
    return subscription.position.receive_lag_s(link_lag, now)


def _process_lag(
    core: Core, subscription: Subscription, now: float, receive_lag: float | None
) -> float | None:
    log = subscription.log
    if log is None:
        return None
    if receive_lag is not None and not log.undiscarded_count:
        return receive_lag
    # Both are times up to which everything is discarded. The store's time advances only under
    # steady work, the other one only when there was a moment without any: the later one counts.
    until_us, busy_since = log.server_order.discarded_until_us, subscription.position.busy_since
    lags = [] if busy_since is None else [now - busy_since]
    if until_us:
        lags.append((core.resume.now_us(now) - until_us) / 1_000_000)
    return max(0.0, min(lags)) if lags else None

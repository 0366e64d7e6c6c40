"""The health of a client: whether it works, for probes, and what holds it up, in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from haclient.observability.metrics import metrics_of
from haclient.transport.core import Core

__all__ = ["Health"]

NO_PROGRESS_S: Final = 60.0
"""How long something may wait before a client counts as degraded, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Whether a client works, for the probes of a supervisor such as Kubernetes.

    Attributes:
        is_alive: Whether the client can still do something by itself. If not, only a restart helps.
        is_ready: Whether it is connected and everything is recovered, so that commands are
            answered.
        is_degraded: Whether something holds it up: reading or publishing waits, or nothing was
            persisted or discarded for a minute although there is something.
        reasons: Why it is not alive or not ready, and what holds it up, in lines for people to
            read; they contain no password.
    """

    is_alive: bool
    is_ready: bool
    is_degraded: bool
    reasons: tuple[str, ...]


def health_of(core: Core) -> Health:
    """The health of a client."""
    status = core.status
    reasons: list[str] = []
    is_alive = core.entered and status.stop_reason is None
    if not core.entered:
        last = "" if status.failure is None else f"; its last attempt failed: {status.failure}"
        reasons.append(f"the client was not entered, or was left{last}")
    elif status.stop_reason is not None:
        reasons.append(f"the client has stopped: {status.stop_reason}")
    is_ready = is_alive and (status.is_live if status.reconnects else status.is_logged_on)
    if is_alive and not is_ready:
        why = status.failure or status.lost_reason
        reasons.append(f"{status.state}: {why}" if why is not None else str(status.state))
    degraded = list(_degraded_reasons(core))
    return Health(
        is_alive=is_alive,
        is_ready=is_ready,
        is_degraded=bool(degraded),
        reasons=(*reasons, *degraded),
    )


def _degraded_reasons(core: Core) -> Iterator[str]:
    metrics, publisher = metrics_of(core), core.publisher
    if publisher.over_high_water:
        yield (
            f"publishing waits: {metrics.unpersisted_bytes} bytes are not persisted, the "
            f"limit is {publisher.gate.cap_bytes}"
        )
    full = [each for each in metrics.subscriptions if each.is_full]
    for each in full:
        yield f"the queue of subscription {each.sub_id} is full: it holds {each.queued_bytes} bytes"
    if not full and core.connection is not None and not core.connection.is_reading:
        yield "the client does not read: a queue that was full is not half empty yet"
    age = metrics.oldest_unpersisted_age
    if age > NO_PROGRESS_S:
        yield f"nothing is persisted: the oldest publish has waited for {age:.0f} s"
    for each in metrics.subscriptions:
        if each.undiscarded and each.process_lag is not None and each.process_lag > NO_PROGRESS_S:
            yield (
                f"subscription {each.sub_id} does not progress: {each.undiscarded} messages are "
                f"undiscarded, the oldest for about {each.process_lag:.0f} s"
            )

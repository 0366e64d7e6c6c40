"""The report on a client: text for a log or a support request, without bodies and passwords."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import fields
from typing import Final

import trio

from haclient._version import __version__
from haclient.observability.health import health_of
from haclient.observability.metrics import ClientMetrics, SubscriptionMetrics, metrics_of
from haclient.observability.recovery_explanation import explain_recovery
from haclient.session.subscriptions import Subscription
from haclient.transport.core import Core

MAX_SUBSCRIPTIONS: Final = 100
"""How many subscriptions are described; the rest is only counted."""


def report(core: Core) -> str:
    """Describe a client: its connection, health, stores, metrics and subscriptions.

    Args:
        core: The client.
    """
    metrics = metrics_of(core)
    sections = [
        _about(core),
        _stores(core),
        _numbers(metrics),
        *_subscriptions(core, metrics),
        _events(core),
    ]
    return "\n".join(line for section in sections for line in section)


def _about(core: Core) -> Iterator[str]:
    status, health = core.status, health_of(core)
    yield (
        f"client {core.name}, haclient {__version__}, trio {trio.__version__}, "
        f"Python {platform.python_version()} on {platform.system()}"
    )
    yield f"  state          {status.state}"
    yield f"  server         {'none' if core.uri is None else core.uri.safe}"
    yield f"  server version {status.server_version or 'not known'}"
    for word in ("alive", "ready", "degraded"):
        yield f"  is {word:11} {'yes' if getattr(health, f'is_{word}') else 'no'}"
    for reason in health.reasons:
        yield f"    {reason}"
    for what, error in (("last loss", status.lost_reason), ("stopped by", status.stop_reason)):
        if error is not None:
            yield f"  {what:14} {type(error).__name__}: {error}"


def _stores(core: Core) -> Iterator[str]:
    stores = core.settings.publish_store, core.settings.bookmark_store
    for what, store in zip(("publish store", "bookmark store"), stores, strict=True):
        path: object = getattr(store, "path", None)
        kind = "none" if store is None else type(store).__name__
        yield f"  {what:14} {kind}{f' in {path}' if path is not None else ''}"
    log = core.publisher.log
    if core.publisher.publishes.is_kept:
        yield f"  persisted up to {log.last_persisted} of {log.last_sequence}"


def _numbers(metrics: ClientMetrics) -> Iterator[str]:
    yield "metrics"
    for each in fields(metrics):
        if each.name not in {"state", "server", "subscriptions"}:
            yield f"  {each.name:22} {_shown(getattr(metrics, each.name))}"


def _subscriptions(core: Core, metrics: ClientMetrics) -> Iterator[Iterator[str]]:
    known = {each.sub_id: each for each in core.kept.all()}
    for each in metrics.subscriptions[:MAX_SUBSCRIPTIONS]:
        yield _subscription(core, known[each.sub_id], each)
    left = len(metrics.subscriptions) - MAX_SUBSCRIPTIONS
    if left > 0:
        yield iter([f"{left} more subscriptions"])


def _subscription(
    core: Core, subscription: Subscription, metrics: SubscriptionMetrics
) -> Iterator[str]:
    yield f"subscription {metrics.sub_id}"
    for name, value in subscription.request.fields.items():
        yield f"  {name:22} {value}"
    for each in fields(metrics):
        if each.name not in {"sub_id", "topic"}:
            yield f"  {each.name:22} {_shown(getattr(metrics, each.name))}"
    if subscription.log is not None:
        yield from (f"  {line}" for line in str(explain_recovery(core, metrics.sub_id)).split("\n"))


def _events(core: Core) -> Iterator[str]:
    if lines := core.flight.lines():
        yield "what was sent (>), received (<), reached (=) and lost (!) last"
        yield from (f"  {line}" for line in lines)


def _shown(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)

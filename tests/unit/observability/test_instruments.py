"""What is exported is complete, and documented."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

from haclient.client import Client
from haclient.observability.instruments import (
    INSTRUMENTS,
    MAX_SUBSCRIPTIONS,
    ClientSnapshot,
    Instrument,
    InstrumentKind,
)
from haclient.observability.metrics import ClientMetrics, SubscriptionMetrics
from haclient.observability.otel import otel_name
from haclient.observability.prometheus import prometheus_name
from haclient.session.connection_state import Counters

DOCS = Path(__file__).parents[3] / "docs" / "observability.md"
BY_NAME = {each.name: each for each in INSTRUMENTS}


def values(name: str, reading: ClientSnapshot) -> list[tuple[dict[str, str], float]]:
    return [(dict(labels), value) for labels, value in BY_NAME[name].values(reading)]


def test_everything_in_a_snapshot_is_exported() -> None:
    assert len(BY_NAME) == len(INSTRUMENTS)
    assert {each.name for each in fields(ClientMetrics)} <= set(BY_NAME)
    labels = {"sub_id", "topic"}
    of_subscriptions = {each.name for each in fields(SubscriptionMetrics)} - labels
    assert {f"subscription_{name}" for name in of_subscriptions} <= set(BY_NAME)


def test_what_only_rises_is_a_counter() -> None:
    counters = {each.name for each in INSTRUMENTS if each.kind is InstrumentKind.COUNTER}
    of_subscriptions = {"subscription_gaps", "subscription_redelivered"}
    assert counters == {each.name for each in fields(Counters)} | of_subscriptions | {
        "dropped_acks"
    }


def test_the_unit_is_that_of_the_name() -> None:
    for each in INSTRUMENTS:
        if each.kind is InstrumentKind.GAUGE:
            assert (each.unit == "bytes") == each.name.endswith("_bytes"), each.name


async def test_a_client_is_read_as_it_is() -> None:
    client = Client("c")
    reading = ClientSnapshot(client.metrics, client.health())
    assert values("up", reading) == [({}, 1.0)]
    assert values("alive", reading) == [({}, 0.0)]
    assert values("server", reading) == []
    assert values("connections", reading) == [({}, 0.0)]
    assert values("silence", reading) == []  # not known is no value, and not 0
    states = {labels["state"]: value for labels, value in values("state", reading)}
    assert states.pop("disconnected") == 1
    assert set(states.values()) == {0.0}
    async with client:
        pass


async def test_the_subscriptions_of_a_client_are_limited_and_counted_all() -> None:
    one = SubscriptionMetrics(
        sub_id="s",
        topic="t",
        queued=1,
        queued_bytes=7,
        is_full=True,
        is_caught_up=False,
        gaps=2,
        undiscarded=None,
        redelivered=3,
        message_lag=None,
        receive_lag=0.5,
        process_lag=None,
    )
    client = Client("c")
    metrics = replace(client.metrics, subscriptions=(one,) * (MAX_SUBSCRIPTIONS + 1))
    reading = ClientSnapshot(metrics, client.health())
    assert values("subscriptions", reading) == [({}, MAX_SUBSCRIPTIONS + 1.0)]
    found = values("subscription_queued_bytes", reading)
    assert found == [({"sub_id": "s", "topic": "t"}, 7.0)] * MAX_SUBSCRIPTIONS
    assert values("subscription_is_full", reading)[0][1] == 1.0
    assert values("subscription_undiscarded", reading) == []
    assert values("subscription_message_lag", reading) == []
    assert values("subscription_redelivered", reading)[0][1] == 3.0
    assert values("subscription_receive_lag", reading)[0][1] == 0.5
    assert values("subscription_process_lag", reading) == []
    async with client:
        pass


def test_a_client_that_does_not_answer_has_one_value() -> None:
    reading = ClientSnapshot(None, None)
    found = {each.name: values(each.name, reading) for each in INSTRUMENTS}
    assert found.pop("up") == [({}, 0.0)]
    assert not any(found.values())


def test_the_page_has_a_row_for_each_instrument() -> None:
    _, section = DOCS.read_text(encoding="utf-8").split("## Prometheus and OpenTelemetry")
    documented = re.findall(r"^\| `([\w.]+)` \| `([\w.]+)` \|", section, flags=re.MULTILINE)
    assert documented == [(_exposed(each), otel_name(each)) for each in INSTRUMENTS]


def _exposed(instrument: Instrument) -> str:
    total = "_total" if instrument.kind is InstrumentKind.COUNTER else ""
    return prometheus_name(instrument) + total

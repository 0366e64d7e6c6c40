"""OpenTelemetry collects the metrics of a client."""

from __future__ import annotations

import pytest
import trio
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Gauge, InMemoryMetricReader, NumberDataPoint, Sum
from typing_extensions import override

from haclient.client import Client
from haclient.errors import UsageError
from haclient.observability.instruments import INSTRUMENTS
from haclient.observability.metrics import ClientMetrics
from haclient.observability.otel import observe, otel_name
from support.peer import client_with_stores, listening, subscribe_and_publish


class Collected:
    """What one collection gives: the points of each metric, its unit and whether it is a sum."""

    def __init__(self, reader: InMemoryMetricReader) -> None:
        self.points: dict[str, list[NumberDataPoint]] = {}
        self.units: dict[str, str | None] = {}
        self.sums: set[str] = set()
        data = reader.get_metrics_data()
        assert data is not None
        for resource in data.resource_metrics:
            for scope in resource.scope_metrics:
                assert scope.scope.name == "haclient"
                for metric in scope.metrics:
                    assert isinstance(metric.data, Sum | Gauge)
                    self.points[metric.name] = list(metric.data.data_points)
                    self.units[metric.name] = metric.unit
                    if isinstance(metric.data, Sum) and metric.data.is_monotonic:
                        self.sums.add(metric.name)

    def value(self, name: str) -> float:
        (point,) = self.points[name]
        return point.value


async def test_a_collection_has_the_values_of_a_client() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    async with (
        listening() as server,
        client_with_stores("c") as client,
    ):
        observe(client, meter=provider.get_meter("haclient"), answer_limit=60)
        peer = await subscribe_and_publish(server, client)
        now = client.metrics
        found = await trio.to_thread.run_sync(Collected, reader)
        for each in (found, Collected(reader)):
            assert each.value("haclient.bytes_sent") == now.bytes_sent > 0
            assert each.value("haclient.unpersisted") == 1
            assert each.value("haclient.up") == 1
        assert found.sums >= {"haclient.logons", "haclient.bytes_sent"}
        assert "haclient.unpersisted" not in found.sums
        assert found.units["haclient.unpersisted_bytes"] == "By"
        assert found.units["haclient.oldest_unpersisted_age"] == "s"
        (point,) = found.points["haclient.subscription.undiscarded"]
        assert point.attributes == {"client": "c", "sub_id": "b", "topic": "orders"}
        await client.publish("orders", b"2")
        await peer.expect("publish")
        assert Collected(reader).value("haclient.unpersisted") == 2  # a snapshot of its own
        assert set(found.points) <= {otel_name(each) for each in INSTRUMENTS}
    assert Collected(reader).value("haclient.alive") == 0
    provider.shutdown()


async def test_the_values_of_one_collection_are_of_one_snapshot() -> None:
    class Counting(Client):
        snapshots = 0

        @property
        @override
        def metrics(self) -> ClientMetrics:
            Counting.snapshots += 1
            return super().metrics

    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    client = Counting("c")
    observe(client, meter=provider.get_meter("haclient"))
    for count in (1, 2, 3):
        Collected(reader)
        assert Counting.snapshots == count
    provider.shutdown()
    async with client:
        pass


def test_a_client_whose_program_has_ended_is_down() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)

    async def main() -> None:
        async with Client("c") as client:
            observe(client, meter=provider.get_meter("haclient"))

    trio.run(main)
    found = Collected(reader)
    assert found.value("haclient.up") == 0
    assert list(found.points) == ["haclient.up"]
    provider.shutdown()


def test_a_client_of_trio_is_refused_outside_of_its_program() -> None:
    with pytest.raises(UsageError, match="runs on trio"):
        observe(Client("c"))

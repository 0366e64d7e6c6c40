"""Prometheus scrapes a client over HTTP."""

from __future__ import annotations

import http.client
import re
import subprocess
import sys
from functools import partial

import pytest
import trio
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from haclient import blocking
from haclient.client import Client
from haclient.errors import UsageError
from haclient.observability.instruments import INSTRUMENTS
from haclient.observability.prometheus import ClientCollector
from haclient_fake_server.testing.cluster import Cluster
from support.peer import client_with_stores, listening, subscribe_and_publish


def scrape(registry: CollectorRegistry) -> str:
    """The exposition of a registry, as a Prometheus server gets it."""
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.read().decode()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def samples(text: str) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


@pytest.mark.row("OB5")
async def test_a_scrape_has_the_counters_and_gauges_of_a_client_with_its_labels() -> None:
    async with (
        listening() as server,
        client_with_stores('c"1') as client,
    ):
        registry = CollectorRegistry()
        registry.register(ClientCollector(client, answer_limit=60))
        await subscribe_and_publish(server, client)
        now = client.metrics
        found = samples(await trio.to_thread.run_sync(scrape, registry))
        assert set(found) >= {
            "haclient_connections_total",
            "haclient_oldest_unpersisted_age_seconds",
            "haclient_subscription_queued_bytes",
        }
        assert all(each.labels["client"] == 'c"1' for every in found.values() for each in every)
        (sent,) = found["haclient_bytes_sent_total"]
        assert sent.value == now.bytes_sent > 0
        assert [each.value for each in found["haclient_unpersisted"]] == [1]
        assert [each.labels["server"] for each in found["haclient_server"]] == [now.server]
        (undiscarded,) = found["haclient_subscription_undiscarded"]
        assert undiscarded.labels == {"client": 'c"1', "sub_id": "b", "topic": "orders"}
        states = {each.labels["state"] for each in found["haclient_state"] if each.value}
        assert states == {"logged_on"}


@pytest.mark.row("OB5")
async def test_each_metric_has_its_type_and_help() -> None:
    client = Client("c")
    registry = CollectorRegistry()
    registry.register(ClientCollector(client, answer_limit=60))
    text = await trio.to_thread.run_sync(scrape, registry)
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, flags=re.MULTILINE))
    assert len(types) == len(INSTRUMENTS)
    assert types["haclient_logons_total"] == "counter"
    assert types["haclient_unpersisted_bytes"] == "gauge"
    assert text.count("# HELP ") == len(INSTRUMENTS)
    async with client:
        pass


async def test_several_clients_share_a_collector_by_their_names() -> None:
    a, b = Client("a"), Client("b")
    collector = ClientCollector(a)
    collector.add(b)
    with pytest.raises(UsageError, match=r"^a client named 'a' is collected already: remove it"):
        collector.add(a)
    registry = CollectorRegistry()
    registry.register(collector)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(ClientCollector(a))
    labels = [{"client": "a"}, {"client": "b"}]
    assert all(registry.get_sample_value("haclient_up", each) == 1 for each in labels)
    collector.remove("b")
    assert registry.get_sample_value("haclient_up", {"client": "b"}) is None
    with pytest.raises(UsageError, match=r"^no client named 'b' is collected$"):
        collector.remove("b")
    for client in (a, b):
        async with client:
            pass


def test_a_client_that_has_ended_is_down_and_the_scrape_succeeds() -> None:
    registry = CollectorRegistry()

    async def main() -> None:
        async with Client("c") as client:
            registry.register(ClientCollector(client))

    trio.run(main)
    found = samples(scrape(registry))
    assert [each.value for each in found["haclient_up"]] == [0]
    assert list(found) == ["haclient_up"]


@pytest.mark.row("OB5")
async def test_a_blocking_client_is_scraped_from_any_thread(amps_broker: Cluster) -> None:
    def program() -> list[float]:
        registry = CollectorRegistry()
        with blocking.HAClient.memory_backed("c", servers=[amps_broker.uri]) as client:
            registry.register(ClientCollector(client, answer_limit=60))
            (ready,) = samples(scrape(registry))["haclient_ready"]
        (up,) = samples(scrape(registry))["haclient_up"]
        return [ready.value, up.value]

    assert await trio.to_thread.run_sync(program) == [1, 0]


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [("prometheus", "prometheus_client", "prometheus"), ("otel", "opentelemetry", "otel")],
)
def test_without_the_package_the_error_names_the_extra(
    module: str, package: str, extra: str
) -> None:
    program = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "import haclient, haclient.client, haclient.observability, haclient.observability.metrics\n"
        f"import haclient.observability.{module}\n"
    )
    run = partial(subprocess.run, capture_output=True, text=True, check=False, timeout=100)
    failed = run([sys.executable, "-c", program])
    assert failed.returncode == 1
    last = failed.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ModuleNotFoundError: haclient.observability.{module} needs ")
    assert last.endswith(f": pip install 'haclient[{extra}]'")

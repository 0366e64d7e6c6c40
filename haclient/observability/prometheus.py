"""The metrics of clients for Prometheus; needs the extra `prometheus`.

A `ClientCollector` is registered once and takes a snapshot of each client when it is scraped.
Nothing is counted twice, and nothing runs between two scrapes.
"""

from __future__ import annotations

from collections.abc import Iterator

from typing_extensions import override

from haclient.errors import UsageError
from haclient.observability.instruments import INSTRUMENTS, Instrument, InstrumentKind
from haclient.observability.snapshot_reader import ANSWER_LIMIT_S, MeasuredClient, SnapshotReader

try:
    from prometheus_client.metrics_core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        Metric,
    )
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "haclient.observability.prometheus needs prometheus-client: "
        "pip install 'haclient[prometheus]'",
        name=error.name,
    ) from error

__all__ = ["ClientCollector"]


class ClientCollector(Collector):
    """Collects the metrics of clients when Prometheus asks for them.

    Register it once: `REGISTRY.register(ClientCollector(client))`. Each metric begins with
    `haclient_` and has the label `client`; those of a subscription also have `sub_id` and `topic`.
    A client that does not answer, or whose program has ended, has only `haclient_up`, which is 0.

    Args:
        *clients: The clients; more may be added. Clients of trio have to be given inside their
            trio program.
        answer_limit: How many seconds a scrape waits for each client.

    Raises:
        UsageError: Two clients have one name, or a client of trio is given outside of it.
    """

    def __init__(self, *clients: MeasuredClient, answer_limit: float = ANSWER_LIMIT_S) -> None:
        self._answer_limit = answer_limit
        self._readers: dict[str, SnapshotReader] = {}
        for each in clients:
            self.add(each)

    def add(self, client: MeasuredClient) -> None:
        """Collect the metrics of one more client.

        Args:
            client: The client.

        Raises:
            UsageError: A client of its name is there already, or it is one of trio, given outside.
        """
        reader = SnapshotReader(client, answer_limit=self._answer_limit)
        if reader.client_name in self._readers:
            raise UsageError(
                f"a client named {reader.client_name!r} is collected already: remove it first"
            )
        self._readers = {**self._readers, reader.client_name: reader}  # a scrape may be under way

    def remove(self, name: str) -> None:
        """Collect a client no more.

        Args:
            name: Its name.

        Raises:
            UsageError: There is none of this name.
        """
        if name not in self._readers:
            raise UsageError(f"no client named {name!r} is collected")
        self._readers = {key: value for key, value in self._readers.items() if key != name}

    @override
    def collect(self) -> Iterator[Metric]:
        readings = [(name, reader.read()) for name, reader in self._readers.items()]
        for instrument in INSTRUMENTS:
            family = _family(instrument)
            for name, reading in readings:
                for labels, value in instrument.values(reading):
                    family.add_sample(
                        family.name + ("_total" if family.type == "counter" else ""),
                        {"client": name, **labels},
                        value,
                    )
            yield family

    def describe(self) -> Iterator[Metric]:
        """The metrics without values: what a registry asks for, to find names that clash."""
        return map(_family, INSTRUMENTS)


def prometheus_name(instrument: Instrument) -> str:
    """The name of an instrument in Prometheus, with its unit."""
    unit = f"_{instrument.unit}" if instrument.unit else ""
    suffix = "" if instrument.name.endswith(unit) else unit
    return f"haclient_{instrument.name}{suffix}"


def _family(instrument: Instrument) -> Metric:
    kind = CounterMetricFamily if instrument.kind is InstrumentKind.COUNTER else GaugeMetricFamily
    return kind(prometheus_name(instrument), instrument.help)

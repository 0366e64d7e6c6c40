"""The metrics of a client for OpenTelemetry; needs the extra `otel`.

`observe` creates observable instruments on a meter. A collection calls each of them; they share one
snapshot of the client, so that its values are of one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock
from typing import Final

from haclient.observability.instruments import (
    INSTRUMENTS,
    ClientSnapshot,
    Instrument,
    InstrumentKind,
)
from haclient.observability.snapshot_reader import ANSWER_LIMIT_S, MeasuredClient, SnapshotReader

try:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "haclient.observability.otel needs opentelemetry-api: pip install 'haclient[otel]'",
        name=error.name,
    ) from error

__all__ = ["observe"]

_UNITS: Final = {"seconds": "s", "bytes": "By", "": "1"}


def observe(
    client: MeasuredClient, *, meter: Meter | None = None, answer_limit: float = ANSWER_LIMIT_S
) -> None:
    """Report the metrics of a client from now on, with each collection of the meter's provider.

    Each instrument is named `haclient.` and its name, and has the attribute `client`; those of a
    subscription also have `sub_id` and `topic`. A client that does not answer, or whose program has
    ended, has only `haclient.up`, which is 0. OpenTelemetry cannot forget instruments: observe a
    client once.

    Args:
        client: The client; one of trio has to be given inside its trio program.
        meter: Where the instruments are created; that of `haclient` by default.
        answer_limit: How many seconds a collection waits for the client.

    Raises:
        UsageError: It is a client of trio, given outside of its program.
    """
    reader = SnapshotReader(client, answer_limit=answer_limit)
    shared = _SharedReading(reader)
    meter = meter or get_meter("haclient")
    for instrument in INSTRUMENTS:
        is_counter = instrument.kind is InstrumentKind.COUNTER
        create = meter.create_observable_counter if is_counter else meter.create_observable_gauge
        create(
            otel_name(instrument),
            callbacks=[_callback(instrument, shared, reader.client_name)],
            unit=_UNITS[instrument.unit],
            description=instrument.help,
        )


def otel_name(instrument: Instrument) -> str:
    """The name of an instrument in OpenTelemetry; its unit is not part of it."""
    scope, _, name = instrument.name.partition("subscription_")
    return f"haclient.subscription.{name}" if name else f"haclient.{scope}"


def _callback(
    instrument: Instrument, shared: _SharedReading, client_name: str
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observed(_: CallbackOptions) -> Iterable[Observation]:
        return [
            Observation(value, {"client": client_name, **attributes})
            for attributes, value in instrument.values(shared.read(instrument.name))
        ]

    return observed


class _SharedReading:
    """One reading for all instruments of a collection.

    OpenTelemetry does not say when a collection begins. It has begun anew when an instrument asks
    for the second time.

    Args:
        reader: Takes the readings.
    """

    def __init__(self, reader: SnapshotReader) -> None:
        self._reader = reader
        self._lock = Lock()  # several exporters collect in threads of their own
        self._reading: ClientSnapshot | None = None
        self._served: set[str] = set()

    def read(self, instrument_name: str) -> ClientSnapshot:
        """The reading for one instrument, taken now unless it shares that of the others."""
        with self._lock:
            if self._reading is None or instrument_name in self._served:
                self._reading = self._reader.read()
                self._served.clear()
            self._served.add(instrument_name)
            return self._reading

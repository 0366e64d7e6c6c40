"""Samples of a run, their medians, and both as text and JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field

from benchmarks.targets import compare

__all__ = ["Report"]


@dataclass(slots=True)
class Report:
    """What was measured, in the order of measuring."""

    machine: Mapping[str, str | int | float]
    samples: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    units: dict[str, str] = field(default_factory=dict[str, str])
    skipped: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, rows: Mapping[str, float], unit: str) -> None:
        """Keep one round's rows."""
        for name, value in rows.items():
            self.samples.setdefault(name, []).append(value)
            self.units[name] = "us" if name.endswith((" p50", " p99")) else unit

    @property
    def medians(self) -> dict[str, float]:
        """One figure for each row."""
        return {name: statistics.median(values) for name, values in self.samples.items()}

    def as_json(self) -> dict[str, object]:
        """Everything, for a file."""
        rows = {
            name: {"unit": self.units[name], "median": statistics.median(values), "samples": values}
            for name, values in self.samples.items()
        }
        return {
            "machine": dict(self.machine),
            "rows": rows,
            "ratios": [asdict(verdict) for verdict in compare(self.medians)],
            "skipped": self.skipped,
        }

    def lines(self) -> Iterator[str]:
        """The same for people."""
        for name, values in self.samples.items():
            spread = f"{min(values):,.4g} .. {max(values):,.4g}"
            median = statistics.median(values)
            yield f"{name:<40} {median:>14,.5g} {self.units[name]:<12} ({spread})"
        yield ""
        for verdict in compare(self.medians):
            word = "ok  " if verdict.met else "MISS"
            bound = f"{verdict.relation} {verdict.bound:g}"
            yield f"{word} {verdict.name:<62} {verdict.value:>10.4g}   target {bound}"
        for name, reason in self.skipped.items():
            yield f"skipped {name}: {reason}"

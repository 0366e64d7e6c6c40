"""Samples of a run, their medians, and both as text and JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from benchmarks.latency import percentile
from benchmarks.targets import compare

__all__ = ["Report"]


@dataclass(slots=True)
class Report:
    """What was measured, in the order of measuring.

    A row has one sample of each round, or many that are pooled over all rounds; of those there is
    also a p99.
    """

    machine: Mapping[str, str | int | float]
    samples: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    units: dict[str, str] = field(default_factory=dict[str, str])
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    pooled: set[str] = field(default_factory=set[str])

    def add(self, rows: Mapping[str, float | Sequence[float]], unit: str) -> None:
        """Keep one round's rows."""
        for name, found in rows.items():
            if isinstance(found, Sequence):
                self.samples.setdefault(name, []).extend(found)
                self.pooled.add(name)
            else:
                self.samples.setdefault(name, []).append(found)
            self.units[name] = "us" if name.endswith((" p50", " p99")) else unit

    @property
    def figures(self) -> dict[str, float]:
        """The median of each row, and `<row> p99` of the pooled ones."""
        found = {name: statistics.median(values) for name, values in self.samples.items()}
        return found | {f"{name} p99": percentile(self.samples[name], 99) for name in self.pooled}

    def as_json(self) -> dict[str, object]:
        """Everything, for a file."""
        rows = {
            name: {"unit": self.units[name], "median": statistics.median(values), "samples": values}
            for name, values in self.samples.items()
        }
        return {
            "machine": dict(self.machine),
            "rows": rows,
            "ratios": [asdict(verdict) for verdict in compare(self.figures)],
            "skipped": self.skipped,
        }

    def lines(self) -> Iterator[str]:
        """The same for people."""
        for name, values in self.samples.items():
            spread = f"{min(values):,.4g} .. {max(values):,.4g}"
            median = statistics.median(values)
            yield f"{name:<40} {median:>14,.5g} {self.units[name]:<12} ({spread})"
            if name in self.pooled:
                tail = f"{len(values)} samples"
                yield f"{name + ' p99':<40} {percentile(values, 99):>14,.5g} {'':<12} ({tail})"
        yield ""
        for verdict in compare(self.figures):
            word = "ok  " if verdict.met else "MISS"
            bound = f"{verdict.relation} {verdict.bound:g}"
            yield f"{word} {verdict.name:<62} {verdict.value:>10.4g}   target {bound}"
        for name, reason in self.skipped.items():
            yield f"skipped {name}: {reason}"

"""The performance targets of the design as ratios between rows, and how a run compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["TARGETS", "Target", "Verdict", "compare"]


@dataclass(frozen=True, slots=True)
class Target:
    """`row / base` (or `row` alone) has to be at least or at most `bound`."""

    row: str
    base: str
    relation: Literal[">=", "<="]
    bound: float

    @property
    def name(self) -> str:
        """What is compared."""
        return f"{self.row} / {self.base}" if self.base else self.row


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and what a run reached."""

    name: str
    value: float
    relation: str
    bound: float
    met: bool


def _at_least(row: str, base: str, bound: float) -> Target:
    return Target(row, base, ">=", bound)


def _at_most(row: str, base: str, bound: float) -> Target:
    return Target(row, base, "<=", bound)


TARGETS = (
    _at_least("publish memory 100 B", "raw send 100 B", 0.08),
    _at_least("publish memory 1 KiB", "raw send 1 KiB", 0.45),
    _at_least("publish memory 100 B", "nats publish 100 B", 20),
    _at_least("publish memory 100 B", "redis publish 100 B", 5),
    _at_least("publish file 100 B", "publish memory 100 B", 0.80),
    _at_least("publish file 1 KiB", "publish memory 1 KiB", 0.80),
    _at_least("blocking publish_many", "trio publish_many", 0.60),
    _at_least("aio publish_many", "trio publish_many", 0.50),
    _at_least("receive logged 100 B", "raw receive 100 B", 0.025),
    _at_least("receive logged 1 KiB", "raw receive 1 KiB", 0.12),
    _at_least("receive logged 100 B", "receive plain 100 B", 0.60),
    _at_least("receive logged 1 KiB", "receive plain 1 KiB", 0.60),
    _at_least("receive logged 100 B", "nats consume 100 B", 15),
    _at_least("receive logged 1 KiB", "nats consume 1 KiB", 12),
    _at_most("ack p50", "raw ping-pong p50", 1.8),
    _at_most("ack p99", "raw ping-pong p99", 2.0),
    _at_most("ack p50", "nats ack p50", 0.75),
    _at_most("open loop ack p99", "", 4000),
    _at_most("open loop delivery p99", "", 6000),
    _at_most("memory per message / frame", "", 1.05),
    _at_most("bytes per unpersisted message", "", 200),
    _at_most("worst collector pause ms", "", 5),
    _at_least("rate at the end / at first", "", 0.90),
    _at_most("bytes per bookmark record", "", 24),
    _at_most("seconds to recover a million bookmark records", "", 0.15),
    _at_most("seconds to recover a million publishes", "", 0.8),
    _at_most("log and discard, logged over memory", "", 1.0),
    _at_most("log and discard, logged, a publisher for each", "", 5),
    _at_most("log and discard, ring", "", 3),
    _at_most("log and discard, ring, acks", "", 3),
    _at_most("seconds to prune ten million records", "", 30),
    _at_most("MiB that a prune adds to the process", "", 64),
    _at_most("fail-over, logged on", "", 5),
    _at_most("fail-over, first ack", "", 15),
    _at_most("fail-over, backlog acked, memory", "", 200),
    _at_most("fail-over, backlog acked, file", "", 200),
    _at_most("fail-over, first message", "", 50),
    _at_most("fail-over, first message p99", "", 250),
    _at_least("broker publish and deliver", "", 100_000),
    _at_least("broker replay", "", 200_000),
    _at_least("queue publish and consume, shallow", "", 50_000),
    _at_most("MiB of a broker with a long queue", "", 200),
    _at_least("deliver beside idle subscriptions", "deliver alone", 0.80),
    _at_most("seconds to restart on a long log", "", 5),
    _at_least("messages/s replayed of a long log", "", 300_000),
    _at_most("checksums / replay of a long log", "", 0.05),
    _at_least("records/s of a filtered query", "", 300_000),
    _at_most("longest ack beside a query, ms", "", 50),
    _at_most("from haclient import Client", "", 250),
    _at_most("idle client, % of a core", "", 0.5),
    _at_most("1 000 subscriptions entered again", "", 1.0),
)
"""Memory: the frame, 2 % and one segment of 4 MiB, which is 3 % of a million 152-byte frames."""


def compare(figures: Mapping[str, float]) -> list[Verdict]:
    """A verdict on each target whose rows were measured."""
    verdicts: list[Verdict] = []
    for target in TARGETS:
        if target.row not in figures or (target.base and target.base not in figures):
            continue
        value = figures[target.row] / (figures[target.base] if target.base else 1.0)
        met = value >= target.bound if target.relation == ">=" else value <= target.bound
        verdicts.append(Verdict(target.name, value, target.relation, target.bound, met))
    return verdicts

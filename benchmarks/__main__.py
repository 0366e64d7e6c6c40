"""`python -m benchmarks [--rounds 5] [--scale 1.0] [--json FILE] [groups]`."""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
from pathlib import Path

from benchmarks import (
    bookmarks,
    broker_failover,
    broker_sizes,
    brokers,
    facades,
    footprint,
    incoming,
    latency,
    open_loop,
    outgoing,
    peer_nats,
    peer_redis,
    queues,
    recovery,
    sink_failover,
    startup,
    upkeep,
)
from benchmarks.machine import CLIENT_CORE, describe, pin
from benchmarks.report import Report
from benchmarks.scenario import Scenario, Setting, far_end

__all__ = ["main"]

_MODULES = (
    outgoing,
    facades,
    incoming,
    latency,
    open_loop,
    footprint,
    recovery,
    bookmarks,
    brokers,
    queues,
    broker_sizes,
    sink_failover,
    broker_failover,
    startup,
    upkeep,
    peer_nats,
    peer_redis,
)
_SCENARIOS = tuple(scenario for module in _MODULES for scenario in module.SCENARIOS)
_GROUPS = tuple(dict.fromkeys(scenario.group for scenario in _SCENARIOS))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of all message counts")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("groups", nargs="*", metavar="group", help=", ".join(_GROUPS))
    given = parser.parse_args()
    if unknown := set(given.groups) - set(_GROUPS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(_GROUPS)}")
    return given


def _runnable(groups: list[str], report: Report) -> list[Scenario]:
    """The scenarios to run; what this machine lacks goes to the report."""
    found: list[Scenario] = []
    for scenario in _SCENARIOS:
        if groups and scenario.group not in groups:
            continue
        if reason := scenario.missing():
            report.skipped[scenario.group] = reason
        else:
            found.append(scenario)
    return found


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _run(setting: Setting, scenarios: list[Scenario], report: Report, rounds: int) -> None:
    """Interleaved: every scenario once per round, so that a slow minute hits all of them."""
    for number in range(1, rounds + 1):
        for scenario in scenarios:
            gc.collect()
            report.add(scenario.measure(setting), scenario.unit)
        sys.stderr.write(f"round {number} of {rounds} done\n")


def main() -> None:
    """Run the named groups and print the figures."""
    given = _arguments()
    if not pin(CLIENT_CORE):
        sys.stderr.write("cannot pin to a core here: client and server may share one\n")
    report = Report(describe())
    scenarios = _runnable(given.groups, report)
    with far_end() as port, tempfile.TemporaryDirectory() as scratch:
        setting = Setting(port, Path(scratch), given.scale)
        _run(setting, scenarios, report, given.rounds)
    for line in report.lines():
        _say(line)
    if given.json:
        given.json.write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

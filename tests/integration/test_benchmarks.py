"""The benchmarks run and give figures; how good those are is not for a test to say."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.process import python_environment

ROOT = Path(__file__).parents[2]

# Seconds on a quiet machine; the servers that a group starts outlive it if it is killed.
LIMIT_S = 500

pytestmark = [
    pytest.mark.timeout(LIMIT_S + 20),
    pytest.mark.skipif(
        importlib.util.find_spec("benchmarks") is None,
        reason="benchmarks are not part of the wheel",
    ),
]


def run(results: Path, *groups: str) -> str:
    # Measured by coverage, clients and servers would not keep up with the rates they are given.
    environment = {
        name: value
        for name, value in python_environment().items()
        if not name.startswith("COVERAGE_PROCESS")
    }
    options = ("--rounds", "1", "--scale", "0.01", "--json", str(results))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *options, *groups],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SMALL = {"publish": "publish file 100 B"}
LARGE = {
    "facades": "aio publish_many",
    "receive": None,
    "latency": None,
    "footprint": "bytes per bookmark record",
    "recovery": None,
    "startup": None,
    "publishers": "log and discard, ring, a publisher for each",
    "long-queue": "MiB of a broker with a long queue",
    "idle-subscriptions": "deliver beside idle subscriptions",
    "long-log": "seconds to restart on a long log",
    "records": "records/s of a filtered query",
    "idle": None,
    "resubscribe": "1 000 subscriptions entered again",
}
"""Groups of benchmarks, and a row of each."""


@pytest.mark.parametrize(
    "groups", [SMALL, pytest.param(SMALL | LARGE, marks=pytest.mark.full)], ids=["one", "all"]
)
def test_a_small_run_gives_rows_and_ratios(tmp_path: Path, groups: dict[str, str | None]) -> None:
    results = tmp_path / "results.json"
    said = run(results, *groups)
    found = json.loads(results.read_text())
    for name in filter(None, groups.values()):
        assert found["rows"][name]["median"] > 0
    assert {"name", "value", "relation", "bound", "met"} <= found["ratios"][0].keys()
    for name in found["rows"]:
        assert name in said


@pytest.mark.full
def test_a_short_row_of_fail_overs_loses_and_doubles_nothing(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    run(results, "failover")
    rows = json.loads(results.read_text())["rows"]
    for name in ("fail-over, logged on", "fail-over, first message"):
        assert len(rows[name]["samples"]) == 2
        assert all(sample > 0 for sample in rows[name]["samples"])
    assert rows["fail-over, backlog acked, file"]["median"] > 0

"""The simulator itself: seeds that pass, the same trace for the same seed, kept seeds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.command import run_seed
from simulation.planning import FAULTS, plan_of
from simulation.simulator import simulate
from support.lengths import length

pytestmark = pytest.mark.simulation

ROOT = Path(__file__).parents[2]
SOME_SEEDS = range(1, 1 + length(10))


@pytest.mark.row("FI3", "FI8")
@pytest.mark.parametrize("seed", SOME_SEEDS)
def test_a_seed(seed: int) -> None:
    summary = run_seed(seed)
    assert not summary.failures, f"repeat: nox -s simulate -- --seed {seed}"
    assert summary.messages


@pytest.mark.row("FI6")
def test_a_seed_gives_the_same_trace_in_every_process() -> None:
    traces = {simulate(plan_of(3)).digest}
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        environment["PYTHONPATH"] = os.pathsep.join(
            str(ROOT / name) for name in ("", "stores", "fake_server", "tests")
        )
        command = [sys.executable, "-m", "simulation", "--seed", "3", "--trace"]
        run = subprocess.run(
            command, capture_output=True, text=True, check=True, env=environment, cwd=ROOT
        )
        traces.add(run.stdout.split()[-1])
    assert len(traces) == 1


def test_another_seed_gives_another_plan() -> None:
    assert plan_of(1) == plan_of(1) != plan_of(2)


def test_every_kind_of_fault_is_drawn_and_no_run_has_them_all() -> None:
    drawn = [{step.kind for step in plan_of(seed).script} for seed in range(60)]
    everything = {kind.removesuffix("_broker") for kind in FAULTS}
    assert everything <= set.union(*drawn)
    assert not any(everything <= kinds for kinds in drawn)

"""What the command line says, and where it says it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulation.command import failures_of, main
from simulation.keeping import kept_in
from simulation.planning import plan_of

pytestmark = pytest.mark.simulation

BUG = "missing_time_anchor"


@pytest.fixture(scope="module")
def found_by() -> int:
    """A seed that finds the bug: a story of a few steps, so that it is soon shrunk.

    The one that has done so before, or else another one.
    """
    plans = (plan_of(seed) for seed in (31, *range(1, 500)))
    return next(p.seed for p in plans if len(p.script) < 12 and failures_of(p, BUG))


def test_a_seed_that_fails_is_reported_and_its_short_plan_saved(
    found_by: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--seed", str(found_by), "--mutation", BUG, "--save", str(tmp_path / "new")]
    assert main([*arguments, "--seeds", "1", "--jobs", "1", "--json"]) == 1
    (path,) = (tmp_path / "new").iterdir()
    kept = kept_in(path)
    assert (path.name, kept.mutation) == (f"{BUG}-{found_by}.json", BUG)
    assert len(kept.plan.script) < len(plan_of(found_by).script)
    assert failures_of(kept.plan, BUG)
    assert failures_of(kept.plan) == ()
    said = capsys.readouterr()
    assert said.err == "", "nobody looks, and it is not long"
    assert f"saved: {path}" in said.out
    assert json.loads(said.out.splitlines()[-1])["failures"] == 1


def test_a_seed_that_passes_saves_nothing(
    found_by: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--seed", str(found_by), "--seeds", "1", "--save", str(tmp_path)]) == 0
    assert list(tmp_path.iterdir()) == []
    assert "0 failures" in capsys.readouterr().out

"""The example of the data pipeline runs alone, and its verdict can be bad."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Mapping
from itertools import count
from pathlib import Path

import pytest

from support.process import python_environment
from support.streams import STARTS, TOO_LATE

SCRIPT = Path(__file__).parents[2] / "examples/spark_pipeline.py"
COUNT = 500


def run_example(
    parent: Path, java: Mapping[str, str]
) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Run it in a new directory; started again if PySpark gave up a process."""
    for start in count():
        folder = parent / f"kept-{start}"
        words = ["--messages", str(COUNT), "--json", "--directory", str(folder)]
        done = subprocess.run(
            [sys.executable, str(SCRIPT), *words],
            capture_output=True,
            text=True,
            env=python_environment(java),
            check=False,
        )
        if TOO_LATE not in done.stderr or start + 1 == STARTS:
            return done, folder
    raise AssertionError("unreachable")


@pytest.mark.row("AU1", "AU2")
def test_the_pipeline_brings_every_row_back_once_and_audits_it(
    tmp_path: Path, java: Mapping[str, str]
) -> None:
    done, folder = run_example(tmp_path, java)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ *\d+\.\d s 6/6 audit the journal$", done.stderr, flags=re.MULTILINE)
    verdict = json.loads(done.stdout)
    assert (verdict["orders"], verdict["copies"], verdict["differing"]) == (COUNT, COUNT, 0)
    looked_for = {"duplicate", "order break", "hole", "lost", "undelivered", "received twice"}
    assert looked_for <= set(verdict["violations"])
    assert json.loads((folder / "audit/verdict.json").read_text())["verdict"] == "good"
    assert "Good." in (folder / "audit/report.html").read_text()


@pytest.mark.parametrize(
    ("differing", "violations", "is_good"),
    [(0, {"lost": 0}, True), (1, {"lost": 0}, False), (0, {"lost": 1}, False)],
)
def test_the_verdict_of_the_example_is_bad_where_something_is_wrong(
    *, differing: int, violations: dict[str, int], is_good: bool
) -> None:
    verdict = runpy.run_path(str(SCRIPT))["Verdict"](2, 2, differing, violations)
    assert verdict.is_good is is_good


def test_the_example_refuses_a_directory_that_exists_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["spark_pipeline.py", "--directory", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT))["main"]()
    assert ended.value.code == 2
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .endswith(f"error: --directory: {tmp_path} exists: give a new one")
    )

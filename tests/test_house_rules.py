"""The rules of the house hold: a run with a hidden gap fails in CI, and rows can be looked up."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = """
import pytest

def test_a_tool(): pytest.skip("needs a tool")
def test_a_platform(): pytest.skip("not applicable: another system")

@pytest.mark.row("PS12")
def test_a_row(): pass

@pytest.mark.full
@pytest.mark.row("PS13")
def test_a_long_one(): pass

@pytest.mark.in_parts
@pytest.mark.parametrize("number", range(9))
def test_one_of_many(number): pass
"""

WORKERS = ("-p", "xdist.plugin", "-n", "2")


def run(folder: Path, *options: str, ci: str = "") -> subprocess.CompletedProcess[str]:
    """A pytest of its own over TESTS, with the plugin that this run has too."""
    (folder / "test_it.py").write_text(TESTS, encoding="utf-8")
    (folder / "pytest.ini").write_text(
        "[pytest]\nmarkers = row\n full\n in_parts\n", encoding="utf-8"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    # Other plugins would only slow this run down.
    environment = {"PYTHONPATH": path, "CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "support.house_rules", *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("workers", [(), WORKERS], ids=["alone", "workers"])
def test_a_skip_for_want_of_a_tool_fails_in_ci(tmp_path: Path, workers: tuple[str, ...]) -> None:
    done = run(tmp_path, *workers, ci="true")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "forbids: test_it.py::test_a_tool: needs a tool" in done.stdout
    assert "forbids: test_it.py::test_a_platform" not in done.stdout


def test_the_same_skip_passes_elsewhere(tmp_path: Path) -> None:
    assert run(tmp_path).returncode == pytest.ExitCode.OK


def test_a_platform_may_be_skipped_in_ci(tmp_path: Path) -> None:
    assert run(tmp_path, "-k", "not tool", ci="true").returncode == pytest.ExitCode.OK


@pytest.mark.parametrize("workers", [(), WORKERS], ids=["alone", "workers"])
def test_the_index_of_rows_is_printed_and_nothing_runs(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    done = run(tmp_path, *workers, "--rows", ci="true")
    assert done.returncode == pytest.ExitCode.OK
    assert "PS12  a store file belongs to one client instance at a time" in done.stdout
    assert "test_it.py::test_a_row" in done.stdout
    assert "test_it.py::test_a_long_one" in done.stdout
    assert "passed" not in done.stdout


@pytest.mark.parametrize("workers", [(), WORKERS], ids=["alone", "workers"])
def test_what_is_marked_full_runs_only_on_request(tmp_path: Path, workers: tuple[str, ...]) -> None:
    assert "11 passed" in last_line(run(tmp_path, *workers, "--full"))
    assert "10 passed" in last_line(run(tmp_path, *workers))


def test_each_test_is_in_one_part_which_any_number_chooses(tmp_path: Path) -> None:
    parts = [
        set(re.findall(r"test_one_of_many\[\d]", run(tmp_path, "-v", "--part", f"{n}").stdout))
        for n in (3_000_000, 1, 2, 3)
    ]
    assert parts[0] == parts[3]
    assert sorted(map(len, parts[:3])) == [2, 3, 4]
    assert len(set.union(*parts)) == 9


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout.splitlines()[-1]


def test_an_example_of_a_property_may_take_any_time() -> None:
    assert settings().deadline is None
    assert HealthCheck.too_slow in settings().suppress_health_check

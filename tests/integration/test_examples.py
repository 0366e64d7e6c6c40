"""The examples do what the documents say of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.documents import blocks
from support.process import LIMIT_S, python_environment

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run_example(name: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run an example to its end, in the checkout."""
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *words],
        cwd=ROOT,
        env=python_environment(environment),
        capture_output=True,
        text=True,
        timeout=3 * LIMIT_S,
        check=False,
    )


@pytest.mark.full
@pytest.mark.row("PS22", "BS4")
def test_the_main_job_accounts_for_every_line_while_everything_is_killed() -> None:
    done = run_example("main_job.py", "--rate", "1000", "--json")
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["published"] == verdict["delivered"] > 3000
    assert (verdict["lost"], verdict["duplicated"], verdict["out_of_order"]) == (0, 0, 0)
    # On a slow machine many rows arrive at once when a subscriber begins, and then no kill is left.
    assert verdict["kills"] in {1, 2, 3}


@pytest.mark.row("PS22", "BS4")
def test_the_page_of_the_main_job_is_true_as_it_is_typed(tmp_path: Path) -> None:
    """Its first command runs from a checkout in which only the package is installed."""
    first = blocks((ROOT / "docs/main-job.md").read_text())[0].text.split()
    assert first == [".venv/bin/python", "examples/main_job.py"]
    (tmp_path / "vega_datasets.py").touch()  # a module without data: as if it were not installed
    path = f"{tmp_path}{os.pathsep}{python_environment()['PYTHONPATH']}"
    done = run_example("main_job.py", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("nothing lost, duplicated or out of order\n")
    assert "published  3000\n" in done.stdout


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.full)],
    ids=["term", "hup"],
)
def test_an_interrupted_job_leaves_no_process_and_no_file(tmp_path: Path, number: int) -> None:
    environment = python_environment({"TMPDIR": str(tmp_path)})
    with subprocess.Popen(
        [sys.executable, str(EXAMPLES / "main_job.py"), "--rate", "10"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        assert job.stderr is not None
        for line in job.stderr:
            if "publish" in line:  # all three processes are started
                break
        job.send_signal(number)
        out, err = job.communicate(timeout=LIMIT_S)
    assert job.returncode == 130
    assert (out, err.splitlines()[-1]) == ("", "interrupted: there is no verdict")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("main_job.py", "no-such-file"), "no-such-file"),
        (("queue_payments.py", "--payments", "1"), "wanted 10 payments"),
    ],
)
def test_a_mistake_is_one_line_and_no_traceback(command: tuple[str, ...], told: str) -> None:
    done = run_example(*command)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.row("QC15")
def test_killed_workers_book_each_payment_once() -> None:
    done = run_example("queue_payments.py", "--payments", "400", "--json")
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["payments"] == verdict["booked"] == 400
    assert verdict["wrong_accounts"] == 0
    assert verdict["kills"] >= 1  # on a slow machine they book much between two looks at them

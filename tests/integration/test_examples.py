"""The examples do what the documents say of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.process import LIMIT_S, python_environment

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.row("PS22", "BS4")
def test_the_main_job_accounts_for_every_line_while_everything_is_killed() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "main_job.py"), "--rate", "2500", "--json"],
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["published"] == verdict["delivered"] > 3000
    assert (verdict["lost"], verdict["duplicated"], verdict["out_of_order"]) == (0, 0, 0)
    assert verdict["kills"] == 3


def test_a_missing_file_is_one_line_and_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "main_job.py"), "no-such-file"],
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 2
    assert "no-such-file" in done.stderr
    assert "Traceback" not in done.stderr

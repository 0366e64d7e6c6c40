"""Real processes that are killed while they work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.house_rules import is_full

__all__ = ["run_and_kill", "runs_of"]

LONG_RUNS = 5
SHORT_RUNS = 2


def runs_of(config: pytest.Config, *, kinds: int = 1) -> int:
    """How many processes a test kills, one after the other.

    Args:
        config: With `--kills`, its share of so many kills.
        kinds: How many tests share them.
    """
    wanted = -(-int(config.getoption("--kills")) // kinds)
    return wanted or (LONG_RUNS if is_full(config) else SHORT_RUNS)


def run_and_kill(code: str, path: Path, seed: int, *others: str, lines: int) -> list[str]:
    """Let a process work, kill it after so many lines, and return all that it has reported."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path), str(seed), *others],
        stdout=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdout is not None
        reported = [process.stdout.readline() for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        reported += process.stdout.readlines()
    assert reported[0], "the process died by itself"
    return [line.decode().strip() for line in reported if line.endswith(b"\n")]

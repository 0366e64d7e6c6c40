"""How long an import takes, in a fresh interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.scenario import Scenario, Setting

__all__ = ["SCENARIOS"]

_PROGRAM = (
    "import time; start = time.perf_counter(); {}; print((time.perf_counter() - start) * 1000)"
)
_IMPORTS = {
    "import trio": "import trio",
    "import haclient": "import haclient",
    "from haclient import Client": "from haclient import Client",
}


def _milliseconds(statement: str) -> float:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(statement)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def _rows(_setting: Setting) -> dict[str, float]:
    return {name: _milliseconds(statement) for name, statement in _IMPORTS.items()}


SCENARIOS = [Scenario("startup", "ms", _rows)]

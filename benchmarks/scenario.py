"""What a benchmark is: a named measurement that yields rows, and what it may use."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from benchmarks.blast import Blast

__all__ = ["Scenario", "Setting", "far_end", "module_process"]


def module_process(
    module: str, *arguments: str, errors: IO[str] | None = None
) -> subprocess.Popen[str]:
    """A Python process that runs one of our modules and says something on its stdout.

    Its stderr is ours unless `errors` is a file.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env=environment,
    )


@contextmanager
def far_end() -> Generator[int]:
    """The other end as a process of its own; its port."""
    process = module_process("benchmarks.far_end")
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@dataclass(slots=True)
class Setting:
    """What the scenarios of one run share.

    Attributes:
        port: Of the far end, on the loopback.
        scratch: A directory on a real disk.
        scale: Multiplies all message counts; 1.0 for figures that may be quoted.
    """

    port: int
    scratch: Path
    scale: float = 1.0
    _files: int = field(default=0)

    @property
    def uri(self) -> str:
        """The far end, for a client."""
        return f"tcp://127.0.0.1:{self.port}/amps/json"

    def fresh_path(self) -> Path:
        """A path that nothing has used."""
        self._files += 1
        return Path(tempfile.mkdtemp(dir=self.scratch)) / str(self._files)

    def blast(self, size: int) -> Blast:
        """As many messages of so many bytes as give a row of about half a second."""
        kilobyte = 1024
        count = 300_000 if size < kilobyte else 100_000
        return Blast(max(1000, int(count * self.scale)), size)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One measurement.

    Attributes:
        group: What the command line names.
        unit: Of every row it yields.
        measure: Runs once and returns rows by name: one figure each, or samples to be pooled.
        missing: Why it cannot run here; empty when it can.
    """

    group: str
    unit: str
    measure: Callable[[Setting], Mapping[str, float | Sequence[float]]]
    missing: Callable[[], str] = lambda: ""

"""Another process that has a file or a store open."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["holding"]


@contextmanager
def holding(program: str, path: Path) -> Generator[subprocess.Popen[str]]:
    """A process that runs a program with a path and has printed a line; it is killed at the end.

    Args:
        program: Python that prints a line when it has opened the path, and then reads its stdin.
        path: The program's argument.
    """
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline(), "it has ended"
        yield process
        process.kill()

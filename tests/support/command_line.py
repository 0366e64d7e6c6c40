"""The command line in the test's own process, so that coverage and debuggers see it."""

from __future__ import annotations

from pathlib import Path

import pytest

from haclient.cli.app import run
from haclient_fake_server.testing.processes import BrokerProcess

__all__ = ["CommandLine"]


class CommandLine:
    """Runs the command line in this process and tells what came of it."""

    def __init__(self, broker: BrokerProcess, capture: pytest.CaptureFixture[str]) -> None:
        self._broker = broker
        self._capture = capture

    def __call__(self, command: str, *words: str | Path) -> tuple[int, list[str], str]:
        """Exit code, lines of stdout, and stderr."""
        code = run([command, "--server", self._broker.uri, *map(str, words)])
        out, err = self._capture.readouterr()
        return code, out.splitlines(), err

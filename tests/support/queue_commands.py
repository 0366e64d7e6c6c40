"""The commands `haclient queue` in the test's own process, and the queues that their tests use."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, BinaryIO

import pytest

from haclient.cli.app import run
from haclient_fake_server.testing.processes import BrokerProcess
from support.command_line import CommandLine, printed_to_pipe

__all__ = ["QUEUES", "QueueCommands"]

# A test that counts messages has a queue of its own: tests run in any order.
QUEUES = (
    "desk.browsed",
    "counted,max_backlog=3,lease=60",
    "endless,max_backlog=3",
    "few,max_backlog=3",
    "kept,max_backlog=3,lease=60",
    "left,max_backlog=3,lease=60",
    "limited,max_backlog=3,lease=60",
    "spoiled,max_backlog=10,lease=60",
    "short,max_backlog=10,lease=1",
    "once,max_backlog=3,semantics=at-most-once",
    "alone,max_backlog=3,semantics=at-most-once",
    "source,max_backlog=10",
    "partly,max_backlog=10",
    "copies,max_backlog=10",
    "other:source.two,max_backlog=10",
    "third:source.two",
    "refused,max_backlog=10",
    "doomed,max_backlog=10,dead_letter=dead",
    "dead,max_backlog=10",
    "expired,max_backlog=10,dead_letter=why",
    "why,max_backlog=10",
    "leased,max_backlog=3,lease=60",
    "matched,max_backlog=3,lease=60",
    "replayed,max_backlog=3",
    "touchless,max_backlog=3,lease=60",
)


class QueueCommands:
    """Runs `haclient queue` in this process; returns exit code and output."""

    def __init__(self, broker: BrokerProcess, capture: pytest.CaptureFixture[str]) -> None:
        self.uri = broker.uri
        self._capture = capture
        self.publish = CommandLine(broker, capture).publish

    def __call__(self, command: str, *words: str) -> tuple[int, list[str], str]:
        """Exit code, lines of stdout, and stderr."""
        code = run(["queue", command, "--server", self.uri, *words])
        out, err = self._capture.readouterr()
        return code, out.splitlines(), err

    def read_by(
        self, read: Callable[[BinaryIO], object], command: str, *words: str, pipe_bytes: int
    ) -> tuple[int, str]:
        """Exit code and stderr of a command whose stdout is a pipe; see `CommandLine.read_by`."""
        with printed_to_pipe(read, pipe_bytes):
            code = run(["queue", command, "--server", self.uri, *words])
        return code, self._capture.readouterr().err

    def statistics(self, name: str) -> dict[str, Any]:
        """What the broker tells of a queue."""
        code, [line], err = self("depth", name, "--json")
        assert (code, err) == (0, "")
        found: dict[str, Any] = json.loads(line)
        return found

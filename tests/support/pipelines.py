"""Runs `pipeline_program` in a process of its own, and checks what it has found and published."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

from haclient_fake_server.testing.processes import BrokerProcess
from support.broker_thread import publish
from support.journals import model_rows
from support.pipeline_program import Found
from support.streams import STARTS, TOO_LATE

__all__ = ["PROGRAM", "Pipeline", "check", "pipeline"]

PROGRAM: Final = Path(__file__).parent / "pipeline_program.py"
BODIES: Final = [b'{"id":%d}' % number for number in range(500)]


class Pipeline:
    """A broker with 500 orders, and the program that copies and audits them.

    Args:
        uri: The broker.
        journal: Its journal.
        folder: For files of the program.
    """

    def __init__(self, uri: str, journal: Path, folder: Path) -> None:
        self._uri = uri
        self._journal = journal
        self._folder = folder

    def run(self, command: Sequence[str | Path], environment: Mapping[str, str]) -> Found:
        """Run the program, again from the start if PySpark gave up a process.

        Args:
            command: What runs it, with its path as the last word.
            environment: All variables of the process.
        """
        for start in count():
            folder, topic = self._folder / f"run-{start}", f"copies-{start}"
            folder.mkdir()
            done = subprocess.run(
                [*command, self._uri, self._journal, folder, topic],
                capture_output=True,
                text=True,
                env=dict(environment),
                cwd=folder,
                check=False,
            )
            if TOO_LATE not in done.stderr or start + 1 == STARTS:
                return self._checked(done, topic)
        raise AssertionError("unreachable")

    def _checked(self, done: subprocess.CompletedProcess[str], topic: str) -> Found:
        assert done.returncode == 0, reason(done.stderr)
        found = Found(**json.loads(done.stdout.splitlines()[-1]))
        copies = [row.data for row in model_rows(self._journal) if row.topic == topic]
        assert sorted(copies) == sorted(BODIES)  # each once
        return found


def reason(stderr: str) -> str:
    """What a program has said without the log and the traces of Java, which are long."""
    lines = (each for each in stderr.splitlines() if " INFO " not in each and "\tat " not in each)
    return "\n".join(lines)[-5000:]


def check(found: Found) -> None:
    """The program has read all orders, repeated a batch, and found nothing wrong."""
    assert (found.journal, found.read_journal, found.server) == (500, 500, 500)
    assert found.batches == [[0, 1], [0, 1]]
    assert found.judgement == "good"
    assert "unknown option topik: did you mean topic" in found.refused


@contextmanager
def pipeline(folder: Path) -> Generator[Pipeline]:
    """A broker for a `with` block, which has the orders."""
    journal = folder / "journal"
    with BrokerProcess(data_dir=journal) as broker:
        publish(broker.uri, "orders", BODIES)
        yield Pipeline(broker.uri, journal, folder)

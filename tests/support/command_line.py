"""The command line in the test's own process, so that coverage and debuggers see it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from haclient.cli.app import run
from haclient.cli.output import STDOUT
from haclient_fake_server.testing.processes import BrokerProcess
from support.process import LIMIT_S

__all__ = ["CommandLine", "printed_to_pipe"]

PIPE_BYTES = 1 << 20


class CommandLine:
    """Runs the command line in this process; returns exit code and output."""

    def __init__(self, broker: BrokerProcess, capture: pytest.CaptureFixture[str]) -> None:
        self._broker = broker
        self._capture = capture

    def __call__(self, command: str, *words: str | Path) -> tuple[int, list[str], str]:
        """Exit code, lines of stdout, and stderr."""
        code = run([command, "--server", self._broker.uri, *map(str, words)])
        out, err = self._capture.readouterr()
        return code, out.splitlines(), err

    def publish(self, topic: str, *lines: str) -> None:
        """Publish messages, and wait until they are persisted."""
        messages = [word for line in lines for word in ("-m", line)]
        code, _, err = self("publish", "--topic", topic, *messages)
        assert (code, err) == (0, "")

    def read_by(
        self,
        read: Callable[[BinaryIO], object],
        command: str,
        *words: str | Path,
        pipe_bytes: int = PIPE_BYTES,
    ) -> tuple[int, str]:
        """Exit code and stderr of a command whose stdout is a pipe.

        Args:
            read: Reads the pipe, in a thread of its own, and closes it when it returns.
            command: Of the command line.
            words: Behind it.
            pipe_bytes: What the pipe holds: the command runs at most so far ahead of `read`.
        """
        with printed_to_pipe(read, pipe_bytes):
            code = run([command, "--server", self._broker.uri, *map(str, words)])
        return code, self._capture.readouterr().err


@contextmanager
def printed_to_pipe(
    read: Callable[[BinaryIO], object], pipe_bytes: int = PIPE_BYTES
) -> Generator[None]:
    """What this process writes to its stdout goes into a pipe that a thread reads."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, pipe_bytes)

    def work() -> None:
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            read(pipe)

    kept = os.dup(STDOUT)
    with ThreadPoolExecutor(1) as threads:
        os.dup2(writer, STDOUT)
        os.close(writer)
        try:
            reading = threads.submit(work)
            yield
        finally:
            os.dup2(kept, STDOUT)
            os.close(kept)
        reading.result(LIMIT_S)

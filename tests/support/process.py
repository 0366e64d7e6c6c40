"""Subprocesses for tests: start, watch, kill and wait, each with a time limit.

A child's stdout is a pipe that the test reads line by line (`lines`), so a test waits for observed
progress and never for a while; with a small pipe the child cannot run far ahead of what was read.
Its stderr goes to a file and can be read at any time.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from haclient_fake_server.testing.processes import BrokerProcess

__all__ = [
    "LIMIT_S",
    "QUICK_JAVA",
    "QUICK_JVM",
    "SMALL_PIPE_BYTES",
    "Child",
    "Result",
    "haclient",
    "interrupted",
    "is_running",
    "python_environment",
    "run_script",
    "running_broker",
    "start_haclient",
]

LIMIT_S = 300.0
"""How long a test waits for any one thing before it fails: only what hangs takes so long."""

SMALL_PIPE_BYTES = 4096

QUICK_JVM = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""For a JVM of a few rows: it compiles quickly rather than well, and trusts what it loads."""

QUICK_JAVA = {"JAVA_TOOL_OPTIONS": QUICK_JVM}
"""The environment of a command that starts such a JVM."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a process ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def python_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our environment, with the same modules to import as this process has."""
    environment = {name: value for name, value in os.environ.items() if name != "AMPS_URI"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    environment.update(extra or {})
    return environment


def is_running(pid: int) -> bool:
    """Whether there is a process of this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def run_script(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Start Python with some code; every warning is shown."""
    return subprocess.Popen(
        [sys.executable, "-W", "always", "-c", code, *arguments],
        env=python_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def interrupted(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Interrupt a script that has printed `waits`; returns what it printed until its end."""
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT_S)
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert process.returncode == -signal.SIGINT
    return out, err


class Child:
    """A running subprocess. Leave it with `kill` or `wait`; `with` kills what is still running."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        pipe_bytes: int = 1 << 20,
        before_exec: Callable[[], None] | None = None,
    ) -> None:
        self._err: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._err,
            env=python_environment(environment),
            pipesize=pipe_bytes,
            preexec_fn=before_exec,  # noqa: PLW1509 - tests start no threads
        )
        assert self._process.stdout is not None
        self._out = self._process.stdout
        self._buffer = b""
        self._at_end = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def has_output(self) -> bool:
        """Whether there is output on stdout that was not read yet, or it has ended."""
        return bool(self._buffer) or _is_readable(self._out, 0)

    @property
    def err(self) -> str:
        """What it wrote to stderr so far."""
        size = os.fstat(self._err.fileno()).st_size
        return os.pread(self._err.fileno(), size, 0).decode(errors="replace")

    def _fill(self, deadline: float) -> None:
        left = deadline - time.perf_counter()
        if left <= 0 or not _is_readable(self._out, left):
            raise AssertionError(f"nothing more came in time; stderr: {self.err}")
        chunk = os.read(self._out.fileno(), 1 << 16)
        self._at_end = not chunk
        self._buffer += chunk

    def lines(self, count: int, *, limit_s: float = LIMIT_S) -> list[bytes]:
        """The next `count` lines of its stdout, fewer only when it ended."""
        deadline = time.perf_counter() + limit_s
        while self._buffer.count(b"\n") < count and not self._at_end:
            self._fill(deadline)
        *whole, rest = self._buffer.split(b"\n")
        taken, left = whole[:count], whole[count:]
        self._buffer = b"\n".join((*left, rest))
        return taken

    def line(self, *, limit_s: float = LIMIT_S) -> str:
        """The next line of its stdout.

        Raises:
            AssertionError: It ended without one.
        """
        found = self.lines(1, limit_s=limit_s)
        assert found, f"it ended with {self.wait()} and said: {self.err}"
        return found[0].decode()

    def rest(self, *, limit_s: float = LIMIT_S) -> list[bytes]:
        """All lines until its stdout ends; a last line without an end counts, too."""
        deadline = time.perf_counter() + limit_s
        while not self._at_end:
            self._fill(deadline)
        rest, self._buffer = self._buffer, b""
        return rest.removesuffix(b"\n").split(b"\n") if rest else []

    def close_stdout(self) -> None:
        """Go away as its reader."""
        self._out.close()

    def stop(self, number: int = signal.SIGTERM, *, limit_s: float = LIMIT_S) -> int:
        """Send a signal and wait; the exit code."""
        self._process.send_signal(number)
        return self.wait(limit_s=limit_s)

    def send(self, number: int) -> None:
        """Send a signal and do not wait."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait until the kernel has buried it."""
        self._process.kill()
        self._process.wait(LIMIT_S)

    def wait(self, *, limit_s: float = LIMIT_S) -> int:
        """Wait for its end; the exit code.

        Raises:
            subprocess.TimeoutExpired: It is still running.
        """
        return self._process.wait(limit_s)

    def close(self) -> None:
        """Kill it if it runs, and give back the descriptors."""
        if self.is_running:
            self.kill()
        self._out.close()
        self._err.close()


def _is_readable(source: IO[bytes], seconds: float) -> bool:
    poll = select.poll()  # `select` takes no descriptor from 1 024 on
    poll.register(source, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _command(arguments: Sequence[str | Path]) -> list[str]:
    return [sys.executable, "-m", "haclient", *map(str, arguments)]


def start_haclient(
    *arguments: str | Path,
    environment: Mapping[str, str] | None = None,
    pipe_bytes: int = 1 << 20,
    before_exec: Callable[[], None] | None = None,
) -> Child:
    """Start the command line in a process of its own."""
    return Child(
        _command(arguments), environment=environment, pipe_bytes=pipe_bytes, before_exec=before_exec
    )


def haclient(
    *arguments: str | Path,
    stdin: bytes = b"",
    environment: Mapping[str, str] | None = None,
    limit_s: float = LIMIT_S,
    before_exec: Callable[[], None] | None = None,
) -> Result:
    """Run the command line to its end."""
    done = subprocess.run(
        _command(arguments),
        input=stdin,
        capture_output=True,
        env=python_environment(environment),
        timeout=limit_s,
        check=False,
        preexec_fn=before_exec,
    )
    return Result(
        done.returncode,
        done.stdout.decode(errors="replace"),
        done.stderr.decode(errors="replace"),
    )


@contextmanager
def running_broker(data: Path, *options: str, port: int = 0) -> Generator[BrokerProcess]:
    """`haclient broker run` on a free port, killed at the end."""
    command = _command(["broker", "run"])
    listen = f"tcp://127.0.0.1:{port}"
    with BrokerProcess(*options, data_dir=data, listen=listen, command=command) as broker:
        yield broker

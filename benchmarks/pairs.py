"""Two servers in processes of their own: one is killed, the other one is there, both come back."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from benchmarks.machine import SERVER_CORE
from benchmarks.scenario import module_process

__all__ = ["Pair", "free_ports"]

_PORTS: Final = range(20_000, 32_000)
"""Below those that the system gives to outgoing connections, which would take a killed server's."""

_SHOWN: Final = 4000
"""Characters of the log that are shown: the end tells most."""


def free_ports(count: int, source: random.Random | None = None) -> list[int]:
    """Ports that nobody listens on now, and that no outgoing connection gets."""
    chance = source or random.Random()
    found: list[int] = []
    while len(found) < count:
        port = chance.choice(_PORTS)
        try:
            with socket.create_server(("127.0.0.1", port)):
                pass
        except OSError:
            continue
        if port not in found:
            found.append(port)
    return found


class Pair:
    """Two processes, each started by `command(index)`, which says a line when it is ready.

    Args:
        command: Module and arguments of server 0 and 1; the same for each of its lives.
        ports: Where they listen.
        log: A file for what they say on stderr; it is shown when the run fails.
    """

    def __init__(
        self, command: Callable[[int], list[str]], ports: list[int], *, log: Path | None = None
    ) -> None:
        self._command = command
        self._log = log
        self.ports = ports
        self._processes: list[subprocess.Popen[str] | None] = [None, None]

    @property
    def uris(self) -> list[str]:
        """Both of them, for a client."""
        return [f"tcp://127.0.0.1:{port}/amps/json" for port in self.ports]

    def __enter__(self) -> Self:
        try:
            for index in range(2):
                self.start(index)
        except BaseException:
            self._end()
            self._show_log()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()
        if error is not None:
            self._show_log()

    def start(self, index: int) -> None:
        """Start one that is not running, and wait until it is ready."""
        with self._log.open("a") if self._log else nullcontext() as errors:
            process = module_process(*self._command(index), errors=errors)
        self._processes[index] = process
        if hasattr(os, "sched_setaffinity") and SERVER_CORE in range(os.cpu_count() or 0):
            os.sched_setaffinity(process.pid, {SERVER_CORE})
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"server {index} ended with {process.wait()} and never listened")

    def kill(self, index: int) -> None:
        """SIGKILL, without waiting for the end."""
        process = self._processes[index]
        assert process is not None
        process.kill()

    def wait_killed(self, index: int) -> None:
        """Wait for the end of a broker after `kill`, and release it."""
        process = self._processes[index]
        assert process is not None
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._processes[index] = None

    def _show_log(self) -> None:
        if self._log is not None:
            sys.stderr.write(self._log.read_text(encoding="utf-8")[-_SHOWN:])

    def _end(self) -> None:
        for index, process in enumerate(self._processes):
            if process is not None:
                self.kill(index)
                self.wait_killed(index)

"""The processes of `haclient demo` as its conductor sees them: started, heard, killed, buried.

A `Company` holds all of them and their directory; leaving it kills whatever still runs and removes
the directory, however it is left. Each process is the leader of a session of its own, so that
Ctrl-C reaches the conductor alone, and ends by itself when the conductor is gone.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import trio

from haclient.errors import HAClientError

__all__ = ["Company", "DemoFailed", "Member", "open_company", "reserved_ports"]


class DemoFailed(HAClientError):
    """The demo could not be carried out: there is no verdict."""


class Member:
    """One running process.

    Args:
        name: What people call it.
        process: Started with pipes for standard input and output.
        errors: The file that its standard error goes to.
    """

    def __init__(self, name: str, process: trio.Process, errors: Path) -> None:
        self._name = name
        self._process = process
        self._errors = errors
        self._may_end = False

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def say(self, text: str) -> None:
        """Write a line to its standard input; one that has just died does not hear it."""
        if self._process.stdin is not None:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self._process.stdin.send_all(f"{text}\n".encode())

    async def lines(self) -> AsyncGenerator[bytes]:
        """Its standard output, line by line, until it ends.

        Raises:
            DemoFailed: It ended, and was neither killed nor told to.
        """
        rest = b""
        if self._process.stdout is not None:
            async for chunk in self._process.stdout:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line
        await self._process.wait()
        if not self._may_end:
            raise self._failure()

    def _failure(self) -> DemoFailed:
        words = self._errors.read_text(errors="replace").strip().splitlines()
        last = words[-1] if words else "it said nothing"
        return DemoFailed(f"the {self._name} ended with {self._process.returncode}: {last}")

    async def stop(self) -> None:
        """SIGTERM, and wait until it has ended in order.

        Raises:
            DemoFailed: It ended with an error.
        """
        await self._end(signal.SIGTERM)
        if self._process.returncode:
            raise self._failure()

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        await self._end(signal.SIGKILL)

    async def _end(self, number: int) -> None:
        self._may_end = True
        self._process.send_signal(number)
        await self._process.wait()


class Company:
    """The processes that were started, and the directory of their files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._members: list[Member] = []

    async def start(self, name: str, role: str, *arguments: str) -> Member:
        """Start a role of `haclient.cli.demo_worker`."""
        errors = self.directory / f"{name.replace(' ', '-')}.{len(self._members)}.err"
        command = [sys.executable, "-m", "haclient.cli.demo_worker", role, *arguments]
        # The same modules as ours, wherever they were imported from.
        path = os.pathsep.join(each for each in sys.path if each)
        with errors.open("wb") as file, trio.CancelScope(shield=True):
            process = await trio.lowlevel.open_process(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )
            self._members.append(Member(name, process, errors))
        return self._members[-1]

    async def bury(self) -> None:
        """Kill whoever still runs."""
        for member in self._members:
            await member.kill()


@asynccontextmanager
async def open_company() -> AsyncGenerator[Company]:
    """A company that leaves neither a process nor a file behind."""
    with tempfile.TemporaryDirectory(prefix="haclient-demo-") as directory:
        company = Company(Path(directory))
        try:
            yield company
        finally:
            with trio.CancelScope(shield=True):
                await company.bury()


@contextmanager
def reserved_ports(count: int) -> Generator[list[int]]:
    """Ports of the loopback that only whoever knows them takes.

    Each is held by a socket that is bound and does not listen. A server that reuses addresses may
    listen beside it; nobody else is given the port, not even while that server is dead: a client
    that dials a free port of the loopback may otherwise be given that very port, and meet itself.
    """
    with ExitStack() as stack:
        ports: list[int] = []
        for _ in range(count):
            holder = stack.enter_context(socket.socket())
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 0))
            ports.append(holder.getsockname()[1])
        yield ports

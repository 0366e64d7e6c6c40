"""The processes of `haclient demo`, and the messages that they exchange with the main process.

A `ProcessGroup` owns all processes and their directory. On exit it kills the processes that still
run and removes the directory. Each process leads a session of its own, so that Ctrl-C reaches only
the main process, and each ends by itself when the main process is gone.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
import trio

from haclient.cli.demo.pace import DemoPace
from haclient.errors import HAClientError

TOPIC: Final = "orders"
"""Where the publisher publishes."""

QUEUE: Final = "jobs"
"""The queue over that topic."""

WORKER_BACKLOG: Final = 20
"""How many unacknowledged jobs a worker may have."""

TICK_S: Final = 0.02
"""How often a demo checks its processes."""

PATIENCE_S: Final = 120.0
"""After so long without progress a demo ends. A busy machine needs long to start a process."""


class DemoFailed(HAClientError):
    """The demo could not be carried out: there is no verdict."""


class Stuck(Exception):
    """The demo has made no progress for too long."""


async def wait_until(
    condition: Callable[[], bool], read_progress: Callable[[], object], *, patience_s: float
) -> None:
    """Wait for a condition.

    Args:
        condition: Checked after each call of `read_progress`.
        read_progress: Reads what the processes have written; its result changes with progress.
        patience_s: How many seconds may pass without progress.

    Raises:
        Stuck: There was no progress for too long.
    """
    progress, since = read_progress(), trio.current_time()
    while not condition():
        await trio.sleep(TICK_S)
        now, last = trio.current_time(), progress
        progress = read_progress()
        if progress != last:
            since = now
        elif now - since > patience_s:
            raise Stuck


async def keep_pace(publisher: DemoProcess, pace: DemoPace) -> None:
    """Send the publisher, at each tick, how many messages it may have published."""
    while True:
        await publisher.send_line(str(pace.allowed(trio.current_time())))
        await trio.sleep(TICK_S)


@contextmanager
def first_failure() -> Generator[None]:
    """Raise one `DemoFailed` where several processes failed at the same moment."""
    try:
        yield
    except ExceptionGroup as group:
        failures, others = group.split(DemoFailed)
        if failures is None or others is not None:
            raise
        raise failures.exceptions[0] from None


class DemoProcess:
    """One running process.

    Args:
        name: Its name in output and errors.
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

    async def send_line(self, text: str) -> None:
        """Write a line to its standard input; a process that has just ended is no error."""
        if self._process.stdin is not None:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self._process.stdin.send_all(f"{text}\n".encode())

    async def lines(self) -> AsyncGenerator[bytes]:
        """Its standard output, line by line, until it ends.

        Raises:
            DemoFailed: It ended without having been killed or stopped.
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
        """Send SIGTERM, and wait until the process has ended cleanly.

        Raises:
            DemoFailed: It ended with an error.
        """
        await self._end(signal.SIGTERM)
        if self._process.returncode:
            raise self._failure()

    async def kill(self) -> None:
        """Send SIGKILL, and wait until it has ended."""
        await self._end(signal.SIGKILL)

    async def _end(self, number: int) -> None:
        self._may_end = True
        self._process.send_signal(number)
        await self._process.wait()


class ProcessGroup:
    """The processes that were started, and the directory of their files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._processes: list[DemoProcess] = []

    async def start(self, name: str, role: str, *arguments: str) -> DemoProcess:
        """Start a role of `haclient.cli.demo.worker`."""
        errors = self.directory / f"{name.replace(' ', '-')}.{len(self._processes)}.err"
        command = [sys.executable, "-m", "haclient.cli.demo.worker", role, *arguments]
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
            self._processes.append(DemoProcess(name, process, errors))
        return self._processes[-1]

    async def kill_all(self) -> None:
        """Kill every process that still runs."""
        for process in self._processes:
            await process.kill()


@asynccontextmanager
async def open_process_group() -> AsyncGenerator[ProcessGroup]:
    """A group that leaves neither a process nor a file behind."""
    with tempfile.TemporaryDirectory(prefix="haclient-demo-") as directory:
        group = ProcessGroup(Path(directory))
        try:
            yield group
        finally:
            with trio.CancelScope(shield=True):
                await group.kill_all()


@contextmanager
def reserved_ports(count: int, *, first: int = 0) -> Generator[list[int]]:
    """Loopback ports, reserved so that no other program is given them.

    Args:
        count: How many.
        first: The first of consecutive ones; 0 for any that are free.

    Each is held by a socket that is bound and does not listen. A server with SO_REUSEADDR can still
    listen on the port, but no other program can take it while that server is down. Without this, a
    client that dials a free loopback port may be given that very port as its own and connect to
    itself.

    Raises:
        OSError: One of them is in use.
    """
    with ExitStack() as stack:
        ports: list[int] = []
        for number in range(count):
            holder = stack.enter_context(socket.socket())
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port = first and first + number
            try:
                holder.bind(("127.0.0.1", port))
            except OSError as error:
                raise OSError(error.errno, error.strerror, f"127.0.0.1:{port}") from error
            ports.append(holder.getsockname()[1])
        yield ports


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """The task of a publisher or subscriber.

    Attributes:
        servers: URIs, best first.
        store: Path of its store.
        trace: Where the subscriber writes its trace.
        marks: The capacity of that trace, in marks.
    """

    servers: tuple[str, ...]
    store: str
    trace: str = ""
    marks: int = 0


class Report(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One line of a worker's standard output; unknown fields are left out.

    Attributes:
        ready: It is connected; the subscriber has subscribed.
        published: How many messages the publisher's store has taken.
        persisted: How many of them the brokers have persisted.
        resumed_ns: When the first message after a lost connection arrived, on the monotonic clock.
        caught_up: The subscriber has received everything that was in the log when it subscribed.
    """

    ready: bool = False
    published: int | None = None
    persisted: int | None = None
    resumed_ns: int | None = None
    caught_up: bool = False

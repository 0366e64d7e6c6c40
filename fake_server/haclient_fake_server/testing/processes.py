"""A reference broker as a process of its own: killed, paused and started again.

::

    with BrokerProcess("--sow", "prices:/id", data_dir=path) as broker:
        ...                         # connect to broker.uri
        broker.kill()               # SIGKILL
        broker.start()              # the same port and the same data

It does not need trio; in a trio program, run `start` and `stop` in a thread.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self
from urllib.parse import urlsplit

import trio

from haclient.errors import HAClientError, TimedOut, UsageError
from haclient_fake_server.kill_points import KillPoint, KillPoints
from haclient_fake_server.testing.faults import Kill, from_json, to_json

__all__ = ["BrokerProcess"]

LIMIT_S: Final = 300.0
"""How long a start or an end of the process may take, also on a machine with much other work."""


_COMMAND: Final = (sys.executable, "-m", "haclient", "broker", "run", "--faults-from-stdin")


class BrokerProcess:
    """`haclient broker run`, started when the block is entered and killed at its end.

    Args:
        arguments: More arguments of the command.
        data_dir: Directory of the journal; without it, the journal is lost with the process.
        listen: Address to listen on; port 0 takes a free port, which a restart keeps.
        command: What to run instead, such as `[sys.executable, "-m", "haclient", "broker", "run"]`.

    Attributes:
        address: Where it listens, with its real port once it was started.
    """

    def __init__(
        self,
        *arguments: str,
        data_dir: Path | None = None,
        listen: str = "tcp://127.0.0.1:0",
        command: Sequence[str] = _COMMAND,
    ) -> None:
        self.address = listen
        self._command = list(command)
        self._arguments = list(arguments)
        if data_dir is not None:
            self._arguments += ["--data", str(data_dir)]
        elif command is _COMMAND:
            self._arguments.append("--in-memory")
        self._process: subprocess.Popen[bytes] | None = None
        self._out: IO[bytes] | None = None
        self._err: IO[bytes] | None = None
        self._reserved: socket.socket | None = None

    @property
    def uri(self) -> str:
        """The address for clients; the port is known once it was started."""
        return f"{self.address}/amps/json"

    @property
    def is_running(self) -> bool:
        """Whether the process exists."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id.

        Raises:
            UsageError: It does not run.
        """
        return self._running().pid

    @property
    def err(self) -> str:
        """The output on stderr since the last start."""
        if self._err is None:
            return ""
        size = os.fstat(self._err.fileno()).st_size
        return os.pread(self._err.fileno(), size, 0).decode(errors="replace")

    def start(self) -> None:
        """Start it on the same port and data as before; returns when it listens.

        Raises:
            UsageError: It runs.
            HAClientError: It ended instead; the error has its output on stderr.
            TimedOut: It does not listen after five minutes, and was killed.
        """
        if self.is_running:
            raise UsageError(f"the broker at {self.address} runs already")
        self._end()
        self._err = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `_end`
        self._process = subprocess.Popen(  # noqa: S603 - our own command
            [*self._command, "--listen", self.address, *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._err,
            env=_environment(),
        )
        self._out = self._process.stdout
        try:
            self.address = self._next_line("listening")
        except BaseException:  # also a KeyboardInterrupt: leave no process behind
            self.close()
            raise
        self._release_port()

    def kill(self) -> None:
        """Send SIGKILL and wait for the end; nothing happens if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(LIMIT_S)
            self._reserve_port()

    def kill_at(self, fault: Kill) -> None:
        """Have it kill itself at a point; returns when the point is armed. See `wait`.

        Args:
            fault: With the name of a point.

        Raises:
            UsageError: It does not run, or is another command.
            HAClientError: It ended meanwhile.
            TimedOut: It does not answer after five minutes.
        """
        process = self._running()
        if process.stdin is None or _COMMAND[-1] not in self._command:
            raise UsageError(f"{self._command} takes no faults")
        process.stdin.write(to_json(fault).encode() + b"\n")
        process.stdin.flush()
        self._next_line("armed")

    def wait(self) -> int:
        """Wait until it has ended.

        Returns:
            The exit code, or minus the number of the signal that has killed it.

        Raises:
            UsageError: It was never started.
            TimedOut: It still runs after five minutes.
        """
        if self._process is None:
            raise UsageError(f"the broker at {self.address} was not started")
        try:
            code = self._process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise TimedOut(f"the broker at {self.address} still runs") from None
        self._reserve_port()
        return code

    def stop(self) -> int:
        """Send SIGTERM and wait for the end. A paused process is resumed first.

        Returns:
            The exit code.

        Raises:
            UsageError: It does not run.
            TimedOut: It still runs after five minutes.
        """
        process = self._running()
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise TimedOut(f"the broker at {self.address} did not stop on SIGTERM") from None
        self._reserve_port()
        return code

    def pause(self) -> None:
        """Send SIGSTOP: the process does nothing, but the kernel still accepts connections for it.

        Raises:
            UsageError: It does not run.
        """
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT, which ends a pause.

        Raises:
            UsageError: It does not run.
        """
        self._running().send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill it if it runs, close the pipes to it, and let others have its port."""
        self._end()
        self._release_port()

    def _end(self) -> None:
        self.kill()
        faults = None if self._process is None else self._process.stdin
        for each in (self._out, self._err, faults):
            if each is not None:
                with contextlib.suppress(BrokenPipeError):  # a fault that it did not live to read
                    each.close()
        self._process = self._out = self._err = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _reserve_port(self) -> None:
        """Keep the port until the next start, or another program may be given it meanwhile.

        A socket that is bound and does not listen is enough: the broker sets SO_REUSEADDR, too, and
        can listen there nevertheless. Other systems than Linux would refuse that.
        """
        address = urlsplit(self.address)
        if sys.platform != "linux" or self._reserved is not None or not address.port:
            return
        host = address.hostname or ""
        found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, address.port))
        except OSError:  # it was no address of this machine, or is taken already: `start` says so
            found.close()
        else:
            self._reserved = found

    def _release_port(self) -> None:
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise UsageError(f"the broker at {self.address} does not run")
        return self._process

    def _next_line(self, wanted: str) -> str:
        """The rest of the next line of its standard output, which begins with `wanted`."""
        if self._out is None:
            raise UsageError(f"the broker at {self.address} does not run")
        line, deadline = b"", time.perf_counter() + LIMIT_S
        while b"\n" not in line:
            left = deadline - time.perf_counter()
            if left <= 0 or not _is_readable(self._out.fileno(), left):
                raise TimedOut(f"no {wanted!r} of the broker within {LIMIT_S:g} s: {self.err}")
            chunk = os.read(self._out.fileno(), 4096)
            if not chunk:
                raise HAClientError(f"the broker did not start: {self.err.strip()}")
            line += chunk
        word, _, rest = line.split(b"\n")[0].decode().partition(" ")
        if word != wanted:
            raise HAClientError(f"the broker wrote {line!r} instead of {wanted!r}")
        return rest


def _is_readable(fd: int, seconds: float) -> bool:
    """Wait for data or the end of a file; `select` would fail for descriptors above 1 023.

    Args:
        fd: The descriptor.
        seconds: How long to wait.
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _environment() -> dict[str, str]:
    """This environment, with the import path of this process, whether installed or not."""
    paths = os.pathsep.join(path for path in sys.path if path)
    return {**os.environ, "PYTHONPATH": paths}


async def take_faults(points: KillPoints) -> None:
    """Arm the kill points that the lines of standard input name, until it ends."""
    rest = b""
    async for chunk in trio.lowlevel.FdStream(os.dup(0)):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            fault = from_json(line)
            if isinstance(fault, Kill) and fault.at:
                points.arm(KillPoint(fault.at), passes=fault.passes)
                sys.stdout.write(f"armed {fault.at}\n")
                sys.stdout.flush()

"""A standalone cluster of Apache Spark on loopback, from the pip package: a master and two workers.

Every daemon is the leader of a session of its own. Executors and Python workers are its
descendants and stay in that session, so that `close` finds and kills them all, whatever became of
the process that had started them. Ports are free ones, which the daemons choose and print.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from support.process import QUICK_JVM, python_environment

__all__ = [
    "Daemon",
    "StandaloneCluster",
    "kill_session",
    "session_processes",
    "setting_words",
    "spark_environment",
]

QUICK_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK_JVM,
    "spark.sql.shuffle.partitions": "2",
    # Few rows: a plan is interpreted faster than it is compiled.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""For a program of a few rows."""

HOSTS: Final = ("127.0.0.1", "127.0.0.2")
"""Of the workers. Two addresses count as two machines."""

LIMIT_S: Final = 120.0
"""How long a daemon may take to start, or a session of processes to end."""

_TAIL_LINES: Final = 20
_EXECUTOR: Final = b"CoarseGrainedExecutorBackend"

# The heap is small and the just-in-time compiler a quick one: daemons only pass messages.
_DAEMON_OPTIONS: Final = f"{QUICK_JVM} -Dspark.master.rest.enabled=false"


class Daemon:
    """A process of Apache Spark whose output is kept, line by line, while it runs.

    Args:
        name: What an error calls it.
        arguments: Of `spark-class`: a class, and what belongs to it.
        environment: As `spark_environment` makes it.
        folder: Its working directory.
    """

    def __init__(
        self, name: str, arguments: list[str], *, environment: Mapping[str, str], folder: Path
    ) -> None:
        self._name = name
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            [f"{environment['SPARK_HOME']}/bin/spark-class", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=folder,
            start_new_session=True,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def session(self) -> int:
        """The session of its processes."""
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._lines.append(line.rstrip())
                self._changed.notify_all()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first line of its output that matches.

        Raises:
            AssertionError: There is none in time; it shows the end of the output.
        """

        def found() -> re.Match[str] | None:
            return next((hit for line in self._lines if (hit := re.search(pattern, line))), None)

        deadline = time.perf_counter() + LIMIT_S
        with self._changed:
            while (hit := found()) is None:
                left = deadline - time.perf_counter()
                if left <= 0 or self._process.poll() is not None:
                    tail = "\n".join(self._lines[-_TAIL_LINES:])
                    raise AssertionError(
                        f"{self._name} has not printed {pattern!r} "
                        f"(exit code {self._process.poll()}); the end of its output:\n{tail}"
                    )
                self._changed.wait(min(left, 1.0))  # the end of a process notifies nobody
            return hit

    def close(self) -> None:
        """Kill it with all its descendants."""
        kill_session(self.session)
        self._process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


class StandaloneCluster:
    """One master and two workers with a core each, killed when the block is left.

    Args:
        folder: Where everything is that they write.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._daemons: list[Daemon] = []
        self.master = ""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:  # a KeyboardInterrupt, too, leaves no process behind
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        start = "org.apache.spark.deploy"
        options = ["--host", HOSTS[0], "--port", "0", "--webui-port", "0"]
        master = self._daemon("the master", HOSTS[0], [f"{start}.master.Master", *options])
        self.master = master.wait_for(r"Starting Spark master at (spark://\S+)")[1]
        workers: list[Daemon] = []
        for host in HOSTS:
            options = ["--host", host, "--port", "0", "--webui-port", "0"]
            options += ["--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / host)]
            arguments = [f"{start}.worker.Worker", *options, self.master]
            workers.append(self._daemon(f"the worker {host}", host, arguments))
        for worker in workers:
            worker.wait_for("Successfully registered with master")

    def _daemon(self, name: str, host: str, arguments: list[str]) -> Daemon:
        daemon = Daemon(name, arguments, environment=self.environment(host), folder=self._folder)
        self._daemons.append(daemon)
        return daemon

    def environment(self, host: str = HOSTS[0]) -> dict[str, str]:
        """The environment of a process that takes part: a daemon, or a driver.

        Args:
            host: The address of its machine.
        """
        return spark_environment(
            self._folder,
            {
                "SPARK_DAEMON_MEMORY": "256m",
                "SPARK_DAEMON_JAVA_OPTS": _DAEMON_OPTIONS,
                "SPARK_LOCAL_IP": host,
            },
        )

    def executors(self) -> list[int]:
        """The process ids of the executors that run."""
        workers = [daemon.session for daemon in self._daemons]
        return [
            pid
            for session in workers
            for pid in session_processes(session)
            if _EXECUTOR in _read(Path(f"/proc/{pid}/cmdline"))
        ]

    def close(self) -> None:
        """Kill all processes of the cluster; nothing that they write is needed any more."""
        for daemon in reversed(self._daemons):
            daemon.close()
        self._daemons.clear()


def setting_words() -> list[str]:
    """The quick settings for the command line of `spark-submit`."""
    pairs = (("--conf", f"{name}={value}") for name, value in QUICK_SETTINGS.items())
    return [word for pair in pairs for word in pair]


def spark_environment(folder: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process of Apache Spark, whose workers run our Python.

    Args:
        folder: Where it writes.
        extra: More variables.
    """
    from pyspark.find_spark_home import _find_spark_home  # noqa: PLC0415 - an extra

    return python_environment(
        {
            "SPARK_HOME": _find_spark_home(),
            "SPARK_CONF_DIR": str(folder),  # not what the machine may have
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            "SPARK_LOCAL_IP": HOSTS[0],
            "PYSPARK_PYTHON": sys.executable,
            **(extra or {}),
        }
    )


def session_processes(session: int) -> list[int]:
    """The processes of a session, without those that have ended and wait for their parent."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            # the name of the program is in parentheses, and may have some
            fields = _read(entry / "stat").rpartition(b")")[2].split()
            if fields and fields[0] not in {b"Z", b"X"} and int(fields[3]) == session:
                found.append(int(entry.name))
    return found


def kill_session(session: int) -> None:
    """SIGKILL for every process of a session; returns when none is left.

    Raises:
        AssertionError: One does not end.
    """
    deadline = time.perf_counter() + LIMIT_S
    while left := session_processes(session):  # a process may start another one meanwhile
        assert time.perf_counter() < deadline, f"the processes {left} do not end"
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return b""

"""Processes of PySpark that start at once: forks of one that has imported what they need.

PySpark starts a Python process for each start of a stream and for each commit of a sink, and
imports for most of a second in it; on a busy machine that takes longer than the ten seconds that
it waits. The module that it wants is run as it is, as the main one, in the fork.

As a program: the server. Its argument is the path of its socket; it ends with its standard input.
"""

from __future__ import annotations

import array
import atexit
import gc
import importlib
import marshal
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NoReturn

from support.process import python_environment

__all__ = ["WARM_PYTHON", "warm_python"]

WARM_PYTHON: Final = "HACLIENT_WARM_PYTHON"
"""The variable with the path of the socket; a process without it starts as usual."""

_WARM_START: Final = Path(__file__).parent / "warm_start"
"""The folder to be on the path of PySpark's processes."""

_MESSAGE_BYTES: Final = 1 << 17
_FILES: Final = 3
_IMPORTED: Final = (
    "numpy",
    "pyarrow.parquet",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.worker",
    "haclient.pyspark.amps",
    "haclient.pyspark.journal.source",
    "haclient.pyspark.server.stream",
    "haclient.pyspark.sink.publish",
)
"""The modules that the processes need, without those that PySpark runs as the main module."""


@contextmanager
def warm_python() -> Generator[dict[str, str]]:
    """A server for a `with` block; yields the variables that let processes use it."""
    # As PySpark's own workers: they agree about the hashes of texts, and have a thread each.
    one_thread = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
    environment = python_environment(one_thread)
    with (
        # The path of a socket is short: at most a hundred bytes.
        tempfile.TemporaryDirectory(prefix="warm-") as folder,
        subprocess.Popen(
            [sys.executable, "-m", "support.warm_python", f"{folder}/socket"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        ) as server,
    ):
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stdout.readline(), "the server has not started"
        modules = os.pathsep.join([str(_WARM_START), *filter(None, sys.path)])
        yield {WARM_PYTHON: f"{folder}/socket", "PYTHONPATH": modules}
        server.stdin.close()


def serve(path: str) -> None:
    """Fork for each request, until the end of the standard input."""
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # what all have in common is not looked at by each
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(64)
        sys.stdout.write("\n")  # it is ready
        sys.stdout.flush()
        while True:
            ready = select.select([0, listener.fileno()], [], [])[0]
            if 0 in ready:
                return
            line, _ = listener.accept()
            message, ancillary, *_ = line.recvmsg(_MESSAGE_BYTES, socket.CMSG_SPACE(4 * _FILES))
            files = array.array("i", ancillary[0][2])
            if not os.fork():
                break
            for file in files:
                os.close(file)
            line.close()
            with suppress(ChildProcessError):  # none is left
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
    take_over(message, files)  # with `line` open, whose end is the end of this process


def take_over(message: bytes, files: array.array[int]) -> NoReturn:
    """Run in place of the requesting process, with its files, environment and arguments."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    arguments, environment = marshal.loads(message)  # noqa: S302 - from a process of ours
    os.environ.clear()
    os.environ.update(environment)
    known = set(sys.path)
    wanted = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [entry for entry in wanted if entry and entry not in known]
    sys.argv = ["-m", *arguments[1:]]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]  # a text file
    code: object = 0
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    atexit._run_exitfuncs()  # the tracer of coverage has one
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else bool(code))  # tidying up takes longer than all else


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt ends those who ask
    serve(sys.argv[1])

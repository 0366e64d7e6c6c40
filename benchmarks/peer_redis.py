"""redis-py with a real redis-server: streams, pipelined. Only where both are installed."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol, cast

from benchmarks.blast import payload
from benchmarks.outgoing import SIZES
from benchmarks.scenario import Scenario, Setting

__all__ = ["SCENARIOS", "free_port", "server"]

_COUNT = 30_000
_PIPELINE = 500
_START_S = 10.0


class _Pipeline(Protocol):
    def xadd(self, name: str, fields: dict[str, bytes]) -> object: ...
    def execute(self) -> list[object]: ...


class _Redis(Protocol):
    def pipeline(self, *, transaction: bool) -> _Pipeline: ...
    def xgroup_create(self, name: str, group: str, id: str) -> object: ...  # noqa: A002 - redis-py's
    def xreadgroup(
        self, group: str, consumer: str, streams: dict[str, str], count: int
    ) -> list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]: ...
    def xack(self, name: str, group: str, *ids: bytes) -> int: ...
    def close(self) -> None: ...


class _RedisModule(Protocol):
    def Redis(self, *, port: int) -> _Redis: ...  # noqa: N802 - redis-py's name


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _wait_for(port: int) -> None:
    deadline = time.perf_counter() + _START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.perf_counter() > deadline:
                raise
        else:
            return


@contextmanager
def server(command: Sequence[str], port: int) -> Generator[None]:
    """A server process on core 1, from the moment it listens until the end."""
    pinned = ["taskset", "-c", "1"] if shutil.which("taskset") else []
    process = subprocess.Popen(
        [*pinned, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait_for(port)
        yield
    finally:
        process.terminate()
        process.wait()


def _missing() -> str:
    if importlib.util.find_spec("redis") is None:
        return "redis-py is not installed"
    return "" if shutil.which("redis-server") else "redis-server is not installed"


def _publish(redis: _Redis, count: int, body: bytes) -> float:
    start = time.perf_counter()
    for _ in range(0, count, _PIPELINE):
        pipeline = redis.pipeline(transaction=False)
        for _ in range(_PIPELINE):
            pipeline.xadd("orders", {"data": body})
        pipeline.execute()
    return count / (time.perf_counter() - start)


def _consume(redis: _Redis, count: int) -> float:
    redis.xgroup_create("orders", "bench", "0")
    left, start = count, time.perf_counter()
    while left > 0:
        [(_, entries)] = redis.xreadgroup("bench", "one", {"orders": ">"}, _PIPELINE)
        redis.xack("orders", "bench", *(number for number, _ in entries))
        left -= len(entries)
    return count / (time.perf_counter() - start)


def _rows(label: str, setting: Setting) -> dict[str, float]:
    module = cast("_RedisModule", importlib.import_module("redis"))
    port, count = free_port(), max(_PIPELINE, int(_COUNT * setting.scale) // _PIPELINE * _PIPELINE)
    data = tempfile.mkdtemp(dir=setting.scratch)
    options = ("--port", str(port), "--dir", data, "--appendonly", "yes", "--save", "")
    with server(["redis-server", *options], port):
        redis = module.Redis(port=port)
        rows = {
            f"redis publish {label}": _publish(redis, count, payload(SIZES[label])),
            f"redis consume {label}": _consume(redis, count),
        }
        redis.close()
    return rows


SCENARIOS = [Scenario("redis", "messages/s", partial(_rows, label), _missing) for label in SIZES]

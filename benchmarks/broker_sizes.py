"""The reference broker with much in it: a long queue, a long log, many subscriptions and records.

Each is filled over a plain socket, since the broker is what is measured. `--scale` says how much of
ten million messages, of 20 000 subscriptions and of a million records there is.
"""

from __future__ import annotations

import socket
import tempfile
import time
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import trio

from benchmarks.blast import TOPIC, frame, payload
from benchmarks.brokers import broker_process, connected, deliver, running_broker
from benchmarks.scenario import Scenario, Setting
from haclient import Client
from haclient.stores import MemoryBookmarkStore, MemoryPublishStore

__all__ = ["SCENARIOS"]

_MESSAGES = 10_000_000
_SUBSCRIPTIONS = 20_000
_DELIVERED = 100_000
_RECORDS = 1_000_000
_CHUNK = 10_000
_READ_BYTES = 1 << 18
_LIMIT_S = 600.0
_BETWEEN_S = 0.002
_LOGON: Final = b'{"c":"logon","cid":"0","client_name":"bench-%b","mt":"json","a":"processed"}'
_ENDED: Final = b'"c":"group_end"'


@contextmanager
def _connection(uri: str, name: bytes) -> Generator[socket.socket]:
    """A plain connection that has logged on."""
    parts = urlsplit(uri)
    with socket.create_connection((parts.hostname or "", parts.port or 0), _LIMIT_S) as found:
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found.sendall(frame(_LOGON % name))
        found.recv(_READ_BYTES)
        yield found


def _read_until(connection: socket.socket, text: bytes) -> bytes:
    """The last bytes, which have a text."""
    last = b""
    while text not in last:
        chunk = connection.recv(_READ_BYTES)
        if not chunk:
            raise EOFError("the broker has closed the connection")
        last = last[-len(text) :] + chunk
    return last


def _fill(uri: str, count: int, header: bytes, body_of: Callable[[int], bytes]) -> None:
    """Publish so many messages, and wait until they are there; `header` has a `%d`."""
    with _connection(uri, b"fill") as connection:
        for first in range(1, count + 1, _CHUNK):
            numbers = range(first, min(first + _CHUNK, count + 1))
            connection.sendall(b"".join(frame(header % n, body_of(n)) for n in numbers))
        connection.sendall(frame(b'{"c":"flush","cid":"end","a":"persisted"}'))
        _read_until(connection, b'"cid":"end"')


def _fill_topic(uri: str, count: int) -> None:
    body = payload(100)
    _fill(uri, count, b'{"c":"p","t":"%b","s":%%d}' % TOPIC.encode(), lambda _: body)


def _status_kib(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _processor_s(pid: int) -> float:
    """What the threads of a process have used so far, those that have ended apart."""
    paths = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(path.read_text(encoding="ascii").split()[0]) for path in paths) / 1e9


def _queue_rows(setting: Setting) -> dict[str, float]:
    count = int(_MESSAGES * setting.scale)
    data, queue = tempfile.mkdtemp(dir=setting.scratch), f"{TOPIC},lease=60,file_backed=true"
    with running_broker(data, "--queue", queue) as broker:
        before = _status_kib(broker.pid, "VmRSS")
        _fill_topic(broker.uri, count)
        after, most = _status_kib(broker.pid, "VmRSS"), _status_kib(broker.pid, "VmHWM")
    return {
        "MiB of a broker with a long queue": after / 1024,
        "MiB at most while it was filled": most / 1024,
        "bytes per queued message": (after - before) * 1024 / count,
    }


async def _deliver(uri: str, count: int) -> float:
    async with (
        Client("bench-pub", publish_store=MemoryPublishStore()) as publisher,
        Client("bench-sub", bookmark_store=MemoryBookmarkStore()) as subscriber,
    ):
        for client in (publisher, subscriber):
            await connected(client, uri)
        return await deliver(publisher, subscriber, count)


async def _deliver_beside(idle: socket.socket, uri: str, count: int) -> float:
    """The same while what the broker sends to the idle subscriptions is read."""
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(idle))

    async def read() -> None:
        async for _ in stream:
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        found = await _deliver(uri, count)
        nursery.cancel_scope.cancel()
    return found


def _idle_rows(setting: Setting) -> dict[str, float]:
    count = max(1000, int(_DELIVERED * setting.scale))
    idle = max(10, int(_SUBSCRIPTIONS * setting.scale))
    subscribe = b'{"c":"subscribe","t":"idle-%d","sub_id":"%d","bm":"0","a":"persisted"}'
    with broker_process(setting) as uri:
        alone = trio.run(_deliver, uri, count)
    with broker_process(setting) as uri, _connection(uri, b"idle") as connection:
        connection.sendall(b"".join(frame(subscribe % (n, n)) for n in range(idle)))
        connection.sendall(frame(b'{"c":"flush","cid":"end","a":"processed"}'))
        _read_until(connection, b'"cid":"end"')
        beside = trio.run(_deliver_beside, connection, uri, count)
    return {"deliver alone": alone, "deliver beside idle subscriptions": beside}


def _log_rows(setting: Setting) -> dict[str, float]:
    count = int(_MESSAGES * setting.scale)
    data = tempfile.mkdtemp(dir=setting.scratch)
    with running_broker(data) as broker:
        _fill_topic(broker.uri, count)
    start = time.perf_counter()
    with running_broker(data) as broker, _connection(broker.uri, b"replay") as connection:
        restarted = time.perf_counter()
        processor = _processor_s(broker.pid)
        replay = b'{"c":"subscribe","cid":"r","t":"%b","bm":"0","a":"completed"}' % TOPIC.encode()
        connection.sendall(frame(replay))
        _read_until(connection, b'"cid":"r"')
        replayed = time.perf_counter() - restarted
        processor = _processor_s(broker.pid) - processor
    return {
        "seconds to restart on a long log": restarted - start,
        "messages/s replayed of a long log": count / replayed,
        "checksums / replay of a long log": _checksum_s(Path(data)) / processor,
    }


def _checksum_s(data: Path) -> float:
    """What the checksums of all files take, without reading them."""
    took = 0.0
    for path in data.rglob("*"):
        content = path.read_bytes().rstrip(b"\0") if path.is_file() else b""
        start = time.process_time()
        for begin in range(0, len(content), _READ_BYTES):
            zlib.crc32(memoryview(content)[begin : begin + _READ_BYTES])
        took += time.process_time() - start
    return took


async def _query(uri: str, count: int) -> dict[str, float]:
    """A query that selects half of the records, beside a client that publishes."""
    longest, done = 0.0, trio.Event()

    async def publish(connection: socket.socket) -> None:
        nonlocal longest
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(connection))
        while not done.is_set():
            start = time.perf_counter()
            await stream.send_all(frame(b'{"c":"p","t":"other","cid":"1","a":"processed"}', b"1"))
            await stream.receive_some(_READ_BYTES)
            longest = max(longest, time.perf_counter() - start)
            await trio.sleep(_BETWEEN_S)

    with _connection(uri, b"reader") as reader, _connection(uri, b"publisher") as publisher:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish, publisher)
            start = time.perf_counter()
            ask = b'{"c":"sow","t":"%b","query_id":"q","bs":1000,"filter":"/half = 1"}'
            reader.sendall(frame(ask % TOPIC.encode()))
            await trio.to_thread.run_sync(partial(_read_until, reader, _ENDED))
            took = time.perf_counter() - start
            done.set()
    return {
        "records/s of a filtered query": count / took,
        "records/s that it selects": count / 2 / took,
        "longest ack beside a query, ms": longest * 1e3,
    }


def _record_rows(setting: Setting) -> dict[str, float]:
    count = int(_RECORDS * setting.scale)
    with broker_process(setting, "--sow", f"{TOPIC}:/id") as uri:
        pad = b"x" * 70
        header = b'{"c":"p","t":"%b","s":%%d}' % TOPIC.encode()
        _fill(uri, count, header, lambda n: b'{"id":%d,"half":%d,"p":"%b"}' % (n, n % 2, pad))
        return trio.run(_query, uri, count)


SCENARIOS = [
    Scenario("long-queue", "", _queue_rows),
    Scenario("idle-subscriptions", "messages/s", _idle_rows),
    Scenario("long-log", "", _log_rows),
    Scenario("records", "", _record_rows),
]

"""Clients that do harm on purpose: the broker's memory stays bounded, and others are served.

The hostile client speaks over plain sockets (`conformance.wire`), to a broker in a process of its
own. Limits are generous: a defect of this kind takes a hundred times as much. How long another
client waits at most is not for a test to say, on a machine that has other work: it is measured
(`support.bystander`), and printed at the end of the run.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from conformance.wire import Wire, frame_of, unique
from support.bystander import Bystander
from support.waits import LONGEST_WAIT

MIB: Final = 2**20
CONNECTION_BYTES: Final = 64 * 1024
"""What one connection that has done nothing may take; it is 20 KiB, 60 with compression."""
SLOW_READER_BYTES: Final = 8 * MIB
"""What a subscriber to the log that does not read may take; 2 MiB are its high-water mark."""
RECORD_BYTES: Final = 2048
"""What a small record of a state of the world may take; it is 600 bytes."""
SUBSCRIPTION_BYTES: Final = 16 * 1024
"""What a subscription with a pattern and a filter may take; it is 3 KiB."""
UNSENT_BYTES: Final = 1280 * MIB
"""What all clients that do not read may take; the limit of the broker is 1 GiB."""
SLACK_BYTES: Final = 64 * MIB
"""What any of these tests may take besides."""
LOG_BYTES: Final = 64 * 1024
"""What a hostile client may write into the broker's log with some commands."""


class Target:
    """The broker, and a client whom it has to serve meanwhile."""

    def __init__(self, uris: dict[str, str], pid: int, directory: Path) -> None:
        self.uri = uris["listening"]
        self.admin = uris["admin"]
        self.directory = directory
        self._pid = pid
        self.victim = Wire(self.uri)
        self.victim.subscribe("victim")

    @property
    def log(self) -> str:
        """What the broker has logged."""
        return (self.directory / "log").read_text(encoding="utf-8", errors="replace")

    def wire(self, name: str = "", *, compressed: bool = False) -> Wire:
        return Wire(self.uri, name=name, compressed=compressed)

    def socket(self, uri: str = "") -> socket.socket:
        """A connection that has sent nothing."""
        parts = urlsplit(uri or self.uri)
        return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=60)

    def serves_others(self) -> bool:
        """Whether a client that is connected is served, and one that connects now."""
        text = unique("text").encode()
        self.victim.publish("victim", text)
        assert self.victim.next_message().body == text
        with self.wire() as newcomer:
            return bool(newcomer.logon["status"] == "success")

    def memory(self, field: str) -> int:
        """A figure of the process in bytes: `VmRSS`, or `VmHWM` for the most."""
        status = Path(f"/proc/{self._pid}/status").read_text(encoding="ascii")
        line = next(line for line in status.splitlines() if line.startswith(field))
        return int(line.split()[1]) * 1024

    @contextmanager
    def takes_at_most(self, size: int) -> Iterator[None]:
        """Check that the broker's memory has grown by at most so many bytes at any time."""
        Path(f"/proc/{self._pid}/clear_refs").write_text("5", encoding="ascii")
        before = self.memory("VmRSS")
        yield
        assert self.serves_others()
        assert self.memory("VmHWM") - before <= size + SLACK_BYTES


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("not applicable: the most memory of a process is known on Linux alone")
    directory = tmp_path_factory.mktemp("broker")
    options = [
        *("--sow", "sow:/id"),
        *("--log-topic", "^log"),
        *("--data", str(directory / "data")),
    ]
    options += ["--listen", "tcp://127.0.0.1:0", "--admin", "127.0.0.1:0"]
    with (
        (directory / "log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-m", "haclient", "broker", "run", *options],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        ) as broker,
    ):
        assert broker.stdout is not None
        uris = dict(broker.stdout.readline().split() for _ in range(2))
        found = Target(uris, broker.pid, directory)
        yield found
        found.victim.close()
        broker.kill()


@pytest.fixture(scope="module")
def bystander(target: Target) -> Iterator[Bystander]:
    with Bystander(target.uri) as found:
        yield found


@pytest.fixture(autouse=True)
def longest_wait(
    bystander: Bystander, record_property: Callable[[str, object], None]
) -> Iterator[None]:
    """Record how long the bystander has waited at most during a test."""
    bystander.longest_ms()
    yield
    record_property(LONGEST_WAIT, bystander.longest_ms())


def sizes(small: int, large: int) -> pytest.MarkDecorator:
    """A test in a short form, and at its full length."""
    values = [small, pytest.param(large, marks=pytest.mark.full)]
    return pytest.mark.parametrize("count", values)


@sizes(200, 5000)
@pytest.mark.parametrize(
    "begin",
    [b"", b"\0\0", b"\0\0\1\0{", b"\x78", b"GET / HTTP/1.1\r\n", b"\x0f\xff\xff\xff"],
    ids=["idle", "half-a-length", "half-a-frame", "compressed", "http", "large-frame"],
)
def test_connections_that_never_log_on_take_little_memory(
    target: Target, count: int, begin: bytes
) -> None:
    with ExitStack() as opened, target.takes_at_most(count * CONNECTION_BYTES):
        for _ in range(count):
            opened.enter_context(target.socket()).sendall(begin)
        assert target.serves_others()


@pytest.mark.full
def test_compressed_connections_take_little_memory_when_they_are_refused(target: Target) -> None:
    count = 2000
    with ExitStack() as opened, target.takes_at_most(count * CONNECTION_BYTES):
        sockets = [opened.enter_context(target.socket()) for _ in range(count)]
        for each in sockets:
            each.sendall(b"\x78")
        for each in sockets:
            while each.recv(4096):  # the reason, after 10 s, and then the end
                pass


@sizes(50, 2000)
def test_connections_that_are_logged_on_take_little_memory(target: Target, count: int) -> None:
    with ExitStack() as opened, target.takes_at_most(count * 2 * CONNECTION_BYTES):
        for _ in range(count):
            opened.enter_context(target.wire())
        assert target.serves_others()


@pytest.mark.parametrize("header", [b'{"c":"', b'{"c":"logon","client_name":"'])
def test_a_little_that_is_compressed_takes_little_before_the_logon(
    target: Target, header: bytes
) -> None:
    bomb, deflater = b"", zlib.compressobj(9)
    bomb += deflater.compress(struct.pack(">I", 200 * MIB) + header)
    for _ in range(200):
        bomb += deflater.compress(b"a" * MIB)
    bomb += deflater.flush()
    with ExitStack() as opened, target.takes_at_most(0):
        for _ in range(8):
            try:
                opened.enter_context(target.socket()).sendall(bomb)
            except OSError:  # the broker has closed the connection
                continue


@pytest.mark.parametrize("begin", [b"\xff\xff\xff\xff", b"HTTP/1.1 200", b"\x15\x03\x03\0\2\2"])
def test_what_cannot_be_a_frame_ends_its_connection(target: Target, begin: bytes) -> None:
    with target.socket() as hostile, target.takes_at_most(0):
        hostile.sendall(begin)
        while hostile.recv(4096):
            pass


@sizes(5, 20)
def test_slow_readers_of_the_log_do_not_hold_up_a_firehose(target: Target, count: int) -> None:
    topic, frames = unique("log"), 10 * count
    with ExitStack() as opened, target.takes_at_most(count * SLOW_READER_BYTES):
        for _ in range(count):
            opened.enter_context(target.wire()).subscribe(topic, bm="0")
        publisher = opened.enter_context(target.wire())
        for _ in range(frames):
            publisher.write(frame_of({"c": "p", "t": topic}, bytes(100_000)) * 10)
        assert publisher.ask("flush")["status"] == "success"
        assert target.serves_others()


@pytest.mark.full
def test_all_clients_that_do_not_read_share_one_limit(target: Target) -> None:
    with ExitStack() as opened, target.takes_at_most(UNSENT_BYTES):
        for _ in range(20):
            opened.enter_context(target.wire()).subscribe("hose")
        publisher = opened.enter_context(target.wire())
        for _ in range(100):
            publisher.write(frame_of({"c": "p", "t": "hose"}, bytes(100_000)) * 20)
        assert publisher.ask("flush")["status"] == "success"
        assert target.serves_others()


@sizes(2000, 1_000_000)
def test_many_records_take_little_each_and_a_query_of_all_holds_up_nobody(
    target: Target, count: int
) -> None:
    with target.wire() as hostile, target.takes_at_most(count * RECORD_BYTES):
        for begin in range(0, count, 1000):
            bodies = (b'{"id":%d,"pad":"%s"}' % (n, b"x" * 80) for n in range(begin, begin + 1000))
            hostile.write(b"".join(frame_of({"c": "p", "t": "sow"}, body) for body in bodies))
        hostile.ask("flush")
        for number in range(5):  # the first one in as many frames as possible
            size = 1000 if number else 1
            hostile.send("sow", t="sow", cid=str(number), query_id=str(number), bs=size)
        assert target.serves_others()
        ended = 0  # in this order: the other client was served before the answers were read
        while ended < 5:
            ended += hostile.next_frame().kind == "group_end"


@sizes(1000, 50_000)
@pytest.mark.parametrize("topic", ["no%d", "^(n|o)%d$"], ids=["literal", "pattern"])
def test_a_flood_of_subscriptions_holds_up_nobody(target: Target, count: int, topic: str) -> None:
    flood = b"".join(
        frame_of({"c": "subscribe", "t": topic % n, "sub_id": str(n), "filter": f"/a = {n}"})
        for n in range(count)
    )
    with target.wire() as hostile, target.takes_at_most(count * SUBSCRIPTION_BYTES):
        hostile.write(flood)
        assert target.serves_others()
        assert hostile.ask("flush")["status"] == "success"


@pytest.mark.full
def test_others_are_served_before_a_flood_of_commands_is_done(target: Target) -> None:
    flood = b"".join(
        frame_of({"c": "subscribe", "t": f"^(n|o){n}$", "sub_id": str(n)}) for n in range(20_000)
    )
    with target.socket() as hostile:
        logon = frame_of({"c": "logon", "client_name": unique("client"), "mt": "json"})
        hostile.sendall(logon + flood + frame_of({"c": "flush", "cid": "1", "a": "processed"}))
        assert target.serves_others()
        assert not select.select([hostile], [], [], 0)[0]
        assert b'"cid":"1"' in hostile.recv(4096)


DEPTH: Final = 200_000
DEEP: Final = {
    "open-arrays": b"[" * DEPTH,
    "open-objects": b'{"a":' * DEPTH,
    "arrays": b"[" * DEPTH + b"]" * DEPTH,
    "objects": b'{"id":1,"a":' + b'{"a":' * DEPTH + b"1" + b"}" * (DEPTH + 1),
}


@pytest.mark.parametrize("form", DEEP)
def test_deep_json_hurts_nobody(target: Target, form: str) -> None:
    body = DEEP[form]
    with target.wire() as hostile, target.takes_at_most(0):
        hostile.subscribe("deep", filter="/a/a/a = 1")
        hostile.subscribe("deep", opts="select=[-/,+/a/a]")
        hostile.subscribe("deep", opts="conflation=10ms,conflation_key=[/a/a]")
        for topic in ("deep", "sow"):
            for command in ("publish", "delta_publish", "delta_publish"):
                hostile.ask(command, t=topic, body=body)
        hostile.ask("sow_delete", t="sow", body=body)
        assert hostile.is_open()


def test_a_deep_header_ends_its_connection_alone(target: Target) -> None:
    with target.wire() as hostile, target.takes_at_most(0):
        hostile.write(frame_of(b'{"c":' + b'{"c":' * DEPTH + b"1" + b"}" * DEPTH + b"}"))
        list(hostile.rest())


LONG: Final = "x" * MIB
GIANT: Final = {
    "topic": {"c": "subscribe", "t": LONG},
    "pattern": {"c": "subscribe", "t": "(a*)*" * 100_000},
    "sub_id": {"c": "subscribe", "t": "x", "sub_id": LONG},
    "filter": {"c": "subscribe", "t": "x", "filter": f"/a = '{LONG}'"},
    "nested filter": {"c": "subscribe", "t": "x", "filter": "(" * 60_000 + "1" + ")" * 5000},
    "options": {"c": "subscribe", "t": "x", "opts": "oof," * 100_000},
    "bookmarks": {"c": "subscribe", "t": "log", "bm": ",".join(f"{n}|1|" for n in range(50_000))},
    "orderby": {"c": "sow", "t": "sow", "orderby": ",".join(["/a"] * 10_000)},
    "sow_keys": {"c": "sow", "t": "sow", "sow_keys": ",".join(map(str, range(50_000)))},
    "ids": {"c": "unsubscribe", "sub_id": ",".join(map(str, range(50_000)))},
    "published topic": {"c": "publish", "t": LONG},
    "correlation id": {"c": "publish", "t": "x", "x": LONG},
    "key": {"c": "publish", "t": "sow", "k": LONG},
    "command id": {"c": "flush", "cid": LONG},
    "acks": {"c": "flush", "a": "completed," * 100_000 + "processed"},
}


@pytest.mark.parametrize("name", GIANT)
def test_a_giant_header_is_answered_or_refused_in_one_short_line(target: Target, name: str) -> None:
    logged = len(target.log)
    with target.wire() as hostile, target.takes_at_most(0):
        assert hostile.ask(**{"cid": "1", **GIANT[name]})["a"]
        assert hostile.is_open()
    assert len(target.log) - logged <= LOG_BYTES


@pytest.mark.parametrize("header", [{"sub_id": LONG}, {"t": LONG}, {"orderby": "/a," * 200 + "/a"}])
def test_what_the_broker_would_have_to_keep_has_a_limit(
    target: Target, header: dict[str, str]
) -> None:
    with target.wire() as hostile:
        answer = hostile.ask(**{"c": "sow_and_subscribe", "t": "sow", "sub_id": "s"} | header)
        assert answer["status"] == "failure"
        assert "at most" in answer["detail"]


@pytest.mark.parametrize(
    "name", ["../../outside", "/etc/outside", "..\\outside", "outside\nERROR outside", "%2e%2e/%s"]
)
def test_names_are_no_paths_and_no_lines_of_the_log(target: Target, name: str) -> None:
    before = sorted(path.name for path in target.directory.rglob("*") if "journal" not in path.name)
    with target.wire(name=name) as hostile:
        for topic in (name, f"log{name}", f"/AMPS/{name}", f"/HACLIENT/{name}"):
            hostile.ask("publish", t=topic, body=b"1")
            hostile.ask("subscribe", t=topic, sub_id=topic, opts="non_regex_topic")
        hostile.ask(name, t="x") if hostile.is_open() else None
    assert target.serves_others()
    after = sorted(path.name for path in target.directory.rglob("*") if "journal" not in path.name)
    assert after == before
    assert not any(line.startswith("ERROR") for line in target.log.splitlines())


@sizes(100, 2000)
def test_a_flood_of_admin_connections_holds_up_nobody(target: Target, count: int) -> None:
    with ExitStack() as opened, target.takes_at_most(count * CONNECTION_BYTES):
        for number in range(count):
            begin = (b"", b"GET /amps HTTP/1.1\r\n", b"\0" * 100, b"GET /" + b"x" * 8000)[
                number % 4
            ]
            opened.enter_context(target.socket(target.admin)).sendall(begin)
        assert target.serves_others()
        with target.socket(target.admin) as asking:
            asking.sendall(b"GET /amps/instance.json HTTP/1.1\r\nHost: x\r\n\r\n")
            assert asking.recv(4096).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "path", ["/amps/../../etc/passwd", "/amps/instance/..%2f..%2fetc/passwd", "//etc/passwd", "*"]
)
def test_the_admin_interface_serves_no_files(target: Target, path: str) -> None:
    with target.socket(target.admin) as asking:
        asking.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert asking.recv(4096).startswith(b"HTTP/1.1 404")


@pytest.mark.full
def test_a_client_that_reads_no_acks_is_cut(target: Target) -> None:
    with target.socket() as hostile, target.takes_at_most(512 * MIB):
        hostile.sendall(frame_of({"c": "logon", "client_name": unique("client"), "mt": "json"}))
        flush = {"c": "flush", "cid": "x" * 1000, "a": "received,processed,completed,persisted"}
        flood = frame_of(flush) * 100
        while True:
            try:
                hostile.sendall(flood)
            except (ConnectionResetError, BrokenPipeError):
                break

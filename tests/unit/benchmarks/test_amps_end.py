"""The far end speaks just enough AMPS, however its reads are cut."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager

import pytest

pytest.importorskip("benchmarks", reason="benchmarks are not part of the wheel")

from benchmarks.amps_end import NO_ACKS, serve_amps
from benchmarks.blast import Blast, frame, incoming, outgoing, payload


@contextmanager
def served(first: bytes = b"", *, mute: bool = False) -> Generator[socket.socket]:
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=serve_amps, args=(theirs, first), kwargs={"mute": mute})
    thread.start()
    ours.settimeout(10)
    try:
        yield ours
    finally:
        ours.close()
        thread.join(10)
        theirs.close()


def read_frames(connection: socket.socket, count: int) -> list[dict[str, object]]:
    data, found = b"", list[dict[str, object]]()
    while len(found) < count:
        data += connection.recv(1 << 16)
        while len(data) >= 4 and len(data) >= 4 + (size := int.from_bytes(data[:4])):
            text = data[4 : 4 + size]
            found.append(json.loads(text[: text.index(b"}") + 1]))
            data = data[4 + size :]
    return found


def log_on(connection: socket.socket, name: str = "me") -> None:
    fields = {"c": "logon", "cid": "1", "client_name": name, "a": "processed"}
    connection.sendall(frame(json.dumps(fields, separators=(",", ":")).encode()))
    [ack] = read_frames(connection, 1)
    assert (ack["status"], ack["cid"], ack["s"]) == ("success", "1", 0)


def test_publishes_are_acknowledged_up_to_the_last_whole_one() -> None:
    data = outgoing(Blast(10, 100))
    with served() as connection:
        log_on(connection)
        last = 0
        for start in range(0, len(data), 250):
            connection.sendall(data[start : start + 250])
        while last != 1_700_000_000_000_009:
            last = int(str(read_frames(connection, 1)[-1]["s"]))


def test_commands_among_publishes_are_answered_in_order() -> None:
    flush = frame(b'{"c":"flush","cid":"7","a":"processed,persisted"}')
    with served() as connection:
        log_on(connection)
        connection.sendall(outgoing(Blast(2, 30)) + flush)
        kinds = [ack["a"] for ack in read_frames(connection, 3)]
        assert kinds[-2:] == ["processed", "persisted"]


def test_a_client_may_ask_for_no_acks() -> None:
    flush = frame(b'{"c":"flush","cid":"7","a":"processed"}')
    with served() as connection:
        log_on(connection, f"me-{NO_ACKS}")
        connection.sendall(outgoing(Blast(2, 30)) + flush)
        assert [ack["a"] for ack in read_frames(connection, 1)] == ["processed"]


def test_a_mute_one_acknowledges_no_publish_and_answers_everything_else() -> None:
    flush = frame(b'{"c":"flush","cid":"7","a":"processed"}')
    with served(mute=True) as connection:
        log_on(connection)
        connection.sendall(outgoing(Blast(2, 30)) + flush)
        assert [ack["a"] for ack in read_frames(connection, 1)] == ["processed"]


def test_a_command_between_equally_long_publishes_is_not_passed_over() -> None:
    publishes = outgoing(Blast(1000, 30))
    flush = frame(b'{"c":"flush","cid":"7","a":"processed"}')
    with served() as connection:
        log_on(connection)
        connection.sendall(publishes + flush + publishes + outgoing(Blast(3, 40)) + flush)
        acks = list[dict[str, object]]()
        while sum(ack["a"] == "processed" for ack in acks) < 2:
            acks += read_frames(connection, 1)
    persisted = [ack["s"] for ack in acks if ack["a"] == "persisted"]
    assert persisted[-1] == 1_700_000_000_000_002


def test_a_subscribe_is_answered_with_the_blast() -> None:
    asked = (
        b'{"c":"subscribe","cid":"2","t":"blast-3-40","sub_id":"bench","a":"processed,completed"}'
    )
    with served(frame(asked)) as connection:
        frames = read_frames(connection, 5)
    assert [found.get("a", found["c"]) for found in frames] == [
        *("processed", "p", "p", "p", "completed")
    ]
    assert str(frames[4]["bm"]).endswith("|3|")


def test_a_blast_has_the_size_that_it_says() -> None:
    assert len(payload(100)) == 100
    assert json.loads(payload(1024))
    blast = Blast.parse(str(Blast(3, 40)))
    assert incoming(blast).count(b'"c":"p"') == 3

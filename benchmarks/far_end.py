"""The other end of every benchmark: a process that is faster than the client under test.

`python -m benchmarks.far_end [PORT [mute]]`; a mute one acknowledges no publish. It serves one
connection at a time. What the first bytes are decides what it is:

=================  ====================================================================
`SEND <bytes>`     counts so many bytes, then answers `K` (the raw row of publishing)
`RECEIVE <blast>`  sends the encoded blast and nothing else (the raw row of receiving)
`PREPARE <blast>`  encodes the blast, then answers `K`, so that no row pays for that
`ECHO`             sends back what it gets (the ping-pong of the latency row)
a frame            speaks AMPS: see `benchmarks.amps_end`
=================  ====================================================================
"""

from __future__ import annotations

import contextlib
import gc
import socket
import sys

from benchmarks.amps_end import serve_amps
from benchmarks.blast import Blast, incoming
from benchmarks.machine import SERVER_CORE, pin

__all__ = ["main"]

_BUFFER_BYTES = 1 << 20


def _count(connection: socket.socket, total: int) -> None:
    view = memoryview(bytearray(_BUFFER_BYTES))
    while total > 0:
        count = connection.recv_into(view)
        if not count:
            return
        total -= count
    connection.sendall(b"K")


def _echo(connection: socket.socket) -> None:
    while data := connection.recv(_BUFFER_BYTES):
        connection.sendall(data)


def _first_bytes(connection: socket.socket) -> bytes:
    """The first line of a plain request, or the first bytes of a frame."""
    data = connection.recv(4096)
    while data[:1].isalpha() and not data.endswith(b"\n"):
        data += connection.recv(1)
    return data


def _serve(connection: socket.socket, *, mute: bool) -> None:
    first = _first_bytes(connection)
    if not first[:1].isalpha():
        serve_amps(connection, first, mute=mute)
        return
    word, _, argument = first.decode().strip().partition(" ")
    match word:
        case "SEND":
            connection.sendall(b"K")
            _count(connection, int(argument))
        case "RECEIVE":
            connection.sendall(incoming(Blast.parse(argument)))
        case "PREPARE":
            incoming(Blast.parse(argument))
            connection.sendall(b"K")
        case _:
            connection.sendall(b"K")
            _echo(connection)


def main() -> None:
    """Listen on a port of the loopback, by default a free one, say which, serve until killed."""
    pin(SERVER_CORE)
    gc.disable()
    port, mute = int((*sys.argv, "0")[1]), "mute" in sys.argv
    with socket.create_server(("127.0.0.1", port)) as listener:
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection, contextlib.suppress(OSError):
                _serve(connection, mute=mute)


if __name__ == "__main__":
    main()

"""A connection to a server that speaks AMPS: sockets and the standard library alone.

It shares no code with the client or the broker, so that it cannot share their mistakes. Header
values that are texts are decoded as Latin-1: each byte is one character, whatever its encoding.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import ssl
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias
from urllib.parse import unquote, urlsplit

Json: TypeAlias = Any
"""What a header or a body has: it is checked where it is used."""

LIMIT_S: Final = 60.0
"""How long a frame may take: far longer than any server needs, on a busy machine too."""

_numbers: Final = itertools.count(1)


def unique(prefix: str) -> str:
    """A name that no other test, run or process uses."""
    return f"{prefix}-{os.getpid()}-{os.urandom(4).hex()}-{next(_numbers)}"


@dataclass(frozen=True)
class Frame:
    """One frame from the server: its header, the header's text, and the body."""

    header: dict[str, Any]
    text: bytes
    body: bytes

    def __getitem__(self, name: str) -> Json:
        return self.header[name]

    def get(self, name: str) -> Json:
        """A header, `None` without it."""
        return self.header.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self.header

    @property
    def kind(self) -> str:
        """The command, `publish` also where the server writes `p`."""
        name: str = self.header.get("c") or self.header["cmd"]
        return "publish" if name == "p" else name

    @property
    def sids(self) -> set[str]:
        """The subscriptions that a message is for."""
        return {each.strip() for each in str(self.header.get("sids", "")).split(",")} - {""}

    @property
    def json(self) -> Json:
        """The body, a JSON document."""
        return json.loads(self.body)

    def records(self) -> list[tuple[dict[str, Any], bytes]]:
        """The records of a `sow` frame: header and data of each."""
        found: list[tuple[dict[str, Any], bytes]] = []
        rest = self.body
        while rest:
            header, end = split_header(rest)
            length = int(header["l"])
            assert len(rest) >= end + length, f"a record is cut: {rest!r}"
            found.append((header, rest[end : end + length]))
            rest = rest[end + length :]
        return found


def split_header(data: bytes) -> tuple[dict[str, Any], int]:
    """The header at the beginning of `data`, and where it ends."""
    header, end = json.JSONDecoder(strict=False).raw_decode(data.decode("latin-1"))
    return header, end


def frame_of(header: dict[str, Any] | bytes, body: bytes = b"") -> bytes:
    """A frame: length, header, body."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode("latin-1")
    return struct.pack(">I", len(text) + len(body)) + text + body


class Wire:
    """One connection.

    Args:
        uri: `tcp://[user:password@]host:port/amps/...`, or `tcps://`; the path is not used.
        name: The client name to log on with; a unique one by default, `None` for no logon.
        more: More headers of the logon.
    """

    def __init__(
        self, uri: str, *, name: str | None = "", compressed: bool = False, **more: Json
    ) -> None:
        parts = urlsplit(uri)
        self._socket = socket.create_connection((parts.hostname or "", parts.port or 0), LIMIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if parts.scheme == "tcps":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self._socket = context.wrap_socket(self._socket)
        self._deflater = zlib.compressobj() if compressed else None
        self._inflater = zlib.decompressobj() if compressed else None
        self._buffer = bytearray()
        self._waiting: deque[Frame] = deque()
        self.name = unique("client") if name == "" else name
        if self.name is not None:
            if parts.username is not None:
                more.setdefault("user_id", unquote(parts.username))
                more.setdefault("pw", unquote(parts.password or ""))
            self.logon = self.ask("logon", client_name=self.name, **({"mt": "json"} | more))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    # --- sending ---------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send bytes as they are, compressed if the connection is."""
        if self._deflater is not None:
            data = self._deflater.compress(data) + self._deflater.flush(zlib.Z_SYNC_FLUSH)
        self._socket.sendall(data)

    def send(self, c: str, *, body: bytes = b"", **header: Json) -> None:
        """Send a command."""
        self.write(frame_of({"c": c} | header, body))

    def publish(self, topic: str, body: bytes | dict[str, Any], **header: Json) -> None:
        """Send a publish, without asking for an answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send("p", t=topic, body=data, **header)

    # --- receiving -------------------------------------------------------------------------------

    def read(self, size: int) -> bytes:
        """Exactly so many bytes.

        Raises:
            EOFError: The server has closed the connection.
        """
        while len(self._buffer) < size:
            try:
                chunk = self._socket.recv(1 << 16)
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                raise EOFError("the server has closed the connection")
            self._buffer += self._inflater.decompress(chunk) if self._inflater else chunk
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def read_line(self) -> bytes:
        """A line of text that ends with CR LF."""
        line = b""
        while not line.endswith(b"\r\n"):
            line += self.read(1)
        return line[:-2]

    def next_frame(self) -> Frame:
        """The next frame that no command has taken for its answer.

        Raises:
            EOFError: The server has closed the connection.
        """
        return self._waiting.popleft() if self._waiting else self._read_frame()

    def _read_frame(self) -> Frame:
        while True:
            data = self.read(struct.unpack(">I", self.read(4))[0])
            if data:
                header, end = split_header(data)
                return Frame(header, data[:end], data[end:])

    def frames_until(self, found: Callable[[Frame], bool]) -> list[Frame]:
        """All frames up to the one that is wanted, including it."""
        frames = [self.next_frame()]
        while not found(frames[-1]):
            frames.append(self.next_frame())
        return frames

    def next_message(self) -> Frame:
        """The next frame that is a message: neither ack nor heartbeat."""
        while True:
            frame = self.next_frame()
            if frame.kind not in {"ack", "heartbeat"}:
                return frame

    def messages_until(self, body: bytes) -> list[Frame]:
        """All messages up to the one with a body, without it."""
        messages: list[Frame] = []
        while (message := self.next_message()).body != body:
            messages.append(message)
        return messages

    def rest(self) -> Iterator[Frame]:
        """All frames until the server closes the connection."""
        while True:
            try:
                yield self.next_frame()
            except EOFError:
                return

    # --- commands --------------------------------------------------------------------------------

    def ask(self, c: str, *, a: str = "processed", **header: Json) -> Frame:
        """Send a command and return its last ack; other frames can be taken later."""
        cid = header.setdefault("cid", unique("cid"))
        self.send(c, a=a, **header)
        wanted = a.rpartition(",")[2].strip()
        while True:
            frame = self._read_frame()
            answers = frame.kind == "ack" and frame.header.get("cid") == cid
            if answers and (frame["a"] == wanted or frame["status"] != "success"):
                return frame
            self._waiting.append(frame)

    def do(self, c: str, **header: Json) -> Frame:
        """Send a command that has to succeed."""
        answer = self.ask(c, **header)
        assert answer["status"] == "success", answer.header
        return answer

    def subscribe(self, topic: str, *, c: str = "subscribe", **header: Json) -> str:
        """Begin a subscription; its id."""
        sub_id: str = header.setdefault("sub_id", unique("sub"))
        self.do(c, t=topic, **header)
        return sub_id

    def store(self, topic: str, body: bytes | dict[str, Any], **header: Json) -> Frame:
        """Publish, and wait until the server has processed it."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.do("publish", t=topic, body=data, **header)

    def query(self, topic: str, *, c: str = "sow", **header: Json) -> list[Any]:
        """The bodies of the records that a query finds, in their order."""
        return [json.loads(data) for _, data in self.query_records(topic, c=c, **header)]

    def query_records(
        self, topic: str, *, c: str = "sow", **header: Json
    ) -> list[tuple[dict[str, Any], bytes]]:
        """The records that a query finds: header and data of each."""
        header = {"a": "processed", "bs": 100, "query_id": unique("query")} | header
        self.do(c, t=topic, **header)
        others: list[Frame] = []
        records: list[tuple[dict[str, Any], bytes]] = []
        while (frame := self.next_frame()).get("query_id") != header["query_id"] or (
            frame.kind != "group_end"
        ):
            if frame.get("query_id") != header["query_id"]:
                others.append(frame)
            elif frame.kind == "sow":
                records += frame.records()
        self._waiting.extendleft(reversed(others))
        return records

    def is_open(self) -> bool:
        """Whether the server still answers."""
        try:
            self.ask("flush")
        except (EOFError, OSError):
            return False
        return True

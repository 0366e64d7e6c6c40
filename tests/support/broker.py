"""Reference brokers for tests: in this process or as a process of their own, and a raw client.

::

    async with running_broker() as server, RawClient.connect(server.uris[0]) as client:
        await client.logon("pubber")
        await client.send(b"{}", c="p", t="orders", s=1, a="persisted")
        ack = await client.ack("persisted")
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import trio

from haclient.protocol.codec import MessageDecoder
from haclient.protocol.encoding import encode_frame
from haclient.protocol.framing import FrameReader
from haclient.protocol.messages import Message
from haclient_fake_server.config import BrokerConfig
from haclient_fake_server.server import BrokerServer

__all__ = ["BrokerProcess", "RawClient", "port_of", "running_broker"]

ROOT = Path(__file__).resolve().parents[2]


@asynccontextmanager
async def running_broker(config: BrokerConfig | None = None) -> AsyncIterator[BrokerServer]:
    """A broker in this process; without a configuration its journal is in memory."""
    async with BrokerServer(config or BrokerConfig()) as server:
        yield server


def port_of(uri: str) -> int:
    """The port in an address like `tcp://127.0.0.1:9007`."""
    return int(uri.rpartition(":")[2])


class RawClient:
    """A connection that speaks frames and nothing more."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._frames = FrameReader()
        self._decoder = MessageDecoder()
        self._waiting: deque[Message] = deque()

    @classmethod
    @asynccontextmanager
    async def connect(cls, uri: str) -> AsyncIterator[RawClient]:
        """Connect to `tcp://HOST:PORT`."""
        stream = await trio.open_tcp_stream("127.0.0.1", port_of(uri))
        async with stream:
            yield cls(stream)

    async def send(self, body: bytes = b"", /, **fields: str | int) -> None:
        """Send one frame; keyword names are wire names."""
        await self._stream.send_all(encode_frame(fields, body))

    async def send_bytes(self, data: bytes) -> None:
        """Send anything."""
        await self._stream.send_all(data)

    async def logon(self, name: str, **fields: str | int) -> Message:
        """Log on; the ack."""
        logon = {"c": "logon", "cid": "0", "client_name": name, "a": "processed"}
        await self.send(**{**logon, **fields})
        return await self.ack("processed")

    async def receive(self) -> Message | None:
        """The next message, `None` when the broker has closed the connection."""
        while not self._waiting:
            try:
                data = await self._stream.receive_some(65536)
            except trio.BrokenResourceError:  # the broker closed while we were sending
                return None
            if not data:
                return None
            self._waiting += self._decoder.decode(*self._frames.feed(data))
        return self._waiting.popleft()

    async def until(self, wanted: Callable[[Message], bool]) -> Message:
        """The next message that fits; those before it are dropped."""
        while True:
            message = await self.receive()
            assert message is not None, "the broker has closed the connection"
            if wanted(message):
                return message

    async def ack(self, kind: str, cid: str | None = None) -> Message:
        """The next ack of a type, of any command or of one; all before it is dropped."""
        return await self.until(
            lambda message: (
                message.kind == "ack"
                and message.ack_type == kind
                and (cid is None or message.command_id == cid)
            )
        )

    async def publishes(self, count: int) -> list[Message]:
        """The next publishes; other messages between them are dropped."""
        return [await self.until(lambda message: message.kind == "p") for _ in range(count)]

    async def closed(self) -> None:
        """Wait until the broker has closed the connection; what comes before is dropped."""
        while await self.receive() is not None:
            pass


class BrokerProcess:
    """`python -m haclient_fake_server` as a process; used as a context manager.

    Attributes:
        uri: Where it listens.
    """

    def __init__(self, *arguments: str, listen: str = "tcp://127.0.0.1:0") -> None:
        command = [sys.executable, "-m", "haclient_fake_server", "--listen", listen, *arguments]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, env=_environment(), text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("listening "), f"the broker did not start: {line!r}"
        self.uri = line.split()[1]

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM, and wait for its end; the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        if self._process.poll() is None:
            self._process.send_signal(how)
        code = self._process.wait(timeout=20)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def _environment() -> dict[str, str]:
    paths = [str(ROOT / part) for part in (".", "stores", "fake_server")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

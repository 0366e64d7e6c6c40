"""A client that speaks frames and nothing more, and a broker in this process for it.

::

    async with running_broker() as server, RawClient.connect(server.uris[0]) as client:
        await client.logon("pubber")
        await client.send(b"{}", c="p", t="orders", s=1, a="persisted")
        ack = await client.ack("persisted")
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import trio

from haclient.protocol.codec import MessageDecoder, encode_frame
from haclient.protocol.framing import FrameReader
from haclient.protocol.messages import Message
from haclient_fake_server.config import BrokerConfig
from haclient_fake_server.server import BrokerServer

__all__ = ["RawClient", "port_of", "running_broker"]


@asynccontextmanager
async def running_broker(config: BrokerConfig | None = None) -> AsyncIterator[BrokerServer]:
    """A broker in this process; without a configuration its journal is in memory."""
    async with BrokerServer(config or BrokerConfig()) as server:
        yield server


def port_of(uri: str) -> int:
    """The port in an address like `tcp://127.0.0.1:9007`, with a path or without."""
    port = urlsplit(uri).port
    assert port is not None
    return port


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
        """Connect to `tcp://HOST:PORT`, with a path or without."""
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

    async def persisted(self, sequence: int) -> Message:
        """The ack up to a sequence; those of earlier ones are dropped, however many there are."""
        while True:
            ack = await self.ack("persisted")
            assert (ack.sequence or 0) <= sequence, ack
            if ack.sequence == sequence:
                return ack

    async def publishes(self, count: int) -> list[Message]:
        """The next publishes; other messages between them are dropped."""
        return [await self.until(lambda message: message.kind == "p") for _ in range(count)]

    async def closed(self) -> None:
        """Wait until the broker has closed the connection; what comes before is dropped."""
        while await self.receive() is not None:
            pass

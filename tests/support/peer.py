"""A server that does what a test tells it, and checks what it hears.

`Peer` speaks over any `Link`. `listening()` accepts clients on a Unix socket, so that the whole
client runs unchanged, dialling included. A Unix socket hands bytes over within the call that sends
them: together with the autojump clock every test is exact and takes no time.

Both sides of a conversation run at once with `together`::

    async with listening() as server, Client("name") as client:
        peer = await server.log_on(client)
        _, _ = await together(lambda: client.flush(), lambda: peer.answer("flush"))
"""

from __future__ import annotations

import socket
import tempfile
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import Client
from haclient.protocol.codec import MessageDecoder, encode_frame, sow_batch
from haclient.protocol.framing import FrameReader
from haclient.protocol.identity import publisher_id
from haclient.protocol.messages import Message
from haclient.session.connection_state import ConnectionState
from haclient.transport.links.link import Link, TcpLink
from haclient.transport.tasks import open_nursery
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.publish_stores.memory import MemoryPublishStore

__all__ = [
    "Peer",
    "Server",
    "answering",
    "client_with_stores",
    "close_link",
    "listening",
    "server",
    "subscribe_and_publish",
    "together",
]

T = TypeVar("T")
U = TypeVar("U")
Value = str | int
_NEVER_S = 1e6


class Peer:
    """The server's end of one connection.

    Attributes:
        beats: When each heartbeat of the client came, on trio's clock; they are heard by the way.
        heard: Every other frame so far, in order.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self.beats: list[float] = []
        self.heard: list[Message] = []
        self.name = ""
        self._frames = FrameReader()
        self._decoder = MessageDecoder(expand_sow=False)
        self._arrived: deque[Message] = deque()

    # -- hearing --------------------------------------------------------------

    async def hear(self) -> Message:
        """The client's next frame that is no beat.

        Raises:
            EOFError: The client has closed the connection.
        """
        while not self._arrived:
            await self._read()
        message = self._arrived.popleft()
        self.heard.append(message)
        return message

    async def _read(self) -> None:
        count = self.link.recv_into(self._frames.writable())
        if count is None:
            await self.link.wait_readable()
            return
        if count == 0:
            raise EOFError("the client has closed the connection")
        self._frames.received(count)
        for message in self._decoder.decode(*self._frames.split()):
            if message.kind == "heartbeat" and message.options == "beat":
                self.beats.append(trio.current_time())
            else:
                self._arrived.append(message)

    async def expect(self, command: str, **fields: object) -> Message:
        """The next frame, which has to be this command with these attributes."""
        message = await self.hear()
        found = {name: getattr(message, name) for name in fields}
        assert (message.command, found) == (command, fields), message
        return message

    async def expect_end(self) -> None:
        """The client closes the connection, and says nothing more before."""
        message = await self.hear_or_end()
        assert message is None, message

    async def hear_or_end(self) -> Message | None:
        """The client's next frame that is no beat, `None` when it has closed the connection."""
        try:
            return await self.hear()
        except (EOFError, OSError, trio.ClosedResourceError):
            return None

    async def listen_until_end(self) -> None:
        """Hear, and remember, until the client closes the connection."""
        while await self.hear_or_end() is not None:
            pass

    # -- saying ---------------------------------------------------------------

    async def send(self, data: bytes) -> None:
        """Send bytes, whole."""
        rest = memoryview(data)
        while rest:
            count = self.link.try_send(rest)
            if count is None:
                await self.link.wait_writable()
            else:
                rest = rest[count:]

    async def say(self, command: str, body: bytes = b"", /, **fields: Value) -> None:
        """Send one frame; fields by wire name."""
        await self.send(encode_frame({"c": command, **fields}, body))

    async def ack(self, to: Message | None, kind: str = "processed", /, **fields: Value) -> None:
        """Send one ack; a success unless `status` says otherwise."""
        header: dict[str, Value] = {"c": "ack", "a": kind, "status": "success"}
        if to is not None:
            header["cid"] = to.command_id
        await self.send(encode_frame({**header, **fields}))

    async def refuse(self, to: Message, reason: str, kind: str = "processed", /) -> None:
        """Send a failure ack for a command."""
        await self.ack(to, kind, status="failure", reason=reason)

    async def persisted(self, sequence: int) -> None:
        """Everything up to `sequence` is persisted."""
        await self.ack(None, "persisted", s=sequence, bm=f"{publisher_id(self.name)}|{sequence}|")

    async def publish(self, sids: str, *bodies: bytes, topic: str = "orders", bm: str = "") -> None:
        """Deliver messages in one piece; `bm` is the bookmark of the first, the others count up."""
        await self.send(delivery(sids, *bodies, topic=topic, bm=bm))

    async def records(self, query: Message, *bodies: bytes, topic: str = "orders") -> None:
        """A query's whole result, in one frame."""
        fields = {"query_id": query.query_id}
        await self.say("group_begin", **fields)
        if bodies:
            batch = [({"k": str(number)}, body) for number, body in enumerate(bodies, 1)]
            await self.send(sow_batch({"c": "sow", "t": topic, **fields}, batch))
        await self.say("group_end", **fields)

    async def sequences(self, count: int) -> list[int]:
        """Expect so many publishes; their sequences."""
        return [(await self.expect("publish")).sequence or 0 for _ in range(count)]

    async def answer(self, command: str, **fields: Value) -> Message:
        """Expect a command and confirm it."""
        message = await self.expect(command)
        await self.ack(message, **fields)
        return message

    async def log_on(
        self,
        *,
        seen: int = 0,
        persisted: int | None = None,
        version: str = "5.3.5.1",
        log_starts: str = "",
    ) -> Message:
        """Expect a logon and accept it."""
        logon = await self.expect("logon")
        self.name = logon.client_name
        done = seen if persisted is None else persisted
        await self.ack(
            logon,
            s=seen,
            bm=f"{publisher_id(self.name)}|{done}|",
            client_name=self.name,
            version=version,
            log_starts=log_starts,
        )
        return logon


def delivery(sids: str, *bodies: bytes, topic: str = "orders", bm: str = "") -> bytes:
    """The frames of some messages for a subscription."""
    frames: list[bytes] = []
    publisher, _, first = bm.rstrip("|").partition("|")
    for number, body in enumerate(bodies):
        fields: dict[str, Value] = {"c": "p", "t": topic, "sids": sids}
        if bm:
            fields["bm"] = f"{publisher}|{int(first) + number}|"
        frames.append(encode_frame(fields, body))
    return b"".join(frames)


class Server:
    """Where clients dial to."""

    def __init__(self, listener: trio.socket.SocketType, path: Path) -> None:
        self._listener = listener
        self.uri = f"unix://user:secret@localhost:0/amps/json?path={path}"
        self.peers: list[Peer] = []

    async def accept(self) -> Peer:
        """The next client."""
        connected, _ = await self._listener.accept()
        peer = Peer(TcpLink(socket.socket(fileno=connected.detach())))
        self.peers.append(peer)
        return peer

    def stop_listening(self) -> None:
        """Refuse whoever comes next."""
        self._listener.close()

    async def connect(self, client: Client) -> Peer:
        """Let the client connect, without a logon."""
        _, peer = await together(lambda: client.connect(self.uri), self.accept)
        return peer

    async def log_on(self, client: Client, *, seen: int = 0, persisted: int | None = None) -> Peer:
        """Let the client connect and log on."""
        peer = await self.connect(client)
        await together(client.logon, lambda: peer.log_on(seen=seen, persisted=persisted))
        return peer


@asynccontextmanager
async def listening() -> AsyncGenerator[Server]:
    """A listener on a Unix socket; leaving closes all its connections."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "amps"
        # trio would bind in a thread, and while a thread works the autojump clock jumps.
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        bound.bind(str(path))
        bound.setblocking(False)
        listener = trio.socket.from_stdlib_socket(bound)
        listener.listen(8)
        server = Server(listener, path)
        try:
            with trio.fail_after(_NEVER_S):  # what hangs under the autojump clock fails at once
                yield server
        finally:
            listener.close()
            for peer in server.peers:
                peer.link.close()


@pytest.fixture
async def server() -> AsyncGenerator[Server]:
    """A server whose part the test plays; a conftest.py imports it from here."""
    async with listening() as found:
        yield found


def client_with_stores(name: str) -> Client:
    """A client with both stores in memory, which leaves without waiting for a server."""
    return Client(
        name,
        publish_store=MemoryPublishStore(),
        bookmark_store=MemoryBookmarkStore(),
        exit_timeout=0,
    )


async def subscribe_and_publish(server: Server, client: Client) -> Peer:
    """Let the client log on, enter the bookmark subscription `b`, and publish something."""
    peer = await server.log_on(client)
    async with answering(peer):
        await client.bookmark_subscribe("orders", sub_id="b", handler=lambda _: None)
    await client.publish("orders", b"1")
    await peer.expect("publish")
    return peer


async def close_link(client: Client, peer: Peer) -> None:
    """Close the server's end of a connection; the client has noticed when this returns."""
    peer.link.close()
    await wait_all_tasks_blocked()
    assert client.state is ConnectionState.DISCONNECTED


async def together(
    ours: Callable[[], Awaitable[T]], theirs: Callable[[], Awaitable[U]]
) -> tuple[T, U]:
    """Run both sides of a conversation at once; an error of either leaves as itself."""
    first: list[T] = []
    second: list[U] = []

    async def run_ours() -> None:
        first.append(await ours())

    async def run_theirs() -> None:
        second.append(await theirs())

    async with open_nursery() as nursery:
        nursery.start_soon(run_ours)
        nursery.start_soon(run_theirs)
    return first[0], second[0]


@asynccontextmanager
async def answering(peer: Peer) -> AsyncGenerator[None]:
    """Confirm every command that comes while the block runs, publishes as they come."""

    async def answer_all() -> None:
        while (message := await peer.hear_or_end()) is not None:
            if message.sequence is not None and "persisted" in message.ack_type:
                await peer.persisted(message.sequence)
            if message.command not in {"publish", "delta_publish"}:
                await peer.ack(message)

    async with open_nursery() as nursery:
        nursery.start_soon(answer_all)
        yield
        nursery.cancel_scope.cancel()

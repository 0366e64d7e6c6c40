"""A reverse proxy of HTTP, as far as a connection that is upgraded needs one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import trio


class HttpProxy:
    """It passes upgrades on to one server, if they have a header.

    Attributes:
        port: Where it listens.
        requests: The heads of the requests, as they came.
        answers: The status of each answer.
    """

    def __init__(self, listener: trio.SocketListener, server: int, header: bytes) -> None:
        self.port = listener.socket.getsockname()[1]
        self.requests: list[bytes] = []
        self.answers: list[bytes] = []
        self._server = server
        self._header = header

    async def serve(self, client: trio.SocketStream) -> None:
        """One connection."""
        async with client:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self._serve(client)

    async def _serve(self, client: trio.SocketStream) -> None:
        head = await _head(client)
        self.requests.append(head)
        if self._header not in head:
            await self._refuse(client, b"407 Proxy Authentication Required")
            return
        try:
            server = await trio.open_tcp_stream("127.0.0.1", self._server)
        except OSError:
            await self._refuse(client, b"502 Bad Gateway")
            return
        async with server:
            await server.send_all(head)
            answer = await _head(server)
            self.answers.append(answer.split(b" ")[1])
            await client.send_all(answer)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_copy, client, server, nursery.cancel_scope)
                nursery.start_soon(_copy, server, client, nursery.cancel_scope)

    async def _refuse(self, client: trio.SocketStream, status: bytes) -> None:
        self.answers.append(status[:3])
        await client.send_all(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")


async def _head(stream: trio.SocketStream) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        if not (chunk := await stream.receive_some()):
            raise trio.ClosedResourceError
        head += chunk
    return head


async def _copy(
    source: trio.SocketStream, target: trio.SocketStream, scope: trio.CancelScope
) -> None:
    try:
        async for chunk in source:
            await target.send_all(chunk)
    except trio.BrokenResourceError:
        pass
    scope.cancel()


@asynccontextmanager
async def http_proxy(server: int, header: bytes = b"") -> AsyncGenerator[HttpProxy]:
    """A running one.

    Args:
        server: The port to which it passes connections on.
        header: What each head has to contain.
    """
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        proxy = HttpProxy(listener, server, header)
        nursery.start_soon(trio.serve_listeners, proxy.serve, [listener])
        yield proxy
        nursery.cancel_scope.cancel()

"""The content of a URL, for what servers tell over HTTP: one request, one short answer."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

import trio

from haclient.errors import ConnectionRefused, ProtocolError, TimedOut, UsageError

MAX_ANSWER_BYTES: Final = 2**20
"""A longer answer is an error."""


def check_url(url: str) -> tuple[str, int, str, str]:
    """Take a URL apart, as far as it can be used here.

    Returns:
        Host, port, path, and host and port as they are written.

    Raises:
        UsageError: It is of another kind, or has a user or a password, which would be sent
            unencrypted.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, 80 if parts.port is None else parts.port
        (host or "").encode("idna")
    except ValueError:  # a port that is no number, brackets that are not closed, a label too long
        host, port, parts = None, 0, urlsplit("")
    if "@" in url:
        raise UsageError("the URL of an admin interface takes no user and no password")
    if parts.scheme != "http" or host is None or port == 0:
        raise UsageError(f"{url!r}: wanted http://HOST:PORT")
    return host, port, parts.path or "/", parts.netloc


async def http_get(url: str, timeout: float) -> bytes:  # part of the error
    """The body of the answer to `GET url`.

    Args:
        url: `http://HOST:PORT/PATH`.
        timeout: Seconds for the whole of it.

    Raises:
        UsageError: The URL is of another kind.
        ConnectionRefused: Nobody answers there.
        ProtocolError: The answer is no success, or too long.
        TimedOut: It took longer than `timeout` seconds.
    """
    host, port, path, where = check_url(url)
    with trio.move_on_after(timeout):
        try:
            stream = await trio.open_tcp_stream(host, port)
            async with stream:
                # 1.0: the answer ends with the connection, and comes in one piece.
                head = f"GET {path} HTTP/1.0\r\nHost: {where}\r\n\r\n"
                await stream.send_all(head.encode())
                return _body(await _everything(stream, url), url)
        except (OSError, UnicodeError, trio.BrokenResourceError) as error:
            raise ConnectionRefused(f"{url}: {error}") from error
    raise TimedOut(f"{url}: no answer within {timeout:g} s")


async def _everything(stream: trio.SocketStream, url: str) -> bytes:
    received = bytearray()
    async for chunk in stream:
        received += chunk
        if len(received) > MAX_ANSWER_BYTES:
            raise ProtocolError(f"{url}: the answer exceeds {MAX_ANSWER_BYTES} bytes")
    return bytes(received)


def _body(answer: bytes, url: str) -> bytes:
    head, separator, body = answer.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].split(b" ")
    if not separator or status[1:2] != [b"200"]:
        raise ProtocolError(f"{url}: wanted an answer 200 of HTTP, found {head[:80]!r}")
    return body

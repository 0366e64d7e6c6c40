"""The HTTP upgrade that may come before the stream, so that a proxy of HTTP lets it pass.

A client that is told to (`http_preflight=true`, or headers of its own) sends one HTTP/1.1 request
that asks for an upgrade, and speaks AMPS once it is granted. A server recognises it by its first
byte, which no frame begins with. Both heads are read byte by byte up to their blank line: whatever
follows belongs to the stream, and needs no layer that gives it back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http.client import HTTPException, parse_headers
from io import BytesIO
from typing import Final
from urllib.parse import quote

from haclient.errors import ConnectionRefused, ProtocolError, UsageError
from haclient.protocol.uri import Uri
from haclient.transport.links.link import Link
from haclient_stores.checks import is_text

HTTP_FIRST_BYTE: Final = ord("G")
"""The first byte of `GET`; a frame begins with a byte of its length, at most 0x0f."""

MAX_HEAD_BYTES: Final = 16 * 1024
"""A longer head is an error."""

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PROTOCOL: Final = re.compile(f"{_TOKEN.pattern}(/{_TOKEN.pattern})?")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_OURS: Final = {"connection", "upgrade", "content-length", "transfer-encoding"}
_UPGRADED: Final = {b"101", b"200"}  # a proxy that opens a tunnel answers 200


def check_preflight_headers(headers: Mapping[str, str] | None) -> None:
    """Refuse headers that cannot be sent; their values are not shown, they may be secret.

    Raises:
        UsageError: A name or a value cannot be part of a request, or the header is one of those
            that the handshake itself sets.
    """
    if headers is None:
        return
    for name, value in headers.items():
        for text in (name, value):
            if not is_text(text):
                raise UsageError(
                    f"preflight_headers: names and values are text, not {type(text).__name__}"
                )
        if not _TOKEN.fullmatch(name):
            raise UsageError(f"preflight_headers: {name!r} can be no name of an HTTP header")
        if name.lower() in _OURS:
            raise UsageError(f"preflight_headers: {name} is set by the handshake itself")
        if not _VALUE.fullmatch(value):
            raise UsageError(
                f"preflight_headers: the value of {name} has characters that a header cannot have"
            )


async def request_upgrade(link: Link, uri: Uri, headers: Mapping[str, str]) -> None:
    """Ask a server, or the proxy before it, to carry the stream.

    Args:
        link: Just connected.
        uri: Of the server.
        headers: More headers for the request; `Host` replaces ours.

    Raises:
        ConnectionRefused: It refuses, or what answers does not speak HTTP.
        OSError: The link is broken.
    """
    own = {} if any(name.lower() == "host" for name in headers) else {"Host": _host(uri)}
    lines = [f"GET {_path(uri)} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in {**own, **headers}.items()]
    lines += ["Connection: Upgrade", "Upgrade: amps", "", ""]
    await _send_all(link, "\r\n".join(lines).encode("latin-1"))
    try:
        head = await _read_head(link, b"HTTP/1.")
    except ProtocolError as error:
        raise ConnectionRefused(f"{uri.safe}: {error}") from None
    status = head.split(b"\r\n", 1)[0].split(b" ", 1)[-1]
    if status[:3] not in _UPGRADED:
        raise ConnectionRefused(
            f"{uri.safe}: wanted 101 for the HTTP upgrade, found {_shown(status)}"
        )
    if status[:3] == b"200" and b"\r\ncontent-type:" in head.lower():
        raise ConnectionRefused(
            f"{uri.safe}: wanted 101 for the HTTP upgrade, found a page: the server or proxy there "
            "does not upgrade this path"
        )


async def answer_upgrade(link: Link, received: bytes) -> None:
    """Grant the upgrade that a client asks for.

    Args:
        link: Of the client.
        received: What was received from it already.

    Raises:
        ProtocolError: It is no request for an upgrade.
        OSError: The link is broken.
    """
    head = await _read_head(link, b"GET /", received)
    try:
        wanted = parse_headers(BytesIO(head.split(b"\r\n", 1)[1])).get("Upgrade", "amps")
    except HTTPException as error:
        raise ProtocolError(f"wanted a request for an HTTP upgrade: {error}") from error
    protocol = found[0] if (found := _PROTOCOL.match(wanted)) else "amps"
    answer = (
        f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n"
    )
    await _send_all(link, answer.encode())


def _host(uri: Uri) -> str:
    if uri.scheme == "unix":  # the path of a socket is no host
        return "localhost"
    if ":" in uri.host:  # the zone of an address means something on this machine alone (RFC 6874)
        return f"[{uri.host.partition('%')[0]}]:{uri.port}"
    return uri.address if uri.host.isascii() else f"{uri.host.encode('idna').decode()}:{uri.port}"


def _path(uri: Uri) -> str:
    kind = f"/{quote(uri.message_type, safe='')}" if uri.message_type else ""
    return f"/{uri.protocol}{kind}"


async def _send_all(link: Link, data: bytes) -> None:
    unsent = memoryview(data)
    while unsent:
        count = link.try_send(unsent)
        if count is None:
            await link.wait_writable()
        else:
            unsent = unsent[count:]
    while link.unsent_bytes:
        await link.wait_writable()


async def _read_head(link: Link, begin: bytes, received: bytes = b"") -> bytes:
    """Read up to and including the blank line, and nothing of what follows it."""
    head, byte = bytearray(received), memoryview(bytearray(1))
    while not head.endswith(b"\r\n\r\n"):
        if not begin.startswith(head[: len(begin)]):
            raise ProtocolError(f"wanted the head of an HTTP upgrade, found {_shown(head)}")
        if len(head) >= MAX_HEAD_BYTES:
            raise ProtocolError(f"the head of the HTTP upgrade exceeds {MAX_HEAD_BYTES} bytes")
        count = link.recv_into(byte)
        if count is None:
            await link.wait_readable()
        elif count == 0:
            raise ProtocolError("the connection was closed before the HTTP upgrade was complete")
        else:
            head += byte
    return bytes(head)


def _shown(data: bytes | bytearray) -> str:
    return repr(bytes(data[:80]).decode("latin-1"))

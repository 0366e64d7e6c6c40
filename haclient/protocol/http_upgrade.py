"""The HTTP upgrade that may come before the stream, so that a proxy of HTTP lets it pass.

A client that is told to (`http_preflight=true`, or headers of its own) sends one HTTP/1.1 request
that asks for an upgrade, and speaks AMPS once it is granted. A server recognises it by its first
byte, which no frame begins with. `haclient.transport.links.dial` sends and reads the two heads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from haclient.errors import ConnectionRefused, ProtocolError, UsageError
from haclient.protocol.uri import Uri
from haclient_stores.checks import is_text

HTTP_FIRST_BYTE: Final = ord("G")
"""The first byte of `GET`; a frame begins with a byte of its length, at most 0x0f."""

MAX_HEAD_BYTES: Final = 16 * 1024
"""A longer head is an error."""

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# The first of the protocols that are wanted.
_UPGRADE: Final = re.compile(
    rb"\r\nupgrade:[ \t]*(%b(?:/%b)?)" % ((_TOKEN.pattern.encode(),) * 2), re.IGNORECASE
)
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


def upgrade_request(uri: Uri, headers: Mapping[str, str]) -> bytes:
    """The head of the request that asks a server, or the proxy before it, to carry the stream.

    Args:
        uri: Of the server.
        headers: More headers; `Host` replaces ours.
    """
    own = {} if any(name.lower() == "host" for name in headers) else {"Host": _host(uri)}
    lines = [f"GET {_path(uri)} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in {**own, **headers}.items()]
    lines += ["Connection: Upgrade", "Upgrade: amps", "", ""]
    return "\r\n".join(lines).encode("latin-1")


def check_granted(uri: Uri, head: bytes) -> None:
    """Check the head of the answer to `upgrade_request`.

    Raises:
        ConnectionRefused: It does not grant the upgrade.
    """
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


def granting_answer(head: bytes) -> bytes:
    """The head of the answer that grants the upgrade that a client asks for with this one."""
    wanted = _UPGRADE.search(head)
    protocol = b"amps" if wanted is None else wanted[1]
    lines = b"HTTP/1.1 101 Switching Protocols", b"Connection: Upgrade", b"Upgrade: " + protocol
    return b"\r\n".join((*lines, b"", b""))


def is_whole_head(head: bytearray, begin: bytes) -> bool:
    """Whether a head has been received up to and including its blank line.

    Args:
        head: What has been received of it.
        begin: What it begins with.

    Raises:
        ProtocolError: It does not, or it is too long.
    """
    if head.endswith(b"\r\n\r\n"):
        return True
    if not begin.startswith(head[: len(begin)]):
        raise ProtocolError(f"wanted the head of an HTTP upgrade, found {_shown(head)}")
    if len(head) >= MAX_HEAD_BYTES:
        raise ProtocolError(f"the head of the HTTP upgrade exceeds {MAX_HEAD_BYTES} bytes")
    return False


def _host(uri: Uri) -> str:
    if uri.scheme == "unix":  # the path of a socket is not a host
        return "localhost"
    if ":" in uri.host:  # the zone of an address means something on this machine alone (RFC 6874)
        return f"[{uri.host.partition('%')[0]}]:{uri.port}"
    return uri.address if uri.host.isascii() else f"{uri.host.encode('idna').decode()}:{uri.port}"


def _path(uri: Uri) -> str:
    kind = f"/{quote(uri.message_type, safe='')}" if uri.message_type else ""
    return f"/{uri.protocol}{kind}"


def _shown(data: bytes | bytearray) -> str:
    return repr(bytes(data[:80]).decode("latin-1"))

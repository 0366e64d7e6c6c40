"""The admin interface: the state of an instance, as JSON over HTTP.

| path | answer |
|---|---|
| `/amps/instance.json` | the name and the version of the instance |
| `/amps/instance/replication.json` | the same, and the state of each destination |

It only reads. Whoever can connect may ask, so it listens on this machine alone, or asks for the
password of one of the broker's users. A request has a limit in size and time. Connections have a
limit in number, beyond which the oldest is closed, and use no reserved file descriptor: no client
of this interface holds up the broker or the other clients.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

import trio

from haclient.errors import UsageError
from haclient_fake_server.engine.replication.destination import DestinationStatus

MAX_REQUEST_BYTES: Final = 8192
"""A longer head of a request is refused."""

REQUEST_LIMIT_S: Final = 5.0
"""How long one connection may take."""

MAX_CONNECTIONS: Final = 32
"""Open connections; for a further one the oldest is closed."""

_FIRST_PRINTABLE: Final = 0x21

_REPLICATION: Final = "/amps/instance/replication.json"
_INSTANCE: Final = "/amps/instance.json"
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized\r\nWWW-Authenticate: Basic",
    404: "Not Found",
    405: "Method Not Allowed",
}


def answer(
    head: bytes,
    *,
    name: str,
    version: str,
    destinations: Sequence[DestinationStatus],
    users: Mapping[str, str] | None = None,
) -> bytes:
    """The answer to a request, as bytes to send before the connection is closed.

    Args:
        head: The request up to the empty line.
        name: The instance name.
        version: The server version.
        destinations: The state of each destination of replication.
        users: Passwords by user, of whom the request has to be; `None` for anybody's.
    """
    parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/"):  # noqa: PLR2004  # method, path, version
        return _response(400, {"error": "wanted a request of HTTP"})
    method, path = parts[0], parts[1].partition("?")[0]
    if method not in {"GET", "HEAD"}:
        return _response(405, {"error": f"{method}: wanted GET"})
    if users is not None and not _is_of(users, head):
        return _response(401, {"error": "wanted the name and the password of a user"})
    if path not in {_INSTANCE, _REPLICATION}:
        return _response(404, {"error": f"no {path}: there are {_INSTANCE} and {_REPLICATION}"})
    instance: dict[str, object] = {"name": name, "version": version}
    if path == _REPLICATION:
        instance["replication"] = [_destination(each) for each in destinations]
    return _response(200, {"amps": {"instance": instance}}, with_body=method == "GET")


def _is_of(users: Mapping[str, str], head: bytes) -> bool:
    """Whether a request has the password of a user."""
    for line in head.split(b"\r\n")[1:]:
        field, _, value = line.partition(b":")
        kind, _, encoded = value.strip().partition(b" ")
        if field.lower() != b"authorization" or kind.lower() != b"basic":
            continue
        try:
            user, _, password = base64.b64decode(encoded, validate=True).partition(b":")
        except binascii.Error:
            return False
        wanted = users.get(user.decode(errors="replace"))
        return wanted is not None and hmac.compare_digest(wanted.encode(), password)
    return False


def _destination(status: DestinationStatus) -> dict[str, object]:
    return {
        "name": status.instance,
        "address": status.address,
        "configured_type": status.mode,
        "replication_type": "sync" if status.is_sync else "async",
        "is_connected": status.is_connected,
        "messages_behind": status.behind,
        "messages_missing": status.missing,
    }


def _response(status: int, content: object, *, with_body: bool = True) -> bytes:
    body = json.dumps(content).encode()
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")


def parse_admin(text: str) -> tuple[str, int]:
    """`HOST:PORT` of an admin interface.

    Raises:
        UsageError: It is not of that form.
    """
    wanted = f"admin address {text!r}: wanted HOST:PORT, such as 127.0.0.1:8085"
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")  # which a label that is empty or too long refuses
    except ValueError as error:
        raise UsageError(wanted) from error
    if host is None or port is None or parts.path or parts.username is not None:
        raise UsageError(wanted)
    return host, port


def is_of_this_machine(host: str) -> bool:
    """Whether only programs on this machine can connect to a host that is listened on."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class AdminServer:
    """Serves the admin interface until it is closed.

    Args:
        respond: The answer to the head of a request.
        has_room: Whether a connection may have this file descriptor.

    Attributes:
        uri: `http://HOST:PORT`, with the real port, once it listens.
    """

    def __init__(
        self, respond: Callable[[bytes], bytes], *, has_room: Callable[[int], bool] = lambda _: True
    ) -> None:
        self.uri = ""
        self._respond = respond
        self._has_room = has_room
        self._listeners: list[trio.SocketListener] = []
        self._open: dict[trio.CancelScope, None] = {}  # oldest first

    async def listen(self, host: str, port: int) -> None:
        """Listen on an address.

        Raises:
            OSError: The address cannot be used for listening.
        """
        self._listeners = await trio.open_tcp_listeners(port, host=host)
        bound = self._listeners[0].socket.getsockname()[1]
        self.uri = f"http://[{host}]:{bound}" if ":" in host else f"http://{host}:{bound}"

    async def run(self) -> None:
        """Answer requests until cancelled."""
        await trio.serve_listeners(self._serve, self._listeners)

    def close(self) -> None:
        """Stop listening."""
        for listener in self._listeners:
            listener.socket.close()

    async def _serve(self, stream: trio.SocketStream) -> None:
        if not self._has_room(stream.socket.fileno()):
            stream.socket.close()
            return
        with trio.move_on_after(REQUEST_LIMIT_S) as scope:
            self._open[scope] = None
            if len(self._open) > MAX_CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                oldest.cancel()
            try:
                async with stream:
                    head = await _head(stream)
                    if head:
                        await stream.send_all(self._respond(head))
            except trio.BrokenResourceError:  # the client has gone; nobody waits for the answer
                return
            finally:
                self._open.pop(scope, None)


async def _head(stream: trio.SocketStream) -> bytes:
    """The head of a request; empty when the client leaves or sends too much."""
    received = b""
    while b"\r\n\r\n" not in received:
        chunk = await stream.receive_some(MAX_REQUEST_BYTES)
        received += chunk
        if not chunk or len(received) > MAX_REQUEST_BYTES:
            return b""
        if received[0] < _FIRST_PRINTABLE:
            # Not HTTP, but perhaps the length of a frame of AMPS: such a client waits for an
            # answer, and understands the refusal.
            return received
    return received.partition(b"\r\n\r\n")[0]

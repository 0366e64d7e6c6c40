"""The admin interface: the state of an instance over HTTP, and what an operator can do to it.

| path | answer |
|---|---|
| `/amps/instance.json` | the instance |
| `/amps/instance/clients.json` | the same, and one of the tables in `TABLES` |
| `/metrics` | numbers of all tables that are short, for Prometheus |
| POST `/amps/administrator/clients/joe/disconnect` | one of the `ACTIONS`, carried out |

`.xml` and `.csv` in place of `.json` give the other forms. A table has at most 1000 rows; `?after=`
with the number of the last one gives those that follow.

Whoever can connect may ask, so it listens on this machine alone, or asks for the password of one of
the broker's users. A request has a limit in size and time. Connections have a limit in number,
beyond which the oldest is closed, and use no reserved file descriptor: no client of this interface
holds up the broker or the other clients. A web page in a browser on this machine can post to it, so
what comes from a page is refused.
"""

from __future__ import annotations

import base64
import binascii
import csv
import hmac
import io
import ipaddress
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, Protocol, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree as ET

import trio

from haclient.errors import UsageError, printable
from haclient_fake_server.engine.statistics import Row

MAX_REQUEST_BYTES: Final = 8192
"""A longer head of a request is refused."""

REQUEST_LIMIT_S: Final = 5.0
"""How long one connection may take."""

MAX_CONNECTIONS: Final = 32
"""Open connections; for a further one the oldest is closed."""

_FIRST_PRINTABLE: Final = 0x21

_MAX_DIGITS: Final = 18

_NOT_XML: Final = re.compile("[^\\t\\n\\r\\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What no XML document may have."""

_CONTENT_TYPES: Final = {
    "json": "application/json",
    "xml": "application/xml",
    "csv": "text/csv; charset=utf-8",
    "metrics": "text/plain; version=0.0.4; charset=utf-8",
}

_log = logging.getLogger(__name__)

TABLES: Final[Mapping[str, str]] = {
    "clients": "client",
    "subscriptions": "subscription",
    "queues": "queue",
    "replication": "destination",
    "sow": "topic",
    "transaction_log": "segment",
    "transports": "transport",
}
"""The tables, and what a row of each is called."""

_PATHS: Final = {"/amps/instance": "", **{f"/amps/instance/{each}": each for each in TABLES}}

_IN_METRICS: Final = {
    "instance": "",
    "queues": "queue_",
    "replication": "replication_",
    "sow": "sow_",
}
"""The tables whose numbers are metrics, and the beginnings of their names. The others are long."""

_LABELS: Final = ("name", "address", "topic", "message_type")

_COUNTERS: Final = re.compile(
    "delivered|redelivered|acknowledged|cancelled|lost|expired_.*|ended_connections|faults|connects"
    "|messages_missing|times_offline"
)
"""Fields that only rise until the broker starts again."""

_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized\r\nWWW-Authenticate: Basic",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    500: "Internal Server Error",
}


JournalAction: TypeAlias = Literal["archive", "compress", "remove"]
"""What is done with segments of the log."""


class Administered(Protocol):
    """What the interface needs of a broker."""

    def rows(self, table: str, *, after: int = 0) -> list[Row]:
        """A table of the statistics; `instance` has one row."""
        ...

    def disconnect(self, client: str) -> None:
        """End the connection of a client.

        Raises:
            UsageError: There is none.
        """

    def downgrade(self, address: str) -> None:
        """Do not let acks wait for a destination of replication.

        Raises:
            UsageError: There is none.
        """

    def upgrade(self, address: str) -> None:
        """Let acks wait for a destination of replication again.

        Raises:
            UsageError: There is none.
        """

    def set_transport(self, uri: str, *, enabled: bool) -> None:
        """Accept connections at an address, or refuse them.

        Raises:
            UsageError: There is no such address.
        """

    def begin_journal_action(self, action: JournalAction, segment: str) -> None:
        """Begin to archive, compress or remove a segment of the log.

        Raises:
            UsageError: There is no such segment.
            ConflictError: That is not possible; the text says why, and who needs the segment.
        """


def _begin(action: JournalAction) -> Callable[[Administered, str], None]:
    return lambda broker, segment: broker.begin_journal_action(action, segment)


ACTIONS: Final[Mapping[tuple[str, str], Callable[[Administered, str], None]]] = {
    ("clients", "disconnect"): lambda broker, client: broker.disconnect(client),
    ("replication", "downgrade"): lambda broker, address: broker.downgrade(address),
    ("replication", "upgrade"): lambda broker, address: broker.upgrade(address),
    ("transports", "disable"): lambda broker, uri: broker.set_transport(uri, enabled=False),
    ("transports", "enable"): lambda broker, uri: broker.set_transport(uri, enabled=True),
    ("transaction_log", "archive"): _begin("archive"),
    ("transaction_log", "compress"): _begin("compress"),
    ("transaction_log", "remove"): _begin("remove"),
}
"""What `/amps/administrator/KIND/NAME/ACTION` does, by kind and action."""


class ConflictError(UsageError):
    """An action on something that exists is not possible; the text says why."""


class _Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def answer(head: bytes, *, broker: Administered, users: Mapping[str, str] | None = None) -> bytes:
    """The answer to a request, as bytes to send before the connection is closed.

    Args:
        head: The request up to the empty line.
        broker: The broker.
        users: Passwords by user, one of which the request needs; `None` if it needs none.
    """
    try:
        return _answer(head, broker, users)
    except _Refused as error:
        return _response(error.status, _json({"error": str(error)}), "json")
    except Exception as error:  # a fault here must end neither the broker nor this interface
        _log.exception("admin: internal error")
        return _response(500, _json({"error": f"internal error: {type(error).__name__}"}), "json")


def _answer(head: bytes, broker: Administered, users: Mapping[str, str] | None) -> bytes:
    method, path, query = _request(head)
    if users is not None and not _is_of(users, head):
        raise _Refused(401, "wanted the name and the password of a user")
    if path.startswith("/amps/administrator/"):
        return _response(200, _act(broker, method, path, head), "json")
    if method not in {"GET", "HEAD"}:
        raise _Refused(405, f"{method}: wanted GET")
    kind, content = _read(broker, path, query)
    return _response(200, content, kind, with_body=method == "GET")


def _request(head: bytes) -> tuple[str, str, str]:
    """Method, path and query of a request."""
    parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/"):  # noqa: PLR2004  # method, path, version
        raise _Refused(400, "wanted a request of HTTP")
    path, _, query = parts[1].partition("?")
    return parts[0], path, query


def _read(broker: Administered, path: str, query: str) -> tuple[str, bytes]:
    """The form and the content of an answer."""
    if path == "/metrics":
        return "metrics", _metrics(broker)
    name, _, form = path.rpartition(".")
    table = _PATHS.get(name)
    if form not in _WRITERS or table is None:
        raise _Refused(
            404,
            f"no {path}: there are /metrics, /amps/instance and /amps/instance/TABLE with .json, "
            f".xml or .csv, and the tables {', '.join(TABLES)}",
        )
    (instance,) = broker.rows("instance")
    rows = broker.rows(table, after=_after(query)) if table else None
    return form, _WRITERS[form](instance, table, rows)


def _after(query: str) -> int:
    text = parse_qs(query).get("after", ["0"])[0]
    if not text.isdecimal() or len(text) > _MAX_DIGITS:
        raise _Refused(400, f"after={text[:40]}: wanted a number")
    return int(text)


def _act(broker: Administered, method: str, path: str, head: bytes) -> bytes:
    kind, _, rest = path.removeprefix("/amps/administrator/").partition("/")
    name, _, action = rest.rpartition("/")
    do = ACTIONS.get((kind, action))
    if do is None or not name:
        known = ", ".join(f"{kind}/NAME/{action}" for kind, action in ACTIONS)
        raise _Refused(404, f"no {path}: there are {known}")
    if method != "POST":
        raise _Refused(405, f"{method}: wanted POST")
    if _header(head, b"origin"):
        raise _Refused(403, "a web page may not do that")
    name = unquote(name)
    try:
        do(broker, name)
    except UsageError as error:  # there is nothing of this name, or not in such a state
        raise _Refused(409 if isinstance(error, ConflictError) else 404, str(error)) from error
    _log.warning("admin: %s %s: %s", kind, printable(name), action)
    return _json({"amps": {"administrator": {"kind": kind, "name": name, "action": action}}})


# --- the forms of an answer ----------------------------------------------------------------------


def _json(content: object) -> bytes:
    return json.dumps(content).encode("ascii") + b"\n"  # else a shell's prompt follows it


def _as_json(instance: Row, table: str, rows: Sequence[Row] | None) -> bytes:
    more = {} if rows is None else {table: rows}
    return _json({"amps": {"instance": {**instance, **more}}})


def _as_xml(instance: Row, table: str, rows: Sequence[Row] | None) -> bytes:
    root = ET.Element("amps")
    parent = _element(root, "instance", instance)
    if rows is not None:
        container = ET.SubElement(parent, table)
        for row in rows:
            _element(container, TABLES[table], row)
    text: bytes = ET.tostring(root, "utf-8", xml_declaration=True)
    return text + b"\n"


def _element(parent: ET.Element, name: str, row: Row) -> ET.Element:
    element = ET.SubElement(parent, name)
    for field, value in row.items():
        ET.SubElement(element, field).text = _NOT_XML.sub("\ufffd", _text(value))
    return element


def _as_csv(instance: Row, table: str, rows: Sequence[Row] | None) -> bytes:
    del table
    found = [instance] if rows is None else rows
    out = io.StringIO()
    writer = csv.writer(out)
    if found:
        writer.writerow(found[0])
    writer.writerows([_text(value) for value in row.values()] for row in found)
    return out.getvalue().encode("utf-8", "replace")


def _text(value: str | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_WRITERS: Final[Mapping[str, Callable[[Row, str, Sequence[Row] | None], bytes]]] = {
    "json": _as_json,
    "xml": _as_xml,
    "csv": _as_csv,
}


def _metrics(broker: Administered) -> bytes:
    lines: list[str] = []
    for table, prefix in _IN_METRICS.items():
        rows = broker.rows(table)
        names = rows[0] if rows else ()
        # What one has none of, such as a lease, is an empty text there.
        fields = [name for name in names if not all(isinstance(row[name], str) for row in rows)]
        for field in fields:
            is_counter = _COUNTERS.fullmatch(field) is not None
            name = f"haclient_broker_{prefix}{field}" + "_total" * is_counter
            lines.append(f"# TYPE {name} {'counter' if is_counter else 'gauge'}")
            for row in rows:
                value = row[field]
                number = "NaN" if isinstance(value, str) else repr(+value)
                lines.append(f"{name}{'' if table == 'instance' else _labels(row)} {number}")
    return "\n".join([*lines, ""]).encode("utf-8", "replace")


def _labels(row: Row) -> str:
    found = [f'{each}="{_label(str(row[each]))}"' for each in _LABELS if each in row]
    return "{" + ",".join(found) + "}"


def _label(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# --- HTTP ----------------------------------------------------------------------------------------


def _header(head: bytes, name: bytes) -> bytes:
    """A header of a request, empty without it."""
    for line in head.split(b"\r\n")[1:]:
        field, _, value = line.partition(b":")
        if field.lower() == name:
            return value.strip()
    return b""


def _is_of(users: Mapping[str, str], head: bytes) -> bool:
    """Whether a request has the password of a user."""
    kind, _, encoded = _header(head, b"authorization").partition(b" ")
    if kind.lower() != b"basic":
        return False
    try:
        user, _, password = base64.b64decode(encoded, validate=True).partition(b":")
    except binascii.Error:
        return False
    wanted = users.get(user.decode(errors="replace"))
    return wanted is not None and hmac.compare_digest(wanted.encode(), password)


def _response(status: int, body: bytes, form: str, *, with_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {_CONTENT_TYPES[form]}\r\n"
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
        try:
            self._listeners = await trio.open_tcp_listeners(port, host=host)
        except OSError as error:
            reason = f"cannot listen: {error.strerror or error}"
            raise OSError(error.errno, reason, f"http://{host}:{port}") from error
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

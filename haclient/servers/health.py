"""A server chooser that asks the servers' admin interfaces before it lets a client go there.

It is a shell: `haclient.session.replica_health` decides, another chooser gives the order. While the
client is live, all admin interfaces are asked every few seconds, because the server that knows best
cannot be asked after it has failed. What a server did in the seconds since is not known.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import Final
from urllib.parse import urlsplit

import trio
from typing_extensions import override

from haclient.errors import (
    ConnectionRefused,
    DisconnectedError,
    HAClientError,
    ProtocolError,
    TimedOut,
    UsageError,
    failure_text,
)
from haclient.protocol.uri import Uri
from haclient.servers.auth import Authenticator
from haclient.servers.chooser import (
    AsyncServerChooser,
    ConnectionInfo,
    DefaultServerChooser,
    FailureCountServerChooser,
    MovingServerChooser,
    ServerChooser,
)
from haclient.session.replica_health import ReplicaHealth, parse_replication
from haclient_stores.checks import check_count, check_seconds, is_number
from haclient_stores.logs import logger_of

__all__ = ["HealthAwareServerChooser"]

MAX_PATIENCE_S: Final = 45.0
"""Below the limit that the client sets to the answer of a chooser."""

ASK_LIMIT_S: Final = 3.0
"""How long an admin interface may take, in seconds."""

MIN_TRIES: Final = 64
"""How many servers of the inner chooser, at least, are checked in one round."""

MAX_ANSWER_BYTES: Final = 2**20
"""A longer answer is an error."""

PATH: Final = "/amps/instance/replication.json"
_logger = logger_of(__name__)


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
    except ValueError:  # a malformed port, brackets that are not closed, a label too long
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
        ProtocolError: The answer is not a success, or too long.
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


class HealthAwareServerChooser(AsyncServerChooser, MovingServerChooser):
    """Refuses servers that lack what was acknowledged.

    A server is refused while the last word of another one is that it has downgraded it to
    asynchronous replication, or that it is too far behind. A server of which nothing is known, and
    one whose admin interface does not answer, may be used. When every server of the inner chooser
    is refused, it asks again every `check_every` seconds; after `patience` seconds the client ends
    with `ReconnectGaveUp`, which has the reasons.

    Args:
        admin: The admin interface of each server, `http://HOST:PORT` by connection string.
        inner: Gives the order of the servers; by default that of `admin`, as
            `DefaultServerChooser`. With a `PriorityServerChooser` the client returns only to a
            server that is not refused. Its `report_failure` is called for each refusal, also for
            repeated ones in one round. With `FailureCountServerChooser(ends=True)` refusals do not
            count, since they would end the client before `patience` is over.
        max_behind: How many messages a server may be behind for which acknowledgements do not wait;
            `None` for any number.
        patience: Seconds to wait while every server is refused, at most 45.
        check_every: Seconds between two rounds of questions; less than what a server waits before
            it downgrades another one.
        ask: Gets the content of a URL within so many seconds; any error is one of that server.

    Raises:
        UsageError: A URI or a URL is wrong, or a number cannot be.
    """

    def __init__(  # the settings by keyword
        self,
        admin: Mapping[str, str],
        *,
        inner: ServerChooser | None = None,
        max_behind: int | None = None,
        patience: float = 30.0,
        check_every: float = 5.0,
        ask: Callable[[str, float], Awaitable[bytes]] = http_get,
    ) -> None:
        if not (is_number(patience) and 0 <= patience <= MAX_PATIENCE_S):
            raise UsageError(
                f"patience is a number of seconds from 0 to {MAX_PATIENCE_S:g}, not {patience!r}"
            )
        check_seconds("check_every", check_every, endless=False)
        check_count("max_behind", max_behind, optional=True)
        self.check_every = check_every
        for url in admin.values():
            check_url(url)
        self._admin = {Uri.parse(uri).address: url.rstrip("/") for uri, url in admin.items()}
        self._inner = inner or DefaultServerChooser(admin)
        self._health = ReplicaHealth(max_behind)
        self._patience_s = patience
        self._ask = ask
        self._refused = ""  # why every server was
        self._mute = set[str]()  # the admin interfaces that have not answered last

    @override
    async def current_uri(self) -> str:
        give_up_at = trio.current_time() + self._patience_s
        while True:
            await self._ask_all()
            refused = dict[str, str]()
            # A new order of the inner chooser may begin with servers that were refused already.
            for _ in range(max(MIN_TRIES, 2 * len(self._admin))):
                uri = self._inner.current_uri()
                server = Uri.parse(uri) if uri else None
                reason = self._health.refusal_reason(server.address) if server else None
                if server is None or reason is None:
                    self._refused = ""
                    return uri
                if server.address not in refused:
                    refused[server.address] = f"{server.safe}: {reason}"
                    _logger.warning("not used: %s", refused[server.address])
                self._report_refusal(_unsafe(reason), {"uri": server.safe})
            self._refused = "; ".join(refused.values())
            if trio.current_time() >= give_up_at:
                return ""
            await trio.sleep(min(self.check_every, give_up_at - trio.current_time()))

    def _report_refusal(self, error: Exception, info: ConnectionInfo) -> None:
        """Let the inner chooser move on to its next server."""
        if isinstance(self._inner, FailureCountServerChooser):
            self._inner.report_refusal(error, info)
        else:
            self._inner.report_failure(error, info)

    @override
    def current_authenticator(self) -> Authenticator:
        return self._inner.current_authenticator()

    @override
    def report_success(self, info: ConnectionInfo) -> None:
        self._inner.report_success(info)

    @override
    def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
        self._inner.report_failure(error, info)

    @override
    def error(self) -> str:
        return f"every server is refused: {self._refused}" if self._refused else self._inner.error()

    @override
    def to_check(self) -> list[tuple[str, Authenticator]]:
        return self._inner.to_check() if isinstance(self._inner, MovingServerChooser) else []

    @override
    def report_check(self, uri: str, error: Exception | None, now: float) -> None:
        if isinstance(self._inner, MovingServerChooser):
            reason = self._health.refusal_reason(Uri.parse(uri).address)
            self._inner.report_check(uri, _unsafe(reason) if reason else error, now)

    @override
    async def is_move_due(self, now: float) -> bool:
        await self._ask_all()
        if not isinstance(self._inner, MovingServerChooser):
            return False
        for uri, _ in self._inner.to_check():
            if reason := self._health.refusal_reason(Uri.parse(uri).address):
                self._inner.report_check(uri, _unsafe(reason), now)
        due = self._inner.is_move_due(now)
        return await due if isawaitable(due) else due

    @override
    def report_move(self) -> None:
        if isinstance(self._inner, MovingServerChooser):
            self._inner.report_move()

    async def _ask_all(self) -> None:
        """Ask every admin interface at the same time; those that do not answer keep their word."""
        async with trio.open_nursery() as nursery:
            for address, url in self._admin.items():
                nursery.start_soon(self._ask_one, address, url)

    async def _ask_one(self, address: str, url: str) -> None:
        try:
            name, reports = parse_replication(await self._ask(f"{url}{PATH}", ASK_LIMIT_S))
        except Exception as error:  # it is down, say; of any kind, by an `ask`
            # Once, and as a warning: behind a wrong URL no server would ever be refused.
            level = logging.DEBUG if url in self._mute else logging.WARNING
            self._mute.add(url)
            why = error if isinstance(error, HAClientError) else failure_text(error)
            _logger.log(level, "%s does not answer: its last answer counts: %s", url, why)
        else:
            self._mute.discard(url)
            self._health.note(address, name, reports)


def _unsafe(reason: str) -> DisconnectedError:
    return DisconnectedError(f"not used, since messages may be missing there: {reason}")

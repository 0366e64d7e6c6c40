"""Where a broker listens: on TCP with or without TLS, on a Unix socket, or in memory."""

from __future__ import annotations

import contextlib
import errno
import logging
import resource
import socket
import ssl
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote, unquote, urlsplit

import trio
from typing_extensions import override

from haclient.errors import UsageError
from haclient.transport.links.link import Link, TcpLink
from haclient.transport.links.memory_network import network
from haclient.transport.links.tls import TlsLink, load_authorities, load_certificate, tls_reason
from haclient_fake_server.config import TlsFiles

BACKLOG: Final = 1024
"""Connections that may wait to be accepted: all clients of a failed server at once."""

ACCEPTS_PER_ROUND: Final = 16
"""Connections that are accepted in a round of the event loop: about 3 ms of work for the broker.
Accepting one in a round is a third slower, and all that wait are ahead of a newcomer."""

ACCEPT_PAUSE_S: Final = 0.1
"""How long to wait before accepting again when the process has no file descriptor left."""

RESERVED_DESCRIPTORS: Final = 32
"""File descriptors that connections may not use: the journal opens segments and manifests while the
broker runs, and replication dials. A broker that cannot open a file has to stop."""

HANDSHAKE_LIMIT_S: Final = 10.0
"""How long a client may take for the TLS handshake."""

_OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_log = logging.getLogger(__name__)


class Listener(Protocol):
    """One address that connections come to.

    Attributes:
        uri: The address, with its real port.
    """

    uri: str

    async def run(self) -> None:
        """Accept connections until cancelled."""

    def close(self) -> None:
        """Stop listening; connections stay."""


def listen(
    uri: str, accept: Callable[[Link], object], *, context: ssl.SSLContext | None = None
) -> Listener:
    """Listen on an address.

    Args:
        uri: `tcp://HOST:PORT`, `tcps://` for TLS, port 0 for a free one; `unix:///PATH`; or
            `mem://NAME:PORT`.
        accept: Called with the server's end of each connection.
        context: The certificate of the server, for `tcps`.

    Raises:
        UsageError: The address is malformed, or wants a certificate.
        OSError: The address cannot be used for listening.
    """
    scheme, host, port = _parse(uri)
    if scheme == "unix":
        return UnixListener(Path(host), accept)
    if scheme == "mem":
        return _MemoryListener(f"{host}:{port}", accept)
    if scheme == "tcps":
        if context is None:
            raise UsageError(f"cannot listen on {uri!r}: it needs a certificate (tls_cert)")
        return TlsListener(host, port, accept, context=context)
    return TcpListener(host, port, accept)


def _parse(uri: str) -> tuple[str, str, int]:
    """The scheme, host and port of an address to listen on; of `unix` the path and 0."""
    wanted = f"cannot listen on {uri!r}: wanted tcp://HOST:PORT or unix:///PATH"
    try:
        parts = urlsplit(uri)
    except ValueError as error:  # brackets that are not closed
        raise UsageError(wanted) from error
    try:
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{wanted} with a port from 0 to 65535") from error
    if parts.scheme == "unix" and not parts.netloc and not parts.query and len(parts.path) > 1:
        return parts.scheme, unquote(parts.path), 0
    if parts.scheme not in {"tcp", "tcps", "mem"} or parts.hostname is None or port is None:
        raise UsageError(wanted)
    return parts.scheme, parts.hostname, port


def descriptor_limit() -> float:
    """How many files and sockets this process may have open, infinity without a limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return float("inf") if soft == resource.RLIM_INFINITY else soft


def has_room(descriptor: int, limit: float | None = None) -> bool:
    """Whether a connection may have a new file descriptor; the last ones are reserved.

    Args:
        descriptor: The descriptor. A new one is the lowest free one, so all below it are in use.
        limit: How many the process may have; by default `descriptor_limit()`.
    """
    return descriptor < (descriptor_limit() if limit is None else limit) - RESERVED_DESCRIPTORS


def check_reachable(uris: Iterable[str]) -> None:
    """Check that other processes can connect to addresses.

    Args:
        uris: Addresses to listen on.

    Raises:
        UsageError: One of them is malformed, or in memory.
    """
    for uri in uris:
        if _parse(uri)[0] == "mem":
            raise UsageError(
                f"cannot listen on {uri!r}: no other process reaches it; wanted tcp://HOST:PORT "
                "or unix:///PATH"
            )


class _MemoryListener:
    def __init__(self, address: str, accept: Callable[[Link], object]) -> None:
        self.uri = f"mem://{address}"
        self.close = network().listen(address, accept)

    async def run(self) -> None:
        """Do nothing: the dialler calls `accept`."""


class SocketListener:
    """Accepts connections to a socket that listens, as far as there are descriptors for them.

    Args:
        listening: The socket.
        uri: Its address.
        accept: Called with the server's end of each connection.
        limit: Returns how many file descriptors the process may have; called for each connection.

    Attributes:
        uri: The address, with its real port.
    """

    def __init__(
        self,
        listening: socket.socket,
        uri: str,
        accept: Callable[[Link], object],
        *,
        limit: Callable[[], float],
    ) -> None:
        listening.setblocking(False)
        self.uri = uri
        self._socket = listening
        self._accept = accept
        self._limit = limit
        self._refusing = False

    async def run(self) -> None:
        """Accept connections until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            for _ in range(ACCEPTS_PER_ROUND):
                try:
                    connection, _ = self._socket.accept()
                    if connection.family != socket.AF_UNIX:
                        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                except OSError as error:
                    if error.errno in _OUT_OF_DESCRIPTORS:
                        self._refuse(str(error))
                        await trio.sleep(ACCEPT_PAUSE_S)
                    break  # any other error: nothing to accept, as when the peer has closed it
                self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        if not has_room(connection.fileno(), self._limit()):
            self._refuse(f"{connection.fileno()} of {self._limit():g} descriptors are in use")
            connection.close()
            return
        self._refusing = False
        self._accept(TcpLink(connection))

    def _refuse(self, reason: str) -> None:
        """Log that connections are refused, once until a connection is accepted again."""
        if not self._refusing:
            _log.warning("%s: connections are refused: %s (see ulimit -n)", self.uri, reason)
        self._refusing = True

    def close(self) -> None:
        """Stop listening; connections stay."""
        self._socket.close()


class TcpListener(SocketListener):
    """Listens on TCP.

    Args:
        host: The interface, by name or number.
        port: The port; 0 takes a free one.
        accept: Called with the server's end of each connection.
        limit: Returns how many file descriptors the process may have; called for each connection.
    """

    def __init__(
        self,
        host: str,
        port: int,
        accept: Callable[[Link], object],
        *,
        limit: Callable[[], float] = descriptor_limit,
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:  # such as a port in use, or a host that has no address
            reason = (error.strerror or str(error)).partition(" (while")[0]  # Python names it, too
            raise OSError(
                error.errno, f"cannot listen: {reason}", f"tcp://{host}:{port}"
            ) from error
        host, port = listening.getsockname()[:2]
        uri = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
        super().__init__(listening, uri, accept, limit=limit)


class UnixListener(SocketListener):
    """Listens on a Unix socket, whose directory decides who may connect.

    Args:
        path: The file name of the socket. One that a killed process has left is replaced.
        accept: Called with the server's end of each connection.
    """

    def __init__(self, path: Path, accept: Callable[[Link], object]) -> None:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._path = path
        uri = f"unix://{quote(str(path))}"
        try:
            _remove_left_socket(path)
            listening.bind(str(path))
            listening.listen(BACKLOG)
        except OSError as error:  # in use, no such directory, or a path that is too long
            listening.close()
            reason = error.strerror or str(error)
            raise OSError(error.errno, f"cannot listen: {reason}", uri) from error
        self._inode = path.lstat().st_ino
        super().__init__(listening, uri, accept, limit=descriptor_limit)

    @override
    def close(self) -> None:
        """Stop listening and remove the socket, unless another process has replaced it."""
        super().close()
        with contextlib.suppress(FileNotFoundError):
            if self._path.lstat().st_ino == self._inode:
                self._path.unlink()


def _remove_left_socket(path: Path) -> None:
    """Remove a socket at which nobody listens; `bind` refuses whatever else is there."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)  # its queue may be full
        with contextlib.suppress(BlockingIOError):
            try:
                client.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """The server's side of TLS.

    Raises:
        UsageError: A file cannot be read or used.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    key = "" if files.key is None else str(files.key)
    load_certificate(context, str(files.cert), key, what="tcps")
    if files.client_ca is not None:
        load_authorities(context, str(files.client_ca), what="tcps")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class TlsListener:
    """Listens on TCP for connections with TLS.

    Args:
        host: The interface, by name or number.
        port: The port; 0 takes a free one.
        accept: Called with the server's end of each connection, after the handshake.
        context: The certificate of the server, and whose clients it accepts.

    Attributes:
        uri: The address, with its real port.
    """

    def __init__(
        self, host: str, port: int, accept: Callable[[Link], object], *, context: ssl.SSLContext
    ) -> None:
        self._pending: list[Link] = []
        self._woken = trio.Event()
        self._tcp = TcpListener(host, port, self._connected)
        self._accept = accept
        self._context = context
        self.uri = self._tcp.uri.replace("tcp://", "tcps://", 1)
        self.close = self._tcp.close

    def _connected(self, link: Link) -> None:
        self._pending.append(link)
        self._woken.set()

    async def run(self) -> None:
        """Accept connections until cancelled. A slow handshake holds up no other one."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tcp.run)
            while True:
                await self._woken.wait()
                self._woken = trio.Event()
                while self._pending:
                    nursery.start_soon(self._shake_hands, self._pending.pop())

    async def _shake_hands(self, inner: Link) -> None:
        link = TlsLink(inner, self._context, server_name=None)
        try:
            with trio.fail_after(HANDSHAKE_LIMIT_S):
                await link.handshake()
        except (OSError, trio.TooSlowError) as error:
            why = (
                tls_reason(error)
                if isinstance(error, OSError)
                else f"not done after {HANDSHAKE_LIMIT_S:g} s"
            )
            _log.warning("%s: refused %s: %s", self.uri, inner.peer, why)
            inner.close()
        except BaseException:  # cancelled: the broker ends
            inner.close()
            raise
        else:
            self._accept(link)

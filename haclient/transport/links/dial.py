"""From a URI to a connected link.

Both heads of an HTTP upgrade (`haclient.protocol.http_upgrade`) are read byte by byte up to their
blank line: whatever follows belongs to the stream, and needs no layer that gives it back.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

import trio

from haclient.errors import (
    ConnectionRefused,
    DisconnectedError,
    ProtocolError,
    TimedOut,
    UsageError,
)
from haclient.protocol.http_upgrade import (
    check_granted,
    granting_answer,
    is_whole_head,
    upgrade_request,
)
from haclient.protocol.uri import Uri
from haclient.transport.links.link import Link, TcpLink, ZlibLink, close_in_forks
from haclient.transport.links.memory_network import network
from haclient.transport.links.tls import client_context, connect_tls
from haclient.transport.tasks import open_nursery, own_threads

_NEXT_ADDRESS_AFTER_S: Final = 0.25  # as RFC 8305 recommends

_AddressInfo: TypeAlias = tuple[
    socket.AddressFamily, socket.SocketKind, int, str, tuple[object, ...]
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DialOptions:
    """What a client has to say about its connections, beside their URIs.

    Attributes:
        ssl_context: The application's own, for `tcps`; `None` makes one from each URI.
        preflight_headers: For the HTTP upgrade; any ask for one, whatever the URI says.
    """

    ssl_context: ssl.SSLContext | None = None
    preflight_headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)


_NO_OPTIONS: Final = DialOptions()


class Dialler:
    """Opens connections for one client; a dial under way can be stopped.

    Args:
        options: For all of them.
    """

    def __init__(self, options: DialOptions = _NO_OPTIONS) -> None:
        self._scope: trio.CancelScope | None = None
        self._options = options

    @property
    def busy(self) -> bool:
        """Whether a connection is being made."""
        return self._scope is not None

    def stop(self) -> None:
        """Stop the dial in progress, if any."""
        if self._scope is not None:
            self._scope.cancel()

    async def dial(self, uri: Uri, *, timeout: float) -> Link:
        """`dial`, unless `stop` is called before it is done.

        Raises:
            DisconnectedError: `stop` was called.
        """
        self._scope = scope = trio.CancelScope()
        link = None
        try:
            with scope:
                link = await dial(uri, timeout=timeout, options=self._options)
        finally:
            self._scope = None
        if link is None or scope.cancel_called:
            if link is not None:
                link.close()
            raise DisconnectedError("connect: the client was disconnected on purpose")
        return link


async def dial(uri: Uri, *, timeout: float, options: DialOptions = _NO_OPTIONS) -> Link:
    """Connect to the server that the URI names, trying its addresses in order.

    Args:
        uri: Where to; its socket options are applied.
        timeout: Seconds for all addresses together, with the handshakes; infinite waits as long as
            the system does.
        options: What the client adds to it.

    Raises:
        ConnectionRefused: No address could be connected to, or a handshake failed.
        TimedOut: None was connected in time.
        UsageError: The scheme or an option is not supported by this version, or a certificate
            cannot be used.
    """
    _refuse_unsupported(uri, options.ssl_context)
    with trio.move_on_after(timeout):
        link = await _connect(uri, options.ssl_context)
        if uri.http_preflight or options.preflight_headers:
            await _upgrade(link, uri, options.preflight_headers)
        return ZlibLink(link) if uri.compression else link
    raise TimedOut(f"{uri.safe} did not accept a connection within {timeout:g} s")


def _refuse_unsupported(uri: Uri, ssl_context: ssl.SSLContext | None) -> None:
    if sys.platform == "win32":
        raise UsageError("haclient runs on Linux and macOS, not on Windows")
    if ssl_context is not None and (uri.ca or uri.cert or not uri.verify):
        raise UsageError(
            f"{uri.safe}: ssl_context takes the place of ca, cert, key and verify: give one of both"
        )
    if ssl_context is not None and ssl_context.protocol is ssl.PROTOCOL_TLS_SERVER:
        raise UsageError(
            "ssl_context is for a server: make it with ssl.create_default_context() or for "
            "PROTOCOL_TLS_CLIENT"
        )


async def _connect(uri: Uri, ssl_context: ssl.SSLContext | None) -> Link:
    if uri.scheme == "mem":
        return await _connect_memory(uri)
    if uri.scheme == "unix":
        return TcpLink(await _connect_unix(uri))
    if uri.scheme == "tcp":
        return TcpLink(await _connect_tcp(uri))
    context = ssl_context or client_context(uri)  # before the server has anything to do
    return await connect_tls(TcpLink(await _connect_tcp(uri)), uri, context)


async def _upgrade(link: Link, uri: Uri, headers: Mapping[str, str]) -> None:
    try:
        await request_upgrade(link, uri, headers)
    except OSError as error:
        link.close()
        raise _refused(uri, error) from error
    except BaseException:  # refused or cancelled: do not leak the link
        link.close()
        raise


async def request_upgrade(link: Link, uri: Uri, headers: Mapping[str, str]) -> None:
    """Ask a server, or the proxy before it, to carry the stream.

    Args:
        link: Just connected.
        uri: Of the server.
        headers: More headers for the request.

    Raises:
        ConnectionRefused: It refuses, or what answers does not speak HTTP.
        OSError: The link is broken.
    """
    await _send_all(link, upgrade_request(uri, headers))
    try:
        head = await _read_head(link, b"HTTP/1.")
    except ProtocolError as error:
        raise ConnectionRefused(f"{uri.safe}: {error}") from None
    check_granted(uri, head)


async def answer_upgrade(link: Link, received: bytes) -> None:
    """Grant the upgrade that a client asks for.

    Args:
        link: Of the client.
        received: What was received from it already.

    Raises:
        ProtocolError: It is not a request for an upgrade.
        OSError: The link is broken.
    """
    await _send_all(link, granting_answer(await _read_head(link, b"GET /", received)))


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
    while not is_whole_head(head, begin):
        count = link.recv_into(byte)
        if count is None:
            await link.wait_readable()
        elif count == 0:
            raise ProtocolError("the connection was closed before the HTTP upgrade was complete")
        else:
            head += byte
    return bytes(head)


async def _connect_memory(uri: Uri) -> Link:
    try:
        return await network().connect(uri.address)
    except OSError as error:
        raise _refused(uri, error) from error


async def _connect_unix(uri: Uri) -> socket.socket:
    try:
        sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        raise _refused(uri, error) from error
    close_in_forks(sock)
    try:
        await sock.connect(uri.path)
    except OSError as error:
        sock.close()
        raise _refused(uri, error) from error
    except BaseException:  # cancelled: do not leak the socket
        sock.close()
        raise
    return socket.socket(fileno=sock.detach())


async def _connect_tcp(uri: Uri) -> socket.socket:
    """Try the addresses of a host in order; the first that answers wins.

    The next address is tried when the one before it has failed, or has not answered for a quarter
    of a second: a dead first address must not use up the time of all.
    """
    failures: list[OSError] = []
    winner: socket.socket | None = None

    async def attempt(family: socket.AddressFamily, address: object, *, failed: trio.Event) -> None:
        nonlocal winner
        try:
            connected = await _connect_address(uri, family, address)
        except OSError as error:  # try the next address
            failures.append(error)
            failed.set()
            return
        if winner is None:
            winner = connected
            nursery.cancel_scope.cancel()
        else:  # two answered in the same turn of the event loop
            connected.close()

    try:
        async with open_nursery() as nursery:
            for family, address in await _addresses(uri):
                failed = trio.Event()
                nursery.start_soon(partial(attempt, family, address, failed=failed))
                with trio.move_on_after(_NEXT_ADDRESS_AFTER_S):
                    await failed.wait()
    except BaseException:  # cancelled in the turn in which one has answered
        if winner is not None:
            winner.close()
        raise
    if winner is not None:
        return winner
    failure = failures[-1] if failures else None
    # In the system's words: those of trio name the address once more.
    why = os.strerror(failure.errno) if failure is not None and failure.errno else ""
    raise _refused(uri, failure, why) from failure


async def _connect_address(
    uri: Uri, family: socket.AddressFamily, address: object
) -> socket.socket:
    # May fail at once: this machine has no such addresses, or no descriptor is left.
    sock = trio.socket.socket(family, socket.SOCK_STREAM)
    close_in_forks(sock)
    try:
        _apply_options(sock, uri)
        if uri.bind:
            await sock.bind((uri.bind, 0))
        await sock.connect(address)
    except BaseException:  # refused, or cancelled because another address has answered
        sock.close()
        raise
    return socket.socket(fileno=sock.detach())


async def _addresses(uri: Uri) -> Iterable[tuple[socket.AddressFamily, object]]:
    """The host's addresses, the preferred family first; IPv4 unless the URI says otherwise."""
    try:
        found = await _resolve_host(uri.host, uri.port)
    except OSError as error:
        raise _refused(uri, error) from error
    except UnicodeError as error:  # before any lookup: a label is empty or too long
        raise UsageError(f"{uri.safe}: {uri.host!r} can be no host name") from error
    preferred = socket.AF_INET6 if uri.ip_protocol_prefer == "ipv6" else socket.AF_INET
    return sorted(((f, a) for f, _, _, _, a in found), key=lambda each: each[0] != preferred)


async def _resolve_host(host: str, port: int) -> Sequence[_AddressInfo]:
    """As `trio.socket.getaddrinfo`, but not in one of the threads of the application."""
    with suppress(socket.gaierror):  # a number needs no thread
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    resolver = trio.socket.set_custom_hostname_resolver(None)  # there is no other way to ask
    trio.socket.set_custom_hostname_resolver(resolver)
    if resolver is not None or not host.isascii():
        return await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    resolve = partial(socket.getaddrinfo, host.encode(), port, type=socket.SOCK_STREAM)
    try:
        return await trio.to_thread.run_sync(
            resolve, abandon_on_cancel=True, limiter=own_threads("names")
        )
    except RuntimeError as error:  # of Python; a moment later there may be one
        raise OSError(errno.EAGAIN, f"no thread to look its name up: {error}") from error


def _apply_options(sock: trio.socket.SocketType, uri: Uri) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, int(uri.tcp_nodelay is not False))
    if uri.tcp_sndbuf is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, uri.tcp_sndbuf)
    if uri.tcp_rcvbuf is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, uri.tcp_rcvbuf)
    if uri.tcp_linger == 0:  # else a close would block the event loop for so many seconds
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if uri.tcp_keepalive is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, int(uri.tcp_keepalive))


def _refused(uri: Uri, error: OSError | None, why: str = "") -> ConnectionRefused:
    why = why or (error and (error.strerror or str(error))) or "it has no address"
    return ConnectionRefused(f"cannot connect to {uri.safe}: {why}{_hint(uri, error)}")


def _hint(uri: Uri, error: OSError | None) -> str:
    if uri.scheme == "mem":  # its errors say it all
        return ""
    if isinstance(error, socket.gaierror):
        return ": is the host name right?" if error.errno == socket.EAI_NONAME else ""
    is_nobody_there = isinstance(error, (ConnectionRefusedError, FileNotFoundError))
    return ": is a server running there?" if is_nobody_there else ""

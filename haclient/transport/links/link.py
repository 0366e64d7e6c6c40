"""The seam between this project and a byte stream, and the log of what passes it.

A `Link` is a connected, ordered, reliable stream of bytes with two non-blocking verbs and two
waits. Client and reference broker use only this interface, so TCP, TLS, compression and the
simulator's in-memory links can implement it.

The caller tries first, and waits only when the call returns `None`::

    while (count := link.recv_into(view)) is None:
        await link.wait_readable()

On a broken link the verbs raise `OSError`; on a closed one the waits raise
`trio.ClosedResourceError`. The verbs never block, and the waits never transfer bytes.

`ZlibLink` compresses over another link: one zlib stream in each direction, from the first byte on.
What one call of `try_send` accepts is flushed, so that the peer can decompress it at once. A server
needs no configuration: the first byte of a zlib stream is none that a frame can begin with.

`WireLog` writes the header of each frame to the logger `haclient.wire` at DEBUG, for bug reports:
`> peer header` for each frame that was sent, `< peer header` for each that was received, `= client
state` for each state. Bodies are left out and passwords are replaced. Only connections that were
opened while the level was DEBUG are logged, because frame boundaries are known only from the first
byte on. A connection that is not logged pays one comparison for each chunk.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import weakref
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import trio
from typing_extensions import override

from haclient.protocol.codec import shown_header
from haclient.protocol.framing import MAX_FRAME_BYTES, FrameReader
from haclient_stores.logs import logger_of


class Link(Protocol):
    """A connected byte stream."""

    @abstractmethod
    def try_send(self, data: memoryview | bytes) -> int | None:
        """Hand over as many bytes as fit now; the count, or `None` when not even one does.

        Raises:
            OSError: The link is broken.
        """

    @abstractmethod
    def recv_into(self, buffer: memoryview) -> int | None:
        """Take bytes that have arrived: their count, 0 at the end, `None` when there are none yet.

        Raises:
            OSError: The link is broken.
        """

    @abstractmethod
    async def wait_readable(self) -> None:
        """Wait until `recv_into` would return a count.

        Raises:
            trio.ClosedResourceError: `close` was called, here or by another task.
        """

    @abstractmethod
    async def wait_writable(self) -> None:
        """Wait until `try_send` can take a byte.

        Raises:
            trio.ClosedResourceError: `close` was called, here or by another task.
        """

    @property
    def unsent_bytes(self) -> int:
        """Bytes that a link of several layers has accepted, and not passed on yet.

        While there are any, the sender has to call `wait_writable`, even with nothing more to send.
        """
        return 0

    @abstractmethod
    def close(self) -> None:
        """Close at once, without waiting for unsent bytes; calling it again does nothing."""

    @property
    @abstractmethod
    def peer(self) -> str:
        """The other end's address, for people to read."""


_open_sockets: Final = weakref.WeakSet["socket.socket | trio.socket.SocketType"]()


def close_in_forks(sock: socket.socket | trio.socket.SocketType) -> None:
    """Close a socket in every forked child, which else would keep its killed parent's connection.

    The parent's connection is unaffected.
    """
    _open_sockets.add(sock)


def _close_all_of_parent() -> None:
    for sock in list(_open_sockets):
        # Neither shut down, which would reach the peer, nor reported to trio, whose epoll the child
        # shares with its parent.
        descriptor = sock.detach()
        if descriptor >= 0:
            os.close(descriptor)


os.register_at_fork(after_in_child=_close_all_of_parent)


class TcpLink(Link):
    """A connected TCP or Unix domain socket.

    The socket is non-blocking and read and written directly: a trio stream would add a checkpoint,
    about 4 microseconds, to every call. Only the two waits go through trio.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        close_in_forks(sock)
        self._socket = sock
        self._peer = _peer_of(sock)

    @override
    def try_send(self, data: memoryview | bytes) -> int | None:
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):  # the socket is full
            return None

    @override
    def recv_into(self, buffer: memoryview) -> int | None:
        try:
            return self._socket.recv_into(buffer)
        except (BlockingIOError, InterruptedError):  # nothing has arrived
            return None

    @override
    async def wait_readable(self) -> None:
        self._refuse_closed()
        await trio.lowlevel.wait_readable(self._socket)

    @override
    async def wait_writable(self) -> None:
        self._refuse_closed()
        await trio.lowlevel.wait_writable(self._socket)

    @override
    def close(self) -> None:
        if self._socket.fileno() == -1:
            return
        trio.lowlevel.notify_closing(self._socket)
        # A peer that has already gone makes shutdown fail; the descriptor is released all the same.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    @property
    @override
    def peer(self) -> str:
        return self._peer

    def _refuse_closed(self) -> None:
        if self._socket.fileno() == -1:
            raise trio.ClosedResourceError("the link is closed")


class LayeredLink(Link):
    """A link that changes what an inner link carries.

    `try_send` may accept bytes whose changed form the inner link has not taken yet: subclasses put
    that form into `_put`, and accept nothing more before `_flush` has succeeded. Only the sending
    task calls `try_send` and `wait_writable`.

    Args:
        inner: What carries the bytes. It is closed with this link.
    """

    def __init__(self, inner: Link) -> None:
        self._inner = inner
        self._unsent = memoryview(b"")

    def _put(self, data: bytes) -> None:
        """Have these bytes leave after those that are waiting."""
        self._unsent = memoryview(b"".join((self._unsent, data)) if self._unsent else data)

    def _flush(self) -> bool:
        """Whether the inner link has taken everything."""
        while self._unsent:
            count = self._inner.try_send(self._unsent)
            if count is None:
                return False
            self._unsent = self._unsent[count:]
        return True

    @property
    @override
    def unsent_bytes(self) -> int:
        return len(self._unsent) + self._inner.unsent_bytes

    @override
    async def wait_readable(self) -> None:
        await self._inner.wait_readable()

    @override
    async def wait_writable(self) -> None:
        while not self._flush() or self._inner.unsent_bytes:
            await self._inner.wait_writable()
        await trio.lowlevel.checkpoint()

    @override
    def close(self) -> None:
        self._inner.close()

    @property
    @override
    def peer(self) -> str:
        return self._inner.peer


def _peer_of(sock: socket.socket) -> str:
    """The peer's address as text; empty when the peer has already gone."""
    try:
        address: tuple[str, int] | str = sock.getpeername() or sock.getsockname()
    except OSError:  # the peer has closed it
        return ""
    if isinstance(address, str):  # the path of a Unix socket, which the end that dials has not
        return address
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# -- the log of frames and states ----------------------------------------------------------------


_logger = logger_of("haclient.wire")


class WireLog:
    """The frames of one connection."""

    def __init__(self, peer: str, tap: Callable[[str, str], object] | None = None) -> None:
        self._peer = peer
        self._tap = tap
        self._sent = FrameReader(MAX_FRAME_BYTES)

    @classmethod
    def if_enabled(
        cls, peer: str, tap: Callable[[str, str], object] | None = None
    ) -> WireLog | None:
        """A log for a new connection, if frames are logged or a tap is to see them."""
        return cls(peer, tap) if tap or _logger.isEnabledFor(logging.DEBUG) else None

    def received(self, heads: Iterable[bytes]) -> None:
        """Frames with these headers have arrived."""
        for head in heads:
            self._show("<", head)

    def sent(self, data: memoryview | bytes) -> None:
        """The next bytes have left, in pieces of any size."""
        for head in self._sent.feed(data)[0]:
            self._show(">", head)

    def _show(self, direction: str, head: bytes) -> None:
        shown = shown_header(head)
        _logger.debug("%s %s %s", direction, self._peer, shown)
        if self._tap is not None:
            self._tap(direction, shown)


def log_state(client_name: str, state: str) -> None:
    """A client has reached a state."""
    _logger.debug("= %s %s", client_name, state)


ZLIB_FIRST_BYTE: Final = 0x78
"""The first byte of a zlib stream; a frame begins with a byte of its length, at most 0x0f."""

ZLIB_SEND_BYTES: Final = 256 * 1024
"""How much one call of `try_send` accepts."""

ZLIB_RECEIVE_BYTES: Final = 16 * 1024
"""How much is taken from the inner link at a time."""


MAX_STORED_BYTES: Final = 1024
"""The first bytes of a stream, sent without compression: a compressor takes 256 KiB, and many
connections end after no more than a refusal."""

_ZLIB_HEADER: Final = b"\x78\x9c"  # of RFC 1950; the stream has no end, and so no checksum


def _stored(piece: memoryview) -> bytes:
    """A block without compression (RFC 1951, 3.2.4), which is not the last one."""
    return struct.pack("<BHH", 0, len(piece), len(piece) ^ 0xFFFF) + piece


def _compressor() -> Callable[[memoryview], bytes]:
    """A function that compresses the next piece of a stream, to be read at once."""
    stream = zlib.compressobj(wbits=-zlib.MAX_WBITS)  # without the header, which was sent
    return lambda piece: stream.compress(piece) + stream.flush(zlib.Z_SYNC_FLUSH)


class ZlibLink(LayeredLink):
    """A compressed connection.

    Args:
        inner: What carries the streams. It is closed with this link.
        received: What was received from it already.
    """

    def __init__(self, inner: Link, received: bytes = b"") -> None:
        super().__init__(inner)
        self._compress: Callable[[memoryview], bytes] | None = None  # made when it is needed
        self._header = _ZLIB_HEADER  # until it is sent
        self._stored_bytes = 0
        self._decompressor = zlib.decompressobj()
        self._compressed = received
        self._has_more = bool(received)  # maybe, without anything from the inner link
        self._buffer = memoryview(bytearray(ZLIB_RECEIVE_BYTES))

    @override
    def try_send(self, data: memoryview | bytes) -> int | None:
        if not self._flush():
            return None
        piece = memoryview(data)[:ZLIB_SEND_BYTES]
        self._put(self._encoded(piece))
        self._flush()
        return len(piece)

    def _encoded(self, piece: memoryview) -> bytes:
        if self._compress is not None:
            return self._compress(piece)
        header, self._header = self._header, b""
        self._stored_bytes += len(piece)
        if self._stored_bytes <= MAX_STORED_BYTES:
            return header + _stored(piece)
        self._compress = _compressor()
        return header + self._compress(piece)

    @override
    def recv_into(self, buffer: memoryview) -> int | None:
        while True:
            if self._has_more and (count := self._decompress(buffer)):
                return count
            if self._decompressor.eof:  # the peer has ended its stream
                return 0
            received = self._inner.recv_into(self._buffer)
            if not received:
                return received
            self._compressed, self._has_more = bytes(self._buffer[:received]), True

    def _decompress(self, buffer: memoryview) -> int:
        """Decompress as much as fits, however much a few bytes may contain."""
        try:
            data = self._decompressor.decompress(self._compressed, len(buffer))
        except zlib.error as error:
            raise OSError(f"the compressed stream is damaged: {error}") from error
        buffer[: len(data)] = data
        self._compressed = self._decompressor.unconsumed_tail
        self._has_more = len(data) == len(buffer) or bool(self._compressed)
        return len(data)

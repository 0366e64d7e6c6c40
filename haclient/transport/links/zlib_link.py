"""Compression over another `Link`: one zlib stream in each direction, from the first byte on.

What one call of `try_send` accepts is flushed, so that the peer can decompress it at once. A server
needs no configuration: the first byte of a zlib stream is none that a frame can begin with.
"""

from __future__ import annotations

import zlib
from typing import Final

from typing_extensions import override

from haclient.transport.links.link import LayeredLink, Link

ZLIB_FIRST_BYTE: Final = 0x78
"""The first byte of a zlib stream; a frame begins with a byte of its length, at most 0x0f."""

SEND_BYTES: Final = 256 * 1024
"""How much one call of `try_send` accepts."""

RECEIVE_BYTES: Final = 64 * 1024
"""How much is taken from the inner link at a time."""


class ZlibLink(LayeredLink):
    """A compressed connection.

    Args:
        inner: What carries the streams. It is closed with this link.
        received: What was received from it already.
    """

    def __init__(self, inner: Link, received: bytes = b"") -> None:
        super().__init__(inner)
        self._compressor = zlib.compressobj()
        self._decompressor = zlib.decompressobj()
        self._compressed = received
        self._has_more = bool(received)  # maybe, without anything from the inner link
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))

    @override
    def try_send(self, data: memoryview | bytes) -> int | None:
        if not self._flush():
            return None
        piece = memoryview(data)[:SEND_BYTES]
        self._put(self._compressor.compress(piece) + self._compressor.flush(zlib.Z_SYNC_FLUSH))
        self._flush()
        return len(piece)

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

"""From a byte stream to frames: one persistent buffer, split by length.

A frame is a 4-byte big-endian length and that many bytes: a header from `{` to its `}`, then the
body. The reader is a state machine over one buffer::

    view = reader.writable()            # where the next bytes may be written, never empty
    reader.received(link.recv_into(view))
    heads, bodies = reader.split()      # every whole frame; what is left waits at the front

Rules, the most important first:

* `split` is called after each `received`. It copies the chunk once and slices it, so nothing that
  it returned refers to the buffer.
* A length above the limit is refused as soon as its four bytes are there, before any of the frame
  is read. Memory follows the bytes that have arrived (the buffer doubles when it is full), never
  the length that a peer merely announced, and shrinks back after a large frame.
* A header ends at the first `}`. That may be one inside a string: the decoder detects this and
  continues the search in the body.
* Zero-length frames are skipped. A frame without any `}` is a protocol error. After a
  `ProtocolError` the stream is unusable. Whole frames before the fault are returned first: they
  may be publishes, which a client that repeats them would send together with the fault again.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import Final

from haclient.errors import ProtocolError, UsageError

MAX_FRAME_BYTES: Final = 256 * 2**20
"""The largest frame that is accepted."""

MAX_PUBLISH_BYTES: Final = MAX_FRAME_BYTES - 2**20
"""The largest frame of a publish: a server passes the message on with longer headers."""

CAPACITY_BYTES: Final = 256 * 1024
"""The size of an idle reader's buffer: where throughput stops to grow with it."""

LENGTH: Final = Struct(">I")
"""The length before each frame, which does not count itself."""

_ZEROS: Final = re.compile(b"\0+")
_HTTP: Final = int.from_bytes(b"HTTP", "big")  # read as a length, how an HTTP server answers
# Likewise a TLS alert: its type, two bytes of a version 3.x, and the first of its short length.
_TLS_ALERT: Final = 0x15030000
_TLS_ALERT_MASK: Final = 0xFFFF00FF

Frames = tuple[list[bytes], list[bytes]]
"""Headers and bodies of some frames, in step."""


class FrameReader:
    """Splits the bytes that a peer sends into frames.

    Args:
        max_frame_bytes: Larger frames are refused.
        capacity: The buffer's size in bytes while frames are small.
        initial: Its size at first. It doubles while reads fill it: for a peer that may send little,
            or nothing.
    """

    def __init__(
        self,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        capacity: int = CAPACITY_BYTES,
        *,
        initial: int = CAPACITY_BYTES,
    ) -> None:
        self._max_frame_bytes = max_frame_bytes
        # The buffer never holds more than one frame of the largest size: so a whole frame in it
        # is within the limit, and only an unfinished one has to be checked.
        self._largest_buffer = max_frame_bytes + LENGTH.size
        self._capacity = min(max(capacity, LENGTH.size), self._largest_buffer)
        self._filled = 0
        self._fault: ProtocolError | None = None
        self._view = memoryview(bytearray(min(initial, self._capacity)))

    @property
    def pending(self) -> int:
        """Bytes of an unfinished frame that wait for the rest."""
        return self._filled

    def writable(self) -> memoryview:
        """The buffer for the next bytes: never empty, and never larger than an idle buffer.

        Raises:
            ProtocolError: There is a fault after the frames that `split` has returned.
            UsageError: `split` was not called after `received`.
        """
        if self._fault is not None:
            raise self._fault
        if self._filled == len(self._view):
            if self._filled == self._largest_buffer:
                raise UsageError("a whole frame waits in the reader: split() after each received()")
            self._resize(min(2 * self._filled, self._largest_buffer))
        return self._view[self._filled : self._filled + self._capacity]

    def received(self, count: int) -> None:
        """Record that `count` bytes were written to the start of `writable()`."""
        self._filled += count
        if self._filled == len(self._view) < self._capacity:
            self._resize(min(2 * self._filled, self._capacity))

    def split(self) -> Frames:
        """Remove and return all whole frames: headers, which end at the first `}`, and bodies.

        Raises:
            ProtocolError: The first frame is larger than the limit, or has no header. After whole
                frames the next `writable` raises it.
        """
        heads: list[bytes] = []
        bodies: list[bytes] = []
        filled = self._filled
        if filled < LENGTH.size:
            return heads, bodies
        length_at = LENGTH.unpack_from
        (length,) = length_at(self._view)
        if length + LENGTH.size > filled:  # nothing whole yet: do not copy a large frame in vain
            self._check(length)
            return heads, bodies
        chunk = bytes(self._view[:filled])
        position = 0
        try:
            position = self._split(chunk, heads, bodies)
        except ProtocolError as fault:
            if not heads:
                raise
            self._fault = fault
        self._keep(position)
        return heads, bodies

    def feed(self, data: bytes | bytearray | memoryview) -> Frames:
        """Add `data` and return all whole frames; for bytes that are already in memory.

        Raises:
            ProtocolError: As in `split`.
        """
        heads: list[bytes] = []
        bodies: list[bytes] = []
        rest = memoryview(data)
        while rest:
            room = self.writable()
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            rest = rest[count:]
            self.received(count)
            more_heads, more_bodies = self.split()
            heads += more_heads
            bodies += more_bodies
        if self._fault is not None:
            raise self._fault
        return heads, bodies

    def _split(self, chunk: bytes, heads: list[bytes], bodies: list[bytes]) -> int:
        """Add the whole frames of a chunk to the two lists; return where the rest begins."""
        length_at, filled, position = LENGTH.unpack_from, len(chunk), 0
        while position + 4 <= filled:
            (length,) = length_at(chunk, position)
            start = position + 4
            end = start + length
            if end > filled:
                self._check(length)
                break
            head_end = chunk.find(b"}", start, end) + 1
            if head_end:
                heads.append(chunk[start:head_end])
                bodies.append(chunk[head_end:end])
            elif length:
                raise ProtocolError(
                    f"a frame of {length} bytes has no header: wanted an object that ends with '}}'"
                )
            elif (zeros := _ZEROS.match(chunk, end)) is not None:  # thousands may follow
                end += (zeros.end() - end) // LENGTH.size * LENGTH.size
            position = end
        return position

    def _check(self, length: int) -> None:
        if length == _HTTP:
            raise ProtocolError("the peer answered with HTTP instead of AMPS: is the port right?")
        if length > self._max_frame_bytes:
            if length & _TLS_ALERT_MASK == _TLS_ALERT:
                raise ProtocolError("the peer answered with TLS instead of AMPS: is tcps:// meant?")
            raise ProtocolError(
                f"the peer announced a frame of {length} bytes; "
                f"the limit is {self._max_frame_bytes} bytes"
            )

    def _keep(self, position: int) -> None:
        """Move the bytes after `position` to the front; shrink the buffer after a large frame."""
        left = self._filled - position
        if len(self._view) > self._capacity > left:
            rest = bytes(self._view[position : self._filled])
            self._view = memoryview(bytearray(self._capacity))
            self._view[:left] = rest
        else:
            self._view[:left] = self._view[position : self._filled]
        self._filled = left

    def _resize(self, size: int) -> None:
        larger = memoryview(bytearray(size))
        larger[: self._filled] = self._view[: self._filled]
        self._view = larger

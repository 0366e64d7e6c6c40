"""The writing side of a connection: one cursor over the log, one small outbox beside it.

Publishes are not queued: they stand in the publish store's log as wire frames, and the writer sends
from there without copying (design 2.2). Everything else (subscribe, acks, beats, flush, logon, and
publishes without a store) goes through the control outbox. Control frames are merged in at frame
boundaries only, and before the log's frames, so that a beat never waits behind a backlog.

`pump` sends as much as the socket takes and never waits; the task in `run` parks until it is woken
or until a full socket has room again. The log may only be sent while `log_open` is true: from the
moment a logon has told where to begin until the link is lost.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import trio

from haclient.transport.link import Link
from haclient_stores.interfaces import FrameLog

__all__ = ["FLUSH_BYTES", "Writer"]

FLUSH_BYTES: Final = 256 * 1024
"""Unsent bytes at which a publish sends by itself instead of leaving it to the writer's task."""

_JOIN_BYTES: Final = 64 * 1024  # small control frames leave together, in pieces of about this size


class Writer:
    """Sends the control outbox and the log over one link."""

    def __init__(self, link: Link, log: FrameLog | None) -> None:
        self._link = link
        self._log = log
        self._outbox: deque[bytes] = deque()
        self._partial = memoryview(b"")  # the rest of a control piece that the socket took in part
        self._lot = trio.lowlevel.ParkingLot()
        self._room = trio.lowlevel.ParkingLot()
        self._parked = False
        self.log_open = False
        self.outbox_bytes = 0
        self.blocked = False

    def send(self, frame: bytes) -> None:
        """Queue a control frame; it leaves with the next pump."""
        self._outbox.append(frame)
        self.outbox_bytes += len(frame)
        self.wake()

    def wake(self) -> None:
        """There is something to send."""
        if self._parked:
            self._parked = False
            self._lot.unpark()

    def publish_appended(self) -> None:
        """A frame was appended to the open log: send now when enough has gathered, else soon.

        Raises:
            OSError: The link is broken.
        """
        log = self._log
        if log is not None and log.unsent_bytes >= FLUSH_BYTES and not self.blocked:
            self.pump()
        elif self._parked:
            self.wake()

    def pump(self) -> bool:
        """Send what the socket takes; whether all of it has left.

        Raises:
            OSError: The link is broken.
        """
        while len(piece := self._next_piece()):
            count = self._link.try_send(piece)
            if count is None:
                self.blocked = True
                self.wake()  # the task waits for room, whoever called
                return False
            self._advance(count)
        self.blocked = False
        return True

    def _next_piece(self) -> memoryview:
        """Whole control frames at a frame boundary, else the log, else nothing."""
        if len(self._partial):
            return self._partial
        log = self._log if self.log_open else None
        if not self._outbox:
            return memoryview(b"") if log is None else log.peek()
        if log is not None and (remainder := log.frame_remainder()):
            return log.peek()[:remainder]
        self._partial = memoryview(self._join())
        return self._partial

    def _join(self) -> bytes:
        outbox = self._outbox
        pieces = [outbox.popleft()]
        size = len(pieces[0])
        while outbox and size + len(outbox[0]) <= _JOIN_BYTES:
            size += len(outbox[0])
            pieces.append(outbox.popleft())
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _advance(self, count: int) -> None:
        if len(self._partial):
            self._partial = self._partial[count:]
            self.outbox_bytes -= count
        elif self._log is not None:
            self._log.advance(count)

    async def room(self) -> None:
        """Wait until the writer has got further."""
        self.wake()
        await self._room.park()

    async def run(self) -> None:
        """Send for as long as the link lives.

        Raises:
            OSError: The link is broken.
            trio.ClosedResourceError: The link was closed.
        """
        while True:
            if self.pump():
                self._room.unpark_all()
                self._parked = True
                await self._lot.park()
            else:
                await self._link.wait_writable()
                self.blocked = False

    def release(self) -> None:
        """The link is gone: nobody waits for room any more."""
        self._room.unpark_all()

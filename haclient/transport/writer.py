"""The writing side of a connection: one cursor over the log, and a small outbox.

Publishes are not queued: they are in the client's log as wire frames, and the writer sends
them from there without copying. Everything else goes through the control outbox:

* *ordered* frames (subscribe, query, flush) leave exactly where they were issued: after everything
  that the log held then, before everything appended later, so that a query sees what was published
  before it;
* *urgent* frames (logon, heartbeats) leave at the next frame boundary, so that a heartbeat never
  waits behind a backlog.

`pump` sends as much as the socket accepts and never waits; the task in `run` sleeps until it is
woken or until a full socket has room again. The log may only be sent while `log_open` is true: from
the logon ack, which says where to begin, until the link is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from haclient.session.connection_state import Counters
from haclient.session.flight_recorder import FlightRecorder
from haclient.session.publishes import UnpersistedAges
from haclient.transport.links.link import Link, WireLog
from haclient.transport.tasks import TURN_S
from haclient_stores.interfaces import FrameLog

FLUSH_BYTES: Final = 256 * 1024
"""Unsent bytes at which a publish sends by itself instead of leaving it to the writer's task."""

_JOIN_BYTES: Final = 256 * 1024  # small control frames leave together, in pieces of this size


class SendGate:
    """What a publish checks after its append: three fields, no calls.

    Attributes:
        check_at: Unsent bytes at which a publish sends and has the next one check the limits.
        parked: Whether the writer's task sleeps and has to be woken.
        takes_slow_path: Whether the next publish has to check the limits before its append.
        cap_bytes: Unpersisted bytes above which it has to wait for acks.
        unpersisted_ages: Samples of the last sequence number and when it was reached.
    """

    __slots__ = ("cap_bytes", "check_at", "parked", "takes_slow_path", "unpersisted_ages")

    def __init__(self, cap_bytes: int) -> None:
        self.cap_bytes = cap_bytes
        self.unpersisted_ages = UnpersistedAges()
        self.check_at = min(FLUSH_BYTES, cap_bytes)
        self.parked = False
        self.takes_slow_path = False


class Writer:
    """Sends the control outbox and the log over one link."""

    def __init__(
        self,
        link: Link,
        log: FrameLog,
        gate: SendGate,
        counters: Counters | None = None,
        *,
        tap: Callable[[str, str], object] | None = None,
        flight: FlightRecorder | None = None,
    ) -> None:
        self.flight = flight or FlightRecorder("", lambda: 0)
        self._link = link
        self._counters = counters or Counters()
        self._log = log
        self._gate = gate
        self._urgent: deque[bytes] = deque()
        self._ordered: deque[tuple[int, bytes]] = deque()  # (log bytes that leave before it, frame)
        self._log_sent_bytes = 0
        self._partial = memoryview(b"")  # the rest of a control piece that the socket took in part
        self._lot = trio.lowlevel.ParkingLot()
        self._room = trio.lowlevel.ParkingLot()
        self.log_open = False
        self.outbox_bytes = 0
        self.blocked = False
        self.wire = WireLog.if_enabled(link.peer, tap)

    def send(self, frame: bytes) -> None:
        """Queue a frame after everything published so far."""
        ahead = self._log_sent_bytes + self._log.unsent_bytes
        self._ordered.append((ahead, frame))
        self.flight.sent(frame)
        self.outbox_bytes += len(frame)
        self.wake()

    def backlog(self) -> Callable[[], tuple[int, int]]:
        """A measure of how far the server has got with the publishes before a command queued now.

        Returns:
            Its value is higher each time that the server has taken or persisted more of them.
        """
        log = self._log
        last_byte, last_sequence = self._log_sent_bytes + log.unsent_bytes, log.last_sequence
        return lambda: (
            min(self._log_sent_bytes, last_byte),
            min(log.last_persisted, last_sequence),
        )

    def send_urgent(self, frame: bytes) -> None:
        """Queue a frame for the next frame boundary."""
        self._urgent.append(frame)
        self.flight.sent(frame)
        self.outbox_bytes += len(frame)
        self.wake()

    def wake(self) -> None:
        """Wake the task that sends: there is something to send."""
        if self._gate.parked:
            self._gate.parked = False
            self._lot.unpark()

    def flush(self) -> None:
        """Send from the caller's task, unless the socket is full."""
        if not self.blocked:
            try:
                self.pump()
            except OSError:
                self.wake()  # a broken link is not the publisher's error: the task meets it too

    def passed_over(self, count: int) -> None:
        """Note bytes of the log that will not be sent: an ack came before their repetition."""
        self._log_sent_bytes += count
        self.wake()

    def found_earlier(self, count: int) -> None:
        """Note bytes of the log that come before every queued frame, and were not known before."""
        self._log_sent_bytes -= count

    def pump(self) -> bool:
        """Send what the socket takes within a turn; whether all of it has left.

        A link that compresses may never be full: its peer is faster.

        Raises:
            OSError: The link is broken.
        """
        self.blocked = False
        ends_at = trio.current_time() + TURN_S
        while len(piece := self._next_piece()):
            count = self._link.try_send(piece)
            if count is None:
                self.blocked = True
                self.wake()  # the writer's task waits for room, not the caller
                break
            if self.wire is not None:
                self.wire.sent(piece[:count])  # before the log may use its place again
            self._counters.bytes_sent += count
            self._advance(count)
            if trio.current_time() >= ends_at:  # the writer's task goes on, after others
                self.blocked = True
                self.wake()
                break
        if self._link.unsent_bytes:
            self.blocked = True
            self.wake()
        self._set_gate()
        return not self.blocked

    def _set_gate(self) -> None:
        """Set when the publisher checks next: not again for what the socket does not take."""
        log, gate = self._log, self._gate
        gate.check_at = FLUSH_BYTES + (log.unsent_bytes if self.blocked else 0)
        if log.unpersisted_bytes >= gate.cap_bytes:
            gate.takes_slow_path = True

    def _next_piece(self) -> memoryview:
        """The next piece to send: a control piece at its place, else the log up to that place."""
        if len(self._partial):
            return self._partial
        log = self._log if self.log_open else None
        if self._urgent:
            if log is not None and (remainder := log.frame_remainder()):
                return log.peek()[:remainder]
            return self._control(self._join_urgent())
        if self._ordered:
            wait_for = self._ordered[0][0] - self._log_sent_bytes
            if wait_for <= 0:
                return self._control(self._join_ordered())
            return memoryview(b"") if log is None else log.peek()[:wait_for]
        return memoryview(b"") if log is None else log.peek()

    def _control(self, piece: bytes) -> memoryview:
        self._partial = memoryview(piece)
        return self._partial

    def _join_urgent(self) -> bytes:
        piece = b"".join(self._urgent)
        self._urgent.clear()
        return piece

    def _join_ordered(self) -> bytes:
        """The frames whose place is here, small ones together."""
        ordered, sent = self._ordered, self._log_sent_bytes
        pieces = [ordered.popleft()[1]]
        size = len(pieces[0])
        while ordered and ordered[0][0] <= sent and size + len(ordered[0][1]) <= _JOIN_BYTES:
            pieces.append(ordered.popleft()[1])
            size += len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _advance(self, count: int) -> None:
        if len(self._partial):
            self._partial = self._partial[count:]
            self.outbox_bytes -= count
        else:
            before = self._log.unsent_bytes
            self._log.advance(count)
            # More than `count` if an ack has come for what follows: it is not sent again.
            self._log_sent_bytes += before - self._log.unsent_bytes
            self.flight.published_bytes += count

    async def room(self) -> None:
        """Wait until the writer has sent more."""
        self.wake()
        await self._room.park()

    async def run(self) -> None:
        """Send for as long as the link lives.

        Raises:
            OSError: The link is broken.
            trio.ClosedResourceError: The link was closed.
        """
        while True:
            everything_left = self.pump()
            self._gate.unpersisted_ages.note(self._log.last_sequence, trio.current_time())
            self._room.unpark_all()
            if everything_left:
                self._gate.parked = True
                await self._lot.park()
            else:
                await self._link.wait_writable()

    def release(self) -> None:
        """The link has ended: wake every task that waits for room."""
        self._gate.parked = False
        self._room.unpark_all()

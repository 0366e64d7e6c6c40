"""One connection: a link, and the tasks that read, write and send heartbeats on it until it ends.

`run` lasts exactly as long as the link. It returns the reason when the *peer* or the network ended
it (a lost link is an event, not an error of ours) and raises what is our own failure, such as a
bookmark store whose disk is full: that has to leave the client's `async with`.

The reading task is the hot path: read what has arrived into one persistent buffer, split it, decode
all headers at once, let the session route them, pass on whole batches. It suspends once per chunk,
not per message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import trio

from haclient.errors import (
    DisconnectedError,
    HAClientError,
    HeartbeatLost,
)
from haclient.protocol.codec import MessageDecoder, encode_frame
from haclient.protocol.framing import FrameReader
from haclient.session.acks import loss
from haclient.session.back_pressure import weight_of
from haclient.session.connection_state import ClosedByClient, Due, HeartbeatTimers
from haclient.session.resume import CaughtUpClock
from haclient.session.session import Received, Session
from haclient.session.subscriptions import Marker
from haclient.transport.back_pressure import BackPressure
from haclient.transport.links.link import Link
from haclient.transport.message_queue import MessageQueue
from haclient.transport.tasks import open_nursery
from haclient.transport.writer import Writer
from haclient_stores.logs import SafeLogger, logger_of

_TINY_READ_BYTES: Final = 1024
_TINY_READ_STORM: Final = 8  # tiny reads in a row after which reading pauses to batch them
_TINY_READ_PAUSE_S: Final = 0.000_2

_NOTE_EVERY_S: Final = 1.0  # a killed process loses less than `failover_overlap` of this

_ANSWER_EVERY_S: Final = 1.0  # a peer that answers each answer must not start a storm

_LAST_FRAME_S: Final = 0.2  # after a failed write: for the reader to get the last frame

# A server that expects TLS hangs up when it gets something else; one of HTTP waits for a line.
_RIGHT_PORT: Final = "are the port and the scheme (tcp:// or tcps://) right?"

_logger = logger_of(__name__)
_BEAT: Final = encode_frame({"c": "heartbeat", "opts": "beat"})


class ConnectionOwner(Protocol):
    """Gets what a connection reads."""

    def received(self, received: Received, /) -> None:
        """Act on what one chunk means, before its messages are queued; must not wait."""

    def caught_up(self, until: float, *, is_last: bool) -> None:
        """Note the caught-up time: everything that was sent before it has been received.

        Called about once a second while data arrives, and at the end of the link.

        Args:
            until: That time, on the clock of the trio run.
            is_last: Whether the link has ended.
        """


class Connection:
    """A link in use.

    Args:
        link: Connected and not yet used.
        session: The state that this connection feeds.
        writer: Sends over the same link.
        owner: Gets what is read.
        back_pressure: Decides whether full queues stop the reading.
        log: The logger of the warnings, with the fields of the client; by default that of this
            module.

    Attributes:
        is_reading: Whether no full queue has stopped the reading.
    """

    def __init__(  # what a connection stands between, all by keyword
        self,
        link: Link,
        session: Session,
        *,
        writer: Writer,
        owner: ConnectionOwner,
        back_pressure: BackPressure,
        log: SafeLogger | None = None,
    ) -> None:
        self.link = link
        self.session = session
        self.writer = writer
        self._owner = owner
        self._back_pressure = back_pressure
        self._log = _logger if log is None else log
        self._caught_up = CaughtUpClock(trio.current_time())
        self._is_idle = False
        self._has_received = False
        self._note_caught_up_at = 0.0
        self._heartbeat: HeartbeatTimers | None = None
        self._answer_at = 0.0
        self._heartbeat_changed = trio.Event()
        self._disconnect_reason = ""
        self._close_reason: HAClientError | None = None
        self._closed_by_us = trio.Event()
        self.is_reading = True

    # -- for the client ---------------------------------------------------

    def set_heartbeat(self, heartbeat: HeartbeatTimers | None) -> None:
        """Begin, change or end the timers; the caller informs the server."""
        if heartbeat is not None:
            now = trio.current_time()
            heartbeat.start(now)
            if not self.is_reading:
                heartbeat.reading(now, active=False)  # silence proves nothing until it reads again
        self._heartbeat = heartbeat
        self._heartbeat_changed.set()

    @property
    def closed_by_us(self) -> bool:
        """Whether this client has closed it."""
        return self._closed_by_us.is_set()

    @property
    def hint_if_silent(self) -> str:
        """What may be wrong if the server has sent nothing at all, for the end of an error."""
        return "" if self._has_received else f"; the server has sent nothing at all: {_RIGHT_PORT}"

    def lag_s(self, now: float) -> float:
        """How far this client is behind what the server sends, in seconds; 0 while it is idle."""
        return self._caught_up.lag_s(now, is_idle=self._is_idle)

    def close(self, reason: HAClientError | None = None) -> None:
        """End the connection now; `run` returns soon after, with this reason if there is one."""
        self._close_reason = self._close_reason or reason
        self._closed_by_us.set()
        self.link.close()

    async def run(self) -> HAClientError:
        """Serve the link until it ends; return the reason, as an error to raise in waiting tasks.

        Raises:
            StoreError: A store could not log the messages that arrived; none of them was delivered.
        """
        reasons: list[HAClientError] = []
        self.writer.flight.connected(trio.current_time())

        async def guard(task: Callable[[], Awaitable[None]]) -> None:
            reasons.append(await self._until_lost(task))
            nursery.cancel_scope.cancel()

        try:
            async with open_nursery() as nursery:
                nursery.start_soon(guard, self._read)
                nursery.start_soon(guard, self.writer.run)
                nursery.start_soon(guard, self._beat)
                nursery.start_soon(guard, self._until_closed)
                nursery.start_soon(guard, self._back_pressure.run)
        finally:
            self.link.close()
            self.writer.log_open = False
            self.writer.release()
        self._owner.caught_up(self._caught_up.caught_up_until, is_last=True)
        return reasons[0]

    async def _until_lost(self, task: Callable[[], Awaitable[None]]) -> HAClientError:
        try:
            await task()
        except (HAClientError, OSError, trio.ClosedResourceError) as error:
            if task == self.writer.run and not self._closed_by_us.is_set():
                # The server's last frame, with the disconnect reason, may still be unread.
                await trio.sleep(_LAST_FRAME_S)
            return self._reason(error)
        raise AssertionError("a connection's task never returns")

    async def _until_closed(self) -> None:
        """End a connection that this client has closed; no other task may notice that."""
        await self._closed_by_us.wait()
        raise trio.ClosedResourceError("the connection was closed by this client")

    def _reason(self, error: Exception) -> HAClientError:
        """Translate what ended the link; store errors are ours and pass."""
        if self._closed_by_us.is_set():
            return self._close_reason or ClosedByClient("the connection was closed by this client")
        return loss(error, self.link.peer, self._disconnect_reason)

    # -- reading ----------------------------------------------------------

    async def _read(self) -> None:
        link, frames, decode = self.link, FrameReader(), MessageDecoder().decode
        counters = self.session.counters
        wire, flight = self.writer.wire, self.writer.flight
        # Tiny reads are counted in a row, those that did not have to be waited for.
        tiny_reads, waited = 0, False
        while True:
            count = link.recv_into(frames.writable())
            if count is None:
                tiny_reads = 0
                waited = self._nothing_left(frames.pending)
                await link.wait_readable()
                self._is_idle = False
                continue
            if count == 0:
                raise self._ended_by_peer()
            self._has_received = True
            frames.received(count)
            heads, bodies = frames.split()
            counters.bytes_received += count
            counters.frames_received += len(heads)
            now = trio.current_time()
            if waited:
                waited = False
                self._caught_up.arrived(now)
            if self._heartbeat is not None:
                self._heartbeat.received(now)
            if heads:
                flight.received(heads, now)
                if wire is not None:
                    wire.received(heads)
                messages = decode(heads, bodies)
                size = sum(map(len, heads)) + sum(map(len, bodies))
                self._handle(self.session.receive(messages, now), size)
                if not self._back_pressure.allows_reading():
                    await self._stop_reading()
            tiny_reads = tiny_reads + 1 if count < _TINY_READ_BYTES else 0
            await trio.lowlevel.checkpoint()  # woken tasks may start to wait again
            if tiny_reads > _TINY_READ_STORM and not self._back_pressure.is_ack_awaited:
                await trio.sleep(_TINY_READ_PAUSE_S)  # batch acks that come one by one

    def _ended_by_peer(self) -> DisconnectedError:
        when = "" if self._has_received else f" before it sent anything: {_RIGHT_PORT}"
        return DisconnectedError(f"{self.link.peer} closed the connection{when}")

    def _nothing_left(self, pending_bytes: int) -> bool:
        """Note that everything that has arrived was read.

        Returns:
            Whether the caught-up time is now: not in the midst of a frame, whose rest is on its
            way, with all that its server has behind it.
        """
        if pending_bytes:
            return False
        now = trio.current_time()
        self._is_idle = True
        self._caught_up.drained(now)
        if now >= self._note_caught_up_at:
            self._note_caught_up_at = now + _NOTE_EVERY_S
            self._owner.caught_up(self._caught_up.caught_up_until, is_last=False)
        return True

    def _handle(self, received: Received, size: int) -> None:
        """Act on one chunk of `size` bytes; the order is the session's contract."""
        self._owner.received(received)
        # A server closes the connection right after its reason. If more follows, it was not a
        # disconnect reason.
        self._disconnect_reason = received.disconnect_reason
        if received.heartbeat and self._heartbeat is None:
            self._answer_heartbeat()
        shared = received.messages_of_one()
        for subscription, batch in received.deliveries:
            if isinstance(batch, Marker):
                subscription.queue.mark(batch)
            elif isinstance(batch, HAClientError):
                subscription.queue.fail(batch)
            else:
                self.session.counters.messages_delivered += len(batch)
                queue = subscription.queue
                queue.put(batch, size * len(batch) // shared if shared else weight_of(batch))
                if isinstance(queue, MessageQueue) and queue.full:
                    self._back_pressure.note(subscription)
        if received.fault is not None:
            raise received.fault

    def _answer_heartbeat(self) -> None:
        """Answer a server that sends heartbeats without a request, but never in a storm.

        With a heartbeat of our own the timer alone sends; see `haclient.session.connection_state`.
        """
        now = trio.current_time()
        if now >= self._answer_at:
            self._answer_at = now + _ANSWER_EVERY_S
            self.writer.send_urgent(_BEAT)

    async def _stop_reading(self) -> None:
        """Wait until the full queues allow to read on; our heartbeats continue."""
        self._note_reading(is_reading=False)
        await self._back_pressure.wait()
        self._note_reading(is_reading=True)

    def _note_reading(self, *, is_reading: bool) -> None:
        self.is_reading = is_reading
        if self._heartbeat is not None:
            self._heartbeat.reading(trio.current_time(), active=is_reading)
            self._heartbeat_changed.set()

    # -- beating ----------------------------------------------------------

    async def _beat(self) -> None:
        looked_again = False
        while True:
            heartbeat, self._heartbeat_changed = self._heartbeat, trio.Event()
            if heartbeat is None:
                await self._heartbeat_changed.wait()
                continue
            now = trio.current_time()
            match heartbeat.due(now):
                case Due.LOST if not looked_again:
                    # This process may have been suspended. The first checkpoint lets trio poll the
                    # sockets, the second lets the reader read what has arrived.
                    looked_again = True
                    await trio.lowlevel.checkpoint()
                    await trio.lowlevel.checkpoint()
                    continue
                case Due.LOST:
                    raise HeartbeatLost(
                        f"{self.link.peer} was silent for {heartbeat.idle_limit_s:g} s"
                    )
                case Due.BEAT:
                    self.writer.send_urgent(_BEAT)
                    heartbeat.beat(now)
                case Due.NOTHING:
                    wake_at = heartbeat.next_at()
                    with trio.move_on_at(wake_at):
                        await self._heartbeat_changed.wait()
                    self._warn_if_held(trio.current_time() - wake_at, heartbeat)
            looked_again = False

    def _warn_if_held(self, late_s: float, heartbeat: HeartbeatTimers) -> None:
        """Warn when the event loop was held for so long that the server may have cut us."""
        if late_s > heartbeat.interval_s:
            self._log.warning(
                "the event loop was held for %.1f s, longer than the heartbeat of %g s allows: "
                "run what takes the processor in a thread or process (trio.to_thread.run_sync)",
                late_s,
                heartbeat.interval_s,
            )

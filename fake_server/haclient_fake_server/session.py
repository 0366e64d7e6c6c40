"""Connections of the broker: those that clients make, and those to destinations of replication.

The reader of a `Session` splits and decodes what arrives and passes whole chunks to the hub. The
writer sends what the hub has queued, and asks it for more of a replay whenever the queue is short,
so a replay runs at its reader's pace. Neither does any work per message.

A destination is redialled for as long as the broker runs. The wait doubles with each failure up to
a limit, and is reset once the destination was reached. The engine's heartbeats end a silent
connection. Of several failures in a row, only the first is logged as a warning.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Final

import trio

from haclient.errors import HAClientError, ProtocolError
from haclient.protocol.codec import MessageDecoder
from haclient.protocol.framing import MAX_FRAME_BYTES, FrameReader
from haclient.protocol.http_upgrade import HTTP_FIRST_BYTE
from haclient.protocol.messages import Message
from haclient.transport.links.dial import answer_upgrade
from haclient.transport.links.dial import dial as dial_uri
from haclient.transport.links.link import ZLIB_FIRST_BYTE, Link, ZlibLink
from haclient_fake_server.config import BrokerConfig, ReplicateTo
from haclient_fake_server.engine.acks import SLOW_CLIENT_ACK, end_ack
from haclient_fake_server.engine.outbox import ENDED_BY_PEER
from haclient_fake_server.hub import Hub
from haclient_fake_server.offline_queue import OfflineQueue
from haclient_stores.errors import StoreError

READ_BYTES: Final = 4096
"""The buffer of a connection that has sent little: thousands of idle ones take little memory."""

PART_LIMIT_S: Final = 0.02
"""After so long, the rest of the commands of one read wait for those of other connections."""

LONG_STEP_S: Final = 0.002
"""A longer step of a replay makes the next one wait for its turn."""

_NO_TURN: Final = nullcontext()

ALL_AT_ONCE: Final = 2**16
"""More commands than one read has: quick ones are one batch, with one write of the journal."""

QUICK: Final = frozenset({"p", "publish", "delta_publish", "sow_delete", "flush", "heartbeat"})
"""Frequent commands that take little time each, unless they have a filter. Each of the others may
take as long as a step of a query, so it is a part of its own."""

SEND_BYTES: Final = 256 * 1024
"""How much is offered to the kernel at a time."""

CLOSE_LIMIT_S: Final = 1.0
"""How long a connection that is to be closed may take to send what is queued."""

LOGON_LIMIT_S: Final = 10.0
"""How long a client may be connected without being logged on."""

LOGON_BYTES: Final = 64 * 1024
"""How much a client may send before it has logged on: a little that is compressed would otherwise
take as much memory as the largest frame, and the time of all others."""

MAX_HEADER_BYTES: Final = 16 * 1024 * 1024
"""The longest header of a client's command: it is read in one step. Bodies may be longer."""

SLOW_CLIENT_LIMIT_S: Final = 10.0
"""How long a slow client has to read the ack that says why it is cut."""

_log = logging.getLogger(__name__)


class Session:
    """One connection.

    Args:
        number: Its number in the engine.
        link: The connection itself.
        hub: Receives the decoded messages.
        config: The configuration of the broker.

    Attributes:
        number: Its number in the engine.
        unsent_bytes: Bytes that are queued and not yet passed to the kernel, also in a file.
        reason: Why it is being closed; empty while it is not.
    """

    def __init__(self, number: int, link: Link, *, hub: Hub, config: BrokerConfig) -> None:
        self.number = number
        self.unsent_bytes = 0
        self.reason = ""
        self._link = link
        self._hub = hub
        self._config = config
        self._chunks: deque[bytes] = deque()
        self._offline: OfflineQueue | None = None
        self._sending = memoryview(b"")
        self._woken = trio.Event()
        self._drained = trio.Event()
        self._made_bytes = 0  # by commands in steps, since little was unsent
        self._scope = trio.CancelScope()
        self._part = ALL_AT_ONCE
        self._is_long = False
        self._logon = trio.CancelScope()

    def put(self, data: bytes) -> None:
        """Queue bytes for sending; does nothing once the connection is closing."""
        if self.reason:
            return
        self.unsent_bytes += len(data)
        self._woken.set()
        if self._offline is None:
            self._chunks.append(data)
            return
        try:
            self._offline.append(data)
        except StoreError as error:
            self._fail_offline(error)

    @property
    def is_offline(self) -> bool:
        """Whether unsent bytes wait in a file."""
        return self._offline is not None

    @property
    def offline_bytes(self) -> int:
        """Those that wait in a file."""
        return 0 if self._offline is None else self._offline.size

    def take_offline(self, queue: OfflineQueue) -> None:
        """Move what is queued, and what follows, to a file until all of it was sent.

        Args:
            queue: Is closed then. If it cannot be written, the connection is.
        """
        chunks, self._chunks, self._offline = self._chunks, deque(), queue
        try:
            for chunk in chunks:
                queue.append(chunk)
        except StoreError as error:
            self._fail_offline(error)

    def _fail_offline(self, error: StoreError) -> None:
        """What waits in the file is lost: end the connection, which may be closing already."""
        if self.reason:
            self._drop()
            self._scope.cancel()
        self.finish_slow_client(str(error))

    def _drop(self) -> None:
        """Drop what is queued but the rest of a frame that was sent in part."""
        self._chunks.clear()
        self._leave_offline()
        self.unsent_bytes = len(self._sending)

    def _leave_offline(self) -> None:
        if self._offline is not None:
            self._offline.close()
            self._offline = None

    def wake(self) -> None:
        """Wake the writer: there may be a backlog to send."""
        self._woken.set()

    def finish(self, reason: str, *, limit_s: float = CLOSE_LIMIT_S) -> None:
        """Close the connection once everything queued was sent.

        Args:
            reason: For the log.
            limit_s: Close it after this many seconds in any case.
        """
        if not self.reason:
            self.reason = reason
            self._hub.ending(self)  # nothing is queued any more
            self._scope.deadline = trio.current_time() + limit_s
            self._woken.set()

    def finish_slow_client(self, detail: str = "") -> None:
        """Drop what is queued, send the reason in a last ack, and close the connection.

        Args:
            detail: What has happened, for the log.
        """
        if not self.reason:
            self._drop()
            self.put(SLOW_CLIENT_ACK)
            reason = f"slow client: {detail}" if detail else "slow client"
            self.finish(reason, limit_s=SLOW_CLIENT_LIMIT_S)

    def cut(self, reason: str) -> None:
        """Close the connection at once; `reason` is for the log."""
        self.reason = self.reason or reason
        self._scope.cancel()

    async def run(self) -> None:
        """Serve the connection until either side ends it.

        Raises:
            StoreError: The journal could not be written.
        """
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._read)
                    await self._write()
        finally:
            self._link.close()
            self.reason = self.reason or "broker stopped"  # so that nothing is queued any more
            self._hub.ending(self)
            with trio.CancelScope(shield=True):
                async with self._hub.end_turn:
                    self._leave_offline()  # to give a large file back takes the system a while
                    while self._hub.end_subscriptions(self):
                        await trio.lowlevel.checkpoint()
                    self._hub.disconnected(self, self.reason)

    async def _read(self) -> None:
        try:
            self._logon.deadline = trio.current_time() + LOGON_LIMIT_S
            with self._logon:
                await self._read_all()
            if self._logon.cancelled_caught:
                self.put(end_ack("logon required"))
                self.finish(f"auth: no logon within {LOGON_LIMIT_S:g} s")
            elif not self.reason:  # else the last ack has to be sent first
                await self._cut_in_turn(ENDED_BY_PEER)
        except ProtocolError as error:  # bytes that are no frames or no commands, or half a request
            async with self._hub.end_turn:
                self.put(end_ack("unknown command", detail=str(error)))
                self.finish(f"unknown command: {error}")
        except OSError as error:  # the peer closed without an orderly end
            await self._cut_in_turn(f"connection lost: {error}")

    async def _cut_in_turn(self, reason: str) -> None:
        """Close the connection, whose peer has closed it, when its turn comes.

        Thousands may end at once: to end their tasks in one round would hold up all others.
        """
        self.reason = self.reason or reason  # so that nothing is queued any more
        self._hub.ending(self)
        async with self._hub.end_turn:
            self.cut(reason)

    async def _read_all(self) -> None:
        """Read until the client ends the connection."""
        frames = FrameReader(self._config.max_frame_bytes, initial=READ_BYTES)
        decoder = MessageDecoder(expand_sow=False)
        await self._read_first(frames)
        link = self._link
        total = 0
        self._is_known()  # a destination is, before it has sent anything
        while not self.reason:
            count = link.recv_into(frames.writable())
            if count is None:
                await link.wait_readable()
                continue
            if count == 0:
                return
            frames.received(count)
            heads, bodies = frames.split()
            self._hub.unfinished(self, frames.pending)
            # A frame that is longer than an idle buffer is the first of its read.
            if heads and len(heads[0]) > MAX_HEADER_BYTES:
                raise ProtocolError(
                    f"a header of {len(heads[0])} bytes; the limit is {MAX_HEADER_BYTES} bytes"
                )
            await self._execute(decoder.decode(heads, bodies) if heads else [])
            total += count
            if total > LOGON_BYTES and not self._is_known():
                raise ProtocolError(f"more than {LOGON_BYTES} bytes before the logon")
            await self._finish_commands()
            await trio.lowlevel.checkpoint()

    async def _execute(self, messages: list[Message]) -> None:
        """Pass commands to the hub, in parts where they take long: others are served in between."""
        at = 0
        while True:
            part = _first_part(messages[at : at + self._part])
            at += len(part)
            began = trio.current_time()
            self._hub.received(self, part)
            self._is_known()  # what follows its logon may take longer than that may
            took = trio.current_time() - began
            if took > PART_LIMIT_S:
                self._part = max(1, int(len(part) * PART_LIMIT_S / took))
            elif took < PART_LIMIT_S / 4 and len(part) == self._part:
                self._part *= 2
            if at >= len(messages):
                return
            await self._finish_commands()
            await trio.lowlevel.checkpoint()

    def _is_known(self) -> bool:
        """Whether the client has logged on, or is a destination: then it has no limit any more."""
        if self._logon.deadline == math.inf:
            return True
        if self._hub.is_known(self):
            self._logon.deadline = math.inf
            return True
        return False

    async def _finish_commands(self) -> None:
        """Carry out the commands that wait.

        Not left to the writer: what a client that has fallen behind asks for, such as to be sent
        no more, must not wait until it has read everything. What they make unsent themselves, such
        as the out-of-focus messages of a delete, goes at its pace.
        """
        while not self.reason and self._hub.is_busy(self):
            if self._made_bytes > self._config.high_water_bytes:
                while self.unsent_bytes >= self._config.low_water_bytes:
                    self._drained = trio.Event()
                    await self._drained.wait()
            async with self._hub.turn:
                unsent_bytes = self.unsent_bytes
                self._hub.go_on(self)
                self._made_bytes += max(self.unsent_bytes - unsent_bytes, 0)
                await trio.lowlevel.checkpoint()

    async def _read_first(self, frames: FrameReader) -> None:
        """See by its first byte what a client begins with: HTTP, zlib, or at once with a frame."""
        byte = frames.writable()[:1]
        first = await self._receive_one(byte)
        if first == HTTP_FIRST_BYTE:
            await answer_upgrade(self._link, bytes(byte))
            first = await self._receive_one(byte)
        if first == ZLIB_FIRST_BYTE:  # the client compresses, so we do, too
            self._link = ZlibLink(self._link, bytes(byte))
        elif first is not None:
            frames.received(1)

    async def _receive_one(self, byte: memoryview) -> int | None:
        """The next byte, or `None` at the end."""
        while (count := self._link.recv_into(byte)) is None:
            await self._link.wait_readable()
        return byte[0] if count else None

    async def _write(self) -> None:
        try:
            while self.unsent_bytes or self._link.unsent_bytes or not self.reason:
                is_long = self._is_long or self._hub.has_long_commands(self)
                # What is queued must not wait for the turn.
                low_water = 1 if is_long else self._config.low_water_bytes
                if self.unsent_bytes < low_water and self._hub.has_backlog(self):
                    async with self._hub.turn if is_long else _NO_TURN:
                        self._pump()
                        await trio.lowlevel.checkpoint()
                if self.unsent_bytes:
                    await self._send_some()
                elif self._link.unsent_bytes:
                    await self._link.wait_writable()
                elif not self.reason and not self._hub.has_backlog(self):
                    await self._woken.wait()
                    self._woken = trio.Event()
        except OSError as error:  # the peer closed without an orderly end
            self.reason = self.reason or f"connection lost: {error}"
        self._scope.cancel()

    def _pump(self) -> None:
        """Take a step; when it was long, the next one waits for a turn."""
        began = trio.current_time()
        self._hub.pump(self)
        self._is_long = trio.current_time() - began > LONG_STEP_S

    async def _send_some(self) -> None:
        if not self._sending:
            self._sending = memoryview(self._next_chunk())
            if not self._sending:  # it was lost with its file
                return
        count = self._link.try_send(self._sending)
        if count is None:
            await self._link.wait_writable()
            return
        self._sending = self._sending[count:]
        self.unsent_bytes -= count
        if self.unsent_bytes < self._config.low_water_bytes:
            self._made_bytes = 0
            self._drained.set()
        self._hub.sent()
        await trio.lowlevel.checkpoint()

    def _next_chunk(self) -> bytes:
        """The next bytes to send: small chunks joined, so that a burst of acks is one call.

        Nothing if they were lost with their file.
        """
        chunks = self._chunks
        if not chunks and self._offline is not None:
            self._read_offline(self._offline)
        if not chunks:
            return b""
        parts = [chunks.popleft()]
        size = len(parts[0])
        while chunks and size + len(chunks[0]) <= SEND_BYTES:
            parts.append(chunks.popleft())
            size += len(parts[-1])
        return b"".join(parts)

    def _read_offline(self, queue: OfflineQueue) -> None:
        """Take the next bytes from the file; when they are the last ones, the file is removed."""
        try:
            self._chunks.append(queue.take())
        except StoreError as error:
            self._fail_offline(error)
            return
        if not queue.size:
            self._leave_offline()


def _first_part(messages: list[Message]) -> list[Message]:
    """The quick commands that some begin with, or the first one: it may take long."""
    for number, message in enumerate(messages):
        if message.kind not in QUICK or message.filter:
            return messages[: max(number, 1)]
    return messages


Dial = Callable[["ReplicateTo", float], Awaitable["Link"]]
"""Connects to a destination within a time in seconds; raises `HAClientError` or `OSError`."""


async def dial_destination(to: ReplicateTo, timeout_s: float) -> Link:
    """Connect to a destination.

    Args:
        to: The destination.
        timeout_s: How long this may take, in seconds.

    Raises:
        HAClientError: It could not be reached in time.
    """
    return await dial_uri(to.parsed, timeout=timeout_s)


async def keep_connected(to: ReplicateTo, *, hub: Hub, config: BrokerConfig, dial: Dial) -> None:
    """Connect to a destination, again and again; never returns.

    Args:
        to: The destination.
        hub: The hub of the broker.
        config: The configuration of the broker.
        dial: How to connect.

    Raises:
        StoreError: The journal could not be written.
    """
    wait_s, level = config.redial_s, logging.WARNING
    while True:
        before = _links(hub, to)
        try:
            link = await dial(to, config.dial_timeout_s)
        except (HAClientError, OSError) as error:  # it is down or unreachable: dial again later
            _log.log(level, "%s: replication to %s: %s", config.name, to.address, error)
        else:
            # What a destination has may be longer than what a client may send.
            limits = replace(config, max_frame_bytes=MAX_FRAME_BYTES)
            session = Session(hub.next_number(), link, hub=hub, config=limits)
            hub.dialled(session, to.address)
            await session.run()
        if _links(hub, to) > before:
            wait_s, level = config.redial_s, logging.WARNING
        else:
            level = logging.DEBUG
        await trio.sleep(wait_s)
        wait_s = min(2 * wait_s, config.redial_max_s)


def _links(hub: Hub, to: ReplicateTo) -> int:
    """How many connections to a destination were accepted so far."""
    return sum(each.links for each in hub.destinations if each.address == to.address)

"""Publishing: encode once, append to the log, let the writer send.

With a store, a publish is accepted by one append into the store's log, which is also the send
queue and the replay buffer; a broken link is no error then. Without a store, a publish is one frame
in the control outbox, and a broken link is an error.

Every wait of `publish` comes before its append, so a cancelled publish was not stored and a
returned one was. Waits are rare: about every 256 KiB a publish checks the socket, the cap on
unpersisted bytes and the scheduler. Acks are cumulative; nothing is kept per message.

A store that raises `StoreFull` with `wait` set (a full ring, a refused growth) is tried again after
each ack; any other `StoreFull` is raised to the caller.

Durability `fsync` is the exception: the append is followed by a shielded wait for the disk, so that
every publish that has returned survives a power loss.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from threading import get_ident
from typing import Final

import trio

from haclient.errors import (
    DisconnectedError,
    HAClientError,
    PublishFailed,
    StoreError,
    StoreFull,
    UsageError,
    WouldBlock,
)
from haclient.protocol.codec import (
    MessageDecoder,
    Payload,
    as_bytes,
    check_payload,
    check_text,
    encode_frame,
    encode_header,
    numbered_frames,
    publish_frame_without_store,
    publish_head,
    publish_heads,
)
from haclient.protocol.commands import AckType, Command, format_acks, parse_acks
from haclient.protocol.framing import FrameReader
from haclient.protocol.messages import Message
from haclient.session.acks import refused_publish
from haclient.session.connection_state import ConnectionStatus
from haclient.session.custom_stores import SendingStore
from haclient.session.logon import LoggedOn
from haclient.session.publisher_sequences import PublisherSequences, check_sequence
from haclient.transport.callers import AckWaits
from haclient.transport.client_thread import ClientThread
from haclient.transport.persisted_watermark import Watermark
from haclient.transport.publish_hold import PublishHold
from haclient.transport.writer import FLUSH_BYTES, SendGate, Writer
from haclient_stores.interfaces import FrameLog, PublishStore
from haclient_stores.publish_stores.memory import NullPublishStore
from haclient_stores.publish_stores.publish_log import PublishLog

DEFAULT_MAX_UNPERSISTED_BYTES: Final = 512 * 1024 * 1024
"""Unpersisted bytes at which `publish` waits for acks and `publish_nowait` raises."""

_CACHED_HEADS: Final = 4096
_OUTBOX_CAP_BYTES: Final = 4 * FLUSH_BYTES
_TAIL: Final = b"}"
_REMEMBERED_REFUSALS: Final = 1024  # for later queries about the result of one publish
_BATCH_PIECE: Final = 1024  # messages of a batch between two looks at the socket


class Publisher:
    """The publishing half of a client.

    Args:
        store: Where publishes are kept until they are persisted, or `None`.
        max_unpersisted_bytes: See `DEFAULT_MAX_UNPERSISTED_BYTES`.
        waits: The waits of the client's callers.
        status: The client's; waits outlive a lost connection while it expects another one.
        thread: The client's.
    """

    def __init__(
        self,
        store: PublishStore | None,
        *,
        max_unpersisted_bytes: int = DEFAULT_MAX_UNPERSISTED_BYTES,
        waits: AckWaits | None = None,
        status: ConnectionStatus | None = None,
        thread: ClientThread,
    ) -> None:
        self._thread = thread
        self.store = store
        self.log: FrameLog | None = _as_log(store)
        self.writer: Writer | None = None
        self.persisted = Watermark(waits or AckWaits())
        self._synced = getattr(store, "durability", "process") == "fsync"
        self.gate = SendGate(max_unpersisted_bytes)
        self._status = status or ConnectionStatus()
        self.wait_for_connection: Callable[[], Awaitable[None]] | None = None
        self.move_hold = PublishHold()
        self._hold: trio.Event | None = None
        self.refusals: dict[int, PublishFailed] = {}
        self.sequences = PublisherSequences()
        self.sent_unstored = self.confirmed_unstored = 0  # frames, so far
        self._heads: dict[str, bytes] = {}
        self._last_forgotten = 0  # the sequence that was last dropped from `refusals`
        self._refused: set[int] = set()  # refused, and something before them is not acknowledged

    # -- the connection's life ---------------------------------------------

    def connected(self, writer: Writer) -> None:
        """Use a new link. The log is not sent before the logon ack has said where to begin."""
        self.writer = writer
        self._note_time()

    def reconcile(self, server: LoggedOn, clock_us: int) -> None:
        """Trim to what is persisted and number above what was seen.

        Raises:
            PublishGap: The server has lost what was once acknowledged, and the store refuses gaps.
            StoreError: The server has seen higher numbers than the clock gave: it would take what
                was published before the logon for duplicates.
        """
        log = self.log
        self.sequences.logged_on(server)
        if log is None:
            self.refusals.clear()  # the caller may publish under the same numbers again
        else:
            # A server that does not name what it has gets everything again: nothing is trimmed.
            seen = 0 if server.seen is None else server.seen
            persisted = server.has_of(log.last_persisted)
            log.reconcile(seen=seen, persisted=persisted, clock_us=clock_us)
            log.rewind(log.last_persisted)
            self.persisted.rise(log.last_persisted)

    def open_log(self) -> None:
        """Start to send the log: first what is not persisted, then every new publish."""
        writer = self.writer
        if writer is not None:
            writer.log_open = True
            writer.wake()

    @property
    def sends(self) -> bool:
        """Whether there is a connection that takes publishes."""
        return self.writer is not None and self.writer.log_open

    def lost(self) -> None:
        """The link has ended. Waiters are woken unless another connection will follow."""
        self.writer = None
        self._note_time()
        if self.log is not None:
            self._check_at_cap(self.log)
        if not self._status.expects_connection:
            self.persisted.release()

    def acknowledged(self, sequence: int) -> None:
        """Trim the store up to a persisted sequence, and wake the tasks that wait for it."""
        log = self.log
        self.sequences.acknowledged(sequence)
        if log is None:
            self.persisted.rise(sequence)
        else:
            self._discard(log, sequence)
            self._discard_refused(log)
            self.gate.unpersisted_ages.forget(log.lowest_unpersisted)
            self._note_time()

    def has_reported_refusal(self, sequence: int | None) -> bool:
        """Whether the refusal of a publish was reported already.

        Without a store, on this connection.
        """
        if sequence is None or sequence in self.refusals or sequence in self._refused:
            return sequence is not None
        log, forgotten = self.log, sequence <= self._last_forgotten
        return log is not None and forgotten and log.replay_single(sequence) is None

    def refused(self, ack: Message) -> Message:
        """Remove a refused publish from the store.

        It leaves the store after everything before it: an ack for those may still be on its way.

        Args:
            ack: The failure ack.

        Returns:
            The publish as it was stored, with the reason of the ack. Where it is not in the store,
            only the facts of the ack.
        """
        sequence, log = ack.sequence, self.log
        if sequence is None:  # nothing says which one it is
            return Message(kind="p", reason=ack.reason, detail=ack.detail)
        frame = None if log is None else log.replay_single(sequence)
        message = Message(kind="p", sequence=sequence)
        if frame is not None:
            (message,) = MessageDecoder(expand_sow=False).decode(*FrameReader().feed(frame))
        message.reason, message.detail = ack.reason, ack.detail
        self.refusals[sequence] = refused_publish(f"the server refused publish {sequence}", ack)
        if len(self.refusals) > _REMEMBERED_REFUSALS:
            self._last_forgotten = next(iter(self.refusals))
            del self.refusals[self._last_forgotten]
        if log is None:
            self.persisted.release()  # who waits for this number looks at the refusals
        elif frame is not None:
            self._refused.add(sequence)
            self._discard_refused(log)
        return message

    def _discard_refused(self, log: FrameLog) -> None:
        for sequence in sorted(self._refused):
            if sequence == log.lowest_unpersisted:
                self._discard(log, sequence)
            elif sequence > log.last_persisted:
                break
            self._refused.remove(sequence)

    def _discard(self, log: FrameLog, sequence: int) -> None:
        unsent_bytes = log.unsent_bytes
        log.discard_up_to(sequence)
        if self.writer is not None and log.unsent_bytes < unsent_bytes:
            self.writer.passed_over(unsent_bytes - log.unsent_bytes)
        self.persisted.rise(log.last_persisted)

    def _note_time(self) -> None:
        if self.log is not None and self.log.unpersisted_count:
            self.gate.unpersisted_ages.note(self.log.last_sequence, trio.current_time())

    @property
    def oldest_age_s(self) -> float:
        """How long the oldest unpersisted message has waited, in seconds; 0 when none does.

        Raises:
            UsageError: The calling thread is not the client's.
        """
        self._thread.check("oldest_unpersisted_age")
        self._note_time()
        lowest = 0 if self.log is None else self.log.lowest_unpersisted
        return self.gate.unpersisted_ages.age(lowest, trio.current_time())

    # -- publishing ---------------------------------------------------------

    def _head(self, topic: str) -> bytes:
        """The constant first part of a plain publish to `topic`, up to its sequence."""
        head = self._heads.get(topic)
        if head is None:
            head = publish_head(topic)
            if len(self._heads) >= _CACHED_HEADS:
                self._heads.clear()
            self._heads[topic] = head
        return head

    def append(self, head: bytes, body: Payload) -> int:
        """Store one frame and have it sent; never waits.

        Raises:
            StoreFull: There is no room; nothing was stored.
            UsageError: The body is neither text nor bytes.
        """
        log = self.log
        if log is None:
            raise UsageError("append needs a publish store")
        try:
            if isinstance(body, str):
                body = body.encode()
            sequence = log.append(head, _TAIL, body)
        except (
            TypeError,
            UnicodeEncodeError,
        ):  # the body, in most cases: the error says what was wanted
            check_payload(body)
            raise
        if log.unsent_bytes >= self.gate.check_at:
            self._flush_backlog(log)
        elif self.gate.parked and self.writer is not None:
            self.writer.wake()
        return sequence

    def _flush_backlog(self, log: FrameLog) -> None:
        """Send the collected publishes, and have the next publish check the limits."""
        self.gate.has_to_check = True
        self._note_time()
        if self.writer is not None and self.writer.log_open:
            self.writer.flush()
        else:
            self._check_at_cap(log)

    def _check_at_cap(self, log: FrameLog) -> None:
        """While nothing can be sent, check again only at the cap."""
        room = max(self.gate.cap_bytes - log.unpersisted_bytes, 1)
        self.gate.check_at = log.unsent_bytes + min(FLUSH_BYTES, room)

    async def publish(self, topic: str, body: Payload) -> int | None:
        """Publish plainly, waiting for room first when there is none.

        `append` is written out here: one call less is a tenth of the whole.
        """
        if get_ident() != self._thread.ident:  # before anything is stored
            self._thread.check("publish")
        gate, log = self.gate, self.log
        if gate.has_to_check:
            await self.make_room()
        if log is None:
            await self._send_unstored(publish_frame_without_store(topic, as_bytes(body)))
            return None
        try:
            if isinstance(body, str):
                body = body.encode()
            sequence = log.append(self._heads.get(topic) or self._head(topic), _TAIL, body)
        except StoreFull as full:  # nothing was stored: wait for room
            sequence = await self._append_later(full, self._head(topic), body)
        except (
            TypeError,
            UnicodeEncodeError,
        ):  # checked only after a failure, to keep the hot path short
            check_text("topic", topic)
            check_payload(body)
            raise
        if log.unsent_bytes >= gate.check_at:
            self._flush_backlog(log)
        elif gate.parked and self.writer is not None:
            self.writer.wake()
        if self._synced:
            await sync_accepted(self.store)
        return sequence

    async def publish_many(self, topic: str, bodies: Sequence[Payload]) -> int | None:
        """Publish several messages plainly; an error says how many of them were accepted."""
        self._thread.check("publish_many")
        _check_list("bodies", bodies)
        check_text("topic", topic)
        for body in bodies:  # before anything is stored
            check_payload(body)
        head, sequence, accepted = self._head(topic), None, 0
        await self.make_room()
        try:
            for body in bodies:
                if self.gate.has_to_check:
                    await self.make_room()
                if self.log is None:
                    frame = publish_frame_without_store(topic, as_bytes(body))
                    await self._send_unstored(frame)
                else:
                    try:
                        sequence = self.append(head, body)
                    except StoreFull as full:  # nothing was stored: wait for room
                        sequence = await self._append_later(full, head, body)
                accepted += 1
            await self.wait_synced()
        except HAClientError as error:
            error.add_note(f"publish_many: {accepted} of {len(bodies)} messages were accepted")
            raise
        return sequence

    async def publish_with(  # noqa: PLR0913  # the parts of one wire frame
        self,
        topic: str,
        body: Payload,
        *,
        command: str = "p",
        expiration: int | None = None,
        correlation_id: str = "",
        sow_key: str = "",
        sequence: int | None = None,
    ) -> int | None:
        """Publish with more in the header than a topic."""
        self._thread.check("publish")
        if sequence is not None:
            head = publish_head(
                topic,
                command=command,
                expiration=expiration,
                correlation_id=correlation_id,
                sow_key=sow_key,
            )
            await self._publish_numbered([head], [body], sequence)
            return sequence
        if self.log is not None:
            head = publish_head(
                topic,
                command=command,
                expiration=expiration,
                correlation_id=correlation_id,
                sow_key=sow_key,
            )
            return await self.append_durably(head, body)
        frame = publish_frame_without_store(
            topic,
            as_bytes(body),
            command=command,
            expiration=expiration,
            correlation_id=correlation_id,
            sow_key=sow_key,
        )
        await self.make_room()
        await self._send_unstored(frame)
        return None

    async def publish_command(self, command: Command, command_id: str) -> int | None:
        """Publish with every field of a `Command`.

        Args:
            command: A publish or delta publish.
            command_id: The command id in the server's acks for it; empty for none.

        Returns:
            The sequence number under which it is stored, `None` without a store.

        Raises:
            UsageError: It has a sequence of its own although a store numbers the publishes.
        """
        self._thread.check("publish")
        fields = command.to_fields()
        if command_id:
            fields["cid"] = command_id
        if command.sequence is not None:
            del fields["s"]
            fields["a"] = format_acks({*parse_acks(command.ack_type), AckType.PERSISTED})
            head = encode_header(fields)[:-1] + b',"s":'
            await self._publish_numbered([head], [command.data], command.sequence)
            return command.sequence
        if self.log is None:
            frame = encode_frame(fields, as_bytes(command.data))
            await self.make_room()
            await self._send_unstored(frame)
            return None
        fields["a"] = format_acks({*parse_acks(command.ack_type), AckType.PERSISTED})
        return await self.append_durably(encode_header(fields)[:-1] + b',"s":', command.data)

    async def append_durably(self, head: bytes, body: Payload) -> int:
        """Wait for room, `append`, then wait for the disk if the durability requires it."""
        await self.make_room()
        try:
            sequence = self.append(head, body)
        except StoreFull as full:  # nothing was stored: wait for room
            sequence = await self._append_later(full, head, body)
        await self.wait_synced()
        return sequence

    async def wait_synced(self) -> None:
        """Wait for the disk if the durability requires it."""
        if self._synced:
            await sync_accepted(self.store)

    def flush(self) -> None:
        """Send at once what is stored: a caller that waits gains nothing from batching."""
        if self.writer is not None:
            self.writer.flush()

    def publish_nowait(self, topic: str, body: Payload) -> int | None:
        """Publish plainly without ever suspending.

        Raises:
            WouldBlock: Over a high-water mark, or during a planned move; nothing was stored.
            UsageError: The store's durability is `fsync`, which has to wait.
        """
        if get_ident() != self._thread.ident:  # before anything is stored
            self._thread.check("publish_nowait")
        if self.gate.has_to_check:
            self._check_room()
        if self._synced:
            raise UsageError("publish_nowait cannot wait for the disk: durability is fsync")
        if self.log is None:
            if self.move_hold.is_active:
                raise WouldBlock("publish_nowait: the client is about to move to another server")
            self.send_unstored(publish_frame_without_store(topic, as_bytes(body)))
            return None
        try:
            return self.append(self._heads.get(topic) or self._head(topic), body)
        except StoreFull as full:  # waiting is not allowed here
            if not full.wait:
                raise
            raise WouldBlock(f"publish_nowait: {full}") from full
        except TypeError:  # a topic that is not hashable
            check_text("topic", topic)
            raise

    async def _send_unstored(self, frame: bytes) -> None:
        """Queue a publish that no store keeps, after a wait for a connection where that is wanted.

        Raises:
            DisconnectedError: There is no connection that has logged on, or none will follow.
        """
        while True:
            if self.move_hold.is_active:
                await self.move_hold.ended()
                await self._wait_if_held()
            try:
                self.send_unstored(frame)
            except DisconnectedError:  # nothing was sent
                if self.wait_for_connection is None:
                    raise
                await self.wait_for_connection()
                await self._wait_if_held()
            else:
                return

    def _check_logged_on(self) -> None:
        """Check that the connection takes publishes; the error has the reason of a lost one.

        Raises:
            DisconnectedError: There is no connection that has logged on.
        """
        if not self.sends:
            reason = self._status.lost_reason
            why = "enter or log on the client first" if reason is None else str(reason)
            raise DisconnectedError(
                f"not logged on, and there is no publish store to keep it: {why}"
            ) from reason

    def send_unstored(self, frame: bytes) -> None:
        """Queue a publish that no store keeps.

        Raises:
            DisconnectedError: There is no connection that has logged on.
        """
        writer = self.writer
        if writer is None or not writer.log_open:
            raise DisconnectedError("not logged on, and there is no publish store to keep it")
        writer.send(frame)
        self.sent_unstored += 1
        if writer.outbox_bytes >= FLUSH_BYTES:
            self.gate.has_to_check = True
            writer.flush()

    # -- publishes that the caller numbers -----------------------------------

    async def publish_batch(
        self,
        topics: str | Sequence[str],
        bodies: Sequence[Payload],
        *,
        first_sequence: int,
        command: str = "p",
        expiration: int | Sequence[int | None] | None = None,
        correlation_ids: Sequence[str] = (),
    ) -> int:
        """Publish messages under consecutive explicit numbers, many in one write.

        Returns:
            The number of the last message, `first_sequence - 1` where there is none.
        """
        self._thread.check("publish_batch")
        _check_list("data", bodies)
        count = len(bodies)
        lists: list[tuple[str, Sequence[object]]] = []
        if not isinstance(topics, str):
            lists.append(("topic", topics))
        if not isinstance(expiration, int | None):
            lists.append(("expiration", expiration))
        if correlation_ids:
            lists.append(("correlation_ids", correlation_ids))
        for name, given in lists:
            _check_list(name, given)
            if len(given) != count:
                raise UsageError(
                    f"publish_batch takes one {name} for each message: {count} messages, "
                    f"{len(given)} found"
                )
        heads = publish_heads(topics, command, expiration, correlation_ids)
        await self._publish_numbered(heads, bodies, first_sequence)
        return first_sequence + count - 1

    def check_numbers_itself(self, sequence: int) -> None:
        """Check that the caller may number what is published.

        Raises:
            UsageError: A publish store does that, or the client reconnects by itself.
        """
        if self.log is not None:
            raise UsageError(
                f"the publish store numbers what is published, found the sequence "
                f"{sequence}: leave it out, or use a client without a publish store"
            )
        if self._status.reconnects:
            raise UsageError(
                f"an HAClient takes no sequence, found {sequence}: what is in flight when it "
                "reconnects would be lost unnoticed; use a Client, or give it a publish store"
            )

    async def _publish_numbered(
        self, heads: Sequence[bytes], bodies: Sequence[Payload], first_sequence: int
    ) -> None:
        """Send messages under explicit numbers; a cancelled call may have sent the first of them.

        Raises:
            UsageError: The numbers are not the caller's to choose, or the server would drop one.
            DisconnectedError: There is no connection that has logged on.
        """
        self.check_numbers_itself(first_sequence)
        if type(first_sequence) is not int:  # no full check: this may be called per message
            check_sequence(first_sequence)
        await trio.lowlevel.checkpoint()
        for start in range(0, len(bodies), _BATCH_PIECE):
            await self.make_room()
            self._check_logged_on()
            piece = bodies[start : start + _BATCH_PIECE]
            own = heads if len(heads) == 1 else heads[start : start + _BATCH_PIECE]
            self.send_numbered(own, piece, first_sequence + start)

    def send_numbered(
        self, heads: Sequence[bytes], bodies: Sequence[Payload], first_sequence: int
    ) -> None:
        """Queue messages under consecutive explicit numbers; never waits.

        Args:
            heads: What `publish_head` returns, one for each message or one for all.
            bodies: Their bodies, at least one.
            first_sequence: The number of the first.

        Raises:
            UsageError: The server would drop one of them as a duplicate.
        """
        last = first_sequence + len(bodies) - 1
        # Here and not before the wait for room: another task may have published meanwhile.
        self.sequences.check(first_sequence, last)
        frames = numbered_frames(heads, first_sequence, bodies)
        self.sequences.last_published = last
        self.send_unstored(frames)

    # -- room ---------------------------------------------------------------

    async def make_room(self) -> None:
        """Suspend once, and for as long as a limit is exceeded.

        Raises:
            DisconnectedError: The wait could only end by acks, and the connection is lost.
            UsageError: The wait would deadlock: it ends only after the caller continues.
        """
        await trio.lowlevel.checkpoint()
        await self._wait_if_held()
        while (log := self.log) is not None and self._over_cap(log):
            # Other tasks that publish meanwhile have to wait for the same limit.
            self.gate.has_to_check = True
            await self._until_acknowledged(log, "publish")
        while (writer := self.writer) is not None and self._socket_is_behind(writer):
            self.gate.has_to_check = True
            await writer.room()
        await self._wait_if_held()
        self.gate.has_to_check = False

    def hold(self, until: trio.Event) -> None:
        """Let each publish wait until it is cancelled, or fail when `until` is set."""
        self._hold, self.gate.has_to_check = until, True

    async def _wait_if_held(self) -> None:
        """Never return if publishes are held: after each wait, in which the hold may begin."""
        if self._hold is not None:
            await self._hold.wait()
            raise DisconnectedError("publish: the program is ending, and has been flushed")

    def _check_room(self) -> None:
        writer = self.writer
        if self._hold is not None:
            raise WouldBlock("publish_nowait: the program is ending")
        if self.log is not None and self._over_cap(self.log):
            raise WouldBlock("publish_nowait: too much is unpersisted, use await publish to wait")
        if writer is not None and self._socket_is_behind(writer):
            raise WouldBlock("publish_nowait: the socket is full, use await publish to wait")
        self.gate.has_to_check = False

    def _over_cap(self, log: FrameLog) -> bool:
        return log.unpersisted_bytes >= self.gate.cap_bytes

    def _socket_is_behind(self, writer: Writer) -> bool:
        if self.log is None:
            return writer.outbox_bytes >= _OUTBOX_CAP_BYTES
        return writer.log_open and writer.blocked and self.log.unsent_bytes >= FLUSH_BYTES

    async def _until_acknowledged(self, log: FrameLog, what: str) -> None:
        self._check_acks_may_come(f"{what} waits for acks, but ")
        await self.persisted.reached(log.last_persisted + 1, what)

    def _check_acks_may_come(self, before: str, after: str = "") -> None:
        """Look whether there is a connection, or another one will follow.

        Args:
            before: Starts the error message; the reason follows.
            after: Ends it.

        Raises:
            DisconnectedError: No ack can come.
        """
        if self.writer is None and not self._status.expects_connection:
            stop_reason = self._status.stop_reason
            why = stop_reason or "the connection is lost: connect again"
            raise DisconnectedError(f"{before}{why}{after}") from stop_reason

    async def room_after(self, full: StoreFull, what: str) -> None:
        """The store was full: wait for the next ack, if it wants to be asked again then.

        Raises:
            StoreFull: It does not, or no ack can come; otherwise as `make_room`.
        """
        log = self.log
        if log is None or not full.wait or not log.unpersisted_count:
            raise full
        await self._until_acknowledged(log, what)

    async def _append_later(self, full: StoreFull, head: bytes, body: Payload) -> int:
        while True:
            await self.room_after(full, "publish")
            await self._wait_if_held()
            try:
                return self.append(head, body)
            except StoreFull as again:  # another task was faster
                full = again

    async def wait_persisted(self, sequence: int, what: str) -> None:
        """Wait until everything up to `sequence` is persisted.

        Raises:
            DisconnectedError: The connection is lost and no other one will come by itself.
            UsageError: Nothing was published under so high a sequence.
        """
        log = self.log
        last = self.sequences.last_published if log is None else log.last_sequence
        if sequence > last:
            raise UsageError(
                f"{what}: wanted a sequence that this client has published, up to {last}, "
                f"found {sequence}"
            )
        if log is None:
            await self._wait_numbered(sequence, what)
        while log is not None and log.unpersisted_count and log.last_persisted < sequence:
            self._check_acks_may_come(
                f"{what}: {log.unpersisted_count} publishes are not persisted and ",
                f"; {what_remains(log)}",
            )
            self.flush()
            await self.persisted.reached(sequence, what)

    async def _wait_numbered(self, sequence: int, what: str) -> None:
        """Wait for the ack of a message that was published under an explicit number."""
        while (self.sequences.persisted or 0) < sequence and sequence not in self.refusals:
            if self.writer is None:
                reason = self._status.lost_reason
                raise DisconnectedError(
                    f"{what}: {sequence} is not persisted and the connection is lost: {reason}; "
                    "connect again and publish what is above client.persisted_sequence"
                ) from reason
            self.flush()
            await self.persisted.reached(sequence, what)


def _check_list(name: str, value: object) -> None:
    """Refuse a single value where a list is wanted, and an iterator, which the checks would use up.

    Raises:
        UsageError: It is not a list.
    """
    found = type(value).__name__
    is_single = isinstance(value, str | bytes | bytearray | memoryview)
    if is_single or not isinstance(value, Collection):
        how = "one alone is [one]" if is_single else "make it one by list(...)"
        raise UsageError(f"{name} is a list or a tuple, not {found}: {how}")


def what_remains(log: FrameLog) -> str:
    """What happens to unpersisted publishes, for an error message."""
    if isinstance(log, PublishLog) and log.path is None:
        return "they stay in memory until the client is left"
    return "they stay in the store"


def _as_log(store: PublishStore | None) -> FrameLog | None:
    if store is None or isinstance(store, NullPublishStore):
        return None
    return store if isinstance(store, FrameLog) else SendingStore(store)


async def sync_accepted(store: PublishStore | None) -> None:
    """Sync an accepted publish to disk; shielded from cancellation, since it cannot be undone.

    Raises:
        StoreError: It is not on the disk. It stays stored, so this is never a `StoreFull`, after
            which an application may publish it again.
    """
    if store is not None:
        with trio.CancelScope(shield=True):
            try:
                await trio.to_thread.run_sync(store.sync)
            except StoreFull as error:  # of the sync, not of the append
                raise StoreError(f"stored, but not on the disk: {error}") from error


async def on_disk(store: PublishStore | None) -> None:
    """Wait until everything published so far would survive a power loss.

    Raises:
        UsageError: There is no store, or the store is not on a disk.
    """
    in_memory = isinstance(store, PublishLog) and store.path is None
    if store is None or in_memory or isinstance(store, NullPublishStore):
        raise UsageError("publish_flush(durable=True) needs a publish store with files")
    await trio.to_thread.run_sync(store.sync, abandon_on_cancel=True)

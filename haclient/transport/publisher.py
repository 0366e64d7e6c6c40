"""Publishing: encode once, append to the log, let the writer send.

A publish is accepted by one append into the client's log, which is also the send queue and the
replay buffer (`haclient.session.publishes`). With a store, a broken link is no error then. Without
one the log keeps nothing past its connection, and a publish without a connection is an error.

Every wait of `publish` comes before its append, so a cancelled publish was not stored and a
returned one was. Waits are rare: about every 256 KiB a publish checks the socket, the cap on
unpersisted bytes and the scheduler. Acks are cumulative; nothing is kept per message.

A store that raises `StoreFull` with `wait` set (a full ring, a refused growth) is tried again after
each ack; any other `StoreFull` is raised to the caller.

Durability `fsync` is the exception: the append is followed by a shielded wait for the disk, so that
every publish that has returned survives a power loss.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import cycle
from threading import get_ident
from typing import Final, Required, TypedDict, Unpack, cast

import trio
from typing_extensions import override

from haclient.errors import (
    DisconnectedError,
    HAClientError,
    StoreError,
    StoreFull,
    UsageError,
    WouldBlock,
)
from haclient.protocol.codec import (
    Payload,
    as_bytes,
    check_payload,
    check_text,
    encode_header,
    publish_head,
    publish_heads,
)
from haclient.protocol.commands import AckType, Command, format_acks, parse_acks
from haclient.protocol.messages import Message
from haclient.session.auditing import Auditor
from haclient.session.connection_state import ConnectionStatus, LoggedOn
from haclient.session.custom_stores import SendingStore
from haclient.session.publishes import Publishes, check_many
from haclient.transport.back_pressure import AckWaits, Watermark
from haclient.transport.tasks import ClientThread, own_threads
from haclient.transport.writer import FLUSH_BYTES, SendGate, Writer
from haclient_stores.interfaces import PublishStore
from haclient_stores.publish_stores.publish_log import PublishLog

DEFAULT_MAX_UNPERSISTED_BYTES: Final = 512 * 1024 * 1024
"""Unpersisted bytes at which `publish` waits for acks and `publish_nowait` raises."""

_CACHED_HEADS: Final = 4096
_TAIL: Final = b"}"
_BATCH_PIECE: Final = 1024  # messages of a batch between two checks of the limits


class _Parts(TypedDict, total=False):
    max_unpersisted_bytes: int
    waits: AckWaits
    status: ConnectionStatus
    thread: Required[ClientThread]


class Publisher:
    """The publishing half of a client.

    Args:
        store: Where publishes are kept until they are persisted, or `None`.
        max_unpersisted_bytes: See `DEFAULT_MAX_UNPERSISTED_BYTES`.
        waits: The calls of the client that wait for acks.
        status: The client's; waits outlive a lost connection while it expects another one.
        thread: The client's.

    Attributes:
        publishes: The log, and the result of each publish.
        is_moving: Whether the client has left a server that works for another one. Publishes are
            accepted meanwhile, and what the old server has not persisted goes to the next one.
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
        self.publishes = Publishes(store)
        self.log = self.publishes.log
        self.writer: Writer | None = None
        self.watermark = Watermark(AckWaits() if waits is None else waits)
        self._synced = getattr(store, "durability", "process") == "fsync"
        self.gate = SendGate(max_unpersisted_bytes)
        self._status = status or ConnectionStatus()
        self.is_moving = False
        self._is_used = False  # whether this connection has sent from the log, or may have
        self._blocked_until: trio.Event | None = None
        self._heads: dict[str, bytes] = {}
        self.gate.takes_slow_path = not self.publishes.is_kept

    # -- the connection's life ---------------------------------------------

    def connected(self, writer: Writer) -> None:
        """Use a new link. The log is not sent before the logon ack has said where to begin."""
        self.writer = writer
        self._sample_age()

    def reconcile(self, server: LoggedOn, clock_us: int) -> None:
        """Trim to what is persisted and number above what was seen; see `Publishes.logged_on`."""
        self.publishes.logged_on(server, clock_us)
        self._advance_watermark()

    async def measure(self) -> None:
        """Before `open_log`: find out how much there is to send; other tasks run meanwhile."""
        log, is_measured = self.log, False
        while isinstance(log, SendingStore) and not is_measured:
            unsent_bytes = log.unsent_bytes
            is_measured = log.measure()
            if self.writer is not None:  # what it was told to send since then comes after all this
                self.writer.found_earlier(log.unsent_bytes - unsent_bytes)
            if not is_measured:
                await trio.lowlevel.checkpoint()

    def open_log(self) -> None:
        """Start to send the log: first what is not persisted, then every new publish."""
        writer = self.writer
        if writer is not None:
            self.is_moving, self._is_used = False, True
            writer.log_open = True
            writer.wake()

    def lost(self) -> None:
        """The link has ended. Waiters are woken unless another connection will follow."""
        was_used, self._is_used = self._is_used, False
        self.writer = None
        self._sample_age()
        # A connection that ends before it has sent from the log has lost nothing of it. There is
        # something in a log that is not kept if a planned move needs several attempts.
        if was_used and not self.is_moving:
            self.publishes.lost(self._status.lost_reason)
        self._set_checks()
        if not (self._status.expects_connection and self.publishes.is_kept):
            self.watermark.release()

    def move_failed(self) -> None:
        """The client has left a server, and is not at the other one: it has no connection."""
        self.is_moving = False
        self._set_checks()

    def acknowledged(self, sequence: int) -> None:
        """Trim the log up to a persisted sequence, and wake the tasks that wait for it."""
        with self._trimming():
            self.publishes.acknowledged(sequence)
        self.gate.unpersisted_ages.forget(self.log.lowest_unpersisted)
        self._sample_age()

    def refused(self, ack: Message) -> Message | None:
        """Remove a refused publish from the log; see `Publishes.refused`."""
        with self._trimming():
            return self.publishes.refused(ack)

    @contextmanager
    def _trimming(self) -> Generator[None]:
        """Wake the writer and the tasks that wait, after the log was trimmed in this block."""
        log = self.log
        unsent_bytes = log.unsent_bytes
        yield
        if self.writer is not None and log.unsent_bytes < unsent_bytes:
            self.writer.passed_over(unsent_bytes - log.unsent_bytes)
        self._advance_watermark()

    def _advance_watermark(self) -> None:
        log = self.log
        # The last number may be one that was skipped, which no server acknowledges.
        self.watermark.advance(log.last_persisted if log.unpersisted_count else log.last_sequence)

    def _sample_age(self) -> None:
        """Note the time of the last publish: unpersisted ones get their ages from such samples."""
        if self.log.unpersisted_count:
            self.gate.unpersisted_ages.note(self.log.last_sequence, trio.current_time())

    @property
    def oldest_age_s(self) -> float:
        """How long the oldest unpersisted message has waited, in seconds; 0 when none does.

        Raises:
            UsageError: The calling thread is not the client's.
        """
        self._thread.check("metrics")
        self._sample_age()
        return self.gate.unpersisted_ages.age(self.log.lowest_unpersisted, trio.current_time())

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
        try:
            if isinstance(body, str):
                body = body.encode()
            sequence = log.append(head, _TAIL, body)
        except (TypeError, UnicodeEncodeError):
            # The body, in most cases: the error says what was wanted.
            check_payload(body)
            raise
        self._send_appended()
        return sequence

    def append_many(self, heads: Sequence[bytes], bodies: Sequence[Payload]) -> None:
        """Store several frames and have them sent; never waits.

        Args:
            heads: What `publish_head` returns, one for each message or one for all.
            bodies: Their bodies, which are text or bytes.

        Raises:
            StoreFull: There is no room for one of them; those before it are stored.
        """
        is_encoded = {*map(type, bodies)} <= {bytes}  # a check for each would cost a tenth
        encoded = cast("Sequence[bytes]", bodies) if is_encoded else map(as_bytes, bodies)
        try:
            self.log.append_many(cycle(heads), _TAIL, encoded)
        finally:
            self._send_appended()

    def _send_appended(self) -> None:
        """Leave it to the writer's task, unless so much is there that the socket is asked now."""
        if self.log.unsent_bytes >= self.gate.check_at:
            self._flush_backlog()
        elif self.gate.parked and self.writer is not None:
            self.writer.wake()

    def _flush_backlog(self) -> None:
        """Send the collected publishes, and have the next publish check the limits."""
        self.gate.takes_slow_path = True
        self._sample_age()
        if self.writer is not None and self.writer.log_open:
            self.writer.flush()
        else:
            self._set_checks()

    def _set_checks(self) -> None:
        """While nothing can be sent, check again only at the cap; without a store, each time."""
        gate, log = self.gate, self.log
        room = max(gate.cap_bytes - log.unpersisted_bytes, 1)
        gate.check_at = log.unsent_bytes + min(FLUSH_BYTES, room)
        if not self.publishes.is_kept:
            gate.takes_slow_path = True

    async def publish(self, topic: str, body: Payload) -> int:
        """Publish plainly, waiting for capacity first when there is none.

        `append` is written out here: one call less is a tenth of the whole.
        """
        if get_ident() != self._thread.ident:  # before anything is stored
            self._thread.check("publish")
        gate, log = self.gate, self.log
        if gate.takes_slow_path:
            await self.wait_for_capacity()
        try:
            if isinstance(body, str):
                body = body.encode()
            sequence = log.append(self._heads.get(topic) or self._head(topic), _TAIL, body)
        except StoreFull as full:  # nothing was stored: wait for room
            sequence = await self._append_later(full, self._head(topic), body)
        except (TypeError, UnicodeEncodeError):
            # Checked only after a failure, to keep the hot path short.
            check_text("topic", topic)
            check_payload(body)
            raise
        if log.unsent_bytes >= gate.check_at:
            self._flush_backlog()
        elif gate.parked and self.writer is not None:
            self.writer.wake()
        if self._synced:
            await sync_accepted(self.store)
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
    ) -> int:
        """Publish with more in the header than a topic."""
        self._thread.check("publish")
        head = publish_head(
            topic,
            command=command,
            expiration=expiration,
            correlation_id=correlation_id,
            sow_key=sow_key,
        )
        return await self._publish_one(head, body, sequence)

    async def publish_command(self, command: Command, command_id: str) -> int:
        """Publish with every field of a `Command`.

        Args:
            command: A publish or delta publish.
            command_id: The command id in the server's acks for it; empty for none.

        Returns:
            The sequence number under which it is stored.

        Raises:
            UsageError: It has a sequence of its own although a store numbers the publishes.
        """
        self._thread.check("publish")
        fields = command.to_fields()
        fields.pop("s", None)
        if command_id:
            fields["cid"] = command_id
        fields["a"] = format_acks({*parse_acks(command.ack_type), AckType.PERSISTED})
        head = encode_header(fields)[:-1] + b',"s":'
        return await self._publish_one(head, command.data, command.sequence)

    async def _publish_one(self, head: bytes, body: Payload, sequence: int | None) -> int:
        if sequence is None:
            return await self.append_durably(head, body)
        check_payload(body)
        await self._publish_numbered([head], [body], sequence)
        return sequence

    async def append_durably(self, head: bytes, body: Payload) -> int:
        """Wait for capacity, `append`, then wait for the disk if the durability requires it."""
        await self.wait_for_capacity()
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

    def publish_nowait(self, topic: str, body: Payload) -> int:
        """Publish plainly without ever suspending.

        Raises:
            WouldBlock: Over a high-water mark; nothing was stored.
            DisconnectedError: There is neither a store nor a connection.
            UsageError: The store's durability is `fsync`, which has to wait.
        """
        if get_ident() != self._thread.ident:  # before anything is stored
            self._thread.check("publish_nowait")
        if self.gate.takes_slow_path:
            self._check_capacity()
        if self._synced:
            raise UsageError("publish_nowait cannot wait for the disk: durability is fsync")
        try:
            return self.append(self._heads.get(topic) or self._head(topic), body)
        except StoreFull as full:  # waiting is not allowed here
            if not full.wait:
                raise
            raise WouldBlock(f"publish_nowait: {full}") from full
        except TypeError:  # a topic that is not hashable
            check_text("topic", topic)
            raise

    async def publish_many(  # noqa: PLR0913  # what a message has, for all of them
        self,
        topics: str | Sequence[str],
        bodies: Sequence[Payload],
        *,
        first_sequence: int | None = None,
        command: str = "p",
        expiration: int | Sequence[int | None] | None = None,
        correlation_ids: Sequence[str] = (),
        sow_keys: Sequence[str] = (),
    ) -> int:
        """Publish several messages; an error says how many of them were accepted.

        Returns:
            The number of the last message; without one, that of the last publish before.
        """
        self._thread.check("publish_many")
        # Before anything is stored.
        check_many(topics, bodies, expiration, correlation_ids, sow_keys)
        heads = publish_heads(topics, command, expiration, correlation_ids, sow_keys)
        sequence, accepted, before = self.publishes.highest, 0, self.publishes.numbered_to
        try:
            if first_sequence is not None:
                await self._publish_numbered(heads, bodies, first_sequence)
                return first_sequence + len(bodies) - 1
            await self.wait_for_capacity()
            for accepted, body in enumerate(bodies):
                if self.gate.takes_slow_path:
                    await self.wait_for_capacity()
                head = heads[0 if len(heads) == 1 else accepted]
                try:
                    sequence = self.append(head, body)
                except StoreFull as full:  # nothing was stored: wait for room
                    sequence = await self._append_later(full, head, body)
            accepted = len(bodies)
            await self.wait_synced()
        except HAClientError as error:
            if first_sequence is not None and self.publishes.numbered_to > before:
                accepted = self.publishes.numbered_to - first_sequence + 1
            error.add_note(f"publish_many: {accepted} of {len(bodies)} messages were accepted")
            raise
        return sequence

    async def _publish_numbered(
        self, heads: Sequence[bytes], bodies: Sequence[Payload], first_sequence: int
    ) -> None:
        """Publish under numbers of the caller; a cancelled call may have stored the first of them.

        Raises:
            UsageError: The numbers are not the caller's to choose, or the server would drop one.
            DisconnectedError: There is no connection that has logged on.
        """
        publishes = self.publishes
        publishes.check_caller_may_number(first_sequence, reconnects=self._status.reconnects)
        if not bodies:
            await trio.lowlevel.checkpoint()
        done = 0
        while done < len(bodies):
            await self._wait_for_capacity()
            end = min(done + _BATCH_PIECE, len(bodies))
            # Here and not before the wait for capacity: another task may have published meanwhile.
            done += publishes.number_from(first_sequence + done, first_sequence + end - 1)
            try:
                self.append_many(heads if len(heads) == 1 else heads[done:end], bodies[done:end])
                done = end
            except StoreFull as full:
                done = self.log.last_sequence - first_sequence + 1
                publishes.numbered_to = self.log.last_sequence
                await self.wait_after_full(full, "publish")
            finally:  # what was not stored may be published under the same number
                publishes.numbered_to = min(publishes.numbered_to, self.log.last_sequence)

    # -- capacity -----------------------------------------------------------

    async def wait_for_capacity(self) -> None:
        """Suspend once, and for as long as a limit is exceeded.

        Raises:
            DisconnectedError: The wait could only end by acks, and the connection is lost; or
                there is neither a store nor a connection.
            SubscriptionFull: The ack comes after more messages than the client reads ahead.
            UsageError: The caller numbers the publishes of this connection.
        """
        await self._wait_for_capacity()
        self.publishes.check_client_may_number()

    async def _wait_for_capacity(self) -> None:
        await trio.lowlevel.checkpoint()
        await self._wait_if_blocked()
        while self.over_high_water:
            # Other tasks that publish meanwhile have to wait for the same limit.
            self.gate.takes_slow_path = True
            await self._wait_for_ack("publish")
        while (writer := self.writer) is not None and self._socket_is_behind(writer):
            self.gate.takes_slow_path = True
            await writer.room()
        await self._wait_if_blocked()
        self._check_accepts()

    def _check_accepts(self) -> None:
        """Check that the log takes messages, before an append that follows without a wait.

        Raises:
            DisconnectedError: It keeps nothing, and there is no connection that has logged on.
        """
        writer, publishes = self.writer, self.publishes
        is_open = self.is_moving or (writer is not None and writer.log_open)
        if not (publishes.is_kept or is_open):
            reason = self._status.lost_reason
            why = "enter or log on the client first" if reason is None else str(reason)
            raise DisconnectedError(
                f"not logged on, and there is no publish store to keep it: {why}"
            ) from reason
        self.gate.takes_slow_path = publishes.numbered_to > 0

    def block_publishes(self, until: trio.Event) -> None:
        """Let each publish wait until it is cancelled, or fail when `until` is set."""
        self._blocked_until, self.gate.takes_slow_path = until, True

    async def _wait_if_blocked(self) -> None:
        """Never return if publishes are blocked: after each wait, in which that may begin."""
        if self._blocked_until is not None:
            await self._blocked_until.wait()
            raise DisconnectedError("publish: the program is ending, and has been flushed")

    def _check_capacity(self) -> None:
        writer = self.writer
        if self._blocked_until is not None:
            raise WouldBlock("publish_nowait: the program is ending")
        if self.over_high_water:
            raise WouldBlock("publish_nowait: too much is unpersisted, use await publish to wait")
        if writer is not None and self._socket_is_behind(writer):
            raise WouldBlock("publish_nowait: the socket is full, use await publish to wait")
        self._check_accepts()
        self.publishes.check_client_may_number()

    @property
    def over_high_water(self) -> bool:
        """Whether publishes have to wait for acks."""
        return self.log.unpersisted_bytes >= self.gate.cap_bytes

    def _socket_is_behind(self, writer: Writer) -> bool:
        return writer.log_open and writer.blocked and self.log.unsent_bytes >= FLUSH_BYTES

    async def _wait_for_ack(self, what: str) -> None:
        self._check_acks_may_come(f"{what} waits for acks, but ")
        await self.watermark.wait_for(self.log.last_persisted + 1, what)

    def _check_acks_may_come(self, before: str, after: str = "") -> None:
        """Check that there is a connection, or that another one will follow.

        Args:
            before: Starts the error message; the reason follows.
            after: Ends it.

        Raises:
            DisconnectedError: No ack can come.
        """
        status, stop_reason = self._status, self._status.stop_reason
        # A client that is being left closes its store in a moment, perhaps before its connection.
        if stop_reason is not None or (self.writer is None and not status.reconnects):
            why = stop_reason or "the connection is lost: connect again"
            raise DisconnectedError(f"{before}{why}{after}") from stop_reason

    async def wait_after_full(self, full: StoreFull, what: str) -> None:
        """The store was full: wait for the next ack, if it wants to be asked again then.

        Raises:
            StoreFull: It does not, or no ack can come; otherwise as `wait_for_capacity`.
        """
        if not full.wait or not self.log.unpersisted_count:
            raise full
        await self._wait_for_ack(what)
        await self._wait_if_blocked()
        self._check_accepts()

    async def _append_later(self, full: StoreFull, head: bytes, body: Payload) -> int:
        while True:
            await self.wait_after_full(full, "publish")
            try:
                return self.append(head, body)
            except StoreFull as again:  # another task was faster
                full = again

    async def wait_persisted(self, sequence: int, what: str) -> None:
        """Wait until everything up to `sequence` is persisted.

        Raises:
            DisconnectedError: The connection is lost and no other one will come by itself, or the
                publish was lost with it.
            UsageError: Nothing was published under so high a sequence.
        """
        publishes = self.publishes
        while not publishes.is_done(sequence, what):
            self._check_acks_may_come(
                f"{what}: {self.log.unpersisted_count} publishes are not persisted and ",
                f"; {publishes.what_remains()}",
            )
            self.flush()
            await self.watermark.wait_for(sequence, what)


class AuditedPublisher(Publisher):
    """A publisher that records what it publishes and what becomes of it.

    A publish is recorded once it is stored, an ack before what waits for it is woken.

    Args:
        auditor: Records it.
        store: See `Publisher`, as the others.
    """

    def __init__(
        self, auditor: Auditor, store: PublishStore | None, **others: Unpack[_Parts]
    ) -> None:
        super().__init__(store, **others)
        self.auditor = auditor

    @override
    def append(self, head: bytes, body: Payload) -> int:
        sequence = super().append(head, body)
        self.auditor.published(head, sequence)
        return sequence

    @override
    def append_many(self, heads: Sequence[bytes], bodies: Sequence[Payload]) -> None:
        before = self.log.last_sequence
        try:
            super().append_many(heads, bodies)
        finally:
            stored = range(before + 1, self.log.last_sequence + 1)
            for head, sequence in zip(cycle(heads), stored, strict=False):
                self.auditor.published(head, sequence)

    @override
    async def publish(self, topic: str, body: Payload) -> int:
        if self._synced:  # recorded by `append`: an ack may come before it is on the disk
            self._thread.check("publish")
            check_text("topic", topic)
            return await self.append_durably(self._head(topic), body)
        sequence = await super().publish(topic, body)
        # One that `append` has recorded is not recorded again.
        self.auditor.log.published(sequence, topic, self.auditor.clock_us())
        return sequence

    @override
    def reconcile(self, server: LoggedOn, clock_us: int) -> None:
        if server.persisted:
            self.auditor.log.acknowledged(server.persisted, self.auditor.clock_us())
        super().reconcile(server, clock_us)

    @override
    def lost(self) -> None:
        count = self.log.unpersisted_count
        super().lost()
        if count and not self.log.unpersisted_count:  # no store keeps them
            self.auditor.log.lost(self.auditor.clock_us())

    @override
    def acknowledged(self, sequence: int) -> None:
        self.auditor.log.acknowledged(sequence, self.auditor.clock_us())
        super().acknowledged(sequence)

    @override
    def refused(self, ack: Message) -> Message | None:
        if ack.sequence is not None:
            self.auditor.log.refused(ack.sequence, self.auditor.clock_us())
        return super().refused(ack)


async def sync_accepted(store: PublishStore | None) -> None:
    """Sync an accepted publish to disk; shielded from cancellation, since it cannot be undone.

    Raises:
        StoreError: It is not on the disk. It stays stored, so this is never a `StoreFull`, after
            which an application may publish it again.
    """
    if store is not None:
        with trio.CancelScope(shield=True):
            try:
                await trio.to_thread.run_sync(store.sync, limiter=own_threads("disk"))
            except StoreFull as error:  # of the sync, not of the append
                raise StoreError(f"stored, but not on the disk: {error}") from error


async def on_disk(store: PublishStore | None) -> None:
    """Wait until everything published so far would survive a power loss.

    Raises:
        UsageError: There is no store, or the store is not on a disk.
    """
    if store is None or (isinstance(store, PublishLog) and store.path is None):
        raise UsageError("publish_flush(durable=True) needs a publish store with files")
    await trio.to_thread.run_sync(store.sync, abandon_on_cancel=True, limiter=own_threads("disk"))

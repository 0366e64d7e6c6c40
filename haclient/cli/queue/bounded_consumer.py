"""Consumes messages of a queue, never more than are wanted, until none came for some time.

**No more than wanted.** A server sends as many messages as the backlog before it waits for
acknowledgements, so a consumer that acknowledges each message at once has received more than it
will process when it stops. With a lease they go back to the queue, and have used up one of their
deliveries; at most once they are lost. So the last acknowledgements of a known number of messages
are *held*: as many as the backlog, until the last message was consumed. With `count` messages and a
backlog of `b`, the first `count - b` are acknowledged at once: the server has then sent `count`,
and no more. Messages with a lease are held for a second only, before their leases end. Before
held ones are acknowledged at the end, the subscription gets a filter that matches nothing: else
others would take their places.

**Kept messages** are those that will be given back: they are held to the end, or they would be
delivered again at once.

Acknowledgements are flushed at the end, also when a signal has ended the work.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Final, TypeAlias

import trio

from haclient.cli.connection import (
    CONNECT_TIMEOUT_S,
    GIVE_UP_AFTER_S,
    ConnectionRequest,
    open_client,
)
from haclient.cli.termination import hidden_warnings, run_before_end
from haclient.client import BaseClient, HAClient
from haclient.errors import (
    CommandError,
    DisconnectedError,
    HAClientError,
    ReconnectGaveUp,
    TimedOut,
    UsageError,
)
from haclient.events import Event, StateChanged
from haclient.protocol.messages import Message
from haclient.session.connection_state import ConnectionState
from haclient.streams import MessageStream
from haclient.transport.ack_sender import QueueLease

FLUSH_S: Final = 10.0
"""How long the server may take to process the last acknowledgements."""

_NOTHING: Final = "1 = 0"
"""A filter that matches no message."""

_HOLD_S: Final = 1.0
"""How long the acknowledgement of a leased message is held; of a shorter lease, half of it."""


Process: TypeAlias = Callable[[list[Message]], Awaitable[None]]
"""Processes messages that have arrived, and calls `BoundedConsumer.finish` with each."""


def granted_backlog(message: Message) -> int | None:
    """The backlog that the server has granted; `None` for a topic that is not a queue."""
    lease = message.lease
    return lease.leases.backlog if isinstance(lease, QueueLease) else None


@dataclass(slots=True, kw_only=True)
class BoundedConsumer:
    """One run of a command that consumes messages of a queue.

    Attributes:
        name: The queue.
        filter: Which messages are wanted; empty for all.
        count: How many messages are wanted; `None` for all.
        max_backlog: How many unacknowledged messages the server may send; fewer if `count` is less,
            and `count` if they are kept.
        idle_s: The run ends after so many seconds without a message; infinite for never.
        acknowledge: Called with each message when it is finished: acknowledges it, for example.
        answer_limit_s: How long the server may take to answer the subscribe.
        keeps: Whether that is done at the end of the run.
        consumed: How many messages are finished.
    """

    name: str
    filter: str
    count: int | None
    max_backlog: int
    idle_s: float
    acknowledge: Callable[[Message], object]
    answer_limit_s: float = CONNECT_TIMEOUT_S
    keeps: bool = False
    consumed: int = 0
    _acknowledged: int = 0
    _backlog: int = 0
    _held: list[Message] = field(default_factory=list[Message])
    _hold_until: float = inf
    _connected_at: float | None = None
    _last_message_at: float = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether as many messages as wanted were consumed."""
        return self.count is not None and self.consumed >= self.count

    @property
    def asked_backlog(self) -> int:
        """The backlog to ask for: no more than are wanted, and all that are kept."""
        if self.count is None:
            return self.max_backlog
        return self.count if self.keeps else min(self.max_backlog, self.count)

    async def consume(self, client: BaseClient, process: Process) -> None:
        """Subscribe, consume messages, and leave nothing unacknowledged that was finished.

        Args:
            client: It has logged on.
            process: See `run`.

        Raises:
            CommandError: The server refused the subscription, or has ended it.
            TimedOut: The server has not confirmed the last acknowledgements.
            DisconnectedError: The connection was lost, and no other one follows.
        """
        # A caller that asks for one message does not need the warning about round trips.
        hidden = hidden_warnings(
            "haclient.client",
            "the queue .+? sends one message",
            while_=lambda: self.asked_backlog == 1,
        )
        stream = client.queue_stream(
            self.name,
            max_backlog=self.asked_backlog,
            filter=self.filter,
            timeout=self.answer_limit_s,
        )
        with hidden:
            async with stream as messages:
                client.add_event_listener(self._on_event, StateChanged)
                try:
                    await self.run(messages, process)
                    await self._finish_all(client, messages.sub_id)
                except BaseException:  # a signal, too
                    await self._finish_interrupted(client, messages.sub_id)
                    raise

    def _on_event(self, event: Event) -> None:
        """Record since when messages can arrive."""
        match event:
            case StateChanged(state=ConnectionState.RESUBSCRIBED):
                self._connected_at = trio.current_time()
            case StateChanged(state=ConnectionState.DISCONNECTED):
                self._connected_at = None
            case _:
                pass

    async def run(self, messages: MessageStream, process: Process) -> None:
        """Consume messages until there are enough, or none came for too long.

        Args:
            messages: An open stream of the queue.
            process: Called with the messages that have arrived; it calls `finish` with each that
                it has processed.

        Raises:
            HAClientError: The topic is not a queue; or the subscription ended with an error.
            UsageError: So many messages cannot be kept.
        """
        self._connected_at = self._last_message_at = trio.current_time()
        batches = messages.batches()
        deadline = self._last_message_at + self.idle_s
        while not self.is_complete:
            batch = None
            # Without the processing, which would be cut: a slow output is no idle queue.
            with trio.move_on_at(min(deadline, self._hold_until)) as waiting:
                batch = await anext(batches, None)
            if batch is not None:
                self._check(batch[0])
                await process(batch if self.count is None else batch[: self.count - self.consumed])
                if self.is_complete:
                    return
                self._last_message_at = trio.current_time()
                deadline = self._last_message_at + self.idle_s
                continue
            if not waiting.cancelled_caught:
                break  # the stream has ended
            now = trio.current_time()
            if now >= self._hold_until:
                self._acknowledge_held()
            deadline = self._idle_until(now)
            if deadline <= now:
                break
        if messages.end_reason is not None:
            raise messages.end_reason

    def _idle_until(self, now: float) -> float:
        """When nothing has come for too long; without a connection nothing can."""
        if self._connected_at is None:
            return now + self.idle_s
        return max(self._connected_at, self._last_message_at) + self.idle_s

    def _check(self, message: Message) -> None:
        """Check the backlog that the server has granted, which the first message shows."""
        if self._backlog:
            return
        backlog = granted_backlog(message)
        if backlog is None:
            raise HAClientError(f"{self.name!r} is no queue: the server has granted no backlog")
        if self.keeps and self.count is not None and self.count > backlog:
            raise UsageError(
                f"-n {self.count}: to keep messages until the end is possible for as many as one "
                f"consumer may have; the server allows {backlog}"
            )
        self._backlog = backlog

    def finish(self, message: Message) -> None:
        """A message was processed. A plain function: a signal comes before it or after it."""
        self.consumed += 1
        is_last = self.count is not None and self._acknowledged >= self.count - self._backlog
        if not (self.keeps or is_last):
            self._acknowledged += 1
            self.acknowledge(message)
            return
        self._held.append(message)
        if message.lease_period and not self.keeps:
            self._hold_until = min(self._hold_until, self._hold_deadline(message))

    @staticmethod
    def _hold_deadline(message: Message) -> float:
        now = trio.current_time()
        ends_at = message.lease_deadline
        left_s = inf if ends_at is None else (ends_at - now) / 2
        return now + min(_HOLD_S, left_s)

    def _acknowledge_held(self) -> None:
        held, self._held, self._hold_until = self._held, [], inf
        self._acknowledged += len(held)
        for message in held:
            self.acknowledge(message)

    async def _finish_all(self, client: BaseClient, sub_id: str) -> None:
        """Acknowledge what is held, and wait until the server has processed everything.

        Args:
            client: Of the subscription.
            sub_id: The subscription, which gets no more messages.

        Raises:
            TimedOut: It took too long: the last messages may be redelivered.
            DisconnectedError: The connection was lost, and no other one follows.
        """
        if self._held:
            # Refused or late: what takes the places of held messages is given back unprocessed.
            with suppress(CommandError, TimedOut):
                await client.replace(sub_id, filter=_NOTHING, timeout=FLUSH_S)
        self._acknowledge_held()
        try:
            await client.flush_acks(timeout=FLUSH_S)
        except TimedOut:
            raise TimedOut(
                f"the server has not processed the last acknowledgements after {FLUSH_S:g} s: some "
                f"of the last messages of {self.name} may be redelivered"
            ) from None

    async def _finish_interrupted(self, client: BaseClient, sub_id: str) -> None:
        """The same after a signal or another error, which is what will be reported."""
        with trio.CancelScope(shield=True), suppress(HAClientError):  # as after a kill
            await self._finish_all(client, sub_id)


async def run_connected(
    connection: ConnectionRequest,
    consumer: BoundedConsumer,
    work: Callable[[HAClient], Awaitable[None]],
) -> None:
    """Do the work of a command with a client.

    Args:
        connection: Where to.
        consumer: Counts the messages that are finished.
        work: The work.

    Raises:
        DisconnectedError: No server was reached; or the connection was lost and not found again.
    """
    was_connected = False
    try:
        async with open_client(connection) as client:
            was_connected = True
            # When it is interrupted, the client still has to send the last acknowledgements.
            await run_before_end(partial(work, client))
    except ReconnectGaveUp as error:
        if not was_connected:
            raise
        raise DisconnectedError(
            f"the connection was lost after {consumer.consumed} messages and not found again "
            f"within {connection.give_up_after_s or GIVE_UP_AFTER_S:g} s"
        ) from error

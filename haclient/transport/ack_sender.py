"""Sends the acknowledgements of queue messages, at their times.

`haclient.session.leases` decides what is sent, and when.
Each message refers to the `QueueLease` of the chunk in which it was received. An acknowledgement
removes that reference, so a second one does nothing.

One task sends the batches that are due and the delayed cancels; it sleeps while there are none.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident

import trio
from typing_extensions import override

from haclient.errors import DisconnectedError
from haclient.protocol.codec import encode_frame
from haclient.protocol.messages import Message, MessageLease
from haclient.session.acks import PendingCommand
from haclient.session.leases import AckCommand, QueueAcks, QueueLeases, Receipt
from haclient.session.session import Session
from haclient.transport.tasks import ClientThread
from haclient.transport.writer import Writer
from haclient_stores.logs import SafeLogger, logger_of

_logger = logger_of(__name__)


class AckSender:
    """Sends the acknowledgements of one client, and makes the leases of its subscriptions.

    Args:
        acks: What it acknowledges.
        session: Where waiting commands are registered.
        thread: The client's thread, on which messages are acknowledged.
        clock_us: Tells microseconds since 1970, by a clock that may step.
        log: Logs the warnings, with the fields of the client; by default the logger of this module.
    """

    def __init__(
        self,
        acks: QueueAcks,
        session: Session,
        thread: ClientThread,
        *,
        clock_us: Callable[[], int],
        log: SafeLogger | None = None,
    ) -> None:
        self.acks = acks
        self.thread = thread
        self.clock_us = clock_us
        self._session = session
        self._log = _logger if log is None else log
        self._writer: Writer | None = None
        self._changed = trio.Event()
        self._sleeps_until = 0.0

    def leases(self, topic: str, *, is_queue: bool, asked: int = 1) -> QueueLeases:
        """What a new subscription has; see `QueueLeases`."""
        return QueueLeases(
            self.acks, topic, new_lease=self._lease, is_queue=is_queue, asked=asked, log=self._log
        )

    def _lease(self, leases: QueueLeases, now: float) -> MessageLease:
        return QueueLease(self, leases, Receipt(self.acks.link, now, self.clock_us()))

    def connected(self, writer: Writer) -> None:
        """Use a new connection."""
        self._writer = writer
        self.acks.connected(self._send)

    def _send(self, command: AckCommand) -> None:
        assert self._writer is not None  # noqa: S101  # it was given with the connection
        session, command_id = self._session, self._session.next_command_id()

        def answered() -> None:
            is_refused = not isinstance(pending.error, DisconnectedError | None)
            if self.acks.answered(command_id) and is_refused:
                self._log.error("%s: the messages may be redelivered", pending.error)

        what = f"the acknowledgement on {command.topic!r}"
        pending = PendingCommand(command_id, what, awaited="processed", wake=answered)
        session.pending.add(pending)
        if unanswered := self.acks.sent(command_id, command):
            session.pending.forget(unanswered)
        self._writer.send(encode_frame(command.fields(command_id, "processed")))

    def wake(self) -> None:
        """Wake the task if it would sleep for too long."""
        if self.acks.due_at < self._sleeps_until:
            self._changed.set()

    async def run(self) -> None:
        """Send what is due, while the client is open."""
        while True:
            self._changed, self._sleeps_until = trio.Event(), self.acks.due_at
            with trio.move_on_at(self._sleeps_until):
                await self._changed.wait()
            self.acks.send_due(trio.current_time())


class QueueLease(MessageLease):
    """The lease of the messages that one subscription received together.

    Args:
        sender: Sends the acknowledgements of the client.
        leases: Those of the subscription.
        receipt: How the messages were received.
    """

    __slots__ = ("_now", "_receipt", "_sender", "leases")

    def __init__(self, sender: AckSender, leases: QueueLeases, receipt: Receipt) -> None:
        self._sender = sender
        self._receipt = receipt
        self._now = trio.lowlevel.current_clock().current_time  # a fast way to trio.current_time()
        self.leases = leases

    @override
    def is_deliverable(self, message: Message, /) -> bool:
        if self.leases.is_deliverable(self._receipt, message, self._now()):
            return True
        self._sender.wake()  # it may have been acknowledged again
        return False

    @override
    def acknowledge(self, message: Message, option: str, /) -> None:
        thread = self._sender.thread
        if get_ident() != thread.ident:
            thread.call("message.ack()", self._acknowledge, message, option)
        else:
            self._acknowledge(message, option)

    def _acknowledge(self, message: Message, option: str) -> None:
        leases = self.leases
        if option:
            leases.return_message(self._receipt, message, option, trio.current_time())
        elif leases.acknowledge(self._receipt, message):
            leases.begin_batch(trio.current_time())
            self._sender.wake()

    @override
    def extend(self, message: Message, seconds: float, /) -> None:
        self._sender.thread.call("message.extend_lease()", self._extend, message, seconds)

    def _extend(self, message: Message, seconds: float) -> None:
        self.leases.extend(self._receipt, message, seconds, trio.current_time())

    @override
    def deadline(self, message: Message, /) -> float | None:
        return self.leases.deadline(self._receipt, message)

    def failed(self, message: Message) -> int:
        """Count a failure of a message; return how often it has failed in its subscription."""
        return self.leases.failed(message.topic, message.bookmark)

    def give_back(self, message: Message, failures: int) -> None:
        """Give a message back to its queue, after a delay that grows with its failures."""
        self.leases.cancel_later(self._receipt, message, failures, trio.current_time())
        self._sender.wake()

"""The acknowledgements of one client, without the client, a server or trio."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from haclient.protocol.messages import Message, MessageLease
from haclient.session.connection_state import ConnectionStatus, LoggedOn
from haclient.session.leases import AckCommand, QueueAcks, QueueLeases, Receipt
from haclient_stores.logs import logger_of

__all__ = ["LeaseWorld", "is_deliverable", "receipt_of"]

_WALL_US = 1_000_000_000_000


@dataclass(slots=True)
class _Lease(MessageLease):
    """A lease on the clock of a world."""

    world: LeaseWorld
    leases: QueueLeases
    receipt: Receipt

    @override
    def is_deliverable(self, message: Message, /) -> bool:
        return self.leases.is_deliverable(self.receipt, message, self.world.now)

    @override
    def acknowledge(self, message: Message, option: str, /) -> None:
        if option:
            self.leases.return_message(self.receipt, message, option, self.world.now)
        elif self.leases.acknowledge(self.receipt, message):
            self.leases.begin_batch(self.world.now)

    @override
    def extend(self, message: Message, seconds: float, /) -> None:
        self.leases.extend(self.receipt, message, seconds, self.world.now)

    @override
    def deadline(self, message: Message, /) -> float | None:
        return self.leases.deadline(self.receipt, message)


class LeaseWorld:
    """What one client acknowledges, and the subscription that it receives with.

    Attributes:
        now: The time.
        sent: What was sent and is not answered, in order, by the id of its command.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.wall_us = _WALL_US
        self.status = ConnectionStatus()
        self.acks = QueueAcks(self.status)
        self.leases = self.subscribe("work", is_queue=True)
        self.sent: dict[str, AckCommand] = {}
        self._count = 0

    def subscribe(self, topic: str, *, is_queue: bool) -> QueueLeases:
        def new_lease(leases: QueueLeases, now: float) -> MessageLease:
            return _Lease(self, leases, Receipt(self.acks.link, now, self.wall_us))

        log = logger_of("haclient.test")
        return QueueLeases(
            self.acks, topic, new_lease=new_lease, is_queue=is_queue, asked=5, log=log
        )

    def connect(self) -> None:
        self.acks.connected(self._send)
        self.status.connected("here")
        self.status.logged_on(LoggedOn(seen=0, persisted=0, server_version="6", reason=""))

    def _send(self, command: AckCommand) -> None:
        self._count += 1
        self.sent[str(self._count)] = command
        self.sent.pop(self.acks.sent(str(self._count), command), None)

    def lose(self) -> None:
        self.acks.lost(self.leases.most_unacknowledged)

    def receive(self, *numbers: int, lp: str = "30s") -> list[Message]:
        messages = [
            Message(kind="p", topic="work", bookmark=f"7|{n}|", lease_period=lp) for n in numbers
        ]
        self.leases.received(messages, self.now)
        return messages

    def delivered(self, *numbers: int) -> list[str]:
        """Receive messages; the bookmarks of those that the application gets."""
        return [each.bookmark for each in self.receive(*numbers) if is_deliverable(each)]

    def wait(self, seconds: float) -> None:
        """Let time pass, and send what is due at each moment."""
        until = self.now + seconds
        while self.acks.due_at <= until:
            self.now = max(self.now, self.acks.due_at)
            self.acks.send_due(self.now)
        self.now = until

    def take(self) -> list[tuple[str, str]]:
        """The bookmarks and options of what was sent."""
        sent, self.sent = self.sent, {}
        return [(",".join(command.bookmarks), command.options) for command in sent.values()]

    def confirm(self) -> None:
        """Answer everything that was sent."""
        for command_id in self.sent:
            self.acks.answered(command_id)


def is_deliverable(message: Message) -> bool:
    """Whether the application may have a message."""
    return message.lease is None or message.lease.is_deliverable(message)


def receipt_of(message: Message) -> Receipt:
    """How a message was received."""
    assert isinstance(message.lease, _Lease)
    return message.lease.receipt

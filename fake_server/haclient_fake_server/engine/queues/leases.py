"""Leases, deliveries and expired messages of a queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from haclient_fake_server.engine.connections import QueueSubscription
from haclient_fake_server.engine.queues.message_table import MessageRow
from haclient_fake_server.journal.format import RemovalReason


class Lease:
    """A message that a consumer has.

    Attributes:
        row: The message; its place counts only when the table has it no more.
        bookmark: Its bookmark.
        consumer: Who has it.
        due_us: When the lease ends; `None` for never.
        since_us: When it began.
        deliveries: How often the message was delivered, with this time.
        cancels: How often it was returned with `cancel`.
    """

    __slots__ = ("bookmark", "cancels", "consumer", "deliveries", "due_us", "row", "since_us")

    def __init__(
        self, row: MessageRow, consumer: QueueSubscription, due_us: int | None, *, since_us: int
    ) -> None:
        self.row = row
        self.bookmark = row.bookmark
        self.consumer = consumer
        self.due_us = due_us
        self.since_us = since_us
        self.deliveries = 1
        self.cancels = 0


class Delivery(NamedTuple):
    """Some messages for a consumer, or a barrier for all that want it.

    Attributes:
        rows: The messages, which are marked as leased.
        consumers: Who gets them.
        is_barrier: Whether it is a barrier.
    """

    rows: Sequence[MessageRow]
    consumers: tuple[QueueSubscription, ...]
    is_barrier: bool = False


class Expired(NamedTuple):
    """A message that is about to be removed unprocessed."""

    position: int
    bookmark: str
    reason: RemovalReason
    deliveries: int
    cancels: int

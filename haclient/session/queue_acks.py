"""Acknowledgements of queue messages: which are sent together, when, and again. Pure.

A queue message is acknowledged by a `sow_delete` that names its bookmark. One command takes many
bookmarks of one queue, joined by commas. `AckBatch` collects the plain acknowledgements of one
subscription until they are as many as `limit`, or until the oldest has waited for `timeout_s`.
`QueueAcks` has what one client has acknowledged, over all its connections.

**The limit** is never above the backlog that the server has granted. The server sends nothing while
as many messages as the backlog are unacknowledged, so a larger batch would never fill up: each
batch would wait for its timeout. The count is over all queues of the subscription, since the
backlog is.

**Cancel, expire and lease extensions** are never collected: they are sent at once, after the plain
acknowledgements of that queue that were collected before, so that the server sees them in the order
in which the application gave them.

**A lost link ends every lease.** The server redelivers the messages to any consumer. Messages that
are queued in the client are dropped, and arrive as new messages with new leases.

* *Plain* acknowledgements say that work is done, which stays true. Those that the server has not
  confirmed are kept in memory (`retained`), and sent again once the subscriptions are back. So is
  the acknowledgement of a message whose handler was still at work. If such a message is
  nevertheless redelivered on the next link (`processed`), it is acknowledged again and not passed
  to the application.
* *Cancel, expire and lease extensions* refer to a lease that has ended, so they are dropped.

Each command requests a `processed` ack; a command that was confirmed is not sent again. `retained`
never holds more than the server had granted to the subscriptions together and `MAX_CARRIED`.

Acknowledgements are never in the publish store and have no sequence: a later process must not
repeat an acknowledgement whose lease has ended.
"""

from __future__ import annotations

import enum
import heapq
import math
from collections.abc import Callable, Iterable
from itertools import count
from typing import Final, NamedTuple, TypeAlias

from haclient.errors import UsageError
from haclient.protocol.messages import Message
from haclient.protocol.options import format_interval
from haclient.session.connection_state import ConnectionStatus

DEFAULT_ACK_TIMEOUT_S: Final = 0.1
"""How long an acknowledgement waits for others."""

MAX_UNCONFIRMED: Final = 10_000
"""Commands that may wait for the server's answer; beyond it the oldest is dropped."""

MAX_CARRIED: Final = 10_000
"""The limit of acknowledgements that are kept for the next link beyond those of the active
subscriptions: of ended subscriptions and of earlier links. A peer may never confirm any."""

MAX_EXTENSION_S: Final = 10 * 365 * 86_400
"""Seconds: longer than any lease, and what the reference broker takes."""

MAX_BOOKMARKS: Final = 1000
"""Bookmarks in one command: some 40 KiB of header."""

_SHARE: Final = 3  # of the backlog; two thirds are worked on while a batch is on its way


class AckOption(enum.StrEnum):
    """What an acknowledgement does, as the option on the wire."""

    PLAIN = ""  # processed: the message leaves the queue
    CANCEL = "cancel"  # given back
    EXPIRE = "expire"  # removed as expired


class AckCommand(NamedTuple):
    """One `sow_delete`.

    Attributes:
        topic: The queue.
        bookmarks: The messages.
        options: Its options; empty for a plain acknowledgement.
    """

    topic: str
    bookmarks: tuple[str, ...]
    options: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether it says that messages were processed."""
        return not self.options

    def names(self) -> list[tuple[str, str]]:
        """The queue and the bookmark of each message."""
        return [(self.topic, bookmark) for bookmark in self.bookmarks]

    def fields(self, command_id: str, acks: str) -> dict[str, str | int]:
        """The header.

        Args:
            command_id: The id in its acks.
            acks: The acks to request, as a comma list.
        """
        header = {"c": "sow_delete", "cid": command_id, "t": self.topic}
        header |= {"bm": ",".join(self.bookmarks), "opts": self.options, "a": acks}
        return {name: value for name, value in header.items() if value}


def ack_commands(topic: str, bookmarks: Iterable[str], options: str = "") -> list[AckCommand]:
    """The commands for these messages of one queue, each of at most `MAX_BOOKMARKS`."""
    found = tuple(bookmarks)
    return [
        AckCommand(topic, found[first : first + MAX_BOOKMARKS], options)
        for first in range(0, len(found), MAX_BOOKMARKS)
    ]


def lease_extension(seconds: float) -> str:
    """The option that extends a lease.

    Raises:
        UsageError: It is not a number of seconds above 0, or longer than any lease.
    """
    if not 0 < seconds <= MAX_EXTENSION_S:
        raise UsageError(
            "the extension of a lease is a number of seconds, above 0 and at most "
            f"{MAX_EXTENSION_S}, not {seconds!r}"
        )
    return f"lease_extension={format_interval(seconds)}"


def batch_limit(wanted: int | None, backlog: int | None, timeout_s: float) -> int:
    """How many acknowledgements one batch collects.

    Args:
        wanted: What the application asked for; `None` for a third of the backlog.
        backlog: What the server has granted; `None` if it does not say. Then it may be 1, and
            nothing is collected.
        timeout_s: How long an acknowledgement may wait for others.

    Returns:
        At least 1, at most the backlog.
    """
    if backlog is None or timeout_s == 0:
        return 1
    return max(1, min(wanted or backlog // _SHARE, backlog))


class AckBatch:
    """The plain acknowledgements of one subscription that are not sent yet.

    Times are seconds on the caller's clock.

    Args:
        timeout_s: How long the oldest may wait.

    Attributes:
        limit: How many are collected; see `batch_limit`.
        count: How many are there.
    """

    __slots__ = ("_by_topic", "_oldest_at", "count", "limit", "timeout_s")

    def __init__(self, *, timeout_s: float) -> None:
        self.limit = 1
        self.timeout_s = timeout_s
        self.count = 0
        self._by_topic: dict[str, list[str]] = {}
        self._oldest_at = 0.0

    @property
    def due_at(self) -> float | None:
        """When it is sent although it is not full; `None` while it is empty."""
        return self._oldest_at + self.timeout_s if self.count else None

    def begin(self, now: float) -> float:
        """Note the time before the first one is added; return when it is due."""
        self._oldest_at = now
        return now + self.timeout_s

    def add(self, topic: str, bookmark: str) -> bool:
        """Collect one.

        Args:
            topic: The queue.
            bookmark: The message.

        Returns:
            Whether the batch is full: then it has to be sent now.
        """
        bookmarks = self._by_topic.get(topic)
        if bookmarks is None:
            bookmarks = self._by_topic[topic] = []
        bookmarks.append(bookmark)
        self.count = count = self.count + 1
        return count >= self.limit

    def take(self) -> list[AckCommand]:
        """The commands for everything that was collected, which is empty then."""
        by_topic, self._by_topic, self.count = self._by_topic, {}, 0
        return [
            command
            for topic, bookmarks in by_topic.items()
            for command in ack_commands(topic, bookmarks)
        ]

    def take_topic(self, topic: str) -> list[AckCommand]:
        """The commands for what was collected of one queue."""
        bookmarks = self._by_topic.pop(topic, [])
        self.count -= len(bookmarks)
        return ack_commands(topic, bookmarks)


SendAck: TypeAlias = Callable[[AckCommand], object]
"""Sends a command on the connection in use."""


class QueueAcks:
    """The acknowledgements of one client; see the text of this module.

    Args:
        status: The state of the connection.
        batch_size: How many are sent together; `None` for a third of the backlog.
        timeout_s: How many seconds one waits for others.

    Attributes:
        link: Counts the connections and their ends: a lease with another count has ended.
        retained: Queue and bookmark of each acknowledgement to send again, until it is confirmed.
        processed: Queue and bookmark of each message whose acknowledgement the previous link has
            not confirmed, or that was acknowledged after that link was lost; until this link ends.
        dropped: How many were dropped, because more than the limit were unconfirmed.
        due_at: The time for `send_due`, or an earlier one; infinite while nothing is to be sent.
    """

    def __init__(
        self,
        status: ConnectionStatus,
        *,
        batch_size: int | None = None,
        timeout_s: float = DEFAULT_ACK_TIMEOUT_S,
    ) -> None:
        self._status = status
        self.batch_size = batch_size
        self.timeout_s = timeout_s
        self._send_now: SendAck | None = None
        self.link = 0
        self.retained: dict[tuple[str, str], None] = {}
        self.processed: dict[tuple[str, str], None] = {}
        self.dropped = 0
        self.due_at = math.inf
        self._most_retained = 0
        # Whether the subscriptions of this link are back: earlier, a server may not know the queue.
        self._is_resumed = False
        self._batches: dict[AckBatch, None] = {}  # that have something
        self._unconfirmed: dict[str, AckCommand] = {}
        self._delayed: list[tuple[float, int, Message]] = []  # a heap of cancels
        self._order = count()

    # -- sending --------------------------------------------------------------

    def send(self, commands: Iterable[AckCommand]) -> None:
        """Send commands now; plain ones are kept if there is no connection."""
        for command in commands:
            if self._send_now is not None and self._status.is_logged_on:
                self._send_now(command)
            elif command.is_plain:
                self._retain(command)

    def sent(self, command_id: str, command: AckCommand) -> str:
        """Note that a command is on its way.

        Returns:
            The id of an earlier command, whose answer is not waited for any more; empty for none.
        """
        unanswered = ""
        if len(self._unconfirmed) >= MAX_UNCONFIRMED:  # the peer does not answer
            unanswered = next(iter(self._unconfirmed))
            del self._unconfirmed[unanswered]
        self._unconfirmed[command_id] = command
        return unanswered

    def answered(self, command_id: str) -> bool:
        """The server has answered a command; return whether it was sent on this link."""
        command = self._unconfirmed.pop(command_id, None)
        if command is None:  # of an earlier link: it was kept, or dropped
            return False
        if self.retained and command.is_plain:
            for name in command.names():
                self.retained.pop(name, None)
        return True

    def collecting(self, batch: AckBatch, due_at: float) -> None:
        """The first acknowledgement is in a batch, which is due at that time."""
        self._batches[batch] = None
        self.due_at = min(self.due_at, due_at)

    def send_batch(self, batch: AckBatch) -> None:
        """Send what a batch has collected."""
        self._batches.pop(batch, None)
        if batch.count:
            self.send(batch.take())

    def send_after(self, batch: AckBatch, command: AckCommand) -> None:
        """Send a command now, after what a batch has collected of its queue."""
        self.send([*batch.take_topic(command.topic), command])
        if not batch.count:
            self._batches.pop(batch, None)

    def send_pending(self) -> None:
        """Send everything that was collected."""
        for batch in list(self._batches):
            self.send_batch(batch)

    def cancel_at(self, due_at: float, message: Message) -> None:
        """Give a message back at that time, unless it was acknowledged by then."""
        heapq.heappush(self._delayed, (due_at, next(self._order), message))
        self.due_at = min(self.due_at, due_at)

    def send_due(self, now: float) -> None:
        """Send the batches and cancels that are due, and find `due_at` again."""
        for batch in list(self._batches):
            due_at = batch.due_at
            if due_at is None or due_at <= now:
                self.send_batch(batch)
        while self._delayed and self._delayed[0][0] <= now:
            heapq.heappop(self._delayed)[2].ack(cancel=True)
        self.due_at = self._delayed[0][0] if self._delayed else math.inf
        for batch in self._batches:
            self.due_at = min(self.due_at, batch.due_at or math.inf)

    @property
    def outstanding(self) -> int:
        """How many acknowledgements are collected, unconfirmed or kept for the next link."""
        collected = sum(batch.count for batch in self._batches)
        unconfirmed = sum(len(command.bookmarks) for command in self._unconfirmed.values())
        return collected + unconfirmed + (0 if self._is_resumed else len(self.retained))

    @property
    def is_idle(self) -> bool:
        """Whether nothing is collected, unconfirmed or to be sent again."""
        return not (self._batches or self._unconfirmed or self.retained)

    # -- the connection's life --------------------------------------------------

    def connected(self, send: SendAck) -> None:
        """Use a new link, on which `send` sends."""
        self._send_now = send
        self.link += 1

    def lost(self, granted: int) -> None:
        """The link has ended, and each lease with it.

        Args:
            granted: How many unacknowledged messages it has allowed to the subscriptions together.
        """
        self._send_now = None
        self.link += 1
        self._is_resumed = False
        self._delayed.clear()
        self._most_retained = max(granted + MAX_CARRIED, len(self.retained))
        unconfirmed, self._unconfirmed = self._unconfirmed, {}
        for command in unconfirmed.values():
            if command.is_plain:
                self._retain(command)
        self.send_pending()  # kept, since there is no connection
        self.processed = dict(self.retained)

    def resume(self) -> None:
        """Subscriptions are back: send again what the lost link had not confirmed."""
        self._is_resumed = True
        by_topic: dict[str, list[str]] = {}
        for topic, bookmark in self.retained:
            by_topic.setdefault(topic, []).append(bookmark)
        for topic, bookmarks in by_topic.items():
            self.send(ack_commands(topic, bookmarks))

    def _retain(self, command: AckCommand) -> None:
        """Keep a plain acknowledgement for the next link."""
        self.retained.update(dict.fromkeys(command.names()))
        while len(self.retained) > self._most_retained:
            del self.retained[next(iter(self.retained))]
            self.dropped += 1

    def acknowledge_late(self, topic: str, bookmark: str) -> None:
        """A message was processed after its link was lost."""
        command = AckCommand(topic, (bookmark,))
        self.processed[topic, bookmark] = None
        if self._is_resumed:
            self.send([command])
        else:
            self._retain(command)

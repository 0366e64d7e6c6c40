"""Messages of queues: their leases, and when they are acknowledged, and again. Pure.

**Acknowledgements.** A queue message is acknowledged by a `sow_delete` that names its bookmark. One
command takes many bookmarks of one queue, joined by commas. `AckBatch` collects the plain
acknowledgements of one subscription until they are as many as `limit`, or until the oldest has
waited for `timeout_s`. `QueueAcks` has what one client has acknowledged, over all its connections.

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
  the acknowledgement of a message whose handler was still running. If such a message is
  nevertheless redelivered on the next link (`processed`), it is acknowledged again and not passed
  to the application.
* *Cancel, expire and lease extensions* refer to a lease that has ended, so they are dropped.

Each command requests a `processed` ack; a command that was confirmed is not sent again. `retained`
never holds more than the server had granted to the subscriptions together and `MAX_CARRIED`.

Acknowledgements are never in the publish store and have no sequence: a later process must not
repeat an acknowledgement whose lease has ended.

**The grant.** The `processed` ack of a subscribe has the effective backlog in its options
(`max_backlog=10`). The reference broker adds the lease of the queues (`lease=30.0`, in seconds) if
it is the same for all, and `semantics=at-most-once` if none of their messages comes again; other
servers do not send them. An ack without options does not show whether
the topic is a queue.

**The lease of a message** ends at the time in its header (`lp`), by the clock of the server. Two
machines' clocks differ, so only the *time left* at the receipt counts. If the server has granted
the length of the lease, that is the time left. Else the time left is `lp` minus this machine's time
of day. If that is not above 0, or longer than any lease, the clocks differ too much, and the end is
unknown.
Some peers send a duration (`30s`), which is the time left itself.

**A failed message** is held before it is given back. Without a delay, a message that no handler can
process would circulate between the server and its consumers without a pause. The delay doubles with
each failure of the same message, up to a limit. Failures are counted in this process; the server
counts cancels.
"""

from __future__ import annotations

import enum
import heapq
import math
import re
from collections.abc import Callable, Iterable
from itertools import count
from typing import Final, NamedTuple, TypeAlias

from haclient.errors import UsageError
from haclient.protocol.messages import Message, MessageLease
from haclient.protocol.options import format_interval, parse_interval
from haclient.session.connection_state import ConnectionStatus
from haclient_stores.bookmark import Timestamp
from haclient_stores.logs import SafeLogger

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
        return collected + unconfirmed + self.unsent

    @property
    def unsent(self) -> int:
        """How many wait for subscriptions to be back, since their link was lost."""
        return 0 if self._is_resumed else len(self.retained)

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


# -- leases ----------------------------------------------------------------------------------------


_NUMBER: Final = re.compile("[0-9]{1,9}")

LONGEST_LEASE_S: Final = 7 * 86_400.0
"""More time left than this shows that the clocks differ, and not a lease."""

FIRST_DELAY_S: Final = 0.1
LONGEST_DELAY_S: Final = 30.0

MAX_COUNTED: Final = 10_000
"""Messages whose failures are counted; the one that failed longest ago is dropped first."""

MAX_EXTENDED: Final = 10_000
"""Extended leases that are recorded before the ended ones are removed."""

_WAIT_OF_LEASE: Final = 0.1  # of the lease: the most that an acknowledgement waits for others
_USED_OF_LEASE: Final = 0.9  # a cancel after the end of its lease might meet the next one


class Grant(NamedTuple):
    """What the server has granted to a subscription.

    Attributes:
        backlog: How many messages may be unacknowledged; `None` if the server does not say.
        lease_s: The lease of its queues in seconds; `None` if the server does not say.
        is_once: Whether the server has removed a message before it sends it: it never comes again.
    """

    backlog: int | None = None
    lease_s: float | None = None
    is_once: bool = False


def parse_grant(options: str) -> Grant:
    """Read the options of a subscribe's ack; what cannot be read is as if it were not there.

    Args:
        options: The options, as the server wrote them.
    """
    backlog: int | None = None
    lease_s: float | None = None
    is_once = False
    for item in options.split(","):
        name, _, value = (part.strip() for part in item.partition("="))
        if name == "max_backlog" and _NUMBER.fullmatch(value):
            backlog = int(value)
        elif name == "lease":
            lease_s = _interval(value)
        elif name == "semantics":
            is_once = value == "at-most-once"
    return Grant(backlog, lease_s, is_once)


def lease_left_s(lease_period: str, wall_us: int, lease_s: float | None) -> float | None:
    """The time left of a lease when its message was received.

    Args:
        lease_period: The header field.
        wall_us: This machine's time of the receipt, in microseconds since 1970.
        lease_s: The granted length of leases, `None` if it is unknown.

    Returns:
        Seconds; infinite if the message has no lease, `None` if the end is unknown.
    """
    if not lease_period:
        return math.inf
    if lease_s is not None:
        return lease_s
    duration_s = _interval(lease_period)
    if duration_s is not None:
        return duration_s
    try:
        # Some peers write the time with separators.
        ends_us = Timestamp.parse(re.sub("[-:]", "", lease_period)).microseconds
    except UsageError:
        return None
    left_s = (ends_us - wall_us) / 1_000_000
    return left_s if 0 < left_s <= LONGEST_LEASE_S else None


def _interval(text: str) -> float | None:
    """A duration within `LONGEST_LEASE_S`; `None` for anything else."""
    try:
        found = parse_interval(text)
    except UsageError:
        return None
    return found if 0 < found <= LONGEST_LEASE_S else None


def cancel_delay_s(failures: int) -> float:
    """Seconds to hold a message that has failed so often."""
    return min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(failures - 1, 60))


class Receipt(NamedTuple):
    """How messages were received together.

    Attributes:
        link: The count of `QueueAcks.link`.
        at: When, on trio's clock.
        wall_us: The same by this machine's time of day, in microseconds since 1970.
    """

    link: int
    at: float
    wall_us: int


NewLease: TypeAlias = Callable[["QueueLeases", float], MessageLease]
"""Makes the lease of messages that a subscription has received at a time."""


class QueueLeases:
    """The leases of one subscription, and what it does for the messages of its queues.

    Every subscription without a bookmark has one, since only the server's answer shows whether its
    topic is a queue.

    Args:
        acks: The acknowledgements of the client.
        topic: The topic.
        new_lease: Makes the lease of messages that were received together, so that no object is
            created per message.
        is_queue: Whether the topic is known to be a queue; else the server's answer shows it.
        asked: The backlog that is asked for.
        log: Logs the warnings, with the fields of the client.

    Attributes:
        backlog: What the server has granted; `None` if it does not say.
        lease_s: The length of leases, if the server says it.
        batch: Acknowledgements that are not sent yet.
        extended: The later end of each lease that was extended, by queue and bookmark.
        is_closed: Whether the subscription has ended, and each lease with it.
        is_once: Whether no message comes again, as far as the server says.
    """

    def __init__(
        self,
        acks: QueueAcks,
        topic: str,
        *,
        new_lease: NewLease,
        is_queue: bool,
        asked: int = 1,
        log: SafeLogger,
    ) -> None:
        self.acks = acks
        self.log = log
        self.is_queue = is_queue
        self.backlog: int | None = None
        self.lease_s: float | None = None
        self.batch = AckBatch(timeout_s=acks.timeout_s)
        self.extended: dict[tuple[str, str], float] = {}
        self.is_closed = False
        self.is_once = False
        self._topic = topic
        self._new_lease = new_lease
        self._asked = asked
        self._warned: set[str] = set()
        self._failures: dict[tuple[str, str], int] = {}  # by queue and bookmark, the oldest first

    # -- receiving ------------------------------------------------------------

    @property
    def most_unacknowledged(self) -> int:
        """How many messages the server sends before it waits for an acknowledgement."""
        return self._asked if self.backlog is None else self.backlog

    def granted(self, options: str) -> None:
        """The server has accepted the command, or a later one that replaces it.

        Args:
            options: The options of the `processed` ack.
        """
        grant = parse_grant(options)
        if grant.backlog is None and not self.is_queue:
            return
        self.is_queue = True
        self.backlog, self.lease_s = grant.backlog or None, grant.lease_s
        self.is_once = grant.is_once
        if grant.backlog == 0:
            self.warn_once(
                "nothing",
                "the server grants the queue %s a backlog of 0, so it may send no message: allow a "
                "backlog at the server",
            )
        most_s = math.inf if grant.lease_s is None else grant.lease_s * _WAIT_OF_LEASE
        self.batch.timeout_s = min(self.acks.timeout_s, most_s)
        self.batch.limit = batch_limit(self.acks.batch_size, grant.backlog, self.batch.timeout_s)
        if self.batch.count >= self.batch.limit:  # the server may send nothing before it has these
            self.acks.send_batch(self.batch)
        if grant.backlog == 1:
            self.warn_once(
                "backlog",
                "the queue %s sends one message at a time (backlog 1): its consumer waits for the "
                "server after each one; ask for max_backlog=2 or more, and allow it at the server",
            )

    def warn_once(self, about: str, text: str) -> None:
        """Log a warning about this subscription, unless the same was logged before."""
        if about not in self._warned:
            self._warned.add(about)
            self.log.warning(text, self._topic)

    def received(self, messages: list[Message], now: float) -> None:
        """Attach the lease to messages of one chunk.

        Args:
            messages: The messages, in order.
            now: The time, in seconds.
        """
        if self.extended:  # a redelivered message has a new lease
            for message in messages:
                self.extended.pop((message.topic, message.bookmark), None)
        lease = self._new_lease(self, now)
        for message in messages:
            if message.bookmark:  # else nothing names it in an acknowledgement
                message.lease = lease
            elif self.is_queue:
                self.warn_once(
                    "bookmark",
                    "messages of the queue %s have no bookmark, so they cannot be acknowledged: "
                    "the server will stop sending when the backlog is full",
                )

    # -- one lease --------------------------------------------------------------

    def holds(self, receipt: Receipt) -> bool:
        """Whether the connection of these messages and the subscription still exist."""
        return receipt.link == self.acks.link and not self.is_closed

    def is_deliverable(self, receipt: Receipt, message: Message, now: float) -> bool:
        """Whether a message has yet to be processed; see `MessageLease.is_deliverable`."""
        acks = self.acks
        if self.is_once:
            return True
        if receipt.link != acks.link or self.is_closed:
            return False
        processed = acks.processed
        if processed and (message.topic, message.bookmark) in processed:
            if self.acknowledge(receipt, message):  # its work was done on an earlier link
                self.begin_batch(now)
            return False
        if self.lease_s is None or now < receipt.at + self.lease_s or not message.lease_period:
            return True
        # It has waited in this client for longer than its lease.
        if self.extended.get((message.topic, message.bookmark), 0.0) > now:
            return True
        self.warn_once(
            "lapsed",
            "messages of the queue %s wait in this client until their leases end, and are skipped: "
            "ask for a smaller max_backlog, or use more workers",
        )
        return False

    def deadline(self, receipt: Receipt, message: Message) -> float | None:
        """When the lease of a message ends; see `MessageLease.deadline`."""
        if self.extended:
            extended = self.extended.get((message.topic, message.bookmark))
            if extended is not None:
                return extended
        left_s = lease_left_s(message.lease_period, receipt.wall_us, self.lease_s)
        if left_s is None:
            self.warn_once(
                "clock",
                "the leases of the queue %s end at times that cannot be right: compare the clocks "
                "of this machine and of the server; lease deadlines are not enforced",
            )
        return None if left_s is None or left_s == math.inf else receipt.at + left_s

    def extend(self, receipt: Receipt, message: Message, seconds: float, now: float) -> None:
        """Extend the lease of a message; see `MessageLease.extend`."""
        option = lease_extension(seconds)
        if message.lease is None or not self.holds(receipt):
            return
        if message.lease_period:  # else it has no end that could move
            if len(self.extended) >= MAX_EXTENDED:  # of messages that nobody acknowledges
                self.extended = {name: end for name, end in self.extended.items() if end > now}
            later = max(self.deadline(receipt, message) or 0.0, now + seconds)
            self.extended[message.topic, message.bookmark] = later
        self.acks.send_after(self.batch, AckCommand(message.topic, (message.bookmark,), option))

    # -- acknowledging ------------------------------------------------------------

    def acknowledge(self, receipt: Receipt, message: Message) -> bool:
        """Acknowledge a processed message; see `MessageLease.acknowledge`.

        Returns:
            Whether it is the first in its batch: then call `begin_batch`.
        """
        if message.lease is None:  # acknowledged before
            return False
        message.lease = None
        topic, bookmark = message.topic, message.bookmark
        self._forget(topic, bookmark)
        if receipt.link != self.acks.link:
            if self.is_once:  # it is not in the queue, and not in a backlog any more
                return False
            self.acks.acknowledge_late(topic, bookmark)
            return False
        batch = self.batch
        is_first = not batch.count
        if batch.add(topic, bookmark):
            self.acks.send_batch(batch)
            return False
        return is_first

    def begin_batch(self, now: float) -> None:
        """Note when the first acknowledgement of a batch was given."""
        self.acks.collecting(self.batch, self.batch.begin(now))

    def return_message(self, receipt: Receipt, message: Message, option: str, now: float) -> None:
        """Cancel or expire a message; see `MessageLease.acknowledge`."""
        if message.lease is None:  # acknowledged before
            return
        ends_at = self.deadline(receipt, message)
        message.lease = None
        topic, bookmark = message.topic, message.bookmark
        if option == AckOption.CANCEL:
            # After the end of its lease, a cancel would end the lease that followed.
            has_ended = ends_at is not None and ends_at <= now
            self.extended.pop((topic, bookmark), None)
        else:
            has_ended = False
            self._forget(topic, bookmark)
        if self.holds(receipt) and not has_ended:
            self.acks.send_after(self.batch, AckCommand(topic, (bookmark,), option))

    def _forget(self, topic: str, bookmark: str) -> None:
        """A message leaves its queue."""
        if self.extended:
            self.extended.pop((topic, bookmark), None)
        if self._failures:
            self._failures.pop((topic, bookmark), None)

    def failed(self, topic: str, bookmark: str) -> int:
        """Count a failure of a message; return how often it has failed in this subscription."""
        name = (topic, bookmark)
        count = self._failures.pop(name, 0) + 1
        self._failures[name] = count  # the youngest
        if len(self._failures) > MAX_COUNTED:
            del self._failures[next(iter(self._failures))]
        return count

    def cancel_later(self, receipt: Receipt, message: Message, failures: int, now: float) -> None:
        """Give a message back after a delay, within its lease."""
        if not self.holds(receipt):
            # Returned already. A message is not seen by the garbage collector: it must not refer
            # to this subscription for ever.
            message.lease = None
            return
        delay_s = cancel_delay_s(failures)
        ends_at = self.deadline(receipt, message)
        if ends_at is not None:
            delay_s = min(delay_s, max(0.0, ends_at - now) * _USED_OF_LEASE)
        self.acks.cancel_at(now + delay_s, message)

    def close(self) -> None:
        """The subscription ends, and the server returns its leases: send what was collected."""
        self.acks.send_batch(self.batch)
        self.is_closed = True
